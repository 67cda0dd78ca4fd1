"""Reading the body of a request: bounded in size and time, JSON in UTF-8, checked against a model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from falcon import Request
from pydantic import BaseModel, ValidationError

from pyrag.errors import InvalidRequest, PayloadTooLarge, PyragError, UnsupportedMediaType
from pyrag.http.deadlines import deadlines

if TYPE_CHECKING:
    import socket

MAX_BODY = 1 << 20  # bytes of a body that is read
MAX_DRAIN = 8 << 20  # bytes of a larger one that are taken in and dropped, so that the answer can be read
DRAIN_SECONDS = 1.0
BODY_TOTAL_SECONDS = 30.0  # longest time for a whole body
BODY_SECONDS = 10.0  # longest wait for the next bytes of a body
_PIECE = 1 << 16

Body = TypeVar("Body", bound=BaseModel)


def read_model(request: Request, model: type[Body]) -> Body:
    """The request's body as a model.

    Raises `UnsupportedMediaType`, `PayloadTooLarge`, or `InvalidRequest` naming the field.
    """
    _check_type(request.content_type)
    raw = _read(request)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8 (byte 0x{raw[error.start]:02X} at offset {error.start})",
            hint="Send JSON in UTF-8.",
        ) from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _broken("nested too deeply") from None
    except ValueError as error:  # also a number of thousands of digits
        raise _broken(str(error)) from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", hint=_example(model))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _invalid(error, model) from None


def _check_type(content_type: str | None) -> None:
    kind, *parameters = (part.strip().lower() for part in (content_type or "").split(";"))
    charsets = [each[8:].strip("\"'") for each in parameters if each.startswith("charset=")]
    if kind != "application/json" or any(each not in ("utf-8", "utf8") for each in charsets):
        raise UnsupportedMediaType(
            "the body must be application/json in UTF-8",
            hint="Send the header Content-Type: application/json",
        )


def _read(request: Request) -> bytes:
    stream = request.env["wsgi.input"]
    length = request.content_length
    if length is None and not request.env.get("wsgi.input_terminated"):
        length = 0  # the server says neither how long the body is nor where it ends
    if length is not None and length > MAX_BODY:
        _too_large(request, 0)
    parts: list[bytes] = []
    size = 0
    connection = request.env.get("gunicorn.socket")
    with _patience(request, BODY_SECONDS), deadlines.within(connection, BODY_TOTAL_SECONDS):
        while length is None or size < length:
            piece = stream.read(_PIECE if length is None else min(_PIECE, length - size))
            if not piece:
                break
            size += len(piece)
            if size > MAX_BODY:
                _too_large(request, size)
            parts.append(piece)
    if length is not None and size < length:
        raise _broken(f"{size} of {length} bytes were received")
    return b"".join(parts)


def _too_large(request: Request, size: int) -> NoReturn:
    """Takes in and drops a part of the rest, so that most clients get to read the answer; then refuses."""
    stream = request.env["wsgi.input"]
    deadline = time.monotonic() + DRAIN_SECONDS
    left = MAX_DRAIN if request.content_length is None else min(MAX_DRAIN, request.content_length - size)
    try:
        while left > 0 and (rest := deadline - time.monotonic()) > 0:
            with _patience(request, rest):
                piece = stream.read(min(_PIECE, left))
            if not piece:
                break
            left -= len(piece)
    except (InvalidRequest, OSError):
        pass
    if hasattr(stream, "failed"):
        stream.failed = True  # gunicorn: closes the connection instead of reading on to the next request
    raise PayloadTooLarge(
        f"the body is above {MAX_BODY} bytes", hint="Send a shorter question.", details={"limit": MAX_BODY}
    )


@contextmanager
def _patience(request: Request, seconds: float) -> Iterator[None]:
    """A body that does not come in time is an error: it must not hold its thread for ever."""
    connection: socket.socket | None = request.env.get("gunicorn.socket")
    try:
        if connection is not None:
            connection.settimeout(seconds)
        yield
    except TimeoutError:
        raise InvalidRequest(
            f"nothing more of the body came for {seconds:.0f} s", hint="Send the whole body at once."
        ) from None
    except PyragError:
        raise
    except Exception as error:  # of the server: chunks that are none, a body that ends early
        raise InvalidRequest(
            f"the body cannot be read ({type(error).__name__})", hint="Send the body as its headers say."
        ) from None
    finally:
        if connection is not None:
            connection.settimeout(None)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _broken(why: str) -> InvalidRequest:
    return InvalidRequest(f"the body is not valid JSON: {why}", hint="Send one JSON object.")


def _invalid(error: ValidationError, model: type[BaseModel]) -> InvalidRequest:
    """All faults by field; what was sent is not repeated."""
    faults = [
        {"field": ".".join(_name(part) for part in fault["loc"]) or "body", "message": _sentence(fault)}
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    first = faults[0]
    return InvalidRequest(
        f"{first['field']}: {first['message']}", hint=_example(model), details={"errors": faults[:20]}
    )


def _name(part: int | str) -> str:
    return str(part) if len(str(part)) <= 100 else f"{str(part)[:100]}…"


def _sentence(fault: Any) -> str:
    if fault["type"] == "string_pattern_mismatch":
        alone = " beside # and /" if "filter" in fault["loc"] else ""
        return f"must hold at least one visible character{alone} and no NUL"
    if fault["type"] == "string_unicode":
        return "holds half a surrogate pair, which is not text"
    if fault["type"] == "extra_forbidden":
        return "is no field of this request"
    return str(fault["msg"]).removeprefix("Value error, ")


def _example(model: type[BaseModel]) -> str:
    first = next(iter(model.model_fields))
    return f'Example: {{"{first}": "客户 P1 工单应该怎么升级？", "top_k": 5}}'
