from __future__ import annotations

import hashlib
import math
import random
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrag.chunking import chunk_note
from pyrag.errors import InvalidConfiguration
from pyrag.markdown import parse_note
from pyrag.tokens import count_tokens, encode
from pyrag.units import LineTable

if TYPE_CHECKING:
    from pyrag.models import Chunk

SMALL = {"target": 48, "maximum": 64, "overlap": 12, "merge_below": 10}
FAMILY = "👨\u200d👩\u200d👧\u200d👦"
ZH = "数据库会把每一次写入记在日志里，以便在故障之后恢复。"


def chunks(text: str, **sizes: int) -> list[Chunk]:
    note = parse_note(text)
    made = chunk_note(note, **sizes)
    check(made, "".join(note.lines), sizes.get("maximum", 1200))
    return made


def check(made: list[Chunk], body: str, maximum: int) -> None:
    """What is true of the chunks of any text."""
    for index, chunk in enumerate(made):
        assert chunk.chunk_index == index
        assert chunk.content.strip()
        assert chunk.content == chunk.content.rstrip()
        assert chunk.content.split("\n")[0].strip()
        assert chunk.token_count == count_tokens(chunk.content) <= maximum
        assert chunk.content_hash == hashlib.sha256(chunk.content.encode()).hexdigest()
        assert "" not in chunk.heading_path
        assert "" not in chunk.wikilinks
    found = iter("".join(chunk.content for chunk in made))
    missing = next((mark for mark in body if not mark.isspace() and mark not in found), None)
    assert missing is None
    assert {mark for chunk in made for mark in chunk.content} <= {*body, *"`~>| \n"}


def sentences(count: int, *, seed: int = 1) -> str:
    """Chinese sentences that differ from each other."""
    numbers = random.Random(seed)
    return "".join(f"第{numbers.randrange(10**9)}条：{ZH}" for _ in range(count))


def overlap_of(first: Chunk, second: Chunk) -> str:
    """The longest start of the second chunk that ends the first one."""
    sizes = range(min(len(first.content), len(second.content)), 0, -1)
    return next(
        (second.content[:size] for size in sizes if first.content.endswith(second.content[:size])), ""
    )


# --- sections


def test_section_up_to_the_target_is_one_chunk_with_its_heading_line() -> None:
    text = f"# Guide\n\nIntro {'word ' * 120}\n\n## Part\n\n{'word ' * 700}\n"
    first, second = chunks(text)
    assert first.heading_path == ("Guide",)
    assert second.heading_path == ("Guide", "Part")
    assert second.content.startswith("## Part\n\nword word")
    assert (first.metadata, second.metadata) == ({}, {})


def test_blank_lines_at_the_edges_go_and_the_first_indent_stays() -> None:
    (chunk,) = chunks("\n \n    code line\n\n    more\n\n\n")
    assert chunk.content == "    code line\n\n    more"


def test_special_tokens_are_ordinary_text() -> None:
    text = (
        "# Tokenizer notes\n\n"
        "The separator <|endoftext|> ends a document; <|fim_prefix|> and <|endofprompt|> are others."
    )
    (chunk,) = chunks(text)
    assert chunk.content == text
    assert count_tokens("<|endoftext|>") == 7


@pytest.mark.parametrize("text", ["", "\n \n\t\n\n", "\u3000\n\u3000", "---\ntitle: x\n---\n"])
def test_note_without_text_has_no_chunk(text: str) -> None:
    assert chunks(text) == []


def test_empty_sections_make_no_chunk_and_their_headings_stay_in_the_text() -> None:
    (chunk,) = chunks("# Plan\n\n## Step one\n\n\n   \n## Step two\n\nReal text.\n\n## Step three\n")
    assert chunk.heading_path == ("Plan", "Step two")
    assert chunk.content == "# Plan\n\n## Step one\n\n\n   \n## Step two\n\nReal text.\n\n## Step three"


def test_note_of_headings_only_is_one_chunk() -> None:
    (chunk,) = chunks("# Alpha\n## Beta\n## Gamma\n")
    assert chunk.content == "# Alpha\n## Beta\n## Gamma"
    assert chunk.heading_path == ("Alpha",)


def test_thematic_break_is_no_text() -> None:
    (chunk,) = chunks("# A\n\n---\n\n# B\n\nText.\n")
    assert chunk.heading_path == ("B",)


# --- merging


def test_small_sections_join_their_next_siblings_until_large_enough() -> None:
    text = "# Top\n\n" + "word " * 150 + "\n\n" + "".join(f"## S{n}\n\n{'word ' * 40}\n\n" for n in range(5))
    made = chunks(text)
    assert [chunk.heading_path for chunk in made] == [("Top",), ("Top", "S0"), ("Top", "S3")]
    assert made[1].metadata == {"sections": [["Top", "S0"], ["Top", "S1"], ["Top", "S2"]]}
    assert made[2].metadata == {"sections": [["Top", "S3"], ["Top", "S4"]]}
    assert "## S2" in made[1].content


