"""Calibration: the fit against known weights, what is refused, what the command stores and leaves alone."""

from __future__ import annotations

import json
import math
import os
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
import yaml
from conftest import Server
from psycopg.conninfo import conninfo_to_dict

from pyrag import calibration
from pyrag.calibration import (
    ANSWERABLE,
    Case,
    Share,
    Weights,
    auroc_interval,
    balance,
    check_library,
    figures,
    fit,
    fit_weights,
    out_of_fold,
    reliability,
    wilson,
)
from pyrag.calibration_report import make_report
from pyrag.db import THROWAWAY_PREFIX, Database
from pyrag.errors import InvalidRequest
from pyrag.ingest import ingest_vault
from pyrag.labelled import HELD_OUT, OFF_TOPIC, OWN, Labelled
from pyrag.service import Service

Rag = Callable[..., CompletedProcess[str]]
Refusals = Callable[..., str]

NAMES = [
    "amber", "basalt", "cedar", "delta", "ember", "falcon", "garnet", "harbor",
    "indigo", "jasper", "kestrel", "lagoon", "marble", "nectar", "onyx", "pebble",
    "quartz", "raven", "saffron", "timber", "umber", "velvet", "walnut", "zephyr",
]  # fmt: skip
STRANGERS = [
    "anvil", "beacon", "copper", "dahlia", "easel", "ferry", "goblet", "hazel",
    "igloo", "juniper", "kettle", "lantern", "magnet", "noodle", "oyster", "pillow",
    "quiver", "rocket", "spindle", "trumpet", "urchin", "violin", "whistle", "yonder",
]  # fmt: skip
BORDERLINE = "Does the valve of the anvil company open?"  # answered by the shipped calibration, just so


def answerable(name: str) -> str:
    return f"At how many degrees does the {name} valve open?"


def unanswerable(name: str) -> str:
    return f"Does the valve of the {name} company open?"


def made(
    weights: Weights, count: int, seed: int = 1, chinese: float = 0.5, kind: str = OFF_TOPIC
) -> list[Case]:
    """Cases whose answers are there with the probability that these weights give."""
    chance = random.Random(seed)
    cases = []
    for number in range(count):
        share = 1.0 if chance.random() < chinese else 0.0
        case = Case(str(number), f"question {number}", kind, chance.random(), chance.random() * 0.6, share)
        yes = chance.random() < weights.probability(case)
        cases.append(replace(case, kind=ANSWERABLE if yes else kind))
    return cases


# Intervals -----------------------------------------------------------------------------------------


def test_wilson_intervals_are_the_published_ones() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    assert wilson(0, 20) == pytest.approx((0, 0.1611), abs=1e-4)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=1e-4)
    assert wilson(0, 0) == (0, 1)


def test_the_interval_of_an_auroc_holds_it_and_has_a_width_at_one() -> None:
    low, high = auroc_interval(0.85, 100, 50)
    assert 0.77 < low < 0.80
    assert 0.88 < high < 0.92
    low, high = auroc_interval(1.0, 20, 20)
    assert 0.85 < low < 0.95
    assert high == 1
    assert auroc_interval(0.0, 20, 20)[1] == pytest.approx(1 - low)


def test_more_questions_make_the_interval_of_an_auroc_narrower() -> None:
    widths = [high - low for low, high in (auroc_interval(0.9, n, n) for n in (20, 100, 1000))]
    assert widths == sorted(widths, reverse=True)


# The fit -------------------------------------------------------------------------------------------


def test_known_weights_are_found_again() -> None:
    true = Weights(-7, 0, 24, 2.5)
    cases = made(true, 4000)
    found = fit_weights(cases, None)
    yes = sum(case.answerable for case in cases)
    shift = math.log((len(cases) - yes) / yes)  # both classes count the same, as if they were equally common
    assert found.similarity == 0
    assert found.coverage == pytest.approx(24, rel=0.1)
    assert found.cjk == pytest.approx(2.5, rel=0.15)
    assert found.intercept == pytest.approx(-7 + shift, rel=0.1)


def test_similarity_has_a_weight_where_it_helps_and_never_one_below_zero() -> None:
    assert fit_weights(made(Weights(-9, 6, 20, 2), 2000), None).similarity == pytest.approx(6, rel=0.2)
    assert fit_weights(made(Weights(-4, -6, 24, 2), 2000), None).similarity == 0


