"""An incremental reader of text/event-stream, by bytes, as the WHATWG HTML standard defines the format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MOST_OF_AN_EVENT = 8_000_000  # bytes


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its name, "message" where the server gives none, and its data."""

    name: str
    data: str


class EventTooLarge(Exception):
    """An event, or one of its lines, has more bytes than the limit."""


class EventReader:
    """Bytes in, cut anywhere; events out. Time is linear in the bytes, memory at most one event."""

    def __init__(self, limit: int = MOST_OF_AN_EVENT) -> None:
        self._limit = limit
        self._line = bytearray()  # the unfinished last line
        self._data: list[bytes] = []
        self._size = 0
        self._name = b""
        self._at_start = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that end in this read, to be taken whole. Raises `EventTooLarge`.

        What stands after the last empty line is no event: at the end of the stream it is dropped.
        """
        if not chunk:
            return
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        *ended, rest = re.split(rb"\r\n|\r|\n", chunk)
        for part in ended:
            self._add(part)
            event = self._end_of_line()
            if event is not None:
                yield event
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._line += part
        if self._size + len(self._line) > self._limit:
            raise EventTooLarge(f"an event of more than {self._limit} bytes")

    def _end_of_line(self) -> Event | None:
        line = bytes(self._line)
        self._line.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            return self._end_of_event()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif field == b"event":
            self._name = value
        return None

    def _end_of_event(self) -> Event | None:
        data, name = self._data, self._name
        self._data, self._name, self._size = [], b"", 0
        if not data:
            return None
        text = b"\n".join(data).decode("utf-8", "replace")
        return Event(name.decode("utf-8", "replace") or "message", text)
