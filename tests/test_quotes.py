"""Strict mode: quotes in a model's reply, their check against the sources, and upstreams that lie."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from conftest import REPOSITORY, SAMPLE_VAULT, Server, command
from fakes import FOR_EVER, Script, Step, Upstream, chat, delta, raw, stream_of
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
from pyrag.models import Hit, QuoteVerdict
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
        ('QUOTES\n[1] "kept for 30 days"\n\nA [1].', ONE),
        ('**Quotes used:**\n\n- [1] "kept for 30 days"\n- [2] "restored within 4 hours"\n\nA [1].', TWO),
        ('QUOTES\n[1] "kept for 30 days"\n\nA [1].\n\n引文\n[2] "restored within 4 hours"', TWO),
        ('QUOTES\n[1] "kept for 30 days"\n\nA [1].\n\n[2] "restored within 4 hours"', TWO),
        ('A [1].\n\nQUOTES\n[1] "kept for 30 days"\n\nQUOTES\n[2] "restored within 4 hours"', TWO),
        ('A [1].\n\nSources:\n[1] "kept for 30 days"', ONE),
        ('<think>Let me see.\n[1] "no"</think>\nA [1].\n\nQUOTES\n[1] "kept for 30 days"', ONE),
        ('A [1].\n\nQUOTES\n[1-3] "kept for 30 days"', [(n, "kept for 30 days") for n in (1, 2, 3)]),
        ('A [1].\n\nQUOTES\n[1, 3–2] "kept for 30 days"', [(n, "kept for 30 days") for n in (1, 2, 3)]),
        ('A [1].\n\nQUOTES\nNone of them\n[1] "kept for 30 days"', ONE),
    ],
)  # fmt: skip
def test_a_part_of_quotes_is_taken_out_however_it_is_written(
    reply: str, quotes: list[tuple[int, str]]
) -> None:
    assert split_quotes(reply) == ("A [1].", quotes)


@pytest.mark.parametrize(
    ("reply", "answer", "quotes"),
    [
        ('A.\n\nQUOTES\n[1] "kept for 30 days"\n\nB [1].', "A.\n\nB [1].", ONE),
        ('A.\nQUOTES\n[1] "kept for 30 days"\nB [1].\nC.', "A.\n\nB [1].\nC.", ONE),
        ('QUOTES\n[1] "kept for 30 days\n\nB [1].', "B [1].", ONE),
        ('A [1]:\n\nQUOTES\n[1] "kept for 30 days"\n\n```sh\nls\n```\nB.',
         "A [1]:\n\n```sh\nls\n```\nB.", ONE),
        ('```\nQUOTES\n[1] "kept for 30 days"\n```\n\nB [1].', "B [1].", ONE),
        ("<think>A.</think>B [1].", "B [1].", []),
    ],
)  # fmt: skip
def test_the_answer_is_all_that_stands_around_the_parts(
    reply: str, answer: str, quotes: list[tuple[int, str]]
) -> None:
    assert split_quotes(reply) == (answer, quotes)


@pytest.mark.parametrize(
    "reply",
    [
        "", "A [1].", "A [1].\n\nSources:\n[1] runbook.md", "A [1].\n\nSources:\n- [1] Runbook",
        "Quotes are kept for 30 days [1].", "The word QUOTES stands here [1].",
        "# Quotes\n\nSales quotes are valid for 30 days [1].", '[1] "kept for 30 days"',
        "引文 is a word [1].", "- [1] first\n- [2] second", 'He said "30 days" [1].',
    ],
)  # fmt: skip
def test_a_reply_without_quotes_stays_as_it_is(reply: str) -> None:
    assert split_quotes(reply) == (reply, [])


def test_a_heading_in_the_answer_is_not_taken_for_the_part() -> None:
    answer = "# Quotes\n\nSales quotes are valid for 30 days [1]."
    assert split_quotes(f'{answer}\n\nQUOTES\n[1] "valid for 30 days"') == (
        answer,
        [(1, "valid for 30 days")],
    )


@pytest.mark.parametrize(
    "reply",
    [
        "A [1].\nQUOTES\n" + '[1] "x' * 100_000, "A.\nQUOTES\n" + '[1] "x"\n' * 100_000,
        "A.\nQUOTES\n[1] " + '"' * 300_000, 'A.\nQUOTES\n[1] "' + "line\n" * 50_000,
        "QUOTES [" * 100_000, "QUOTES\n" * 100_000, 'A.\nQUOTES\n[1] "' + '" [1' * 100_000,
        "A.\nQUOTES\n" + "[1]" * 200_000, "A.\nQUOTES\n[1] " + '"a" ' * 200_000, "[1] " * 200_000,
        'QUOTES\n[1] "a"\nprose\n' * 20_000, "QUOTES\nx\n" * 100_000, 'QUOTES\n[1] "' + "\n```" * 100_000,
        "<think>" * 100_000, "A.\n" + '[1] "' + " " * 500_000 + '"', "引文" * 200_000, "quotes: " * 100_000,
    ],
)  # fmt: skip
def test_splitting_takes_no_longer_than_the_reply_is_long(reply: str) -> None:
    began = time.process_time()
    _, quotes = split_quotes(reply)
    assert time.process_time() - began < 20  # a second or two; quadratic would be minutes
    assert len(quotes) <= MOST_QUOTES


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.text(alphabet='ab1[]()"“”「」\n :-*`.QUOTES引文', max_size=80), st.text(max_size=40))
def test_splitting_never_adds_to_the_answer(reply: str, more: str) -> None:
    answer, quotes = split_quotes(reply + more)
    cleaned = (reply + more).replace("\0", " ").encode("utf-8", "replace").decode()
    rest = iter(re.sub(r"\r\n|\r", "\n", cleaned))
    assert all(char in rest for char in answer if not char.isspace())  # in the same order
    for number, quote in quotes:
        assert number >= 0
        assert "\0" not in quote


# --- rag.verify_quotes -----------------------------------------------------------------------------


def verdicts(database: Database, quote: str, *sources: str, number: int = 1) -> tuple[str, list[int]]:
    (found,) = database.verify_quotes([(number, quote)], sources)
    assert (found.number, found.quote) == (number, quote)
    return found.verdict, found.found_in


def test_each_quote_has_its_verdict_in_the_order_given(url: str) -> None:
    given = [
        (2, "kept for 90 days"),
        (1, "kept for 90 days"),
        (1, "kept for 91 days"),
        (1, "a"),
        (9, RETENTION),
    ]
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


PIECES = re.findall(
    r"\S+",
    "**15** 15分钟 3.5 -5 10% $30 `a_b` [a b](c.md) [[x|y]] | > - 1. # “x” café ＡＢＣ 安全阀， 每年 e\u0301"
    " ½ [!note] <b> x<5 ... &amp; \\_ ～ 1-2 C++ ﬁ 한국어 ก็ได้ \u200bz ✅ 10³ __init__ ~~y~~"
    " 、 9:00–18:00 v8.5.1",
)
WORDS = st.one_of(
    st.sampled_from(PIECES), st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6)
)


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
        ("some words here", "~~a\n" * 250_000), ("some words here", "%%a<!-- " * 125_000),
        ("some words here", "```\n# a\n" * 100_000), ("some words here", "[x] 1m _a_ " * 100_000),
        ("some words here", "==a*`" * 200_000),
    ],
    ids=range(14),
)  # fmt: skip
def test_a_quote_of_a_megabyte_does_not_hang(database: Database, quote: str, source: str) -> None:
    began = time.monotonic()
    database.verify_quotes([(1, quote)], [source])
    assert time.monotonic() - began < 60  # a few seconds; quadratic work would take hours


@pytest.mark.parametrize(
    "quote",
    ["long enough part of it … " * 11_000, "a b c d " * 375_000, "invented part … " * 200],
    ids=["many parts", "3 MB", "hundreds of parts"],
)
def test_a_long_quote_of_many_numbers_is_checked_at_once(database: Database, quote: str) -> None:
    reply = f'A [1].\n\nQUOTES\n[1-20] "{quote}"'
    sources = ["word after word and **5** more\n" * 60] * 20
    began = time.monotonic()
    _, quotes = split_quotes(reply)
    found = database.verify_quotes(quotes, sources)
    assert time.monotonic() - began < 2
    assert [each.verdict for each in found] == ["not_found"] * 20


# --- upstreams that lie ----------------------------------------------------------------------------

LIE = "Contacts are kept for ninety-nine centuries"


@pytest.fixture(scope="module")
def notes_url(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database with a few notes."""
    vault = tmp_path_factory.mktemp("vault")
    texts = {"retention": RETENTION, "backup": BACKUP, "valve": VALVE, "table": TABLE}
    for name, text in texts.items():
        (vault / f"{name}.md").write_text(f"# {name.title()} contacts 校验\n\n{text}\n", encoding="utf-8")
    with indexed(server, template, vault) as url:
        yield url


