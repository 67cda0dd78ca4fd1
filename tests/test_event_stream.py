"""text/event-stream by the standard, and what of a chat reply its events carry, however the bytes are cut."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pyrag.chat_reply import ChatReply
from pyrag.event_stream import Event, EventReader, EventTooLarge
from pyrag.models import Finish


def read(*chunks: bytes) -> list[Event]:
    reader = EventReader()
    return [event for chunk in chunks for event in reader.feed(chunk)]


def data(*chunks: bytes) -> list[str]:
    return [event.data for event in read(*chunks)]


def singly(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    borders = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(borders)]


# The standard --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", ["a"]),
        (b"data:a\n\n", ["a"]),
        (b"data:  a \n\n", [" a "]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", ["a", "b", "c"]),
        (b"data: a\r\rdata: b\n\r\n", ["a", "b"]),
        (b": comment\n\n:\n\ndata: a\n\n", ["a"]),
        (b"data: a\n: comment\ndata: b\n\n", ["a\nb"]),
        (b"data\n\n", [""]),
        (b"data\ndata\n\n", ["\n"]),
        (b"\n\n\n", []),
        (b"id: 1\nretry: 5\nother: x\nDATA: y\n data: z\n\n", []),
        (b"data: a", []),
        (b"data: a\n", []),
        (b"data: a\n\ndata: b\n", ["a"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", ["a"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: b\n\n", []),
        (b"", []),
    ],
)
def test_events_are_framed_as_the_standard_says(stream: bytes, events: list[str]) -> None:
    assert data(stream) == events
    assert data(*singly(stream)) == events


def test_an_event_has_its_name_once_and_message_otherwise() -> None:
    stream = b"event: error\ndata: a\n\ndata: b\n\nevent: lost\n\ndata: c\n\nevent:x\nevent: y\ndata: d\n\n"
    assert [event.name for event in read(stream)] == ["error", "message", "message", "y"]


@pytest.mark.parametrize("char", [*"\u2028\u2029\x85\x0b\x0c\x1c\x1e\x00\ufeff"])
def test_other_line_ends_of_python_are_ordinary_characters(char: str) -> None:
    assert data(*singly(f"data: a{char}b\n\n".encode())) == [f"a{char}b"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("你好😀".encode(), "你好😀"),
        (b"a\xffb", "a\ufffdb"),
        (b"\xe4\xbd", "\ufffd"),
        (b"\xed\xa0\x80", "\ufffd" * 3),
    ],
)
def test_only_bytes_that_are_not_utf_8_are_replaced(value: bytes, text: str) -> None:
    assert data(*singly(b"data: " + value + b"\n\n")) == [text]


def by_the_standards_words(stream: bytes) -> list[Event]:
    """The same on the whole stream at once, as the standard words it: decode, split into lines, interpret."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    events, buffer, kind = [], "", ""
    for line in re.split("\r\n|\n|\r", text)[:-1]:
        if not line:
            if buffer:
                events.append(Event(kind or "message", buffer.removesuffix("\n")))
            buffer = kind = ""
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                kind = value
            elif field == "data":
                buffer += f"{value}\n"
    return events


fragments = st.sampled_from(
    [
        b"data: ",
        b"data",
        b"event: e",
        b":",
        b"\r",
        b"\n",
        b"\r\n",
        b"\n\n",
        b" ",
        b"\xef\xbb\xbf",
        "好".encode(),
        b"\xe5",
    ]
)
streams = st.lists(fragments | st.binary(max_size=3), max_size=40).map(b"".join)


@hypothesis_settings(max_examples=300, deadline=None)
@given(stream=streams, cuts=st.lists(st.integers(0, 120), max_size=12))
def test_any_cutting_of_any_bytes_gives_the_events_of_the_standard(stream: bytes, cuts: list[int]) -> None:
    whole = by_the_standards_words(stream)
    assert read(stream) == whole
    assert read(*cut(stream, cuts)) == whole
    assert read(*singly(stream)) == whole


# Bounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stream", [b"data: " + b"x" * 200, b"data: xxxxxxxxxx\n" * 20, b": " + b"x" * 200, b"data\n" * 200]
)
def test_an_event_above_the_limit_is_refused_and_those_before_it_are_given(stream: bytes) -> None:
    events = EventReader(limit=100).feed(b"data: a\n\n" + stream)
    assert next(events).data == "a"
    with pytest.raises(EventTooLarge, match="more than 100 bytes"):
        next(events)


def test_many_events_below_the_limit_have_no_bound_together() -> None:
    reader = EventReader(limit=100)
    assert sum(len(list(reader.feed(b": ping\n\ndata: a\n\n"))) for _ in range(1000)) == 1000


def seconds(chunks: Iterable[bytes]) -> float:
    start = time.process_time()
    read(*chunks)
    return time.process_time() - start


@pytest.mark.parametrize(
    "make",
    [
        lambda size: [b"x"] * size,
        lambda size: [b"data: ", *[b"x"] * size],
        lambda size: [b"\r"] * size,
        lambda size: [b"data\n" * size],
        lambda size: [b"data: x\n\n" * size],
    ],
    ids=["one line", "one value", "CR", "one event", "events"],
)
def test_time_is_linear(make: Callable[[int], list[bytes]]) -> None:
    seconds(make(1000))
    assert seconds(make(160_000)) < 5  # some tenths; minutes where a read looks at all before it again


# Chat chunks in events -----------------------------------------------------------------------------

# llm-stream-framing: its reads, and each other way of cutting them
READS = [
    b': keep-alive\r\n\r\ndata: {"id":"c1","choice',
    b's":[]}\r\n\r\ndata:{"id":"c1","choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"finish_reason":null}]}\r',
    b'\n\r\ndata: {"id":"c1","choices":[{"index":0,"delta":{"content":"\xe4',
    b'\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c"},"f',
    b'inish_reason":null}]}\r\n\r\n: PROCESSING\r\n\r\ndata: {"id":"c1","choices":[{"index":0,"delta":'
    b'{"content":"\xe4\xb8\x96\xe7\x95\x8c"},"finish_reason":null}]}\r\n\r\ndata: {"id":"c1","choices":'
    b'[{"index":0,"delta":{},"finish_reason":"stop"}]}\r\n\r\ndata: {"id":"c1","choices":[],"usage":'
    b'{"prompt_tokens":8,"completion_tokens":4,"total_tokens":12}}\r\n\r\ndata: [DONE]\r\n\r\n',
]


def answer(*chunks: bytes) -> tuple[str, Finish]:
    reply = ChatReply()
    text = "".join(reply.event(event) for event in read(*chunks))
    rest, finish = reply.end()
    return text + rest, finish


def test_llm_stream_framing() -> None:
    whole = b"".join(READS)
    for chunks in (READS, singly(whole), [whole]):
        assert answer(*chunks) == ("你好，世界", Finish("stop"))
        assert json.loads(data(*chunks)[-2])["usage"]["total_tokens"] == 12


@hypothesis_settings(max_examples=100, deadline=None)
@given(cuts=st.lists(st.integers(0, sum(map(len, READS))), max_size=30))
def test_llm_stream_framing_with_any_cuts(cuts: list[int]) -> None:
    whole = b"".join(READS)
    assert answer(*cut(whole, cuts)) == ("你好，世界", Finish("stop"))


units = st.sampled_from(["a", "好", "😀", "\ud83d", "\ude00", "\0", "\ud800"])


@hypothesis_settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.lists(units, max_size=4).map("".join), min_size=1, max_size=6))
def test_surrogates_and_nul_in_json_become_text_however_they_are_cut(parts: list[str]) -> None:
    """A pair is joined, half of one is U+FFFD, NUL is nothing; JSON escapes can hold all of them."""

    def stream(contents: list[str]) -> bytes:
        chunks = [{"choices": [{"delta": {"content": content}}]} for content in ["a", *contents]]
        events = [*(json.dumps(chunk) for chunk in chunks), "[DONE]"]
        return "".join(f"data: {each}\n\n" for each in events).encode()

    text = "a" + "".join(parts).replace("\0", "")
    wanted = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert answer(stream(parts)) == (wanted, Finish("stop"))
    reply = ChatReply()
    for event in read(stream(parts)):
        piece = reply.event(event)
        assert piece.encode() is not None
        assert "\0" not in piece
