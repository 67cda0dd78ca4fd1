"""Answers as server-sent events, and noticing that a client has gone while a model is waited for."""

from __future__ import annotations

import logging
import select
import socket
import ssl
import time
from collections.abc import Callable, Generator

from pyrag.errors import PyragError
from pyrag.http.errors import as_pyrag_error, envelope, log_failure
from pyrag.schemas import Event, event_name

_log = logging.getLogger("pyrag.http")

_HANGS_UP: int = getattr(select, "POLLRDHUP", 0)  # the client has closed its side; Linux tells

HEARTBEAT_SECONDS = 10.0
SEND_SECONDS = 30.0  # a client that takes in nothing for so long is given up
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
MEDIA_TYPE = "text/event-stream; charset=utf-8"


def has_gone(connection: socket.socket | None) -> bool:
    """Whether the client has closed its connection; False where the server does not show it."""
    if connection is None or isinstance(connection, ssl.SSLSocket):
        return False
    try:
        poll = select.poll()
        poll.register(connection, select.POLLIN | _HANGS_UP)
        found = poll.poll(0)
        if not found or found[0][1] & (select.POLLHUP | select.POLLERR | _HANGS_UP):
            return bool(found)
        return not connection.recv(1, socket.MSG_PEEK)  # bytes of a next request hide the end on macOS
    except (OSError, ValueError):
        return True


def event_stream(
    events: Generator[Event | None],
    connection: socket.socket | None,
    request_id: str,
    done: Callable[[str], None],
) -> Generator[bytes]:
    """The events as bytes; what fails becomes one `error` event, which is then the last.

    Ends the work behind `events` when the client has gone. `done` is called once, with how it ended: `ok`,
    the code of an error, or `client_gone`.
    """
    outcome = "client_gone"
    try:
        if connection is not None:
            connection.settimeout(SEND_SECONDS)
        sent = time.monotonic()
        for event in events:
            if event is not None:
                sent = time.monotonic()
                yield _event(event_name(event), event.model_dump_json())
            elif has_gone(connection):
                return
            elif time.monotonic() - sent >= HEARTBEAT_SECONDS:
                sent = time.monotonic()
                yield b": keep-alive\n\n"
        outcome = "ok"
    except Exception as error:
        if not isinstance(error, PyragError):
            _log.error("unexpected error in a stream", exc_info=error)
        shown = as_pyrag_error(error)
        outcome = shown.code
        log_failure(shown, request_id)
        yield _event("error", envelope(shown).decode())
    finally:
        events.close()
        done(outcome)


def _event(name: str, data: str) -> bytes:
    # line ends of Unicode, which are none for event streams, but for clients that split lines by them
    data = data.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").replace("\x85", "\\u0085")
    return f"event: {name}\ndata: {data}\n\n".encode("utf-8", "replace")
