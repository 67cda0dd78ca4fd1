"""The context that a model reads: its format, what is left out, and its budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrag.context import pack_context
from pyrag.models import Dropped, Hit, Neighbours
from pyrag.tokens import count_tokens

PLENTY = 1_000_000


def hit(content: str = "Text.", **fields: Any) -> Hit:
    """A hit whose hash follows from its content."""
    values: dict[str, Any] = {
        "chunk_id": 1,
        "vault_path": "/vault",
        "source": "notes/A.md",
        "heading_path": ["Top", "Part"],
        "chunk_index": 0,
        "content": content,
        "content_hash": f"hash of {content}",
        "metadata": {},
        "score": 0.5,
    }
    return Hit(**{**values, **fields})


# Format --------------------------------------------------------------------------------------------


def test_a_block_has_source_heading_score_and_content() -> None:
    context = pack_context([hit("# Part\n\nTwo\nlines.\n", score=0.87654)], PLENTY)
    assert context.text == (
        "[1] source: notes/A.md\nheading: Part\nscore: 0.8765\ncontent:\n# Part\n\nTwo\nlines.\n"
    )


@pytest.mark.parametrize(
    ("score", "shown"),
    [(0.0, "0.0000"), (1.0, "1.0000"), (0.5, "0.5000"), (1 / 3, "0.3333"), (0.00005001, "0.0001")],
)
def test_the_score_has_four_digits(score: float, shown: str) -> None:
    assert f"\nscore: {shown}\n" in pack_context([hit(score=score)], PLENTY).text


def test_without_a_heading_the_line_stays_and_is_empty() -> None:
    context = pack_context([hit(heading_path=[])], PLENTY)
    assert context.text == "[1] source: notes/A.md\nheading: \nscore: 0.5000\ncontent:\nText."


def test_a_page_stands_after_the_heading() -> None:
    context = pack_context([hit(metadata={"page": 3})], PLENTY)
    assert context.text == ("[1] source: notes/A.md\nheading: Part\npage: 3\nscore: 0.5000\ncontent:\nText.")


def test_other_metadata_is_not_shown() -> None:
    assert (
        pack_context([hit(metadata={"sections": ["x"]})], PLENTY).text == pack_context([hit()], PLENTY).text
    )


def test_blocks_are_joined_by_a_blank_line_in_the_order_of_the_hits() -> None:
    context = pack_context([hit("One.", score=0.2), hit("Two.", source="B.md", score=0.9)], PLENTY)
    assert context.text == (
        "[1] source: notes/A.md\nheading: Part\nscore: 0.2000\ncontent:\nOne.\n\n"
        "[2] source: B.md\nheading: Part\nscore: 0.9000\ncontent:\nTwo."
    )
    assert [(block.number, block.hit.source) for block in context.blocks] == [(1, "notes/A.md"), (2, "B.md")]


def test_without_hits_the_context_is_empty() -> None:
    context = pack_context([], PLENTY)
    assert (context.text, context.blocks, context.token_count) == ("", (), 0)


def test_the_token_count_is_that_of_the_whole_text() -> None:
    context = pack_context([hit("One."), hit("工单升级。"), hit("<|endoftext|>")], PLENTY)
    assert len(context.blocks) == 3
    assert context.token_count == count_tokens(context.text)


# Repeated chunks -----------------------------------------------------------------------------------


def test_a_repeated_chunk_is_left_out_and_the_numbers_have_no_gap() -> None:
    hits = [hit("One.", chunk_id=1), hit("One.", chunk_id=2, chunk_index=7, score=0.4), hit("Two.")]
    context = pack_context(hits, PLENTY)
    assert [(block.number, block.hit) for block in context.blocks] == [(1, hits[0]), (2, hits[2])]
    assert [block.text[:4] for block in context.blocks] == ["[1] ", "[2] "]


@pytest.mark.parametrize(
    "change",
    [
        {"vault_path": "/other"},
        {"source": "notes/B.md"},
        {"heading_path": ["Other", "Part"]},
        {"content_hash": "other"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_vault_source_heading_path_and_hash_tell_chunks_apart(change: dict[str, Any]) -> None:
    first = hit()
    assert len(pack_context([first, replace(first, **change)], PLENTY).blocks) == 2


def test_a_chunk_that_did_not_fit_is_not_tried_again() -> None:
    large = hit("word " * 200, source="L.md")
    context = pack_context([hit("One."), large, replace(large, content="Small.")], 100)
    assert [block.hit.content for block in context.blocks] == ["One."]


# Budget --------------------------------------------------------------------------------------------


def test_a_block_that_does_not_fit_is_skipped_and_a_smaller_one_still_gets_in() -> None:
    hits = [hit("One."), hit("word " * 200), hit("Two.")]
    context = pack_context(hits, 100)
    assert [(block.number, block.hit.content) for block in context.blocks] == [(1, "One."), (2, "Two.")]
    assert "[truncated]" not in context.text


def test_a_context_of_exactly_the_budget_is_whole() -> None:
    hits = [hit("One."), hit("Two.")]
    whole = pack_context(hits, PLENTY)
    assert pack_context(hits, whole.token_count) == whole
    assert len(pack_context(hits, whole.token_count - 1).blocks) == 1


def test_a_first_block_of_exactly_the_budget_is_not_cut() -> None:
    whole = pack_context([hit("One.")], PLENTY)
    assert pack_context([hit("One.")], whole.token_count) == whole


def test_a_first_block_that_is_too_large_alone_is_cut_and_says_so() -> None:
    context = pack_context([hit("word " * 500)], 100)
    assert context.text.startswith(
        "[1] source: notes/A.md\nheading: Part\nscore: 0.5000\ncontent:\nword word"
    )
    assert context.text.endswith("word\n[truncated]")
    assert context.token_count == 100


def test_only_the_first_block_is_ever_cut() -> None:
    hits = [hit("One."), hit("word " * 500)]
    assert all("[truncated]" not in pack_context(hits, budget).text for budget in range(40, 300))


def test_a_first_hit_whose_frame_alone_is_too_large_gives_way_to_the_next() -> None:
    context = pack_context([hit("One.", source="long/" * 100 + "A.md"), hit("Two.")], 50)
    assert [(block.number, block.hit.content) for block in context.blocks] == [(1, "Two.")]


FRAME = "[1] source: notes/A.md\nheading: Part\nscore: 0.5000\ncontent:\n"


def check_cut(content: str, budget: int) -> None:
    """Packs one hit: within the budget, and a beginning of the content that ends between two characters."""
    context = pack_context([hit(content)], budget)
    assert context.token_count == count_tokens(context.text) <= budget
    if context.text == FRAME + content:
        return
    if not context.blocks:
        assert budget < count_tokens(f"{FRAME}[truncated]")
        return
    assert context.text == context.blocks[0].text
    kept = context.text.removeprefix(FRAME).removesuffix("[truncated]")
    assert f"{FRAME}{kept}[truncated]" == context.text
    assert content.startswith(kept.removesuffix("\n"))
    assert context.text.count("\ufffd") == kept.count("\ufffd")


@pytest.mark.parametrize(
    "content",
    [
        "客户的一级工单需要在十五分钟内升级给值班经理，并在群里同步处理进度。" * 20,
        "👩‍👩‍👧‍👦🧑🏽‍🚀🇩🇪é́ 🀄𠮷𠀋" * 40,
        "Restart the service, then look at the log. " * 60,
        "𠮷" * 300,
        "a\u0301\n\n  \t" * 200,
        "\ufffd\ufffd 工单" * 100,
    ],
    ids=["chinese", "emoji", "english", "rare-character", "white-space", "replacement-character"],
)
def test_no_budget_from_1_to_300_is_exceeded_and_no_character_is_halved(content: str) -> None:
    for budget in range(1, 301):
        check_cut(content, budget)


characters = st.one_of(
    st.sampled_from("工单升级值班经理客户数据。，？\n \t|#*`[]<>"),
    st.sampled_from("👩‍👧🧑🏽🚀🇩🇪𠮷é́ß\u200b\ufeff"),
    st.characters(codec="utf-8"),
)
contents = st.text(characters, max_size=60).flatmap(
    lambda text: st.integers(1, 8).map(lambda times: text * times)
)


@settings(max_examples=75, deadline=None)
@given(content=contents, budget=st.integers(1, 300))
def test_any_content_is_cut_between_characters_and_within_the_budget(content: str, budget: int) -> None:
    check_cut(content, budget)


hits = st.builds(
    hit,
    content=contents,
    source=st.sampled_from(["A.md", "policies/Support.md", "产品/说明.md"]),
    heading_path=st.lists(st.text(st.sampled_from("ab 工单"), max_size=6), max_size=2),
    metadata=st.sampled_from([{}, {"page": 12}]),
    score=st.floats(0, 1),
)


@settings(max_examples=75, deadline=None)
@given(found=st.lists(hits, max_size=6), budget=st.integers(1, 400))
def test_any_hits_are_packed_within_the_budget_in_order_and_numbered(found: list[Hit], budget: int) -> None:
    context = pack_context(found, budget)
    assert context.token_count == count_tokens(context.text) <= budget
    assert context.text == "\n\n".join(block.text for block in context.blocks)
    assert [block.number for block in context.blocks] == list(range(1, len(context.blocks) + 1))
    rest = iter(found)
    for block in context.blocks:
        assert any(block.hit is candidate for candidate in rest), "out of order or repeated"
        assert block.text.startswith(f"[{block.number}] source: {block.hit.source}\n")
        assert block.number == 1 or block.text.endswith(f"\ncontent:\n{block.hit.content}")


# Neighbours and near-duplicates ----------------------------------------------------------------------


def around(chunk_id: int, previous: str | None, following: str | None) -> Neighbours:
    return Neighbours(
        chunk_id,
        chunk_id + 100 if previous else None,
        previous,
        chunk_id + 200 if following else None,
        following,
    )


def test_neighbours_join_the_block_and_what_they_repeat_stands_there_once() -> None:
    first, last = (
        "The overlap of the chunk and the one before it.",
        "It ends as the next one begins, word by word.",
    )
    beside = {1: around(1, f"Before. {first}", f"{last} After.")}
    content = f"{first} Middle. {last}"
    context = pack_context([hit(content)], PLENTY, neighbours=beside)
    expected = f"Before. {first} Middle. {last} After."
    assert [block.content for block in context.blocks] == [expected]
    assert context.text.endswith(f"content:\n{expected}")
    assert context.token_count == count_tokens(context.text)


def test_neighbours_without_an_overlap_are_set_apart_by_a_blank_line() -> None:
    context = pack_context([hit("Middle.")], PLENTY, neighbours={1: around(1, "Before.", "After.")})
    assert context.blocks[0].content == "Before.\n\nMiddle.\n\nAfter."


@pytest.mark.parametrize(
    ("previous", "following", "expected"),
    [(None, None, "Middle."), (None, "After.", "Middle.\n\nAfter."), ("Before.", None, "Before.\n\nMiddle.")],
)
def test_a_section_s_ends_have_a_neighbour_on_one_side(
    previous: str | None, following: str | None, expected: str
) -> None:
    context = pack_context([hit("Middle.")], PLENTY, neighbours={1: around(1, previous, following)})
    assert context.blocks[0].content == expected


def test_neighbours_come_after_all_blocks_have_their_place_and_only_as_the_budget_allows() -> None:
    hits = [hit("One.", chunk_id=1), hit("Two.", chunk_id=2)]
    beside = {1: around(1, "word " * 400, "next one"), 2: around(2, None, "next two")}
    context = pack_context(hits, 100, 5, beside)
    assert [block.content for block in context.blocks] == ["One.\n\nnext one", "Two.\n\nnext two"]
    assert context.token_count + 10 <= 100
    plain = pack_context(hits, PLENTY)
    none = pack_context(hits, plain.token_count, 0, beside)
    assert none == plain


def test_a_cut_block_takes_no_neighbour() -> None:
    context = pack_context([hit("word " * 500)], 100, neighbours={1: around(1, "Before.", "After.")})
    assert context.blocks[0].content.endswith("[truncated]")


def test_a_hit_that_nearly_repeats_a_block_is_left_out() -> None:
    hits = [hit("A.", chunk_id=1), hit("A!", chunk_id=2, duplicate_of=1), hit("B.", chunk_id=3)]
    context = pack_context(hits, PLENTY)
    assert [block.hit.chunk_id for block in context.blocks] == [1, 3]
    assert [block.number for block in context.blocks] == [1, 2]


def test_a_near_copy_stands_in_for_a_hit_that_did_not_fit() -> None:
    hits = [
        hit("Short.", chunk_id=1),
        hit("word " * 500, chunk_id=2),
        hit("word " * 20, chunk_id=3, duplicate_of=2),
    ]
    context = pack_context(hits, 150)
    assert [block.hit.chunk_id for block in context.blocks] == [1, 3]


@given(
    st.lists(st.text(alphabet="ab \n数", max_size=60), min_size=1, max_size=6),
    st.integers(min_value=1, max_value=400),
)
@settings(max_examples=60, deadline=None)
def test_with_neighbours_the_budget_still_holds_and_no_text_is_lost(texts: list[str], budget: int) -> None:
    hits = [hit(text, chunk_id=number, source=f"{number}.md") for number, text in enumerate(texts)]
    beside = {number: around(number, text * 2, text * 3) for number, text in enumerate(texts)}
    context = pack_context(hits, budget, 3, beside)
    assert context.token_count + 3 * len(context.blocks) <= budget or not context.blocks
    for block in context.blocks:
        assert block.hit.content in block.content or block.content.endswith("[truncated]")


def test_a_fence_or_list_item_at_a_border_is_no_overlap() -> None:
    content = "- one\n```\nx\n```"
    context = pack_context([hit(content)], PLENTY, neighbours={1: around(1, "a\n- one", "```\ny\n```")})
    assert context.blocks[0].content == f"a\n- one\n\n{content}\n\n```\ny\n```"


def test_a_chunk_between_two_hits_joins_one_of_them() -> None:
    hits = [hit("First.", chunk_id=1), hit("Third.", chunk_id=3)]
    beside = {1: Neighbours(1, None, None, 2, "Second."), 3: Neighbours(3, 2, "Second.", None, None)}
    context = pack_context(hits, PLENTY, neighbours=beside)
    assert [block.content for block in context.blocks] == ["First.\n\nSecond.", "Third."]


def test_what_has_no_block_is_listed_with_why() -> None:
    hits = [
        hit("Short.", chunk_id=1),
        hit("Short.", chunk_id=2),
        hit("word " * 500, chunk_id=3),
        hit("word " * 500, chunk_id=4),
        hit("Nearly short.", chunk_id=5, duplicate_of=1),
        hit("word " * 500, chunk_id=6, source="B.md", duplicate_of=3),
    ]
    context = pack_context(hits, 150)
    assert [block.hit.chunk_id for block in context.blocks] == [1]
    assert context.dropped == (
        Dropped(2, "duplicate", 1),
        Dropped(3, "over_budget"),
        Dropped(4, "duplicate", 3),
        Dropped(5, "duplicate", 1),
        Dropped(6, "over_budget"),
    )


def test_blocks_say_what_was_cut_and_what_joined_them() -> None:
    cut = pack_context([hit("word " * 500, chunk_id=1)], 100, neighbours={1: around(1, "before", "after")})
    assert [(block.truncated, block.joined) for block in cut.blocks] == [(True, ())]
    beside = {1: Neighbours(1, 7, "Before.", 8, "After.")}
    whole = pack_context([hit("Middle.", chunk_id=1)], PLENTY, neighbours=beside)
    assert [(block.truncated, block.joined) for block in whole.blocks] == [(False, (8, 7))]


@given(st.lists(st.sampled_from(["a", "b", "word " * 90, "word " * 30]), max_size=8), st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_each_hit_has_a_block_or_is_dropped(texts: list[str], budget: int) -> None:
    hits = [hit(text, chunk_id=number) for number, text in enumerate(texts)]
    context = pack_context(hits, budget)
    numbers = [block.hit.chunk_id for block in context.blocks] + [each.chunk_id for each in context.dropped]
    assert sorted(numbers) == list(range(len(texts)))
