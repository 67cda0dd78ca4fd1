"""YAML frontmatter to plain JSON values, as typed: what a note says about itself, never an exception."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any

import yaml
from frontmatter.default_handlers import YAMLHandler

MAX_NODES = 100_000  # after aliases are expanded: a "billion laughs" is refused, a long list is not
MAX_DEPTH = 64

_BOUNDARY = re.compile(r"^---[ \t]*$", re.MULTILINE)
_OPENING = re.compile(r"---[ \t]*\n")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,999})")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_SEPARATORS = re.compile(r"[,，、\s]+")


class _Refused(Exception):
    """The block is not frontmatter we can store; the message says why, `line` where (1 = the opening ---)."""

    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.line = line


class _JsonHandler(YAMLHandler):
    """python-frontmatter's YAML handler with Obsidian's boundary (three dashes exactly) and JSON values.

    The node tree is turned into values here, without YAML's constructors, so that dates, times, `no`, `012`
    and numbers too long for JSON stay the strings that were typed, and no tag can make a Python object.
    """

    FM_BOUNDARY = _BOUNDARY

    def load(self, fm: str, **kwargs: Any) -> Any:
        """The value of a block: a dict, another JSON value, or None when it is empty. Raises `_Refused`."""
        loader = yaml.SafeLoader if _SURROGATE_ESCAPE.search(fm) else _FAST_LOADER
        stand_ins = _stand_ins(fm)
        try:
            value = _Values().of(yaml.compose(fm.translate(stand_ins), Loader=loader))
            return _translated(value, {new: old for old, new in stand_ins.items()}) if stand_ins else value
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise _Refused(error.problem or "invalid YAML", mark.line + 1 if mark else 1) from None
        except yaml.reader.ReaderError as error:
            code = int(error.character)  # its position is in bytes or characters, as the loader likes
            line = fm.count("\n", 0, max(0, fm.find(chr(code)))) + 1
            raise _Refused(f"the character U+{code:04X} is not allowed in YAML", line) from None
        except RecursionError:
            raise _Refused("nested too deep", 1) from None


_FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml refuses escaped surrogates
_HANDLER = _JsonHandler()


class _Values:
    """Turns one YAML node tree into JSON values, counting nodes as aliases expand."""

    def __init__(self) -> None:
        self._nodes = 0

    def of(self, node: yaml.Node | None, depth: int = 0) -> Any:
        if node is None:
            return None
        line = node.start_mark.line + 1
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _Refused(f"more than {MAX_NODES} values once aliases are expanded", line)
        if depth > MAX_DEPTH:
            raise _Refused(f"nested more than {MAX_DEPTH} deep", line)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.of(item, depth + 1) for item in node.value]
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _Refused("a list or mapping as a key, as in {{a template}}", key.start_mark.line + 1)
            mapping[_text(key.value)] = self.of(value, depth + 1)
        return mapping


def _scalar(node: yaml.ScalarNode) -> str | int | float | bool | None:
    """The JSON value of a scalar by YAML 1.2's core schema, save that only plain decimal numbers count."""
    text: str = node.value
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind == "null" and text in _NULLS:
        return None
    if kind == "bool" and text in _TRUE | _FALSE:
        return text in _TRUE
    if kind == "int" and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "float" and _FLOAT.fullmatch(text) and math.isfinite(value := float(text)):
        return value
    return _text(text)


def _stand_ins(fm: str) -> dict[int, int]:
    """For NEL, LS and PS, which end a line in YAML 1.1 but not in 1.2 (5.4): characters that do not occur."""
    free = (code for code in range(0xE000, 0xF900) if chr(code) not in fm)
    return {ord(mark): next(free) for mark in "\x85\u2028\u2029" if mark in fm}


def _translated(value: Any, table: dict[int, int]) -> Any:
    if isinstance(value, str):
        return value.translate(table)
    if isinstance(value, list):
        return [_translated(item, table) for item in value]
    if isinstance(value, dict):
        return {key.translate(table): _translated(item, table) for key, item in value.items()}
    return value


def _text(text: str) -> str:
    """Text that JSON and Postgres can hold: no NUL, surrogate pairs joined, lone surrogates replaced."""
    return clean_surrogates(text.replace("\0", ""))


def clean_surrogates(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if _SURROGATE.search(text):
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def split_frontmatter(text: str) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """Frontmatter, body and warnings of a note's text (LF line ends, no byte-order mark).

    Frontmatter is a block between two lines of three dashes, the first one the first line of the file
    (Obsidian help, "Properties"). A block that is never closed, or holds plain text, is body. One that cannot
    be read gives an empty dict and a warning; it is left out of the body, which starts after it.
    """
    if not _OPENING.match(text):
        return {}, text, ()
    try:
        block, body = _HANDLER.split(text)
    except ValueError:  # never closed
        return {}, text, ()
    body = body.removeprefix("\n")
    try:
        values = _HANDLER.load(block)
    except _Refused as refused:
        return {}, body, (f"frontmatter not parsed: {refused} (line {refused.line})",)
    if values is None or isinstance(values, dict):
        return values or {}, body, ()
    if isinstance(values, list):
        return {}, body, ("frontmatter not parsed: a list, not properties (line 2)",)
    return {}, text, ("frontmatter not parsed: plain text, not properties; kept as text (line 2)",)


def frontmatter_tags(values: dict[str, Any]) -> tuple[str, ...]:
    """The tags that `tags` and `tag` name, each once, without `#`: from a list, or one string of several.

    A tag holds neither comma nor white space, and not only digits (Obsidian help, "Tags").
    """
    tags: dict[str, str] = {}
    for wanted in ("tags", "tag"):
        for key, value in values.items():
            if key.lower() == wanted:
                for word in _words(value):
                    tags.setdefault(word.casefold(), word)
    return tuple(tags.values())


def _words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [word for item in value for word in _words(item)]
    if value is None or isinstance(value, dict):
        return []
    text = str(value).lower() if isinstance(value, bool) else str(value)
    words = (unicodedata.normalize("NFC", part.lstrip("#").strip("/")) for part in _SEPARATORS.split(text))
    return [word for word in words if word and not word.isdecimal()]