def test_a_fit_is_the_same_every_time() -> None:
    cases = made(Weights(-7, 0, 24, 2.5), 300)
    assert fit(cases, 0.1) == fit(cases, 0.1)


def test_one_language_keeps_the_ratio_and_two_have_their_own_weight() -> None:
    english = fit(made(Weights(-7, 0, 24, 0), 300, chinese=0), 0.1)
    assert not english.own_cjk
    assert english.weights.cjk_ratio == pytest.approx(0.1)
    both = fit(made(Weights(-7, 0, 24, 4.8), 3000), 0.1)
    assert both.own_cjk
    assert both.weights.cjk_ratio == pytest.approx(0.2, rel=0.15)


def test_questions_that_separate_fully_do_not_give_endless_weights() -> None:
    cases = [Case(f"y{n}", f"y{n}", ANSWERABLE, 0, 0.5 + n / 100, 0) for n in range(20)]
    cases += [Case(f"n{n}", f"n{n}", OWN, 0, 0.2 - n / 100, 0) for n in range(20)]
    found = fit_weights(cases, 0.1)
    assert 10 < found.coverage < 100


def test_classes_kinds_and_bases_count_the_same() -> None:
    kinds = [ANSWERABLE] * 10 + [OFF_TOPIC] * 30 + [OWN] * 2
    weights = balance([Case(str(n), str(n), kind, 0, 0, 0) for n, kind in enumerate(kinds)])
    assert sum(weights) == pytest.approx(42)
    assert sum(weights[:10]) == pytest.approx(21)
    assert sum(weights[10:40]) == pytest.approx(sum(weights[40:])) == pytest.approx(10.5)


def test_a_confidence_is_never_that_of_weights_fitted_on_the_same_question() -> None:
    cases = [
        Case(str(number), f"question {number}", kind, 0, 0, 0)
        for number in range(25)
        for kind in (ANSWERABLE, HELD_OUT)
    ]
    seen: list[set[str]] = []

    def fitted(part: list[Case]) -> Weights:
        seen.append({case.question for case in part})
        assert {case.kind for case in part} == {ANSWERABLE, HELD_OUT}
        return Weights(float(len(seen)), 0, 0, 0)

    confidences = out_of_fold(cases, fitted)
    for case, confidence in zip(cases, confidences, strict=True):
        fold = round(math.log(confidence / (1 - confidence)))
        assert case.question not in seen[fold - 1]
    assert all(22 <= len(part) <= 23 for part in seen)


