"""The documents about the HTTP API say what it does: each example is run against a real server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, get_args

import pytest
from conftest import REPOSITORY, SAMPLE_VAULT, VARIABLES, Server
from markdown_it import MarkdownIt
from pydantic import BaseModel
from serving import Serving, check_order, indexed, parse_events, serving
from test_docs import bare, parse, section

from pyrag import db, gunicorn_conf, schemas, wsgi
from pyrag.errors import error_classes
from pyrag.http import app, bodies, streaming
from pyrag.http.openapi import OPERATIONS

ADDRESS = "localhost:8000"
COMMAND_LINE_ONLY = {"invalid_configuration", "vault_busy", "embedding_gone"}
REPLIES: dict[str, type[BaseModel]] = {
    "/search": schemas.SearchResponse,
    "/ask": schemas.AskResponse,
    "/health": schemas.HealthResponse,
}


@dataclass(frozen=True)
class Example:
    """A command or program of a document, and what the document says comes of it; empty: it does not."""

    place: str
    code: str
    language: str = "sh"
    shown: str = ""
    shown_as: str = ""


def examples(doc: str) -> Iterator[Example]:
    """The curl commands and Python programs of a document; a fence right below one is its output."""
    tokens = MarkdownIt("commonmark").parse((REPOSITORY / doc).read_text(encoding="utf-8"))
    for token, after in pairwise([*tokens, tokens[-1]]):
        if token.type != "fence" or token.info not in ("sh", "python"):
            continue
        assert token.map is not None
        place = f"{doc}:{token.map[0] + 1}"
        shown = after if after.type == "fence" and after.info in ("json", "text") else None
        commands = re.split(r"(?m)^(?=curl )", token.content) if token.info == "sh" else [token.content]
        for code in commands:
            if ADDRESS in code:
                yield Example(
                    place, code, token.info, shown.content if shown else "", shown.info if shown else ""
                )


EXAMPLES = [
    example
    for doc in ("README.md", "docs/quickstart.zh-CN.md", "docs/http.md", "docs/operations.md")
    for example in examples(doc)
    if "curl " in example.code or example.language == "python"
]


@pytest.fixture(scope="module")
def running(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`rag serve` after the README's quickstart."""
    with (
        indexed(server, template, SAMPLE_VAULT) as url,
        serving(url, tmp_path_factory.mktemp("serve")) as running,
    ):
        yield running


def run(example: Example, running: Serving) -> str:
    """What an example prints, with the address of a running server in place of the documented one."""
    if example.language == "sh" and not shutil.which("curl"):
        pytest.skip("curl is absent: the examples of the documents are not run")
    program = [sys.executable, "-c"] if example.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    done = subprocess.run(
        [*program, example.code.replace(ADDRESS, f"127.0.0.1:{running.port}")],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        env={**{key: value for key, value in os.environ.items() if key not in VARIABLES}, "NO_PROXY": "*"},
        check=False,
    )
    assert done.returncode == 0, f"{example.place}: {done.stderr}"
    return done.stdout.replace("\r\n", "\n")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.place)
def test_every_example_gives_what_the_document_shows(example: Example, running: Serving) -> None:
    printed = run(example, running)
    if example.shown_as == "json":
        compare(json.loads(example.shown, parse_float=Decimal), json.loads(printed), example.place)
    elif example.shown_as == "text":
        assert fits(example.shown, printed), f"{example.place}: {printed}"
    else:
        check_reply(example, printed)


def check_reply(example: Example, printed: str) -> None:
    """That a good reply came, for an example whose output is not shown."""
    found = re.search(rf"{ADDRESS}(/[\w/]*)", example.code)
    assert found is not None, example.place
    if found[1] == "/ask/stream":
        check_order(parse_events(printed.encode()))
    else:
        REPLIES[found[1]].model_validate_json(printed)


def compare(shown: Any, real: Any, where: str) -> None:
    """Raises unless the shown JSON is the real one; … stands for anything, numbers are rounded as shown."""
    if isinstance(shown, dict):
        assert isinstance(real, dict), where
        assert set(shown) - {"…"} <= set(real), where
        assert "…" in shown or set(shown) == set(real), f"{where}: {set(real) - set(shown)} not shown"
        for name in set(shown) - {"…"}:
            compare(shown[name], real[name], f"{where} {name}")
    elif isinstance(shown, list):
        more = shown[-1:] == ["…"]
        items = shown[:-1] if more else shown
        assert isinstance(real, list), where
        assert len(items) < len(real) if more else len(items) == len(real), where
        for number, (mine, other) in enumerate(zip(items, real, strict=False)):
            compare(mine, other, f"{where} {number}")
    elif isinstance(shown, Decimal):
        if not where.endswith("uptime_seconds"):
            assert round(real, -int(shown.as_tuple().exponent)) == float(shown), where
    elif isinstance(shown, str) and shown != "…":
        assert fits(shown, str(real)), f"{where}: {real}"
    elif shown != "…":
        assert shown == real, where


