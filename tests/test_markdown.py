from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrag.markdown import MAX_HEADING, parse_note
from pyrag.models import Link, Note
from pyrag.vault import decode


def headings(note: Note) -> list[tuple[int, str]]:
    return [(section.level, section.heading) for section in note.sections if section.level]


def inline_tags(text: str) -> list[str]:
    return [tag for section in parse_note(text).sections for tag in section.tags]


def links(text: str) -> list[Link]:
    return [link for section in parse_note(text).sections for link in section.links]


def frontmatter(block: str) -> dict[str, Any]:
    note = parse_note(f"---\n{block}\n---\nBody.\n")
    assert note.lines == ("Body.\n",)
    return json.loads(json.dumps(note.frontmatter, allow_nan=False))  # type: ignore[no-any-return]


def warning(block: str) -> str:
    note = parse_note(f"---\n{block}\n---\nBody.\n")
    assert note.frontmatter == {}
    assert note.tags == ()
    assert note.lines == ("Body.\n",)
    (text,) = note.warnings
    return text


# --- frontmatter


def test_dates_stay_as_typed_and_keys_become_strings() -> None:
    block = (
        "created: 2026-05-24\nreviewed: 2026-05-24T09:30:00\nrating: 4\n"
        "draft: false\n2026-06-01: kickoff\n2024: retro"
    )
    assert frontmatter(block) == {
        "created": "2026-05-24",
        "reviewed": "2026-05-24T09:30:00",
        "rating": 4,
        "draft": False,
        "2026-06-01": "kickoff",
        "2024": "retro",
    }


def test_impossible_date_is_text() -> None:
    assert frontmatter("title: Boiler inspection\ndue: 2026-02-30")["due"] == "2026-02-30"


@pytest.mark.parametrize(
    "typed", ["12:30", "no", "Yes", "012", "0x1F", "1_000", ".nan", "-.inf", "1.0e+400", "1e5"]
)
def test_scalars_that_only_yaml_1_1_would_change_stay_as_typed(typed: str) -> None:
    assert frontmatter(f"value: {typed}") == {"value": typed}


def test_plain_numbers_booleans_and_null_keep_their_type() -> None:
    assert frontmatter("a: 7\nb: -1.5\nc: true\nd:\ne: ~\nf: '7'") == {
        "a": 7,
        "b": -1.5,
        "c": True,
        "d": None,
        "e": None,
        "f": "7",
    }


def test_number_too_long_for_json_is_text() -> None:
    assert frontmatter("n: " + "9" * 5000)["n"] == "9" * 5000


def test_sets_binaries_and_unknown_types_become_plain_json() -> None:
    block = "s: !!set {a, b}\nb: !!binary aGk=\no: !!python/object:os.system x\nt: !!timestamp 2026-02-30"
    assert frontmatter(block) == {"s": {"a": None, "b": None}, "b": "aGk=", "o": "x", "t": "2026-02-30"}


def test_text_has_no_nul_and_no_lone_surrogate() -> None:
    assert frontmatter(r'pair: "\ud83d\ude00"' "\n" r'lone: "a\ud83db"' "\n" r'nul: "a\0b"') == {
        "pair": "😀",
        "lone": "a\ufffdb",
        "nul": "ab",
    }


@pytest.mark.parametrize(
    ("block", "why", "line"),
    [
        ("year: {{date:YYYY}}\ncreated: x", "template", 2),
        ("year: 1\ncreated: {{date}} {{time}}", "", 3),
        ("a: [1", "", 3),
        ("title: a: b", "mapping values", 2),
        ("- just\n- a list", "a list, not properties", 2),
        ("a: " + "[" * 2000 + "]" * 2000, "nest", 2),
        ("a: " + "[" * 100 + "]" * 100, "nested more than", 2),
        ("a: &x [*x]", "nested more than", 2),
        ("ok: 1\nbell: \x07", "U+0007", 3),
    ],
)
def test_frontmatter_that_cannot_be_read_is_a_warning_with_its_line(block: str, why: str, line: int) -> None:
    text = warning(block)
    assert text.startswith("frontmatter not parsed: ")
    assert why in text
    assert text.endswith(f"(line {line})")


def test_alias_bomb_is_refused_quickly() -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12)]
    started = time.perf_counter()
    assert "aliases" in warning("\n".join(["l0: &l0 [x, x]", *levels]))
    assert time.perf_counter() - started < 5


