"""Why a question is answered or not, and what kept a note out: never another story than `ask` tells."""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import Server, command
from falcon import testing

from pyrag.config import Settings, load_configuration
from pyrag.context import pack_context
from pyrag.db import Database, Index
from pyrag.embeddings import FakeLexicalEmbedder
from pyrag.errors import InvalidRequest, RetrievalNotReady
from pyrag.explaining import explain_response, why_not_response
from pyrag.http import create_app
from pyrag.ingest import ingest_vault
from pyrag.models import (
    Candidate,
    Context,
    Decision,
    Explained,
    Hit,
    NoteFound,
    NotePath,
    RankedChunk,
    Retrieval,
)
from pyrag.schemas import ExplainedCandidate, ExplainResponse, Filter, WhyNotResponse
from pyrag.service import Service
from pyrag.vault import scan_vault

Rag = Callable[..., subprocess.CompletedProcess[str]]
MODES: tuple[Retrieval, ...] = ("vector", "lexical", "hybrid")
PUMP = "How is the pump primed after a valve change?"
NOTES = {
    "Ops/Pump Manual.md": "---\ntags: [ops]\n---\n# Pump Manual\n\n## Priming\n\nThe pump is primed after"
    " each valve change.\n\n## Storage\n\nKeep spare seals dry.\n",
    "Ops/Valve List.md": "# Valve List\n\nA valve change needs a permit.\n",
    "twin-a.md": "# Twin\n\nA pump is primed with water after a valve change.\n",
    "twin-b.md": "# Twin\n\nA pump is primed with water after a valve change.\n",
    "中文/数据库 备份.md": "# 备份\n\n## 恢复步骤\n\n数据库备份每天一次，恢复需要两小时。\n",
    "C# notes.md": "# C# basics\n\nA pump class in C#.\n",
    "empty.md": "",
    "warned.md": "---\ntags: [a\n---\n# Warned\n\nSeals.\n",
    "gone.md": "# Gone\n\nAn old pump.\n",
    "old.md": "# Travels\n\nThis note is renamed later.\n",
    "edited.md": "# Edited\n\nThe first version about gaskets.\n",
    "a/same.md": "# Same\n\nOne of two.\n",
    "b/same.md": "# Same\n\nThe other of two.\n",
    ".obsidian/hidden.md": "# Hidden\n\nA pump nobody sees.\n",
}


def write(vault: Path, notes: dict[str, str]) -> None:
    for name, text in notes.items():
        path = vault / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def only(**conditions: Any) -> Filter:
    return Filter.model_validate(conditions)


def ingest(url: str, vault: Path, **options: Any) -> None:
    ingest_vault(vault, Database(url), FakeLexicalEmbedder(), **options)


