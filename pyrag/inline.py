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
_HTML_TAG = re.compile(r"<[A-Za-z/!?][^<>]*>")
_INLINE_MATH = re.compile(r"\$(?=\S)[^$\n]*(?<=\S)\$(?!\d)")
_DESTINATION = re.compile(
    r"\]\([ \t]*+(?:<[^<>\n]*+>|[^\s()]*+(?:\([^\s()]*+\)[^\s()]*+)*+)"
    r"(?:\s++(?:\"[^\"]*+\"|'[^']*+'|\([^()]*+\)))?\s*+\)"
)
_IMAGE_SIZE = re.compile(r"[0-9]+(x[0-9]+)?")
_ESCAPABLE = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def scan_inline(text: str, *, table: bool = False) -> tuple[list[tuple[int, str]], list[Link]]:
    """All tags as (offset, tag) and all wikilinks of one block's source text, in order.

    `text` is what one paragraph, heading or table row holds; `table` says that a bar separates cells there,
    so `\\|` is a bar inside a link. Text in `%%comments%%` counts, as in Obsidian's own index; text in HTML
    comments does not. Time is linear in the length of the text.
    """
    tags: list[tuple[int, str]] = []
    links: list[Link] = []
    code = _CodeSpans(text)
    no_comment_end = no_math_end = False
    tag_end = -1
    position = 0
    while found := _MARK.search(text, position):
        start, mark = found.start(), found.group()
        position = found.end()
        if mark == "\\":
            position += text[position : position + 1] in _ESCAPABLE
        elif mark[0] == "`":
            position = code.end(start, position)
        elif mark == "<":
            if text.startswith("<!--", start):
                end = -1 if no_comment_end else text.find("-->", start)
                no_comment_end = end < 0
                position = position if no_comment_end else end + 3
            elif tag := _HTML_TAG.match(text, start):
                position = tag.end()
        elif mark == "$":
            if text.startswith("$$", start):
                end = -1 if no_math_end else text.find("$$", start + 2)
                no_math_end = end < 0
                position = start + 2 if no_math_end else end + 2
            elif math := _INLINE_MATH.match(text, start):
                position = math.end()
        elif mark == "](":
            if destination := _DESTINATION.match(text, start):
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


class _CodeSpans:
    """Finds the end of code spans: a run of backticks closes at the next run of the same length.

    CommonMark 0.31, section 6.1.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._runs: dict[int, list[int]] | None = None

    def end(self, start: int, after: int) -> int:
        """Where the span that opens at `start` ends, or `after`, the end of its opening run, if never."""
        if self._runs is None:
            self._runs = {}
            for run in re.finditer("`+", self._text):
                self._runs.setdefault(run.end() - run.start(), []).append(run.start())
        length = after - start
        closers = self._runs.get(length, [])
        index = bisect_left(closers, after)
        return closers[index] + length if index < len(closers) else after


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