def numbers_of(user: str) -> dict[str, str]:
    """The [n] of each note in the sources of a prompt, by the name of the note."""
    return {name: f"[{n}]" for n, name in re.findall(r"^\[(\d+)\] source: (\w+)\.md$", user, re.MULTILINE)}


def saying(reply: str, finish: str = "stop", pause: float = 0) -> Script:
    """A server whose reply has the number of a note where the reply has <name>."""

    def script(request: Any) -> Sequence[Step]:
        marks = numbers_of(request.json["messages"][1]["content"])
        text = re.sub(r"<(\w+)>", lambda found: marks.get(found[1], found[0]), reply)
        if request.json["stream"]:
            return stream_of(re.findall(r"\s*\S+|\s+", text), finish, delay=pause)
        return chat(text, finish)

    return script


def settings_for(base_url: str, **variables: str) -> Settings:
    environ = {
        "LLM_PROVIDER": "openai-compatible", "LLM_BASE_URL": base_url, "LLM_API_KEY": "k", "LLM_MODEL": "m",
        "RAG_MIN_SIMILARITY": "0", "RAG_RETRIEVAL": "vector", "RAG_REQUIRE_QUOTES": "true", **variables,
    }  # fmt: skip
    return load_configuration(folder=Path("/"), environ=environ).settings


