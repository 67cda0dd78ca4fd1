"""Total time for what a client sends: a byte now and then must not hold a thread for ever."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOOK_SECONDS = 1.0


class Deadlines:
    """Ends the reading side of connections whose time is up; their readers then see the end of the data."""

    def __init__(self) -> None:
        self._ends: dict[int, tuple[float, socket.socket]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def within(self, connection: socket.socket | None, seconds: float) -> Iterator[None]:
        """Whatever is read from the connection in this block has to come within this time."""
        if connection is None:
            yield
            return
        key = id(connection)
        with self._lock:
            self._ends[key] = (time.monotonic() + seconds, connection)
            if self._thread is None:  # only now: a thread does not survive a fork
                self._thread = threading.Thread(target=self._watch, name="pyrag-deadlines", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._ends.pop(key, None)

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            with self._lock:
                for end, connection in self._ends.values():
                    if end <= now:
                        with suppress(OSError):
                            connection.shutdown(socket.SHUT_RD)


deadlines = Deadlines()
