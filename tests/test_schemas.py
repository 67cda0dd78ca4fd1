"""The bodies of requests: what they take, what they refuse, and what becomes of a filter."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pyrag.errors import InvalidRequest
from pyrag.schemas import (
    MAX_QUESTION,
    AskRequest,
    AskResponse,
    CitationEvent,
    DecisionRecord,
    Filter,
    RetrievalEvent,
    SearchRequest,
    TokenEvent,
    event_name,
)
from pyrag.service import check_question


def takes(model: type[AskRequest] | type[SearchRequest] | type[Filter], **values: Any) -> bool:
    try:
        model.model_validate(values)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("value", [1, 5, 20, 5.0, None])
def test_whole_numbers_from_1_to_20_are_a_top_k(value: object) -> None:
    assert takes(SearchRequest, query="a", top_k=value)


@pytest.mark.parametrize(
    "value",
    [0, -1, 21, 10**30, 1.9, True, False, "5", [5], {}, float("nan"), float("inf"), 1e300, -0.0],
    ids=str,
)
def test_anything_else_is_no_top_k(value: object) -> None:
    assert not takes(SearchRequest, query="a", top_k=value)


@pytest.mark.parametrize("value", ["true", 1, 0, "", [], None])
def test_fallback_is_a_bool_and_nothing_like_one(value: object) -> None:
    assert not takes(AskRequest, question="a", fallback=value)


@pytest.mark.parametrize(
    "value", ["", " ", "\u3000\n", "\t\r\n", "\ufeff", "\x85\xa0", "\u2028", "a\0b", "\0"]
)
def test_blank_text_and_nul_are_no_question(value: str) -> None:
    assert not takes(AskRequest, question=value)


@pytest.mark.parametrize("value", ["a", " a ", "？", "\u200d👩", "-", "a\nb", "x" * MAX_QUESTION])
def test_whatever_can_be_seen_is_a_question(value: str) -> None:
    assert takes(AskRequest, question=value)


def test_question_has_a_longest_length() -> None:
    assert not takes(AskRequest, question="客" * (MAX_QUESTION + 1))


@settings(max_examples=300, deadline=None)
@given(
    st.text(st.characters(), max_size=6)
    | st.text(" \n\t\x00\x1c\x1f\x85\xa0\u200b\u2028\u3000\ufeff\ud800a", max_size=4)
)
def test_service_takes_whatever_the_model_takes(text: str) -> None:
    if takes(AskRequest, question=text):
        check_question(text)
    else:
        try:
            check_question(text)
        except InvalidRequest:
            return
        # the model is stricter only about characters that nobody sees
        assert re.fullmatch(r"[\s\x00-\x20\x7f-\xa0\ufeff]*", text)


@pytest.mark.parametrize(
    "values",
    [
        {"path_prefix": "/"}, {"path_prefix": " / "}, {"vault": ""}, {"vault": "//"},
        {"tags": []}, {"tags": {"any": []}}, {"tags": {"any": ["#"]}}, {"tags": {"all": ["a", "#/ "]}},
        {"tags": {"any": "a"}}, {"tags": {"no": ["a"]}}, {"tags": {"any": ["a"] * 51}},
        {"updated_after": 1767225600}, {"updated_after": True}, {"updated_after": "1767225600"},
        {"updated_after": "2026-01-31"}, {"updated_after": "2026-01-31T00:00:00"}, {"updated_after": "today"},
        {"updated_after": "2026-02-30T00:00:00Z"}, {"updated_after": "9999-12-31T23:59:59-01:00"},
        {"updated_after": "0001-01-01T00:00:00+01:00"}, {"updated_after": "٢٠٢٦-01-31T00:00:00Z"},
        {"folder": "a"}, {"path_prefix": "a\0"}, {"path_prefix": None, "x": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_filter_that_means_nothing_is_refused(values: dict[str, Any]) -> None:
    assert not takes(Filter, **values)


@pytest.mark.parametrize(
    ("values", "made"),
    [
        ({}, {}),
        ({"tags": {}}, {}),
        ({"tags": {"any": None}, "vault": None}, {}),
        ({"path_prefix": "a_b/"}, {"path_prefix": "a_b/"}),
        ({"path_prefix": "100%"}, {"path_prefix": "100%"}),
        ({"tags": {"any": ["#p1"], "all": None}}, {"tags": {"any": ["#p1"]}}),
        ({"updated_after": "2026-01-31T08:00:00+08:00"}, {"updated_after": "2026-01-31T00:00:00Z"}),
        ({"updated_after": "2026-01-31t00:00:00z"}, {"updated_after": "2026-01-31T00:00:00Z"}),
        ({"updated_after": "2026-01-31 00:00Z"}, {"updated_after": "2026-01-31T00:00:00Z"}),
        ({"updated_after": "2026-01-31T00:00:00.25+23:59"}, {"updated_after": "2026-01-30T00:01:00.250000Z"}),
        ({"updated_after": datetime(2026, 1, 31, tzinfo=UTC)}, {"updated_after": "2026-01-31T00:00:00Z"}),
    ],
    ids=str,
)
def test_a_filter_goes_to_the_database_without_what_is_not_set(
    values: dict[str, Any], made: dict[str, Any]
) -> None:
    assert Filter.model_validate(values).as_json() == made
    json.dumps(made)


def test_an_unknown_field_is_refused_at_every_depth() -> None:
    assert not takes(AskRequest, question="a", topk=5)
    assert not takes(AskRequest, question="a", filter={"path": "a"})
    assert not takes(AskRequest, question="a", filter={"tags": {"anyone": ["a"]}})


def test_each_event_has_its_name() -> None:
    decision = DecisionRecord(
        mode="rag", rule="reached_threshold", reason="r", confidence=0.5, threshold=0.2, min_similarity=None,
        similarity=0.5, coverage=None, cjk_share=None, calibration=None,
    )  # fmt: skip
    citation = CitationEvent(source="a.md", heading="", score=0.5, cited=True, quotes=None, number=1)
    answer = AskResponse(
        mode="rag", confidence=0.5, threshold=0.2, retrieval="lexical", scan="exact", decision=decision,
        answer="a",
        citations=[], grounded=True, reason=None, complete=True, removed_citations=0,
        unverified_citations=None, failed_quotes=None,
    )  # fmt: skip
    retrieval = RetrievalEvent(
        mode="rag", confidence=0.5, threshold=0.2, retrieval="vector", scan="exact", decision=decision,
        hits=[],
    )  # fmt: skip
    names = [event_name(each) for each in (retrieval, TokenEvent(token="a"), citation, answer)]
    assert names == ["retrieval", "token", "citation", "final"]