@contextmanager
def answering(url: str, script: Script, **variables: str) -> Iterator[tuple[Service, Upstream]]:
    with Upstream(script) as upstream:
        yield Service(settings_for(upstream.base_url, **variables), Database(url)), upstream


def ask(
    url: str, reply: str, question: str = QUESTION, finish: str = "stop"
) -> tuple[AskResponse, dict[str, str]]:
    """What becomes of a reply, whole and streamed, and the marks of the notes."""
    with answering(url, saying(reply, finish)) as (service, upstream):
        response = service.ask(question)
        asked = service.retrieve_for(question)
        *events, last = [each for each in service.answer(asked, stream=True) if each is not None]
        assert last == response
        assert "".join(each.token for each in events if isinstance(each, TokenEvent)) == response.answer
        marks = numbers_of(upstream.requests[0].json["messages"][1]["content"])
    return response, marks


def test_a_true_quote_makes_an_answer(notes_url: str) -> None:
    reply = f'They can be restored for 30 days <retention>.\n\nQUOTES\n<retention> "{RETENTION}"'
    response, marks = ask(notes_url, reply)
    assert (response.mode, response.grounded, response.reason, response.complete) == ("rag", True, None, True)
    assert response.answer == f"They can be restored for 30 days {marks['retention']}."
    assert (response.removed_citations, response.unverified_citations, response.failed_quotes) == (0, 0, [])
    for number, citation in enumerate(response.citations, start=1):
        cited = citation.source == "retention.md"
        assert citation.cited is cited
        quotes = [{"quote": RETENTION, "verdict": "supported", "found_in": [number]}] if cited else []
        assert [each.model_dump() for each in citation.quotes or []] == quotes