def test_byte_order_mark_and_crlf_change_nothing() -> None:
    data = base64.b64decode(
        "77u/LS0tDQp0aXRsZTog5a2j5bqm6K6h5YiSDQp0YWdzOg0KICAtIHBsYW4NCi0tLQ0KIyDnm67moIcNCg0K5oqK5ZON5bqU"
        "5pe26Ze06ZmN5Yiw5Lik56eS5Lul5YaF44CCDQo="
    )
    note = parse_note(decode(data))
    assert note.frontmatter == {"title": "季度计划", "tags": ["plan"]}
    assert note.tags == ("plan",)
    assert headings(note) == [(1, "目标")]
    assert note == parse_note(decode(data).replace("\r\n", "\n"))
    assert note == parse_note("\ufeff" + decode(data).replace("\r\n", "\r"))


@pytest.mark.parametrize(
    "text", ["---\ntitle: x\n\nBody.\n", "\n---\na: 1\n---\n", "----\na: 1\n----\n", "---"]
)
def test_block_not_at_the_start_or_never_closed_is_body(text: str) -> None:
    note = parse_note(text)
    assert note.frontmatter == {}
    assert note.warnings == ()
    assert "".join(note.lines) == text


def test_empty_frontmatter_is_no_warning() -> None:
    for text in ("---\n---\nBody.\n", "--- \n# a comment\n--- \nBody.\n"):
        note = parse_note(text)
        assert (note.frontmatter, note.warnings, note.lines) == ({}, (), ("Body.\n",))


def test_plain_text_between_two_rules_is_kept_as_text() -> None:
    note = parse_note("---\nJust a sentence.\n---\nMore.\n")
    assert "".join(note.lines) == "---\nJust a sentence.\n---\nMore.\n"
    assert "kept as text" in note.warnings[0]


@pytest.mark.parametrize(
    ("block", "tags"),
    [
        ("tags: alpha,beta/gamma, delta", ("alpha", "beta/gamma", "delta")),
        ("tags:", ()),
        ('tags: ""', ()),
        ("tags: solo", ("solo",)),
        ('tags: "#solo"', ("solo",)),
        ("tags: [plan, '#ops', plan, Plan]", ("plan", "ops")),
        ("tags:\n  - 2026\n  - 1.5\n  - true\n  - 2026-01-01\n  -", ("1.5", "true", "2026-01-01")),
        ("tag: one two", ("one", "two")),
        ("tag: b\ntags: a", ("a", "b")),
        ("Tags: [a]", ("a",)),
        ("tags: {a: b}", ()),
    ],
)
def test_frontmatter_tags_in_every_shape(block: str, tags: tuple[str, ...]) -> None:
    assert parse_note(f"---\n{block}\n---\n").tags == tags


# --- headings


def test_headings_in_fences_of_any_kind_do_not_count() -> None:
    text = (
        "# Guide\n\n````md\n```sh\n# not a heading\n```\n## nor this\n````\n\n"
        "## Real\n\n~~~\n# not a heading\n```\n~~~\n\n"
        "## After tilde\n\n```text\n    ```\n# still code\n```\n\n## After indent\n\ndone\n"
    )
    assert headings(parse_note(text)) == [(1, "Guide"), (2, "Real"), (2, "After tilde"), (2, "After indent")]


def test_atx_headings_follow_commonmark() -> None:
    text = (
        "# Plain #\n## Closing ##   \n### C# and F#\n#NoSpace\n####### seven\n\\# escaped\n"
        "    # indented line\n #\tTabbed\n##\n"
        "### `code` and **bold** [link](https://example.test) \U0001f600 #tag\n# 全角＃标题\n＃ 全角井号\n"
    )
    note = parse_note(text)
    assert headings(note) == [
        (1, "Plain"),
        (2, "Closing"),
        (3, "C# and F#"),
        (1, "Tabbed"),
        (2, ""),
        (3, "code and bold link 😀 #tag"),
        (1, "全角＃标题"),
    ]
    assert note.sections[5].heading_path == ("Tabbed", "code and bold link 😀 #tag")
    assert note.sections[2].tags == ("NoSpace",)


def test_setext_headings_count_and_join_their_lines() -> None:
    text = "One\n===\n\nTwo *b*\nlines\n---\n\nText\n\n---\n"
    assert headings(parse_note(text)) == [(1, "One"), (2, "Two b lines")]