def test_the_probability_is_that_of_the_database(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    chance = random.Random(7)
    query = "select rag.answer_probability(%s, %s, %s, %s, %s, %s, %s)"
    for size in (1, 10, 100, 1000):
        for _ in range(50):
            weights = Weights(*(chance.uniform(-size, size) for _ in range(4)))
            case = Case("", "", OWN, chance.random(), chance.random(), chance.choice([0.0, 1.0, 0.4]))
            signals = [case.similarity, case.coverage, case.cjk_share]
            row = connection.execute(query, [*signals, *weights.as_list()]).fetchone()
            assert row == (pytest.approx(weights.probability(case), rel=1e-12),)


def test_the_cjk_share_comes_from_the_database_also_where_nothing_is_found(indexed: Service) -> None:
    assert indexed.database.cjk_share("客户 P1 工单？") == 0.8
    assert indexed.database.cjk_share("?!") is None
    labelled = Labelled()
    assert labelled.add(indexed, OWN, "none", "客户 P1 工单？") == []
    assert [case.cjk_share for case in labelled.cases] == [0.8]


# Figures -------------------------------------------------------------------------------------------


def test_errors_are_counted_at_each_threshold_and_by_kind() -> None:
    kinds = [ANSWERABLE, ANSWERABLE, OWN, OWN, OFF_TOPIC]
    cases = [Case(str(n), str(n), kind, 0, 0, 0) for n, kind in enumerate(kinds)]
    found = figures(cases, [0.9, 0.45, 0.55, 0.1, 0.2], threshold=0.62)
    assert [each.threshold for each in found.errors] == [0.3, 0.4, 0.5, 0.6, 0.62, 0.7, 0.8]
    half = found.errors[2]
    assert half.wrong_answers == Share.of_kinds([Share(1, 2), Share(0, 1)])
    assert (half.wrong_answers.count, half.wrong_answers.total, half.wrong_answers.value) == (1, 3, 0.25)
    assert half.wrong_refusals == Share(1, 2)
    assert half.by_kind == {OWN: Share(1, 2), OFF_TOPIC: Share(0, 1)}
    assert found.auroc == pytest.approx(0.875)
    assert found.auroc_by_kind == {OWN: 0.75, OFF_TOPIC: 1}
    assert 0.2 < found.best.threshold <= 0.45
    assert found.best.total == pytest.approx(0.25)


def test_reliability_counts_both_classes_the_same() -> None:
    cases = [Case(str(n), str(n), ANSWERABLE if n < 2 else OWN, 0, 0, 0) for n in range(12)]
    points = reliability(cases, [0.95, 0.55, *[0.55] * 10])
    assert [round(mean, 2) for mean, _, _ in points] == [0.55, 0.95]
    assert [round(share, 3) for _, share, _ in points] == [round(3 / 9, 3), 1]  # 3 of 3 + 6


# What stands against it ----------------------------------------------------------------------------

SHIPPED = {
    "retrieval": "lexical", "origin": "shipped", "in_force": True, "intercept": -7.0,
    "similarity_weight": 0.0, "coverage_weight": 24.0, "cjk_weight": 2.4,
}  # fmt: skip


@pytest.fixture
def missing(service: Service) -> Refusals:
    """What is said to be missing for such cases."""

    def of(cases: list[Case], **others: Any) -> str:
        labelled = Labelled(cases, **others)
        return "\n".join(make_report("q", service.index, "lexical", 0.5, labelled, [SHIPPED]).missing)

    return of


def test_nothing_is_missing_with_enough_questions_that_separate(missing: Refusals) -> None:
    assert missing(made(Weights(-12, 0, 40, 0), 200, chinese=0)) == ""


def test_too_few_questions_are_counted(missing: Refusals) -> None:
    cases = [Case(str(n), str(n), ANSWERABLE if n < 5 else OWN, 0, 0.1 * (n < 5), 0) for n in range(8)]
    said = missing(cases)
    assert "5 answerable questions, at least 20 are needed: 15 are missing" in said
    assert "3 unanswerable questions, at least 20 are needed: 17 are missing" in said
    assert "0 unanswerable questions" in missing(cases[:5])
    assert "0 answerable questions" in missing(cases[5:])


def test_classes_that_do_not_separate_are_refused_with_their_figures(missing: Refusals) -> None:
    said = missing(made(Weights(0, 0, 0, 0), 200, chinese=0))
    assert "do not separate: AUROC 0." in said
    assert "must reach 0.8" in said


def spread(kind: str, count: int, coverages: tuple[float, float]) -> list[Case]:
    """Cases of a kind with coverages evenly between two."""
    low, high = coverages
    return [
        Case(f"{kind}{n}", f"{kind} {n}", kind, 0, low + (high - low) * n / count, 0) for n in range(count)
    ]


def test_easy_questions_do_not_buy_what_fails_on_hard_ones(service: Service, missing: Refusals) -> None:
    hard = spread(ANSWERABLE, 24, (0.4, 0.6)) + spread(OWN, 24, (0.4, 0.6))
    easy = spread(OFF_TOPIC, 600, (0.0, 0.1))
    said = missing(hard + easy)
    assert "answerable and own questions do not separate: AUROC 0.4" in said
    assert "the classes do not separate: AUROC 0.7" in said
    assert "off-topic questions do not separate" not in said
    # as hard, but separable: nothing against it
    assert missing(spread(ANSWERABLE, 24, (0.4, 0.6)) + spread(OWN, 24, (0.2, 0.35)) + easy) == ""


def test_a_kind_fails_by_itself_where_all_together_pass(missing: Refusals) -> None:
    cases = spread(ANSWERABLE, 200, (0.3, 0.7)) + spread(OWN, 200, (0.1, 0.5))
    cases += spread(OFF_TOPIC, 200, (0.0, 0.1))
    said = missing(cases)
    assert "the classes do" not in said
    assert "answerable and own questions do not separate" not in said  # 0.86
    cases[200:400] = spread(OWN, 200, (0.2, 0.6))
    said = missing(cases)
    assert said.startswith("answerable and own questions do not separate: AUROC 0.7")
    assert "\n" not in said


def test_kinds_count_the_same_in_the_figures_and_what_is_stored(service: Service) -> None:
    cases = (
        spread(ANSWERABLE, 40, (0.4, 0.6)) + spread(OWN, 30, (0.1, 0.45)) + spread(OFF_TOPIC, 600, (0, 0.1))
    )
    made_of = make_report("q", service.index, "lexical", 0.5, Labelled(cases), [SHIPPED])
    assert made_of.fit is not None
    found = made_of.fit.figures
    assert found.auroc == pytest.approx(sum(found.auroc_by_kind.values()) / 2)
    shares = made_of.at_half.by_kind
    assert shares[OWN].value > 0
    assert made_of.at_half.wrong_answers.value == pytest.approx(shares[OWN].value / 2)
    low, high = made_of.at_half.wrong_answers.interval
    assert low < made_of.at_half.wrong_answers.value < high
    assert high - low > wilson(15, 630)[1] - wilson(15, 630)[0]  # 630 questions are not worth as many


def test_only_distinct_questions_count(missing: Refusals) -> None:
    cases = spread(ANSWERABLE, 30, (0.4, 0.6))
    cases += [replace(case, question=" Same  question" if n % 2 else "same Question") for n, case in
              enumerate(spread(OWN, 30, (0.0, 0.1)))]  # fmt: skip
    assert missing(cases) == (
        "1 unanswerable questions, at least 20 are needed: 19 are missing"
        " (no_answer entries, --off-topic FILE or --held-out)"
    )


def test_classes_that_separate_completely_are_told_from_others(service: Service) -> None:
    for own, complete in (((0.0, 0.2), True), ((0.0, 0.45), False)):
        cases = spread(ANSWERABLE, 24, (0.4, 0.6)) + spread(OWN, 24, own)
        made_of = make_report("q", service.index, "lexical", 0.5, Labelled(cases), [SHIPPED])
        assert made_of.fit is not None
        assert made_of.fit.separate is complete
        assert made_of.summary()["separate"] is complete


def test_no_warning_of_the_library_reaches_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for yes, no in (((0.5, 0.5), (0.1, 0.1)), ((0.9, 1.0), (0.0, 0.0)), ((0.3, 0.3), (0.3, 0.3))):
            fit(spread(ANSWERABLE, 24, yes) + spread(OWN, 24, no), 0.0)
    assert heard == []
    assert capfd.readouterr().err == ""


def test_labels_the_wrong_way_round_are_noticed(missing: Refusals) -> None:
    said = missing(made(Weights(8, 0, -40, 0), 200, chinese=0))
    assert "labels the wrong way round" in said


def test_questions_about_notes_that_are_not_there_are_named(missing: Refusals) -> None:
    said = missing(made(Weights(-12, 0, 40, 0), 200, chinese=0), unknown={"q7": ["a.md", "b.md"]})
    assert "1 answerable questions are not in the index: q7 (a.md, b.md)" in said


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match="scikit-learn") as caught:
        check_library()
    assert "'.[calibrate]'" in caught.value.hint