REFUSED = "no quote of the answer stands in its source: "
MARK = "<retention>"
NOWHERE = f"the quote for {MARK} stands in no source"
ELSEWHERE = f"the quote for {MARK} stands in <backup> instead"
SHORT = f"the quote for {MARK} is too short to prove anything"
# Each with what the model claims as its quote, and why that is refused
LIES = {
    "invented": (f'{MARK} "{LIE}"', NOWHERE),
    "other source": (f'{MARK} "Backups are kept for 90 days"', ELSEWHERE),
    "altered number": (f'{MARK} "{RETENTION.replace("30", "90")}"', NOWHERE),
    "a digit more": (f'{MARK} "restored for 300 days"', NOWHERE),
    "cut number": (f'{MARK} "0 days, then they are erased"', NOWHERE),
    "cut word": (f'{MARK} "leted contacts can be restored"', NOWHERE),
    "not added": (f'{MARK} "can not be restored for 30 days"', NOWHERE),
    "translated": (f'{MARK} "已删除的联系人可以在三十天内恢复"', NOWHERE),
    "question": (f'{MARK} "{QUESTION}"', NOWHERE),
    "rules": (f'{MARK} "Use only what the sources say"', NOWHERE),
    "example": (f'{MARK} "words copied from source 3"', NOWHERE),
    "fence": (f'{MARK} "<<<source 1 0123456789ab>>>"', NOWHERE),
    "head of a block": (f'{MARK} "source: retention.md heading:"', NOWHERE),
    "too short": (f'{MARK} "days"', SHORT),
    "empty": (f'{MARK} ""', SHORT),
    "only marks": (f'{MARK} "… --- ** …"', SHORT),
    "giant": (f'{MARK} "{"kept for ever and " * 3000}"', NOWHERE),
    "swapped parts": (f'{MARK} "they are erased … Deleted contacts"', NOWHERE),
    "short parts": (f'{MARK} "Deleted … 30 … erased"', SHORT),
    "no part": ("", "the reply has no quotes"),
    "another number": ('<backup> "Backups are kept for 90 days"', f"{MARK} has no quote"),
    "no such source": (f'[99] "{RETENTION}"', f"{MARK} has no quote"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_and_never_shown(notes_url: str, name: str) -> None:
    part, why = LIES[name]
    heading = "\n\nQUOTES\n" if part else ""
    response, marks = ask(notes_url, f"{LIE} {MARK}.{heading}{part}")
    expected = re.sub(r"<(\w+)>", lambda found: marks.get(found[1], found[0]), why)
    assert (response.mode, response.reason) == ("no_answer", REFUSED + expected)
    assert response.answer == unverified_text(QUESTION)
    assert (response.citations, response.grounded, response.complete) == ([], False, True)
    assert (response.removed_citations, response.unverified_citations) == (1, 1)
    failed = response.failed_quotes or []
    assert len(failed) == (name not in ("no part", "another number"))
    assert all(len(each.quote) <= 1001 for each in failed)
    shown = response.model_copy(update={"failed_quotes": []}).model_dump_json()
    assert "ninety-nine" not in shown


def test_the_refusal_is_in_the_language_of_the_question(notes_url: str) -> None:
    response, _ = ask(
        notes_url,
        "每十年校验一次 <valve>。\n\n引文\n<valve> 「每十年校验一次，由厂长签字」",
        "安全阀多久校验一次？",
    )
    assert (response.mode, response.answer) == ("no_answer", unverified_text("安全阀"))
    assert "核实" in response.answer


# The same passage, written in other ways
SAME = [
    ("retention", "deleted CONTACTS can be\n  restored for 30 days"),
    ("retention", "**Deleted contacts** can be restored for `30` days"),
    ("retention", "Ｄｅｌｅｔｅｄ contacts can be restored for ３０ days，then they are erased。"),
    ("retention", "Deleted contacts … then they are erased."),
    ("retention", "...can be restored for 30 days..."),
    ("backup", "Backups are kept for 90 days in the vault; restore takes 4.5 hours."),
    ("backup", "kept for **90 days** in [the vault](backup.md); restore"),
    ("backup", "kept for 90 days in [the vault]"),
    ("backup", "the vault](backup.md); restore takes"),
    ("valve", "安全阀每年校验一次"),
    ("valve", "安全阀 每年 校验 一次,由维修班长签字."),
    ("valve", "超过24小时未校验的设备停用"),
    ("table", "| P1 | 15 minutes | 4 hours |"),
    ("table", "P1 15 minutes 4 hours"),
    ("table", "First response | Restored\nP1 | 15 minutes"),
]


@pytest.mark.parametrize(("name", "quote"), SAME)
def test_other_white_space_markup_and_forms_are_the_same(notes_url: str, name: str, quote: str) -> None:
    response, _ = ask(notes_url, f'A statement <{name}>.\n\nQUOTES\n<{name}> "{quote}"')
    assert (response.mode, response.grounded, response.reason) == ("rag", True, None)


def test_a_citation_without_a_true_quote_is_taken_out(notes_url: str) -> None:
    reply = (
        "Restored for 30 days <retention>. Backups stay for 80 days <backup>. Both<retention><backup>, and"
        ' [99].\n\nQUOTES\n<retention> "restored for 30 days"\n<backup> "kept for 80 days"'
    )
    response, marks = ask(notes_url, reply)
    one, two = marks["retention"], marks["backup"]
    assert response.answer == f"Restored for 30 days {one}. Backups stay for 80 days. Both{one}, and."
    assert (response.mode, response.grounded) == ("rag", False)
    assert response.reason == f"the quote for {two} stands in no source"
    assert (response.removed_citations, response.unverified_citations) == (3, 2)
    assert [each.source for each in response.citations if each.cited] == ["retention.md"]
    (failed,) = response.failed_quotes or []
    assert (f"[{failed.number}]", failed.quote, failed.verdict) == (two, "kept for 80 days", "not_found")


def test_a_quote_of_another_source_is_named(notes_url: str) -> None:
    reply = (
        "A <retention>. B <backup>.\n\nQUOTES\n"
        '<retention> "restored for 30 days"\n<backup> "then they are erased"'
    )
    response, marks = ask(notes_url, reply)
    assert response.reason == f"the quote for {marks['backup']} stands in {marks['retention']} instead"
    assert (response.mode, response.grounded, response.unverified_citations) == ("rag", False, 1)


def test_one_true_quote_of_two_supports_its_citation_but_the_false_one_is_said(notes_url: str) -> None:
    reply = f'A <retention>.\n\nQUOTES\n<retention> "restored for 30 days"\n<retention> "{LIE}"'
    response, marks = ask(notes_url, reply)
    assert (response.mode, response.answer) == ("rag", f"A {marks['retention']}.")
    assert response.reason == f"the quote for {marks['retention']} stands in no source"
    verdicts = [[each.verdict for each in citation.quotes or []] for citation in response.citations]
    assert ["supported", "not_found"] in verdicts


@pytest.mark.parametrize("true_first", [True, False])
def test_quotes_of_all_parts_count_and_none_is_shown(notes_url: str, true_first: bool) -> None:
    true, false = '<retention> "restored for 30 days"', f'<retention> "{LIE}"'
    first, last = (true, false) if true_first else (false, true)
    response, marks = ask(notes_url, f"QUOTES\n{first}\n\nA <retention>.\n\nQUOTES\n{last}\n\nB.")
    assert (response.mode, response.grounded) == ("rag", False)
    assert response.answer == f"A {marks['retention']}.\n\nB."
    assert response.reason == f"the quote for {marks['retention']} stands in no source"
    assert [each.quote for each in response.failed_quotes or []] == [LIE]


def test_a_quote_without_a_citation_is_no_support(notes_url: str) -> None:
    response, _ = ask(notes_url, 'Thirty days.\n\nQUOTES\n<retention> "restored for 30 days"')
    assert (response.mode, response.reason) == ("no_answer", f"{REFUSED}the answer cites no source")


@pytest.mark.parametrize("part", ["", f'\n\nQUOTES\n<retention> "{LIE}"'])
def test_a_model_that_declines_is_believed(notes_url: str, part: str) -> None:
    response, _ = ask(notes_url, f"The sources do not contain the answer.{part}")
    assert (response.mode, response.answer) == ("no_answer", not_in_sources_text(QUESTION))
    assert response.reason == "the model says that the sources do not hold the answer"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("They are kept for <retention>", "the reply was cut off at LLM_MAX_TOKENS"),
        (f"{LIE} <retention>.\n\nQUO", "the reply was cut off at LLM_MAX_TOKENS"),
        (f"{LIE} <retention>.\n\nQUOTES\n", "the reply was cut off at LLM_MAX_TOKENS"),
        (f'{LIE} <retention>.\n\nQUOTES\n<retention> "Deleted contacts can be rest',
         "the quote for <retention> stands in no source; the reply was cut off at LLM_MAX_TOKENS"),
    ],
)  # fmt: skip
def test_a_reply_that_is_cut_before_its_quotes_is_no_answer(notes_url: str, reply: str, reason: str) -> None:
    response, marks = ask(notes_url, reply, finish="length")
    assert (response.mode, response.complete) == ("no_answer", False)
    assert response.reason == REFUSED + reason.replace(MARK, marks["retention"])


