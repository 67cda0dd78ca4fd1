"""The HTTP API: shapes, errors in one envelope, limits of bodies, request ids, logs, the stream of events."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import SAMPLE_VAULT, Server
from falcon import testing
from serving import (
    Reply,
    Serving,
    check_order,
    indexed,
    parse_events,
    read_as_seed_client,
    read_reply,
    serving,
)

from pyrag import __version__
from pyrag.config import Settings
from pyrag.db import Database
from pyrag.errors import InvalidConfiguration
from pyrag.http import create_app
from pyrag.service import Service

P1 = "客户 P1 工单应该如何升级？"
UNRELATED = "Mona Lisa painter"
JSON_TYPE = b"Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def api(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`rag serve` on the sample vault; a body that stalls is given up after a second."""
    with (
        indexed(server, template, SAMPLE_VAULT) as url,
        serving(
            url,
            tmp_path_factory.mktemp("http"),
            threads=4,
            patches={
                "pyrag.http.bodies.BODY_SECONDS": 1.0,
                "pyrag.http.bodies.BODY_TOTAL_SECONDS": 4.0,
                "pyrag.http.worker.HEAD_TOTAL_SECONDS": 4.0,
                "pyrag.http.worker.HEADER_SECONDS": 1.0,
                "pyrag.http.worker.LINGER_SECONDS": 0.5,
            },
        ) as running,
    ):
        yield running


@pytest.fixture
def app(service: Service) -> testing.TestClient:
    """The application in this process, on an empty index."""
    return testing.TestClient(create_app(service))


def client_of(settings: Settings, url: str, **changes: object) -> testing.TestClient:
    return testing.TestClient(create_app(Service(settings.model_copy(update=changes), Database(url))))


def request(body: bytes, path: str = "/search", headers: bytes = JSON_TYPE) -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST " + path.encode() + b" HTTP/1.1\r\nHost: x\r\n" + headers + length + b"\r\n" + body


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n", path: str = "/ask") -> bytes:
    head = b"POST " + path.encode() + b" HTTP/1.1\r\nHost: x\r\n" + JSON_TYPE
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + body + end


def assert_error(reply: Any, status: int, code: str) -> dict[str, Any]:
    """Checks status and envelope; the error."""
    if isinstance(reply, Reply):
        got, body, kind = reply.status, reply.json, reply.headers["content-type"]
    else:
        body = reply.json() if callable(reply.json) else reply.json
        got, kind = reply.status_code, reply.headers["content-type"]
    assert (got, kind) == (status, "application/json"), body
    assert list(body) == ["error"]
    assert set(body["error"]) == {"code", "message", "details"}
    assert body["error"]["code"] == code, body
    assert body["error"]["message"]
    assert isinstance(body["error"]["details"], dict)
    error: dict[str, Any] = body["error"]
    return error


# --- shapes


def test_health_has_the_shape_of_the_contract(api: Serving) -> None:
    reply = api.get("/health")
    body = reply.json()
    assert reply.status_code == 200
    uptime = body["details"].pop("uptime_seconds")
    assert 0 <= uptime < 600
    assert body == {
        "status": "ok",
        "checks": {
            "app": "ok",
            "database": "ok",
            "schema": "ok",
            "pgvector": "ok",
            "embedding_config": "ok",
            "retrieval_ready": "ok",
        },
        "details": {
            "embedding_provider": "fake",
            "embedding_model": "fake-lexical-v1",
            "documents": 9,
            "chunks": 58,
            "embeddings_current_config": 58,
            "version": __version__,
        },
    }


def test_live_ready_and_root_answer(api: Serving) -> None:
    assert api.get("/live").json() == {"status": "ok"}
    assert api.get("/ready").json() == {"status": "ready", "warnings": []}
    root = api.get("/").json()
    assert (root["name"], root["version"]) == ("pyrag", __version__)
    assert {"method": "POST", "path": "/ask"}.items() <= root["endpoints"][1].items()


