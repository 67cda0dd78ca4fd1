"""Citation marks: which are seen, which are taken out, and what makes an answer grounded."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrag.citing import CitationFilter, why_not_grounded

Outcome = tuple[str, set[int], int]


def filtered(*pieces: str, sources: int = 3) -> Outcome:
    """Answer, cited and removed of a reply in these pieces."""
    marks = CitationFilter(sources)
    shown = [marks.feed(piece) for piece in pieces] + [marks.finish()]
    return "".join(shown), marks.cited, marks.removed


# --- marks


@pytest.mark.parametrize(
    ("text", "answer", "cited", "removed"),
    [
        ("A [1].", "A [1].", {1}, 0),
        ("A [1][3], B [2].", "A [1][3], B [2].", {1, 2, 3}, 0),
        ("A [1, 3].", "A [1, 3].", {1, 3}, 0),
        ("答【2】。", "答【2】。", {2}, 0),
        ("答[1，2、3]。", "答[1，2、3]。", {1, 2, 3}, 0),
        ("A [ 1 ].", "A [ 1 ].", {1}, 0),
        ("A [4].", "A.", set(), 1),
        ("A [0] B [999].", "A B.", set(), 2),
        ("A [1, 9].", "A [1].", {1}, 1),
        ("A [9, 2, 8, 3].", "A [2, 3].", {2, 3}, 2),
        ("答【7】。", "答。", set(), 1),
        ("[9]", "", set(), 1),
        ("A[9][1]", "A[1]", {1}, 1),
        ("A \t[9] B", "A B", set(), 1),
        ("[01]", "[01]", {1}, 0),
    ],
)
def test_marks_of_real_sources_stay_and_others_are_taken_out_and_counted(
    text: str, answer: str, cited: set[int], removed: int
) -> None:
    assert filtered(text) == (answer, cited, removed)


@pytest.mark.parametrize(
    "text",
    [
        "[S9]", "[^9]", "[9a]", "[9", "9]", "[]", "[,]", "[1,]", "[12345]", "[9.5]", "[-9]", "[x][y]",
        "[9\n]", "(9)", "[[Note 9]]", "[text](9)", "array[i]",
    ],
)  # fmt: skip
def test_what_is_no_mark_is_left_alone(text: str) -> None:
    assert filtered(text) == (text, set(), 0)


@pytest.mark.parametrize(
    "text",
    [
        "`a[9]`",
        "``a`[9]``",
        "```\nx = row[9]\n```",
        "```python\na[9]\n\nb[8]\n```",
        "````\n```\n[9]\n```\n````",
        "`` [9] ``",
    ],
)
def test_marks_in_code_are_neither_citations_nor_taken_out(text: str) -> None:
    assert filtered(text) == (text, set(), 0)
    assert filtered(text.replace("9", "1"))[1] == set()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("`a[9]` b [9]", "`a[9]` b"),
        ("```\n[9]\n```\nb [9]", "```\n[9]\n```\nb"),
        ("a ` b\n\nc [9]", "a ` b\n\nc"),  # a single backtick opens nothing beyond its paragraph
        ("a ` b\n \t\nc [9]", "a ` b\n \t\nc"),
        ("a ` b\n\n\nc [9]", "a ` b\n\n\nc"),
    ],
)
def test_code_ends_where_it_ends(text: str, answer: str) -> None:
    assert filtered(text) == (answer, set(), text.count("[9]") - answer.count("[9]"))


def test_a_long_list_of_numbers_is_one_mark_however_it_comes() -> None:
    text = f"A [{', '.join(str(number) for number in range(1, 41))}]."
    assert filtered(text) == ("A [1, 2, 3].", {1, 2, 3}, 37)
    assert filtered(*text) == filtered(text)


FRAGMENTS = st.sampled_from(
    [
        "[1]", "[9]", "【2】", "[1, 9]", "[9,8]", " [3]", "`", "``", "```", "````", "\n", "\n\n", "\n \n",
        " ", "\t", "[", "]", "1", "12345", ",", "、", "a", "。", "词", "[ 2 ]", "[S1]", "\r\n", "\u2028",
    ]
)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(st.lists(FRAGMENTS, max_size=25).map("".join), st.data())
def test_the_cutting_into_pieces_changes_nothing(text: str, data: st.DataObject) -> None:
    whole = filtered(text)
    assert filtered(*text) == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert filtered(*pieces) == whole


@settings(max_examples=300, deadline=None)
@given(st.lists(FRAGMENTS, max_size=25).map("".join))
def test_only_marks_go_and_a_second_pass_finds_no_more(text: str) -> None:
    answer, cited, removed = filtered(text)
    if "[" not in text and "【" not in text:
        assert answer == text
    if not removed:
        assert answer == text
    assert cited <= {1, 2, 3}


def test_what_is_certain_is_given_on_at_once() -> None:
    marks = CitationFilter(3)
    assert marks.feed("The pump") == "The pump"
    assert marks.feed(" runs [") == " runs"
    assert marks.feed("9") == ""
    assert marks.feed("] well.") == " well."
    assert marks.finish() == ""


@pytest.mark.parametrize(
    "text", [" " * 100_000, "\n" * 100_000, "\n " * 50_000, "`" * 100_000, "[" * 100_000]
)
def test_runs_of_one_character_take_no_time(text: str) -> None:
    started = time.monotonic()
    assert filtered(text + "a")[0] == text + "a"
    pieces = [text[start : start + 80] for start in range(0, len(text), 80)]
    assert filtered(*pieces, "a")[0] == text + "a"
    assert time.monotonic() - started < 3


# --- grounded


@pytest.mark.parametrize(
    "answer",
    [
        "The bearing is greased on Monday [1].",
        "P1 tickets are not queued [1].",
        "No approval is needed below 500 euros [2].",
        "The basic plan does not include exports [1]. The Business plan does [2].",
        "Holidays are not covered by the response times [1].",
        "The policy does not mention weekends; support works on them [1].",
        "It could not be easier: run `deployctl rollback` [1].",
        "Nothing is deleted before 30 days [1]; the sources give no other term.",
        "From the knowledge base:\n\n- Lag above 120 seconds is critical. [1]",
        "The lag is critical above 120 s [1]. The sources do not say how to measure it.",
        "客户的 P1 工单不排队 [1]。",
        "基础版不包含数据导出 [1]。",
        "我们的合同没有提供退款条款 [1]。",
        "没有主管的书面批准，不能导出客户资料【1】。",
        "客户资料未包含身份证号 [1]。",
        "值班经理无法确定影响范围时，按 P1 处理。[1]",
        "超过 120 秒即为严重 [1]。资料没有说明如何测量。",
    ],
)
def test_an_answer_that_cites_is_grounded_whatever_it_denies(answer: str) -> None:
    _, cited, _ = filtered(answer)
    assert why_not_grounded(answer, cited) is None


@pytest.mark.parametrize(
    "answer",
    [
        "The sources do not contain the answer.",
        "The sources don't mention who painted it [1].",
        "The provided sources do not contain information about this. [1] only describes P1 tickets.",
        "I cannot answer this from the sources.",
        "I could not find this; [2] is about something else.",
        "The knowledge base does not say when the valve is replaced [1].",
        "This is not mentioned in the sources [1][2].",
        "There is no information about the painter in the sources.",
        "The available documents do not specify a price [1].",
        "  \nThe context doesn't provide an answer.",
        "资料中没有相关信息。",
        "这些资料没有提到画家 [1]。",
        "知识库未说明阀门的更换时间【1】。",
        "根据资料无法回答这个问题。[1]",
        "我无法根据来源确定 [2]。",
        "现有信息不足。",
        "提供的资料并未包含答案。",
    ],
)
def test_an_answer_that_declines_is_not_grounded_even_if_it_cites(answer: str) -> None:
    _, cited, _ = filtered(answer)
    reason = why_not_grounded(answer, cited)
    assert reason == "the model says that the sources do not hold the answer"


@pytest.mark.parametrize(
    "answer",
    ["It is Monday.", "星期一。", "It is Monday [9].", "See `[1]`.", "I guess that it is Monday.", "Sorry."],
)
def test_an_answer_that_cites_nothing_is_not_grounded(answer: str) -> None:
    text, cited, _ = filtered(answer)
    assert why_not_grounded(text, cited) == "the answer cites no source"
