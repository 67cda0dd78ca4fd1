"""Texts that pyrag itself says in an answer, in the question's language."""

from __future__ import annotations

from pyrag.lexical import is_cjk


def no_answer_text(question: str, fallback_disabled: bool) -> str:
    """The refusal; `fallback_disabled` adds that a general answer was asked for but is switched off."""
    if is_cjk(question):
        text = "知识库中没有足够相关的内容，因此不回答这个问题。"
        more = "请求中允许使用通用知识（fallback），但它已被全局禁用（RAG_FALLBACK_ENABLED=false）。"
    else:
        text = "The knowledge base holds nothing relevant enough, so this question is not answered. "
        more = (
            "A general answer (fallback) was asked for, but fallback is disabled globally"
            " (RAG_FALLBACK_ENABLED=false)."
        )
    return (text + more if fallback_disabled else text).strip()


def no_room_text(question: str, budget: int) -> str:
    """The refusal when the budget for sources holds not one."""
    if is_cjk(question):
        return f"RAG_CONTEXT_TOKEN_BUDGET={budget} 容不下任何一段资料，因此不回答这个问题。"
    return f"RAG_CONTEXT_TOKEN_BUDGET={budget} holds not even one source, so this question is not answered."


def fallback_text(question: str, answer: str) -> str:
    """An answer from general knowledge, marked as such."""
    note = (
        "以下回答来自模型的通用知识，不来自知识库："
        if is_cjk(question)
        else "This answer comes from the model's general knowledge, not from the knowledge base:"
    )
    return f"{note}\n\n{answer}"