@pytest.fixture(scope="module")
def world(
    server: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """A database after two runs of a vault in which much went wrong, and the vault."""
    url = server.create(template)
    vault = tmp_path_factory.mktemp("notes")
    write(vault, NOTES)
    write(vault, {f"log/day {n}.md": f"# Day {n}\n\nThe pump ran for {n} hours.\n" for n in range(70)})
    (vault / "latin.md").write_bytes("# Gr\xf6\xdfe\n".encode("latin-1"))
    ingest(url, vault)
    (vault / "gone.md").unlink()
    (vault / "old.md").rename(vault / "new.md")
    (vault / "edited.md").write_bytes(b"# Edited\n\n\xff\xfe\xfd the second version\n")
    ingest(url, vault)
    yield url, vault
    server.drop(url)


def service_on(url: str, **changes: Any) -> Service:
    settings = load_configuration(folder=Path("/"), environ={}).settings
    return Service(settings.model_copy(update=changes), Database(url, pool_size=1))


@pytest.fixture(scope="module")
def by_mode(world: tuple[str, Path]) -> dict[Retrieval, Service]:
    return {mode: service_on(world[0], asked_retrieval=mode) for mode in MODES}


@pytest.fixture(params=MODES)
def any_service(by_mode: dict[Retrieval, Service], request: pytest.FixtureRequest) -> Service:
    return by_mode[request.param]


@pytest.fixture
def by_words(by_mode: dict[Retrieval, Service]) -> Service:
    return by_mode["lexical"]


def outcome_of(response: ExplainResponse, source: str) -> ExplainedCandidate:
    return next(each for each in response.candidates if each.source == source)


# Outcomes of explain -------------------------------------------------------------------------------


def test_the_candidates_go_down_to_the_fiftieth_with_places_from_one(any_service: Service) -> None:
    found = any_service.explain(PUMP, 3)
    assert [each.place for each in found.candidates] == list(range(1, 51))
    assert {each.outcome for each in found.candidates[3:]} == {"beyond_top_k"}
    assert all(each.reason for each in found.candidates)
    assert all(len(each.preview) <= 200 for each in found.candidates)


def test_used_ones_have_the_numbers_of_the_citations(any_service: Service) -> None:
    found, asked = any_service.explain(PUMP, 4), any_service.ask(PUMP, 4)
    used = [each for each in found.candidates if each.outcome == "used"]
    assert [each.number for each in used] == list(range(1, len(asked.citations) + 1))
    assert [(each.source, each.heading) for each in used] == [
        (each.source, each.heading) for each in asked.citations
    ]
    assert found.decision == asked.decision
    assert (
        f"Answered from {len(used)} of 4 chunks: confidence {found.confidence:.2f} is not below"
        f" the threshold {found.threshold:.2f}." == found.summary
    )
    assert 0 < found.context_tokens <= found.budget == 6000


def test_a_duplicate_names_the_place_that_says_the_same(by_words: Service) -> None:
    found = by_words.explain(PUMP, 5)
    first, second = (outcome_of(found, f"twin-{letter}.md") for letter in "ab")
    assert (first.outcome, second.outcome) == ("used", "duplicate")
    assert second.reason == f"says the same as place {first.place}"


def test_what_the_budget_has_no_room_for_is_said(world: tuple[str, Path]) -> None:
    small = service_on(world[0], context_token_budget=170)
    found = small.explain(PUMP, 5)
    assert {each.outcome for each in found.candidates[:5]} >= {"used", "over_budget"}
    assert all("170 tokens" in each.reason for each in found.candidates if each.outcome == "over_budget")
    assert found.context_tokens <= 170


def test_a_first_chunk_that_is_cut_says_so(url: str, tmp_path: Path) -> None:
    write(tmp_path, {"long.md": "# Long\n\n" + "The pump is primed slowly. " * 40})
    ingest(url, tmp_path)
    found = service_on(url, context_token_budget=100).explain("pump primed")
    assert found.candidates[0].reason == "source [1], cut to fit the budget"


def test_a_budget_without_room_for_a_single_source_refuses(url: str, tmp_path: Path) -> None:
    name = f"{hashlib.sha512(b'long').hexdigest()}.md"
    write(tmp_path, {name: "# Long\n\nThe pump is primed slowly.\n"})
    ingest(url, tmp_path)
    service = service_on(url, context_token_budget=100)
    found = service.explain("pump primed")
    assert found.decision.rule == "no_room" == service.ask("pump primed").decision.rule
    assert found.summary == "Refused: RAG_CONTEXT_TOKEN_BUDGET=100 has room for none of the 1 chunk found."
    assert [each.outcome for each in found.candidates] == ["over_budget"]
    assert service.why_not("pump primed", name).status == "over_budget"


def test_a_refusal_applies_to_all_that_was_found(by_words: Service) -> None:
    question = "Which pump won the Nobel prize in literature last Tuesday?"
    found = by_words.explain(question, 3)
    assert found.decision.mode == "no_answer"
    assert [each.outcome for each in found.candidates[:3]] == ["below_threshold"] * 3
    assert found.candidates[0].reason == found.decision.reason
    assert re.fullmatch(
        r"Refused: the answer is probably not there \(best coverage 0\.\d\d, best similarity 0\.\d\d\);"
        r" confidence 0\.\d\d is below the threshold 0\.50\.",
        found.summary,
    )
    assert found.context_tokens == 0


def test_a_refusal_by_similarity_says_so(by_mode: dict[Retrieval, Service]) -> None:
    found = by_mode["vector"].explain("Zanzibar quokka?")
    assert found.summary.startswith("Refused: no chunk is similar enough: confidence ")
    assert found.terms == []


def test_the_floor_on_similarity_is_named(world: tuple[str, Path]) -> None:
    service = service_on(world[0], min_similarity=0.99)
    found = service.explain(PUMP)
    assert found.decision.rule == service.ask(PUMP).decision.rule == "below_min_similarity"
    assert "is below the floor 0.99 of RAG_MIN_SIMILARITY." in found.summary
    assert service.why_not(PUMP, "twin-a.md").status == "below_threshold"


def test_fallback_is_named_whether_enabled_or_not(world: tuple[str, Path]) -> None:
    question = "Zanzibar quokka pump?"
    off = service_on(world[0]).explain(question, fallback=True)
    assert off.summary.endswith("; fallback was asked for, but it is disabled globally.")
    on = service_on(world[0], fallback_enabled=True).explain(question, fallback=True)
    assert on.decision.mode == "fallback"
    assert on.summary.startswith("Passed to the model's general knowledge: the answer is probably not there")
    assert on.candidates[0].outcome == "below_threshold"


def test_what_the_filter_kept_out_is_listed_without_a_place(any_service: Service) -> None:
    found = any_service.explain(PUMP, filter=only(tags={"any": ["ops"]}))
    barred = [each for each in found.candidates if each.outcome == "filtered"]
    assert barred
    assert all(each.place is None and each.reason == "does not pass the filter" for each in barred)
    assert {each.source for each in found.candidates if each.place} == {"Ops/Pump Manual.md"}
    nothing = any_service.explain(PUMP, filter=only(path_prefix="nowhere"))
    assert nothing.summary == "Refused: nothing was found; 50 chunks did not pass the filter."


def test_words_of_the_question_with_the_chunks_that_have_them(by_words: Service) -> None:
    terms = {each.term: each for each in by_words.explain("pump quokka").terms}
    assert set(terms) == {"pump", "quokka"}
    assert terms["pump"].chunks > 70
    assert terms["quokka"].chunks == 0
    assert terms["quokka"].weight > terms["pump"].weight


def test_coverage_is_that_of_each_chunk_not_of_the_best(by_words: Service, world: tuple[str, Path]) -> None:
    found = by_words.search(PUMP, 20)
    with psycopg.connect(world[0]) as connection:
        stored = connection.execute("select r.coverage from rag.find_lexical(%s, 20) as r", [PUMP]).fetchall()
    assert [each.coverage for each in found.results] == [row[0] for row in stored]
    assert len({each.coverage for each in found.results}) > 3
    explained = by_words.explain(PUMP)
    assert explained.decision.coverage == max(each.coverage or 0 for each in explained.candidates)


def test_it_needs_no_settings_of_a_model(world: tuple[str, Path]) -> None:
    service = service_on(world[0], llm_provider="openai-compatible")
    assert service.explain(PUMP).decision.mode == "rag"
    assert service.why_not(PUMP, "twin-a.md").status == "used"


def test_strict_mode_has_its_say_after_the_model(world: tuple[str, Path]) -> None:
    found = service_on(world[0], require_quotes=True).explain(PUMP)
    assert found.summary.endswith(" the threshold 0.50; given only if its quotes are true.")


def test_questions_that_are_none_are_refused(by_words: Service) -> None:
    for bad in ("", "  ", "a\0b", "\ud800"):
        with pytest.raises(InvalidRequest):
            by_words.explain(bad)
        with pytest.raises(InvalidRequest):
            by_words.why_not(bad, "x.md")
    for bad in ("a\0b", "\ud800"):
        with pytest.raises(InvalidRequest, match="path holds"):
            by_words.why_not("pump", bad)
    for top_k in (0, 21):
        with pytest.raises(InvalidRequest):
            by_words.explain("pump", top_k)


def test_an_empty_index_is_not_ready_for_explain_and_an_answer_of_why_not(service: Service) -> None:
    with pytest.raises(RetrievalNotReady):
        service.explain("pump")
    reply = service.why_not("pump", "x.md")
    assert (reply.status, reply.decision) == ("nothing_indexed", None)
    assert reply.summary == "Nothing is indexed yet, so x.md is not either."


# A note that is missed: where it stands ------------------------------------------------------------


def test_a_note_that_is_used_is_not_left_out(any_service: Service) -> None:
    reply = any_service.why_not(PUMP, "Ops/Pump Manual.md#Priming")
    assert reply.status == "used"
    assert re.fullmatch(
        r"It is not left out: Ops/Pump Manual\.md#Priming is source \[\d\] of the answer\.", reply.summary
    )
    assert reply.ahead == []


@pytest.mark.parametrize(
    "path",
    [
        "Ops/Pump Manual.md",
        "./Ops/Pump Manual.md",
        "Ops/Pump Manual",
        "ops/pump manual.MD",
        "Pump Manual.md",
        "pump manual",
        "Pump Manual#priming",
        "Ops/Pump Manual.md#Pump Manual#Priming",
    ],
)
def test_a_path_may_be_written_in_many_ways(by_words: Service, path: str) -> None:
    reply = by_words.why_not(PUMP, path)
    assert (reply.status, reply.note.path) == ("used", "Ops/Pump Manual.md")


def test_an_absolute_path_and_one_from_above_the_vault(by_words: Service, world: tuple[str, Path]) -> None:
    vault = world[1].resolve()
    for path in (f"{vault}/twin-a.md", f"{vault.name}/twin-a.md"):
        reply = by_words.why_not(PUMP, path)
        assert (reply.note.path, reply.note.vault) == ("twin-a.md", str(vault))


@pytest.mark.parametrize(
    ("path", "note", "heading"),
    [
        ("C# notes.md", "C# notes.md", None),
        ("C# notes#C# basics", "C# notes.md", "C# basics"),
        ("数据库 备份", "中文/数据库 备份.md", None),
        ("中文/数据库 备份.md#恢复步骤", "中文/数据库 备份.md", "恢复步骤"),
    ],
)
def test_a_number_sign_in_a_name_is_part_of_it(
    by_words: Service, path: str, note: str, heading: str | None
) -> None:
    reply = by_words.why_not("pump class 备份", path)
    assert (reply.note.path, reply.note.heading) == (note, heading)
    assert reply.best is not None


def test_two_notes_of_one_name_are_ambiguous_until_the_folder_is_named(
    by_words: Service, world: tuple[str, Path]
) -> None:
    reply = by_words.why_not(PUMP, "same.md")
    vault = world[1].resolve()
    assert (reply.status, reply.summary) == ("ambiguous", "same.md may be any of 2 notes.")
    assert reply.hints == [f"Name one of them: {vault}/{name}/same.md" for name in "ab"]
    assert by_words.why_not(PUMP, "a/same").note.path == "a/same.md"


def test_a_note_beyond_top_k_says_its_place_and_how_to_reach_it(by_words: Service) -> None:
    found = by_words.explain(PUMP, 2)
    late = next(each for each in found.candidates if each.place == 4)
    reply = by_words.why_not(PUMP, f"{late.source}#{late.heading}", 2)
    assert reply.status == "beyond_top_k"
    assert reply.summary == f"{late.source}#{late.heading} is at place 4, and only the 2 best are read."
    assert "It is among the best 4: ask with --top-k 4 (HTTP: top_k)" in reply.hints
    assert reply.ahead == found.candidates[:2]
    assert by_words.explain(PUMP, 4).candidates[3].outcome in ("used", "duplicate")


def test_a_note_beyond_the_fiftieth_has_its_exact_place(any_service: Service) -> None:
    found = any_service.explain("pump", 5)
    listed = {each.source for each in found.candidates}
    name = next(f"log/day {n}.md" for n in range(70) if f"log/day {n}.md" not in listed)
    reply = any_service.why_not("pump", name, 5)
    assert reply.status == "beyond_top_k"
    assert reply.best is not None
    assert max(reply.best.vector_rank or 0, reply.best.lexical_rank or 0) > 50
    assert len(reply.ahead) == 5


def test_duplicates_over_budget_and_refusals_are_told_of_the_note(
    by_words: Service, world: tuple[str, Path]
) -> None:
    reply = by_words.why_not(PUMP, "twin-b.md")
    assert reply.status == "duplicate"
    assert "says the same as place" in reply.summary
    assert reply.best is not None
    assert [each.place for each in reply.ahead] == list(range(1, reply.best.place or 0))
    small = service_on(world[0], context_token_budget=170)
    dropped = next(each for each in small.explain(PUMP, 5).candidates if each.outcome == "over_budget")
    reply = small.why_not(PUMP, f"{dropped.source}#{dropped.heading}", 5)
    assert reply.status == "over_budget"
    assert "no room for it in 170 tokens" in reply.summary
    refused = by_words.why_not("Which pump won the Nobel prize in literature?", "C# notes.md", 20)
    assert refused.status in ("below_threshold", "beyond_top_k")
    assert "the question is refused" in refused.summary


def test_a_note_that_the_filter_keeps_out(any_service: Service) -> None:
    reply = any_service.why_not(PUMP, "twin-a.md", filter=only(tags={"any": ["ops"]}))
    assert (reply.status, reply.summary) == ("filtered", "twin-a.md does not pass the filter.")
    assert reply.best is not None
    assert reply.best.place is None
    assert "Leave out the filter, or widen it." in reply.hints


def test_a_note_without_the_words(by_words: Service) -> None:
    reply = by_words.why_not("pump", "warned.md")
    assert (reply.status, reply.summary) == (
        "not_found",
        "warned.md has no word in common with the question.",
    )
    assert "Words of the question that it lacks: pump" in reply.hints
    assert any(hint.startswith("It was read with a warning: ") for hint in reply.hints)


@pytest.mark.parametrize("question", ["？？？", "😀", "..."])
def test_a_question_without_words_finds_no_note(any_service: Service, question: str) -> None:
    reply = any_service.why_not(question, "twin-a.md")
    found = any_service.explain(question)
    if not found.candidates:
        assert reply.status == "not_found"
        assert "cannot be found by this question" in reply.summary


def test_a_note_of_another_embedding_model(world: tuple[str, Path], url: str, tmp_path: Path) -> None:
    write(tmp_path, {"a.md": "# A\n\nPumps.\n", "b.md": "# B\n\nGaskets.\n"})
    ingest(url, tmp_path)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "delete from rag.embeddings as e using rag.chunks as c"
            " where c.id = e.chunk_id and c.relative_path = 'b.md'"
        )
    for mode in ("vector", "hybrid"):
        reply = service_on(url, asked_retrieval=mode).why_not("pumps", "b.md")
        assert reply.status == "not_embedded"
        assert reply.hints[0] == f"Run: rag ingest {tmp_path.resolve()}"
    assert service_on(url, asked_retrieval="lexical").why_not("pumps", "b.md").status == "not_found"
    other = service_on(url)
    other.index = Index("fake", "another-model", 1024)
    reply = other.why_not("pumps", "a.md")
    assert (reply.status, reply.decision) == ("not_embedded", None)


