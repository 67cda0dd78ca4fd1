"""Cutting one long section into pieces at the best borders. Pure and deterministic, linear in the text."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyrag.tokens import count_tokens, encoding
from pyrag.units import CLAUSE_END, GRAPHEME, SENTENCE_END, SPACE, WEAK, Cutter, LineTable, Sizes, Unit

if TYPE_CHECKING:
    from pyrag.models import Block


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a section: `content` with overlap and repeated lines, `start` and `end` of its own text."""

    content: str
    tokens: int
    start: int
    end: int


def split(table: LineTable, blocks: Sequence[Block], start: int, end: int, sizes: Sizes) -> list[Piece]:
    """Pieces of the lines `start` to `end` (trimmed), which hold `blocks`; each fits into the maximum.

    A piece has 400 to 800 tokens under the contract's sizes where the borders allow it. Code fences and
    tables are cut only when they do not fit whole.
    """
    units = list(Cutter(table, sizes).cut(blocks, start, end))
    return list(_Packer(table, units, sizes).pieces())


class _Packer:
    """Groups units into pieces, each cut at the border that costs least."""

    def __init__(self, table: LineTable, units: Sequence[Unit], sizes: Sizes) -> None:
        self._table = table
        self._text = table.text
        self._units = units
        self._sizes = sizes
        self._sums = [0]
        for unit in units:
            self._sums.append(self._sums[-1] + unit.tokens)
        self._closing = {close: count_tokens(close) + 1 for close in {unit.close for unit in units} if close}
        self._opening = {text: count_tokens(text) for text in {unit.reopen for unit in units} if text}

    def pieces(self) -> Iterator[Piece]:
        """All pieces, in order. Those that would be blank are left out."""
        first, previous = 0, 0
        last = ""
        while first < len(self._units):
            begin, repeated = self._overlap(previous, first)
            after, piece = self._fit(first, begin, repeated, last)
            if piece is not None:
                yield piece
                last = piece.content
            previous, first = first, after

    def _fit(self, first: int, begin: int, repeated: int, last: str) -> tuple[int, Piece | None]:
        """The unit after the piece that starts at unit `first`, and the piece, counted exactly.

        In text that repeats itself the piece is made a little shorter, so as not to equal the `last` one.
        """
        after = self._choose(first, repeated)
        while True:
            piece = self._piece(first, after, begin)
            if piece is None or (piece.tokens <= self._sizes.maximum and piece.content != last):
                return after, piece
            if after > first + 1:
                after -= 1
            elif begin < self._units[first].start:
                begin = self._units[first].start
            else:
                return after, piece  # a unit alone always fits

    def _choose(self, first: int, repeated: int) -> int:
        """The unit before which the piece that starts at `first` ends at the least cost."""
        target, maximum, overlap = self._sizes.target, self._sizes.maximum, self._sizes.overlap
        base = repeated + self._opening.get(self._units[first].reopen, 0)
        rest = self._sums[-1] - self._sums[first]
        if base + rest <= target:
            return len(self._units)
        low = target // 2
        candidates: list[tuple[int, int, float]] = []
        for after in range(first + 1, len(self._units) + 1):
            size = base + self._sums[after] - self._sums[first]
            size += self._closing.get(self._units[after - 1].close, 0)
            if size > maximum and candidates:
                break
            border = self._units[after].border if after < len(self._units) else 0.0
            candidates.append((after, size, border))
        good = any(low <= size <= target and border < WEAK for _, size, border in candidates)
        cap = target if good else maximum
        count = 1 + math.ceil(max(0, base + rest - cap) / (cap - overlap))
        ideal = (base + rest + (count - 1) * overlap) / count

        def cost(candidate: tuple[int, int, float]) -> float:
            after, size, border = candidate
            total = border + 2 * (size / ideal - 1) ** 2
            if size > cap:
                total += 1 + 2 * (size / cap - 1)
            left = self._sums[-1] - self._sums[after]
            return total + max(0, 1 - size / low) + (max(0, 1 - left / low) if left else 0)

        return min(candidates, key=cost)[0]

    def _overlap(self, previous: int, first: int) -> tuple[int, int]:
        """Where the piece at unit `first` begins with its overlap, and how many tokens that overlap has.

        Whole units where they fit, else the last sentences of the unit before; never a whole piece, and never
        a part of a fence or table.
        """
        units = self._units
        start, tokens = units[first].start, 0
        if units[first].reopen or not self._sizes.overlap:
            return start, 0
        index = first - 1
        while index > previous and units[index].plain and tokens + units[index].tokens <= self._sizes.overlap:
            start, tokens = units[index].start, tokens + units[index].tokens
            index -= 1
        # four spaces at the start would make code of an inner list item
        while start < units[first].start and self._text.startswith(("    ", "\t"), start):
            index += 1
            tokens -= units[index].tokens
            start = units[index + 1].start
        if not tokens and first > 0 and units[first - 1].plain:
            return self._tail(units[first - 1])
        return start, tokens

    def _tail(self, unit: Unit) -> tuple[int, int]:
        """The last sentences of a unit that fit into the overlap, else words, else graphemes."""
        text = self._text[unit.start : unit.end].rstrip()
        _, offsets = encoding().decode_with_offsets(encoding().encode_ordinary(text))
        if len(offsets) <= self._sizes.overlap:
            return unit.end, 0  # the whole piece before: nothing to repeat
        earliest = offsets[-self._sizes.overlap]
        for pattern, part in (
            (SENTENCE_END, "end"),
            (CLAUSE_END, "end"),
            (SPACE, "end"),
            (GRAPHEME, "start"),
        ):
            found = (getattr(match, part)() for match in pattern.finditer(text))
            start = next((at for at in found if at >= earliest and text[at:].strip()), None)
            if start is not None:
                return unit.start + start, len(offsets) - bisect_left(offsets, start)
        return unit.end, 0

    def _piece(self, first: int, after: int, begin: int) -> Piece | None:
        start, end = self._units[first].start, self._units[after - 1].end
        if not self._text[start:end].strip():
            return None
        body = self._text[begin:end].rstrip()
        indent = len(body) - len(body.lstrip())
        if begin and self._text[begin - 1] != "\n":  # within a line
            body = body[indent:]
        elif indent:
            body = body[body.rfind("\n", 0, indent) + 1 :]
        reopen, close = self._units[first].reopen, self._units[after - 1].close
        content = f"{reopen}{body}\n{close}" if close else reopen + body
        return Piece(content, self._count(content, begin, end, reopen, close), start, end)

    def _count(self, content: str, begin: int, end: int, reopen: str, close: str) -> int:
        """Exact tokens of a piece: the sum of its lines where it holds whole lines only."""
        first, after = self._table.line_at(begin), self._table.line_at(end)
        if first is None or after is None or close:
            return count_tokens(content)
        first, after = self._table.trim(first, after)
        return self._opening.get(reopen, 0) + self._table.count_content(first, after)
