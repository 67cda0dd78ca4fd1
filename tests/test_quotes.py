"""Strict mode: quotes in a model's reply, their check against the sources, and upstreams that lie."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from conftest import REPOSITORY, SAMPLE_VAULT, Server, command
from fakes import FOR_EVER, Script, Step, Upstream, chat, delta, event, raw, stream_of
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from serving import check_order, indexed, parse_events, serving

from pyrag.config import Settings, load_configuration
from pyrag.context import pack_context
from pyrag.db import Database
from pyrag.errors import LlmUpstreamError
from pyrag.evaluation import load_questions
from pyrag.fake_llm import FakeLlm
from pyrag.ingest import ingest_vault
from pyrag.models import Finish, Hit, QuoteVerdict
from pyrag.prompts import answer_prompt, no_answer_text, not_in_sources_text, unverified_text
from pyrag.quoting import MOST_QUOTES, split_quotes
from pyrag.schemas import AskResponse, Event, TokenEvent
from pyrag.service import Service

Rag = Callable[..., CompletedProcess[str]]
QUESTIONS = load_questions(REPOSITORY / "eval" / "questions.yaml")
RETENTION = "Deleted contacts can be restored for 30 days, then they are erased."
BACKUP = "Backups are kept for **90 days** in [the vault](backup.md); restore takes 4.5 hours."
VALVE = "安全阀每年校验一次，由维修班长签字。超过 24 小时未校验的设备停用。"
TABLE = "| Tier | First response | Restored |\n| --- | --- | --- |\n| P1 | 15 minutes | 4 hours |"
QUESTION = "For how many days can deleted contacts be restored, and how long are backups kept?"


# --- split_quotes ----------------------------------------------------------------------------------

ONE = [(1, "kept for 30 days")]
TWO = [(1, "kept for 30 days"), (2, "restored within 4 hours")]


@pytest.mark.parametrize(
    ("reply", "quotes"),
    [
        ('A [1].\n\nQUOTES\n[1] "kept for 30 days"', ONE),
        ('A [1].\n\nQUOTES\n[1] "kept for 30 days"\n[2] "restored within 4 hours"\n', TWO),
        ('A [1].\nQUOTES:\n[1]: "kept for 30 days"', ONE),
        ('A [1].\n\n**Quotes**\n\n- [1] "kept for 30 days"\n- [2] "restored within 4 hours"', TWO),
        ('A [1].\n\n## Quotes:\n* [1] — “kept for 30 days”\n* [2] — ”restored within 4 hours“', TWO),
        ("A [1].\n\n引文：\n【1】「kept for 30 days」\n［2］『restored within 4 hours』", TWO),
        ("A [1].\n\n引用\n[1]：“kept for 30 days”；", ONE),
        ('A [1].\n\nQUOTES\n1. "kept for 30 days"\n2. "restored within 4 hours"', TWO),
        ('A [1].\n\nQUOTES\n1. [1] "kept for 30 days"\n2. [2] "restored within 4 hours"', TWO),
        ('A [1].\n\nQUOTES\n1) "kept for 30 days"\n2: "restored within 4 hours"', TWO),
        ('A [1].\n\nQUOTES\n(1) "kept for 30 days"\n（2） "restored within 4 hours"', TWO),
        ('A [1].\n\nQUOTES\nSource 1: "kept for 30 days"\n[Source 2] "restored within 4 hours"', TWO),
        ('A [1].\n\nQUOTES\n[来源1] "kept for 30 days"\n[^2] "restored within 4 hours"', TWO),
        ("A [1].\n\nQUOTES\n[1] kept for 30 days\n[2] restored within 4 hours", TWO),
        ('A [1].\n\n```\nQUOTES\n[1] "kept for 30 days"\n[2] "restored within 4 hours"\n```', TWO),
        ('A [1].\n\nQUOTES\n```text\n[1] "kept for 30 days"\n```\n', ONE),
        ('A [1]. QUOTES [1] "kept for 30 days" [2] "restored within 4 hours"', TWO),
        ('A [1]. QUOTES: [1] "kept for 30 days"\n[2] "restored within 4 hours"', TWO),
        ('A [1].\nQuotes: [1] "kept for 30 days"', ONE),
        ('A [1].\n\n[1] "kept for 30 days"\n[2] "restored within 4 hours"', TWO),
        ('A [1].\n\nQUOTES\n"kept for 30 days" [1]\n"restored within 4 hours" — [2]', TWO),
        ('A [1].\n\nQUOTES\n[1] "kept for 30 days" [1]', ONE),
        ('A [1].\n\nQUOTES\n[1]\n"kept for 30 days"\n[2]\n"restored within 4 hours"', TWO),
        ('A [1].\n\nQUOTES\n[1] "kept\nfor 30 days"', [(1, "kept\nfor 30 days")]),
        ('A [1].\n\nQUOTES\n[1] "kept for 30 days\n[2] "restored within 4 hours"', TWO),
        ('A [1].\r\n\r\nQUOTES\r\n[1] "kept for 30 days"\r\n', ONE),
        ('A [1].\n\n---\nQUOTES\n[1] "kept for 30 days"', ONE),
        ('```\nA [1].\n\nQUOTES\n[1] "kept for 30 days"\n```', ONE),
        ('A [1].\n\nQUOTES\n[1] "kept for 30 days", "restored within 4 hours"',
         [(1, "kept for 30 days"), (1, "restored within 4 hours")]),
        ('A [1].\n\nQUOTES\n[1] "kept for 30 days"\n[1] "restored within 4 hours"',
         [(1, "kept for 30 days"), (1, "restored within 4 hours")]),
        ('A [1].\n\nQUOTES\n[1] "set "a", "b" to on"', [(1, 'set "a", "b" to on')]),
        ('A [1].\n\nQUOTES\n[1] "a", "b"', [(1, 'a", "b')]),
        ('A [1].\n\nQUOTES\n[1][2] "kept for 30 days"', [(1, "kept for 30 days"), (2, "kept for 30 days")]),
        ('A [1].\n\nQUOTES\n[1, 2] "kept for 30 days"', [(1, "kept for 30 days"), (2, "kept for 30 days")]),
        ('A [1].\n\nQUOTES\n[1] "P1 | 15 minutes |"', [(1, "P1 | 15 minutes |")]),
        ('A [1].\n\nQUOTES\n[1] ""\n[2] “”', [(1, ""), (2, "")]),
        ('A [1].\n\nQUOTES\n[1]', [(1, "")]),
        ("A [1].\n\nQUOTES\n", []),
        ("A [1].\n\nQUOTES\n```\n```", []),
        ('A [1].\n\nQUOTES\n[1] "a\0b\ud800c"', [(1, "a b?c")]),
        ('A [1].\n\nQUOTES\nNone of them\n[1] "kept for 30 days"', ONE),
    ],
)  # fmt: skip
def test_a_part_of_quotes_is_taken_out_however_it_is_written(
    reply: str, quotes: list[tuple[int, str]]
) -> None:
    assert split_quotes(reply) == ("A [1].", quotes)


@pytest.mark.parametrize(
    "reply",
    [
        "", "A [1].", "Quotes are kept for 30 days [1].", "The word QUOTES stands here [1].",
        "# Quotes\n\nSales quotes are valid for 30 days [1].", '[1] "kept for 30 days"',
        "引文 is a word [1].", "- [1] first\n- [2] second", 'He said "30 days" [1].',
    ],
)  # fmt: skip
def test_a_reply_without_quotes_stays_as_it_is(reply: str) -> None:
    assert split_quotes(reply) == (reply, [])


def test_a_heading_in_the_answer_is_not_taken_for_the_part() -> None:
    answer = "# Quotes\n\nSales quotes are valid for 30 days [1]."
    assert split_quotes(f'{answer}\n\nQUOTES\n[1] "valid for 30 days"') == (answer, [(1, "valid for 30 days")])


@pytest.mark.parametrize(
    "reply",
    [
        "A [1].\nQUOTES\n" + '[1] "x' * 100_000, "A.\nQUOTES\n" + '[1] "x"\n' * 100_000,
        "A.\nQUOTES\n[1] " + '"' * 300_000, 'A.\nQUOTES\n[1] "' + "line\n" * 200_000,
        "QUOTES [" * 100_000, "QUOTES\n" * 100_000, 'A.\nQUOTES\n[1] "' + '" [1' * 100_000,
        "A.\nQUOTES\n" + "[1]" * 200_000, "A.\nQUOTES\n[1] " + '"a" ' * 200_000, "[1] " * 200_000,
        "A.\n" + '[1] "' + " " * 500_000 + '"', "引文" * 200_000, "quotes: " * 100_000,
    ],
)  # fmt: skip
def test_splitting_takes_no_longer_than_the_reply_is_long(reply: str) -> None:
    began = time.process_time()
    _, quotes = split_quotes(reply)
    assert time.process_time() - began < 5
    assert len(quotes) <= MOST_QUOTES


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.text(alphabet='ab1[]()"“”「」\n :-*`.QUOTES引文', max_size=80), st.text(max_size=40))
def test_splitting_never_adds_to_the_answer(reply: str, more: str) -> None:
    answer, quotes = split_quotes(reply + more)
    cleaned = (reply + more).replace("\0", " ").encode("utf-8", "replace").decode()
    assert answer in re.sub(r"\r\n|\r", "\n", cleaned)
    for number, quote in quotes:
        assert number >= 0
        assert "\0" not in quote


# --- rag.verify_quotes -----------------------------------------------------------------------------


def verdicts(database: Database, quote: str, *sources: str, number: int = 1) -> tuple[str, list[int]]:
    (found,) = database.verify_quotes([(number, quote)], sources)
    assert (found.number, found.quote) == (number, quote)
    return found.verdict, found.found_in


def test_each_quote_has_its_verdict_in_the_order_given(url: str) -> None:
    given = [(2, "kept for 90 days"), (1, "kept for 90 days"), (1, "kept for 91 days"), (1, "a"), (9, RETENTION)]
    assert Database(url).verify_quotes(given, [RETENTION, BACKUP]) == [
        QuoteVerdict(2, "kept for 90 days", "supported", [2]),
        QuoteVerdict(1, "kept for 90 days", "other_source", [2]),
        QuoteVerdict(1, "kept for 91 days", "not_found", []),
        QuoteVerdict(1, "a", "too_short", []),
        QuoteVerdict(9, RETENTION, "other_source", [1]),
    ]
    assert Database(url).verify_quotes([], []) == []


@pytest.fixture(scope="module")
def database(server: Server, template: str) -> Iterator[Database]:
    """One database with connections that stay, for the many calls of a property."""
    url = server.create(template)
    database = Database(url, pool_size=1)
    yield database
    database.close()
    server.drop(url)


WORDS = st.one_of(
    st.sampled_from(["**15**", "15分钟", "3.5", "-5", "10%", "$30", "`a_b`", "[a", "b](c.md)", "[[x|y]]", "|", ">",
                     "- ", "1.", "#", "“x”", "café", "ＡＢＣ", "安全阀，", "每年", "e\u0301", "½", "[!note]", "<b>",
                     "x<5", "...", "&amp;", "\\_", "～", "1-2", "C++", "ﬁ", "한국어", "ก็ได้", "\u200bz", "✅"]),
    st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6),
)  # fmt: skip


@hypothesis_settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(WORDS, min_size=1, max_size=30), st.data())
def test_any_run_of_whole_words_of_a_source_is_supported(
    database: Database, words: list[str], data: st.DataObject
) -> None:
    parts = " \n".join(words).replace("\0", "").split()
    start = data.draw(st.integers(0, max(0, len(parts) - 1)))
    end = data.draw(st.integers(start, len(parts)))
    quote = " ".join(parts[start:end])
    source = " ".join(parts)
    (found,) = database.verify_quotes([(1, quote)], [source])
    # only a share of a number may be cut off from it by white space: "5 %", "> 5"
    assert found.verdict in ("supported", "too_short") or re.search(r"[<>%‰$]", source), (quote, source)
    assert database.verify_quotes([(1, "zqxjk wvuts")], [source])[0].verdict == "not_found"


@hypothesis_settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 99_999), st.integers(0, 99_999))
def test_another_number_is_never_the_same(database: Database, one: int, other: int) -> None:
    source = f"the pump is greased after {one} hours of work"
    quote = f"the pump is greased after {other} hours"
    expected = "supported" if one == other else "not_found"
    assert verdicts(database, quote, source)[0] == expected


@pytest.mark.parametrize(
    ("quote", "source"),
    [
        ("a " * 500_000, "a " * 500_000), ("b " + "a " * 300_000, "a " * 500_000),
        ("a " * 200_000 + "b", "a " * 500_000), ("[" * 500_000, "[" * 1_000_000),
        ("…".join(["long enough part"] * 20_000), "long enough part " * 60_000),
        ("- " * 300_000, "\\" * 1_000_000), ("校验" * 150_000, "校验" * 160_000),
        ("[a](" * 200_000, "[[a|" * 250_000), ("<b " * 300_000, "1." * 500_000),
    ],
    ids=range(9),
)  # fmt: skip
def test_a_quote_of_a_megabyte_does_not_hang(database: Database, quote: str, source: str) -> None:
    began = time.monotonic()
    database.verify_quotes([(1, quote)], [source])
    assert time.monotonic() - began < 60  # a few seconds; quadratic work would take hours