def test_an_empty_note_and_an_unknown_heading(by_words: Service) -> None:
    empty = by_words.why_not(PUMP, "empty.md")
    assert (empty.status, empty.best, empty.decision) == ("empty_note", None, None)
    unknown = by_words.why_not(PUMP, "Ops/Pump Manual.md#Priming it")
    assert unknown.status == "heading_unknown"
    assert unknown.summary == "Ops/Pump Manual.md has no heading Priming it."
    assert unknown.hints == ["Its headings: Pump Manual; Priming; Storage"]


def test_a_note_that_the_approximate_index_misses() -> None:
    found = NoteFound(1, "/v", "a.md", 1, ["A"], [], None, None, None)
    chunk = RankedChunk(7, ["A"], 0, "Text.", True, True, 0.9, 3, None, None, None, None)
    other = Hit(8, "/v", "b.md", [], 0, "Other.", "h", {}, 0.8, scan="index", vector_rank=1)
    decision = Decision("rag", "reached_threshold", "", 0.8, 0.2)
    explained = Explained([Candidate(other, 1, "within")], decision, [], [chunk])
    context = pack_context([other], 6000)
    path = NotePath("a", None, [found])
    reply = why_not_response(path, explained, decision, context, "vector", 5, 6000)
    assert reply.status == "missed_by_index"
    assert reply.summary == "a.md is at place 3 by vectors, but the approximate index did not find it."
    assert reply.hints == ["Measure the index with: rag db index status --check"]