def test_search_has_the_shape_of_the_contract(api: Serving) -> None:
    body = api.post("/search", {"query": P1, "top_k": 2}).json()
    assert list(body) == ["confidence", "threshold", "retrieval", "scan", "results"]
    assert body["confidence"] > 0.9
    first = body["results"][0]
    assert set(first) >= {"content", "source", "relative_path", "heading_path", "heading", "score"}
    assert first["source"] == first["relative_path"] == "policies/Support Escalation Policy.md"
    assert first["heading"] == first["heading_path"][-1] == "P1 升级路径"
    assert len(body["results"]) == 2


def test_ask_answers_from_the_sources(api: Serving) -> None:
    body = api.post("/ask", {"question": P1}).json()
    assert (body["mode"], body["grounded"], body["complete"], body["reason"]) == ("rag", True, True, None)
    assert body["removed_citations"] == 0
    assert "[1]" in body["answer"]
    assert set(body["citations"][0]) == {"source", "heading", "score", "cited", "quotes"}
    assert body["citations"][0]["source"] == "policies/Support Escalation Policy.md"
    assert body["decision"]["similarity"] == body["citations"][0]["score"]
    assert body["decision"]["confidence"] == body["confidence"] > 0.9
    cited = [f"[{number}]" in body["answer"] for number in range(1, len(body["citations"]) + 1)]
    assert [each["cited"] for each in body["citations"]] == cited


def test_ask_refuses_honestly_with_status_200(api: Serving) -> None:
    reply = api.post("/ask", {"question": UNRELATED})
    body = reply.json()
    assert (reply.status_code, body["mode"], body["citations"]) == (200, "no_answer", [])
    assert (body["grounded"], body["reason"]) == (False, "nothing was found")


def test_ask_says_that_fallback_is_disabled(api: Serving) -> None:
    body = api.post("/ask", {"question": UNRELATED, "fallback": True}).json()
    assert body["mode"] == "no_answer"
    assert "disabled globally" in body["answer"]


def test_a_question_that_embeds_to_nothing_finds_nothing(api: Serving) -> None:
    assert api.post("/search", {"query": "？？？"}).json() == {
        "confidence": 0.0,
        "threshold": 0.5,
        "retrieval": "lexical",
        "scan": "exact",
        "results": [],
    }
    body = api.post("/ask", {"question": "？？？"}).json()
    assert (body["mode"], body["confidence"]) == ("no_answer", 0.0)


def test_answers_are_the_same_over_http_and_by_the_service(api: Serving, settings: Settings) -> None:
    again = api.post("/ask", {"question": P1}).json()
    assert api.post("/ask", {"question": P1, "top_k": 5, "fallback": False, "filter": None}).json() == again


# --- what is not ready


@pytest.mark.parametrize("path", ["/search", "/ask", "/ask/stream"])
def test_an_empty_index_is_not_ready_but_healthy(app: testing.TestClient, path: str) -> None:
    health = app.simulate_get("/health")
    assert (health.status_code, health.json["status"]) == (200, "ok")
    assert health.json["checks"]["retrieval_ready"] == "not_ready"
    error = assert_error(app.simulate_get("/ready"), 503, "retrieval_not_ready")
    assert "rag ingest" in error["details"]["hint"]
    body = {"query" if path == "/search" else "question": "pump"}
    assert_error(app.simulate_post(path, json=body), 503, "retrieval_not_ready")


@pytest.mark.parametrize("path", ["/health", "/ready", "/search", "/ask", "/ask/stream"])
def test_a_database_without_schema_is_503(empty_url: str, settings: Settings, path: str) -> None:
    app = client_of(settings, empty_url)
    if path in ("/health", "/ready"):
        reply = app.simulate_get(path)
    else:
        reply = app.simulate_post(path, json={"query" if path == "/search" else "question": "pump"})
    error = assert_error(reply, 503, "schema_not_initialized")
    assert "rag db init" in error["details"]["hint"]
    assert app.simulate_get("/live").status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/search", "/ask", "/ask/stream"])
def test_a_database_that_is_down_is_503_without_its_password(settings: Settings, path: str) -> None:
    app = client_of(settings, "postgresql://u:secret@127.0.0.1:1/x")
    if path in ("/health", "/ready"):
        reply = app.simulate_get(path)
    else:
        reply = app.simulate_post(path, json={"query" if path == "/search" else "question": "pump"})
    assert_error(reply, 503, "database_unavailable")
    assert "secret" not in reply.text
    assert app.simulate_get("/live").status_code == 200
    assert app.simulate_get("/").status_code == 200


