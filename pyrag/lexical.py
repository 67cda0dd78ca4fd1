"""Words and CJK n-grams of a text, as `fake-lexical-v1` defines them."""

from __future__ import annotations

import re
import unicodedata
from operator import add

_CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f\u3040-\u30ff\uac00-\ud7af"
# Separators need no replacing by spaces: they stand in neither class, so they end a run all the same.
_WORD = re.compile("[a-z0-9]+")
_CJK_RUN = re.compile(f"[{_CJK}]+")
_CJK_CHARACTER = re.compile(f"[{_CJK}]")
_STOP_LETTERS = frozenset({"a", "i"})


def lexical_features(text: str) -> list[str]:
    """The features of `fake-lexical-v1`: `[a-z0-9]+` words, CJK characters and pairs of neighbours."""
    text = unicodedata.normalize("NFKC", text).lower()
    words: list[str] = _WORD.findall(text)
    features = [word for word in words if word not in _STOP_LETTERS]
    if not text.isascii():
        for run in _CJK_RUN.findall(text):
            features += run
            features += map(add, run, run[1:])
    return features


def is_cjk(text: str) -> bool:
    """True when the text holds at least one CJK character: then it is answered in Chinese."""
    return bool(_CJK_CHARACTER.search(text))


def same_text(question: str) -> str:
    """What two questions have in common that are asked in the same words, but for case and blanks."""
    return " ".join(question.split()).casefold()
