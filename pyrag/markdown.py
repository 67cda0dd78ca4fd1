"""Markdown text to a Note: frontmatter, sections with their blocks, tags and wikilinks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, blockquote, list_block, reference
from mdit_py_plugins.footnote.index import footnote_def

from pyrag.frontmatter import clean_surrogates, frontmatter_tags, split_frontmatter
from pyrag.inline import scan_inline
from pyrag.models import Block, Link, Note, Section

if TYPE_CHECKING:
    from markdown_it.parser_block import RuleFuncBlockType
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

Kind = Literal["heading", "text", "list", "table", "fence", "quote", "html"]

MAX_HEADING = 1000  # characters of a heading that are kept; every chunk below it repeats them

_LEAVES: dict[str, Kind] = {
    "heading_open": "heading",
    "paragraph_open": "text",
    "hr": "text",
    "fence": "fence",
    "math_block": "fence",
    "templater_block": "html",
    "code_block": "fence",
    "html_block": "html",
    "table_open": "table",
}
_CONTAINERS: dict[str, Kind] = {
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "blockquote_open": "quote",
    "footnote_reference_open": "quote",
    "comment_open": "quote",
}
_BORDERS = (
    "list_item",
    "blockquote",
    "footnote_reference",
    "comment",
)  # what the depth of a leaf block counts
# Obsidian's blocks of several lines: opening and closing mark of math, comments and Templater commands
_SPANS = {"$$": "$$", "%%": "%%", "<%": "%>"}
_FENCE_LINE = re.compile(r"(?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*(`{3,}|~{3,})(.*)")
_NESTING = 100  # lists, quotes and footnotes within each other; deeper ones are read as text
_PLAIN_HEADING = re.compile(r"[^\\`*_\[\]<>&!~=%{}\n]*")
_OBSIDIAN = re.compile(
    r"(?P<embed>!?)\[\[(?P<target>[^\[\]|]*)(?:\|(?P<alias>[^\[\]]*))?\]\]"
    r"|%%.*?%%|==(?=\S)(?P<mark>.*?\S)=="
)
_PICTURE_SIZE = re.compile(r"\d+(?:x\d+)?")
_HEADING_ID = re.compile(r"\s*\{#[^\s{}]+\}$")
_QUOTE_MARKS = re.compile(r"^[ \t]*>[ \t>]*", re.MULTILINE)


def parse_note(text: str) -> Note:
    """The frontmatter, tags, body lines and sections of a Markdown text. Never raises on any text.

    Blocks are CommonMark's (0.31) plus GFM tables, footnotes, and Obsidian's `$$` math, `%%` comments and
    Templater commands of several lines; headings only those outside all of these, lists, quotes, code and
    HTML. Every body line that is not blank is in exactly one block. Line ends become LF; a byte-order mark
    and NUL are dropped; surrogate pairs are joined and lone ones replaced.
    """
    frontmatter, body, warnings = split_frontmatter(clean_text(text))
    *whole, last = body.split("\n")
    lines = (*[f"{line}\n" for line in whole], *([last] if last else []))
    sections = _Sections(lines).read(body)
    return Note(frontmatter, frontmatter_tags(frontmatter), lines, sections, warnings)


def clean_text(text: str) -> str:
    """The text with LF line ends, and without what Postgres or UTF-8 cannot hold."""
    text = text.removeprefix("\ufeff").replace("\0", "")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return clean_surrogates(text)


def _reference_but_no_footnote(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """CommonMark's link reference definitions; `[^1]: text` is none, since it is an Obsidian footnote."""
    first = state.bMarks[start] + state.tShift[start]
    if not state.src.startswith("[", first) or state.src.startswith("[^", first):
        return False
    return reference(state, start, end, silent)