def test_small_section_with_children_and_last_sibling_stay_alone() -> None:
    text = "# A\n\nSmall.\n\n## A1\n\nSmall too.\n\n# B\n\nSmall three.\n"
    assert [chunk.heading_path for chunk in chunks(text)] == [("A",), ("A", "A1"), ("B",)]


def test_text_before_the_first_heading_is_not_merged() -> None:
    assert [chunk.heading_path for chunk in chunks("Preamble.\n\n# A\n\nText.\n")] == [(), ("A",)]


def test_small_section_does_not_join_a_sibling_that_would_pass_the_target() -> None:
    made = chunks(f"## A\n\nSmall.\n\n## B\n\n{'word ' * 795}\n")
    assert [chunk.heading_path for chunk in made] == [("A",), ("B",)]


def test_section_at_the_limit_is_not_merged() -> None:
    body = "word " * 200
    assert len(chunks(f"## A\n\n{body}\n\n## B\n\nSmall.\n")) == 2


def test_empty_sibling_between_two_merged_sections_is_listed() -> None:
    (chunk,) = chunks("## A\n\nOne.\n\n## B\n\n## C\n\nTwo.\n")
    assert chunk.metadata == {"sections": [["A"], ["B"], ["C"]]}


def test_empty_heading_of_another_level_prevents_merging() -> None:
    made = chunks("## A\n\nOne.\n\n# New\n\n## C\n\nTwo.\n")
    assert [chunk.heading_path for chunk in made] == [("A",), ("New", "C")]


# --- splitting


def test_long_section_is_cut_into_pieces_of_similar_size_between_paragraphs() -> None:
    paragraphs = [sentences(4, seed=number) for number in range(30)]
    made = chunks("# Long\n\n" + "\n\n".join(paragraphs) + "\n")
    assert len(made) > 3
    for chunk in made:
        assert 400 <= chunk.token_count <= 800
        assert chunk.heading_path == ("Long",)
        assert chunk.content.endswith("。")


def test_further_pieces_begin_with_whole_sentences_of_the_piece_before() -> None:
    made = chunks("# Long\n\n" + "\n\n".join(sentences(6, seed=number) for number in range(20)))
    for before, after in pairwise(made):
        repeated = overlap_of(before, after)
        assert 20 <= count_tokens(repeated) <= 80
        assert repeated.startswith("第")


def test_one_long_paragraph_is_cut_between_sentences() -> None:
    for text in (sentences(200), " ".join(f"This is sentence number {n} of the text." for n in range(600))):
        made = chunks(text)
        assert len(made) > 2
        for chunk in made:
            assert chunk.content.startswith(("第", "This"))
            assert chunk.content.endswith(("。", "."))
            assert 400 <= chunk.token_count <= 800


def test_list_is_cut_before_items_and_keeps_code_inside_whole() -> None:
    item = "- step {n}: " + "do the work " * 20 + "\n\n  ```sh\n  run --number {n}\n  ```\n\n"
    made = chunks("# Steps\n\n" + "".join(item.format(n=n) for n in range(40)))
    assert len(made) > 2
    for chunk in made[1:]:
        assert chunk.content.startswith("- step")
    for chunk in made:
        assert chunk.content.count("```") % 2 == 0


def test_fence_that_fits_into_the_maximum_stays_whole() -> None:
    code = "".join(f"value_{n} = compute({n})\n" for n in range(110))
    fence = f"```python\n{code}```"
    assert 800 < count_tokens(fence) < 1150
    made = chunks(f"# Code\n\n{sentences(20)}\n\n{fence}\n\n{sentences(20)}\n")
    assert sum(fence in chunk.content for chunk in made) == 1


@pytest.mark.parametrize(
    ("opener", "closer"),
    [
        ("```python", "```"),
        ("~~~~ sh", "~~~~"),
        ("- ```sh", "  ```"),
        ("> ```", "> ```"),
        ("   ````", "   ````"),
    ],
)
def test_long_fence_is_cut_at_lines_and_each_piece_is_a_fence(opener: str, closer: str) -> None:
    prefix = closer[: len(closer) - len(closer.lstrip("> "))]
    lines = [f"{prefix}value_{n} = compute({n})" for n in range(500)]
    made = chunks("\n".join(["# Code", "", "Before.", "", opener, *lines, closer, "", "After."]))
    assert len(made) > 3
    for chunk in made:
        code = chunk.content.split("\n")
        assert opener in code
        assert closer in code
    assert [line for chunk in made for line in chunk.content.split("\n") if "value_" in line] == lines


