"""Retrieval sets: reading them, the figures against hand-computed ones, and the database that goes away."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from conftest import VARIABLES, Server
from hypothesis import given
from hypothesis import strategies as st

from pyrag.beir import (
    Dataset,
    Measured,
    Passage,
    Reply,
    auroc,
    compare,
    evaluate_settings,
    load_dataset,
    score,
    sign_test,
)
from pyrag.config import Settings
from pyrag.db import THROWAWAY_PREFIX, Database, _url_of_other
from pyrag.errors import InternalError, InvalidConfiguration, InvalidRequest

Rag = Callable[..., CompletedProcess[str]]

CORPUS = {
    "a/1": ("Pump", "The pump is greased on Monday with blue grease."),
    "b 2": ("", "The valve opens at ninety degrees."),
    "../c": ("", "Red green yellow purple."),
    "d": ("", "Red green yellow purple orange."),
    "文档": ("数据库", "重置数据库密码需要管理员批准。"),
}
QUERIES = {
    "q1": "When is the pump greased?",
    "q2": "At how many degrees does the valve open?",
    "q3": "red green yellow purple",  # ../c is nearer than d, which is the relevant one
    "q4": "怎么重置密码？",
}
QRELS = {"q1": "a/1", "q2": "b 2", "q3": "d", "q4": "文档"}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BEIR folder of five documents and four questions."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    write_lines(
        folder / "corpus.jsonl",
        [{"_id": key, "title": title, "text": text} for key, (title, text) in CORPUS.items()],
    )
    write_lines(
        folder / "queries.jsonl",
        [{"_id": key, "text": text, "metadata": {"x": 1}} for key, text in QUERIES.items()],
    )
    lines = ["query-id\tcorpus-id\tscore", *(f"{key}\t{each}\t1" for key, each in QRELS.items())]
    (folder / "qrels.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def off_topic(tmp_path: Path) -> Path:
    path = tmp_path / "off.jsonl"
    write_lines(
        path,
        [
            {"_id": "q1", "text": "Who painted the Mona Lisa?"},  # an id of the folder too
            {"_id": "x", "text": "When is the pump painted?"},
        ],
    )
    return path


@pytest.fixture
def left_over(server: Server) -> Callable[[], set[str]]:
    """The throw-away databases that were not there before."""

    def names() -> set[str]:
        with psycopg.connect(server.named("postgres")) as connection:
            rows = connection.execute(
                "select d.datname from pg_database as d where starts_with(d.datname, %s)", [THROWAWAY_PREFIX]
            ).fetchall()
        return {str(row[0]) for row in rows}

    before = names()
    return lambda: names() - before


def loaded(folder: Path, **options: Any) -> tuple[Dataset, list[str]]:
    notes: list[str] = []
    return load_dataset(folder, notes.append, **options), notes


# Figures -------------------------------------------------------------------------------------------


def test_the_measures_are_those_computed_by_hand() -> None:
    rankings = {
        "first": ["a", "b"],
        "third": ["x", "y", "a"],
        "two": ["b", "x", "a"],
        "graded": ["a", "b"],
        "sixth": ["1", "2", "3", "4", "5", "a"],
        "eleventh": [*map(str, range(10)), "a"],
        "never": ["x"],
        "nothing": [],
    }
    qrels = {key: {"a": 1} for key in rankings} | {"two": {"a": 1, "b": 1}, "graded": {"a": 1, "b": 2}}
    two = (1 + 1 / math.log2(4)) / (1 + 1 / math.log2(3))
    graded = (1 + 2 / math.log2(3)) / (2 + 1 / math.log2(3))
    expected = {  # nDCG@10, recall@5, recall@20, MRR@10
        "first": (1, 1, 1, 1),
        "third": (1 / math.log2(4), 1, 1, 1 / 3),
        "two": (two, 1, 1, 1),
        "graded": (graded, 1, 1, 1),
        "sixth": (1 / math.log2(7), 0, 1, 1 / 6),
        "eleventh": (0, 0, 1, 0),
        "never": (0, 0, 0, 0),
        "nothing": (0, 0, 0, 0),
    }
    found = score(rankings, qrels)
    assert list(found) == list(rankings)
    for key, values in expected.items():
        assert list(found[key]) == ["ndcg@10", "recall@5", "recall@20", "mrr@10"]
        assert tuple(found[key].values()) == pytest.approx(values), key


def test_equal_places_in_a_ranking_do_not_exist() -> None:
    for name in ("a", "z"):  # trec_eval would break ties by the name
        assert score({"q": ["m", name]}, {"q": {name: 1}})["q"]["mrr@10"] == 0.5


@pytest.mark.parametrize(
    ("yes", "no", "area"),
    [
        ([0.9, 0.8], [0.1, 0.2], 1.0),
        ([0.1], [0.9], 0.0),
        ([0.5, 0.5], [0.5], 0.5),
        ([0.9, 0.3], [0.5, 0.3], 0.625),  # 1, 1, 0, one half of four pairs
    ],
)
def test_auroc_counts_pairs(yes: list[float], no: list[float], area: float) -> None:
    assert auroc(yes, no) == pytest.approx(area)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=20), st.lists(st.integers(0, 9), min_size=1, max_size=20)
)
def test_auroc_is_the_share_of_pairs_in_the_right_order(yes: list[int], no: list[int]) -> None:
    pairs = [(a > b) + (a == b) / 2 for a in yes for b in no]
    assert auroc(yes, no) == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [(0, 0, 1), (1, 0, 1), (5, 5, 1), (6, 0, 2 / 64), (0, 6, 2 / 64), (8, 2, 2 * (1 + 10 + 45) / 1024)],
)
def test_the_sign_test_is_exact(wins: int, losses: int, p: float) -> None:
    assert sign_test(wins, losses) == pytest.approx(p)


def test_the_sign_test_takes_many_questions() -> None:
    assert sign_test(5000, 5000) == 1
    assert 0 <= sign_test(9000, 1000) < 1e-300


def measured(rankings: dict[str, list[str]], confidences: dict[str, float] | None = None) -> Measured:
    """A result without a database: question qN has the document dN, the others are not answerable."""
    answerable = {key: f"question {key}" for key in rankings if key.startswith("q")}
    others = {key: f"question {key}" for key in rankings if not key.startswith("q")}
    qrels = {key: {key.replace("q", "d"): 1} for key in answerable}
    dataset = Dataset("made", {"d1": Passage("", "x")}, answerable, qrels, others)
    replies = {
        key: Reply(each, confidence, 0.4, confidence >= 0.4, float(number))
        for number, (key, each) in enumerate(rankings.items(), start=1)
        for confidence in [(confidences or {}).get(key, 0.5)]
    }
    scores = score({key: rankings[key] for key in answerable}, qrels)
    return Measured(dataset, "fake", "m", "vector", 1, replies, scores)


def test_refusal_counts_by_the_threshold_that_itself_answers() -> None:
    result = measured(
        {"q1": ["d1"], "q2": [], "q3": ["d3"], "q4": ["d4"], "u1": [], "u2": ["d1"]},
        {"q1": 0.9, "q2": 0.39, "q3": 0.4, "q4": 0.8, "u1": 0.4, "u2": 0.1},
    )
    refusal = result.refusal
    assert refusal is not None
    assert refusal.wrong_answers == 0.5
    assert refusal.wrong_refusals == 0.25
    assert refusal.threshold == 0.4
    # q1 and q4 beat both; q3 ties with u1 and beats u2; q2 beats u2: 4 + 1.5 + 1 of 8 pairs
    assert refusal.auroc == pytest.approx(6.5 / 8)
    assert result.metrics["recall@5"] == 0.75, "unanswerable questions have no part in it"
    assert result.latency == {"median": 3.5, "p95": 6.0}


def test_compare_pairs_the_questions_and_lists_the_worst_first() -> None:
    first = measured({"q1": ["d1"], "q2": ["x", "d2"], "q3": ["d3"], "q4": ["d4"], "q5": ["d5"]})
    second = measured(
        {"q1": ["x", "d1"], "q2": ["d2"], "q3": ["d3"], "q4": [], "q5": ["x"] * 0 + ["y", "d5"]}
    )
    found = compare(first, second)
    half = 1 / math.log2(3)
    assert (found.wins, found.losses, found.ties) == (1, 3, 1)
    assert found.mean_difference == pytest.approx((half - 1 + 1 - half + 0 - 1 + half - 1) / 5)
    assert found.p_value == pytest.approx(2 * (1 + 4) / 16)
    assert [each.id for each in found.regressions] == ["q4", "q1", "q5"]
    worst = found.regressions[0]
    assert (worst.first_hit, worst.second_hit, worst.relevant) == ("d4", None, ["d4"])
    assert (worst.first, worst.second, worst.question) == (1.0, 0.0, "question q4")


def test_at_most_twenty_regressions_are_listed() -> None:
    names = [f"q{number}" for number in range(30)]
    first = measured({name: [name.replace("q", "d")] for name in names})
    second = measured({name: [] for name in names})
    found = compare(first, second)
    assert found.losses == 30
    assert len(found.regressions) == 20


# Reading -------------------------------------------------------------------------------------------


def test_a_folder_is_read(folder: Path) -> None:
    dataset, notes = loaded(folder)
    assert notes == []
    assert dataset.name == "tiny"
    assert list(dataset.passages) == list(CORPUS)
    assert dataset.answerable == QUERIES
    assert dataset.qrels["q4"] == {"文档": 1}
    assert dataset.unanswerable == {}


def test_qrels_may_lie_in_a_folder_and_have_no_header(folder: Path) -> None:
    text = (folder / "qrels.tsv").read_text(encoding="utf-8").split("\n", 1)[1]
    (folder / "qrels.tsv").unlink()
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text(text.replace("\n", "\r\n"), encoding="utf-8-sig")
    assert loaded(folder)[0].qrels == {key: {each: 1} for key, each in QRELS.items()}


def test_what_is_left_out_is_counted(folder: Path) -> None:
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write('\n{"_id": "e", "title": " ", "text": " \\n "}\n')
    with (folder / "queries.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"_id": "blank", "text": ""}\n{"_id": "unjudged", "text": "x"}\n')
    with (folder / "qrels.tsv").open("a", encoding="utf-8") as file:
        file.write("q1\tnone\t1\nnobody\td\t1\nq1\te\t1\nblank\td\t1\nq1\td\t0\nq2\td\t-1\n")
    dataset, notes = loaded(folder)
    assert dataset.qrels == {key: {each: 1} for key, each in QRELS.items()}
    assert "e" not in dataset.passages
    assert [re.sub(r".*/tiny/", "", line) for line in notes] == [
        "corpus.jsonl: 1 entries without text are left out, the first: e",
        "queries.jsonl: 1 blank questions are left out, the first: blank",
        "qrels.tsv: 4 lines do not count: their question or document is not there or left out, the first in"
        " line 6: none",
    ]


def test_an_entry_becomes_a_note_that_cannot_be_frontmatter() -> None:
    assert Passage("Title", "Text.").note == "# Title\n\nText.\n"
    assert Passage("", "---\na: b\n---\nText.").note.startswith("\n---")


def test_a_sample_is_always_the_same_and_keeps_the_order(folder: Path, off_topic: Path) -> None:
    dataset, _ = loaded(folder, off_topic=off_topic)
    two = dataset.sampled(2)
    assert list(two.answerable) == [key for key in QUERIES if key in two.answerable]
    assert len(two.answerable) == len(two.unanswerable) == len(two.qrels) == 2
    assert set(dataset.sampled(1).answerable) < set(two.answerable)
    assert dataset.sampled(100) == dataset.sampled(None) == dataset


def test_held_out_documents_make_their_questions_unanswerable(folder: Path) -> None:
    with (folder / "qrels.tsv").open("a", encoding="utf-8") as file:
        file.write("q1\td\t1\n")
    (folder / "heldout.txt").write_text("a/1\nb 2\nno such\n", encoding="utf-8")
    dataset, notes = loaded(folder, held_out=True)
    assert set(dataset.passages) == set(CORPUS) - {"a/1", "b 2"}
    assert dataset.unanswerable == {"q2": QUERIES["q2"]}
    assert dataset.qrels["q1"] == {"d": 1}, "another document answers it"
    assert len(notes) == 1
    assert notes[0].endswith("heldout.txt: 1 ids are not in corpus.jsonl, the first: no such")


def test_off_topic_questions_may_have_ids_of_the_folder(folder: Path, off_topic: Path) -> None:
    dataset, _ = loaded(folder, off_topic=off_topic)
    assert list(dataset.unanswerable.values()) == ["Who painted the Mona Lisa?", "When is the pump painted?"]
    assert not dataset.unanswerable.keys() & dataset.answerable.keys()
    write_lines(off_topic, [{"_id": "z", "text": QUERIES["q2"]}])
    with pytest.raises(InvalidRequest, match=r"off\.jsonl: question z is the same as q2 of .*queries\.jsonl"):
        loaded(folder, off_topic=off_topic)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("corpus.jsonl", "{", "line 1: not JSON: "),
        ("corpus.jsonl", '{"_id": "a", "text": "x"}\n\n[]', "line 3: "),
        ("corpus.jsonl", '{"text": "x"}', "line 1: field _id: Field required"),
        ("corpus.jsonl", '{"_id": "", "text": "x"}', "line 1: field _id: "),
        ("corpus.jsonl", '{"_id": 7, "text": "x"}', "line 1: field _id: "),
        ("corpus.jsonl", '{"_id": "a", "text": null}', "line 1: field text: "),
        ("corpus.jsonl", '{"_id": "a", "title": 1, "text": "x"}', "line 1: field title: "),
        ("corpus.jsonl", '{"_id": "a", "text": "\\ud800"}', "line 1: holds half of a surrogate pair"),
        (
            "corpus.jsonl",
            '{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}',
            "line 2: field _id: a stands in line 1 already",
        ),
        ("corpus.jsonl", "", " holds no entries"),
        ("corpus.jsonl", "[" * 100_000, "line 1: not JSON"),
        ("queries.jsonl", '{"_id": "q1", "text": "a\\u0000b"}', "line 1: field text: question holds U+0000"),
        ("queries.jsonl", '{"_id": "q1"}', "line 1: field text: Field required"),
        ("qrels.tsv", "q1 d 1\n", "line 1: 1 fields, expected 3"),
        ("qrels.tsv", "q1\t0\td\t1\n", "line 1: 4 fields, expected 3"),
        ("qrels.tsv", "q1\td\t1\nq2\td\tyes\n", "line 2: field score: 'yes' is not a whole number"),
        ("qrels.tsv", "q1\td\t1\nq1\td\t1\n", "line 2: field corpus-id: d is judged for q1 already"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(folder: Path, file: str, text: str, message: str) -> None:
    (folder / file).write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequest) as caught:
        loaded(folder)
    found = str(caught.value)
    assert found.startswith(str(folder / file))
    assert message in found


def test_a_file_that_is_missing_or_no_text_is_named(folder: Path) -> None:
    for name in ("qrels.tsv", "queries.jsonl", "corpus.jsonl"):
        (folder / name).write_bytes("{泵".encode("gb18030"))
        with pytest.raises(InvalidRequest, match=f"{re.escape(str(folder / name))} cannot be read"):
            loaded(folder)
        (folder / name).unlink()
        with pytest.raises(InvalidRequest, match=f"{re.escape(str(folder / name))} cannot be read: No such"):
            loaded(folder)


def test_held_out_without_its_file_is_said(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"heldout\.txt cannot be read"):
        loaded(folder, held_out=True)
    (folder / "heldout.txt").write_text("none\n")
    with pytest.raises(InvalidRequest, match=r"heldout\.txt makes no question unanswerable"):
        loaded(folder, held_out=True)


def test_a_set_without_a_relevant_document_is_refused(folder: Path) -> None:
    for lines in ("", "q1\td\t0\n", "query-id\tcorpus-id\tscore\n", "q9\td\t1\n"):
        (folder / "qrels.tsv").write_text(lines)
        with pytest.raises(InvalidRequest, match="has no question with a relevant document"):
            loaded(folder)


# The database --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("postgresql://u:p%2F@h:5/x?sslmode=disable", "postgresql://u:p%2F@h:5/new?sslmode=disable"),
        ("postgresql://postgres@/pyrag?host=%2Fa%2Fb", "postgresql://postgres@/new?host=%2Fa%2Fb"),
        ("postgresql:///x?dbname=y&port=1", "postgresql:///new?port=1"),
        ("postgres://h1:1,h2:2", "postgres://h1:1,h2:2/new"),
        ("postgresql://h?dbname=y", "postgresql://h/new"),
        ("postgresql://", "postgresql:///new"),
    ],
)
def test_the_url_of_another_database_changes_nothing_else(url: str, other: str) -> None:
    assert _url_of_other(url, "new") == other


def test_the_whole_way_gives_the_expected_figures(
    folder: Path, empty_url: str, settings: Settings, left_over: Callable[[], set[str]]
) -> None:
    dataset, _ = loaded(folder)
    during: list[set[str]] = []
    [result] = evaluate_settings(
        dataset,
        [settings],
        Database(empty_url),
        pytest.fail,
        asking=lambda total: _counting(total, lambda: during.append(left_over())),
    )
    assert result.replies["q3"].ranking[:2] == ["../c", "d"]
    second = 1 / math.log2(3)
    assert result.metrics == pytest.approx(
        {"ndcg@10": (3 + second) / 4, "recall@5": 1, "recall@20": 1, "mrr@10": 3.5 / 4}
    )
    assert result.documents == 5
    assert [len(names) for names in during] == [1] * len(QUERIES)
    assert left_over() == set()
    with psycopg.connect(empty_url) as connection:
        row = connection.execute("select to_regnamespace('rag') is null").fetchone()
    assert row == (True,), "the user's database is not touched"


class _counting:
    """An `asking` of `evaluate_settings` that calls a function with each question."""

    def __init__(self, total: int, each: Callable[[], None]) -> None:
        self.total, self.each, self.count = total, each, 0

    def __enter__(self) -> Callable[[], None]:
        return self._asked

    def __exit__(self, *error: object) -> None:
        assert error[0] is not None or self.count == self.total

    def _asked(self) -> None:
        self.count += 1
        self.each()


def test_a_document_of_several_chunks_ranks_by_its_best_one(
    folder: Path, empty_url: str, settings: Settings
) -> None:
    long = "\n\n".join(f"The turbine number {n} spins with {n * 37} turns. " * 20 for n in range(60))
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write(
            json.dumps({"_id": "long", "text": f"{long}\n\nThe valve of the turbine is green."}) + "\n"
        )
    dataset, _ = loaded(folder)
    [result] = evaluate_settings(dataset, [settings], Database(empty_url), pytest.fail)
    for reply in result.replies.values():
        assert len(set(reply.ranking)) == len(reply.ranking)
    assert any("long" in reply.ranking for reply in result.replies.values())


def test_the_database_goes_also_after_an_error(
    folder: Path, empty_url: str, settings: Settings, left_over: Callable[[], set[str]]
) -> None:
    def broken() -> None:
        assert len(left_over()) == 1
        raise RuntimeError("in the middle")

    dataset, _ = loaded(folder)
    with pytest.raises(RuntimeError, match="in the middle"):
        evaluate_settings(
            dataset,
            [settings],
            Database(empty_url),
            pytest.fail,
            asking=lambda total: _counting(total, broken),
        )
    assert left_over() == set()


def test_a_database_that_cannot_be_dropped_is_named(
    url: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = Database(url).throwaway()
    name = urlsplit(block.__enter__().url).path.lstrip("/")
    monkeypatch.setattr("pyrag.db._CONNECTION_OPTIONS", {"port": 1, "host": "127.0.0.1"})
    with pytest.raises(InternalError, match=f"{name} could not be dropped"):
        block.__exit__(None, None, None)
    server.execute(f'drop database "{name}" with (force)')


@pytest.fixture
def powerless(server: Server, url: str, connection: psycopg.Connection[Any]) -> Iterator[str]:
    """The URL of a role that may not create databases."""
    if connection.execute("select rolsuper from pg_roles where rolname = current_user").fetchone() != (True,):
        pytest.skip("NOT TESTED: needs a superuser in TEST_DATABASE_URL, to make a role that is none")
    role = f"pyrag_powerless_{os.getpid()}"
    server.execute(f"create role \"{role}\" login password 'powerless' nocreatedb")
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    yield urlunsplit(parts._replace(netloc=f"{role}:powerless@{place}"))
    server.execute(f'drop role "{role}"')


def test_a_role_that_may_not_create_databases_is_told_so(
    folder: Path, powerless: str, settings: Settings, rag: Rag
) -> None:
    dataset, _ = loaded(folder)
    with pytest.raises(InvalidConfiguration, match="may not create databases") as caught:
        evaluate_settings(dataset, [settings], Database(powerless), pytest.fail)
    assert "createdb" in caught.value.hint
    done = rag("eval", "--beir", str(folder), DATABASE_URL=powerless)
    assert done.returncode == 2
    assert "error [invalid_configuration]" in done.stderr
    assert "powerless@" not in done.stderr


def test_a_role_that_may_not_install_pgvector_is_told_where_it_is_looked_for(
    server: Server, powerless: str, left_over: Callable[[], set[str]]
) -> None:
    with psycopg.connect(powerless) as connection:
        row = connection.execute(
            "select bool_or(v.trusted) from pg_available_extension_versions as v where v.name = 'vector'"
        ).fetchone()
    if row == (True,):
        pytest.skip("NOT TESTED: on this server every role may install pgvector")
    server.execute(f'alter role "{urlsplit(powerless).username}" createdb')
    block = Database(powerless).throwaway()
    with pytest.raises(InvalidConfiguration, match="vector is not installed") as caught:
        block.__enter__()
    assert "run in template1: create extension vector" in caught.value.hint
    assert left_over() == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_the_database_goes_also_when_interrupted(
    folder: Path, url: str, left_over: Callable[[], set[str]], number: signal.Signals
) -> None:
    rows = [{"_id": f"n{n}", "text": f"Document {n} of many about {n * 7}. " * 20} for n in range(3000)]
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    shell = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code} from pyrag.cli import main; main()", "eval", "--beir", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**shell, "EMBEDDING_PROVIDER": "fake", "LLM_PROVIDER": "fake", "DATABASE_URL": url},
        cwd="/",
    )
    deadline = time.monotonic() + 30
    while not left_over() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert left_over() == set()


# The command ---------------------------------------------------------------------------------------

KEYS = ["metrics", "latency_ms", "questions", "documents", "provider", "model", "retrieval", "dataset"]


def test_json_has_the_agreed_shape_and_needs_no_schema(
    folder: Path, rag: Rag, empty_url: str, left_over: Callable[[], set[str]]
) -> None:
    done = rag("eval", "--beir", str(folder), "--json", DATABASE_URL=empty_url)
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert list(body) == KEYS
    assert list(body["metrics"]) == ["ndcg@10", "recall@5", "recall@20", "mrr@10"]
    assert body["metrics"]["mrr@10"] == 0.875
    assert list(body["latency_ms"]) == ["median", "p95"]
    assert 0 < body["latency_ms"]["median"] <= body["latency_ms"]["p95"]
    assert {key: body[key] for key in KEYS[2:]} == {
        "questions": 4,
        "documents": 5,
        "provider": "fake",
        "model": "fake-lexical-v1",
        "retrieval": "lexical",
        "dataset": "tiny",
    }
    assert "storing 5 documents, then 4 searches" in done.stderr
    assert left_over() == set()


def test_refusal_comes_with_off_topic_or_held_out(folder: Path, off_topic: Path, rag: Rag) -> None:
    (folder / "heldout.txt").write_text("b 2\n", encoding="utf-8")
    for options, questions, documents in (
        (["--off-topic", str(off_topic)], 4, 5),
        (["--held-out"], 3, 4),
        (["--held-out", "--off-topic", str(off_topic), "--sample", "2"], 2, 4),
    ):
        done = rag("eval", "--beir", str(folder), *options, "--json", RAG_MIN_CONFIDENCE="0.3")
        assert done.returncode == 0, done.stderr
        body = json.loads(done.stdout)
        assert list(body) == [KEYS[0], "refusal", *KEYS[1:]]
        assert list(body["refusal"]) == ["auroc", "wrong_answers", "wrong_refusals", "threshold"]
        assert body["refusal"]["threshold"] == 0.3
        assert all(0 <= value <= 1 for value in body["refusal"].values())
        assert (body["questions"], body["documents"]) == (questions, documents)


def test_bad_scores_are_no_error(folder: Path, rag: Rag) -> None:
    (folder / "qrels.tsv").write_text("q1\td\t1\n", encoding="utf-8")
    done = rag("eval", "--beir", str(folder))
    assert done.returncode == 0
    assert re.search(r"^tiny: 1 questions, 5 documents; fake fake-lexical-v1$", done.stdout, re.MULTILINE)
    assert re.search(r"^ndcg@10 +0\.\d{4}$", done.stdout, re.MULTILINE)
    assert re.search(r"^search p95, ms +\d+\.\d$", done.stdout, re.MULTILINE)


def test_two_settings_are_compared(folder: Path, off_topic: Path, rag: Rag) -> None:
    sides = ("RAG_RETRIEVAL=vector", "RAG_MIN_SIMILARITY=0.99,RAG_RETRIEVAL=vector")
    command = ("eval", "--beir", str(folder), "--off-topic", str(off_topic), "--compare", *sides)
    body = json.loads(rag(*command, "--json").stdout)
    assert list(body) == [KEYS[0], "refusal", *KEYS[1:], "compare"]
    found = body["compare"]
    assert (found["a"], found["b"]) == sides
    assert (found["wins"], found["losses"], found["ties"], found["p_value"]) == (0, 0, 4, 1)
    assert (found["mean_difference"], found["regressions"]) == (0, [])
    assert found["b_result"]["refusal"]["wrong_refusals"] == 1.0
    assert found["b_result"]["metrics"] == body["metrics"]
    text = rag(*command).stdout
    assert re.search(r"^ndcg@10 +0\.\d{4} +0\.\d{4}$", text, re.MULTILINE)
    assert f"B: {sides[1]}" in text
    assert "better for 0 questions, worse for 0, equal for 4; sign test p = 1" in text


@pytest.mark.parametrize(
    ("side", "word"),
    [
        ("RAG_RETRIEVAL", "'RAG_RETRIEVAL' is not NAME=VALUE"),
        ("RAG_RETRIEVAL=", "is not NAME=VALUE"),
        ("DATABASE_URL=postgresql://h/x", "is not NAME=VALUE of a setting that can be compared"),
        ("RAG_TOPK=3", "'RAG_TOPK=3' is not"),
        ("RAG_TOP_K=3,RAG_TOP_K=4", "'RAG_TOP_K=4' is not"),
        ("RAG_RETRIEVAL=magic", "RAG_RETRIEVAL=magic is not allowed"),
        ("EMBEDDING_PROVIDER=local-qwen3", "not built in this version"),
    ],
)
def test_a_side_of_a_comparison_that_is_wrong_is_named(folder: Path, rag: Rag, side: str, word: str) -> None:
    done = rag("eval", "--beir", str(folder), "--compare", "RAG_TOP_K=5", side)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_options_that_do_not_go_together_are_named(folder: Path, rag: Rag) -> None:
    for options in (
        ["--sample", "3"],
        ["--held-out"],
        ["--plot", "x.png"],
        ["--off-topic", "x"],
        ["--compare", "RAG_TOP_K=1", "RAG_TOP_K=2"],
    ):
        done = rag("eval", *options)
        assert done.returncode == 2
        assert f"{options[0]} needs --beir" in done.stderr
    done = rag("eval", "--beir", str(folder), "--answers")
    assert done.returncode == 2
    assert "do not go with --beir" in done.stderr


def test_a_plot_is_written(folder: Path, off_topic: Path, rag: Rag, tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    done = rag(
        "eval", "--beir", str(folder), "--off-topic", str(off_topic), "--plot", str(path),
        "--compare", "RAG_RETRIEVAL=vector", "RAG_MIN_SIMILARITY=0.5",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"plot: {path}" in done.stdout


def test_a_plot_that_cannot_be_made_is_said_at_once(
    folder: Path, rag: Rag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, why in (("plot.gif", "must end in"), ("none/plot.png", "there is no folder")):
        done = rag("eval", "--beir", str(folder), "--plot", str(tmp_path / name))
        assert done.returncode == 2
        assert why in done.stderr
        assert "storing" not in done.stderr
    from pyrag import eval_plot

    monkeypatch.setattr(eval_plot, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match="needs matplotlib") as caught:
        eval_plot.check_plot(tmp_path / "plot.png")
    assert "[plots]" in caught.value.hint


# The shared sets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "least"), [("xquad-zh", 0.85), ("xquad-en", 0.6), ("cmrc2018-trial", 0.9)])
def test_a_shared_set_is_measured(shared: Path, rag: Rag, name: str, least: float) -> None:
    done = rag("eval", "--beir", str(shared / "evalsets" / name), "--sample", "200", "--json")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert (body["questions"], body["dataset"]) == (200, name)
    assert body["metrics"]["ndcg@10"] >= least


def test_shared_refusals_are_measured(shared: Path, rag: Rag) -> None:
    sets = shared / "evalsets"
    strangers = sets / "offtopic" / "cmrc2018-trial__asked-by__xquad-zh.jsonl"
    command = ("eval", "--beir", str(sets / "cmrc2018-trial"), "--held-out", "--sample", "100", "--json")
    for options in ((), ("--off-topic", str(strangers))):
        done = rag(*command, *options)
        assert done.returncode == 0, done.stderr
        body = json.loads(done.stdout)
        assert body["documents"] == 128
        assert body["refusal"]["auroc"] > 0.7
