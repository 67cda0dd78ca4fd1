"""A Note to the chunks that are stored: by headings first, then by size. Pure and deterministic."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyrag.errors import InvalidConfiguration
from pyrag.models import Block, Chunk, Link, Note, Section
from pyrag.splitting import split
from pyrag.units import LineTable, Sizes

SMALLEST_TARGET, SMALLEST_MAXIMUM = 16, 64  # tokens; below them one emoji of many parts may not fit

_RULE_MARKS = frozenset("-*_ \t\n")
_COMMENTS = re.compile(r"\s*(?:<!--(?:(?!-->).)*-->\s*)*", re.DOTALL)


def chunk_note(
    note: Note, *, target: int = 800, maximum: int = 1200, overlap: int = 80, merge_below: int = 100
) -> list[Chunk]:
    """The chunks of a note, in order, none blank and none above `maximum` cl100k_base tokens.

    A section up to `target` tokens is one chunk; a longer one is cut into pieces of `target`/2 to `target`,
    each but the first beginning with up to `overlap` tokens of the one before. A section below `merge_below`
    joins its next sibling while the sum stays within `target`: the chunk has the first one's heading path and
    lists all in `metadata["sections"]`. A heading without text stands in front of the next chunk. Frontmatter
    tags go to every chunk, inline tags and links to the chunk whose own text holds them. Raises
    `InvalidConfiguration` for sizes that contradict each other.
    """
    sizes = _checked(Sizes(target, maximum, overlap, merge_below))
    table = LineTable(note.lines)
    drafts = [
        draft
        for group in _merge(_parts(note.sections, table), table, sizes)
        for draft in _drafts(group, table, sizes)
    ]
    return [
        Chunk(
            index,
            draft.content,
            draft.heading_path,
            _tags((*note.tags, *draft.tags)),
            _wikilinks(draft.links),
            draft.metadata,
            hashlib.sha256(draft.content.encode()).hexdigest(),
            draft.tokens,
        )
        for index, draft in enumerate(drafts)
    ]


def _checked(sizes: Sizes) -> Sizes:
    target, maximum, overlap, merge_below = sizes.target, sizes.maximum, sizes.overlap, sizes.merge_below
    rules = (
        (target > maximum, f"target={target} must not be above maximum={maximum}"),
        (target < SMALLEST_TARGET, f"target={target} must be {SMALLEST_TARGET} or more (maximum={maximum})"),
        (
            maximum < SMALLEST_MAXIMUM,
            f"maximum={maximum} must be {SMALLEST_MAXIMUM} or more (target={target})",
        ),
        (overlap < 0, f"overlap={overlap} must not be negative (target={target})"),
        (overlap >= target, f"overlap={overlap} must be below target={target}"),
        (merge_below < 0, f"merge_below={merge_below} must not be negative (target={target})"),
        (merge_below > target, f"merge_below={merge_below} must not be above target={target}"),
    )
    for broken, message in rules:
        if broken:
            raise InvalidConfiguration(
                f"chunk sizes: {message}", hint="The contract's sizes are 800, 1200, 80, 100."
            )
    return sizes


@dataclass(frozen=True, slots=True)
class _Part:
    """A section with text, the empty headings in front of it, and at the note's end those behind it."""

    sections: tuple[Section, ...]
    main: int  # index of the section with text
    start: int  # lines, trimmed
    end: int
    tokens: int  # of the section with text alone

    @property
    def section(self) -> Section:
        return self.sections[self.main]


@dataclass(frozen=True, slots=True)
class _Draft:
    content: str
    tokens: int
    heading_path: tuple[str, ...]
    tags: tuple[str, ...]
    links: tuple[Link, ...]
    metadata: dict[str, Any]


def _parts(sections: Iterable[Section], table: LineTable) -> list[_Part]:
    parts: list[_Part] = []
    pending: list[Section] = []
    for section in sections:
        pending.append(section)
        if any(_has_text(block, table) for block in section.blocks):
            parts.append(_part(pending, len(pending) - 1, table))
            pending = []
    if pending and parts:
        last = parts.pop()
        parts.append(_part([*last.sections, *pending], last.main, table))
    elif pending:
        parts.append(_part(pending, 0, table))
    return [part for part in parts if part.start < part.end]


