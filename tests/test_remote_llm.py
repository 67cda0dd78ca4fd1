"""The client of OpenAI-compatible servers, against one that misbehaves in every way, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from fakes import FOR_EVER, Received, Step, Upstream, chat, delta, event, raw, status, stream_of
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import SecretStr

from pyrag.config import load_configuration
from pyrag.errors import LlmAuthFailed, LlmRateLimited, LlmTimeout, LlmUpstreamError, PyragError
from pyrag.llm import build_llm
from pyrag.models import Finish, Message, Prompt
from pyrag.outbound import outbound_loop
from pyrag.redaction import one_line, redact
from pyrag.remote_llm import RemoteLlm

DONE = event("[DONE]")


def test_a_key_that_the_server_masked_itself_is_not_shown() -> None:
    said = one_line("Incorrect API key provided: sk-tes*********wxyz. Try again.")
    assert said == "Incorrect API key provided: *** Try again."


KEY = "sk-test-0123456789abcdef"
PROMPT = Prompt("Why?", (Message("system", "Be brief."), Message("user", "Why? 为什么？")))
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def llm_at(where: Upstream | str, **changes: Any) -> RemoteLlm:
    base_url = where if isinstance(where, str) else where.base_url
    values = {"model": "model-x", "key": SecretStr(KEY), "timeout_seconds": 5, "max_tokens": 77, **changes}
    return RemoteLlm(base_url=base_url, **values)


def whole(llm: RemoteLlm, stream: bool = False) -> tuple[list[str], str]:
    """The pieces of a reply and the reason of its end."""
    items = [item for item in llm.reply(PROMPT, stream=stream) if item is not None]
    assert [type(item) for item in items] == [str] * (len(items) - 1) + [Finish]
    assert all(items[:-1])
    return [str(item) for item in items[:-1]], getattr(items[-1], "reason", "")


def failed(llm: RemoteLlm, stream: bool = False) -> tuple[list[str], PyragError]:
    """The pieces that came, and the error after them."""
    pieces: list[str] = []

    def read() -> None:
        for item in llm.reply(PROMPT, stream=stream):
            assert not isinstance(item, Finish)
            pieces.extend([item] if item else [])

    with pytest.raises(PyragError) as caught:
        read()
    assert caught.value.details["mid_stream"] is bool(pieces)
    return pieces, caught.value


def eventually(condition: Callable[[], bool], seconds: float = 2) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def idle() -> bool:
    return not asyncio.all_tasks(outbound_loop())


# What is asked -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_the_request_is_that_of_the_api(stream: bool) -> None:
    with Upstream(stream_of(["a"]) if stream else chat("a")) as upstream:
        assert whole(llm_at(upstream), stream) == (["a"], "stop")
    (request,) = upstream.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.json == {
        "model": "model-x",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Why? 为什么？"},
        ],
        "temperature": 0,
        "max_tokens": 77,
        "stream": stream,
    }
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"
    assert "text/event-stream" in request.headers["accept"]


# llm-base-url-joining
@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("{}/v1", "/v1"),
        ("{}/v1/", "/v1"),
        ("{}/v1//", "/v1"),
        (" {}/v1 ", "/v1"),
        ("{}/api/v9x/", "/api/v9x"),
        ("{}", ""),
        ("{}/", ""),
    ],
)
def test_the_endpoint_is_appended_to_the_base_url_and_nothing_else(given: str, path: str) -> None:
    with Upstream(chat("a")) as upstream:
        environ = {
            "LLM_PROVIDER": "openai-compatible",
            "LLM_BASE_URL": given.format(f"http://127.0.0.1:{upstream.port}"),
            "LLM_API_KEY": KEY,
            "LLM_MODEL": "m",
        }
        llm = build_llm(load_configuration(environ=environ, folder=REPOSITORY.parent).settings)
        assert list(llm.reply(PROMPT, stream=False)) == ["a", Finish()]
    assert upstream.requests[0].path == f"{path}/chat/completions"
    assert upstream.requests[0].json["max_tokens"] == 2048


def test_the_official_client_can_read_our_server() -> None:
    import openai

    with (
        Upstream(chat("你好"), stream_of(["你", "好"])) as upstream,
        openai.OpenAI(base_url=upstream.base_url, api_key=KEY, max_retries=0) as client,
    ):
        messages: Any = [{"role": "user", "content": "Why?"}]
        reply = client.chat.completions.create(model="m", messages=messages)
        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("你好", "stop")
        chunks = list(client.chat.completions.create(model="m", messages=messages, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "你好"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert [request.path for request in upstream.requests] == ["/v1/chat/completions"] * 2


# Whole replies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "text", "reason"),
    [
        (chat("你好 😀"), "你好 😀", "stop"),
        (chat("cut", finish="length"), "cut", "length"),
        (chat("cut", finish="content_filter"), "cut", "content_filter"),
        (chat("a", finish=None), "a", "stop"),
        (chat([{"type": "text", "text": "a"}, {"type": "x"}, {"type": "text", "text": "b"}]), "ab", "stop"),
        (chat("a", refusal=None, reasoning_content="b", tool_calls=None), "a", "stop"),
        (chat("a\0b\ud83d\ude00"), "ab😀", "stop"),
        (stream_of(["a", "b"]), "ab", "stop"),
        (raw(b"\xef\xbb\xbf" + json.dumps({"choices": [{"message": {"content": "a"}}]}).encode(),
             content_type="application/json"), "a", "stop"),
        (raw(b'{"choices":[{"message":{"content":"a\\ud83d\\u0000 \\udc00b"}}],"error":null}',
             content_type="application/json"), "a\ufffd \ufffdb", "stop"),
        (raw(b'{"choices":[{"message":{"content":"a\\ud83d"}}]}', content_type=""), "a\ufffd", "stop"),
        (raw(gzip.compress(b'{"choices":[{"message":{"content":"a"}}]}'),
               content_type="application/json\r\nContent-Encoding: gzip"), "a", "stop"),
    ],
)  # fmt: skip
def test_a_whole_reply_is_its_text_and_its_end(reply: list[Step], text: str, reason: str) -> None:
    with Upstream(reply) as upstream:
        pieces, end = whole(llm_at(upstream))
    assert ("".join(pieces), end) == (text, reason)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (status(200, {"error": {"message": "worker limit reached", "code": 5}}), "an error: worker limit"),
        (status(200, {"error": "worker limit reached"}), "reports an error: worker limit reached"),
        (status(200, {"error": {"code": 5}, "choices": []}), 'reports an error: {"code": 5}'),
        (status(200, {"object": "error", "message": "no such model"}), "reports an error: no such model"),
        (status(200, {"id": "c1"}), "no choices"),
        (status(200, {"choices": []}), "no choices"),
        (status(200, {"choices": None}), "no choices"),
        (status(200, {"choices": "a"}), "[0].message is no object"),
        (status(200, {"choices": {"0": {}}}), "[0].message is no object"),
        (status(200, {"choices": ["a"]}), "[0].message is no object"),
        (status(200, {"choices": [{"message": "a"}]}), "[0].message is no object"),
        (status(200, {"choices": [{"message": {"content": "a"}, "finish_reason": 5}]}), "is no text"),
        (status(200, {"choices": [{}]}), "the answer is empty"),
        (status(200, []), "no JSON object"),
        (status(200, "<html>log in</html>"), "not JSON: <html>log in</html>"),
        (status(200, ""), "not JSON"),
        (status(200, '{"choices": [{"message"'), "not JSON"),
        (raw(b'{"choices":[{"message":"\xff"}]}', content_type="application/json"), "not JSON"),
        (status(200, "[" * 100_000), "not JSON"),
        (status(204, ""), "not JSON"),
        (chat(5), "content is no text"),
        (chat(["a"]), "content is no text"),
        (chat([{"type": "text", "text": 5}]), "content is no text"),
        (chat(None), "the answer is empty (finish_reason stop)"),
        (chat(" \n"), "the answer is empty"),
        (chat("\0"), "the answer is empty"),
        (chat(None, finish="tool_calls", tool_calls=[{}]), "is empty (finish_reason tool_calls)"),
        (chat("", finish="length", reasoning_content="hm"), "LLM_MAX_TOKENS was used"),
        (chat("", finish="content_filter"), "content filter withheld it"),
        (chat(None, refusal="I cannot help."), "the model refuses to answer: I cannot help."),
        (chat("a", finish="error"), "finish_reason error"),
        (raw(b"x" * 16_100_000, content_type="application/json"), "a body of more than 16000000 bytes"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"], "the connection broke off"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], "the connection broke off"),
        ([b"SSH-2.0-OpenSSH\r\n"], "the connection broke off"),
        ([], "the connection broke off"),
        (raw(b"not gzip", content_type="application/json\r\nContent-Encoding: gzip"), "DecodingError"),
    ],
)  # fmt: skip
def test_what_is_no_whole_answer_is_an_error_that_says_what_it_is(reply: list[Step], says: str) -> None:
    with Upstream(reply) as upstream:
        pieces, error = failed(llm_at(upstream))
    assert pieces == []
    assert type(error) is LlmUpstreamError
    assert says in error.message
    assert error.message.startswith(f"127.0.0.1:{upstream.port}, model model-x: ")
    assert len(upstream.requests) == 1


# Streams -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "pieces", "reason"),
    [
        (stream_of(["a", "b"]), ["a", "b"], "stop"),
        (stream_of(["a", "b"], finish="length"), ["a", "b"], "length"),
        (stream_of(["a"], done=False), ["a"], "stop"),
        (stream_of(["a"], finish=None), ["a"], "stop"),
        (stream_of(["a"], finish=""), ["a"], "stop"),
        (raw(delta("a", "stop"), event({"choices": [], "usage": {"total_tokens": 12}})), ["a"], "stop"),
        (raw(delta("a"), delta(None), event({"x": 1}), event({"choices": None}), DONE), ["a"], "stop"),
        (raw(delta(None, reasoning_content="b"), delta("a", x=[1]), DONE), ["a"], "stop"),
        (raw(delta("a"), event(" "), DONE, event("{")), ["a"], "stop"),
        (raw(delta([{"type": "text", "text": "a"}]), DONE), ["a"], "stop"),
        (raw(delta("a"), DONE, content_type=""), ["a"], "stop"),
        (raw(delta("a"), DONE, content_type="text/plain"), ["a"], "stop"),
        (raw(delta("a"), DONE, FOR_EVER), ["a"], "stop"),
        (raw(delta("a\ud83d"), delta("\ude00b\ud83d"), DONE), ["a", "😀b", "\ufffd"], "stop"),
        (chat("ab"), ["ab"], "stop"),
    ],
)  # fmt: skip
def test_a_stream_is_its_pieces_and_its_end(reply: list[Step], pieces: list[str], reason: str) -> None:
    with Upstream(reply) as upstream:
        assert whole(llm_at(upstream), stream=True) == (pieces, reason)


@pytest.mark.parametrize(
    ("reply", "pieces", "says"),
    [
        (raw(delta("a")), ["a"], "the stream ended unfinished"),
        (raw(delta("a"), b"data: [DONE]"), ["a"], "the stream ended unfinished"),
        (raw(), [], "the stream ended unfinished"),
        (raw(b": ping\n\n"), [], "the stream ended unfinished"),
        (raw(DONE), [], "the answer is empty (finish_reason missing)"),
        (raw(delta("", "stop"), DONE), [], "the answer is empty (finish_reason stop)"),
        (raw(delta(None, "length", reasoning_content="hm"), DONE), [], "LLM_MAX_TOKENS was used"),
        (raw(delta("", "content_filter"), DONE), [], "content filter withheld it"),
        (raw(delta(None, refusal="I can"), delta(None, refusal="not."), DONE), [], "to answer: I cannot."),
        (raw(delta("a"), delta("", "error")), ["a"], "finish_reason error"),
        (raw(delta("a"), event("{"), delta("b")), ["a"], "event is not JSON, in the middle of the answer: {"),
        (raw(delta("a"), event("5")), ["a"], "an event is no JSON object"),
        (raw(delta("a"), delta(5)), ["a"], "content is no text"),
        (raw(delta("a"), event({"choices": [{"delta": "b"}]})), ["a"], "choices[0].delta is no object"),
        (raw(b"event: error\ndata: worker died\n\n"), [], "reports an error: worker died"),
        (raw(delta("a"), b'event: error\ndata: {"message": "died"}\n\n'), ["a"], "answer: died"),
        (raw(delta("a", "stop"), event({"error": "late"})), ["a"], "in the middle of the answer: late"),
        (raw(b"data: " + b"x" * 8_100_000), [], "an event of more than 8000000 bytes"),
        (raw(b"<html>", content_type="text/html"), [], "not JSON: <html>"),
        ([b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 999\r\n\r\n" + delta("a")],
         ["a"], "the connection broke off, in the middle of the answer"),
        (status(200, {"error": "no"}), [], "reports an error: no"),
    ],
)  # fmt: skip
def test_a_stream_without_a_whole_answer_is_an_error_after_its_pieces(
    reply: list[Step], pieces: list[str], says: str
) -> None:
    with Upstream(reply) as upstream:
        sent, error = failed(llm_at(upstream), stream=True)
    assert sent == pieces
    assert type(error) is LlmUpstreamError
    assert says in error.message
    assert len(upstream.requests) == 1


# llm-error-inside-200-stream
@pytest.mark.parametrize(
    "problem", [{"message": "worker limit reached", "code": 502}, "worker limit reached"]
)
@pytest.mark.parametrize("choices", [{"choices": []}, {}])
def test_an_error_inside_a_stream_fails_after_the_text_before_it(problem: object, choices: Any) -> None:
    broken = event({**choices, "error": problem}) + DONE
    with Upstream(raw(delta("Part"), broken), raw(broken)) as upstream:
        sent, error = failed(llm_at(upstream), stream=True)
        assert sent == ["Part"]
        assert error.message.endswith("an error, in the middle of the answer: worker limit reached")
        sent, error = failed(llm_at(upstream), stream=True)
        assert sent == []
        assert error.message.endswith("the server reports an error: worker limit reached")


@hypothesis_settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 400), max_size=8))
def test_a_stream_cut_anywhere_into_packets_is_the_same(cuts: list[int]) -> None:
    body = b"".join(step for step in stream_of(["你好", "😀\u2028", "\r\n"])[1:] if isinstance(step, bytes))
    borders = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    steps: list[Step] = []
    for start, end in pairwise(borders):
        steps += [body[start:end], 0.001]
    with Upstream(raw(*steps)) as upstream:
        pieces, reason = whole(llm_at(upstream), stream=True)
    assert ("".join(pieces), reason) == ("你好😀\u2028\r\n", "stop")


def test_pieces_come_as_soon_as_they_are_there_and_none_while_waiting() -> None:
    with Upstream(raw(delta("a"), 1.2, delta("b", "stop"), DONE)) as upstream:
        assert list(llm_at(upstream).reply(PROMPT, stream=True)) == ["a", None, None, "b", Finish()]


# Refusals by status --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "body", "kind", "says"),
    [
        (401, {"error": {"message": "bad key"}}, LlmAuthFailed, "authentication failed (401): bad key"),
        (403, {"error": {"message": "this model cannot create embeddings"}}, LlmAuthFailed,
         "access refused (403): this model cannot create embeddings"),
        (400, {"error": {"message": "too long"}}, LlmUpstreamError, "HTTP status 400: too long"),
        (404, {"detail": "Not Found"}, LlmUpstreamError, "HTTP status 404: Not Found"),
        (422, {"detail": [{"loc": ["x"]}]}, LlmUpstreamError, 'HTTP status 422: [{"loc": ["x"]}]'),
        (500, {"message": "a\n\tb\u202e\x1b[31m c"}, LlmUpstreamError, "HTTP status 500: a b [31m c"),
        (502, "<html>\r\n<b>Bad Gateway</b></html>", LlmUpstreamError,
         "HTTP status 502: <html> <b>Bad Gateway</b></html>"),
        (504, "", LlmUpstreamError, "HTTP status 504"),
        (301, "", LlmUpstreamError, "redirected (301): http://other.test/v1"),
        (307, "", LlmUpstreamError, "redirected (307): http://other.test/v1"),
        (304, "", LlmUpstreamError, "HTTP status 304"),
    ],
)  # fmt: skip
def test_a_status_names_host_model_number_and_the_servers_words(
    code: int, body: object, kind: type[PyragError], says: str, stream: bool
) -> None:
    with Upstream(status(code, body, {"Location": "http://other.test/v1"})) as upstream:
        _, error = failed(llm_at(upstream), stream)
    assert type(error) is kind
    assert error.message == f"127.0.0.1:{upstream.port}, model model-x: {says}"
    assert error.details["status"] == code
    assert "API_KEY" not in error.hint or code == 401
    assert len(upstream.requests) == 1


def test_a_long_message_of_the_server_is_shortened() -> None:
    with Upstream(status(500, "x" * 1_000_000)) as upstream:
        _, error = failed(llm_at(upstream))
    assert error.message.endswith("HTTP status 500: " + "x" * 299 + "…")


def test_an_error_body_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrag.remote_llm._AFTER_STATUS", 0.3)
    slow = raw(b"no", FOR_EVER, code=401)
    with Upstream(slow) as upstream:
        start = time.monotonic()
        _, error = failed(llm_at(upstream))
        assert time.monotonic() - start < 4
        assert error.message.endswith("authentication failed (401): no")
        assert upstream.disconnected.wait(1)


# One retry -----------------------------------------------------------------------------------------


OLD = "Wed, 21 Oct 2015 07:28:00 -0000"
YESTERDAY = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)


def test_a_busy_server_is_asked_once_more_after_the_time_it_names_or_a_second() -> None:
    def ask(code: int, stream: bool, value: str | None) -> float:
        headers = {} if value is None else {"Retry-After": value}
        with Upstream(status(code, "", headers), stream_of(["a"]) if stream else chat("a")) as upstream:
            start = time.monotonic()
            assert whole(llm_at(upstream), stream) == (["a"], "stop")
            passed = time.monotonic() - start
        assert upstream.requests[0] == upstream.requests[1]
        assert upstream.connections == 2
        return passed

    values = ["1", "0", YESTERDAY, "soon", "-5", "", None, "Wed, 99 Foo", OLD]
    cases = [(code, stream, value) for code in (429, 503) for stream in (False, True) for value in values]
    with ThreadPoolExecutor(len(cases)) as pool:
        passed = list(pool.map(lambda case: ask(*case), cases))
    for (_, _, value), seconds in zip(cases, passed, strict=True):
        assert (seconds >= 1) is (value not in ("0", YESTERDAY, OLD)), value
        assert seconds < 3


@pytest.mark.parametrize(
    "value", ["5", "9" * 400, format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)]
)
def test_a_pause_beyond_the_total_time_is_not_begun(value: str) -> None:
    with Upstream(status(429, {"error": "slow down"}, {"Retry-After": value})) as upstream:
        start = time.monotonic()
        _, error = failed(llm_at(upstream, timeout_seconds=3))
        assert time.monotonic() - start < 2
    assert type(error) is LlmRateLimited
    assert error.message.endswith("too many requests (429): slow down")
    assert error.details["retry_after_seconds"] >= 5
    json.dumps(error.envelope(), allow_nan=False)


@pytest.mark.parametrize(("code", "kind"), [(429, LlmRateLimited), (503, LlmUpstreamError)])
def test_a_server_that_stays_busy_is_not_asked_a_third_time(code: int, kind: type[PyragError]) -> None:
    with Upstream(status(code, "", {"Retry-After": "0"})) as upstream:
        _, error = failed(llm_at(upstream))
    assert type(error) is kind
    assert len(upstream.requests) == 2


def test_the_retry_counts_towards_the_total_time() -> None:
    with Upstream(status(429, "", {"Retry-After": "1"}), [FOR_EVER]) as upstream:
        start = time.monotonic()
        _, error = failed(llm_at(upstream, timeout_seconds=1.5))
        assert 1.5 <= time.monotonic() - start < 3
    assert type(error) is LlmTimeout


# Time ----------------------------------------------------------------------------------------------


def comments(_: Received) -> Iterator[Step]:
    yield from raw()
    while True:
        yield from (b": ping\n\n", 0.1)


def tokens(_: Received) -> Iterator[Step]:
    yield from raw()
    while True:
        yield from (delta("a"), 0.1)


def slow_json(_: Received) -> Iterator[Step]:
    yield from raw(content_type="application/json")
    while True:
        yield from (b" ", 0.1)


# llm-total-deadline
@pytest.mark.parametrize(
    ("script", "stream", "some"),
    [
        (comments, True, False),
        (tokens, True, True),
        (slow_json, False, False),
        ([FOR_EVER], False, False),
        ([b"HTTP/1.1 200 OK\r\nContent-", FOR_EVER], True, False),
        (raw(FOR_EVER), True, False),
    ],
    ids=["comments", "tokens", "JSON", "no answer", "half a header", "no event"],
)
def test_the_total_time_ends_every_reply(script: Any, stream: bool, some: bool) -> None:
    with Upstream(script) as upstream:
        start = time.monotonic()
        pieces, error = failed(llm_at(upstream, timeout_seconds=0.5), stream)
        assert 0.5 <= time.monotonic() - start < 2
        assert upstream.disconnected.wait(1)
    assert bool(pieces) is some
    assert type(error) is LlmTimeout
    assert "no whole answer within the total time of 0.5 s (LLM_TIMEOUT_SECONDS)" in error.message
    assert eventually(idle)


def test_a_stream_that_stands_still_ends_by_the_read_timeout() -> None:
    with Upstream(raw(FOR_EVER), raw(delta("a"), FOR_EVER)) as upstream:
        for pieces in ([], ["a"]):
            start = time.monotonic()
            sent, error = failed(llm_at(upstream, read_seconds=0.4), stream=True)
            assert time.monotonic() - start < 2
            assert sent == pieces
            assert type(error) is LlmTimeout
            assert "not one byte for 0.4 s" in error.message
            assert upstream.disconnected.wait(1)
            upstream.disconnected.clear()


def test_a_healthy_answer_longer_than_the_read_timeout_is_not_killed() -> None:
    with Upstream(stream_of("abcdefgh", delay=0.1), [0.7, *chat("a")], [0.7, *stream_of("a")]) as upstream:
        llm = llm_at(upstream, read_seconds=0.5)
        assert whole(llm, stream=True) == (list("abcdefgh"), "stop")
        assert whole(llm) == (["a"], "stop")
        assert whole(llm, stream=True) == (["a"], "stop")


@pytest.mark.parametrize("after", [[FOR_EVER], [b": ping\n\n", 0.2] * 50])
def test_a_finished_answer_does_not_wait_for_a_missing_done(
    after: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrag.remote_llm._AFTER_FINISH", 0.5)
    with Upstream(raw(delta("a", "stop"), *after)) as upstream:
        start = time.monotonic()
        assert whole(llm_at(upstream), stream=True) == (["a"], "stop")
        assert time.monotonic() - start < 3
        assert whole(llm_at(upstream, timeout_seconds=0.3), stream=True) == (["a"], "stop")


# The caller leaves ---------------------------------------------------------------------------------


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port whose queue is full, so that no connection to it comes about."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
        for each in waiting:
            each.close()


@pytest.mark.parametrize(
    ("script", "stream", "steps"),
    [
        ([FOR_EVER], False, 1),
        ([FOR_EVER], True, 1),
        (raw(FOR_EVER), True, 1),
        (comments, True, 1),
        (tokens, True, 3),
        (raw(b"{", FOR_EVER, content_type="application/json"), False, 1),
        (raw(FOR_EVER, code=500), False, 1),
    ],
    ids=["headers", "headers of a stream", "first event", "comments", "tokens", "JSON", "error body"],
)
def test_a_caller_that_leaves_ends_the_call(
    script: Any, stream: bool, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrag.remote_llm._TICK", 0.1)
    with Upstream(script) as upstream:
        reply: Any = llm_at(upstream).reply(PROMPT, stream=stream)
        for _ in range(steps):
            next(reply)
        start = time.monotonic()
        reply.close()
        assert upstream.disconnected.wait(2)
        assert upstream.disconnected_at - start < 1
    assert eventually(idle)


def test_a_reply_that_is_forgotten_ends_the_call() -> None:
    with Upstream(tokens) as upstream:
        reply: Any = llm_at(upstream).reply(PROMPT, stream=True)
        next(reply)
        del reply
        gc.collect()
        assert upstream.disconnected.wait(2)
    assert eventually(idle)


def test_a_caller_that_leaves_during_the_pause_before_the_retry_ends_it() -> None:
    with Upstream(status(429, "", {"Retry-After": "3"}), chat("a")) as upstream:
        reply: Any = llm_at(upstream).reply(PROMPT, stream=False)
        assert next(reply) is None
        reply.close()
        assert eventually(idle)
    assert len(upstream.requests) == 1


def test_a_server_that_takes_no_connection_ends_in_a_timeout_or_with_the_caller() -> None:
    with deaf_port() as port:
        _, error = failed(llm_at(f"http://127.0.0.1:{port}", timeout_seconds=1))
        assert type(error) is LlmTimeout
        reply: Any = llm_at(f"http://127.0.0.1:{port}").reply(PROMPT, stream=True)
        assert next(reply) is None
        reply.close()
        assert eventually(idle, 1)


def test_a_name_lookup_that_hangs_holds_neither_the_caller_nor_other_lookups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_up, answered = socket.getaddrinfo, threading.Event()

    def slow(host: Any, *rest: Any, **options: Any) -> Any:
        if host in ("hangs.test", b"hangs.test"):
            answered.wait(10)
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    llm = llm_at("http://hangs.test/v1", timeout_seconds=1)
    replies: list[Any] = [llm.reply(PROMPT, stream=False) for _ in range(40)]
    threads = [threading.Thread(target=next, args=(reply,)) for reply in replies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Upstream(chat("a")) as upstream:
        assert whole(llm_at(f"http://localhost:{upstream.port}/v1")) == (["a"], "stop")
    for reply in replies:
        reply.close()
    assert eventually(idle, 1)
    _, error = failed(llm)
    assert type(error) is LlmTimeout
    answered.set()
    _, error = failed(llm)
    assert "hangs.test, model model-x: cannot be reached: " in error.message
    assert "Name or service not known" in error.message
    assert eventually(lambda: all(each.name != "pyrag-lookup" for each in threading.enumerate()))


def test_a_reply_that_is_never_begun_asks_nothing() -> None:
    with Upstream(chat("a")) as upstream:
        llm_at(upstream).reply(PROMPT, stream=False)
        time.sleep(0.1)
    assert upstream.connections == 0


def test_many_replies_share_one_thread() -> None:
    with Upstream(stream_of("abcde", delay=0.1)) as upstream:
        llm = llm_at(upstream)
        results: list[Any] = []
        callers = [
            threading.Thread(target=lambda: results.append(whole(llm, stream=True))) for _ in range(50)
        ]
        start = time.monotonic()
        for caller in callers:
            caller.start()
        ours = [each for each in threading.enumerate() if each.name.startswith("pyrag-")]
        for caller in callers:
            caller.join()
        assert time.monotonic() - start < 5
    assert results == [(list("abcde"), "stop")] * 50
    assert [each.name for each in ours] == ["pyrag-outbound"]
    assert eventually(idle)


def test_a_model_made_or_used_before_a_fork_works_on_both_sides_of_it() -> None:
    program = """
