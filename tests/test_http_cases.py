"""The shared cases of the server: hostile bodies, failing models, clients that leave, databases that restart.

The test of a case is called like its id; `PLACES` says where the tests of the other cases of these kinds are.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
import yaml
from conftest import REPOSITORY, SAMPLE_VAULT, Server, command, embedded_home
from fakes import FOR_EVER, Received, Script, Step, Upstream, chat, delta, event, raw, status, stream_of
from psycopg.rows import tuple_row
from serving import Serving, check_order, indexed, parse_events, read_as_seed_client, read_reply, serving

from pyrag.db import Database
from pyrag.embedded import EmbeddedServer
from pyrag.embeddings import FakeLexicalEmbedder
from pyrag.ingest import ingest_vault

KINDS = ("llm_client", "prompt_injection", "http_api", "db", "env_config", "retrieval")
PLACES = {  # the file in which the test of a case is, with its name where that is not the case's id
    "rt-zero-vector-nan": "test_http_cases.py",
    "rt-like-wildcards-in-path-filter": "test_http_cases.py",
    "rt-filter-before-limit": "test_http_cases.py",
    "api-topk-and-number-types": "test_http_cases.py",
    "api-body-shapes-and-types": "test_http_cases.py",
    "api-chunked-and-oversized-body": "test_http_cases.py",
    "api-sse-output-framing": "test_http_cases.py",
    "db-server-restart-stale-pool": "test_http_cases.py",
    "pi-delimiter-breakout": "test_prompts.py",
    "db-extension-as-plain-user": "test_install.py:test_a_plain_owner_is_told_who_can_install_the_extension",
    "env-hash-quotes-and-dollar": "test_config.py:"
    "test_hashes_quotes_and_dollars_are_read_alike_with_any_line_end",
    "env-proxy-and-loopback": "test_http_cases.py",
}
QUESTION = "客户 P1 工单应该如何升级？"
KEY = "sk-test-0d6f4b8a2c9e"
HEARTBEAT = 0.3


class Model:
    """A model's server whose next replies a test chooses."""

    def __init__(self) -> None:
        self.script: Script = chat("A [1].")
        self.upstream = Upstream(self._reply)

    def _reply(self, received: Received) -> Iterable[Step]:
        return self.script(received) if callable(self.script) else self.script

    def reset(self) -> None:
        self.script = chat("A [1].")
        self.upstream.requests.clear()
        self.upstream.disconnected.clear()

    def environment(self, **changes: str) -> dict[str, str]:
        return {
            "LLM_PROVIDER": "openai-compatible",
            "LLM_BASE_URL": self.upstream.base_url,
            "LLM_API_KEY": KEY,
            "LLM_MODEL": "m",
            **changes,
        }


@pytest.fixture(scope="module")
def database(server: Server, template: str) -> Iterator[str]:
    """A database with the sample vault; the name of its sessions tells whose they are."""
    with indexed(server, template, SAMPLE_VAULT) as url:
        yield url


@pytest.fixture(scope="module")
def shared_model() -> Iterator[Model]:
    model = Model()
    with model.upstream:
        yield model


