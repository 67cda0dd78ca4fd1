"""The model client against a server that others wrote: `transformers serve`, with tiny models, on the CPU.

Where that server differs from OpenAI's: a stream ends without [DONE]; deltas have no null fields, the last is
{}; an error within a stream is {"error": "text"} under status 200; a model that it cannot load is a plain
"Internal Server Error"; of a character that is cut off, a stream sends nothing, a whole reply U+FFFD.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import REPOSITORY, SAMPLE_VAULT, VARIABLES, Server, command
from serving import check_order, free_port, indexed, parse_events, serving
from tiny_model import BROKEN, RANDOM, REPLY, TOLD

from pyrag.config import load_configuration
from pyrag.db import Database
from pyrag.errors import LlmUpstreamError
from pyrag.schemas import AskResponse, TokenEvent
from pyrag.service import Service

NEEDED = ("torch", "transformers", "accelerate", "fastapi", "uvicorn", "openai")
pytestmark = pytest.mark.skipif(
    not all(map(find_spec, NEEDED)),
    reason="NOT TESTED: a model server that others wrote. To test it: pip install torch==2.13.0"
    " && pip install 'transformers[serving]>=5.24'",
)

QUESTION = "What is a critical replication lag in Postgres?"
START_SECONDS = 120


@dataclass(frozen=True)
class Foreign:
    """The running server."""

    base_url: str

    def variables(self, model: str, **more: str) -> dict[str, Any]:
        """What a user sets to have pyrag ask this server."""
        return {
            "LLM_PROVIDER": "openai-compatible",
            "LLM_BASE_URL": self.base_url,
            "LLM_MODEL": model,
            "LLM_API_KEY": "not-checked-there",
            "LLM_TIMEOUT_SECONDS": "60",
            **more,
        }


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    """`transformers serve` on a loopback port, over models made just now; it looks for nothing elsewhere."""
    folder = tmp_path_factory.mktemp("models")
    shell = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    offline = {
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",  # threads cost tiny models more than they gain
    }
    environment = {**shell, **offline}
    make = [sys.executable, str(REPOSITORY / "tests" / "tiny_model.py"), str(folder)]
    made = subprocess.run(make, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stderr
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    log_file = folder / "serve.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "transformers.cli.transformers", "serve", *options],
            cwd=folder, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}/health", process, log_file)
        yield Foreign(f"http://127.0.0.1:{port}/v1")
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # it waits for connections that are still open
            process.kill()
            process.wait(10)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log_file: Path) -> None:
    until = time.monotonic() + START_SECONDS
    with httpx.Client(trust_env=False, timeout=5) as client:
        while True:
            try:
                if client.get(url).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert process.poll() is None, log_file.read_text()
            assert time.monotonic() < until, log_file.read_text()
            time.sleep(0.1)


@pytest.fixture(scope="module")
def knowledge(server: Server, template: str) -> Iterator[str]:
    """The URL of a database with the sample vault."""
    with indexed(server, template, SAMPLE_VAULT) as url:
        yield url


def service_for(foreign: Foreign, database_url: str, model: str, **more: str) -> Service:
    variables = {"EMBEDDING_PROVIDER": "fake", **foreign.variables(model, **more)}
    return Service(load_configuration(folder=Path("/"), environ=variables).settings, Database(database_url))


def both_ways(foreign: Foreign, knowledge: str, folder: Path, model: str, **more: str) -> list[Any]:
    """The bodies of POST /ask and of the last event of POST /ask/stream, whose tokens are its answer."""
    with serving(knowledge, folder, environment=foreign.variables(model, **more)) as pyrag:
        whole = pyrag.post("/ask", {"question": QUESTION})
        stream = pyrag.post("/ask/stream", {"question": QUESTION})
        log = pyrag.log()
    assert "Traceback" not in log
    assert (whole.status_code, stream.status_code) == (200, 200), (whole.text, stream.text)
    events = parse_events(stream.content)
    assert events[-1].name == "final", events[-1]
    check_order(events)
    assert [event.name for event in events].count("token") > 3  # as they were generated, not all at the end
    return [whole.json(), events[-1].json]


def test_a_whole_answer_with_its_citations(foreign: Foreign, knowledge: str, tmp_path: Path) -> None:
    whole, streamed = both_ways(foreign, knowledge, tmp_path, TOLD)
    assert streamed == whole
    assert whole["mode"] == "rag"
    assert whole["answer"] == REPLY.replace(" [99]", "")  # there is no such source
    assert whole["removed_citations"] == 1
    assert [each["cited"] for each in whole["citations"]].index(True) == 0
    assert [each["cited"] for each in whole["citations"]].count(True) == 1
    assert (whole["grounded"], whole["complete"], whole["reason"]) == (True, True, None)


def test_an_answer_without_sense_is_called_ungrounded_and_cut(
    foreign: Foreign, knowledge: str, tmp_path: Path
) -> None:
    for answer in both_ways(foreign, knowledge, tmp_path, RANDOM, LLM_MAX_TOKENS="24"):
        assert answer["mode"] == "rag"
        assert len(answer["answer"]) == 24
        assert len(set(answer["answer"])) > 3
        assert answer["citations"]
        assert not any(each["cited"] for each in answer["citations"])
        assert (answer["grounded"], answer["complete"]) == (False, False)
        assert answer["reason"] == "the answer cites no source; the reply was cut off at LLM_MAX_TOKENS"


def test_an_answer_cut_within_a_character(foreign: Foreign, knowledge: str) -> None:
    service = service_for(foreign, knowledge, TOLD, LLM_MAX_TOKENS="10")
    whole = "Replication lag over 60 seconds is critical [1].\n\n"
    assert REPLY.startswith(whole)
    for stream in (False, True):
        *_, last = service.answer(service.retrieve_for(QUESTION), stream=stream)
        assert isinstance(last, AskResponse)
        assert last.answer.rstrip("\ufffd") == whole  # it sends U+FFFD for the half character, or nothing
        assert (last.grounded, last.complete) == (True, False)
        assert last.reason == "the reply was cut off at LLM_MAX_TOKENS"


def test_the_command_line(foreign: Foreign, knowledge: str) -> None:
    result = command(knowledge)("ask", QUESTION, **foreign.variables(TOLD))
    assert (result.returncode, "Traceback" in result.stderr) == (0, False), result.stderr
    assert REPLY.replace(" [99]", "") in result.stdout
    assert "Postgres Incident Runbook.md" in result.stdout


def test_a_model_that_it_does_not_have(foreign: Foreign, knowledge: str, tmp_path: Path) -> None:
    with serving(knowledge, tmp_path, environment=foreign.variables("tiny-absent")) as pyrag:
        whole = pyrag.post("/ask", {"question": QUESTION})
        stream = pyrag.post("/ask/stream", {"question": QUESTION})
        log = pyrag.log()
    assert "Traceback" not in log
    assert whole.status_code == 502
    events = parse_events(stream.content)
    assert [event.name for event in events] == ["retrieval", "error"]
    for error in (whole.json()["error"], events[-1].json["error"]):
        assert error["code"] == "llm_upstream_error"
        assert "tiny-absent: HTTP status 500: Internal Server Error" in error["message"]
        assert (error["details"]["status"], error["details"]["mid_stream"]) == (500, False)


def test_an_error_within_a_stream_of_status_200(foreign: Foreign, knowledge: str) -> None:
    service = service_for(foreign, knowledge, BROKEN)
    with pytest.raises(LlmUpstreamError, match=r"the server reports an error: .*beam search"):
        list(service.answer(service.retrieve_for(QUESTION), stream=True))


def test_leaving_an_answer_ends_its_work_there(foreign: Foreign, knowledge: str) -> None:
    """It generates one answer after the other: the next one would have to wait for all of this one."""
    endless = service_for(foreign, knowledge, RANDOM, LLM_MAX_TOKENS="100000")
    with closing(endless.answer(endless.retrieve_for(QUESTION), stream=True)) as events:
        assert any(isinstance(event, TokenEvent) for event in events)
    short = service_for(foreign, knowledge, RANDOM, LLM_MAX_TOKENS="8", LLM_TIMEOUT_SECONDS="20")
    assert len(short.ask(QUESTION).answer) == 8
