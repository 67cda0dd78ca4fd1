"""Tags and wikilinks in the running text of one block, by Obsidian's rules: none in code, math or HTML."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left

from pyrag.models import Link

# Obsidian ends a tag at white space, ASCII punctuation and the blocks U+2000-206F and U+2E00-2E7F. Chinese
# and full-width punctuation is added here: the comma after a tag is not part of what the author meant.
_TAG = re.compile(
    r"[^\s\x00-\x1f\x7f!-,.:-@\[-^`{-~\ufeff\u2000-\u200c\u200e-\u206f\u2e00-\u2e7f"
    r"\u3001-\u3003\u3008-\u3011\u3014-\u301f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]+"
)
_MARK = re.compile(r"\\|`+|<|\$|!?\[\[|\]\(|#")
_WIKILINK = re.compile(r"(!?)\[\[([^\[\]\n]+)\]\]")
# CommonMark 0.31: open and closing tags (6.6) and URI autolinks (6.5)
_HTML_TAG = re.compile(
    r"<(?:[A-Za-z][A-Za-z0-9-]*+"
    r"(?:\s++[A-Za-z_:][A-Za-z0-9_.:-]*+(?:\s*+=\s*+(?:[^\s\"'=<>`]++|'[^']*+'|\"[^\"]*+\"))?+)*+\s*+/?+>"
    r"|/[A-Za-z][A-Za-z0-9-]*+\s*+>"
    r"|[A-Za-z][A-Za-z0-9+.-]{1,31}+:[^\s<>]*+>)"
)
# What hides everything up to its end: HTML comments and the rest of 6.6, and Templater's commands
_HIDDEN = (("<!--", "-->", 2), ("<![CDATA[", "]]>", 9), ("<?", "?>", 2), ("<!", ">", 2), ("<%", "%>", 2))
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_INLINE_MATH = re.compile(r"\$(?=\S)(?:\\.|[^$\\\n])*+(?<=\S)\$(?!\d)")
_DESTINATION = re.compile(
    r"\]\([ \t]*+(?:<[^<>\n]*+>|[^\s()]*+(?:\([^\s()]*+\)[^\s()]*+)*+)"
    r"(?:\s++(?:\"[^\"]*+\"|'[^']*+'|\([^()]*+\)))?\s*+\)"
)
_IMAGE_SIZE = re.compile(r"[0-9]+(x[0-9]+)?")
_ESCAPABLE = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def scan_inline(text: str, *, table: bool = False) -> tuple[list[tuple[int, str]], list[Link]]:
    """All tags as (offset, tag) and all wikilinks of one block's source text, in order.

    `text` is what one paragraph, heading or table row holds; `table` says that a bar separates cells there,
    so `\\|` is a bar inside a link, and code, math or HTML ends with its cell. Text in `%%comments%%` counts,
    as in Obsidian's own index; text in HTML comments and Templater commands (`<% %>`) does not. Time is
    linear in the length of the text.
    """
    tags: list[tuple[int, str]] = []
    links: list[Link] = []
    code = _CodeSpans(text)
    ends = _Ends(text)
    borders = [found.start() for found in _CELL_BORDER.finditer(text)] if table else []
    tag_end = -1
    position = 0
    while found := _MARK.search(text, position):
        start, mark = found.start(), found.group()
        position = found.end()
        cell = bisect_left(borders, start)
        limit = borders[cell] if cell < len(borders) else len(text)
        if mark == "\\":
            position += text[position : position + 1] in _ESCAPABLE
        elif mark[0] == "`":
            position = code.end(start, position, limit)
        elif mark == "<":
            position = _html_end(text, start, limit, ends)
        elif mark == "$":
            if text.startswith("$$", start):
                position = ends.after("$$", start + 2, limit) or start + 2
            elif math := _INLINE_MATH.match(text, start, limit):
                position = math.end()
        elif mark == "](":
            if destination := _DESTINATION.match(text, start, limit):
                position = destination.end()
        elif mark == "#":
            before = text[start - 1 : start]
            if not before or before.isspace() or start == tag_end or (table and before == "|"):
                name = _TAG.match(text, position)
                if name and (tag_text := _tag(name.group())):
                    tags.append((start, tag_text))
                    position = tag_end = name.end()
        elif not (link := _WIKILINK.match(text, start)):
            position = start + 1  # the link may begin at the second bracket, as in [[[A]]
        else:
            position = link.end()
            inner = link.group(2).replace("\\|", "|") if table else link.group(2)
            if parsed := _link(inner, embed=bool(link.group(1)), offset=start):
                links.append(parsed)
    return tags, links


def _html_end(text: str, start: int, limit: int, ends: _Ends) -> int:
    """Where the HTML or Templater command at `start` ends, or the offset after its `<` if there is none."""
    for opening, closing, length in _HIDDEN:
        if text.startswith(opening, start):
            return ends.after(closing, start + length, limit) or start + 1
    tag = _HTML_TAG.match(text, start, limit)
    return tag.end() if tag else start + 1


class _Ends:
    """Finds closing marks; each mark is looked for once from any place on, so that time stays linear."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next: dict[str, int] = {}

    def after(self, mark: str, start: int, limit: int) -> int | None:
        """The offset after the first `mark` at or after `start` that ends by `limit`, else None."""
        at = self._next.get(mark, -1)
        if at < start:
            at = self._text.find(mark, start)
            self._next[mark] = at = len(self._text) if at < 0 else at
        return at + len(mark) if at + len(mark) <= limit else None


class _CodeSpans:
    """Finds the end of code spans: a run of backticks closes at the next run of the same length.

    CommonMark 0.31, section 6.1.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._runs: dict[int, list[int]] | None = None

    def end(self, start: int, after: int, limit: int) -> int:
        """Where the span that opens at `start` ends, or `after`, its opening run's end, if not by `limit`."""
        if self._runs is None:
            self._runs = {}
            for run in re.finditer("`+", self._text):
                self._runs.setdefault(run.end() - run.start(), []).append(run.start())
        length = after - start
        closers = self._runs.get(length, [])
        index = bisect_left(closers, after)
        closed = index < len(closers) and closers[index] + length <= limit
        return closers[index] + length if closed else after


def _tag(text: str) -> str | None:
    """The tag as stored, or None: at least one character must not be a digit (Obsidian help, "Tags")."""
    tag = unicodedata.normalize("NFC", text.strip("/"))
    return tag if tag and not tag.isdecimal() else None


def _link(inner: str, *, embed: bool, offset: int) -> Link | None:
    """What stands between the brackets (Obsidian help, "Internal links"); None when it names nothing."""
    page, bar, shown = inner.partition("|")
    target, *parts = (part.strip() for part in page.split("#"))
    blocks = [part[1:].strip() for part in parts if part.startswith("^")]
    heading = tuple(part for part in parts if part and not part.startswith("^"))
    block = (blocks[-1] or None) if blocks else None
    if not (target or heading or block):
        return None
    labels = [part.strip() for part in shown.split("|")] if bar else []
    if embed and labels and _IMAGE_SIZE.fullmatch(labels[-1]):
        labels.pop()
    alias = "|".join(labels) or None
    return Link(unicodedata.normalize("NFC", target), heading, block, alias, embed, offset)
