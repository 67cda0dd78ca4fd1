"""Gunicorn's thread worker, so that no client can hold up the others."""

from __future__ import annotations

import re
import select
import socket
import struct
import time
import uuid
from contextlib import suppress
from typing import Any

from gunicorn.workers.gthread import ThreadWorker  # type: ignore[import-untyped]

from pyrag.errors import InternalError, InvalidRequest
from pyrag.http.deadlines import deadlines
from pyrag.http.errors import envelope

HEAD_TOTAL_SECONDS = 30.0  # longest time for the whole head of a request
HEADER_SECONDS = 10.0  # longest wait for the next bytes of a request's head
LINGER_SECONDS = 2.0  # longest wait for a client to read the end of its last reply and go
NEXT_REQUEST_MS = 5.0  # how long a thread waits for the next request of its connection
_LINGER_BYTES = 1 << 16


class Worker(ThreadWorker):  # type: ignore[misc]
    """Like `gthread`, but a connection is ended by its own thread, and a head that stalls ends it.

    Gunicorn waits on its one main thread for a client to close, up to 2 s for each, and accepts no other
    connection meanwhile; and for the rest of a head it waits for ever. Requests that are no HTTP get the
    envelope of every other error.
    """

    def handle(self, conn: Any) -> Any:
        """Serves a request, and those that follow it at once; false when the connection has ended."""
        _bound_heads(conn)
        kept = super().handle(conn)
        while kept is True and self.alive and _is_ready(conn.sock):
            kept = super().handle(conn)
        if not kept:
            _linger(conn.sock)
        return kept

    def handle_error(self, req: Any, client: Any, addr: Any, exc: Any) -> None:
        """Answers what cannot be read as a request: gunicorn's status and log line, our envelope."""
        page = _Page()
        super().handle_error(req, page, addr, exc)
        found = re.match(rb"HTTP/1\.1 (\d{3}) ([^\r]+)", page.data)
        if found is None:
            return
        status, reason = int(found[1]), found[2].decode("latin-1")
        kind = InternalError if status == 500 else InvalidRequest
        body = envelope(
            kind(f"the request cannot be read: {reason}", hint="Check the request line and headers.")
        )
        head = (
            f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Type: application/json\r\n"
            f"X-Request-Id: {uuid.uuid4().hex}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with suppress(OSError):
            client.settimeout(LINGER_SECONDS)
            client.sendall(head.encode("latin-1") + body)


class _Page:
    """Takes the page of HTML that gunicorn would send for an error."""

    def __init__(self) -> None:
        self.data = b""

    def gettimeout(self) -> float:
        return 0.0

    def setblocking(self, flag: bool) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        self.data += data


def _bound_heads(conn: Any) -> None:
    if getattr(conn, "bounded", False):
        return
    init = conn.init

    def bounded_init() -> None:
        init()  # comes before each head, after the socket was set to wait for ever
        conn.sock.settimeout(HEADER_SECONDS)
        if not isinstance(conn.parser, _Parser):
            conn.parser = _Parser(conn.parser)

    conn.init = bounded_init
    conn.bounded = True


class _Parser:
    """A parser of requests for which a head that stalls is the end of the connection, not an error."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def __next__(self) -> Any:
        try:
            with deadlines.within(self._parser.unreader.sock, HEAD_TOTAL_SECONDS):
                request = next(self._parser)
        except TimeoutError:
            raise StopIteration from None
        return request


def _is_ready(connection: socket.socket) -> bool:
    """Whether the next request of a connection comes at once: then this thread takes it, without the detour
    over the main thread and its poller, which costs as much as a quarter of a search."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(NEXT_REQUEST_MS))


def _linger(connection: socket.socket) -> None:
    """Lets the client read to the end; what gunicorn does after it on its main thread then ends at once."""
    until = time.monotonic() + LINGER_SECONDS
    size = 0
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while size < _LINGER_BYTES and (rest := until - time.monotonic()) > 0:
            connection.settimeout(rest)
            piece = connection.recv(4096)
            if not piece:
                return
            size += len(piece)
    with suppress(OSError):
        # a client that goes on sending: closing resets the connection, or it would wait for ever to send more
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