import os, sys
from pydantic import SecretStr
from pyrag.models import Prompt
from pyrag.remote_llm import RemoteLlm

def model():
    return RemoteLlm(base_url=sys.argv[1], model="m", key=SecretStr("k" * 9), timeout_seconds=5, max_tokens=9)

def text(llm):
    return "".join(each for each in llm.reply(Prompt("q", ()), stream=True) if isinstance(each, str))

used, fresh = model(), model()
open_reply = used.reply(Prompt("q", ()), stream=True)
assert next(open_reply) == "a"
child = os.fork()
assert [text(used), text(fresh)] == ["ab", "ab"]
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert [each for each in open_reply if isinstance(each, str)] == ["b"]
assert text(used) == "ab"
print("done")
"""
    with Upstream(stream_of("ab", delay=0.1)) as upstream:
        run = subprocess.run(
            [sys.executable, "-W", "always", "-c", program, upstream.base_url],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert (run.stdout, run.stderr) == ("done\n", "")


def test_a_process_ends_at_once_although_a_reply_is_open() -> None:
    program = """
import sys
from pydantic import SecretStr
from pyrag.models import Prompt
from pyrag.remote_llm import RemoteLlm
llm = RemoteLlm(base_url=sys.argv[1], model="m", key=SecretStr("k" * 9), timeout_seconds=60, max_tokens=9)
reply = llm.reply(Prompt("q", ()), stream=True)
print(next(reply))
"""
    with Upstream([FOR_EVER]) as upstream:
        start = time.monotonic()
        run = subprocess.run(
            [sys.executable, "-c", program, upstream.base_url],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert upstream.disconnected.wait(1)
    assert (run.stdout, run.stderr) == ("None\n", "")
    assert time.monotonic() - start < 10


# Network and proxies -------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_is_not_there_is_named() -> None:
    port = free_port()
    _, error = failed(llm_at(f"http://127.0.0.1:{port}/v1"))
    assert type(error) is LlmUpstreamError
    assert error.message.startswith(f"127.0.0.1:{port}, model model-x: cannot be reached: ")
    assert "LLM_BASE_URL" in error.hint


@pytest.mark.parametrize("url", ["http://[x/v1", "http://a..b/v1", "http://h:99999/v1", "http://ü\u3000/v1"])
def test_a_base_url_that_is_none_is_an_error_of_the_call(url: str) -> None:
    _, error = failed(llm_at(url))
    assert type(error) is LlmUpstreamError


# env-proxy-and-loopback
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "127.0.0.2", "0.0.0.0", "[::1]"])
@pytest.mark.parametrize("no_proxy", ["localhost,192.168.0.0/16", ""])
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5h://127.0.0.1:9", "nonsense://"])
def test_this_machine_is_reached_directly_whatever_the_proxy_variables_say(
    host: str, no_proxy: str, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    with Upstream(
        chat("a"), host={"[::1]": "::1", "127.0.0.2": "0.0.0.0"}.get(host, "127.0.0.1")
    ) as upstream:
        assert whole(llm_at(f"http://{host}:{upstream.port}/v1")) == (["a"], "stop")


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("scheme", ["http://", "", "http://user:s3cret-word@"])
@pytest.mark.parametrize("no_proxy", ["", "192.168.0.0/16,localhost,other.test"])
def test_other_hosts_are_reached_by_the_proxy_of_the_environment(
    variable: str, scheme: str, no_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", no_proxy)
    with Upstream(chat("a"), status(502, "proxy says s3cret-word")) as proxy:
        monkeypatch.setenv(variable, f"{scheme}127.0.0.1:{proxy.port}")
        llm = llm_at("http://model.test/v1")
        assert whole(llm) == (["a"], "stop")
        _, error = failed(llm)
    assert proxy.requests[0].path == "http://model.test/v1/chat/completions"
    assert error.message.startswith(
        f"model.test via proxy 127.0.0.1:{proxy.port}, model model-x: HTTP status 502"
    )
    assert ("s3cret-word" in error.message) is ("s3cret-word" not in scheme)


def test_a_proxy_that_is_not_there_or_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("HTTP_PROXY", f"http://user:s3cret-word@127.0.0.1:{port}")
    _, error = failed(llm_at("http://model.test/v1"))
    assert f"model.test via proxy 127.0.0.1:{port}, model model-x: cannot be reached" in error.message
    with Upstream(status(407, "")) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        _, error = failed(llm_at("https://model.test/v1"))
    assert f"via proxy 127.0.0.1:{proxy.port}, model model-x: the proxy refuses: 407" in error.message
    assert "s3cret-word" not in f"{error!r} {error.envelope()}"


@pytest.mark.parametrize("no_proxy", ["model.test", ".test", "*", "a.test, model.test", "model.test:PORT"])
def test_no_proxy_names_hosts_that_are_reached_directly(
    no_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, *rest, **more: look_up("127.0.0.1", *rest, **more))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with Upstream(chat("a")) as upstream:
        monkeypatch.setenv("NO_PROXY", no_proxy.replace("PORT", str(upstream.port)))
        assert whole(llm_at(f"http://model.test:{upstream.port}/v1")) == (["a"], "stop")


@pytest.mark.parametrize("proxy", ["nonsense://u:s3cret-word@h", "http://u:s3cret-word@h:port"])
def test_a_proxy_value_that_cannot_be_used_is_named_by_its_variables_alone(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    _, error = failed(llm_at("http://model.test/v1"))
    assert type(error) is LlmUpstreamError
    assert "cannot be used: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY" in error.message
    assert "s3cret-word" not in f"{error!r} {error.envelope()}"


def test_certificates_that_cannot_be_read_are_named_by_their_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    _, error = failed(llm_at("https://127.0.0.1:9/v1"))
    assert "cannot be used: SSL_CERT_FILE, SSL_CERT_DIR" in error.message


# The key -------------------------------------------------------------------------------------------

ECHO = (
    f"Incorrect API key provided: {KEY}. Header was: Authorization: Bearer {KEY}, or its end {KEY[10:]},"
    f" or {KEY[:4]}\u200b{KEY[4:]}, or bearer 'other-token-1'"
)


def shown_parts(text: str) -> list[str]:
    return [KEY[at : at + 8] for at in range(len(KEY) - 7) if KEY[at : at + 8] in text]


# llm-key-never-leaks
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "reply",
    [
        status(401, {"error": {"message": ECHO, "type": "invalid_request_error", "code": "invalid_api_key"}}),
        status(401, ECHO),
        status(403, {"error": ECHO}),
        status(429, {"detail": ECHO}, {"Retry-After": "0", "X-Echo": f"Bearer {KEY}"}),
        status(302, "", {"Location": f"http://other.test/?key={KEY}"}),
        status(500, f"{'x' * 290}{KEY}"),
        status(200, {"error": ECHO}),
        status(200, ECHO),
        chat(None, refusal=ECHO),
        raw(delta("a"), event({"error": {"message": ECHO}})),
        raw(delta("a"), event(ECHO)),
        [f"HTTP/1.1 200 OK\r\nX-Echo {KEY}\r\n\r\n".encode()],
        [f"{KEY}\r\n\r\n".encode()],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"],
    ],
)
def test_the_key_is_in_no_message_log_or_traceback(
    reply: list[Step], stream: bool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with Upstream(reply) as upstream:
        llm = llm_at(upstream)
        _, error = failed(llm, stream)
    chain = [error.__cause__, error.__context__]
    lines = traceback.TracebackException.from_exception(error, capture_locals=True).format()
    shown = "\n".join(
        [
            *lines,
            *(repr(each) for each in (error, error.args, vars(error), error.envelope(), llm, vars(llm))),
            *(f"{record.getMessage()} {record.args}" for record in caplog.records),
            *capfd.readouterr(),
        ]
    )
    assert chain == [None, None]
    assert shown_parts(shown) == []
    assert "sk-test" not in shown
    assert "other-token-1" not in shown
    assert "model-x" in error.message
    assert f"127.0.0.1:{upstream.port}" in error.message


def test_a_key_in_a_401_leaves_the_rest_of_the_message() -> None:
    with Upstream(
        status(401, {"error": {"message": f"Incorrect API key provided: {KEY}. Ask us."}})
    ) as upstream:
        _, error = failed(llm_at(upstream))
    assert error.message.endswith("authentication failed (401): Incorrect API key provided: ***. Ask us.")


@pytest.mark.parametrize(
    ("text", "secrets", "shown"),
    [
        ("a 12345678 b", ["12345678"], "a *** b"),
        ("a 1234567 b", ["12345678"], "a 1234567 b"),
        ("a 23456789 b", ["1234567890"], "a *** b"),
        ("x1234567890y0987654321z", ["1234567890"], "x***y0987654321z"),
        ("1234567812345678", ["12345678"], "***"),
        ("12345678 12345678", ["12345678"], "*** ***"),
        ("12345678", ["12345678"], "***"),
        ("", ["12345678"], ""),
        ("abc key abckey", ["key"], "abc *** abckey"),
        ("abc", [""], "abc"),
        ("one 11111111 two 22222222", ["11111111", "22222222"], "one *** two ***"),
        ("Authorization: Bearer abc.def, more", [], "Authorization: Bearer *** more"),
        ("\"bearer  'abc'\"", [], "\"bearer  '***'\""),
        ("forbearer x", [], "forbearer x"),
    ],
)
def test_secrets_are_taken_out(text: str, secrets: list[str], shown: str) -> None:
    assert redact(text, secrets) == shown


@hypothesis_settings(max_examples=300, deadline=None)
@given(
    secret=st.text("abc", min_size=8, max_size=14),
    parts=st.lists(st.text("abc ", max_size=12), max_size=5),
    cut=st.integers(0, 14),
)
def test_no_part_of_a_secret_of_eight_characters_remains(secret: str, parts: list[str], cut: int) -> None:
    text = redact(secret[cut:].join(parts), [secret])
    assert not any(secret[at : at + 8] in text for at in range(len(secret) - 7))


def test_foreign_text_is_one_short_line_and_long_text_costs_little() -> None:
    assert one_line(" a\r\n\tb\x00c\u2028d\x1b[0m\u200be\ud800 ") == "a b c d [0me"
    assert one_line("x" * 301) == "x" * 299 + "…"
    assert one_line("x" * 300) == "x" * 300
    start = time.monotonic()
    one_line("Bearer " * 3_000_000, ["Bearer " * 20])
    redact("ab" * 500_000, ["ab" * 50])
    assert time.monotonic() - start < 3
    assert not re.search(r"\s{2}", one_line("a  b"))


def test_secrets_shorter_than_eight_characters_leave_our_own_words() -> None:
    with Upstream(status(401, "no: k")) as upstream:
        _, error = failed(llm_at(upstream, key=SecretStr("k")))
    assert error.message.endswith("model model-x: authentication failed (401): no: ***")
    assert os.environ.get("LLM_API_KEY") != "k"