def _part(sections: list[Section], main: int, table: LineTable) -> _Part:
    start, end = table.trim(sections[0].blocks[0].start, sections[-1].blocks[-1].end)
    own_start, own_end = table.trim(sections[main].blocks[0].start, sections[main].blocks[-1].end)
    tokens = table.count_content(own_start, own_end) if own_start < own_end else 0
    return _Part(tuple(sections), main, start, end, tokens)


def _has_text(block: Block, table: LineTable) -> bool:
    """Whether a block is more than a heading, a thematic break, a comment or white space."""
    if block.kind == "heading":
        return False
    lines = table.lines[block.start : block.end]
    if block.kind == "html" and _COMMENTS.fullmatch("".join(lines)):
        return False
    return block.kind != "text" or any(not _RULE_MARKS.issuperset(line) and line.strip() for line in lines)


def _merge(parts: list[_Part], table: LineTable, sizes: Sizes) -> Iterator[list[_Part]]:
    """Groups of parts that make one chunk: a small one with its next siblings."""
    position = 0
    while position < len(parts):
        group = [parts[position]]
        tokens = group[0].tokens
        while tokens < sizes.merge_below and position + len(group) < len(parts):
            after = parts[position + len(group)]
            if not _siblings(group[0], after) or tokens + after.tokens > sizes.target:
                break
            joined = table.count_content(group[0].start, after.end)
            if joined > sizes.target:
                break
            group.append(after)
            tokens = joined
        yield group
        position += len(group)


def _siblings(part: _Part, after: _Part) -> bool:
    """Whether `after` holds siblings only: neighbours of the same level have the same parent."""
    level = part.section.level
    return level > 0 and all(section.level == level for section in after.sections)


def _drafts(group: list[_Part], table: LineTable, sizes: Sizes) -> Iterator[_Draft]:
    first, last = group[0], group[-1]
    sections = [section for part in group for section in part.sections]
    path = first.section.heading_path
    tokens = first.tokens
    if len(sections) > 1:
        tokens = table.count_content(first.start, last.end)
    if tokens <= sizes.target or (first.tokens <= sizes.target and tokens <= sizes.maximum):
        yield _Draft(
            table.content(first.start, last.end),
            tokens,
            path,
            tuple(tag for section in sections for tag in section.tags),
            tuple(link for section in sections for link in section.links),
            _metadata(group),
        )
        return
    blocks = [block for section in sections for block in section.blocks]
    marks = [mark for section in sections for mark in section.tag_marks]
    links = [link for section in sections for link in section.links]
    for piece in split(table, blocks, first.start, last.end, sizes):
        own_marks = marks[bisect_left(marks, (piece.start,)) : bisect_left(marks, (piece.end,))]
        first_link, after_link = (
            bisect_left(links, offset, key=lambda link: link.offset) for offset in (piece.start, piece.end)
        )
        own_tags = tuple(tag for _, tag in own_marks)
        yield _Draft(piece.content, piece.tokens, path, own_tags, tuple(links[first_link:after_link]), {})


def _metadata(group: list[_Part]) -> dict[str, Any]:
    if len(group) == 1:
        return {}
    merged = [group[0].section, *(section for part in group[1:] for section in part.sections)]
    return {"sections": [list(section.heading_path) for section in merged]}


def _tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Each tag once; upper and lower case are the same, the first spelling stays (Obsidian help, "Tags")."""
    kept: dict[str, str] = {}
    for tag in tags:
        kept.setdefault(tag.casefold(), tag)
    return tuple(kept.values())


def _wikilinks(links: Iterable[Link]) -> tuple[str, ...]:
    """The notes that are linked, each once; `[[X.md]]` is `[[X]]` (Obsidian help, "Internal links")."""
    targets = (link.target[:-3] if link.target.lower().endswith(".md") else link.target for link in links)
    return tuple(dict.fromkeys(unicodedata.normalize("NFC", target) for target in targets if target))
