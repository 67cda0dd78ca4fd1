"""One envelope for every error, Falcon's own included."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import falcon
from falcon import Request, Response

from pyrag.errors import (
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    PyragError,
    UnsupportedMediaType,
)

_log = logging.getLogger("pyrag.http")
_RETRY_AFTER_SECONDS = "1"
_BY_STATUS: dict[int, type[PyragError]] = {
    cls.http_status: cls
    for cls in (InvalidRequest, MethodNotAllowed, NotFound, PayloadTooLarge, UnsupportedMediaType)
}


def add_error_handlers(app: falcon.App[Any, Any]) -> None:
    """Every exception that leaves a resource becomes a reply in the envelope."""
    app.add_error_handler(Exception, _unexpected)
    app.add_error_handler(falcon.HTTPError, _of_falcon)
    app.add_error_handler(PyragError, _of_pyrag)


def envelope(error: PyragError) -> bytes:
    """The body of an error as JSON in UTF-8."""
    return json.dumps(error.envelope(), ensure_ascii=False, allow_nan=False, default=str).encode(
        "utf-8", "replace"
    )


def as_pyrag_error(error: BaseException) -> PyragError:
    """The error itself where it is one of ours; anything else is an internal error that shows nothing."""
    if isinstance(error, PyragError):
        # the codes of the command line are no codes of the API
        if error.http_status == 500 and error.code not in ("internal_error", "embedding_dim_mismatch"):
            return InternalError(error.message, hint=error.hint)
        return error
    return InternalError("pyrag met an error that it does not know; the server's log has it.")


def log_failure(error: PyragError, request_id: str) -> None:
    """A line that says why, for what is not the client's fault; keys and passwords are not in messages."""
    if error.http_status >= 500:
        _log.warning(
            "%s: %s (%s)", error.code, error.message, request_id,
            extra={"code": error.code, "request_id": request_id},
        )  # fmt: skip


def _of_pyrag(request: Request, response: Response, error: PyragError, _: dict[str, Any]) -> None:
    error = as_pyrag_error(error)
    log_failure(error, request.context.request_id)
    response.status = error.http_status
    response.data = envelope(error)
    response.content_type = falcon.MEDIA_JSON
    response.context.error_code = error.code
    if isinstance(error, Overloaded):
        response.set_header("Retry-After", _RETRY_AFTER_SECONDS)
    elif "retry_after_seconds" in error.details:
        response.set_header("Retry-After", str(math.ceil(error.details["retry_after_seconds"])))


def _of_falcon(request: Request, response: Response, error: falcon.HTTPError, _: dict[str, Any]) -> None:
    known = _BY_STATUS.get(error.status_code)
    if error.status_code == 404:
        ours: PyragError = NotFound(
            f"there is nothing at {request.path[:200]}", hint="GET / lists what there is."
        )
    elif error.status_code == 405:
        ours = MethodNotAllowed(f"{request.method[:20]} is not allowed here", hint="See the header Allow.")
    elif error.status_code < 500:
        ours = (known or InvalidRequest)(error.description or error.title or "the request cannot be read")
    else:
        ours = InternalError(error.title or "internal error")
    for name, value in dict(error.headers or {}).items():
        response.set_header(name, value)
    _of_pyrag(request, response, ours, {})


def _unexpected(request: Request, response: Response, error: Exception, _: dict[str, Any]) -> None:
    _log.error("unexpected error", exc_info=error, extra={"request_id": request.context.request_id})
    _of_pyrag(request, response, as_pyrag_error(error), {})
