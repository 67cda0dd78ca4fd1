"""The OpenAPI document and its page, and the server held to it by schemathesis."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from conftest import SAMPLE_VAULT, Server
from falcon import testing
from pydantic import BaseModel
from serving import Serving, indexed, serving

from pyrag.errors import error_classes
from pyrag.http import create_app
from pyrag.http.openapi import openapi_document
from pyrag.schemas import AskRequest, SearchRequest, WhyNotRequest
from pyrag.service import Service

OPERATIONS = {  # agents call them by these names: a change breaks them
    ("get", "/"): "index",
    ("get", "/health"): "health",
    ("get", "/live"): "live",
    ("get", "/ready"): "ready",
    ("post", "/search"): "search",
    ("post", "/ask"): "ask",
    ("post", "/ask/stream"): "ask_stream",
    ("post", "/explain"): "explain",
    ("post", "/why-not"): "why_not",
}
CLI_ONLY = {"invalid_configuration", "vault_busy", "embedding_gone"}


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    paths = openapi_document()["paths"]
    return [(method, path, each) for path, item in paths.items() for method, each in item.items()]


@pytest.fixture
def app(service: Service) -> testing.TestClient:
    return testing.TestClient(create_app(service))


@pytest.fixture(scope="module")
def api(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with (
        indexed(server, template, SAMPLE_VAULT) as url,
        serving(url, tmp_path_factory.mktemp("openapi")) as running,
    ):
        yield running


def test_document_is_valid_openapi_3_1() -> None:
    document = openapi_document()
    assert document["openapi"].startswith("3.1.")
    schemathesis.openapi.from_dict(document).validate()


def test_a_broken_document_would_be_found() -> None:
    broken = {**openapi_document(), "paths": {"/x": {"get": {"responses": 5}}}}
    with pytest.raises(Exception, match=r"responses|5"):
        schemathesis.openapi.from_dict(broken).validate()


def test_operations_keep_their_names() -> None:
    assert {(method, path): each["operationId"] for method, path, each in operations()} == OPERATIONS


def test_each_operation_has_a_summary_of_one_line_and_a_description() -> None:
    for _, path, each in operations():
        assert re.fullmatch(r"[A-Z][^\n.]{10,79}", each["summary"]), path
        assert each["description"].endswith("."), path
    assert len({each["summary"] for _, _, each in operations()}) == len(OPERATIONS)


def test_each_reference_leads_somewhere_and_each_schema_is_used() -> None:
    document = openapi_document()
    used = set(re.findall(r"'#/components/schemas/(\w+)'", str(document)))
    assert used == set(document["components"]["schemas"])


def test_each_code_in_the_document_is_an_error_of_ours_with_that_status() -> None:
    statuses = {each.code: each.http_status for each in error_classes()}
    named = set()
    for _, path, each in operations():
        for status, reply in each["responses"].items():
            if status != "200":
                codes = reply["description"].split(", ")
                assert {statuses[code] for code in codes} == {int(status)}, (path, codes)
                named |= set(codes)
    # not found and method not allowed are of no operation; a body is refused by its status alone
    assert set(statuses) - named == CLI_ONLY | {"not_found", "method_not_allowed"}


def test_examples_are_requests_that_the_models_take() -> None:
    models: dict[str, type[BaseModel]] = {
        "search": SearchRequest,
        "ask": AskRequest,
        "ask_stream": AskRequest,
        "explain": AskRequest,
        "why_not": WhyNotRequest,
    }
    for _, _, each in operations():
        if "requestBody" in each:
            content = each["requestBody"]["content"]["application/json"]
            models[each["operationId"]].model_validate(content["example"])


def test_bounds_of_numbers_and_texts_stand_in_the_document() -> None:
    fields = openapi_document()["components"]["schemas"]["AskRequest"]["properties"]
    assert fields["top_k"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 20}
    assert fields["question"]["maxLength"] == 200_000
    schemas = openapi_document()["components"]["schemas"]
    assert all(schemas[name]["additionalProperties"] is False for name in ("AskRequest", "Filter"))


def test_events_of_the_stream_are_described_each_with_its_data() -> None:
    reply = openapi_document()["paths"]["/ask/stream"]["post"]["responses"]["200"]["content"]
    events = reply["text/event-stream"]["schema"]["oneOf"]
    described = {
        each["properties"]["event"]["const"]: each["properties"]["data"]["contentSchema"]["$ref"]
        for each in events
    }
    assert {name: ref.rpartition("/")[2] for name, ref in described.items()} == {
        "retrieval": "RetrievalEvent",
        "token": "TokenEvent",
        "citation": "CitationEvent",
        "final": "AskResponse",
        "error": "ErrorResponse",
    }


def test_document_is_served_and_every_reply_links_to_it(app: testing.TestClient) -> None:
    reply = app.simulate_get("/openapi.json")
    assert reply.json == openapi_document()
    for path in ("/", "/health", "/nowhere", "/docs"):
        assert app.simulate_get(path).headers["link"] == '</openapi.json>; rel="service-desc"'
    listed = app.simulate_get("/").json["endpoints"]
    for method, path, each in operations():
        assert {"method": method.upper(), "path": path, "summary": each["summary"]} in listed


class _References(HTMLParser):
    """All that a browser would load or lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]


def test_page_loads_nothing_from_elsewhere(app: testing.TestClient) -> None:
    reply = app.simulate_get("/docs")
    assert reply.headers["content-type"].startswith("text/html")
    page = _References()
    page.feed(reply.text)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed"}
    assert all(each.startswith(("#", "/openapi.json")) for each in page.found)
    assert "url(" not in reply.text
    assert "@import" not in reply.text


def test_page_names_every_operation_and_schema(app: testing.TestClient) -> None:
    text = app.simulate_get("/docs").text
    for _, path, each in operations():
        assert f"<code>{path}</code>" in text
        assert each["summary"] in text
    ids = set(re.findall(r'id="(\w+)"', text))
    links = set(re.findall(r'href="#(\w+)"', text))
    assert links <= ids
    assert set(openapi_document()["components"]["schemas"]) <= ids


def test_schemathesis_finds_nothing(api: Serving, tmp_path: Path) -> None:
    """No server error, nothing that is not documented; valid data is taken, invalid data is refused."""
    program = Path(sysconfig.get_path("scripts")) / "schemathesis"
    phases = ["--phases", "examples,coverage,fuzzing", "--mode", "all", "--max-examples", "3"]
    repeatable = ["--seed", "1", "--generation-database", "none", "--no-color"]
    done = subprocess.run(
        [str(program), "run", f"{api.url}/openapi.json", *phases, *repeatable],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "Operations:       9 selected / 9 total" in done.stdout
    assert "No issues found" in done.stdout
    assert '"level": "error"' not in api.log()