# The index without some notes ----------------------------------------------------------------------


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """A vault of 24 notes on valves."""
    folder = tmp_path / "valves"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        text = f"The {name} valve opens at {30 + number} degrees. It was made by the {name} company.\n"
        (folder / f"{name}.md").write_text(text)
    return folder


@pytest.fixture
def indexed(service: Service, vault: Path) -> Service:
    ingest_vault(vault, service.database, service.embedder, chunks_in_memory=100)
    return service


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """24 questions of each class, the unanswerable ones near the notes."""
    entries = [
        {"id": name, "question": answerable(name), "expected_mode": "rag", "expected_sources": [f"{name}.md"]}
        for name in NAMES
    ]
    entries += [
        {"id": name, "question": unanswerable(name), "expected_mode": "no_answer", "expected_sources": []}
        for name in STRANGERS
    ]
    path = tmp_path / "questions.yaml"
    path.write_text(yaml.safe_dump(entries))
    return path


def contents(url: str) -> list[object]:
    """All rows that a search reads."""
    tables = ("documents", "chunks", "embeddings", "chunk_terms", "term_counts", "uncounted_terms")
    with psycopg.connect(url) as connection:
        return [
            connection.execute(f"select t::text from rag.{table} as t order by 1").fetchall()
            for table in tables
        ]