def test_numbers_that_are_nearly_equal_are_told_apart() -> None:
    decision = Decision("no_answer", "below_threshold", "r", 0.4999999, 0.5)
    made = explain_response(
        Explained([], decision, []), decision, Context(),
        {"confidence": 0.4999999, "threshold": 0.5, "retrieval": "vector", "scan": "exact"}, 5, 6000, False,
    )  # fmt: skip
    assert made.summary.endswith("confidence 0.4999999 is below the threshold 0.5000000.")


# A note that is not indexed: what the ledger says --------------------------------------------------


def told(reply: WhyNotResponse) -> tuple[str, str, int | None]:
    return reply.status, reply.summary, reply.run.id if reply.run else None


def test_a_note_that_failed_says_why_and_in_which_run(any_service: Service) -> None:
    status, summary, run = told(any_service.why_not("Größe", "latin"))
    assert (status, run) == ("failed", 2)
    assert summary.startswith("Not indexed: latin.md failed in run 2: not UTF-8 (byte 0xF6 at offset 4)")


def test_deleted_and_moved_notes(by_words: Service) -> None:
    assert told(by_words.why_not("pump", "gone.md")) == (
        "deleted",
        "gone.md was deleted in run 2: file is gone.",
        2,
    )
    assert told(by_words.why_not("pump", "old.md#Travels")) == (
        "moved",
        "old.md was moved to new.md in run 2.",
        2,
    )
    assert by_words.why_not("travels renamed", "new.md").status == "used"