def fits(shown: str, real: str) -> bool:
    """Whether a text is the shown one; … stands for anything."""
    pattern = ".*?".join(map(re.escape, shown.rstrip("\n").split("…")))
    return re.fullmatch(pattern, real.rstrip("\n"), re.DOTALL) is not None


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ('{"a": 1}', {"a": 1, "b": 2}),
        ('{"a": 1, "b": 2}', {"a": 1}),
        ('{"a": 0.37}', {"a": 0.3649}),
        ('["a"]', ["a", "b"]),
        ('["a", "…"]', ["a"]),
        ('"a…c"', "abd"),
        ("null", 0),
    ],
)
def test_an_output_that_differs_is_noticed(shown: str, real: Any) -> None:
    with pytest.raises(AssertionError):
        compare(json.loads(shown, parse_float=Decimal), real, "")


def test_each_document_shows_requests() -> None:
    for doc, least in {"README.md": 2, "docs/quickstart.zh-CN.md": 2, "docs/http.md": 12}.items():
        assert sum(example.place.startswith(doc) for example in EXAMPLES) >= least, doc


# Tables of docs/http.md ----------------------------------------------------------------------------


def names(title: str) -> list[str]:
    """The first column of the table in a section of docs/http.md."""
    return [name for row in section("docs/http.md", title).rows for name in re.findall(r"`([^`]+)`", row[0])]


def test_every_route_stands_in_its_table_and_nothing_else() -> None:
    offered = {f"{each.method.upper()} {each.path}" for each in OPERATIONS}
    assert set(names("Routes")) == offered | {"GET /openapi.json", "GET /docs"}


def test_every_field_of_an_answer_is_explained_and_nothing_else() -> None:
    assert set(names("Ask")) == {*schemas.AskResponse.model_fields, "cited", "quotes"}


def test_every_outcome_and_status_is_explained_and_nothing_else() -> None:
    assert names("Explain") == list(get_args(schemas.Outcome))
    assert set(names("Why not")) == set(get_args(schemas.WhyNotStatus))


def test_every_condition_of_a_filter_is_explained_and_nothing_else() -> None:
    tags = {f"tags.{name}" for name in schemas.TagFilter.model_fields}
    assert set(names("Filters")) == {*schemas.Filter.model_fields, *tags} - {"tags"}


def test_every_event_of_a_stream_is_explained_and_nothing_else() -> None:
    assert names("Stream") == ["retrieval", "token", "citation", "final", "error"]


def test_every_code_of_the_api_stands_in_the_table_with_its_status() -> None:
    rows = {(bare(row[0]), row[1]) for row in section("docs/http.md", "Errors").rows}
    ours = {(each.code, str(each.http_status)) for each in error_classes()}
    assert rows == {row for row in ours if row[0] not in COMMAND_LINE_ONLY}
    documented = {code for each in OPERATIONS for _, codes in each.errors for code in codes.split(", ")}
    assert documented <= {code for code, _ in rows}


# Figures -------------------------------------------------------------------------------------------


def test_the_limits_are_those_of_the_code() -> None:
    values = {row[0]: f"{row[1]} {row[2]}" for row in section("docs/http.md", "Limits").rows}
    said = list(values.values())
    for text, number in [
        ("1,048,576 bytes", bodies.MAX_BODY == 1_048_576),
        ("8 MB", bodies.MAX_DRAIN == 8 << 20),
        ("200,000 characters", schemas.MAX_QUESTION == 200_000),
        ("224 in each worker", app.DEFAULT_ANSWERS == 224),
        ("10 seconds", bodies.BODY_SECONDS == 10),
        ("2 seconds", db._POOL_TIMEOUT_SECONDS == 2),
    ]:
        assert number, text
        assert any(text in each for each in said), text
    assert (streaming.HEARTBEAT_SECONDS, streaming.SEND_SECONDS) == (10, 30)
    assert gunicorn_conf.threads - gunicorn_conf.threads // 8 == app.DEFAULT_ANSWERS


def test_the_figures_of_operations_are_those_of_the_code() -> None:
    text = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    assert f"{gunicorn_conf.workers} workers with {gunicorn_conf.threads} threads" in text
    assert f"workers × {wsgi.POOL_SIZE}" in text
    assert f"{gunicorn_conf.graceful_timeout} seconds" in text


def test_the_unit_starts_a_command_that_exists() -> None:
    text = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    found = re.search(r"^ExecStart=\S+/rag (.+)$", text, re.MULTILINE)
    assert found is not None
    words = found[1].split()
    assert words[0] == "--env-file"
    parse(words[2:])


def test_a_log_line_has_the_fields_of_the_documented_one_and_no_question(running: Serving) -> None:
    text = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    found = re.search(r'^\{"time".*\}$', text, re.MULTILINE)
    assert found is not None
    running.post("/ask", {"question": "Zanzibar?"}, **{"X-Request-Id": "of-the-docs"})
    (line,) = running.log_lines("of-the-docs")
    assert list(line) == list(json.loads(found[0]))
    assert "Zanzibar" not in running.log()
