"""What an OpenAI-compatible server sends as a reply, read and judged: a half answer never counts as one."""

from __future__ import annotations

import json
from typing import Any

from pyrag.errors import LlmUpstreamError, PyragError
from pyrag.event_stream import Event
from pyrag.models import Finish
from pyrag.redaction import one_line

MOST_OF_AN_ANSWER = 16_000_000  # characters of text
_MOST_OF_A_REFUSAL = 4000  # characters

TOO_LONG = (
    "See the log of that server. If the prompt is longer than the model's context, lower"
    " RAG_CONTEXT_TOKEN_BUDGET or LLM_MAX_TOKENS."
)


class ReplyFailed(Exception):
    """Why there is no whole answer: our words, the server's as it sent them, the class of error, a hint."""

    def __init__(
        self,
        what: str,
        said: str = "",
        *,
        kind: type[PyragError] = LlmUpstreamError,
        hint: str = "",
        **details: object,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.said = said
        self.kind = kind
        self.hint = hint
        self.details = details


class ChatReply:
    """One reply, streamed or not. `body` and `event` give its text, `end` the rest of it and the verdict.

    All raise `ReplyFailed`. No text holds NUL or half a surrogate pair, which JSON escapes can smuggle in.
    """

    def __init__(self) -> None:
        self.reason = ""  # the server's finish_reason
        self.done = False  # nothing more is to be read
        self._length = 0
        self._blank = True
        self._refusal = ""
        self._held = ""  # the first half of a surrogate pair whose second half may follow

    def body(self, data: bytes) -> str:
        """The text of a reply that was not streamed."""
        value = _json_object(data, "the body")
        text = self._take(value, "message")
        if not value.get("choices"):
            raise ReplyFailed("the reply has no choices")
        self.done = True
        return text

    def event(self, event: Event) -> str:
        """The text of one event of a stream; empty for one that carries none."""
        data = event.data.strip()
        if data == "[DONE]":
            self.done = True
        if not data or self.done:
            return ""
        if event.name == "error":
            raise ReplyFailed("the server reports an error", server_message(data.encode()))
        return self._take(_json_object(data, "an event"), "delta")

    def end(self) -> tuple[str, Finish]:
        """The last text, mostly empty, and the end of a whole or honestly cut answer."""
        rest = "\ufffd" if self._held else ""
        if self._refusal:
            raise ReplyFailed("the model refuses to answer", self._refusal)
        if self.reason == "error":
            raise ReplyFailed("the server reports an error (finish_reason error)")
        if not (self.done or self.reason):
            raise ReplyFailed("the stream ended unfinished", hint=TOO_LONG if self._blank else "")
        if self._blank and not rest:
            if self.reason == "length":
                raise ReplyFailed(
                    "the answer is empty: LLM_MAX_TOKENS was used up before it began",
                    hint="Raise LLM_MAX_TOKENS: a reasoning model spends it on thinking first.",
                )
            if self.reason == "content_filter":
                raise ReplyFailed("the answer is empty: the server's content filter withheld it")
            raise ReplyFailed(f"the answer is empty (finish_reason {self.reason or 'missing'})")
        return rest, Finish(self.reason or "stop")

    def _take(self, value: dict[str, Any], field: str) -> str:
        if value.get("error") or value.get("object") == "error":
            raise ReplyFailed("the server reports an error", _message(value))
        choices = value.get("choices")
        if not choices:
            if "choices" not in value and (value.get("message") or value.get("detail")):
                raise ReplyFailed("the server reports an error", _message(value))
            return ""
        choice = choices[0] if isinstance(choices, list) else None
        message = choice.get(field) or {} if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            raise ReplyFailed(f"malformed JSON: choices[0].{field} is no object")
        if choice.get("error"):
            raise ReplyFailed("the server reports an error", _message(choice))
        reason, refusal = choice.get("finish_reason"), message.get("refusal")
        if not isinstance(reason or "", str) or not isinstance(refusal or "", str):
            raise ReplyFailed("malformed JSON: finish_reason or refusal is no text")
        self.reason = one_line(reason or "", limit=40) or self.reason
        self._refusal = (self._refusal + (refusal or ""))[:_MOST_OF_A_REFUSAL]
        return self._text(_content(message.get("content"), field))

    def _text(self, content: str) -> str:
        content = self._held + content.replace("\0", "")
        self._held = content[-1] if "\ud800" <= content[-1:] <= "\udbff" else ""
        whole = content[: len(content) - len(self._held)]
        text = whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        self._length += len(text)
        if self._length > MOST_OF_AN_ANSWER:
            raise ReplyFailed(f"the answer has more than {MOST_OF_AN_ANSWER} characters")
        self._blank = self._blank and not text.strip()
        return text


def server_message(data: bytes) -> str:
    """The words of an error body, unshortened: those of its JSON, else the body itself."""
    try:
        return _message(json.loads(data))
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")


def _message(value: object) -> str:
    for _ in range(3):
        if isinstance(value, dict):
            whole = value
            value = next((whole[key] for key in ("error", "message", "detail") if whole.get(key)), whole)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json_object(data: str | bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        said = data if isinstance(data, str) else data.decode("utf-8", "replace")
        raise ReplyFailed(f"{what} is not JSON", said) from None
    if not isinstance(value, dict):
        raise ReplyFailed(f"{what} is no JSON object")
    return value


def _content(content: object, field: str) -> str:
    """The text of a message: null is none; of a list of parts those of type text are joined."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts: list[Any] = [part.get("text") for part in content if part.get("type") == "text"]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts)
    raise ReplyFailed(f"malformed JSON: choices[0].{field}.content is no text")