def test_headings_in_lists_quotes_and_comments_do_not_count() -> None:
    text = (
        "- # in list\n\n> # in quote\n\n> [!note] callout\n> ## in callout\n\n"
        "<!--\n# in comment\n\n# too\n-->\n\n# Real\n"
    )
    assert headings(parse_note(text)) == [(1, "Real")]


def test_heading_path_follows_levels_and_may_skip_some() -> None:
    note = parse_note("### Deep\n# A\n### A3\n## A2\n#### A4\n# B\n")
    assert [section.heading_path for section in note.sections] == [
        ("Deep",),
        ("A",),
        ("A", "A3"),
        ("A", "A2"),
        ("A", "A2", "A4"),
        ("B",),
    ]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("[[Page|shown]] and [[Other#Part]]", "shown and Other#Part"),
        ("a\\_b &amp; `x|y` ~~old~~ ==new==", "a_b & x|y old new"),
        ("<span class='x'>from v8</span> %%hidden%%", "from v8"),
        ("![alt text](x.png) [ref]", "alt text ref"),
        ("向量 {#vector}", "向量"),
        ("a == b", "a == b"),
        ("创建 {{{ .starter }}} 实例", "创建 {{{ .starter }}} 实例"),
    ],
)
def test_heading_is_the_text_a_reader_sees(source: str, text: str) -> None:
    assert headings(parse_note(f"## {source}\n\n[ref]: https://example.test\n")) == [(2, text)]


def test_very_long_heading_is_shortened_in_the_path_only() -> None:
    note = parse_note("word " * 100_000 + "\n===\n\nText.\n")
    (path,) = note.sections[0].heading_path
    assert len(path) == MAX_HEADING
    assert path.endswith("…")
    assert "".join(note.lines).count("word") == 100_000


def test_deeply_nested_list_does_not_swallow_the_headings_after_it() -> None:
    items = "".join(f"{'  ' * depth}- item\n" for depth in range(30))
    assert headings(parse_note(f"{items}\n# After\n")) == [(1, "After")]


@pytest.mark.parametrize("unit", ["- a\n", "> ", "[^1]: ", "- > [^1]: "])
def test_nesting_of_any_depth_drops_nothing_that_follows(unit: str) -> None:
    nested = "".join(f"{'  ' * depth}{unit}" for depth in range(400)) if "\n" in unit else f"{unit * 400}x\n"
    note = parse_note(f"{nested}\n# After\n\n- item #tag\n")
    assert headings(note) == [(1, "After")]
    assert note.sections[-1].tags == ("tag",)
    assert [block.kind for block in note.sections[-1].blocks] == ["heading", "list"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("$$\na\n\n# no\n\nb #no [[no]]\n$$", "fence"),
        ("$$ a\nb\n===\n# no\nc $$", "fence"),
        ("$$\n# no\n$$.", "fence"),
        ("$$\n# no\n$$ (1) ^block", "fence"),
        ("%%\n# no\n\ntext\n---\n%%", "quote"),
        ("%% from here\n\n# no\n\nto here %% and on", "quote"),
        ("%%\n```\nprintf('%%')\n# no\n```\nx\n%%", "quote"),
        ("%%\n~~~\n#no [[no]]\n~~~\n\n    #no2\n%%", "quote"),
        ('<%*\n# no\n\ntR += "#no [[no]]"\n%>', "html"),
    ],
)
def test_math_comments_and_templater_commands_are_one_block(text: str, kind: str) -> None:
    note = parse_note(f"{text}\n\n# After\n")
    assert headings(note) == [(1, "After")]
    assert [(block.kind, block.start, block.end) for block in note.sections[0].blocks] == [
        (kind, 0, text.count("\n") + 1)
    ]
    assert inline_tags(text) == []
    assert links(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "$$ is the process id\n\n# Yes\n\n```sh\nkill $$\n```",
        "%% never closed\n\n# Yes",
        "<% never closed\n\n# Yes",
        "$$ a $$\n\n# Yes\n\n$$ b $$",
        "$$ costs 5\n\n# Yes\n\ntext ends with $$",
        "$$ x\n\n    kill $$\n\n# Yes",
        "$$ x\n\n- ```sh\n  kill $$\n  ```\n\n# Yes",
        "$$\n\n> ```sh\n> kill $$\n> ```\n\n# Yes",
        "%% open\n\n```sh\nprintf '%%d'\n```\n\n# Yes",
        "<% open\n\n1. ```erb\n   <%= x %>\n   ```\n\n# Yes",
        "- $$ a\n\n# Yes\n\n$$",
        "    $$\n\n# Yes\n\n    $$",
    ],
)
def test_what_is_not_closed_in_its_place_hides_no_heading(text: str) -> None:
    assert headings(parse_note(text)) == [(1, "Yes")]