def leftovers(server: Server) -> int:
    with psycopg.connect(server.named("postgres")) as connection:
        query = "select count(*) from pg_database as d where starts_with(d.datname, %s)"
        row = connection.execute(query, [THROWAWAY_PREFIX]).fetchone()
    assert row is not None
    return int(row[0])


def test_a_copy_finds_the_same_and_without_a_note_what_a_vault_without_it_finds(
    indexed: Service, vault: Path, url: str, server: Server
) -> None:
    before = contents(url)
    asked = [answerable("amber"), answerable("basalt"), BORDERLINE]
    (vault / "amber.md").unlink()
    with indexed.database.throwaway() as copy, indexed.database.throwaway() as fresh:
        ingest_vault(vault, fresh, indexed.embedder, chunks_in_memory=100)
        indexed.database.copy_index(copy, indexed.index)
        copied, smaller = Service(indexed.settings, copy), Service(indexed.settings, fresh)
        for question in asked:
            assert copied.find(question)[1] == indexed.find(question)[1]
        with copy.without(["amber.md"]) as rest:
            without = Service(indexed.settings, rest)
            for question in asked:
                hits, decision = without.find(question)
                others, expected = smaller.find(question)
                assert [hit.source for hit in hits] == [hit.source for hit in others]
                assert "amber.md" not in {hit.source for hit in hits}
                assert decision == expected
        assert copied.find(asked[0])[0][0].source == "amber.md"
    assert contents(url) == before
    assert leftovers(server) == 0


def test_unknown_sources_are_those_without_vectors(indexed: Service) -> None:
    sources = ["amber.md", "gone.md", "basalt.md", "gone.md", ""]
    assert indexed.database.find_unknown_sources(sources, indexed.index) == ["", "gone.md"]
    other = replace(indexed.index, model="another")
    assert indexed.database.find_unknown_sources(["amber.md"], other) == ["amber.md"]


# The command ---------------------------------------------------------------------------------------


def mode(rag: Rag, question: str) -> str:
    done = rag("ask", question, "--json")
    return str(json.loads(done.stdout)["mode"])


