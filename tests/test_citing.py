"""Citation marks: which are seen, which are taken out, and what makes an answer grounded."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrag.citing import CitationFilter, says_nothing, why_not_grounded

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
        ("A [9][1]", "A[1]", {1}, 1),
        ("A \t[9] B", "A B", set(), 1),
        ("[01]", "[01]", {1}, 0),
        # other forms, of real sources: as the model wrote them
        ("A [1-3].", "A [1-3].", {1, 2, 3}, 0),
        ("A [2–3].", "A [2–3].", {2, 3}, 0),
        ("A [3-1].", "A [3-1].", {1, 2, 3}, 0),
        ("A [Source 1].", "A [Source 1].", {1}, 0),
        ("A [source 1, Source 2].", "A [source 1, Source 2].", {1, 2}, 0),
        ("A [Sources: 1, 2].", "A [Sources: 1, 2].", {1, 2}, 0),
        ("答[来源1]。", "答[来源1]。", {1}, 0),
        ("A [1; 3].", "A [1; 3].", {1, 3}, 0),
        ("答［1］。", "答［1］。", {1}, 0),
        ("A 【1†source】.", "A 【1†source】.", {1}, 0),
        ("A 【1:0†a.md】.", "A 【1:0†a.md】.", {1}, 0),
        ("A [^1].", "A [^1].", {1}, 0),
        ("A[^1].", "A[^1].", {1}, 0),
        ("A [1 & 3].", "A [1 & 3].", {1, 3}, 0),
        ("A [1 and 3].", "A [1 and 3].", {1, 3}, 0),
        ("A [1, 2, and 3].", "A [1, 2, and 3].", {1, 2, 3}, 0),
        # with sources that do not exist: in the plain form, or out
        ("A [1-9].", "A [1, 2, 3].", {1, 2, 3}, 6),
        ("A [7–9].", "A.", set(), 3),
        ("A [1, 7-9].", "A [1].", {1}, 3),
        ("A [12345].", "A.", set(), 1),
        ("A [1-999999999].", "A [1, 2, 3].", {1, 2, 3}, 100),
        ("A [Source 9].", "A.", set(), 1),
        ("A [source 9].", "A.", set(), 1),
        ("答[来源9]。", "答。", set(), 1),
        ("A [Source 1, Source 9].", "A [1].", {1}, 1),
        ("A [1; 9].", "A [1].", {1}, 1),
        ("A [8; 9].", "A.", set(), 2),
        ("答［9］。", "答。", set(), 1),
        ("答［1，9］。", "答[1]。", {1}, 1),
        ("A 【9†source】.", "A.", set(), 1),
        ("A 【9】.", "A.", set(), 1),
        ("答【1，9】。", "答[1]。", {1}, 1),
        ("A [^9].", "A.", set(), 1),
        ("A[^9].", "A.", set(), 1),
        ("A [1 & 9].", "A [1].", {1}, 1),
        ("A [1 and 9].", "A [1].", {1}, 1),
        ("A [1, 3, 9].", "A [1, 3].", {1, 3}, 1),
        # directly after a name
        ("A[1] = 5", "A[1] = 5", {1}, 0),
        ("A[1, 9] = 5", "A[1] = 5", {1}, 1),
        ("词[9]", "词", set(), 1),
        ("A.[9]", "A.", set(), 1),
        # no links
        ("[1] (see below)", "[1] (see below)", {1}, 0),
        ("[1](see below)", "[1](see below)", {1}, 0),
        ("A [9](see: below)", "A(see: below)", set(), 1),
        ("[[1] and [9]]", "[[1] and]", {1}, 1),
    ],
)
def test_marks_of_real_sources_stay_and_others_are_taken_out_and_counted(
    text: str, answer: str, cited: set[int], removed: int
) -> None:
    assert filtered(text) == (answer, cited, removed)


@pytest.mark.parametrize(
    "text",
    [
        "[S9]", "[9a]", "[9", "9]", "[]", "[,]", "[1,]", "[9.5]", "[-9]", "[x][y]",
        "[9\n]", "(9)", "[[Note 9]]", "[text](9)", "array[i]", "[2024-01-15]", "[2024-01]", "[0-9]", "[and]",
        "arr[9] = 5", "m[9][8]", "f(x)[9]", "a_[9]", "A[7-9]", "[9](http://a)", "[1](http://a)", "[9](<http://a>)",
        "[9](../a.md)", "[9](#top)", "[9](a.md)", "![9](/a.png)", "[[9]]", "[[1]]", "[[9|x]]", "[Source]",
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
        "a ``b`[9]`` c",
        "~~~\n[9]\n~~~",
        "~~~\n[9]\n```\n[9]\n~~~",
        "```\n[9]\n\n[9] ``` [9]\n```x\n[9]",  # closed by a line of its own only
        "1. a\n   ```\n   [9]\n   ```",
        "> ```\n> [9]\n> ```",
        "```[9]``` a",
        "a\n\n    [9]\n    [9]\n\n    [9]",
        "a\n \t\n\t[9]",
        "    [9]",
        "`" + "x" * 1900 + "[9]`",
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
        ("a ` b\nc [9]", "a ` b\nc"),
        ("a ` b [9]", "a ` b"),
        ("a ` b [9]\nc ` [9]", "a ` b\nc `"),
        ("a `` b ` c [9] ` d", "a `` b ` c [9] ` d"),
        ("a ``` [9]\nb [9]\n```", "a ```\nb\n```"),  # no fence: not at the line's start
        ("```[9]``` a\nb [9]", "```[9]``` a\nb"),
        ("~~~\n[9]\n~~~\nb [9]", "~~~\n[9]\n~~~\nb"),
        ("a\n\n    [9]\n\nb [9]", "a\n\n    [9]\n\nb"),
        ("a\n    b [9]", "a\n    b"),  # goes on with the paragraph
        ("a\n\n   b [9]", "a\n\n   b"),
        ("1. a\n\n    b [9]", "1. a\n\n    b"),  # goes on with the item
        ("- a\n\n    - b [9]", "- a\n\n    - b"),
        ("- a\n\nb\n\n    c [9]", "- a\n\nb\n\n    c [9]"),
        ("`" + "x" * 2000 + " [9]`", "`" + "x" * 2000 + "`"),  # too long for a code span
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
        "[1-9]", "[7–9]", "[12345]", "[Source 9]", "[source 1]", "[来源9]", "[1; 9]", "［9］", "［", "］",
        "【9†source】", "【9】", "†", "[^9]", "[1 & 9]", "[1 and 9]", "and", "-", "Source ", "~~~", "~", "    ", "- ",  # noqa: E501
        "1. ", "> ", "arr[9] = 5", "[9](http://a)", "(", "(http:", "(#", "a.b", ")", "[[9]]", "_", "\u200b",
        "x" * 1999, "`" * 1001, " " * 9,
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
    if not set("[［【") & set(text):
        assert answer == text
    if not removed:
        assert answer == text
    assert cited <= {1, 2, 3}
    assert removed >= 0


@settings(max_examples=300, deadline=None)
@given(st.lists(FRAGMENTS, max_size=25).map("".join))
def test_what_is_held_back_is_bounded(text: str) -> None:
    marks = CitationFilter(3)
    for at, char in enumerate(text):
        marks.feed(char)
        held = len(marks._held)
        line = text[: at + 1].rpartition("\n")[2]
        assert held <= (2010 if "`" in line or "~" in line else 210)


def test_what_is_certain_is_given_on_at_once() -> None:
    marks = CitationFilter(3)
    assert marks.feed("The pump") == "The pump"
    assert marks.feed(" runs [") == " runs"
    assert marks.feed("9") == ""
    assert marks.feed("] well.") == " well."
    assert marks.finish() == ""


@pytest.mark.parametrize(
    "text",
    [
        " " * 100_000,
        "\n" * 100_000,
        "\n " * 50_000,
        "`" * 100_000,
        "[" * 100_000,
        "~" * 100_000,
        "` `` " * 20_000,
    ],
)
def test_runs_of_one_character_take_no_time(text: str) -> None:
    started = time.monotonic()
    assert filtered(text + "a")[0] == text + "a"
    pieces = [text[start : start + 80] for start in range(0, len(text), 80)]
    assert filtered(*pieces, "a")[0] == text + "a"
    assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    "part",
    [
        "A [1] and `b` [9]. ", "` ", "` `` ``` ```` ````` ", "[1, ", "[source ", " \t", "[1](a", "\n    [9]",
        "\n", "```\n", "~~~", "[[9]]", "【9†", "> ", "`a\n", "a[9]",
    ],
)  # fmt: skip
def test_long_answers_take_linear_time(part: str) -> None:
    text = part * (200_000 // len(part))
    started = time.monotonic()
    whole = filtered(text)
    pieces = [text[start : start + 400] for start in range(0, len(text), 400)]
    assert filtered(*pieces) == whole
    assert why_not_grounded(text, {1}) is None
    says_nothing(text)
    assert time.monotonic() - started < 12


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " \n",
        "[1]",
        "[1][2]\n",
        "【9†source】",
        "[Source 1]",
        "\u200b",
        "\ufeff[1]\u2060",
        "\u3164",
        "\xa0",
    ],
)
def test_marks_and_invisible_characters_say_nothing(answer: str) -> None:
    assert says_nothing(answer)


@pytest.mark.parametrize("answer", ["a", "是 [1]", "15", "[S1]", "[1] 5", "`[1]`", "—"])
def test_anything_else_says_something(answer: str) -> None:
    assert not says_nothing(answer)


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
        # others than the sources do not do, cannot, have not
        "According to the sources, the primary cannot be determined automatically; page the on-call engineer [1].",  # noqa: E501
        "The sources say that no information may leave the EU [1].",
        "The knowledge base states that customers do not provide logs before escalation [1].",
        "The sources contradict each other: [1] says 30 s, [2] does not mention it.",
        "I recommend rolling back: the release notes do not mention a migration [1].",
        "The sources do not only cover P1 but also P2 [1].",
        "Based on the sources, exports are not included in the basic plan [1].",
        "We cannot give refunds after 30 days [1].",
        "The source code does not contain the key [1].",
        "The sources say the price is not given in the documents handed out [1].",
        "It is not possible to restore a deleted ticket [1].",
        "There is no approval step below 500 euros [1].",
        "None of the plans include exports [1].",
        "Thank you for your question. P1 tickets are not queued [1].",
        "Answer:\nThe basic plan does not include exports [1].",
        "根据资料，客户没有提供完整信息时，应先补充信息再升级 [1]。",
        "根据文档，若无法确定影响范围，则按 P1 处理 [1]。",
        "根据资料，未提供日志的工单不得升级 [1]。",
        "在资料中，P1 的响应时间为 15 分钟 [1]；P2 的时间没有给出。",
        "未找到主管时，由值班经理批准 [1]。",
        "无法确定影响范围时，按 P1 处理 [1]。",
        "我建议在无法确定时按 P1 处理 [1]。",
        "資料中說明，P1 工單不排隊 [1]。",
        "您好！基础版不包含数据导出 [1]。",
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
        "None of the sources mention the capital of Peru [1][2].",
        "The sources are silent on this question [1].",
        "I'm sorry, but I don't know based on the sources [1].",
        "I’m sorry, but I don’t know based on the sources [1].",
        "Nothing in the sources answers this question [1].",
        "The documents provided do not discuss this topic [1].",
        "Sorry, I am not able to answer that from the sources [1].",
        "It is not possible to answer this from the sources given [1].",
        "The answer isn't in the sources [1].",
        "The sources [1][2] do not mention this.",
        "Based on the sources, I cannot answer this question [1].",
        "Based on the provided sources, there is no information about the painter [1].",
        "This cannot be determined from the sources [1].",
        "**The sources do not contain the answer** [1].",
        "所提供的资料与该问题无关 [1]。",
        "资料中找不到相关内容 [1]。",
        "来源并未讨论此事 [1]。",
        "很抱歉，根据现有资料我不知道答案 [1]。",
        "知识库里查不到这个 [1]。",
        "資料中沒有提到這個問題的答案 [1]。",
        "该问题的答案不在资料中 [1]。",
        "没有找到相关信息 [1]。",
        # after a lead
        "Answer:\nThe sources do not contain the answer [1].",
        "Answer: The sources do not contain the answer [1].",
        "## 回答\n资料中没有提到该问题的答案 [1]。",
        "您好！资料中没有相关信息 [1]。",
        "Thank you for your question. The sources do not contain the answer [1].",
        "Hello! Thank you for your question.\n\n**Answer**\nUnfortunately, the sources do not contain it [1].",  # noqa: E501
        "<think>hmm [1]</think>\nThe sources do not contain the answer.",
        "<think>\nhmm. [1]\n</think>\n\n## Answer\n\nThe sources do not mention this [1].",
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
