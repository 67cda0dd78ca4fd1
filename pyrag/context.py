"""Packs retrieved chunks into the context that a model reads (contract 6.2)."""

from __future__ import annotations

from collections.abc import Sequence

from pyrag.models import Context, ContextBlock, Hit
from pyrag.tokens import count_tokens, encode, encoding

_TRUNCATED = "[truncated]"


def pack_context(hits: Sequence[Hit], budget: int, overhead: int = 0) -> Context:
    """Numbered blocks of the hits, in their order, in at most `budget` cl100k_base tokens.

    `overhead` tokens of the budget are kept free for each block, for what a prompt puts around it.

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
        content = hit.content
        candidate = _joined(text, _block(len(blocks) + 1, hit, content))
        if count_tokens(candidate) + overhead * (len(blocks) + 1) > budget:
            cut = _truncated(hit, budget - overhead) if first else None
            first = False
            if cut is None:
                continue
            content = cut
            candidate = _block(1, hit, content)
        first = False
        number = len(blocks) + 1
        blocks.append(ContextBlock(number, hit, _block(number, hit, content), content))
        text = candidate
    return Context(text, tuple(blocks), count_tokens(text))


def _joined(text: str, block: str) -> str:
    return f"{text}\n\n{block}" if text else block


def _block(number: int, hit: Hit, content: str) -> str:
    page = hit.metadata.get("page")
    # on one line each: a line break in a file's name must not look like a line of the block
    source, heading = (" ".join(text.splitlines()) for text in (hit.source, hit.heading))
    return (
        f"[{number}] source: {source}\nheading: {heading}\n"
        + (f"page: {page}\n" if page is not None else "")
        + f"score: {hit.score:.4f}\ncontent:\n{content}"
    )


def _truncated(hit: Hit, budget: int) -> str | None:
    """As much content as fits into block 1 before `[truncated]`; None when not even the frame fits."""
    tokens = encode(hit.content)
    low, high, best = 0, min(len(tokens), budget), None
    while low <= high:
        middle = (low + high) // 2
        # a cut inside a character leaves bytes that are dropped, never a replacement character
        start = encoding().decode_bytes(tokens[:middle]).decode("utf-8", errors="ignore").rstrip()
        content = f"{start}\n{_TRUNCATED}" if start else _TRUNCATED
        if count_tokens(_block(1, hit, content)) <= budget:
            best, low = content, middle + 1
        else:
            high = middle - 1
    return best
