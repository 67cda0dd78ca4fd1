"""Questions with known answers: the file, and the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import REPOSITORY, SAMPLE_VAULT

from pyrag.errors import InvalidRequest
from pyrag.evaluation import Outcome, Question, evaluate, load_questions
from pyrag.models import Mode
from pyrag.schemas import AskResponse, Citation, DecisionRecord, Filter
from pyrag.service import Service

SEED = {
    "客户 P1 工单应该如何升级？": ["policies/Support Escalation Policy.md"],
    "Atlas CRM 支持哪些数据导出限制？": ["products/Atlas CRM.md"],
    "API 延迟升高时值班工程师应该怎么处理？": ["runbooks/API Latency Runbook.md"],
    "哪些客户数据不能发给外部模型？": ["policies/Data Handling Policy.md"],
    "和竞品对比时销售应该避免哪些说法？": ["sales/Competitive Positioning.md"],
}
UNRELATED = {
    "火星上今天的天气怎么样？",
    "请推荐一部适合周末看的科幻电影",
    "What is the boiling point of helium?",
    "Who painted the Mona Lisa?",
}

GOOD = """\
- id: good
  question: q
  expected_sources: [A.md]
  expected_mode: rag
"""


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    """The questions that come with pyrag."""
    return load_questions(REPOSITORY / "eval" / "questions.yaml")


# The questions that come with pyrag ----------------------------------------------------------------


def test_there_are_at_least_sixteen_questions_with_ids_of_their_own(questions: list[Question]) -> None:
    assert len(questions) >= 16
    assert len({question.id for question in questions}) == len(questions)


def test_the_questions_of_the_seed_are_there_word_for_word(questions: list[Question]) -> None:
    found = {question.question: question for question in questions}
    for text, sources in SEED.items():
        assert (found[text].expected_mode, found[text].expected_sources) == ("rag", sources)


def test_the_unrelated_questions_are_there_word_for_word(questions: list[Question]) -> None:
    unrelated = {question.question for question in questions if question.expected_mode == "no_answer"}
    assert unrelated >= UNRELATED
    assert len(unrelated) >= 16


def test_every_expected_source_is_a_file_of_the_sample_vault(questions: list[Question]) -> None:
    sources = {source for question in questions for source in question.expected_sources}
    assert len(sources) >= 5
    assert [source for source in sorted(sources) if not (SAMPLE_VAULT / source).is_file()] == []


# Files that are refused ----------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(InvalidRequest) as caught:
        load_questions(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "none.yaml")
    assert "cannot be read" in refused(tmp_path)
    path = tmp_path / "q.yaml"
    path.write_bytes("- id: 工单".encode("gb18030"))
    assert "cannot be read" in refused(path)


@pytest.mark.parametrize(
    "text", ["- id: [", "a: b: c", "\t- id: x", "- !!python/object:os.system {}", "- id: \x00"]
)
def test_a_file_that_is_not_yaml_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(text)
    assert "cannot be read" in refused(path)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "id: x\n", "just words\n", "42\n"])
def test_a_file_that_is_not_a_list_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(text)
    assert ", entry list: " in refused(path)


def test_an_empty_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text("[]\n")
    assert refused(path) == " holds no questions"


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        ("{question: q, expected_sources: [A.md], expected_mode: rag}", "1.id: Field required"),
        ("{id: x, expected_sources: [A.md], expected_mode: rag}", "1.question: Field required"),
        ("{id: x, question: q, expected_mode: no_answer}", "1.expected_sources: Field required"),
        ("{id: x, question: q, expected_sources: []}", "1.expected_mode: Field required"),
        (
            "{id: x, question: q, expected_sources: [], expected_mode: no_answer, hrad: true}",
            "1.hrad: Extra inputs are not permitted",
        ),
        ("{id: x, question: q, expected_sources: [A.md], expected_mode: fallback}", "1.expected_mode: "),
        ("{id: x, question: q, expected_sources: A.md, expected_mode: rag}", "1.expected_sources: "),
        (
            "{id: x, question: q, expected_sources: [], expected_mode: rag}",
            "1: expected_sources must be given",
        ),
        (
            "{id: x, question: q, expected_sources: [A.md], expected_mode: no_answer}",
            "1: expected_sources must",
        ),
        ("{id: x, question: q, expected_sources: [A.md], expected_mode: rag, hard: true}", "1.hard: "),
        ("{id: 7, question: q, expected_sources: [A.md], expected_mode: rag}", "1.id: "),
        ("{id: x, question: null, expected_sources: [A.md], expected_mode: rag}", "1.question: "),
        ("just words", "1: "),
    ],
)
def test_a_wrong_entry_is_named_with_its_field(tmp_path: Path, entry: str, where: str) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(f"{GOOD}- {entry}\n")
    assert refused(path).startswith(f", entry {where}")


def test_a_good_file_gives_its_questions_in_order(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    entry = "{id: 工单, question: 问？, expected_sources: [], expected_mode: no_answer}"
    path.write_text(f"{GOOD}- {entry}\n", encoding="utf-8-sig")
    assert load_questions(path) == [
        Question(id="good", question="q", expected_sources=["A.md"], expected_mode="rag"),
        Question(id="工单", question="问？", expected_sources=[], expected_mode="no_answer"),
    ]


def test_a_question_with_two_labels_is_refused_with_both_entries(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(
        f"{GOOD}- {{id: other, question: ' Q ', expected_sources: [], expected_mode: no_answer}}\n"
    )
    assert refused(path) == ": entries good (rag) and other (no_answer) ask the same question"


# The verdict ---------------------------------------------------------------------------------------


class FakeService(Service):
    """Answers every question in the same way."""

    def __init__(self, mode: Mode, *sources: str) -> None:
        self.asked: list[str] = []
        citations = [
            Citation(source=source, heading="", score=0.5, cited=True, quotes=None) for source in sources
        ]
        self.response = AskResponse(
            mode=mode,
            confidence=0.5,
            threshold=0.2,
            retrieval="lexical",
            scan="exact",
            decision=DecisionRecord(
                mode=mode,
                rule="reached_threshold",
                reason="r",
                confidence=0.5,
                threshold=0.2,
                min_similarity=None,
                similarity=0.5,
                coverage=None,
                cjk_share=None,
                calibration=None,
            ),
            answer="a",
            citations=citations,
            grounded=mode == "rag",
            reason=None,
            complete=True,
            removed_citations=0,
            unverified_citations=None,
            failed_quotes=None,
        )

    def ask(
        self,
        question: str,
        top_k: int | None = None,
        fallback: bool = False,
        filter: Filter | None = None,
    ) -> AskResponse:
        self.asked.append(question)
        return self.response


ANSWERED = Question(id="a", question="a?", expected_sources=["A.md", "B.md"], expected_mode="rag")
REFUSED = Question(id="r", question="r?", expected_sources=[], expected_mode="no_answer")


@pytest.mark.parametrize(
    ("question", "service", "right"),
    [
        (ANSWERED, FakeService("rag", "A.md"), True),
        (ANSWERED, FakeService("rag", "B.md", "C.md"), True),
        (ANSWERED, FakeService("rag", "C.md", "A.md"), False),
        (ANSWERED, FakeService("rag"), False),
        (ANSWERED, FakeService("no_answer"), False),
        (ANSWERED, FakeService("fallback", "A.md"), False),
        (REFUSED, FakeService("no_answer"), True),
        (REFUSED, FakeService("rag", "A.md"), False),
        (REFUSED, FakeService("fallback"), False),
    ],
)
def test_mode_and_first_citation_decide(question: Question, service: FakeService, right: bool) -> None:
    assert [outcome.right for outcome in evaluate(service, [question])] == [right]


def test_outcomes_come_one_by_one_in_the_order_of_the_questions() -> None:
    service = FakeService("rag", "A.md", "B.md")
    seen: list[tuple[Outcome, int]] = []
    outcomes = evaluate(
        service, [REFUSED, ANSWERED], lambda outcome: seen.append((outcome, len(service.asked)))
    )
    assert service.asked == ["r?", "a?"]
    assert [(outcome.question, outcome.first_source) for outcome in outcomes] == [
        (REFUSED, "A.md"),
        (ANSWERED, "A.md"),
    ]
    assert seen == [(outcomes[0], 1), (outcomes[1], 2)]


def test_without_citations_there_is_no_first_source() -> None:
    assert evaluate(FakeService("no_answer"), [REFUSED])[0].first_source is None