def test_long_math_is_cut_at_lines_and_each_piece_is_math() -> None:
    lines = [f"x_{{{number}}} = \\frac{{a_{number}}}{{b_{number}}} \\\\" for number in range(200)]
    made = chunks("$$\n" + "\n\n".join(lines) + "\n\n# no\n$$\n")
    assert len(made) > 2
    assert all(chunk.content.startswith("$$") and chunk.content.endswith("\n$$") for chunk in made)
    assert [line for chunk in made for line in chunk.content.splitlines() if line.startswith("x_")] == lines
    assert {chunk.heading_path for chunk in made} == {()}


def test_unclosed_fence_is_closed_in_all_pieces_but_the_last() -> None:
    made = chunks("```sh\n" + "".join(f"value_{n} = compute({n})\n" for n in range(500)))
    assert all(chunk.content.startswith("```sh\n") for chunk in made)
    assert [chunk.content.endswith("\n```") for chunk in made] == [True] * (len(made) - 1) + [False]


def test_long_table_is_cut_at_rows_and_each_piece_has_its_head() -> None:
    head = "| name | meaning |\n| --- | --- |\n"
    rows = [f"| key {n} | {ZH} |" for n in range(150)]
    made = chunks(f"# Table\n\n{head}" + "\n".join(rows) + "\n\nAfter.\n")
    assert len(made) > 3
    assert all(head in chunk.content for chunk in made)
    assert [row for chunk in made for row in chunk.content.split("\n") if row.startswith("| key")] == rows


def test_table_that_fits_stays_whole() -> None:
    table = "| a | b |\n|---|---|\n" + "".join(f"| key {n} | value {n} |\n" for n in range(90))
    assert 800 < count_tokens(table) < 1150
    (chunk,) = chunks(f"# T\n\n{table}")
    assert table.rstrip() in chunk.content


def test_heading_is_never_left_alone_before_what_it_heads() -> None:
    code = "".join(f"value_{n} = compute({n})\n" for n in range(400))
    for chunk in chunks(f"# One\n\n```\n{code}```\n\n# Two\n\n{sentences(100)}\n"):
        assert chunk.content.count("\n") > 1 or len(chunk.content) > 20


def test_graphemes_are_not_cut() -> None:
    flag, accent = "🇨🇳", "e\u0301\u0323"
    for cluster in (FAMILY, flag, accent, "각", "👍🏽", "क्षि"):
        for chunk in chunks(cluster * (9000 // len(cluster))):
            assert chunk.content.replace(cluster, "") == ""


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10 + " " + "x" * 20_000,
        "abc\n" * 6000,
        "^" * 1_000_000,
        "https://example.test/" + "q" * 50_000,
    ],
    ids=["run", "lines", "one character", "url"],
)
def test_text_without_borders_is_cut_into_few_different_pieces_in_time(text: str) -> None:
    started = time.perf_counter()
    made = chunk_note(parse_note(text))
    assert time.perf_counter() - started < 20
    assert len(made) <= math.ceil(count_tokens(text) / (1200 - 80)) + 1
    assert all(chunk.token_count <= 1200 for chunk in made)
    assert all(one.content != other.content for one, other in pairwise(made))
    check(made, text, 1200)


@pytest.mark.parametrize(
    "text",
    [
        "a" + " " * 1_000_000 + "b",
        "a" + "\n" * 200_000 + "b",
        "a\n" * 50_000,
        "- a\n" * 20_000,
        "# a\n" * 20_000,
        "|a|b|\n|-|-|\n" + "|x|y|\n" * 10_000,
        "```\n" + "x" * 300_000 + "\n```\n",
        "```" + "x" * 100_000 + "\ncode\n",
        "." * 500_000,
        "a。" * 50_000,
        "e" + "\u0301" * 20_000,
        "\u200b" * 20_000,
        "|" + "a|" * 3000 + "\n|" + "-|" * 3000 + "\n|" + "b|" * 3000 + "\n",
        "heading " * 5000 + "\n===\n\n" + "text.\n\n" * 2000,
    ],
    ids=lambda text: f"{text[:12]!r}...",
)
def test_odd_large_input_takes_seconds_at_most(text: str) -> None:
    started = time.perf_counter()
    note = parse_note(text)
    made = chunk_note(note)
    assert time.perf_counter() - started < 20
    check(made, "".join(note.lines), 1200)


def test_million_spaces_in_a_line_do_not_stop_the_count() -> None:
    assert len(encode("a" + " " * 1_000_000 + "b")) < 20_000


# --- tags, links, hashes


def test_frontmatter_tags_go_to_all_chunks_and_inline_tags_to_their_own() -> None:
    text = f"---\ntags: [Ops]\n---\n# A\n\n#one {'word ' * 120}\n\n# B\n\n#two #ops {'word ' * 120}\n"
    assert [chunk.tags for chunk in chunks(text)] == [("Ops", "one"), ("Ops", "two")]


