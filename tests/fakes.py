"""A model's server on a loopback port whose every byte and pause is scripted, and replies to give it."""

from __future__ import annotations

import json
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

Step = bytes | float  # what is sent, or seconds to wait; a client that leaves ends both
FOR_EVER = math.inf


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it arrived. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Sequence[Step] | Callable[[Received], Iterable[Step]]


class Upstream:
    """Serves the first script to the first request, and so on; the last one to all that follow.

    A script is a list of steps, or a function from the request to such steps; at its end the connection is
    closed. `disconnected` is set when a client leaves before that, at `disconnected_at` (monotonic).
    """

    def __init__(self, *scripts: Script, host: str = "127.0.0.1") -> None:
        self._scripts = scripts
        self.requests: list[Received] = []
        self.connections = 0
        self.disconnected = threading.Event()
        self.disconnected_at = 0.0
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind((host, 0))
        self._listener.listen(256)
        self.port: int = self._listener.getsockname()[1]
        self.base_url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/v1"

    def __enter__(self) -> Upstream:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        socket.create_connection(self._listener.getsockname()[:2]).close()  # wakes the one that accepts
        for thread in self._threads:
            thread.join(5)
        self._listener.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._closing.is_set():
                connection.close()
                return
            self.connections += 1
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                request = _read_request(connection)
                if request is None:
                    return
                with self._lock:
                    script = self._scripts[min(len(self.requests), len(self._scripts) - 1)]
                    self.requests.append(request)
                for step in script(request) if callable(script) else script:
                    if isinstance(step, bytes):
                        connection.sendall(step)
                    elif not self._wait(connection, step):
                        return
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(1)
                with suppress(OSError):
                    while connection.recv(65536):
                        pass
            except OSError:
                self._left()

    def _wait(self, connection: socket.socket, seconds: float) -> bool:
        """Whether the client is still there after this time."""
        until = time.monotonic() + seconds
        while not self._closing.is_set():
            left = until - time.monotonic()
            if left <= 0:
                return True
            if select.select([connection], [], [], min(left, 0.05))[0] and not connection.recv(65536):
                self._left()
                return False
        return False

    def _left(self) -> None:
        self.disconnected_at = time.monotonic()
        self.disconnected.set()


def _read_request(connection: socket.socket) -> Received | None:
    connection.settimeout(10)
    with connection.makefile("rb") as stream:
        method, _, rest = stream.readline().decode("latin-1").partition(" ")
        if not method:
            return None
        headers: dict[str, str] = {}
        while line := stream.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.get("content-length", "0")))
    return Received(method, rest.rsplit(" ", 1)[0], headers, body)


def raw(*body: Step, content_type: str = "text/event-stream", code: int = 200) -> list[Step]:
    """A reply with this body, which ends where the connection does."""
    kind = f"Content-Type: {content_type}\r\n" if content_type else ""
    return [f"HTTP/1.1 {code} Status\r\n{kind}Connection: close\r\n\r\n".encode(), *body]


def status(code: int, body: object = "", headers: dict[str, str] | None = None) -> list[Step]:
    """A reply with a status, headers and a whole body: text as it is, anything else as JSON."""
    data = _encoded(body)
    lines = {
        "Content-Type": "text/plain" if isinstance(body, str) else "application/json",
        "Content-Length": str(len(data)),
        "Connection": "close",
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return [f"HTTP/1.1 {code} Status\r\n{head}\r\n".encode() + data]


def chat(content: object, finish: str | None = "stop", **message: object) -> list[Step]:
    """A reply that is not streamed."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, **message},
        "finish_reason": finish,
    }
    usage = {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}
    reply = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return status(200, {**reply, "usage": usage})


def event(value: object) -> bytes:
    """One event of a stream: text as it is, anything else as JSON."""
    return b"data: " + _encoded(value) + b"\n\n"


def _encoded(value: object) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")  # a lone surrogate becomes its JSON escape


def delta(content: object, finish: str | None = None, **fields: object) -> bytes:
    """The event of one piece of text."""
    choice = {"index": 0, "delta": {"content": content, **fields}, "finish_reason": finish}
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return event(chunk)


def stream_of(
    pieces: Iterable[str], finish: str | None = "stop", done: bool = True, delay: float = 0
) -> list[Step]:
    """A streamed reply, with `delay` seconds before each piece."""
    steps = raw(delta("", role="assistant"))
    for piece in pieces:
        steps += [delay, delta(piece)]
    if finish is not None:
        choice = {"index": 0, "delta": {}, "finish_reason": finish}
        end = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        steps.append(event(end))
    if done:
        steps.append(event("[DONE]"))
    return steps