@pytest.mark.parametrize("path", ["/ask", "/ask/stream"])
def test_a_missing_llm_setting_is_503_and_search_goes_on(url: str, settings: Settings, path: str) -> None:
    app = client_of(settings, url, llm_provider="openai-compatible", llm_model=None)
    error = assert_error(app.simulate_post(path, json={"question": "pump"}), 503, "llm_config_missing")
    assert "LLM_BASE_URL, LLM_API_KEY, LLM_MODEL" in error["message"]
    assert_error(app.simulate_post("/search", json={"query": "pump"}), 503, "retrieval_not_ready")
    assert app.simulate_get("/health").status_code == 200


class _Broken:
    """A service in which everything fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


@pytest.mark.parametrize("error", [ZeroDivisionError("secret"), InvalidConfiguration("a setting")], ids=repr)
def test_what_nobody_expected_is_500_and_shows_nothing_of_it(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    app = testing.TestClient(create_app(_Broken(error)))  # type: ignore[arg-type]
    for path in ("/search", "/ask", "/ask/stream"):
        reply = app.simulate_post(path, json={"query" if path == "/search" else "question": "pump"})
        assert_error(reply, 500, "internal_error")
        assert "secret" not in reply.text
        assert "Traceback" not in reply.text
    if isinstance(error, ZeroDivisionError):
        assert "ZeroDivisionError" in caplog.text


# --- routes and methods


@pytest.mark.parametrize(
    "path", ["/nowhere", "/ask/", "/ask/stream/x", "/%00", "/ingest", "/Search", "/a%FFb"]
)
def test_an_unknown_path_is_404_in_the_envelope(api: Serving, path: str) -> None:
    for method in ("GET", "POST"):
        reply = api.raw(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert_error(reply, 404, "not_found")


POST_ONLY = ("/search", "/ask", "/ask/stream", "/explain", "/why-not")
GET_ONLY = ("/", "/health", "/live", "/ready", "/openapi.json")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "TRACE", "HEAD", "BREW", "PROPFIND"])
def test_a_method_that_is_not_there_is_405_with_allow(api: Serving, method: str) -> None:
    with api.client() as client:
        for path in POST_ONLY:
            reply = client.request(method, path)
            assert reply.status_code == 405
            assert set(reply.headers["allow"].split(", ")) == {"POST", "OPTIONS"}
            if method != "HEAD":
                assert_error(reply, 405, "method_not_allowed")
        if method not in ("GET", "HEAD"):
            for path in GET_ONLY:
                reply = client.request(method, path)
                assert_error(reply, 405, "method_not_allowed")
                assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD", "OPTIONS"}
        assert client.request(method, "/nowhere").status_code == 404


def test_head_has_the_headers_of_get_and_no_body(api: Serving) -> None:
    with api.client() as client:
        for path in GET_ONLY[1:]:
            head, got = client.head(path), client.get(path)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-type"] == got.headers["content-type"]


def test_options_names_the_methods(api: Serving) -> None:
    with api.client() as client:
        reply = client.options("/ask")
        assert (reply.status_code, reply.content) == (200, b"")
        assert "POST" in reply.headers["allow"]


def test_no_route_writes_into_the_index(app: testing.TestClient) -> None:
    paths = {each["path"] for each in app.simulate_get("/").json["endpoints"]}
    own = {"/", "/docs", "/openapi.json"}
    assert paths == own | {"/health", "/live", "/ready", *POST_ONLY}


# --- content types


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json",
        "application/json; charset=gb18030", "application/json; charset=utf-16", "application/jsonp",
        "application/xml", "application/vnd.api+json", "*/*",
    ],
)  # fmt: skip
def test_another_content_type_is_415(api: Serving, kind: str) -> None:
    for path in POST_ONLY:
        headers = f"Content-Type: {kind}\r\n".encode() if kind else b""
        error = assert_error(
            api.raw(request(b'{"question": "a"}', path, headers)), 415, "unsupported_media_type"
        )
        assert "Content-Type: application/json" in error["details"]["hint"]


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
    ],
)
def test_json_in_utf8_is_taken(api: Serving, kind: str) -> None:
    reply = api.raw(request(b'{"query": "a"}', headers=f"Content-Type: {kind}\r\n".encode()))
    assert reply.status == 200


# --- bodies

BROKEN = {
    "empty": b"",
    "cut": b'{"query":',
    "bare word": b"pump",
    "single quotes": b"{'query': 'a'}",
    "comma": b'{"query": "a",}',
    "two values": b'{"query": "a"} {"query": "b"}',
    "nan": b'{"query": "a", "top_k": NaN}',
    "infinity": b'{"query": "a", "top_k": -Infinity}',
    "many digits": b'{"query": "a", "top_k": ' + b"9" * 5000 + b"}",
    "deep list": b'{"query": ' + b"[" * 100_000,
    "deep closed list": b'{"query": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "deep object": b'{"a":' * 100_000,
    "not utf-8": b'{"query": "\xff\xfe valve"}',
    "gb18030": '{"query": "阀门"}'.encode("gb18030"),
    "utf-16": '{"query": "a"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"query": "a"}',
    "cut character": b'{"query": "\xe9\x98"}',
    "raw surrogate": b'{"query": "\xed\xa0\x80"}',
    "raw nul": b'{"query": "a\x00b"}',
    "list": b'["valve?"]',
    "text": b'"valve?"',
    "number": b"5",
    "null": b"null",
    "true": b"true",
}
FIELDS = {
    b"{}": "query",
    b'{"query": null}': "query",
    b'{"query": 7}': "query",
    b'{"query": ["a"]}': "query",
    b'{"query": "\\ud800"}': "query",
    b'{"query": "\\udc00\\ud800"}': "query",
    b'{"query": "a\\u0000b"}': "query",
    b'{"query": " "}': "query",
    b'{"query": "a", "topk": 5}': "topk",
    b'{"query": "a", "top_k": 1e999}': "top_k",
    b'{"query": "a", "top_k": 1e400}': "top_k",
    b'{"query": "a", "fallback": true}': "fallback",
    b'{"query": "a", "filter": []}': "filter",
    b'{"query": "a", "filter": {"path": "a"}}': "filter.path",
    b'{"query": "a", "filter": {"path_prefix": "/"}}': "filter.path_prefix",
    b'{"query": "a", "filter": {"tags": {"any": ["#"]}}}': "filter.tags.any.0",
    b'{"query": "a", "filter": {"updated_after": 5}}': "filter.updated_after",
    b'{"query": "a", "\\ud800": 1}': "body",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_body_that_is_no_json_object_in_utf8_is_422(api: Serving, name: str) -> None:
    with api.client() as client:
        headers = {"Content-Type": "application/json"}
        reply = client.post("/search", content=BROKEN[name], headers=headers)
        error = assert_error(reply, 422, "invalid_request")
        assert error["message"].startswith("the body")
        assert len(reply.content) < 600
        assert client.post("/search", json={"query": "a"}).status_code == 200


@pytest.mark.parametrize("body", FIELDS, ids=lambda body: body.decode())
def test_a_wrong_field_is_422_and_named(api: Serving, body: bytes) -> None:
    with api.client() as client:
        reply = client.post("/search", content=body, headers={"Content-Type": "application/json"})
    error = assert_error(reply, 422, "invalid_request")
    assert error["details"]["errors"][0]["field"] == FIELDS[body]
    assert error["message"].startswith(f"{FIELDS[body]}: ")
    assert "Example" in error["details"]["hint"]


def test_what_was_sent_is_not_repeated_in_an_error(api: Serving) -> None:
    for body in ({"query": "a", "top_k": "PRIVATE"}, {"query": ["PRIVATE"]}, {"query": "\0PRIVATE"}):
        assert "PRIVATE" not in api.post("/search", body).text
    broken = api.raw(request(b'{"query": PRIVATE}'))
    assert b"PRIVATE" not in broken.body


def test_a_very_long_name_of_a_field_is_cut(api: Serving) -> None:
    reply = api.post("/search", {"query": "a", "x" * 100_000: 1})
    error = assert_error(reply, 422, "invalid_request")
    assert len(error["message"]) < 200


def test_many_faults_give_a_short_answer(api: Serving) -> None:
    reply = api.post("/search", {f"field{number}": 1 for number in range(5000)})
    error = assert_error(reply, 422, "invalid_request")
    assert len(error["details"]["errors"]) == 20


def test_the_largest_body_is_read_and_one_byte_more_is_413(api: Serving) -> None:
    limit = 1 << 20
    body = b'{"query": "a"}'
    assert api.raw(request(body + b" " * (limit - len(body)))).status == 200
    error = assert_error(api.raw(request(body + b" " * (limit - len(body) + 1))), 413, "payload_too_large")
    assert error["details"]["limit"] == limit


# --- request ids


@pytest.mark.parametrize("given", ["abc-123", "req:7/8_9.x+y=@", "a" * 128])
def test_a_request_id_is_echoed_and_logged(api: Serving, given: str) -> None:
    assert api.get("/live", **{"X-Request-Id": given}).headers["x-request-id"] == given
    assert api.log_lines(given)[0]["route"] == "/live"


@pytest.mark.parametrize("given", ["", "a b", "a" * 129, 'x"y', "x,y", "ä"])
def test_a_request_id_that_is_odd_is_replaced(api: Serving, given: str) -> None:
    reply = api.raw(b"GET /live HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + given.encode() + b"\r\n\r\n")
    assert len(reply.headers["x-request-id"]) == 32
    assert reply.headers["x-request-id"] != given


def test_every_reply_has_a_request_id_of_its_own(api: Serving) -> None:
    with api.client() as client:
        replies = [client.get(path) for path in ("/live", "/live", "/nowhere", "/search")]
        replies.append(client.post("/ask/stream", json={"question": UNRELATED}))
    assert len({reply.headers["x-request-id"] for reply in replies}) == 5


# --- logs


def test_each_request_is_one_json_line_without_the_question(api: Serving) -> None:
    requests = {
        "log-1": ("/ask", {"question": f"{P1} PRIVATE-7"}, 200, "ok"),
        "log-2": ("/search", {"query": "PRIVATE-7", "top_k": 0}, 422, "invalid_request"),
        "log-3": ("/ask/stream", {"question": f"{P1} PRIVATE-7"}, 200, "ok"),
        "log-4": ("/PRIVATE-7", {}, 404, "not_found"),
    }
    for request_id, (path, body, status, outcome) in requests.items():
        assert api.post(path, body, **{"X-Request-Id": request_id}).status_code == status
        (line,) = api.log_lines(request_id)
        assert (line["level"], line["logger"], line["method"]) == ("info", "pyrag.http", "POST")
        assert line["route"] == (path if status != 404 else "(none)")
        assert (line["status"], line["outcome"]) == (status, outcome)
        assert 0 <= line["ms"] < 10_000
        assert line["message"].startswith(f"POST {line['route']} {status} ")
    assert "PRIVATE-7" not in api.log()


def test_every_line_of_the_log_is_json(api: Serving) -> None:
    for line in api.log().splitlines():
        assert {"time", "level", "logger", "message"} <= set(json.loads(line))


# --- connections


def test_a_chunked_body_is_read(api: Serving) -> None:
    body = json.dumps({"question": P1}).encode()
    whole = api.raw(chunked(body), end_within=0.3)
    assert (whole.status, whole.json["mode"], whole.closed) == (200, "rag", False)
    split = api.raw(chunked(*(body[start : start + 3] for start in range(0, len(body), 3))))
    assert split.json == whole.json
    trailers = api.raw(chunked(body, end=b"0\r\nX-Sum: 1\r\n\r\n"))
    assert trailers.json == whole.json


@pytest.mark.parametrize(
    ("body", "end"),
    [
        (b'{"question": "a"}', b"zz\r\n\r\n"),
        (b'{"question": "a"}', b"-1\r\n\r\n"),
        (b'{"question": "a"}', b"\r\n\r\n"),
        (b'{"question": "a"}', b"0\r\nno trailer\r\n\r\n"),
        (b'{"question": "a"}', b"5\r\nabcdefgh\r\n0\r\n\r\n"),
    ],
)
def test_chunks_that_are_none_are_422_and_end_the_connection(api: Serving, body: bytes, end: bytes) -> None:
    reply = api.raw(chunked(body, end=end), end_within=5)
    assert_error(reply, 422, "invalid_request")
    assert reply.closed


def test_a_body_that_ends_early_is_422(api: Serving) -> None:
    for data in (request(b'{"query": "a"}')[:-4], chunked(b'{"question"', end=b"")):
        with api.connect() as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            assert_error(read_reply(connection), 422, "invalid_request")
    assert '"level": "error"' not in api.log()


def test_requests_one_behind_another_are_answered_in_order(api: Serving) -> None:
    first, second = (json.dumps({"query": word}).encode() for word in ("P1", "Postgres"))
    with api.connect() as connection:
        connection.sendall(
            request(first) + request(b"{") + request(second) + b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        replies = []
        stream = connection.makefile("rb")
        for _ in range(4):
            status = int(stream.readline().split()[1])
            length = 0
            while (line := stream.readline().strip().lower()) != b"":
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            replies.append((status, stream.read(length)))
    assert [status for status, _ in replies] == [200, 422, 200, 200]
    for (_, body), query in ((replies[0], first), (replies[2], second)):
        assert body == api.raw(request(query)).body


def test_a_refused_body_does_not_become_the_next_request(api: Serving) -> None:
    """A body that is not read must not be taken for a request."""
    inner = b"GET /live HTTP/1.1\r\nHost: x\r\nX-Request-Id: smuggled\r\n\r\n"
    with api.connect() as connection:
        connection.sendall(request(inner, headers=b"Content-Type: text/plain\r\n"))
        assert read_reply(connection).status == 415
    time.sleep(0.2)
    assert "smuggled" not in api.log()


def test_a_body_that_stalls_is_given_up_and_frees_its_thread(api: Serving) -> None:
    """With four threads, eight such clients would stop a server that waits for ever."""
    stalled = [api.connect() for _ in range(8)]
    started = time.monotonic()
    for number, connection in enumerate(stalled):
        connection.sendall(request(b'{"query": "a"}')[:-4] if number % 2 else chunked(b'{"que', end=b"5\r\n"))
    try:
        for connection in stalled:
            reply = read_reply(connection)
            error = assert_error(reply, 422, "invalid_request")
            assert "nothing more of the body came" in error["message"]
            connection.close()
    finally:
        for connection in stalled:
            connection.close()
    assert time.monotonic() - started < 12
    assert api.get("/live").status_code == 200


def test_a_body_that_comes_slowly_but_steadily_is_read(api: Serving) -> None:
    data = request(b'{"query": "P1"}')
    with api.connect() as connection:
        connection.sendall(data[:-6])
        for byte in data[-6:]:
            time.sleep(0.25)
            connection.sendall(bytes([byte]))
        assert read_reply(connection).status == 200


def test_clients_that_stay_after_their_last_reply_hold_up_nobody(api: Serving) -> None:
    """Gunicorn's own worker waits two seconds for each of them, on the thread that accepts connections."""
    staying = [api.connect() for _ in range(3)]
    for connection in staying:
        connection.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert read_reply(connection, end_within=1).closed
    started = time.monotonic()
    assert api.get("/live").status_code == 200
    assert time.monotonic() - started < 1
    for connection in staying:
        connection.close()