def test_a_reply_that_is_cut_after_a_true_quote_is_an_answer_that_is_not_whole(notes_url: str) -> None:
    reply = 'A <retention>.\n\nQUOTES\n<retention> "restored for 30 days"\n<backup> "Backups are ke'
    response, _ = ask(notes_url, reply, finish="length")
    assert (response.mode, response.grounded, response.complete) == ("rag", True, False)
    assert response.reason == "the reply was cut off at LLM_MAX_TOKENS"


@pytest.mark.parametrize("reply", [" ", 'QUOTES\n<retention> "restored for 30 days"', "<retention>"])
def test_a_reply_without_an_answer_is_an_error(notes_url: str, reply: str) -> None:
    with answering(notes_url, saying(reply)) as (service, _), pytest.raises(LlmUpstreamError, match="empty"):
        service.ask(QUESTION)


def test_the_prompt_asks_for_quotes_in_strict_mode_only(notes_url: str) -> None:
    for strict in ("true", "false"):
        with answering(notes_url, saying("A [1]."), RAG_REQUIRE_QUOTES=strict) as (service, upstream):
            service.ask(QUESTION)
        assert ("QUOTES" in upstream.requests[0].json["messages"][0]["content"]) is (strict == "true")


def test_without_strict_mode_nothing_is_checked(notes_url: str) -> None:
    with answering(notes_url, saying(f"{LIE} [1]."), RAG_REQUIRE_QUOTES="false") as (service, _):
        response = service.ask(QUESTION)
    assert (response.mode, response.grounded, response.answer) == ("rag", True, f"{LIE} [1].")
    assert (response.unverified_citations, response.failed_quotes) == (None, None)
    assert {each.quotes for each in response.citations} == {None}