@pytest.fixture(scope="module")
def api(database: str, shared_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The server with a model of ours: 8 threads, so 7 answers at once; frequent heartbeats."""
    patches = {"pyrag.http.streaming.HEARTBEAT_SECONDS": HEARTBEAT, "pyrag.http.streaming.SEND_SECONDS": 1.0}
    folder = tmp_path_factory.mktemp("cases")
    environment = shared_model.environment(LLM_TIMEOUT_SECONDS="8")
    with serving(database, folder, threads=8, patches=patches, environment=environment) as running:
        yield running
        assert KEY not in running.log()
        assert "Traceback" not in running.log()


@pytest.fixture
def model(shared_model: Model) -> Iterator[Model]:
    shared_model.reset()
    yield shared_model
    shared_model.reset()


def post_raw(api: Serving, path: str, body: bytes, content_type: str = "application/json") -> httpx.Response:
    with api.client() as client:
        return client.post(path, content=body, headers={"Content-Type": content_type})


def field_errors(reply: httpx.Response) -> str:
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_request"), reply.text
    return str(reply.json()["error"]["message"])


def eventually(condition: Callable[[], bool], seconds: float = 3) -> bool:
    until = time.monotonic() + seconds
    while not (done := condition()) and time.monotonic() < until:
        time.sleep(0.02)
    return done


def running_queries(url: str) -> list[str]:
    """What sessions of pyrag do in this database at this moment."""
    with psycopg.connect(url, autocommit=True, row_factory=tuple_row) as connection:
        rows = connection.execute(
            "select a.state || ': ' || a.query from pg_stat_activity as a"
            " where a.datname = current_database() and a.application_name = 'pyrag' and a.state <> 'idle'"
        ).fetchall()
    return [row[0] for row in rows]


# --- the list of cases


def test_every_case_of_these_kinds_has_a_test(shared: Path) -> None:
    cases = yaml.safe_load((shared / "cases" / "cases.yaml").read_text(encoding="utf-8"))
    wanted = {each["id"] for each in cases if each["kind"] in KINDS}
    texts = {path.name: path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").glob("test_*.py")}
    for case in sorted(wanted):
        name = f"test_{case.replace('-', '_')}"
        if case in PLACES:
            file, _, other = PLACES[case].partition(":")
            assert f"def {other or name}(" in texts[file], case
        else:  # those of the model's client stand in its own tests
            assert case.startswith("llm-"), case
            assert any(f"def {name}" in text or case in text for text in texts.values()), case


# --- bodies


REFUSED = ("true", "false", '"5"', "1.9", "0", "-1", "1000000", "9" * 20, "NaN", "1e999", "[5]", "{}", "21")


@pytest.mark.parametrize("path", ["/ask", "/ask/stream", "/search"])
def test_api_topk_and_number_types(api: Serving, model: Model, path: str) -> None:
    name = "query" if path == "/search" else "question"
    for value in REFUSED:
        reply = post_raw(api, path, f'{{"{name}":"valve?","top_k":{value}}}'.encode())
        assert "top_k" in field_errors(reply) or value == "NaN"
    assert model.upstream.requests == []
    for value in ("null", "1", "5", "20", "5.0"):
        assert post_raw(api, path, f'{{"{name}":"valve?","top_k":{value}}}'.encode()).status_code == 200
    assert post_raw(api, path, f'{{"{name}":"valve?"}}'.encode()).status_code == 200
    assert api.get("/live").status_code == 200


def test_top_k_is_taken_as_it_is(api: Serving) -> None:
    for top_k in (1, 5, 20):
        assert len(api.post("/search", {"query": QUESTION, "top_k": top_k}).json()["results"]) == top_k
    assert len(api.post("/search", {"query": QUESTION}).json()["results"]) == 5


BODIES = [
    b'{"question":', b"", b'["valve?"]', b'"valve?"', b"5", b"null", b"{}", b'{"question":null}',
    b'{"question":7}', b'{"question":""}', b'{"question":"   "}', b'{"question":"\\u3000\\n"}',
    b'{"question":"' + b"x" * 200_001 + b'"}',
    base64.b64decode("77u/eyJxdWVzdGlvbiI6InZhbHZlIn0="),
    base64.b64decode("eyJxdWVzdGlvbiI6Irenw8UifQ=="),
    base64.b64decode("eyJxdWVzdGlvbiI6Iv/+IHZhbHZlIn0="),
]  # fmt: skip


@pytest.mark.parametrize("path", ["/ask", "/ask/stream"])
def test_api_body_shapes_and_types(api: Serving, model: Model, path: str) -> None:
    shapes = set()
    for body in BODIES:
        reply = post_raw(api, path, body)
        field_errors(reply)
        shapes.add(tuple(reply.json()["error"]))
        assert "valve" not in reply.text
        assert "xxxx" not in reply.text
    for kind, body in (
        ("text/plain", b'{"question":"valve?"}'),
        ("application/x-www-form-urlencoded", b"question=valve%3F"),
    ):
        reply = post_raw(api, path, body, kind)
        assert (reply.status_code, reply.json()["error"]["code"]) == (415, "unsupported_media_type")
        shapes.add(tuple(reply.json()["error"]))
    with api.client() as client:
        assert client.options(path).headers["allow"] == "POST"
        got = client.get(path)
        assert (got.status_code, set(got.headers["allow"].split(", "))) == (405, {"POST", "OPTIONS"})
        missing = client.get("/nowhere")
    shapes |= {tuple(got.json()["error"]), tuple(missing.json()["error"])}
    assert shapes == {("code", "message", "details")}
    assert model.upstream.requests == []
    reply = post_raw(api, path, b'{"question":"valve?"}', "application/json; charset=utf-8")
    assert reply.status_code == 200


def test_a_form_of_a_web_page_asks_nothing(api: Serving, model: Model) -> None:
    """A page elsewhere can send these three kinds without asking first (CORS): none may reach the model."""
    body = f'{{"question": "{QUESTION}"}}'.encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert post_raw(api, "/ask", body, kind).status_code == 415
    assert model.upstream.requests == []


def _zeros(total: int) -> Iterator[bytes]:
    yield b'{"question": "'
    for _ in range(total // 65536):
        yield b"0" * 65536


def test_api_chunked_and_oversized_body(api: Serving) -> None:
    small = api.raw(
        b"POST /ask HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b'Transfer-Encoding: chunked\r\n\r\n15\r\n{"question":"valve?"}\r\n0\r\n\r\n'
    )
    assert (small.status, small.json["mode"]) == (200, "no_answer")
    before = api.memory()
    headers = {"Content-Type": "application/json"}
    with api.client() as client:
        for _ in range(3):
            for extra in ({}, {"Content-Length": str(800 * 65536 + 14)}):
                reply = client.post("/ask", content=_zeros(800 * 65536), headers={**headers, **extra})
                assert (reply.status_code, reply.json()["error"]["code"]) == (413, "payload_too_large")
                assert reply.json()["error"]["details"]["limit"] == 1 << 20
        assert client.post("/search", json={"query": "valve?"}).status_code == 200
    assert api.memory() - before < 12_000_000


def test_the_connection_of_a_body_that_is_too_large_is_closed(api: Serving) -> None:
    head = b"POST /ask HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for start in (head + b"Content-Length: 50000000\r\n\r\n", head + b"Transfer-Encoding: chunked\r\n\r\n"):
        with api.connect() as connection:
            connection.sendall(start)
            with ThreadPoolExecutor(1) as pool:
                sending = pool.submit(_send_much, connection, b"chunked" in start)
                reply = read_reply(connection, end_within=5)
                sending.result(10)
            assert (reply.status, reply.closed) == (413, True)


def _send_much(connection: socket.socket, chunked: bool) -> None:
    piece = b"10000\r\n" + b"0" * 65536 + b"\r\n" if chunked else b"0" * 65536
    try:
        for _ in range(700):
            connection.sendall(piece)
    except OSError:
        pass  # closed by the server, as it should be


def test_a_declared_length_that_never_comes_does_not_keep_a_refusal_waiting(api: Serving) -> None:
    with api.connect() as connection:
        connection.sendall(
            b"POST /ask HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 50000000\r\n\r\n"
        )
        started = time.monotonic()
        assert read_reply(connection).status == 413
        assert time.monotonic() - started < 3


# --- the stream


def stream(api: Serving, question: str = QUESTION, **headers: str) -> httpx.Response:
    return api.post("/ask/stream", {"question": question}, **headers)


PIECES = ("- one\n- t", "wo\n\n```", "\ncode\n", "```")


def test_api_sse_output_framing(api: Serving, model: Model) -> None:
    model.script = stream_of(PIECES, delay=0.3)
    arrived: list[float] = []
    body = b""
    started = time.monotonic()
    with api.client() as client, client.stream("POST", "/ask/stream", json={"question": QUESTION}) as reply:
        headers = reply.headers
        for piece in reply.iter_raw():
            arrived.append(time.monotonic() - started)
            body += piece
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    assert "content-length" not in headers
    assert "content-encoding" not in headers
    events = parse_events(body)
    _, last = check_order(events)
    assert last["answer"] == "".join(PIECES)
    assert read_as_seed_client(body)[0] == "".join(PIECES)
    assert (events[-1].name, last["complete"]) == ("final", True)
    # the retrieval came at once, and every piece when the model had written it
    assert arrived[-1] > 1.1
    assert arrived[-1] - arrived[0] > 0.9
    assert sum(after - before > 0.2 for before, after in pairwise(arrived)) >= 2


@pytest.mark.parametrize(
    "pieces",
    [
        ["a\r\nb\rc\n\n\nd", "\r", "\n", "\r\n"],
        ["line\u2028separator\u2029paragraph\x85next", "\x0b\x0c\x1c\x1d\x1e"],
        ["data: {}\n\nevent: final\ndata: {\"done\": true}\n\n", ": comment\n"],
        ["客户", "👩\u200d🔧", "\ufeff", "e\u0301"],
        ["\"quotes\" \\ back\\n", "\t", "\x00\x01\x7f", "</script>"],
        [" ", "\n", " ", "x", " ", "\n"],
        ["[", "1", "]", " [", "9", "]"],
    ],
    ids=range(7),
)  # fmt: skip
def test_tokens_come_through_as_the_model_wrote_them(api: Serving, model: Model, pieces: list[str]) -> None:
    model.script = stream_of([*pieces, " End [1]."])
    body = stream(api).content
    _, last = check_order(parse_events(body))
    assert last["answer"] == "".join(pieces).replace(" [9]", "").replace("\0", "") + " End [1]."
    assert read_as_seed_client(body)[0] == last["answer"]
    assert len(body.decode().splitlines()) == body.count(b"\n")  # no other line ends, for readers of lines
    assert last["citations"][0]["cited"]


def test_citations_of_sources_that_do_not_exist_are_never_sent(api: Serving, model: Model) -> None:
    model.script = stream_of(["The pump [", "7", "], the valve [1,", " 8] and `a", "[7]`."])
    body = stream(api).content
    _, last = check_order(parse_events(body))
    assert last["answer"] == "The pump, the valve [1] and `a[7]`."
    assert last["removed_citations"] == 2
    assert [each["cited"] for each in last["citations"]] == [True, False, False, False, False]


@pytest.mark.parametrize("path", ["/ask", "/ask/stream"])
def test_an_answer_without_sources_says_so(api: Serving, model: Model, path: str) -> None:
    for text, why in (
        ("It is Monday.", "the answer cites no source"),
        ("资料中没有相关信息。", "the model says that the sources do not hold the answer"),
    ):
        model.script = chat(text) if path == "/ask" else stream_of([text])
        reply = api.post(path, {"question": QUESTION})
        body = reply.json() if path == "/ask" else check_order(parse_events(reply.content))[1]
        assert (body["answer"], body["grounded"], body["reason"]) == (text, False, why)
        assert body["mode"] == "rag"


@pytest.mark.parametrize("path", ["/ask", "/ask/stream"])
def test_an_answer_cut_by_its_length_says_so(api: Serving, model: Model, path: str) -> None:
    model.script = chat("Cut [1]", "length") if path == "/ask" else stream_of(["Cut [1]"], "length")
    reply = api.post(path, {"question": QUESTION})
    body = reply.json() if path == "/ask" else check_order(parse_events(reply.content))[1]
    assert (body["complete"], body["grounded"]) == (False, True)
    assert "LLM_MAX_TOKENS" in body["reason"]


@pytest.mark.parametrize("reason", ["abort", "model_length", "cancelled", "tool_calls"])
@pytest.mark.parametrize("path", ["/ask", "/ask/stream"])
def test_only_a_known_whole_finish_counts_as_complete(
    api: Serving, model: Model, path: str, reason: str
) -> None:
    model.script = chat("Half [1]", reason) if path == "/ask" else stream_of(["Half [1]"], reason)
    reply = api.post(path, {"question": QUESTION})
    body = reply.json() if path == "/ask" else check_order(parse_events(reply.content))[1]
    assert body["complete"] is False
    assert f"finish_reason {reason}" in body["reason"]


def test_an_error_without_choices_in_a_stream_is_no_end_of_an_answer(api: Serving, model: Model) -> None:
    for error in ({"code": 500, "message": "engine died"}, {"detail": "engine died"}):
        model.script = raw(delta("Half [1]"), event(error), event("[DONE]"))
        events = parse_events(stream(api).content)
        assert events[-1].name == "error"
        assert "engine died" in str(events[-1].data)


FAILURES: dict[str, tuple[list[Step], int, str]] = {
    "key refused": (status(401, {"error": {"message": f"bad key {KEY}"}}), 502, "llm_auth_failed"),
    "not allowed": (status(403, f"Bearer {KEY}"), 502, "llm_auth_failed"),
    "too many": (status(429, "slow down", {"Retry-After": "0"}), 503, "llm_rate_limited"),
    "broken": (status(500, "oops"), 502, "llm_upstream_error"),
    "not JSON": (status(200, "<html>"), 502, "llm_upstream_error"),
    "empty": (chat(""), 502, "llm_upstream_error"),
    "hangs up": ([b""], 502, "llm_upstream_error"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_model_that_fails_is_an_error_and_never_an_answer(api: Serving, model: Model, name: str) -> None:
    model.script, code, expected = FAILURES[name]
    reply = api.post("/ask", {"question": QUESTION})
    assert (reply.status_code, reply.json()["error"]["code"]) == (code, expected)
    streamed = stream(api, **{"X-Request-Id": f"fails-{expected}-{code}"})
    assert streamed.status_code == 200
    events = parse_events(streamed.content)
    _, last = check_order(events)
    assert [each.name for each in events] == ["retrieval", "error"]
    assert last["error"]["code"] == expected
    assert set(last["error"]) == {"code", "message", "details"}
    assert KEY not in reply.text + streamed.text
    assert KEY[3:] not in reply.text + streamed.text


@pytest.mark.parametrize(
    "end",
    [event({"error": {"message": f"out of memory {KEY}"}}), b"", event("{broken"), delta(None, "error")],
)
def test_a_model_that_fails_in_the_middle_ends_the_stream_with_an_error(
    api: Serving, model: Model, end: bytes
) -> None:
    model.script = raw(delta("The first"), delta(" half"), end)
    body = stream(api).content
    events = parse_events(body)
    _, last = check_order(events)
    assert "".join(each.json["token"] for each in events if each.name == "token") == "The first half"
    assert (events[-1].name, last["error"]["code"]) == ("error", "llm_upstream_error")
    assert last["error"]["details"]["mid_stream"] is True
    assert KEY.encode() not in body


def test_a_model_that_is_too_slow_is_a_timeout(
    api: Serving, model: Model, database: str, tmp_path: Path
) -> None:
    model.script = stream_of(["never"], delay=FOR_EVER)
    environment = model.environment(LLM_TIMEOUT_SECONDS="0.5")
    with serving(database, tmp_path, environment=environment) as other:
        reply = other.post("/ask", {"question": QUESTION})
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "llm_timeout")
        _, last = check_order(parse_events(stream(other).content))
    assert last["error"]["code"] == "llm_timeout"


def test_heartbeats_come_while_the_model_thinks_and_are_no_events(api: Serving, model: Model) -> None:
    model.script = stream_of(["A [1]."], delay=2.2)
    body = stream(api).content
    assert body.count(b": keep-alive\n\n") >= 2
    assert check_order(parse_events(body))[1]["answer"] == "A [1]."
    assert read_as_seed_client(body)[0] == "A [1]."


def test_what_is_refused_never_asks_the_model(api: Serving, model: Model) -> None:
    reply = api.post("/ask", {"question": "Mona Lisa painter", "fallback": True})
    assert reply.json()["mode"] == "no_answer"
    check_order(parse_events(stream(api, "Mona Lisa painter").content))
    assert model.upstream.requests == []


def test_logs_and_stream_say_how_an_answer_ended(api: Serving, model: Model) -> None:
    model.script = raw(delta("half"), event({"error": {"message": "no"}}))
    stream(api, **{"X-Request-Id": "ended-1"})
    assert eventually(lambda: any("outcome" in each for each in api.log_lines("ended-1")))
    line = next(each for each in api.log_lines("ended-1") if "outcome" in each)
    assert (line["status"], line["outcome"]) == (200, "llm_upstream_error")
    assert QUESTION not in api.log()


# --- clients that leave, and too many of them


@contextmanager
def asking(api: Serving, path: str) -> Iterator[socket.socket]:
    """A connection on which an answer is being waited for."""
    body = json.dumps({"question": QUESTION}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with api.connect() as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        yield connection


@pytest.mark.parametrize("path", ["/ask", "/ask/stream"])
def test_a_client_that_leaves_after_more_bytes_is_noticed_as_well(
    api: Serving, model: Model, path: str
) -> None:
    model.script = raw(FOR_EVER)
    with asking(api, path) as connection:
        assert eventually(lambda: len(model.upstream.requests) == 1)
        connection.sendall(b"\r\n")
        time.sleep(0.3)
    left = time.monotonic()
    assert model.upstream.disconnected.wait(3)
    assert model.upstream.disconnected_at - left < 2
    model.script = stream_of(["A [1]."])
    assert stream(api).status_code == 200


@pytest.mark.parametrize("path", ["/ask", "/ask/stream"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_leaves_ends_the_call_of_the_model_within_2_seconds(
    api: Serving, model: Model, database: str, path: str, begun: bool
) -> None:
    model.script = raw(*([delta("The")] if begun else []), FOR_EVER)
    with asking(api, path):
        assert eventually(lambda: len(model.upstream.requests) == 1)
        assert running_queries(database) == []  # no connection is held while the model thinks
        time.sleep(0.3)
    left = time.monotonic()
    assert model.upstream.disconnected.wait(3)
    assert model.upstream.disconnected_at - left < 2
    model.script = stream_of(["A [1]."])
    assert stream(api).status_code == 200
    assert running_queries(database) == []


@pytest.mark.parametrize("path", ["/ask", "/ask/stream"])
def test_slots_and_threads_of_clients_that_left_are_free_again(api: Serving, model: Model, path: str) -> None:
    """Three times as many clients as there are slots, all gone before their answer."""
    for _ in range(3):
        model.script = raw(FOR_EVER)
        model.upstream.requests.clear()
        connections = []
        for _ in range(7):
            context = asking(api, path)
            connections.append(context)
            context.__enter__()
        assert eventually(lambda: len(model.upstream.requests) == 7)
        for context in connections:
            context.__exit__(None, None, None)
        time.sleep(1.5)  # each is noticed at its next sign of life, within half a second
        model.script = chat("A [1].")
        assert eventually(lambda: api.post("/ask", {"question": QUESTION}).status_code == 200)
    model.script = stream_of(["A [1]."])
    with ThreadPoolExecutor(7) as pool:
        replies = list(pool.map(lambda _: stream(api), range(7)))
    assert [reply.status_code for reply in replies] == [200] * 7


def test_beyond_the_cap_answers_are_503_and_everything_else_goes_on(api: Serving, model: Model) -> None:
    release = threading.Event()

    def slow(received: Received) -> Iterator[Step]:
        yield raw()[0]
        while not release.is_set():
            yield 0.05
        yield from (delta("A [1]."), delta(None, "stop"), event("[DONE]"))

    model.script = slow
    with ThreadPoolExecutor(7) as pool:
        waiting = [pool.submit(stream, api) for _ in range(7)]
        assert eventually(lambda: len(model.upstream.requests) == 7)
        try:
            for path in ("/ask", "/ask/stream"):
                refused = api.post(path, {"question": QUESTION})
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
                assert int(refused.headers["retry-after"]) >= 1
            for path in ("/health", "/live", "/ready"):
                started = time.monotonic()
                assert api.get(path).status_code == 200
                assert time.monotonic() - started < 1
            assert api.post("/search", {"query": QUESTION}).status_code == 200
            assert len(model.upstream.requests) == 7
        finally:
            release.set()
        assert [each.result().status_code for each in waiting] == [200] * 7
    model.script = chat("A [1].")
    assert api.post("/ask", {"question": QUESTION}).status_code == 200


def test_a_client_that_reads_nothing_is_given_up(api: Serving, model: Model) -> None:
    """Its answer fills all buffers; after SEND_SECONDS the call of the model ends and the slot is free."""
    model.script = raw(*[delta("word " * 10_000)] * 400, FOR_EVER)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", api.port))
        body = json.dumps({"question": QUESTION}).encode()
        connection.sendall(
            b"POST /ask/stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert model.upstream.disconnected.wait(6)


# --- databases that go away


def test_db_server_restart_stale_pool(
    server: Server, database: str, api: Serving, model: Model, tmp_path: Path
) -> None:
    name = urlsplit(database).path.lstrip("/")
    model.script = chat("A [1].")
    with ThreadPoolExecutor(8) as pool:  # several connections of the pool have been used
        replies = list(pool.map(lambda _: api.post("/search", {"query": QUESTION}).status_code, range(16)))
    assert set(replies) == {200}
    with psycopg.connect(server.named("postgres"), autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(a.pid) from pg_stat_activity as a"
            " where a.datname = %s and a.pid <> pg_backend_pid()",
            [name],
        )
    started = time.monotonic()
    codes = [api.post("/search", {"query": QUESTION}).status_code for _ in range(10)]
    assert codes[1:] == [200] * 9
    assert codes[0] in (200, 503)
    assert time.monotonic() - started < 5


def test_a_database_that_restarts_is_503_meanwhile_and_200_soon_after(tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    vault.mkdir()
    (vault / "pump.md").write_text("# Pump\n\nThe feed pump is greased on Monday.\n", encoding="utf-8")
    with embedded_home() as home:
        postgres = EmbeddedServer(home, version=18)
        url = postgres.start()
        database = Database(url)
        database.install()
        ingest_vault(vault, database, FakeLexicalEmbedder())
        with serving(url, tmp_path) as api:
            question = {"query": "feed pump"}
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda _: api.post("/search", question), range(16)))
            postgres.stop()
            started = time.monotonic()
            reply = api.get("/health")
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "database_unavailable")
            assert time.monotonic() - started < 6
            with ThreadPoolExecutor(4) as pool:
                replies = list(pool.map(lambda _: api.post("/search", question), range(4)))
            assert {reply.status_code for reply in replies} == {503}
            assert {reply.json()["error"]["code"] for reply in replies} == {"database_unavailable"}
            assert api.get("/live").status_code == 200
            assert postgres.start() == url
            back = time.monotonic()
            assert eventually(lambda: api.post("/search", question).status_code == 200, 2)
            assert time.monotonic() - back < 2
            assert [api.post("/search", question).status_code for _ in range(10)] == [200] * 10
            assert api.get("/health").json()["checks"]["database"] == "ok"


# --- retrieval


FILES = {
    "a_b/one.md": "# One\n\nValve one.\n",
    "axb/two.md": "# Two\n\nValve two.\n",
    "a_bc/three.md": "# Three\n\nValve three.\n",
    "100%/four.md": "# Four\n\nValve four.\n",
    "100x/five.md": "# Five\n\nValve five.\n",
    "back\\slash/six.md": "# Six\n\nValve six.\n",
    "Tags/p1.md": "---\ntags: [ops/db, P1]\n---\n# Seven\n\nValve seven #Draft.\n",
    "Tags/p2.md": "---\ntags: [ops, p10]\n---\n# Eight\n\nValve eight.\n",
    "Tags/none.md": "# Nine\n\nValve nine.\n",
}


@pytest.fixture(scope="module")
def filtered(
    server: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Serving, str, Path]]:
    """A server on a vault of odd folder names, its database and the vault."""
    folder = tmp_path_factory.mktemp("filters")
    vault = folder / "vault"
    for path, text in FILES.items():
        (vault / path).parent.mkdir(parents=True, exist_ok=True)
        (vault / path).write_text(text, encoding="utf-8")
    with indexed(server, template, vault) as url, serving(url, folder, threads=4) as running:
        yield running, url, vault


def sources(reply: httpx.Response) -> set[str]:
    assert reply.status_code == 200, reply.text
    return {each["source"] for each in reply.json()["results"]}


PREFIXES = [
    ("a_b", {"a_b/one.md"}),
    ("a_b/", {"a_b/one.md"}),
    ("a_b/one.md", {"a_b/one.md"}),
    ("a_", set()),
    ("a_b/o", set()),
    ("100%", {"100%/four.md"}),
    ("%", set()),
    ("back\\slash", {"back\\slash/six.md"}),
    ("A_B", set()),
    ("Tags", {"Tags/p1.md", "Tags/p2.md", "Tags/none.md"}),
    ("../vault/a_b", set()),
    (".*", set()),
]


@pytest.mark.parametrize(("prefix", "expected"), PREFIXES)
def test_rt_like_wildcards_in_path_filter(
    filtered: tuple[Serving, str, Path], prefix: str, expected: set[str]
) -> None:
    api, url, _ = filtered
    body = {"query": "valve", "top_k": 20, "filter": {"path_prefix": prefix}}
    assert sources(api.post("/search", body)) == expected
    embedder = FakeLexicalEmbedder()
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "select s.source from rag.search_chunks(%s::public.vector, %s, %s, 1024, 20, %s) as s",
            [str(list(embedder.embed_query("valve"))), embedder.provider, embedder.model,
             json.dumps({"path_prefix": prefix})],
        ).fetchall()  # fmt: skip
    assert {row[0] for row in rows} == expected


@pytest.mark.parametrize(("prefix", "expected"), [PREFIXES[0], PREFIXES[5], PREFIXES[7], PREFIXES[3]])
def test_the_command_filters_by_path_as_http_does(
    filtered: tuple[Serving, str, Path], prefix: str, expected: set[str]
) -> None:
    _, url, _ = filtered
    done = command(url)("search", "valve", "--top-k", "20", "--path", prefix, "--json")
    assert done.returncode == 0, done.stderr
    assert {each["source"] for each in json.loads(done.stdout)["results"]} == expected


TAGS = [
    ({"any": ["p1"]}, {"Tags/p1.md"}),
    ({"any": ["#P1"]}, {"Tags/p1.md"}),
    ({"any": ["ops"]}, {"Tags/p1.md", "Tags/p2.md"}),
    ({"any": ["ops/"]}, {"Tags/p1.md", "Tags/p2.md"}),
    ({"any": ["ops/db"]}, {"Tags/p1.md"}),
    ({"any": ["op"]}, set()),
    ({"any": ["OPS/DB", "p10"]}, {"Tags/p1.md", "Tags/p2.md"}),
    ({"all": ["ops", "p1"]}, {"Tags/p1.md"}),
    ({"all": ["ops", "p1", "draft"]}, {"Tags/p1.md"}),
    ({"all": ["p1", "p10"]}, set()),
    ({"any": ["p1", "p10"], "all": ["ops"]}, {"Tags/p1.md", "Tags/p2.md"}),
    ({"any": ["p10"], "all": ["p1"]}, set()),
    ({"any": ["%"]}, set()),
    ({}, set(FILES)),
]


@pytest.mark.parametrize(("tags", "expected"), TAGS)
def test_tags_take_in_those_below_them_and_any_case(
    filtered: tuple[Serving, str, Path], tags: dict[str, list[str]], expected: set[str]
) -> None:
    api, url, _ = filtered
    body = {"query": "valve", "top_k": 20, "filter": {"tags": tags}}
    assert sources(api.post("/search", body)) == expected
    if len(tags) == 1 and tags.get("any") != ["%"]:
        ((which, names),) = tags.items()
        options = [word for name in names for word in ("--tag", name)]
        options += ["--all-tags"] if which == "all" else []
        done = command(url)("search", "valve", "--top-k", "20", "--json", *options)
        assert {each["source"] for each in json.loads(done.stdout)["results"]} == expected


def test_vault_and_time_are_conditions_too(filtered: tuple[Serving, str, Path]) -> None:
    api, url, vault = filtered

    def found(**conditions: Any) -> set[str]:
        return sources(api.post("/search", {"query": "valve", "top_k": 20, "filter": conditions}))

    assert found(vault=str(vault)) == set(FILES)
    assert found(vault=f"{vault}/") == set() or found(vault=f"{vault}/") == set(FILES)
    assert found(vault=str(vault.parent)) == set()
    assert found(vault=str(vault)[:-1]) == set()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "update rag.documents as d set updated_at = '2020-05-01 12:00+02'"
            " where d.relative_path = 'a_b/one.md'"
        )
    rest = set(FILES) - {"a_b/one.md"}
    assert found(updated_after="2020-05-01T10:00:00Z") == rest
    assert found(updated_after="2020-05-01T09:59:59Z") == set(FILES)
    assert found(updated_after="2020-05-01T11:59:59.5+02:00") == set(FILES)
    assert found(updated_after="2999-01-01T00:00:00+23:59") == set()
    assert found(updated_after="2020-05-01T10:00:00Z", path_prefix="a_b") == set()
    done = command(url)(
        "search", "valve", "--top-k", "20", "--updated-after", "2020-05-01T10:00:00Z", "--json"
    )
    assert {each["source"] for each in json.loads(done.stdout)["results"]} == rest


def test_a_filter_that_nothing_passes_is_an_honest_no_answer(filtered: tuple[Serving, str, Path]) -> None:
    api, _, _ = filtered
    body = api.post("/ask", {"question": "valve one", "filter": {"path_prefix": "nowhere"}}).json()
    assert (body["mode"], body["confidence"], body["citations"]) == ("no_answer", 0.0, [])
    answered = api.post("/ask", {"question": "valve one", "filter": {"path_prefix": "a_b"}}).json()
    assert (answered["mode"], [each["source"] for each in answered["citations"]]) == ("rag", ["a_b/one.md"])
    reply = api.post("/ask/stream", {"question": "valve one", "filter": {"path_prefix": "a_b"}})
    assert check_order(parse_events(reply.content))[1] == answered


def test_rt_filter_before_limit(database: str, tmp_path: Path) -> None:
    """Fewer than asked for come back only when no more pass the filter, however near the others are."""
    with serving(database, tmp_path, threads=4, environment={"RAG_RETRIEVAL": "vector"}) as api:
        check_filter_before_limit(api, database)


def check_filter_before_limit(api: Serving, database: str) -> None:
    everything = api.post("/search", {"query": QUESTION, "top_k": 20}).json()["results"]
    with psycopg.connect(database) as connection:
        counted = connection.execute(
            "select c.relative_path, count(*) from rag.chunks as c group by c.relative_path"
        ).fetchall()
    nearest = everything[0]["source"]
    for path, number in counted:
        for top_k in (1, 3, 20):
            reply = api.post("/search", {"query": QUESTION, "top_k": top_k, "filter": {"path_prefix": path}})
            results = reply.json()["results"]
            assert len(results) == min(top_k, number), path
            assert {each["source"] for each in results} == {path}
            scores = [each["score"] for each in results]
            assert scores == sorted(scores, reverse=True)
            if path == nearest:
                same = [each["content"] for each in everything if each["source"] == path][:top_k]
                assert [each["content"] for each in results[: len(same)]] == same


def test_rt_zero_vector_nan(server: Server, template: str, tmp_path: Path) -> None:
    """A zero vector that has come into the table is never found, and every score is a finite number."""
    vault = tmp_path / "vault"
    vault.mkdir()
    for name in ("one", "two", "three"):
        (vault / f"{name}.md").write_text(f"# {name}\n\nValve {name}.\n", encoding="utf-8")
    by_vectors = {"RAG_RETRIEVAL": "vector"}
    with (
        indexed(server, template, vault) as url,
        serving(url, tmp_path, threads=4, environment=by_vectors) as api,
    ):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "update rag.embeddings as e set embedding = %s::public.vector from rag.chunks as c"
                " where c.id = e.chunk_id and c.relative_path = 'one.md'",
                ["[" + ",".join(["0"] * 1024) + "]"],
            )

        def refuse(name: str) -> Any:
            raise AssertionError(f"{name} is no JSON")

        for body in ({"query": "valve one", "top_k": 20}, {"query": "？？？"}):
            text = api.post("/search", body).text
            reply = json.loads(text, parse_constant=refuse)
            assert "one.md" not in text
            assert all(0 <= each["score"] <= 1 for each in reply["results"])
        assert len(api.post("/search", {"query": "valve one"}).json()["results"]) == 2
        filtered_by = {"query": "valve one", "filter": {"path_prefix": "one.md"}}
        reply = api.post("/search", filtered_by).json()
        assert (reply["confidence"], reply["results"]) == (0.0, [])
        asked = api.post("/ask", {"question": "？？？"}).json()
        assert (asked["mode"], asked["confidence"]) == ("no_answer", 0.0)


# --- configuration


def test_env_proxy_and_loopback(database: str, model: Model, tmp_path: Path) -> None:
    """A proxy of the environment is not asked for a model on this machine, by the command and the server."""
    proxies = {
        "HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9",
        "ALL_PROXY": "socks5h://127.0.0.1:9", "NO_PROXY": "localhost,192.168.0.0/16",
        "http_proxy": "http://127.0.0.1:9", "all_proxy": "socks5h://127.0.0.1:9", "no_proxy": "",
    }  # fmt: skip
    rag = command(database)
    for host in ("127.0.0.1", "localhost"):
        base = model.upstream.base_url.replace("127.0.0.1", host)
        done = rag("ask", QUESTION, "--json", **proxies, **model.environment(LLM_BASE_URL=base))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["answer"] == "A [1]."
    assert rag("search", QUESTION, **proxies).returncode == 0
    with serving(database, tmp_path, environment={**proxies, **model.environment()}) as api:
        assert api.post("/ask", {"question": QUESTION}).json()["answer"] == "A [1]."


def test_a_server_without_settings_of_the_model_starts_and_says_what_is_missing(
    database: str, tmp_path: Path
) -> None:
    environment = {"LLM_PROVIDER": "openai-compatible", "LLM_API_KEY": KEY}
    with serving(database, tmp_path, environment=environment) as api:
        assert api.get("/health").status_code == 200
        for path in ("/ask", "/ask/stream"):
            reply = api.post(path, {"question": "Mona Lisa painter"})
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "llm_config_missing")
            assert "LLM_BASE_URL, LLM_MODEL" in reply.json()["error"]["message"]
        assert api.post("/search", {"query": QUESTION}).status_code == 200
        assert KEY not in api.log()
