"""The fake model, which quotes what the context says, and the choice of the model by the settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import Any

import pytest
from conftest import REPOSITORY, SAMPLE_VAULT
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pyrag.config import Settings, load_configuration
from pyrag.context import pack_context
from pyrag.errors import LlmConfigMissing
from pyrag.evaluation import load_questions
from pyrag.fake_llm import FakeLlm
from pyrag.lexical import is_cjk
from pyrag.llm import Llm, build_llm
from pyrag.models import Context, Finish, Hit, Prompt
from pyrag.prompts import fallback_note, no_answer_text
from pyrag.remote_llm import RemoteLlm

PLENTY = 1_000_000
ENGLISH = "From the knowledge base:"
CHINESE = "根据知识库："


def packed(*contents: str, budget: int = PLENTY, **fields: Any) -> Context:
    """A context of one block for each content."""
    values: dict[str, Any] = {
        "vault_path": "/vault",
        "heading_path": ["Escalation"],
        "chunk_index": 0,
        "metadata": {},
        "score": 0.5,
    }
    hits = [
        Hit(
            **{
                **values,
                "chunk_id": number,
                "source": f"notes/{number}.md",
                "content": content,
                "content_hash": str(number),
                **fields,
            }
        )
        for number, content in enumerate(contents, start=1)
    ]
    return pack_context(hits, budget)


def text_of(llm: Llm, prompt: Prompt, stream: bool = False) -> str:
    """The text of a whole reply."""
    *pieces, finish = llm.reply(prompt, stream=stream)
    assert finish == Finish("stop")
    texts = [piece for piece in pieces if isinstance(piece, str) and piece]
    assert len(texts) == len(pieces)
    return "".join(texts)


def quoted(question: str, context: Context) -> str:
    return text_of(FakeLlm(), Prompt(question, (), context))


def answer(question: str, *contents: str) -> str:
    return quoted(question, packed(*contents))


def quotes_of(text: str) -> list[tuple[str, int]]:
    """The quotes of an answer with their numbers; everything in it must be a lead or a quote."""
    lead, blank, *lines = text.split("\n")
    assert lead in (ENGLISH, CHINESE)
    assert blank == ""
    quotes = []
    for line in lines:
        match = re.fullmatch(r"- (.+) \[(\d+)\]", line)
        assert match, line
        quotes.append((match[1], int(match[2])))
    return quotes


# What is quoted ------------------------------------------------------------------------------------


def test_the_sentence_that_fits_is_quoted_with_the_number_of_its_block() -> None:
    text = answer(
        "When are logs deleted?",
        "Backups run at night. They are kept for a week.",
        "Tickets are sorted by hand. Logs are deleted after thirty days. Ask the team for more.",
    )
    assert text == f"{ENGLISH}\n\n- Logs are deleted after thirty days. [2]"


def test_a_chinese_sentence_ends_at_its_full_stop() -> None:
    text = answer("日志保留多久？", "备份每天夜里进行。日志保留三十天！需要更多请联系值班；谢谢。")
    assert text == f"{CHINESE}\n\n- 日志保留三十天！ [1]"


def test_a_table_row_is_quoted_with_its_column_names() -> None:
    table = "| 级别 | 首次响应 | 负责人 |\n|:---|---:|---|\n| P1 | 15 分钟 | **值班** |\n| P2 | 1 小时 |  |\n"
    assert quotes_of(answer("P1 的首次响应是多久？", table))[0] == (
        "级别: P1; 首次响应: 15 分钟; 负责人: 值班",
        1,
    )
    assert quotes_of(answer("P2", table)) == [("级别: P2; 首次响应: 1 小时", 1)]


@pytest.mark.parametrize(
    ("row", "quote"),
    [
        ("| P1 | [[Team\\|the team]] |", "Level: P1; Who: the team"),
        ("| P1 | a \\| b |", "Level: P1; Who: a | b"),
        ("P1 | team", "Level: P1; Who: team"),
        ("|| P1 |", "Who: P1"),
        ("| P1 | `x*y` |", "Level: P1; Who: x*y"),
    ],
)
def test_a_cell_keeps_its_column(row: str, quote: str) -> None:
    assert quotes_of(answer("P1", f"| Level | Who |\n| --- | --- |\n{row}\n")) == [(quote, 1)]


def test_code_is_quoted_whole_and_as_code() -> None:
    content = (
        "Undo it:\n\n```bash\n# first look\nkubectl rollout undo deployment/atlas-api\n```\n\nThen wait.\n"
    )
    assert quotes_of(answer("kubectl undo atlas", content)) == [
        ("`# first look`", 1),
        ("`kubectl rollout undo deployment/atlas-api`", 1),
    ]


def test_a_sentence_that_opens_a_list_or_code_brings_it_along() -> None:
    content = "Stop the pump in this order:\n\n1. Close the valve. Wait.\n2. Cut the power.\n\nThen rest.\n"
    assert quotes_of(answer("How do I stop the pump?", content)) == [
        ("Stop the pump in this order:", 1),
        ("Close the valve. Wait.", 1),
        ("Cut the power.", 1),
    ]
    content = "Roll the pump back.\n\n```sh\npumpctl undo\n```\n\nOther text.\n"
    assert quotes_of(answer("roll pump back", content)) == [
        ("Roll the pump back.", 1),
        ("`pumpctl undo`", 1),
    ]


TWO_OF_EACH = {
    "code": "Undo it:\n\n```\nundo 1\n```\n```\nredo 2\n```\n",
    "tables": "Limits:\n\n| A |\n|---|\n| a1 |\n| a2 |\n\n| B |\n|---|\n| b1 |\n",
    "lists": "Stop it:\n\n- pump\n- valve\n\nLater.\n\n- lamp\n",
}


@pytest.mark.parametrize(
    ("kind", "question", "brought"),
    [
        ("code", "undo it", ["`undo 1`"]),
        ("tables", "limits", ["A: a1", "A: a2"]),
        ("lists", "stop it", ["pump", "valve"]),
    ],
)
def test_only_the_first_list_table_or_code_below_is_brought_along(
    kind: str, question: str, brought: list[str]
) -> None:
    opening = TWO_OF_EACH[kind].split("\n")[0]
    quotes = [quote for quote, _ in quotes_of(answer(question, TWO_OF_EACH[kind]))]
    assert quotes == [opening, *brought]


def test_a_chinese_colon_opens_a_list_too() -> None:
    assert quotes_of(answer("停泵", "停泵步骤：\n\n- 关阀\n- 断电\n")) == [
        ("停泵步骤：", 1),
        ("关阀", 1),
        ("断电", 1),
    ]


def test_at_most_twelve_items_of_a_list_are_brought_along() -> None:
    content = "Stop these:\n\n" + "".join(f"- pump {number}\n" for number in range(20))
    assert len(quotes_of(answer("stop these", content))) == 1 + 12


def test_a_line_with_a_bar_outside_a_table_is_plain_text() -> None:
    table = "| A | B |\n|---|---|\n| a | b |\n"
    assert quotes_of(answer("valve", f"{table}\nOpen valve | close valve\n")) == [
        ("Open valve | close valve", 1)
    ]
    assert quotes_of(answer("valve", "Open valve | close pump\nre-open valve | later\n")) == [
        ("Open valve | close pump", 1),
        ("re-open valve | later", 1),
    ]


@pytest.mark.parametrize("fence", ["```", "~~~", "````"])
def test_code_is_not_read_as_markdown(fence: str) -> None:
    content = f"{fence}\nrm -- **/*.log  # [[delete]] | all\n{fence}\n"
    assert quotes_of(answer("delete logs", content)) == [("`rm -- **/*.log  # [[delete]] | all`", 1)]


@pytest.mark.parametrize(
    ("line", "quote"),
    [
        ("- Restart **the _service_** now.", "Restart the service now."),
        ("* [ ] Restart the service", "Restart the service"),
        ("3. Restart [[Service Page|the service]].", "Restart the service."),
        ("> Restart [[service]]!", "Restart service!"),
        ("> [!warning]- Restart the service", "Restart the service"),
        ("+ Restart [the service](https://h.test/a_(b)?c=d) now", "Restart the service now"),
        ("Restart ![the service](a.png)", "Restart the service"),
        ("[![restart](a.png)](https://h.test) service", "restart service"),
        ("Restart [`the service`](a.md#b)", "Restart the service"),
        ("Restart the [service [beta]](a.md)", "Restart the service [beta]"),
        ("Restart with `SELECT count(*)` and `**kw`", "Restart with SELECT count(*) and **kw"),
        ("Restart if `[[ -f service ]]`", "Restart if [[ -f service ]]"),
        ("Restart my_service_name, 2 * 3 times", "Restart my_service_name, 2 * 3 times"),
        ("Restart `the *service*", "Restart the service"),
        ("**Restart** `the` **service**", "Restart the service"),
        ("__Restart__ *it* and ![[picture.png]]", "Restart it and picture.png"),
    ],
)
def test_markdown_marks_are_removed_and_the_words_stay(line: str, quote: str) -> None:
    assert quotes_of(answer("restart service", line)) == [(quote, 1)]


def test_headings_rules_and_empty_lines_are_not_quoted() -> None:
    content = "# Restart\n\n---\n\n***\n\n## Restart service\n\nRestart the service.\n"
    assert quotes_of(answer("restart", content)) == [("Restart the service.", 1)]


def test_a_sentence_that_occurs_twice_in_a_block_is_quoted_once() -> None:
    assert quotes_of(answer("restart", "Restart it.\nRestart it.\n")) == [("Restart it.", 1)]


def test_at_most_four_quotes_come_in_reading_order() -> None:
    content = "".join(f"Step {number}: restart server {number}.\n" for number in range(1, 9))
    quotes = [quote for quote, _ in quotes_of(answer("restart server", content))]
    assert quotes == [f"Step {number}: restart server {number}." for number in range(1, 5)]


def test_a_rare_word_counts_more_than_a_frequent_one() -> None:
    content = "".join(f"The server is in rack {number}.\n" for number in range(12)) + "The valve is open.\n"
    assert quotes_of(answer("server valve", content)) == [("The valve is open.", 1)]


def test_of_two_equal_sentences_the_block_with_the_better_score_wins() -> None:
    strong = packed("Restart it.", score=0.9).blocks[0].hit
    weak = packed("Restart it!", score=0.3, source="b.md").blocks[0].hit
    text = quoted("restart", pack_context([weak, strong], PLENTY))
    assert quotes_of(text) == [("Restart it.", 2)]


def test_a_heading_that_fits_lifts_the_sentences_below_it() -> None:
    context = packed("Wait five minutes.", heading_path=["Restart"])
    other = packed("Wait ten minutes.", heading_path=["Backup"], source="b.md")
    both = pack_context([other.blocks[0].hit, context.blocks[0].hit], PLENTY)
    assert quotes_of(quoted("restart: wait how long", both))[-1] == ("Wait five minutes.", 2)
    assert len(quotes_of(quoted("restart", both))) == 1


def test_a_word_in_the_sentence_counts_more_than_one_in_the_heading() -> None:
    below = packed("Wait five minutes.", heading_path=["Restart"]).blocks[0].hit
    inside = packed("Restart it.", heading_path=["Backup"], source="b.md").blocks[0].hit
    text = quoted("restart", pack_context([below, inside], PLENTY))
    assert quotes_of(text) == [("Restart it.", 2)]


def test_a_chinese_word_counts_more_than_its_single_characters() -> None:
    content = "上升后等级不变。\n\n别的事。\n\n升级给值班经理。\n"
    assert quotes_of(answer("升级", content)) == [("升级给值班经理。", 1)]


def test_single_digits_and_letters_count_as_whole_words() -> None:
    assert quotes_of(answer("7 alpha", "Level 7.\n\nThe alpha.\n")) == [("Level 7.", 1), ("The alpha.", 1)]


def test_the_mark_of_a_cut_block_is_not_quoted() -> None:
    context = packed("restart " * 500, budget=100)
    assert context.text.endswith("[truncated]")
    assert "[truncated]" not in quoted("restart truncated", context)


# Pieces --------------------------------------------------------------------------------------------


@hypothesis_settings(max_examples=50, deadline=None)
@given(content=st.text(max_size=60), question=st.text(max_size=10))
def test_the_pieces_of_a_stream_make_up_the_whole_answer(content: str, question: str) -> None:
    for prompt in (Prompt(question, (), packed(content)), Prompt(question, ())):
        assert text_of(FakeLlm(), prompt, stream=True) == text_of(FakeLlm(), prompt)


def test_an_answer_of_several_words_is_streamed_in_several_pieces() -> None:
    prompt = Prompt("restart", (), packed("Restart the service. 重启服务。"))
    assert len(list(FakeLlm().reply(prompt, stream=True))) > 5
    assert len(list(FakeLlm().reply(prompt, stream=False))) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_answer_is_just_its_end(stream: bool) -> None:
    assert list(FakeLlm().reply(Prompt("restart", (), Context()), stream=stream)) == [Finish("stop")]


# Any context ---------------------------------------------------------------------------------------


def letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text)


def test_every_answer_about_the_sample_vault_is_verbatim() -> None:
    paths = sorted(SAMPLE_VAULT.rglob("*.md"))
    contents = [path.read_text(encoding="utf-8").split("\n---\n", 1)[-1] for path in paths]
    context = packed(*contents)
    aliases = [re.sub(r"\[\[[^\]|]*\\?\|", "[[", content) for content in contents]
    sources = [letters(text) for text in aliases]
    kinds = set()
    for question in load_questions(REPOSITORY / "eval" / "questions.yaml"):
        quotes = quotes_of(quoted(question.question, context))
        assert 1 <= len(quotes) <= 4 * 13  # each may bring a list of 12 along
        for quote, number in quotes:
            parts = [quote]
            if letters(quote) not in sources[number - 1]:  # a table row: its names and cells stand apart
                parts = re.split(r"; |: ", quote)
                kinds.add("row")
            assert all(letters(part) in sources[number - 1] for part in parts), quote
            if quote.startswith("`"):
                kinds.add("code")
                assert quote.strip("`") in contents[number - 1]
            else:
                assert "**" not in quote
                assert "[[" not in quote
    assert kinds == {"row", "code"}


marks = st.sampled_from(
    ["**", "_", "`", "[[", "]]", "|", "\n", "\n\n", "# ", "- ", "> ", "```\n", "---", "。", ". ", "a|b"]
)
markdown = st.lists(marks | st.text(max_size=5) | st.sampled_from(["工单", "restart", "P1"]), max_size=30)


@hypothesis_settings(max_examples=100, deadline=None)
@given(contents=st.lists(markdown.map("".join), min_size=1, max_size=3), question=st.text(max_size=20))
def test_any_context_gives_quotes_with_existing_numbers(contents: list[str], question: str) -> None:
    context = packed(*contents)
    quotes = quotes_of(quoted(question, context))
    assert 1 <= len(quotes) <= 4 * 13  # each may bring a list of 12 along
    for quote, number in quotes:
        assert 1 <= number <= len(contents)
        if ": " not in quote and quote != "Escalation":  # neither a table row nor the heading alone
            rest = iter(letters(contents[number - 1]))
            assert all(letter in rest for letter in letters(quote)), "other words, or another order"


@pytest.mark.parametrize(
    "content", ["Backups run at night.", "| A | B |\n|---|---|\n| 1 | 2 |", "```\nls\n```"]
)
def test_a_question_without_overlap_still_gets_a_quote(content: str) -> None:
    assert quotes_of(answer("zebra?", content))
    assert quotes_of(answer("？？？", content))


@pytest.mark.parametrize(
    "content", ["# Escalation\n", "---", "```\n```", "", "[truncated]", "\n\n", "> \n- \n"]
)
def test_a_block_without_text_is_quoted_by_its_heading(content: str) -> None:
    assert quotes_of(answer("restart", content)) == [("Escalation", 1)]


def test_a_block_without_text_and_heading_is_quoted_by_its_source() -> None:
    context = packed("---", heading_path=[])
    assert quotes_of(quoted("restart", context)) == [("notes/1.md", 1)]


def test_an_empty_context_gives_an_empty_answer() -> None:
    assert quoted("restart", Context()) == ""


@pytest.mark.parametrize(
    ("question", "lead"),
    [
        ("P1 工单怎么升级？", CHINESE),
        ("Atlas の制限は", CHINESE),
        ("How is P1 escalated?", ENGLISH),
        ("P1?!", ENGLISH),
    ],
)
def test_the_lead_is_in_the_language_of_the_question(question: str, lead: str) -> None:
    assert answer(question, "P1 工单升级给值班经理。", "P1 goes to the manager.").split("\n")[0] == lead


def test_the_same_question_and_context_give_the_same_answer_in_every_process() -> None:
    # sums of the same size in another order: rounded, they would be ranked by the order of a set
    program = """