def test_no_model_is_asked_below_the_threshold(notes_url: str) -> None:
    with answering(notes_url, saying("A [1]."), RAG_MIN_SIMILARITY="1") as (service, upstream):
        response = service.ask(QUESTION)
    assert (response.mode, response.failed_quotes, response.unverified_citations) == ("no_answer", [], 0)
    assert response.answer == no_answer_text(QUESTION, False)
    assert upstream.connections == 0


def test_general_knowledge_needs_no_quotes(notes_url: str) -> None:
    variables = {"RAG_MIN_SIMILARITY": "1", "RAG_FALLBACK_ENABLED": "true"}
    with answering(notes_url, saying("Paris."), **variables) as (service, _):
        response = service.ask(QUESTION, fallback=True)
    assert (response.mode, response.failed_quotes) == ("fallback", [])
    assert response.answer.endswith("Paris.")


def test_what_was_cut_off_a_source_cannot_be_quoted(url: str, tmp_path: Path) -> None:
    (tmp_path / "long.md").write_text("# Long\n\n" + "word after word " * 300 + "\n\nthe very last words\n")
    with answering(url, saying('A [1].\n\nQUOTES\n[1] "[truncated]"\n[1] "the very last words"'),
                   RAG_CONTEXT_TOKEN_BUDGET="200") as (service, upstream):  # fmt: skip
        ingest_vault(tmp_path, service.database, service.embedder)
        response = service.ask("word after word")
    assert "[truncated]" in upstream.requests[0].json["messages"][1]["content"]
    assert response.mode == "no_answer"