def _footnote(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """The plugin's footnote definition, with the lines it takes."""
    index = len(state.tokens)
    if not footnote_def(state, start, end, silent):
        return False
    if not silent:
        state.tokens[index].map = [start, state.line]
    return True


def _nested(rule: RuleFuncBlockType) -> RuleFuncBlockType:
    """The rule down to `_NESTING` levels. Beyond its own limit the parser would drop all that follows."""

    def limited(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        deeper = state.sCount[start] >= state.blkIndent
        return not (deeper and state.level >= _NESTING) and rule(state, start, end, silent)

    return limited


def _span(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Block rule for `_SPANS`: from a line that begins with the mark to the line that holds the closing one.

    What is closed on the line where it begins, or never, is ordinary text.
    """
    begin, line_end = state.bMarks[start] + state.tShift[start], state.eMarks[start]
    mark = state.src[begin : begin + 2]
    if mark not in _SPANS or begin + 2 > line_end or state.is_code_block(start) or state.env.get(mark):
        return False
    rest = state.src[begin + 2 : line_end]
    last = start if _SPANS[mark] in rest else _closing_line(state, mark, start, end, bool(rest.strip()))
    if last == start:
        return False
    if silent:
        return True
    if mark == "%%":
        _comment(state, start, last + 1)
    else:
        token = state.push("math_block" if mark == "$$" else "templater_block", "", 0)
        token.map, token.markup = [start, last + 1], mark
    state.line = last + 1
    return True


def _comment(state: StateBlock, start: int, end: int) -> None:
    """The blocks inside a comment, below a token of its own: tags and links count, as in Obsidian's index.

    A mark alone on its line is in none of them.
    """
    alone = [state.src[state.bMarks[line] : state.eMarks[line]].strip() == "%%" for line in (start, end - 1)]
    state.push("comment_open", "", 1).map = [start, end]
    first, after = start + alone[0], end - alone[1]
    line_max, state.lineMax, state.env["%%"] = state.lineMax, after, True
    state.md.block.tokenize(state, first, after)
    state.lineMax, state.env["%%"] = line_max, False
    state.push("comment_close", "", -1)


def _closing_line(state: StateBlock, mark: str, start: int, end: int, with_text: bool) -> int:
    """The first line after `start` that closes the span, within the container; `start` if none does.

    A mark inside a code fence closes nothing. Math holds no fence, and no blank line either where it begins
    with text, as in LaTeX: `$$` is also a variable of the shell. Lines known to hold no closing mark are not
    searched again, so time stays linear.
    """
    searched: dict[str, tuple[int, int]] = state.env.setdefault("unclosed", {})
    first, after = searched.get(mark, (0, 0))
    if first <= start < after:
        return start
    indent = min(state.blkIndent, state.sCount[start])
    fence = ""
    line = start + 1
    while line < end:
        begin, line_end = state.bMarks[line] + state.tShift[line], state.eMarks[line]
        if begin < line_end and state.sCount[line] < indent:
            break
        text = state.src[begin:line_end]
        found = _FENCE_LINE.match(text)
        if mark == "$$" and (found or (with_text and not text.strip())):
            return start
        if fence:
            if found and found[1].startswith(fence) and not found[2].strip():
                fence = ""
        elif found:
            fence = found[1]
        elif _SPANS[mark] in text:
            return line
        line += 1
    searched[mark] = (start, line)
    return start


def _block_parser() -> MarkdownIt:
    """Blocks only. At the preset's nesting limit of 20 a deep list would swallow the headings after it."""
    parser = MarkdownIt("commonmark", {"maxNesting": 10 * _NESTING}).enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    rules = parser.block.ruler
    rules.at("reference", _reference_but_no_footnote)
    rules.at("list", _nested(list_block), {"alt": ["paragraph", "reference", "blockquote"]})
    rules.at("blockquote", _nested(blockquote), {"alt": ["paragraph", "reference", "blockquote", "list"]})
    rules.before("reference", "footnote", _nested(_footnote), {"alt": ["paragraph", "reference"]})
    rules.before("fence", "span", _span, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    return parser


_BLOCKS = _block_parser()
_INLINE = MarkdownIt("commonmark").enable("strikethrough")


def _obsidian(state: StateInline, silent: bool) -> bool:
    """Inline rule for what Obsidian adds: links and embeds, comments, marked text."""
    found = _OBSIDIAN.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        alias = found["alias"]
        if found["embed"] and alias and _PICTURE_SIZE.fullmatch(alias):
            alias = None
        marked = found["mark"]
        shown = _joined(_INLINE.parseInline(marked, state.env)[0].children or []) if marked else None
        state.push("text", "", 0).content = shown or alias or found["target"] or ""
    state.pos = found.end()
    return True


_INLINE.inline.ruler.before("link", "obsidian", _obsidian)


class _Sections:
    """Reads the tokens of one body into sections, in one pass."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        self._lines = lines
        self._offsets: list[int] = [0]
        for line in lines:
            self._offsets.append(self._offsets[-1] + len(line))
        self._done: list[Section] = []
        self._stack: list[tuple[int, str]] = []  # level and text of the headings around this place
        self._environment: dict[str, Any] = {}
        self._level = 0
        self._heading = ""
        self._path: tuple[str, ...] = ()
        self._blocks: list[Block] = []
        self._marks: list[tuple[int, str]] = []
        self._links: list[Link] = []
        self._end = 0  # the first line that is in no block yet

    def read(self, body: str) -> tuple[Section, ...]:
        tokens = _BLOCKS.parse(body, self._environment)
        position = 0
        while position < len(tokens):
            after = _end_of(tokens, position)
            self._add(tokens[position:after])
            position = after
        self._cover(len(self._lines))
        self._close()
        return tuple(self._done)

    def _add(self, tokens: list[Token]) -> None:
        """Take in one top-level block, given as its tokens."""
        first = tokens[0]
        start, end = first.map or (self._end, self._end)
        self._cover(start)
        if first.type == "heading_open":
            self._close()
            self._open(int(first.tag[1]), tokens[1].content)
        kind = _LEAVES.get(first.type) or _CONTAINERS[first.type]
        children = _children(tokens) if first.type in _CONTAINERS else ()
        self._blocks.append(Block(kind, start, end, _fence(first), children=children))
        self._end = end
        self._scan(tokens)

    def _cover(self, until: int) -> None:
        """Put the lines that made no token (link reference definitions) into a block of their own."""
        start, end = self._end, until
        while start < end and not self._lines[start].strip():
            start += 1
        while start < end and not self._lines[end - 1].strip():
            end -= 1
        if start < end:
            self._blocks.append(Block("text", start, end))
        self._end = max(self._end, until)

    def _open(self, level: int, content: str) -> None:
        """Start the section of a heading."""
        while self._stack and self._stack[-1][0] >= level:
            self._stack.pop()
        self._heading = plain_heading(content, self._environment)
        self._stack.append((level, self._heading))
        self._level = level
        self._path = tuple(heading for _, heading in self._stack if heading)

    def _close(self) -> None:
        """End the section that is open, if it holds anything."""
        if self._blocks:
            self._done.append(
                Section(
                    self._level,
                    self._path,
                    tuple(self._blocks),
                    _once(self._marks),
                    tuple(self._links),
                    self._heading,
                    tuple(self._marks),
                )
            )
        self._blocks, self._marks, self._links = [], [], []

    def _scan(self, tokens: list[Token]) -> None:
        """Collect the tags and links of one top-level block."""
        quoted = 0
        last_row = -1
        for index, token in enumerate(tokens):
            if token.type in ("blockquote_open", "blockquote_close"):
                quoted += token.nesting
            if token.type != "inline" or not token.map:
                continue
            if "#" not in token.content and "[[" not in token.content:
                continue
            start, end = token.map
            table = tokens[index - 1].type in ("td_open", "th_open")
            if table and start == last_row:
                continue
            last_row = start
            source = "".join(self._lines[start:end])
            if quoted:
                source = _QUOTE_MARKS.sub(lambda found: " " * len(found.group()), source)
            tags, links = scan_inline(source, table=table)
            base = self._offsets[start]
            self._marks += [(base + offset, tag) for offset, tag in tags]
            self._links += [
                Link(each.target, each.heading, each.block, each.alias, each.embed, base + each.offset)
                for each in links
            ]


def _once(marks: list[tuple[int, str]]) -> tuple[str, ...]:
    tags: dict[str, str] = {}
    for _, tag in marks:
        tags.setdefault(tag.casefold(), tag)
    return tuple(tags.values())


def _end_of(tokens: list[Token], position: int) -> int:
    """The index after the block that starts at `position`."""
    if tokens[position].nesting == 0:
        return position + 1
    position += 1
    while tokens[position].level:
        position += 1
    return position + 1


def _fence(token: Token) -> str:
    return token.markup if token.type in ("fence", "math_block") else ""


def _children(tokens: list[Token]) -> tuple[Block, ...]:
    """The leaf blocks inside a list or quote, with the depth of the border before each."""
    children = []
    depth = 0
    border = 0  # depth of the outermost item that began since the last leaf
    for token in tokens:
        if token.type.removesuffix("_open") in _BORDERS:
            depth += 1
            border = border or depth
        elif token.type.removesuffix("_close") in _BORDERS:
            depth -= 1
        elif token.map and (kind := _LEAVES.get(token.type)):
            start, end = token.map
            children.append(Block(kind, start, end, _fence(token), depth=border or depth + 1))
            border = 0
    return tuple(children)


def plain_heading(content: str, environment: dict[str, Any]) -> str:
    """The text of a heading as a reader sees it, on one line: inline markup, `[[ ]]` and `{#id}` removed.

    `environment` holds the link references of the note, as markdown-it collects them.
    """
    text = content[: MAX_HEADING + 1]
    if not _PLAIN_HEADING.fullmatch(text):
        tokens = _INLINE.parseInline(text, environment)[0].children or []
        if tokens and tokens[-1].type == "text":
            tokens[-1].content = _HEADING_ID.sub("", tokens[-1].content)
        text = _joined(tokens)
    text = " ".join(text.split())
    return f"{text[: MAX_HEADING - 1]}…" if len(text) > MAX_HEADING or len(content) > MAX_HEADING else text


def _joined(tokens: list[Token]) -> str:
    return "".join(" " if token.type in ("softbreak", "hardbreak") else _seen(token) for token in tokens)


def _seen(token: Token) -> str:
    return token.content if token.type in ("text", "text_special", "code_inline", "image") else ""