from pyrag.context import pack_context
from pyrag.fake_llm import FakeLlm
from pyrag.models import Hit, Prompt
lines = [f"u{n} v{n} w{n} s{n // 2} t{n // 3} r{n // 4}." for n in range(12)]
hit = Hit(1, "v", "a.md", ["h"], 0, "\\n".join(lines), "x", {}, 0.37)
prompt = Prompt(" ".join(lines), (), pack_context([hit], 10_000))
print("".join(list(FakeLlm().reply(prompt, stream=True))[:-1]))
"""
    answers = set()
    for seed in ("0", "6", "7"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        answers.add(run.stdout.decode())
    assert len(answers) == 1
    assert len(quotes_of(answers.pop().rstrip("\n"))) == 4


@pytest.mark.parametrize(
    ("question", "content"),
    [
        ("工单升级 restart " * 5000, "Restart the service. 工单升级给值班经理。"),
        ("x" * 100_000, "Restart the service."),
        ("restart", "[" * 50_000),
        ("restart", "[[a|" * 20_000),
        ("restart", "[a](" * 20_000),
        ("restart", "`" * 50_001),
        ("restart", "a | b\n-" + " " * 50_000 + "x"),
        ("restart", "a | b\n" + "-" * 50_000 + "x"),
        ("restart", "*" * 50_000 + "x"),
    ],
    ids=lambda text: text[:8],
)
def test_long_questions_and_odd_contents_are_answered_quickly(question: str, content: str) -> None:
    context = packed(content)
    start = time.monotonic()
    assert quotes_of(quoted(question, context))
    assert time.monotonic() - start < 5  # a few hundredths; a minute or more where a pattern goes quadratic


# The other texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("question", ["升级？", "escalate?"])
def test_texts_of_our_own_are_in_the_language_of_the_question(question: str) -> None:
    general = text_of(FakeLlm(), Prompt(question, ()))
    texts = [
        general.replace("fake 模型", ""),
        fallback_note(question),
        no_answer_text(question, fallback_disabled=False),
        no_answer_text(question, fallback_disabled=True),
    ]
    assert [is_cjk(text) for text in texts] == [is_cjk(question)] * 4


@pytest.mark.parametrize("question", ["升级？", "escalate?"])
def test_a_refusal_says_that_fallback_is_disabled_only_when_it_was_asked_for(question: str) -> None:
    disabled = no_answer_text(question, fallback_disabled=True)
    assert disabled.startswith(no_answer_text(question, fallback_disabled=False))
    assert "RAG_FALLBACK_ENABLED=false" in disabled
    assert "RAG_FALLBACK_ENABLED" not in no_answer_text(question, fallback_disabled=False)


@pytest.mark.parametrize(
    ("question", "note"), [("升级？", "不来自知识库"), ("x?", "not from the knowledge base")]
)
def test_a_fallback_answer_says_that_it_is_not_from_the_knowledge_base(question: str, note: str) -> None:
    assert note in fallback_note(question)
    assert fallback_note(question).endswith("\n\n")


# The provider --------------------------------------------------------------------------------------


def test_the_fake_model_is_the_default(settings: Settings) -> None:
    assert isinstance(build_llm(settings), FakeLlm)


COMPLETE = {"LLM_BASE_URL": "http://localhost:1/v1", "LLM_API_KEY": "pw-s3cret", "LLM_MODEL": "m"}


@pytest.mark.parametrize("missing", [["LLM_BASE_URL"], ["LLM_API_KEY"], ["LLM_MODEL"], list(COMPLETE)])
def test_each_missing_setting_of_a_real_model_is_named(missing: list[str]) -> None:
    environ = {"LLM_PROVIDER": "openai-compatible", **COMPLETE, **dict.fromkeys(missing, "")}
    loaded = load_configuration(environ=environ, folder=REPOSITORY.parent)
    with pytest.raises(LlmConfigMissing) as caught:
        build_llm(loaded.settings)
    assert str(caught.value) == f"LLM_PROVIDER=openai-compatible needs {', '.join(missing)}"
    assert "pw-s3cret" not in f"{caught.value!r} {caught.value.hint} {caught.value.envelope()}"


def test_a_real_model_is_never_a_silent_fake() -> None:
    environ = {"LLM_PROVIDER": "openai-compatible", **COMPLETE}
    llm = build_llm(load_configuration(environ=environ, folder=REPOSITORY.parent).settings)
    assert isinstance(llm, RemoteLlm)
    assert repr(llm) == "RemoteLlm('localhost:1', 'm')"
    assert "pw-s3cret" not in f"{vars(llm)}"