def test_a_note_whose_newest_version_failed_is_searched_as_it_was(by_words: Service) -> None:
    reply = by_words.why_not("gaskets version", "edited.md")
    assert (reply.status, reply.run.id if reply.run else None) == ("used", 2)
    assert reply.hints[0].startswith("Run 2 did not take in its newest state: not UTF-8")


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        (".obsidian/hidden.md", "Files and folders whose names begin with a dot are not read."),
        ("picture.png", "Only files whose names end in .md are read."),
        ("Ops", "Similar: "),
        ("manual of pumps.md", "Similar: "),
        ("nowhere.md#x#y", "If it is in a vault, run: rag ingest PATH_OF_THE_VAULT"),
        ("#", "If it is in a vault, run: rag ingest PATH_OF_THE_VAULT"),
        ("%", "If it is in a vault, run: rag ingest PATH_OF_THE_VAULT"),
    ],
)
def test_a_note_that_was_never_seen(by_words: Service, path: str, hint: str) -> None:
    reply = by_words.why_not(PUMP, path)
    assert (reply.status, reply.note.path, reply.note.vault) == ("never_seen", path, None)
    assert reply.hints[0].startswith(hint)


def test_withheld_deletions_pending_and_interrupted_runs(url: str, tmp_path: Path) -> None:
    write(tmp_path, {f"n{n}.md": f"# N{n}\n\nThe pump {n}.\n" for n in range(10)})
    ingest(url, tmp_path)
    for n in range(8):
        (tmp_path / f"n{n}.md").unlink()
    ingest(url, tmp_path)
    service = service_on(url)
    withheld = service.why_not("pump", "n0.md", 20)
    assert withheld.status in ("used", "duplicate")
    assert withheld.hints[0].startswith("Run 2 did not take in its newest state: withheld: 8 of 10")
    write(tmp_path, {"late.md": "# Late\n\nA late pump.\n"})
    vault = tmp_path.resolve()
    with Database(url).ingest_session() as session:
        run = session.begin_run(str(vault), service.index)
        session.record_plan(run, scan_vault(vault), False)
        waiting = service.why_not("pump", "late.md")
        assert waiting.summary == f"Not indexed yet: run {run} is at work and has not come to late.md."
    for _ in range(50):  # until the server has noticed that the session is gone
        reply = service.why_not("pump", "late.md")
        if "ended before" in reply.summary:
            break
    assert told(reply) == ("pending", f"Not indexed: run {run} ended before it came to late.md.", run)