def test_pieces_of_a_section_have_the_tags_and_links_of_their_own_text() -> None:
    parts = [f"#tag{n} [[Note {n}]] {sentences(6, seed=n)}" for n in range(20)]
    made = chunks("# Long\n\n" + "\n\n".join(parts))
    assert len(made) > 2
    assert [tag for chunk in made for tag in chunk.tags] == [f"tag{n}" for n in range(20)]
    assert [link for chunk in made for link in chunk.wikilinks] == [f"Note {n}" for n in range(20)]
    for chunk in made:
        assert all(f"#{tag} " in chunk.content for tag in chunk.tags)


def test_merged_chunk_has_the_tags_and_links_of_all_its_sections() -> None:
    (chunk,) = chunks("## #head\n\n## A\n\n#one [[X]]\n\n## B\n\n#two [[Y]]\n")
    assert chunk.tags == ("head", "one", "two")
    assert chunk.wikilinks == ("X", "Y")


def test_wikilinks_are_note_names_each_once() -> None:
    (chunk,) = chunks("[[A|x]] ![[B.png|300]] [[A.md#h]] [[#here]] [[C#^b]] [[a]] [[Dir/D.MD]]")
    assert chunk.wikilinks == ("A", "B.png", "C", "a", "Dir/D")


def test_result_is_the_same_every_time() -> None:
    text = "# A\n\n" + sentences(100)
    assert chunk_note(parse_note(text)) == chunk_note(parse_note(text))


# --- sizes


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"overlap": 800}, ("overlap=800", "target=800")),
        ({"overlap": 1300}, ("overlap=1300", "target=800")),
        ({"overlap": -1}, ("overlap=-1", "target=800")),
        ({"target": 1201}, ("target=1201", "maximum=1200")),
        ({"target": 0}, ("target=0", "maximum=1200")),
        ({"merge_below": 900}, ("merge_below=900", "target=800")),
        ({"merge_below": -5}, ("merge_below=-5", "target=800")),
        ({"maximum": 63, "target": 60}, ("target=60", "maximum=63")),
    ],
)
def test_sizes_that_contradict_each_other_are_refused_by_name(
    sizes: dict[str, int], named: tuple[str, str]
) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        chunk_note(parse_note("x"), **sizes)
    assert all(name in caught.value.message for name in named)


# --- any text

FRAGMENTS = st.sampled_from(
    [
        "# A\n", "## B\n", "### C\n", "##\n", "T\n===\n", "---\n", "- item\n", "  - sub\n", "1. one\n",
        "> q\n", "```py\n", "```\n", "~~~\n", "    code\n", "| a | b |\n", "|---|---|\n", "| c | d |\n",
        "<!-- c\n", "-->\n", "<div>\n", "[r]: x\n", "#tag [[Link]] ", "word " * 30, "word\n" * 40,
        "w" * 300, ZH * 3, "汉" * 150, FAMILY * 30, "e\u0301" * 60, "One. Two! Three?\n", "\n", "\n\n\n",
        " " * 200, "\t", "\u3000", "\u2028", "| cell | " * 20 + "\n", "```\n" + "line\n" * 40 + "```\n",
        "<|endoftext|>", "\x1c", "\x0c",
    ]
)  # fmt: skip
ANY_TEXT = st.lists(st.one_of(FRAGMENTS, st.text(max_size=20)), max_size=30).map("".join)


@given(ANY_TEXT)
@settings(deadline=None, max_examples=300)
def test_any_text_is_kept_in_order_in_chunks_that_fit(text: str) -> None:
    note = parse_note(text)
    body = "".join(note.lines)
    for sizes in (SMALL, {}):
        made = chunk_note(note, **sizes)
        check(made, body, sizes.get("maximum", 1200))
        assert made == chunk_note(note, **sizes)


@given(ANY_TEXT, st.integers(16, 200), st.integers(0, 199), st.integers(0, 100))
@settings(deadline=None, max_examples=100)
def test_any_sizes_that_are_allowed_give_chunks_that_fit(
    text: str, target: int, overlap: int, more: int
) -> None:
    sizes: dict[str, Any] = {
        "target": target,
        "maximum": max(64, target + more),
        "overlap": overlap % target,
        "merge_below": target // 4,
    }
    note = parse_note(text)
    check(chunk_note(note, **sizes), "".join(note.lines), sizes["maximum"])


@given(ANY_TEXT)
@settings(deadline=None, max_examples=200)
def test_counts_of_lines_add_up_to_the_count_of_the_text(text: str) -> None:
    table = LineTable(parse_note(text).lines)
    start, end = table.trim(0, len(table.lines))
    if start < end:
        assert table.count_content(start, end) == count_tokens(table.content(start, end))
