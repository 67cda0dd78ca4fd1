"""Words and CJK n-grams of a text, as `fake-lexical-v1` defines them (contract 4.2)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

_SEPARATORS = re.compile(r"[/\\._-]")
_WHITE_SPACE = re.compile(r"\s+")
_CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f\u3040-\u30ff\uac00-\ud7af"
_TOKEN = re.compile(rf"[a-z0-9]+|[{_CJK}]+")
_CJK_CHARACTER = re.compile(rf"[{_CJK}]")
_STOP_LETTERS = frozenset({"a", "i"})


def lexical_features(text: str) -> Iterator[str]:
    """The features of `fake-lexical-v1`: `[a-z0-9]+` words, CJK characters and pairs of neighbours."""
    text = unicodedata.normalize("NFKC", text).lower()
    text = _WHITE_SPACE.sub(" ", _SEPARATORS.sub(" ", text))
    for run in _TOKEN.findall(text):
        if run[0].isascii():
            if run not in _STOP_LETTERS:
                yield run
        else:
            yield from run
            yield from _bigrams(run)


def _bigrams(run: str) -> Iterable[str]:
    return map("".join, zip(run, run[1:], strict=False))


def is_cjk(text: str) -> bool:
    """True when the text holds at least one CJK character: then it is answered in Chinese."""
    return bool(_CJK_CHARACTER.search(text))