def test_a_note_that_was_removed_by_hand_or_forgotten(url: str, tmp_path: Path) -> None:
    write(tmp_path, {f"{n}.md": f"# {n}\n\nThe pump.\n" for n in ("hand", "secret", "kept")})
    ingest(url, tmp_path)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("delete from rag.documents where relative_path = 'hand.md'")
    Database(url).forget(str(tmp_path.resolve()), "secret.md", True)
    service = service_on(url)
    assert told(service.why_not("pump", "hand.md")) == (
        "deleted", "hand.md was in the index in run 1, but has been removed since.", 1,
    )  # fmt: skip
    assert service.why_not("pump", "secret.md").status == "never_seen"


def test_of_two_vaults_the_one_of_the_filter_is_meant(url: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, {"note.md": f"# {name}\n\nThe pump of {name}.\n"})
        ingest(url, tmp_path / name)
    service = service_on(url)
    assert service.why_not("pump", "note.md").status == "ambiguous"
    vault = str((tmp_path / "two").resolve())
    reply = service.why_not("pump", "note.md", filter=only(vault=vault))
    assert (reply.status, reply.note.vault) == ("used", vault)


# Never another story than ask ----------------------------------------------------------------------


def questions(rng: random.Random, count: int) -> Iterator[str]:
    words = re.findall(r"\w+", " ".join(NOTES.values()))
    others = ["Zanzibar", "quokka", "Nobel", "literature", "the", "what", "how", "37", "量子", "天气", "如何"]
    odd = [
        "？？？",
        "泵",
        "a",
        "😀",
        ".",
        "的",
        "数",
        "数据",
        "%",
        "\\",
        "'",
        "' or 1=1 --",
        "{}",
        "\u202e",
        "e\u0301",
    ]
    for _ in range(count):
        kind = rng.randrange(5)
        if kind == 0:
            yield rng.choice(odd)
            continue
        pool = [words, others, words + others, words + odd][kind - 1]
        yield " ".join(rng.choices(pool, k=rng.randint(1, 12)))


