"""The main job on the sample vault, as a newcomer runs it: all questions, fake providers, by the command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from conftest import REPOSITORY, SAMPLE_VAULT, Server, command

from pyrag.evaluation import load_questions

Rag = Callable[..., CompletedProcess[str]]
QUESTIONS = load_questions(REPOSITORY / "eval" / "questions.yaml")


@pytest.fixture(scope="module")
def run(server: Server, template: str) -> Iterator[Rag]:
    """The command, on a database with the sample vault."""
    url = server.create(template)
    rag = command(url)
    done = rag("ingest", str(SAMPLE_VAULT))
    assert done.returncode == 0, done.stderr
    yield rag
    server.drop(url)


@pytest.fixture(scope="module")
def report(run: Rag) -> dict[str, Any]:
    """What `rag eval --json` says, with its exit code."""
    done = run("eval", "--json")
    return {**json.loads(done.stdout), "exit_code": done.returncode}


def test_every_sample_question_comes_out_as_expected(report: dict[str, Any]) -> None:
    assert [row for row in report["questions"] if not row["right"]] == []
    assert (report["misses"], report["exit_code"]) == (0, 0)
    assert len(report["questions"]) == len(QUESTIONS)


@pytest.mark.parametrize("retrieval", ["lexical", "hybrid"])
def test_both_calibrated_retrievals_get_all_questions_right(run: Rag, retrieval: str) -> None:
    done = run("eval", "--json", RAG_RETRIEVAL=retrieval)
    report = json.loads(done.stdout)
    assert (report["retrieval"], report["misses"], done.returncode) == (retrieval, 0, 0), report


def test_what_the_similarity_of_the_fake_vectors_cannot_refuse_is_known(run: Rag) -> None:
    """The contract fixes the threshold of vector retrieval, 0.20; words and a calibration refuse these."""
    done = run("eval", "--json", RAG_RETRIEVAL="vector")
    report = json.loads(done.stdout)
    assert {row["id"] for row in report["questions"] if not row["right"]} == {
        "helium-boiling-point", "barking-puppy", "travel-expenses", "shared-buffers", "sdk-languages",
        "android-app", "p1-compensation",
    }  # fmt: skip
    assert (report["misses"], done.returncode) == (7, 1)


def test_the_expected_mode_has_a_margin(report: dict[str, Any]) -> None:
    for row in report["questions"]:
        assert abs(row["confidence"] - 0.5) > 0.1, row


def test_answers_have_whole_paths_and_quote_only_what_the_sources_say(run: Rag) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in SAMPLE_VAULT.rglob("*.md"))
    aliased = re.sub(r"\[\[[^\]|]*\|([^\]]*)\]\]", r"\1", text.replace("\\|", "|"))
    plain = re.sub(r"[*`\[\]|\s]", "", aliased)
    sources = {path.relative_to(SAMPLE_VAULT).as_posix() for path in SAMPLE_VAULT.rglob("*.md")}
    lines = run("eval", "--answers").stdout.splitlines()
    cited = [line for line in lines if re.match(r"\[\d+\] \d\.\d{4}  ", line)]
    quotes = [line for line in lines if line.startswith("- ")]
    assert len(cited) >= len(quotes) / 4 > 0
    assert {line.split("  ", 1)[1] for line in cited} <= sources
    for quote in quotes:
        body = re.sub(r" \[\d+\]$", "", quote[2:])
        for part in body.split("; "):  # a table row: its cells stand apart in the source
            cell = re.sub(r"[*`\[\]|\s]", "", part.split(": ", 1)[-1])
            assert cell in plain, part


def test_the_sample_vault_has_the_files_of_the_seed_and_links_that_resolve() -> None:
    names = {path.relative_to(SAMPLE_VAULT).as_posix() for path in SAMPLE_VAULT.rglob("*.md")}
    assert names == {
        "00-index.md",
        "products/Atlas CRM.md",
        "products/Atlas CRM FAQ.md",
        "policies/Data Handling Policy.md",
        "policies/Support Escalation Policy.md",
        "runbooks/API Latency Runbook.md",
        "runbooks/Postgres Incident Runbook.md",
        "sales/Competitive Positioning.md",
        "support/Common Customer Issues.md",
    }
    known = {Path(name).stem for name in names} | {name.removesuffix(".md") for name in names}
    for name in names:
        text = (SAMPLE_VAULT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\[\[([^\]|#\\]+)", text):
            assert target in known, (name, target)