# --- streams ---------------------------------------------------------------------------------------


def test_tokens_are_held_until_the_reply_has_ended_and_closing_ends_the_model(notes_url: str) -> None:
    reply = 'A <retention>.\n\nQUOTES\n<retention> "restored for 30 days"'
    with answering(notes_url, saying(reply, pause=0.1)) as (service, upstream):
        events: list[Event | None] = list(service.answer(service.retrieve_for(QUESTION), stream=True))
    kinds = [type(each).__name__ for each in events]
    first = kinds.index("TokenEvent")
    assert kinds[:first] == ["RetrievalEvent", *["NoneType"] * (first - 1)]
    assert first > 5
    assert kinds.count("TokenEvent") == 1
    assert kinds[-1] == "AskResponse"

    def silent(request: Any) -> Sequence[Step]:
        return [*raw(delta("A [1]. ")), FOR_EVER]

    with answering(notes_url, silent) as (service, upstream):
        with closing(service.answer(service.retrieve_for(QUESTION), stream=True)) as stream:
            assert next(stream) is not None
            while not upstream.requests:
                assert next(stream) is None
        assert upstream.disconnected.wait(5)


@pytest.fixture(scope="module")
def lying_server(
    notes_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, Callable[[str, float], None]]]:
    """`rag serve` in strict mode before a model whose reply the test sets."""
    now: list[tuple[str, float]] = []

    def script(request: Any) -> Sequence[Step]:
        made = saying(now[-1][0], pause=now[-1][1])
        assert callable(made)
        return list(made(request))

    with Upstream(script) as upstream:
        environment = {
            "LLM_PROVIDER": "openai-compatible", "LLM_BASE_URL": upstream.base_url, "LLM_API_KEY": "k",
            "LLM_MODEL": "m", "RAG_MIN_SIMILARITY": "0", "RAG_RETRIEVAL": "vector",
            "RAG_REQUIRE_QUOTES": "true",
        }  # fmt: skip
        folder = tmp_path_factory.mktemp("serve")
        patches = {"pyrag.http.streaming.HEARTBEAT_SECONDS": 0.3}
        with serving(notes_url, folder, patches=patches, environment=environment) as running:
            yield running, lambda reply, pause: now.append((reply, pause))


def test_no_token_is_sent_before_the_quotes_are_checked(
    lying_server: tuple[Any, Callable[[str, float], None]],
) -> None:
    running, say = lying_server
    say('Restored for 30 days <retention>.\n\nQUOTES\n<retention> "restored for 30 days"', 0.15)
    began = time.monotonic()
    response = running.post("/ask/stream", {"question": QUESTION})
    assert (response.status_code, time.monotonic() - began > 1) == (200, True)
    body = response.content
    citations, last = check_order(parse_events(body))
    assert (last["mode"], last["grounded"], last["failed_quotes"]) == ("rag", True, [])
    assert [each["cited"] for each in citations].count(True) == 1
    beats = [at.start() for at in re.finditer(rb"^: keep-alive$", body, re.MULTILINE)]
    assert len(beats) >= 3
    assert max(beats) < body.index(b"event: token")
    assert body.count(b"event: token") == 1


def test_a_lie_is_in_no_byte_of_a_stream(lying_server: tuple[Any, Callable[[str, float], None]]) -> None:
    running, say = lying_server
    say('Kept for ninety-nine centuries <retention>.\n\nQUOTES\n<retention> "restored for 31 days"', 0)
    for path in ("/ask/stream", "/ask"):
        response = running.post(path, {"question": QUESTION})
        assert response.status_code == 200
        body = response.content
        assert b"ninety" not in body
        assert b"centuries" not in body
    events = parse_events(running.post("/ask/stream", {"question": QUESTION}).content)
    citations, last = check_order(events)
    assert [each.name for each in events] == ["retrieval", "token", "final"]
    assert (events[0].json["mode"], last["mode"], citations) == ("rag", "no_answer", [])
    (failed,) = last["failed_quotes"]
    assert (failed["quote"], failed["verdict"], failed["found_in"]) == (
        "restored for 31 days",
        "not_found",
        [],
    )
    assert last["reason"] == f"{REFUSED}the quote for [{failed['number']}] stands in no source"