FILTERS = (
    None,
    None,
    None,
    only(path_prefix="log"),
    only(tags={"any": ["ops"]}),
    only(path_prefix="x"),
)
FITTING = {  # what a note may be that has a candidate of this outcome
    "used": {"used"},
    "duplicate": {"duplicate", "used", "over_budget"},
    "over_budget": {"over_budget", "used", "duplicate"},
    "below_threshold": {"below_threshold"},
    "beyond_top_k": {"beyond_top_k", "used", "duplicate", "over_budget", "below_threshold"},
    "filtered": {"filtered"},
}


@pytest.mark.parametrize("mode", MODES)
def test_decision_explain_and_ask_never_disagree(world: tuple[str, Path], mode: Retrieval) -> None:
    rng = random.Random(f"explain {mode}")
    services = [
        service_on(world[0], asked_retrieval=mode),
        service_on(world[0], asked_retrieval=mode, context_token_budget=150),
        service_on(world[0], asked_retrieval=mode, min_similarity=0.35),
        service_on(world[0], asked_retrieval=mode, fallback_enabled=True),
    ]
    seen: set[str] = set()
    for question in questions(rng, 60):
        service, top_k = rng.choice(services), rng.choice([None, 1, 3, 20])
        fallback, filter = rng.random() < 0.3, rng.choice(FILTERS)
        asked = service.ask(question, top_k, fallback, filter)
        searched = service.search(question, top_k, filter)
        found = service.explain(question, top_k, fallback, filter)
        assert (found.decision, found.confidence, found.threshold) == (
            asked.decision, asked.confidence, asked.threshold,
        ), question  # fmt: skip
        used = [each for each in found.candidates if each.outcome == "used"]
        assert [(each.number, each.source, each.heading, each.score) for each in used] == [
            (number, each.source, each.heading, each.score)
            for number, each in enumerate(asked.citations, start=1)
        ], question
        assert bool(used) == (asked.mode == "rag")
        within = [each for each in found.candidates if each.outcome not in ("beyond_top_k", "filtered")]
        assert [(each.source, each.heading_path, each.coverage) for each in within] == [
            (each.source, each.heading_path, each.coverage) for each in searched.results
        ], question
        start = {"rag": "Answered", "no_answer": "Refused", "fallback": "Passed"}[asked.mode]
        assert found.summary.startswith(f"{start} ") or found.summary.startswith(f"{start}:")
        seen |= {each.outcome for each in found.candidates}
        for each in rng.sample(found.candidates, min(3, len(found.candidates))):
            reply = service.why_not(question, each.source, top_k, filter)
            others = {e.outcome for e in found.candidates if e.source == each.source}
            if asked.mode != "fallback" or reply.status != "below_threshold":
                assert reply.status in others, (question, each, reply)
            assert reply.status in FITTING[each.outcome], (question, each, reply)
            assert reply.best is not None
            if each.place is not None and len([e for e in found.candidates if e.source == each.source]) == 1:
                assert (reply.best.chunk_id, reply.best.place) == (each.chunk_id, each.place)
                for name in ("vector_rank", "lexical_rank"):
                    if getattr(each, name) is not None:
                        assert getattr(reply.best, name) == getattr(each, name), (question, each, reply)
    assert seen >= {"used", "over_budget", "below_threshold", "beyond_top_k", "filtered"}


# Over HTTP and on the command line -----------------------------------------------------------------


@pytest.fixture
def app(world: tuple[str, Path]) -> testing.TestClient:
    return testing.TestClient(create_app(service_on(world[0])))


def test_the_bodies_over_http(app: testing.TestClient, by_words: Service) -> None:
    filter = {"tags": {"any": ["ops"]}}
    made = app.simulate_post("/explain", json={"question": PUMP, "top_k": 2, "filter": filter})
    assert made.status_code == 200
    expected = by_words.explain(PUMP, 2, filter=only(tags={"any": ["ops"]}))
    assert made.json == json.loads(expected.model_dump_json())
    assert next(iter(made.json)) == "summary"
    for path in ("twin-b.md", "gone.md", "none.md"):
        made = app.simulate_post("/why-not", json={"question": PUMP, "path": path})
        assert made.status_code == 200
        assert made.json == json.loads(by_words.why_not(PUMP, path).model_dump_json())
        assert list(made.json)[:2] == ["summary", "status"]


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/explain", {}),
        ("/explain", {"question": ""}),
        ("/explain", {"question": "x", "top_k": 21}),
        ("/explain", {"question": "x", "path": "y"}),
        ("/why-not", {"question": "x"}),
        ("/why-not", {"question": "x", "path": " "}),
        ("/why-not", {"question": "x", "path": "a\0b"}),
        ("/why-not", {"question": "x", "path": "y", "fallback": True}),
    ],
)
def test_bad_bodies_are_refused(app: testing.TestClient, route: str, body: dict[str, Any]) -> None:
    made = app.simulate_post(route, json=body)
    assert (made.status_code, made.json["error"]["code"]) == (422, "invalid_request")


