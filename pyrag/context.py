"""Packs retrieved chunks into the context that a model reads (contract 6.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyrag.models import Context, ContextBlock, Dropped, Hit, Neighbours
from pyrag.tokens import count_tokens, encode, encoding

_TRUNCATED = "[truncated]"
_LONGEST_OVERLAP = 2000  # characters that a chunk may repeat of the one before: more than its 80 tokens
_SHORTEST_OVERLAP = 40  # fewer, such as a fence or a list item, may be the same by chance


def pack_context(
    hits: Sequence[Hit],
    budget: int,
    overhead: int = 0,
    neighbours: Mapping[int, Neighbours] | None = None,
) -> Context:
    """Numbered blocks of the hits, in their order, in at most `budget` cl100k_base tokens.

    `overhead` tokens of the budget are kept free for each block, for what a prompt puts around it.

    Repeated chunks (vault, source, heading_path, content_hash) are left out, and those that say nearly the
    same as an earlier block. A block that does not fit is skipped; if the very first one is too large alone,
    its content is cut and ends in `[truncated]`. What `neighbours` has around a chunk joins its block, in the
    order of the blocks, while the budget allows. The hits that have no block are in `dropped`, with why.
    """
    blocks: list[ContextBlock] = []
    text = ""
    seen: dict[tuple[str, str, tuple[str, ...], str], int] = {}
    placed: set[int | None] = set()
    dropped: list[Dropped] = []
    first = True
    for hit in hits:
        key = (hit.vault_path, hit.source, tuple(hit.heading_path), hit.content_hash)
        if key in seen or hit.duplicate_of in placed:
            same_as = seen.get(key, hit.duplicate_of)
            dropped.append(Dropped(hit.chunk_id, "duplicate", same_as))
            continue
        seen[key] = hit.chunk_id
        content = hit.content
        candidate = _joined(text, _block(len(blocks) + 1, hit, content))
        if count_tokens(candidate) + overhead * (len(blocks) + 1) > budget:
            cut = _truncated(hit, budget - overhead) if first else None
            first = False
            if cut is None:
                dropped.append(Dropped(hit.chunk_id, "over_budget"))
                continue
            content = cut
            candidate = _block(1, hit, content)
        first = False
        number = len(blocks) + 1
        blocks.append(
            ContextBlock(number, hit, _block(number, hit, content), content, content != hit.content)
        )
        placed.add(hit.chunk_id)
        text = candidate
    room = budget - overhead * len(blocks)
    for number, block in enumerate(blocks, start=1):
        beside = (neighbours or {}).get(block.hit.chunk_id)
        if beside is None or block.truncated:
            continue
        for identity, before, after in (
            (beside.next_id, None, beside.next),
            (beside.previous_id, beside.previous, None),
        ):
            if identity is None or identity in placed:
                continue
            content = _merged(_merged(before, blocks[number - 1].content), after)
            joined = (*blocks[number - 1].joined, identity)
            widened = ContextBlock(
                number, block.hit, _block(number, block.hit, content), content, joined=joined
            )
            candidate = "\n\n".join(each.text for each in [*blocks[: number - 1], widened, *blocks[number:]])
            if count_tokens(candidate) <= room:
                placed.add(identity)
                blocks[number - 1] = widened
                text = candidate
    return Context(text, tuple(blocks), count_tokens(text), tuple(dropped))


def _merged(first: str | None, second: str | None) -> str:
    """Two neighbouring chunks as one text: what the second repeats of the first stands there once."""
    if first is None or second is None:
        return first or second or ""
    for size in range(min(len(first), len(second), _LONGEST_OVERLAP), _SHORTEST_OVERLAP - 1, -1):
        if first.endswith(second[:size]):
            return first + second[size:]
    return f"{first}\n\n{second}"


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
