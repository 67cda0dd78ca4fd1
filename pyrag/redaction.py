"""Foreign text made fit for messages: no secrets, no control characters, one short line."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

# embeddings, overrides and isolates of direction: they make a text look like another
BIDI_CONTROLS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_PART = 8  # characters of a secret that may not be shown together
_BEARER = re.compile(r"""(?i)\b(bearer\s+["']?)[^\s"']+""")
_MASKED = re.compile(r"\S*\*{3,}\S*")  # a key that the server has masked itself, its ends still there
_READ = 4000  # characters of a foreign text that are looked at


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text with *** for each secret, each part of one of 8 or more characters, and after "Bearer ".

    A shorter secret, such as the `x` that a local server is content with, counts only as a word of its own.
    """
    for secret in secrets:
        text = _without(text, secret)
    return _BEARER.sub(r"\1***", text)


def one_line(text: str, secrets: Iterable[str] = (), limit: int = 300) -> str:
    """The beginning of a foreign text on one line of at most `limit` characters, redacted.

    Control and invisible characters go first: a secret that they cut up would be whole without them.
    """
    kinds = ((char, unicodedata.category(char)) for char in text[:_READ])
    visible = "".join(" " if kind == "Cc" else char for char, kind in kinds if kind[0] != "C" or kind == "Cc")
    line = redact(_MASKED.sub("***", " ".join(visible.split())), secrets)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _without(text: str, secret: str) -> str:
    if len(secret) < _PART:
        return re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text) if secret else text
    parts = {secret[at : at + _PART] for at in range(len(secret) - _PART + 1)}
    spans: list[tuple[int, int]] = []
    for at in range(len(text) - _PART + 1):
        if text[at : at + _PART] in parts:
            start = spans.pop()[0] if spans and at <= spans[-1][1] else at
            spans.append((start, at + _PART))
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), len(text)]
    return "***".join(text[end:start] for end, start in zip(ends, starts, strict=True))