@pytest.mark.parametrize("mark", ["$$", "%%", "<%*"])
def test_a_block_of_obsidian_ends_the_list_before_it(mark: str) -> None:
    closing = {"<%*": "%>"}.get(mark, mark)
    note = parse_note(f"- item\n  - sub\n{mark}\nx\n\n# no\n\n{closing}\n\n# Yes\n")
    assert headings(note) == [(1, "Yes")]
    assert note.sections[0].blocks[0].kind == "list"
    assert len(note.sections[0].blocks) == 2


def test_a_comment_holds_blocks_with_their_tags_and_links() -> None:
    text = "%%\n`open\n\n#yes [[Link]]\n\n| [[B\\|c]] |\n|-|\n| d |\n%%\n\n# H\n"
    assert inline_tags(text) == ["yes"]
    assert links(text) == [Link("Link"), Link("B", alias="c")]
    comment = parse_note(text).sections[0].blocks[0]
    assert [child.kind for child in comment.children] == ["text", "text", "table"]


def test_a_footnote_holds_its_indented_paragraphs() -> None:
    text = "Text.[^n]\n\n[^n]: First #a\n\n    Second #b [[Link]]\n\n    # no\n\nAfter #c\n\n# H\n"
    note = parse_note(text)
    assert headings(note) == [(1, "H")]
    assert inline_tags(text) == ["a", "b", "c"]
    assert links(text) == [Link("Link")]
    footnote = note.sections[0].blocks[1]
    assert (footnote.kind, footnote.start) == ("quote", 2)
    assert [(child.kind, child.start) for child in footnote.children] == [
        ("text", 2),
        ("text", 4),
        ("heading", 6),
    ]


# --- blocks


def test_blocks_have_their_kind_and_lines() -> None:
    text = (
        "# H\npara\n\n- item\n\n  ```sh\n  code\n  ```\n- two\n\n| a |\n|---|\n| b |\n\n"
        "~~~py\nx\n~~~\n\n    indented\n\n> quote\n\n<div>\n</div>\n\n---\n"
    )
    (section,) = parse_note(text).sections
    assert [(block.kind, block.start, block.end) for block in section.blocks] == [
        ("heading", 0, 1),
        ("text", 1, 2),
        ("list", 3, 10),
        ("table", 10, 13),
        ("fence", 14, 17),
        ("fence", 18, 19),
        ("quote", 20, 21),
        ("html", 22, 24),
        ("text", 25, 26),
    ]
    assert [(child.kind, child.start, child.end, child.depth) for child in section.blocks[2].children] == [
        ("text", 3, 4, 1),
        ("fence", 5, 8, 2),
        ("text", 8, 9, 1),
    ]
    assert [block.markup for block in section.blocks if block.kind == "fence"] == ["~~~", ""]


def test_lines_that_make_no_token_are_in_a_block() -> None:
    note = parse_note("[ref]: https://example.test\n\nText [ref].\n\n[other]: <x>\n")
    assert [(block.start, block.end) for block in note.sections[0].blocks] == [(0, 1), (2, 3), (4, 5)]


FRAGMENTS = st.sampled_from(
    [
        "# A\n", "## B ##\n", "C\n---\n", "---\n", "===\n", "- item\n", "  - sub\n", "1. one\n", "> quote\n",
        "> > deep\n", "```py\n", "```\n", "~~~\n", "    code\n", "| a | b |\n", "|---|---|\n", "<!-- c\n",
        "-->\n", "<div>\n", "</div>\n\n", "[ref]: x\n", "[^1]: note #t [[L]]\n", "text #tag [[Link|x]]\n",
        "`code #no`\n", "$$\n", "%%\n", "\n", "\n\n", " \t\n", "\u3000\n", "\x0c\n", "一句话。另一句！\n",
        "a: 1\n", "\r\n", "\r", "\\", "[[", "]]", "`", "*", "\0", "\ufeff",
    ]
)  # fmt: skip
TEXTS = st.lists(st.one_of(FRAGMENTS, st.text(max_size=12)), max_size=40).map("".join)