def test_a_drip_of_bytes_holds_no_thread_for_ever(api: Serving) -> None:
    """Eight clients on four threads, each with a byte every now and then, of a head or of a body."""
    whole = request(b'{"query": "a"}')
    dripping = [api.connect() for _ in range(8)]
    for number, connection in enumerate(dripping):
        connection.sendall(whole[:-8] if number % 2 else whole[:20])
    ended = 0
    until = time.monotonic() + 25
    while ended < len(dripping) and time.monotonic() < until:
        time.sleep(0.4)
        for connection in dripping:
            with suppress(OSError):
                connection.sendall(b" ")
        ended = sum(has_ended(connection) for connection in dripping)
    for connection in dripping:
        connection.close()
    assert ended == len(dripping)
    assert api.get("/live").status_code == 200


def has_ended(connection: socket.socket) -> bool:
    """Whether the server has replied to, or closed, a connection."""
    return bool(select.select([connection], [], [], 0)[0])


def test_a_head_that_stalls_frees_its_thread(api: Serving) -> None:
    stalled = [api.connect() for _ in range(8)]  # twice as many as threads
    for connection in stalled:
        connection.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n")
    started = time.monotonic()
    assert api.get("/live").status_code == 200
    assert time.monotonic() - started < 9
    for connection in stalled:
        assert connection.recv(1) == b""
        connection.close()
    assert "Traceback" not in api.log()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400),
        (b"POST /ask HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST /ask HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET /live HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 9000 + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_http_gets_the_envelope_too(api: Serving, data: bytes, status: int) -> None:
    reply = api.raw(data, end_within=1)
    assert_error(reply, status, "invalid_request")
    assert reply.closed


# --- the stream


@pytest.mark.parametrize(
    "question", [P1, UNRELATED, "？？？", "What is a critical replication lag in Postgres?"]
)
def test_stream_has_all_events_in_order_and_ends_with_the_body_of_ask(api: Serving, question: str) -> None:
    reply = api.post("/ask/stream", {"question": question})
    answer = api.post("/ask", {"question": question}).json()
    events = parse_events(reply.content)
    _, last = check_order(events)
    assert (reply.status_code, events[-1].name) == (200, "final")
    assert last == answer
    first = events[0].json
    assert set(first) == {"mode", "confidence", "threshold", "retrieval", "scan", "decision", "hits"}
    assert first["hits"] == api.post("/search", {"query": question}).json()["results"]
    assert (first["mode"], first["decision"]) == (answer["mode"], answer["decision"])


def test_stream_has_the_headers_that_keep_proxies_from_holding_it_back(api: Serving) -> None:
    headers = api.post("/ask/stream", {"question": P1}).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers
    assert "content-encoding" not in headers


def test_stream_has_one_line_of_data_an_event_and_lf_only(api: Serving) -> None:
    body = api.post("/ask/stream", {"question": P1}).content
    assert b"\r" not in body
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: {")


@pytest.mark.parametrize("question", [P1, UNRELATED])
def test_the_line_based_client_of_the_seed_reads_the_stream(api: Serving, question: str) -> None:
    text, parsed = read_as_seed_client(api.post("/ask/stream", {"question": question}).content)
    assert text == api.post("/ask", {"question": question}).json()["answer"]
    assert parsed[-1]["answer"] == text


def test_no_answer_streams_too(api: Serving) -> None:
    events = parse_events(api.post("/ask/stream", {"question": UNRELATED}).content)
    assert [event.name for event in events] == ["retrieval", "token", "final"]


def test_a_wrong_request_of_a_stream_is_an_http_status(api: Serving) -> None:
    assert_error(api.post("/ask/stream", {"question": ""}), 422, "invalid_request")
    assert_error(api.post("/ask/stream", {"question": "a", "top_k": 0}), 422, "invalid_request")


def test_a_stream_works_where_the_server_shows_no_socket(service: Service, tmp_path: Path) -> None:
    from pyrag.ingest import ingest_vault

    ingest_vault(SAMPLE_VAULT, service.database, service.embedder)
    app = testing.TestClient(create_app(service))
    reply = app.simulate_post("/ask/stream", json={"question": P1})
    _, last = check_order(parse_events(reply.content))
    assert last == app.simulate_post("/ask", json={"question": P1}).json


def test_a_stream_that_is_never_begun_gives_its_slot_back(service: Service) -> None:
    from pyrag.ingest import ingest_vault

    ingest_vault(SAMPLE_VAULT, service.database, service.embedder)
    app = create_app(service, answers=1)
    for _ in range(3):
        environ = testing.create_environ(
            "/ask/stream", method="POST", body=json.dumps({"question": P1}),
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        statuses: list[str] = []
        body = app(environ, lambda status, headers, statuses=statuses: statuses.append(status))
        body.close()  # type: ignore[attr-defined]
        assert statuses == ["200 OK"]