def test_set_changes_the_answer_to_a_borderline_question_and_drop_restores_it(
    indexed: Service, rag: Rag, questions: Path
) -> None:
    assert mode(rag, BORDERLINE) == "rag"
    dry = rag("calibrate", str(questions))
    assert "the classes separate completely" in dry.stdout
    assert "Warning" not in dry.stderr
    assert dry.returncode == 0, dry.stderr
    assert "questions.yaml: 24 answerable, 24 own; fake fake-lexical-v1, lexical" in dry.stdout
    assert "nothing is changed; to put it in force add --set" in dry.stderr
    assert mode(rag, BORDERLINE) == "rag"

    done = rag("calibrate", str(questions), "--set", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["set"] is True
    assert mode(rag, BORDERLINE) == "no_answer"
    assert mode(rag, answerable("amber")) == "rag"
    rows = json.loads(rag("calibrate", "--show", "--json").stdout)
    own = next(row for row in rows if row["in_force"])
    assert (own["origin"], own["retrieval"], own["answerable"], own["unanswerable"]) == (
        "calibrated", "lexical", 24, 24,
    )  # fmt: skip
    assert own["fitted_on"] == "questions.yaml: 24 answerable, 24 own"
    assert "in force  lexical   calibrated  fake fake-lexical-v1" in rag("calibrate", "--show").stdout

    assert "dropped" in rag("calibrate", "--drop").stdout
    assert mode(rag, BORDERLINE) == "rag"
    assert "no calibration of your own" in rag("calibrate", "--drop").stdout


def test_negatives_of_all_kinds_are_asked_and_the_index_stays_as_it_was(
    indexed: Service, rag: Rag, questions: Path, tmp_path: Path, url: str, server: Server
) -> None:
    off = tmp_path / "off.jsonl"
    off.write_text("".join(f'{{"_id": "{n}", "text": "Who painted the {n}?"}}\n' for n in STRANGERS))
    plot = tmp_path / "calibration.png"
    before = contents(url)
    done = rag(
        "calibrate", str(questions), "--held-out", "--off-topic", str(off), "--plot", str(plot), "--json"
    )
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert body["questions"] == {"answerable": 24, "held-out": 24, "off-topic": 24, "own": 24}
    assert body["set"] is False
    assert body["missing"] == []
    assert [each["threshold"] for each in body["out_of_fold"]["errors"]] == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    assert set(body["out_of_fold"]["auroc_by_kind"]) == {"held-out", "off-topic", "own"}
    assert body["in_force"]["origin"] == "shipped"
    assert plot.read_bytes().startswith(b"\x89PNG\r\n")
    assert contents(url) == before
    assert leftovers(server) == 0


def refusal(done: CompletedProcess[str]) -> str:
    """What is said about a refusal, after looking that it is one."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_what_is_missing_is_said_and_nothing_stored(
    indexed: Service, rag: Rag, questions: Path, tmp_path: Path
) -> None:
    entries = yaml.safe_load(questions.read_text())
    few = tmp_path / "few.yaml"
    few.write_text(yaml.safe_dump(entries[20:28]))  # four of each class
    said = refusal(rag("calibrate", str(few), "--set"))
    assert "cannot be set: 4 answerable questions, at least 20 are needed: 16 are missing" in said
    assert "cannot be set: 4 unanswerable questions, at least 20 are needed: 16 are missing" in said

    one = tmp_path / "one.yaml"
    one.write_text(yaml.safe_dump(entries[:24]))
    said = refusal(rag("calibrate", str(one), "--set"))
    assert "0 unanswerable questions" in said
    assert "--held-out" in said

    mixed = tmp_path / "mixed.yaml"  # the same questions are said to have an answer and to have none
    for number, entry in enumerate(entries):
        if number % 2:
            was = entry["expected_mode"] == "rag"
            entry.update(
                expected_mode="no_answer" if was else "rag", expected_sources=[] if was else ["amber.md"]
            )
    mixed.write_text(yaml.safe_dump(entries))
    assert "the classes do not separate: AUROC 0." in refusal(rag("calibrate", str(mixed), "--set"))

    said = refusal(rag("calibrate", str(questions), "--set", RAG_RETRIEVAL="vector"))
    assert "RAG_MIN_SIMILARITY" in said
    rows = json.loads(rag("calibrate", "--show", "--json").stdout)
    assert {row["origin"] for row in rows} == {"shipped"}


def test_an_index_of_another_vault_is_noticed(
    service: Service, rag: Rag, questions: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.md").write_text("Something else.\n")
    ingest_vault(other, service.database, service.embedder, chunks_in_memory=100)
    said = refusal(rag("calibrate", str(questions), "--set"))
    assert "the notes of 24 answerable questions are not in the index: amber (amber.md)" in said
    assert "0 answerable questions" in said


def test_sources_that_are_not_indexed_are_all_named(
    indexed: Service, rag: Rag, questions: Path, tmp_path: Path
) -> None:
    entries = yaml.safe_load(questions.read_text())
    for number in range(5):
        entries[number]["expected_sources"].append(f"gone{number}.md")
    questions.write_text(yaml.safe_dump(entries))
    done = rag("calibrate", str(questions))
    assert done.returncode == 0, done.stderr
    for number in range(5):
        assert f"not in the index: gone{number}.md, expected by {NAMES[number]}" in done.stdout
    body = json.loads(rag("calibrate", str(questions), "--json").stdout)
    assert body["absent_sources"]["amber"] == ["gone0.md"]
    assert body["unknown_sources"] == {}

    entries[0]["expected_sources"] = ["gone.md"]
    questions.write_text(yaml.safe_dump(entries))
    done = rag("calibrate", str(questions), "--set")
    assert "the notes of 1 answerable questions are not in the index" in refusal(done)
    assert "not in the index: gone.md, expected by amber" in done.stdout


def test_a_question_asked_again_counts_once(indexed: Service, rag: Rag, questions: Path) -> None:
    entries = yaml.safe_load(questions.read_text())
    questions.write_text(yaml.safe_dump([*entries, {**entries[0], "id": "again"}]))
    done = rag("calibrate", str(questions), "--json")
    body = json.loads(done.stdout)
    assert body["questions"] == {"answerable": 24, "own": 24}
    assert body["repeated"] == ["again"]


def test_one_unanswerable_question_many_times_is_refused_without_a_traceback(
    indexed: Service, rag: Rag, questions: Path, tmp_path: Path
) -> None:
    entries = yaml.safe_load(questions.read_text())
    for entry in entries[24:]:
        entry["question"] = BORDERLINE
    questions.write_text(yaml.safe_dump(entries))
    plot = tmp_path / "plot.png"
    said = refusal(rag("calibrate", str(questions), "--set", "--plot", str(plot)))
    assert "cannot be set: 1 unanswerable questions, at least 20 are needed" in said
    assert f"no plot: {plot} is not written, there are too few questions to fit" in said
    assert not plot.exists()


def test_a_question_with_two_labels_is_refused_with_both_entries(
    indexed: Service, rag: Rag, questions: Path, tmp_path: Path
) -> None:
    off = tmp_path / "off.jsonl"
    off.write_text(json.dumps({"_id": "x", "text": answerable("amber").upper()}) + "\n")
    done = rag("calibrate", str(questions), "--off-topic", str(off))
    assert done.returncode == 2
    assert f"{off}: question x is the same as amber of {questions}, which has an answer" in done.stderr


def test_the_row_in_force_is_what_the_settings_decide(indexed: Service, rag: Rag, questions: Path) -> None:
    usual = rag("calibrate", str(questions))
    assert "RAG_MIN_SIMILARITY" not in usual.stdout
    done = rag("calibrate", str(questions), RAG_MIN_SIMILARITY="0.99")
    assert "RAG_MIN_SIMILARITY=0.99 is set: a floor beside the confidence" in done.stdout
    body = json.loads(rag("calibrate", str(questions), "--json", RAG_MIN_SIMILARITY="0.99").stdout)
    assert body["min_similarity"] == 0.99
    assert body["decided"]["wrong_refusals"]["count"] == 24  # nothing is that similar
    assert body["decided"]["wrong_answers"]["count"] == 0
    rows = [line for line in done.stdout.splitlines() if line.startswith("0.50 in force")]
    assert len(rows) == 1
    assert rows[0].split()[3] == "0.0%"
    assert "100.0%" in rows[0]


def test_vector_retrieval_has_nothing_to_drop(rag: Rag) -> None:
    done = rag("calibrate", "--drop", RAG_RETRIEVAL="vector")
    assert done.returncode == 0
    assert "nothing to drop: retrieval by vectors alone has no calibration" in done.stdout
    assert "cannot be set" not in done.stdout + done.stderr
    done = rag("calibrate", "/none.yaml", "--json", RAG_RETRIEVAL="vector")
    assert "cannot be set: retrieval by vectors alone" in refusal(done)
    assert json.loads(done.stdout)["set"] is False
    done = rag("calibrate", "--drop", "--json", RAG_RETRIEVAL="vector")
    assert json.loads(done.stdout) == {"dropped": False}


def test_without_the_right_to_write_the_report_comes_before_the_error(
    indexed: Service, rag: Rag, questions: Path, url: str, server: Server
) -> None:
    role = f"pyrag-reader-{os.getpid()}"
    server.execute(f"create role \"{role}\" login password 'x'")
    try:
        with psycopg.connect(url) as connection:
            connection.execute(f'grant usage on schema rag to "{role}"')
            connection.execute(f'grant select on all tables in schema rag to "{role}"')
        parts = conninfo_to_dict(url)
        host = quote(str(parts.get("host") or "localhost"), safe="")
        reader = f"postgresql://{role}:x@{host}:{parts.get('port') or 5432}/{parts['dbname']}"
        if host.startswith("%2F"):
            reader = f"postgresql://{role}:x@/{parts['dbname']}?host={host}&port={parts.get('port') or 5432}"
        for options in (["--set"], ["--set", "--json"]):
            done = rag("calibrate", str(questions), *options, DATABASE_URL=reader)
            said = refusal(done)
            assert f'Role "{role}" may not write the table rag.calibrations' in said
            assert f'grant select, insert, update, delete on rag.calibrations to "{role}"' in said
            assert "nothing is changed" not in said
            assert ('"set": false' if "--json" in options else "AUROC  ") in done.stdout
        assert f'Role "{role}" may not' in refusal(rag("calibrate", "--drop", DATABASE_URL=reader))
    finally:
        server.execute(f'drop owned by "{role}"')
        with psycopg.connect(url) as connection:
            connection.execute(f'drop owned by "{role}"')
        server.execute(f'drop role "{role}"')


def test_questions_without_words_are_left_out_and_counted(indexed: Service) -> None:
    labelled = Labelled()
    asked = {"mark": "?!", "sign": "阀", "words": answerable("amber"), "nothing": "Who wrote Faust?"}
    for key, question in asked.items():
        labelled.add(indexed, OWN, key, question)
    assert labelled.without_words == ["mark", "sign"]
    assert [case.id for case in labelled.cases] == ["words", "nothing"]
    assert labelled.cases[1].coverage == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a file or folder"),
        (["q.yaml", "--show"], "name a file or folder"),
        (["--show", "--drop"], "name a file or folder"),
        (["--show", "--set"], "need questions"),
        (["none.yaml"], "none.yaml cannot be read"),
        (["none.yaml", "--plot", "x.txt"], "must end in"),
    ],
)
def test_wrong_usage_is_exit_2(rag: Rag, arguments: list[str], said: str) -> None:
    done = rag("calibrate", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


# A BEIR folder -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BEIR folder of 64 passages with a question each."""
    folder = tmp_path / "valves"
    folder.mkdir()
    names = [f"{first}{last}" for first in NAMES[:8] for last in STRANGERS[:8]]
    lines: dict[str, list[str]] = {"corpus.jsonl": [], "queries.jsonl": [], "qrels.tsv": []}
    for name in names:
        text = f"The {name} valve opens at 40 degrees."
        lines["corpus.jsonl"].append(json.dumps({"_id": name, "title": "", "text": text}))
        lines["queries.jsonl"].append(json.dumps({"_id": name, "text": answerable(name)}))
        lines["qrels.tsv"].append(f"{name}\t{name}\t1")
    for file, rows in lines.items():
        (folder / file).write_text("\n".join(rows) + "\n")
    return folder


def test_a_beir_folder_is_asked_in_a_database_of_its_own_and_set_in_the_users(
    url: str, rag: Rag, folder: Path, server: Server
) -> None:
    before = contents(url)
    done = rag("calibrate", str(folder), "--held-out", "--set", "--json")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)["questions"]
    assert set(counts) == {"answerable", "held-out"}
    assert sum(counts.values()) == 64
    assert min(counts.values()) > 20  # a half by hash
    assert contents(url) == before
    rows = json.loads(rag("calibrate", "--show", "--json").stdout)
    assert next(row for row in rows if row["in_force"])["fitted_on"].startswith("valves: ")
    assert leftovers(server) == 0


def test_a_calibration_of_ones_own_counts_for_a_beir_folder_too(
    service: Service, rag: Rag, folder: Path
) -> None:
    before = json.loads(rag("calibrate", str(folder), "--held-out", "--json").stdout)
    assert before["decided"]["wrong_refusals"]["count"] < before["questions"]["answerable"]
    service.database.set_calibration(service.index, "lexical", [-99, 0, 1, 0], "none", 20, 20, 1, 0, 0)
    after = json.loads(rag("calibrate", str(folder), "--held-out", "--json").stdout)
    assert after["decided"]["wrong_refusals"]["count"] == after["questions"]["answerable"]


def test_a_dry_run_on_a_beir_folder_needs_no_schema(
    empty_url: str, rag: Rag, folder: Path, server: Server
) -> None:
    (folder / "heldout.txt").write_text("\n".join(f"{NAMES[0]}{last}" for last in STRANGERS[:8]) + "\n")
    done = rag("calibrate", str(folder), "--held-out", DATABASE_URL=empty_url)
    said = refusal(done)  # 8 passages are held out
    assert "8 unanswerable questions, at least 20 are needed" in said
    assert Database(empty_url).answers()
    assert leftovers(server) == 0