@given(TEXTS)
@settings(deadline=None, max_examples=300)
def test_any_text_gives_blocks_in_order_that_cover_every_line(text: str) -> None:
    note = parse_note(text)
    end = 0
    for section in note.sections:
        for block in section.blocks:
            assert block.start >= end
            assert not "".join(note.lines[end : block.start]).strip()
            inner = block.start
            for child in block.children:
                assert inner <= child.start < child.end <= block.end
                inner = child.end
            end = block.end
        assert "" not in section.heading_path
    assert not "".join(note.lines[end:]).strip()
    body = "".join(note.lines)
    body.encode()
    assert "\0" not in body
    assert "\r" not in body
    assert json.loads(json.dumps(note.frontmatter, allow_nan=False)) == note.frontmatter


@given(st.text(alphabet=st.characters(codec=None, categories=["L", "P", "N", "Cs", "Cc", "Z"]), max_size=40))
@settings(deadline=None)
def test_any_frontmatter_gives_json_or_a_warning(block: str) -> None:
    note = parse_note(f"---\n{block}\n---\nBody.")
    json.dumps(note.frontmatter, allow_nan=False).encode()
    assert "\\u0000" not in json.dumps(note.frontmatter)
    assert "\\ud" not in json.dumps(note.frontmatter, ensure_ascii=False)
    assert note.lines[-1].endswith("Body.")


def test_surrogate_pairs_in_text_are_joined_and_lone_ones_replaced() -> None:
    assert parse_note("\ud83d\ude00 \ud83d.").lines == ("😀 \ufffd.",)


# --- tags


def test_inline_tags_follow_obsidian() -> None:
    text = (
        "#inbox\n# Plan for #q3\n"
        "Phase #1 needs call #24534. Book #1984 versus #1984book and #y1984, goals #2026-goals done.\n"
        "批次 #数据库/向量检索 然后 #会议纪要\n中文#不是标签 and a list #foo,#bar plus #🎉\n"
    )
    assert inline_tags(text) == [
        "inbox", "q3", "1984book", "y1984", "2026-goals", "数据库/向量检索", "会议纪要", "foo", "🎉",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ('(#pa) $#pb$ "#pc" .#pd x—#pe', []),
        ("\u3000#ph [x #pi] a\u00a0#pj\t#pk", ["ph", "pi", "pj", "pk"]),
        ("a <!-- #no --> b\n\n<!-- #no -->\n\n<div>\n#no\n</div>", []),
        ("m $a #no b$ n; x $$ #no $$ y\n\n$$\n#no\n$$", []),
        ("costs $5 #yes and $6", ["yes"]),
        ("$a\\$ #no b$ #yes", ["yes"]),
        ("`#no` ``a ` #no`` ` #yes", ["yes"]),
        ("```\n#no\n```\n\n    #no\n\n~~~sh\n#no", []),
        ("[a #yes](https://x.test/#no) [b]( #no) https://x.test/ \\#no", ["yes"]),
        ("<a href= '#no'>x</a> <?x #no?> <!X #no> <![CDATA[ #no ]]> <b class=x #no >", ["no"]),
        ("a < b #yes > c <x, #too>", ["yes", "too"]),
        ("<% tp.x #no %> #yes %>", ["yes"]),
        ('| a $1 | #t | $2 |\n|-|-|-|\n| `x | #u | `y |\n| <b c="| #v | " > |', ["t", "u", "v"]),
        ("#a#b #c/d/ #e_f-g", ["a", "b", "c/d", "e_f-g"]),
        ("|x|\n|-|\n|#cell|", ["cell"]),
        (">#quoted\n> - #item\n> > #deep", ["quoted", "item", "deep"]),
        ("- [ ] #task\n- #item", ["task", "item"]),
        ("%% #hidden %%", ["hidden"]),
        ("[^1]: see #note", ["note"]),
        ("[ref]: #anchor", []),
        ("#标签，后面 #完。", ["标签", "完"]),
        ("#Tag #tag #TAG", ["Tag"]),
        ("# #", []),
        ("#/ #- ", ["-"]),
    ],
)
def test_tags_where_obsidian_sees_them(text: str, tags: list[str]) -> None:
    assert inline_tags(text) == tags


