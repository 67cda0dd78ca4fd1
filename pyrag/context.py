"""Packs retrieved chunks into the context that a model reads (contract 6.2)."""

from __future__ import annotations

from collections.abc import Sequence

from pyrag.models import Context, ContextBlock, Hit
from pyrag.tokens import count_tokens, encode, encoding

_TRUNCATED = "[truncated]"


def pack_context(hits: Sequence[Hit], budget: int) -> Context:
    """Numbered blocks of the hits, in their order, in at most `budget` cl100k_base tokens.

    Repeated chunks (vault, source, heading_path, content_hash) are left out. A block that does not fit is
    skipped; if the very first one is too large alone, its content is cut and ends in `[truncated]`.
    """
    blocks: list[ContextBlock] = []
    text = ""
    seen: set[tuple[str, str, tuple[str, ...], str]] = set()
    first = True
    for hit in hits:
        key = (hit.vault_path, hit.source, tuple(hit.heading_path), hit.content_hash)
        if key in seen:
            continue
        seen.add(key)
        block = _block(len(blocks) + 1, hit, hit.content)
        candidate = f"{text}\n\n{block}" if text else block
        if count_tokens(candidate) > budget:
            if not first:
                continue
            cut = _truncated(hit, budget)
            first = False
            if cut is None:
                continue
            block = candidate = cut
        first = False
        text = candidate
        blocks.append(ContextBlock(len(blocks) + 1, hit, block))
    return Context(text, tuple(blocks), count_tokens(text))


def _block(number: int, hit: Hit, content: str) -> str:
    page = f"page: {hit.metadata['page']}\n" if "page" in hit.metadata else ""
    return (
        f"[{number}] source: {hit.source}\nheading: {hit.heading}\n{page}"
        f"score: {hit.score:.4f}\ncontent:\n{content}"
    )


def _truncated(hit: Hit, budget: int) -> str | None:
    """Block 1 with as much content as fits before `[truncated]`; None when not even the frame fits."""
    tokens = encode(hit.content)
    low, high, best = 0, min(len(tokens), budget), None
    while low <= high:
        middle = (low + high) // 2
        # a cut inside a character leaves bytes that are dropped, never a replacement character
        content = encoding().decode_bytes(tokens[:middle]).decode("utf-8", errors="ignore").rstrip()
        block = _block(1, hit, f"{content}\n{_TRUNCATED}" if content else _TRUNCATED)
        if count_tokens(block) <= budget:
            best, low = block, middle + 1
        else:
            high = middle - 1
    return best