def test_on_an_empty_index_over_http(service: Service) -> None:
    app = testing.TestClient(create_app(service))
    assert app.simulate_post("/explain", json={"question": "x"}).status_code == 503
    made = app.simulate_post("/why-not", json={"question": "x", "path": "y"})
    assert (made.status_code, made.json["status"]) == (200, "nothing_indexed")


def test_a_file_that_failed_and_has_vanished_since_is_not_told_to_fail(
    service: Service, tmp_path: Path
) -> None:
    vault = tmp_path / "left"
    vault.mkdir()
    (vault / "a.md").write_text("# Pump\n\nThe pump is primed by hand.\n", encoding="utf-8")
    (vault / "bad.md").write_bytes("泵".encode("gb18030"))
    ingest_vault(vault, service.database, service.embedder)
    assert service.why_not(PUMP, "bad.md").status == "failed"
    (vault / "bad.md").unlink()
    ingest_vault(vault, service.database, service.embedder)
    reply = service.why_not(PUMP, "bad.md")
    assert reply.status == "deleted"
    assert "a later run did not find it any more" in reply.summary


def test_stop_words_alone_are_no_question_that_is_answered(service: Service, tmp_path: Path) -> None:
    vault = tmp_path / "talk"
    vault.mkdir()
    (vault / "a.md").write_text("# Trial\n\nHow long is it? What are you in it?\n", encoding="utf-8")
    ingest_vault(vault, service.database, service.embedder)
    for question in ("How are you?", "What is this?", "Who are you?", "How?", "the"):
        assert service.ask(question).mode == "no_answer", question


def test_the_commands(world: tuple[str, Path], by_words: Service) -> None:
    rag = command(world[0])
    shown = rag("explain", PUMP, "-k", "2", "--path", "Ops")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[0] == by_words.explain(PUMP, 2, filter=only(path_prefix="Ops")).summary
    assert any(re.match(r"  1 used \[1\] +0\.\d{3} +1 +- +\d\.\d\d Ops/", line) for line in lines)
    assert any(line.startswith("  - filtered ") for line in lines)
    found = json.loads(rag("explain", PUMP, "--json").stdout)
    assert found == json.loads(by_words.explain(PUMP).model_dump_json())
    reply = rag("why-not", PUMP, "latin.md")
    assert reply.returncode == 0
    assert reply.stdout.startswith("Not indexed: latin.md failed in run 2: not UTF-8")
    reply = rag("why-not", PUMP, "Ops/Valve List.md", "-k", "1")
    assert reply.stdout.splitlines()[0].endswith("and only the best one is read.")
    assert "ahead of it:" in reply.stdout
    body = json.loads(rag("why-not", PUMP, "gone.md", "--json").stdout)
    assert body == json.loads(by_words.why_not(PUMP, "gone.md").model_dump_json())


def test_tables_fit_a_terminal_and_names_cannot_steer_it(rag: Rag, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "esc\x1b[2J\nname.md": "# Bell\x07\n\nThe bell \x1b]0;pwned\x07 rings.\n",
            "很长的文件夹/" + "很长的名字" * 12 + ".md": "# 标题" + "很长" * 30 + "\n\nThe bell 铃 rings.\n",
        },
    )
    assert rag("ingest", str(tmp_path)).returncode == 0
    for done in (rag("explain", "bell rings"), rag("why-not", "bell rings", "esc\x1b[2J\nname", "-k", "1")):
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        assert "\x07" not in done.stdout
        assert "esc\\x1b[2J" in done.stdout
    table = [
        line for line in rag("explain", "bell rings").stdout.splitlines() if re.match(" +[0-9-]+ ", line)
    ]
    assert len(table) == 2
    assert all(sum(2 if ord(char) > 0x2E80 else 1 for char in line) <= 100 for line in table)


def test_settings_are_used(settings: Settings, world: tuple[str, Path]) -> None:
    changed = settings.model_copy(update={"top_k": 1})
    found = Service(changed, Database(world[0])).explain(PUMP)
    assert [each.outcome for each in found.candidates[:2]] == ["used", "beyond_top_k"]