def test_tag_marks_are_offsets_in_the_body() -> None:
    note = parse_note("---\na: 1\n---\n你好 #a\n\n> x #b #a\n")
    body = "".join(note.lines)
    marks = note.sections[0].tag_marks
    assert [(body[at : at + 2], tag) for at, tag in marks] == [("#a", "a"), ("#b", "b"), ("#a", "a")]


# --- wikilinks


def test_escaped_bars_in_tables_are_bars() -> None:
    text = (
        "Start with [[Projects/Alpha|A-plan]].\n\n| Plan | Part |\n| --- | --- |\n"
        "| [[Projects/Beta\\|B plan]] | [[Projects/Beta#Scope\\|scope]] |\n"
    )
    assert links(text) == [
        Link("Projects/Alpha", alias="A-plan"),
        Link("Projects/Beta", alias="B plan"),
        Link("Projects/Beta", ("Scope",), alias="scope"),
    ]


def test_embeds_headings_and_blocks_are_told_apart() -> None:
    text = (
        "![[Diagram.png|300]]\n![[Notes/Setup#Install]]\n[[Notes/Setup#Install#Linux|how]]\n[[#Risks]]\n"
        "[[2026-01-01#^a1b2c3]]\n[[Notes/Setup.md]]\n"
    )
    assert links(text) == [
        Link("Diagram.png", embed=True),
        Link("Notes/Setup", ("Install",), embed=True),
        Link("Notes/Setup", ("Install", "Linux"), alias="how"),
        Link("", ("Risks",)),
        Link("2026-01-01", block="a1b2c3"),
        Link("Notes/Setup.md"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`[[no]]` ``` [[no]] ```", []),
        ("```\n[[no]]\n```\n\n    [[no]]\n\n<!-- [[no]] -->", []),
        ("[[]] [[|x]] [[#]] [[ ]]", []),
        ("[[a\nb]] [[open", []),
        ("[[Page^id]]", [Link("Page^id")]),
        ("\\[[no]]", []),
        ("![[a.png|caption|120x80]]", [Link("a.png", alias="caption", embed=True)]),
        ("[[a|100]]", [Link("a", alias="100")]),
        ("[^1]: [[Source]]", [Link("Source")]),
        ("%% [[Hidden]] %%", [Link("Hidden")]),
        ("a < b [[Yes]] > c", [Link("Yes")]),
        ('<% "[[" + tp.file.title + "]]" %>', []),
        ("| `a | [[Yes]] | b` |\n|-|-|-|\n| $$ | [[Too]] | $$ |", [Link("Yes"), Link("Too")]),
        ("[[Cafe\u0301]]", [Link("Café")]),
    ],
)
def test_links_where_obsidian_sees_them(text: str, expected: list[Link]) -> None:
    assert links(text) == expected


@pytest.mark.parametrize(
    "unit",
    [
        "`a ``b ```c ",
        "<!-- ",
        "$$ ",
        "[[a ",
        '](a "b ',
        "<a ",
        "$a ",
        "](a(b ",
        "<? ",
        "<a b='",
        "<a b ",
        "<% \n",
        "- $$\n",
        "$$\nx\n\n",
        "- %% a\n",
        "  <% a\n  b\n",
        "[^1]: ",
        "[^1]: a\n\n",
        "| <!-- ",
        "#a ",
        "![[",
        "> ",
        "[a]: b\n",
    ],
)
def test_unclosed_markup_takes_linear_time(unit: str) -> None:
    started = time.perf_counter()
    parse_note("x " + unit * (200_000 // len(unit)))
    assert time.perf_counter() - started < 10


def test_a_link_inside_more_brackets_is_found() -> None:
    note = parse_note("[[[T]]] and refs: [[[A]], [[B]]] ![[[C]]]\n")
    assert [link.target for section in note.sections for link in section.links] == ["T", "A", "B", "C"]


def test_white_space_in_a_link_takes_linear_time() -> None:
    begun = time.process_time()
    parse_note("#a [x](" + " " * 200_000 + "y")
    assert time.process_time() - begun < 20, "quadratic: minutes"


@pytest.mark.parametrize("tags", ["[1984, a]", '"1984, a"'])
def test_a_frontmatter_tag_of_digits_alone_is_no_tag(tags: str) -> None:
    assert parse_note(f"---\ntags: {tags}\n---\nx\n").tags == ("a",)
