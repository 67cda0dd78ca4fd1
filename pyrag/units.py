"""A long section as units with the cost of a cut before each: blocks, list items, rows, lines, sentences."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import regex  # type: ignore[import-untyped,unused-ignore]

from pyrag.tokens import count_tokens, encode, encoding

if TYPE_CHECKING:
    from pyrag.models import Block

# What a border costs, in units of "a piece twice as long as it should be, squared". GLUE holds a heading to
# its text and a table's head to its first row; from WEAK on, fewer and longer pieces beat more borders.
BLOCK, ITEM, AFTER_LEAD_IN, ROW, CODE_GAP, SENTENCE, CODE_LINE = 0.0, 0.1, 0.3, 0.3, 0.35, 0.45, 0.6
WEAK, WORD, ANYWHERE, GLUE = 1.0, 1.2, 1.5, 5.0

SENTENCE_END = regex.compile(r"[。！？；…]++[”’」』）》\"'\)\]]*+|(?<![.!?;])[.!?;]++[\"'”’)\]]*+(?=\s)")
SPACE = regex.compile(r"\s+")
CLAUSE_END = regex.compile(r"[，、：,:]+\s*")
GRAPHEME = regex.compile(r"\X")
_LEAD_IN = (":", "：")
_LINE_END = (*".!?;。！？；…：:", "  ", "\\")  # the last two: CommonMark's hard line breaks
_WORD_TOKENS, _RUN_TOKENS = 8, 4  # how fine a line without sentences is cut


@dataclass(frozen=True, slots=True)
class Sizes:
    """The limits of a chunk, in tokens."""

    target: int
    maximum: int
    overlap: int
    merge_below: int


@dataclass(frozen=True, slots=True)
class Unit:
    """A stretch of text that is not cut further; `end` of one is `start` of the next.

    `border` is the cost of a cut before it. A piece that begins with it gets `reopen` put in front (a fence's
    first line, a table's head); a piece that ends with it gets `close` appended. `plain` text may be repeated
    as overlap.
    """

    start: int
    end: int
    tokens: int
    border: float
    plain: bool = True
    reopen: str = ""
    close: str = ""


class LineTable:
    """A note's body with the offset and token count of every line.

    A line is counted with its line end and the blank lines after it. cl100k_base's pattern ends a token at
    the last line end of every run of white space, so counts of lines add up exactly to that of the text.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.text = "".join(lines)
        self.offsets = [0]
        for line in lines:
            self.offsets.append(self.offsets[-1] + len(line))
        self._counts: list[int | None] = [None] * len(lines)
        self._last_counts: dict[int, int] = {}

    def trim(self, start: int, end: int) -> tuple[int, int]:
        """The range of lines without the blank ones at both ends."""
        while start < end and self.lines[start].isspace():
            start += 1
        while start < end and self.lines[end - 1].isspace():
            end -= 1
        return start, end

    def count(self, line: int) -> int:
        """Tokens of one line and the blank lines after it; 0 for a blank line."""
        known = self._counts[line]
        if known is None:
            if self.lines[line].isspace():
                return 0
            after = line + 1
            while after < len(self.lines) and self.lines[after].isspace():
                after += 1
            text = self.text[self.offsets[line] : self.offsets[after]]
            known = self._counts[line] = len(encode(text))
        return known

    def count_content(self, start: int, end: int) -> int:
        """Exact tokens of a trimmed range of lines, without white space at its end."""
        last = self._last_counts.get(end)
        if last is None:
            last = self._last_counts[end] = len(encode(self.lines[end - 1].rstrip()))
        return sum(map(self.count, range(start, end - 1))) + last

    def line_at(self, offset: int) -> int | None:
        """The line that begins at this offset of the text, if any does."""
        line = bisect_left(self.offsets, offset)
        return line if self.offsets[line] == offset else None

    def content(self, start: int, end: int) -> str:
        """The text of a trimmed range of lines, without white space at its end."""
        return self.text[self.offsets[start] : self.offsets[end]].rstrip()


class Cutter:
    """Turns blocks into units."""

    def __init__(self, table: LineTable, sizes: Sizes) -> None:
        self._table = table
        self._sizes = sizes
        self._headings = 0  # tokens of the headings directly before this place

    def cut(self, blocks: Sequence[Block], start: int, end: int) -> Iterator[Unit]:
        """Units of all blocks, covering every line from `start` to `end`."""
        leaves = [leaf for block in blocks for leaf in _leaves(block)]
        starts = [start, *(leaf.start for leaf in leaves[1:]), end]
        for leaf, (first, after) in zip(leaves, pairwise(starts), strict=True):
            border = BLOCK + ITEM * leaf.depth
            if self._headings:
                border = GLUE
            elif first > start and self._line_before(first).rstrip().endswith(_LEAD_IN):
                border += AFTER_LEAD_IN
            yield from self._leaf(leaf, first, after, border)

    def _line_before(self, line: int) -> str:
        """The last line before this one that is not blank, without its line end."""
        before = line - 1
        while before > 0 and self._table.lines[before].isspace():
            before -= 1
        return self._table.lines[before].rstrip("\n")

    def _leaf(self, leaf: Block, first: int, after: int, border: float) -> Iterator[Unit]:
        tokens = self._count(first, after)
        before, self._headings = self._headings, 0
        if leaf.kind == "heading" and tokens <= self._sizes.target // 4:
            self._headings = before + tokens
            yield self._unit(first, after, tokens, border, plain=False)
        elif leaf.kind in ("fence", "table"):
            if before + tokens <= self._sizes.maximum - 4:
                yield self._unit(first, after, tokens, border, plain=tokens <= self._sizes.overlap)
            else:
                yield from self._code(leaf, first, after, border)
        elif tokens <= self._sizes.overlap:
            yield self._unit(first, after, tokens, border)
        else:
            for line, following in self._lines(first, after, after):
                if line > first:
                    strong = leaf.kind == "html" or self._line_before(line).endswith(_LINE_END)
                    border = SENTENCE if strong else WEAK
                yield from self._line(line, following, border, self._sizes.target // 2)

    def _count(self, first: int, after: int) -> int:
        return sum(map(self._table.count, range(first, after)))

    def _unit(self, first: int, after: int, tokens: int, border: float, *, plain: bool = True) -> Unit:
        return Unit(self._table.offsets[first], self._table.offsets[after], tokens, border, plain)

    def _lines(self, first: int, last: int, after: int) -> Iterator[tuple[int, int]]:
        """Ranges from one line that is not blank to the next, below `last`; the last ends at `after`."""
        lines = self._table.lines
        starts = [line for line in range(first, last) if line == first or not lines[line].isspace()]
        return pairwise([*starts, after])

    def _code(self, leaf: Block, first: int, after: int, border: float) -> Iterator[Unit]:
        """A fence or table that does not fit: line by line, each with what a piece around it needs."""
        reopen, close = self._repeated(leaf)
        head = leaf.start + (2 if leaf.kind == "table" else 1)
        for line, following in self._lines(first, leaf.end, after):
            if line > first:
                gap = self._table.lines[line - 1].isspace()
                border = ROW if leaf.kind == "table" else CODE_GAP if gap else CODE_LINE
                if line <= head or (following == after and leaf.markup):
                    border = GLUE
            for unit in self._line(line, following, border, self._sizes.maximum // 2):
                opened = "" if unit.start <= self._table.offsets[leaf.start] else reopen
                closed = "" if unit.end == self._table.offsets[after] else close
                yield replace(unit, plain=False, reopen=opened, close=closed)

    def _repeated(self, leaf: Block) -> tuple[str, str]:
        """What further pieces of a fence or table begin with, and what all but the last end with."""
        lines = self._table.lines
        opener = lines[leaf.start]
        if leaf.kind == "table":
            head = opener + lines[leaf.start + 1]
            return (head if count_tokens(head) <= self._sizes.maximum // 4 else ""), ""
        if not leaf.markup:
            return "", ""
        indent = opener[: opener.index(leaf.markup)]
        if leaf.markup == "$$" or count_tokens(opener) > self._sizes.maximum // 8:
            opener = f"{indent}{leaf.markup}\n"
        close = "".join(mark if mark in "> \t" else " " for mark in indent) + leaf.markup
        return (opener, close) if count_tokens(opener + close) <= self._sizes.maximum // 4 else ("", "")

    def _line(self, line: int, after: int, border: float, limit: int) -> Iterator[Unit]:
        """One line, up to `after`; cut at sentences, words or anywhere if it is above the limit."""
        tokens = self._count(line, after)
        if tokens <= limit:
            yield self._unit(line, after, tokens, border)
            return
        start, end = self._table.offsets[line], self._table.offsets[after]
        position = 0
        for cut, cost, size in _cuts(self._table.text[start:end], max(8, self._sizes.target // 4)):
            yield Unit(start + position, start + cut, size, border)
            position, border = cut, cost


def _leaves(block: Block) -> tuple[Block, ...]:
    return block.children or (block,)


def _cuts(text: str, limit: int) -> Iterator[tuple[int, float, int]]:
    """Ends of the parts of a long line: (offset, cost of the cut there, tokens of the part before it).

    Parts are sentences; what exceeds the limit is cut between words, else between graphemes (UAX 29).
    """
    _, offsets = encoding().decode_with_offsets(encode(text))
    done = 0  # tokens before the part at hand
    sentences = [found.end() for found in SENTENCE_END.finditer(text)]
    position = 0
    for sentence in (*sentences, len(text)):
        end = bisect_left(offsets, sentence)
        if sentence < len(text) and (end - done < _WORD_TOKENS or sentence <= position):
            continue
        for cut, cost in _inner_cuts(text, position, sentence, offsets, limit):
            at = bisect_left(offsets, cut)
            yield cut, cost, at - done
            done = at
        if sentence > position:
            yield sentence, SENTENCE, end - done
        position, done = sentence, end


def _inner_cuts(
    text: str, start: int, end: int, offsets: Sequence[int], limit: int
) -> Iterator[tuple[int, float]]:
    """Cuts inside one sentence, none when it fits."""
    last = bisect_left(offsets, start)
    if bisect_left(offsets, end) - last <= limit:
        return
    words = (found.start() for found in SPACE.finditer(text, start, end))
    for word in (*words, end):
        at = bisect_left(offsets, word)
        if at - last > limit:
            for cut in _run_cuts(text, start, word, offsets, limit):
                yield cut, ANYWHERE
                last = bisect_left(offsets, cut)
        if start < word < end and at - last >= _WORD_TOKENS:
            yield word, WORD
            last = at
            start = word


def _run_cuts(text: str, start: int, end: int, offsets: Sequence[int], limit: int) -> Iterator[int]:
    """Cuts inside a run without white space, at token borders that are grapheme borders as well."""
    run = text[start:end]
    borders = None if run.isascii() else {start + found.start() for found in GRAPHEME.finditer(run)}
    last = bisect_left(offsets, start)
    for index in range(last + _RUN_TOKENS, bisect_left(offsets, end)):
        long_enough = index - last >= (_RUN_TOKENS if borders is None or offsets[index] in borders else limit)
        if long_enough and start < offsets[index] and offsets[index] != offsets[index - 1]:
            yield offsets[index]
            last = index