# --- the built-in model ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict(server: Server, template: str) -> Iterator[Rag]:
    """The command in strict mode, on a database with the sample vault."""
    with indexed(server, template, SAMPLE_VAULT) as url:
        rag = command(url)
        yield lambda *arguments, **more: rag(*arguments, **{"RAG_REQUIRE_QUOTES": "true", **more})


def test_every_sample_question_is_answered_with_true_quotes(
    server: Server, template: str, settings: Settings
) -> None:
    with indexed(server, template, SAMPLE_VAULT) as url:
        for retrieval in ("vector", "lexical", "hybrid"):
            changes = {"require_quotes": True, "asked_retrieval": retrieval}
            service = Service(settings.model_copy(update=changes), Database(url))
            for question in (each for each in QUESTIONS if each.expected_mode == "rag"):
                response = service.ask(question.question)
                assert (response.mode, response.grounded, response.reason) == ("rag", True, None), question.id
                assert response.failed_quotes == []
                for citation in response.citations:
                    assert bool(citation.quotes) is citation.cited
                    assert {each.verdict for each in citation.quotes or []} <= {"supported"}
            assert service.ask("Who painted the Mona Lisa?").mode == "no_answer"


@pytest.mark.parametrize(
    "content",
    ["# VPN", "on", "# Ports\n\n80\n\n443", "```sh\nls\n```", "| a |\n| - |\n| b |",
     "- x\n- y\n- z and more of it", 'He said "never, ever" and "not now" again.', "短", "第一。第二。"],
)  # fmt: skip
def test_the_built_in_model_quotes_even_short_sources_truly(database: Database, content: str) -> None:
    hit = Hit(1, "/v", "a.md", ["H"], 0, content, "h", {}, 0.5)
    prompt = answer_prompt("a x 80 ls vpn 第", pack_context([hit], 1000), quotes=True)
    reply = "".join(each for each in FakeLlm().reply(prompt, stream=True) if isinstance(each, str))
    answer, quotes = split_quotes(reply)
    assert "QUOTES" not in answer
    assert quotes
    assert {each.verdict for each in database.verify_quotes(quotes, [content])} == {"supported"}


def test_the_command_shows_the_quotes(strict: Rag) -> None:
    done = strict("ask", "What is a critical replication lag in Postgres?", "--top-k", "1")
    assert re.search(r"^    supported: “.*120 seconds.*”$", done.stdout, re.MULTILINE)
    assert "QUOTES" not in done.stdout
    assert done.stderr == ""
    body = json.loads(strict("ask", "What is a critical replication lag in Postgres?", "--json").stdout)
    assert body["citations"][0]["quotes"][0]["verdict"] == "supported"
    assert (strict("eval").returncode, body["failed_quotes"]) == (0, [])


def test_the_command_says_why_an_answer_is_refused(notes_url: str) -> None:
    with Upstream(saying(f'{LIE} [1].\n\nQUOTES\n[1] "{LIE}\x1b"')) as upstream:
        done = command(notes_url)(
            "ask", QUESTION, LLM_PROVIDER="openai-compatible", LLM_BASE_URL=upstream.base_url, LLM_MODEL="m",
            LLM_API_KEY="k", RAG_MIN_SIMILARITY="0", RAG_REQUIRE_QUOTES="true", NO_PROXY="*",
        )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""
    head, why, _, answer, *rest = done.stdout.splitlines()
    assert head.startswith("mode: no_answer ")
    assert (why, answer) == (
        f"why: {REFUSED}the quote for [1] stands in no source",
        unverified_text(QUESTION),
    )
    assert rest == ["", "failed quotes, which the model gave:", f"[1] not found: “{LIE}\\x1b”"]
