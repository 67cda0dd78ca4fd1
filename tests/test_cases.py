"""The shared cases of notes and files, each with its right value, and more inputs of the same kind.

The test of a case is called like its id. The inputs are read from tests/data/cases.yaml.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psycopg
import pytest
import tiktoken
import yaml
from conftest import Server, as_ordinary_user, command
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

from pyrag import reading
from pyrag.chunking import chunk_note
from pyrag.cli import app
from pyrag.context import pack_context
from pyrag.db import Database
from pyrag.embeddings import FakeLexicalEmbedder
from pyrag.errors import InvalidConfiguration, PyragError
from pyrag.ingest import IngestReport, ingest_vault
from pyrag.markdown import parse_note
from pyrag.models import Chunk, EmbeddingInput, Link, Note, Vector
from pyrag.service import Service
from pyrag.tokens import count_tokens
from pyrag.vault import NoteError, decode, scan_vault

Rag = Callable[..., CompletedProcess[str]]
Connection = psycopg.Connection[Any]

KINDS = ("frontmatter", "headings", "tags", "wikilinks", "chunking", "filesystem")
MAIN = "from pyrag.cli import main; main()"


def load(path: Path) -> dict[str, dict[str, Any]]:
    """The cases of a file that are of our kinds, by id."""
    cases = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {case["id"]: case for case in cases if case["kind"] in KINDS}


CASES = load(Path(__file__).parent / "data" / "cases.yaml")


def source(name: str) -> bytes:
    """The one file that a case consists of."""
    case = CASES[name]
    return base64.b64decode(case["input_b64"]) if "input_b64" in case else str(case["input"]).encode()


def lay_out(name: str, vault: Path) -> None:
    """Makes the vault of a case: its files, or what its shell script makes in $V."""
    case = CASES[name]
    vault.mkdir(exist_ok=True)
    write(vault, case["input"].get("files", {}))
    write(vault, {path: base64.b64decode(data) for path, data in case.get("input_b64", {}).items()})
    if script := case["input"].get("shell"):
        subprocess.run(["bash", "-euc", script], env={**os.environ, "V": str(vault)}, check=True)


def write(vault: Path, files: Mapping[str, str | bytes]) -> None:
    for path, content in files.items():
        (vault / path).parent.mkdir(parents=True, exist_ok=True)
        (vault / path).write_bytes(content.encode() if isinstance(content, str) else content)


def note_of(data: str | bytes) -> Note:
    return parse_note(decode(data) if isinstance(data, bytes) else data)


def chunks(data: str | bytes) -> list[Chunk]:
    return chunk_note(note_of(data))


def headings(data: str | bytes) -> list[tuple[int, str]]:
    return [(section.level, section.heading) for section in note_of(data).sections if section.level]


def inline_tags(data: str | bytes) -> list[str]:
    return [tag for section in note_of(data).sections for tag in section.tags]


def links(data: str | bytes) -> list[Link]:
    return [link for section in note_of(data).sections for link in section.links]


def frontmatter(data: str | bytes) -> Any:
    """The frontmatter after a round trip through strict JSON."""
    return json.loads(json.dumps(note_of(data).frontmatter, allow_nan=False))


def body(data: str | bytes) -> str:
    return "".join(note_of(data).lines)


def ingest(url: str, vault: Path, embedder: FakeLexicalEmbedder | None = None) -> IngestReport:
    return ingest_vault(vault, Database(url), embedder or FakeLexicalEmbedder())


def paths(connection: Connection) -> list[str]:
    rows = connection.execute('select relative_path from rag.documents order by relative_path collate "C"')
    return [path for (path,) in rows]


def texts(connection: Connection, path: str = "%") -> list[str]:
    """The chunks of the documents whose path is like `path`."""
    rows = connection.execute(
        'select content from rag.chunks where relative_path like %s order by relative_path collate "C",'
        " chunk_index",
        [path],
    )
    return [content for (content,) in rows]


def rag_here(url: str, *arguments: str, **environment: str) -> CompletedProcess[str]:
    """The command in this process: quicker, and with the user that the process has just now."""
    words = ["--env-file", os.devnull, *arguments]
    done = CliRunner().invoke(app, words, env={"DATABASE_URL": url, **environment})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def assert_ok(done: CompletedProcess[str], exit_code: int = 0) -> None:
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def warned(done: CompletedProcess[str]) -> list[str]:
    """The paths that the command warned of."""
    return re.findall(r"^warning: (.+?): ", done.stderr, re.MULTILINE)


def failed(done: CompletedProcess[str]) -> list[str]:
    """The paths that the command reported as failed."""
    return re.findall(r"^failed: (.+?): ", done.stderr, re.MULTILINE)


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    folder = tmp_path / "vault"
    folder.mkdir()
    return folder


@dataclass(frozen=True)
class Stored:
    """All cases that are one note each, stored by one run of the command."""

    url: str
    done: CompletedProcess[str]
    connection: Connection

    def rows(self, name: str, columns: str) -> list[tuple[Any, ...]]:
        """These columns of the chunks `c` of a case's note, whose document is `d`."""
        return self.connection.execute(
            f"select {columns} from rag.documents as d left join rag.chunks as c on c.document_id = d.id"
            " where d.relative_path = %s order by c.chunk_index",
            [f"{name}.md"],
        ).fetchall()


@pytest.fixture(scope="module")
def stored(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    vault = tmp_path_factory.mktemp("notes")
    for name, case in CASES.items():
        if isinstance(case.get("input", case.get("input_b64")), str):
            (vault / f"{name}.md").write_bytes(source(name))
    write(vault, {"Projects/Alpha.md": "Alpha.\n", "Projects/Beta.md": "Beta.\n", "Notes/Setup.md": "Up.\n"})
    url = server.create(template)
    done = command(url)("ingest", str(vault))
    with psycopg.connect(url, autocommit=True) as connection:
        yield Stored(url, done, connection)
    server.drop(url)


# --- the list of cases


def test_every_case_has_a_test_called_like_its_id() -> None:
    assert {case["kind"] for case in CASES.values()} == set(KINDS)
    wanted = {f"test_{name.replace('-', '_')}" for name in CASES}
    assert sorted(wanted - {name for name, value in globals().items() if callable(value)}) == []


def test_the_cases_are_those_of_the_shared_list(shared: Path) -> None:
    theirs = load(shared / "cases" / "cases.yaml")
    assert sorted(CASES) == sorted(theirs)
    for name, case in theirs.items():
        assert CASES[name] == case


def test_all_notes_of_the_cases_are_stored_in_one_run_with_one_warning(stored: Stored) -> None:
    assert_ok(stored.done)
    assert warned(stored.done) == ["fm-template-placeholder.md"]
    assert failed(stored.done) == []
    single = [name for name, case in CASES.items() if isinstance(case.get("input", ""), str)]
    assert {f"{name}.md" for name in single} <= set(paths(stored.connection))


# --- frontmatter


def test_fm_dates_and_odd_keys(stored: Stored, settings: Any) -> None:
    values = {
        "created": "2026-05-24",
        "reviewed": "2026-05-24T09:30:00",
        "rating": 4,
        "draft": False,
        "2026-06-01": "kickoff",
        "2024": "retro",
    }
    name = "fm-dates-and-odd-keys"
    assert frontmatter(source(name)) == values
    kind, of_document, of_chunk = (
        "jsonb_typeof(d.frontmatter->'created')",
        "d.frontmatter",
        "c.frontmatter",
    )
    assert stored.rows(name, f"{kind}, {of_document}, {of_chunk}") == [("string", values, values)]
    found = Service(settings, Database(stored.url)).search("Which bearing was greased on Monday?", 1)
    assert found.results[0].source == f"{name}.md"
    assert found.results[0].heading_path == ["Pump log"]


@pytest.mark.parametrize(
    "typed",
    [
        "2026-05-24 09:30",
        "2026-05-24T09:30:00Z",
        "2026-05-24T09:30:00.250+08:00",
        "2026-5-4",
        "09:30:15",
        "190:20:30.15",
        "1e400",
        "-.INF",
        ".NaN",
        "0o17",
        "+1",
    ],
)
def test_scalars_stay_what_was_typed_also_in_lists_and_mappings(typed: str) -> None:
    value = 1 if typed == "+1" else typed
    block = f"---\na: {typed}\nb:\n  - {typed}\n  - {{c: {typed}}}\nd: '{typed}'\n---\n"
    assert frontmatter(block) == {"a": value, "b": [value, {"c": value}], "d": typed}


def test_keys_of_any_type_are_strings_in_json_at_every_level() -> None:
    block = "true: a\nnull: b\n1.5: c\n12:30: d\n.nan: e\n日期: f\nin:\n  2026-06-01: {1: g}\n  ~: h"
    assert frontmatter(f"---\n{block}\n---\n") == {
        "true": "a",
        "null": "b",
        "1.5": "c",
        "12:30": "d",
        ".nan": "e",
        "日期": "f",
        "in": {"2026-06-01": {"1": "g"}, "~": "h"},
    }


def test_fm_impossible_date(rag: Rag, connection: Connection, vault: Path) -> None:
    bad = source("fm-impossible-date")
    assert frontmatter(bad) == {"title": "Boiler inspection", "due": "2026-02-30"}
    write(vault, {"bad.md": bad, "good.md": "# Good\n\nThe good note.\n"})
    assert_ok(rag("ingest", str(vault)))
    assert paths(connection) == ["bad.md", "good.md"]
    assert texts(connection) == ["Inspect the relief valve before winter.", "# Good\n\nThe good note."]


IMPOSSIBLE = {
    "month": ("due: 2026-13-01", {"due": "2026-13-01"}),
    "no leap year": ("due: 2025-02-29T10:00:00", {"due": "2025-02-29T10:00:00"}),
    "year": ("due: 0000-00-00", {"due": "0000-00-00"}),
    "hour": ("due: 2026-05-24T25:61:00Z", {"due": "2026-05-24T25:61:00Z"}),
    "zone": ("due: 2026-05-24T10:00:00+99:99", {"due": "2026-05-24T10:00:00+99:99"}),
    "key": ("2026-02-30: x", {"2026-02-30": "x"}),
    "list": ("due: [2026-02-30, 2026-02-31]", {"due": ["2026-02-30", "2026-02-31"]}),
    "digits": ("n: " + "9" * 5000, {"n": "9" * 5000}),
    "negative": ("n: -" + "9" * 5000, {"n": "-" + "9" * 5000}),
    "hexadecimal": ("n: 0x" + "f" * 5000, {"n": "0x" + "f" * 5000}),
    "octal": ("n: 0" + "7" * 5000, {"n": "0" + "7" * 5000}),
    "float": ("n: " + "9" * 400 + ".5", {"n": "9" * 400 + ".5"}),
    "tagged": ("n: !!int nine", {"n": "nine"}),
    "deep list": ("a: " + "[" * 2000 + "]" * 2000, {}),
    "deep mapping": ("a: " + "{b: " * 2000 + "}" * 2000, {}),
    "deep block": ("a:\n" + "".join(" " * n + "-\n" for n in range(1, 2000)), {}),
    "deep dashes": ("a:\n  " + "- " * 2000 + "b", {}),
}


def test_values_that_no_calendar_or_number_holds_cost_no_run(
    url: str, connection: Connection, vault: Path
) -> None:
    notes = {f"{name}.md": f"---\n{block}\n---\nBody.\n" for name, (block, _) in IMPOSSIBLE.items()}
    write(vault, notes)
    done = rag_here(url, "ingest", str(vault))
    assert_ok(done)
    assert sorted(warned(done)) == sorted(f"{name}.md" for name, (_, kept) in IMPOSSIBLE.items() if not kept)
    stored = dict(connection.execute("select relative_path, frontmatter from rag.documents").fetchall())
    assert stored == {f"{name}.md": kept for name, (_, kept) in IMPOSSIBLE.items()}
    assert texts(connection) == ["Body."] * len(IMPOSSIBLE)


def test_fm_template_placeholder(rag: Rag, connection: Connection, vault: Path) -> None:
    template = source("fm-template-placeholder")
    assert body(template) == "Agenda goes here.\n"
    assert frontmatter(template) == {}
    write(vault, {"Templates/会议.md": template, "a.md": "# A\n\nOne.\n", "b.md": "# B\n\nTwo.\n"})
    done = rag("ingest", str(vault))
    assert_ok(done)
    assert paths(connection) == ["Templates/会议.md", "a.md", "b.md"]
    assert re.findall(r"^warning: .*", done.stderr, re.MULTILINE) == [
        line for line in done.stderr.splitlines() if "Templates/会议.md: frontmatter not parsed" in line
    ]
    assert len(warned(done)) == 1
    assert texts(connection, "Templates/%") == ["Agenda goes here."]


@pytest.mark.parametrize(
    "block",
    [
        "{{title}}: x",
        "{{date}}",
        "tags: [#a, #b]",
        "owner: @anna",
        "command: `ls`",
        "share: 50%\nrest: %50",
        "see: *anchor",
        "title: x\n\tindented: with a tab",
        'title: "never closed',
        "title: x\n}",
        "title: x\n...\nmore: y",
        "<%* tR += 'x' %>\ntitle: [<% tp.file.title",
    ],
)
def test_unreadable_frontmatter_costs_only_itself(block: str) -> None:
    note = note_of(f"---\n{block}\n---\n\n# Agenda\n\n#plan goes here.\n")
    assert dict(note.frontmatter) == {}
    assert note.tags == ()
    (warning,) = note.warnings
    assert warning.startswith("frontmatter not parsed: ")
    (chunk,) = chunk_note(note)
    assert chunk.content == "# Agenda\n\n#plan goes here."
    assert (chunk.heading_path, chunk.tags) == (("Agenda",), ("plan",))


@pytest.mark.parametrize(
    ("block", "values"),
    [
        ("created: <% tp.date.now() %>", {"created": "<% tp.date.now() %>"}),
        ("related: [[Note]]", {"related": [["Note"]]}),
        ("related: '[[Note|x]]'", {"related": "[[Note|x]]"}),
        ("title: 'a {{x}}'", {"title": "a {{x}}"}),
        ("a: 1 # remark", {"a": 1}),
        ("url: https://example.test:80/#x", {"url": "https://example.test:80/#x"}),
    ],
)
def test_odd_but_valid_frontmatter_is_read(block: str, values: dict[str, Any]) -> None:
    text = f"---\n{block}\n---\nBody.\n"
    assert frontmatter(text) == values
    assert note_of(text).warnings == ()


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"])
def test_only_lf_and_cr_end_a_line_of_frontmatter(mark: str) -> None:
    """YAML 1.2.2, section 5.4: NEL, LS and PS are no line breaks any more; they come with pasted text."""
    note = note_of(f"---\ntitle: one{mark}two\ntags: [a]\n---\nBody.\n")
    assert dict(note.frontmatter) == {"title": f"one{mark}two", "tags": ["a"]}
    assert note.tags == ("a",)
    assert note.warnings == ()


def test_fm_bom_crlf(stored: Stored) -> None:
    data = source("fm-bom-crlf")
    note = note_of(data)
    assert dict(note.frontmatter) == {"title": "季度计划", "tags": ["plan"]}
    assert note.tags == ("plan",)
    assert note.lines[0] == "# 目标\n"
    assert headings(data) == [(1, "目标")]
    plain = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    assert note_of(plain) == note
    assert chunks(plain) == chunks(data)
    ((heading_path, tags, content, values),) = stored.rows(
        "fm-bom-crlf", "c.heading_path, c.tags, c.content, d.frontmatter"
    )
    assert (heading_path, tags) == (["目标"], ["plan"])
    assert content == "# 目标\n\n把响应时间降到两秒以内。"
    assert values == {"title": "季度计划", "tags": ["plan"]}


BOM_TEXT = "---\ntitle: 季度\nnotes: |\n  one\n  two\n---\n# 目标\n\n正文 #标签\n\n```\ncode\n\n\nmore\n```\n"


@pytest.mark.parametrize(
    "data",
    [
        BOM_TEXT.replace("\n", "\r\n").encode(),
        BOM_TEXT.replace("\n", "\r").encode(),
        BOM_TEXT.replace("\n", "\r\n", 4).encode(),
        BOM_TEXT.encode("utf-8-sig"),
        BOM_TEXT.replace("\n", "\r\n").encode("utf-16"),
        b"\xfe\xff" + BOM_TEXT.replace("\n", "\r").encode("utf-16-be"),
    ],
    ids=["crlf", "cr", "mixed", "bom", "utf-16 crlf", "utf-16 big-endian cr"],
)
def test_line_ends_and_marks_change_nothing(data: bytes) -> None:
    note = note_of(data)
    assert note == note_of(BOM_TEXT)
    assert note.frontmatter["notes"] == "one\ntwo\n"
    assert chunk_note(note) == chunks(BOM_TEXT)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("---\na: 1\n---", ""),
        ("--- \t\na: 1\n---\t \nBody.", "Body."),
        ("---\na: 1\n---\n\n\nBody.\n", "Body.\n"),
        ("---\na: 1\n---\n---\nb: 2\n---\n", "---\nb: 2\n---\n"),
        ("---\na: |\n  x\n  ---\n  y\n---\nBody.\n", "Body.\n"),
    ],
)
def test_frontmatter_ends_at_the_first_line_of_three_dashes(text: str, rest: str) -> None:
    note = note_of(text)
    assert "a" in note.frontmatter
    assert "b" not in note.frontmatter
    assert "".join(note.lines).lstrip("\n") == rest


# --- headings


def test_hd_fences_tilde_longer_indented(stored: Stored) -> None:
    name = "hd-fences-tilde-longer-indented"
    assert headings(source(name)) == [(1, "Guide"), (2, "Real"), (2, "After tilde"), (2, "After indent")]
    shown = {"Guide", "Real", "After tilde", "After indent"}
    stored_paths = [tuple(path) for (path,) in stored.rows(name, "c.heading_path")]
    assert stored_paths == [chunk.heading_path for chunk in chunks(source(name))]
    assert {heading for path in stored_paths for heading in path} <= shown
    listed = [path for (sections,) in stored.rows(name, "c.metadata->'sections'") for path in sections or []]
    assert {heading for path in listed for heading in path} <= shown


@pytest.mark.parametrize(
    "text",
    [
        "``` a`b\n# Real\n",
        "~~~ a`b\n# no\n~~~\n# Real\n",
        "```\n# no\n``` not a closer\n# no\n```\n# Real\n",
        "```\n# no\n``````  \t\n# Real\n",
        "````\n# no\n```\n# no\n````\n# Real\n",
        "``\n# Real\n``\n",
        "    ```\n# Real\n    ```\n",
        "   ```\n# no\n   ```\n# Real\n",
        "- ```\n  # no\n  ```\n# Real\n",
        "- ```\n# Real\n",
        "1. a\n\n   ~~~\n   # no\n   ~~~\n\n# Real\n",
        "> ```\n> # no\n\n# Real\n",
        "# Real\n```\n# no: never closed\n",
        "text\n\n\t# no\n\n    # no\n\n# Real\n",
        "<pre>\n# no\n\n# no\n</pre>\n# Real\n",
        "<script>\n\n# no\n\n</script>\n# Real\n",
        "<!--\n# no\n\n# no\n-->\n# Real\n",
        "<details>\n<summary># no</summary>\n\n# Real\n\n</details>\n",
        "# Real\n\n> # no\n> no\n> ===\n",
        "- # no\n\n# Real\n",
        "text\n\n---\n\n# Real\n",
        "[^1]: note\n    # no\n\n# Real\n",
    ],
)
def test_only_headings_outside_code_quotes_lists_and_html_count(text: str) -> None:
    assert headings(text) == [(1, "Real")]


def test_hd_atx_forms(stored: Stored) -> None:
    name = "hd-atx-forms"
    assert headings(source(name)) == [
        (1, "Plain"),
        (2, "Closing"),
        (3, "C# and F#"),
        (1, "Tabbed"),
        (2, ""),
        (3, "code and bold link 😀 #tag"),
        (1, "全角＃标题"),
    ]
    assert "NoSpace" in inline_tags(source(name))
    rows = stored.rows(name, "c.heading_path, c.metadata")
    assert rows
    for path, metadata in rows:
        for heading_path in [path, *metadata.get("sections", [])]:
            assert "" not in heading_path
    joined = "\n".join(content for (content,) in stored.rows(name, "c.content"))
    assert all(line.strip() in joined for line in source(name).decode().splitlines())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("# foo \\#", [(1, "foo #")]),
        ("### foo \\###", [(3, "foo ###")]),
        ("## foo #\\##", [(2, "foo ###")]),
        ("# foo#", [(1, "foo#")]),
        ("# foo # b", [(1, "foo # b")]),
        ("## ##", [(2, "")]),
        ("#", [(1, "")]),
        ("###### six", [(6, "six")]),
        ("   # three spaces", [(1, "three spaces")]),
        ("    # four spaces", []),
        ("\t# tab", []),
        ("#\u00a0no-break space", []),
        ("#\u3000全角空格", []),
        ("#标题", []),
        ("# 标题#", [(1, "标题#")]),
        ("# a\tb   c  ", [(1, "a b c")]),
        ("Title\n===\nSub\ntitle\n---", [(1, "Title"), (2, "Sub title")]),
        ("- item\n---", []),
        ("> quote\n---", []),
        ("    code\n---", []),
        ("text\n= =", []),
        ("one\n\n===", []),
    ],
)
def test_atx_and_setext_lines_are_headings_where_commonmark_says_so(
    line: str, expected: list[tuple[int, str]]
) -> None:
    assert headings(f"{line}\n") == expected


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("snake_case_name 2 * 3 * 4", "snake_case_name 2 * 3 * 4"),
        ("*a* __b__ ***c*** ~~d~~ ==e==", "a b c d e"),
        ("&amp; &copy; &#35; \\* \\_", "& © # * _"),
        ("<https://example.test> <b>bold</b>", "https://example.test bold"),
        ('[text](<a b> "title") ![picture](p.png)', "text picture"),
        ("`` a`b `` and `*raw*`", "a`b and *raw*"),
        ("*[[Page|shown]]* [[Folder/Page#Part]]", "shown Folder/Page#Part"),
        ("`code` [[Page|shown]]", "code shown"),
        ("[[Page|shown]] `[[raw|code]]`", "shown [[raw|code]]"),
        ("`a==1 and b==2`", "a==1 and b==2"),
        ("`%%timeit` and `%%time`", "%%timeit and %%time"),
        ("Use `{#id}`", "Use {#id}"),
        ("\\[[raw]]", "[[raw]]"),
        ("a \\==b==", "a ==b=="),
    ],
)
def test_heading_is_plain_text_and_its_code_stays_as_written(written: str, seen: str) -> None:
    assert headings(f"## {written}\n") == [(2, seen)]


def test_width_of_a_picture_is_no_text_of_a_heading() -> None:
    ((level, heading),) = headings("## Logo ![[logo.png|300]]\n")
    assert (level, heading.removesuffix(" logo.png")) == (2, "Logo")


# --- tags


def test_tag_numeric_digit_first_cjk(stored: Stored) -> None:
    name = "tag-numeric-digit-first-cjk"
    expected = {"inbox", "q3", "1984book", "y1984", "2026-goals", "数据库/向量检索", "会议纪要", "foo", "🎉"}
    assert {tag.casefold() for tag in inline_tags(source(name))} == expected
    assert headings(source(name)) == [(1, "Plan for #q3")]
    assert {tag.casefold() for (tags,) in stored.rows(name, "c.tags") for tag in tags} == expected


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("a #b c\t#d e\u00a0#f g\u3000#h\n#i", ["b", "d", "f", "h", "i"]),
        ("a#b (#c) “#d” 、#e ：#f 😀#g", []),
        ("#2026 #2026年 #2-3 #3d #v2 #２０２６ #007", ["2026年", "2-3", "3d", "v2"]),
        ("#❤️ #👨\u200d👩\u200d👧 #👍🏽", ["❤️", "👨\u200d👩\u200d👧", "👍🏽"]),
        ("#हिन्दी #Ünï #Мир #日本語 #한국어", ["हिन्दी", "Ünï", "Мир", "日本語", "한국어"]),
        ("#Cafe\u0301 #café #CAFÉ", ["Café"]),
        ("#标签：说明 #标签。完 #（无）", ["标签"]),
        ("#it's #a.b #c; #d! #e? #f:", ["it", "a", "c", "d", "e", "f"]),
        ("##x ###y #", []),
        ("- [x] #a\n1. #b\n> [!note] #c\n> #d\n\n| h |\n| - |\n| #e |\n\n[^1]: #f", [*"abcdef"]),
        ("Title #a\n===\n\n## Sub #b ##", ["a", "b"]),
        ("[[Page#no]] [[Page #no]] [x](#no) <https://x.test/?a#no> https://x.test/#no", []),
        ("\\#no &#35;no `#no` `` ` #no ``\n\n```\n#no\n```\n\n\t#no", []),
        ("%% #a %%\n\n%%\n#b\n%%", ["a", "b"]),
    ],
)
def test_tags_where_the_help_of_obsidian_says_so(text: str, tags: list[str]) -> None:
    assert inline_tags(text) == tags


def shaped(block: str) -> list[str]:
    """Frontmatter tags as they reach a chunk."""
    (chunk,) = chunks(f"---\n{block}\n---\nBody.\n")
    return list(chunk.tags)


def test_tag_frontmatter_plain_string(stored: Stored) -> None:
    name = "tag-frontmatter-plain-string"
    assert sorted(note_of(source(name)).tags) == ["alpha", "beta/gamma", "delta"]
    assert [sorted(tags) for (tags,) in stored.rows(name, "c.tags")] == [["alpha", "beta/gamma", "delta"]]
    assert shaped("tags:") == []
    assert shaped('tags: ""') == []
    assert shaped("tags: solo") == ["solo"]
    assert shaped('tags: "#solo"') == ["solo"]


@pytest.mark.parametrize(
    ("block", "tags"),
    [
        ("tags: alpha beta", ["alpha", "beta"]),
        ("tags: '#alpha, #beta #gamma'", ["alpha", "beta", "gamma"]),
        ("tags: alpha,,beta,", ["alpha", "beta"]),
        ("tags: >-\n  alpha\n  beta", ["alpha", "beta"]),
        ("tags: |\n  alpha\n  beta", ["alpha", "beta"]),
        ("tags: alpha\u3000beta\u00a0gamma", ["alpha", "beta", "gamma"]),
        ("tags: ['alpha, beta', gamma]", ["alpha", "beta", "gamma"]),
        ("tags: [[alpha], [beta, [gamma]]]", ["alpha", "beta", "gamma"]),
        ("tags:\n- 项目/甲\n- 'Alpha'\n- alpha", ["项目/甲", "Alpha"]),
        ("tags: '   '", []),
        ("tags: []", []),
        ("tags: [null, '', '#']", []),
        ("TAGS: alpha", ["alpha"]),
        ("tag: alpha\ntags: beta", ["beta", "alpha"]),
        ("keywords: alpha", []),
    ],
)
def test_frontmatter_tags_in_old_and_odd_shapes(block: str, tags: list[str]) -> None:
    assert shaped(block) == tags


@pytest.mark.parametrize("mark", ["，", "、"])
def test_chinese_comma_separates_frontmatter_tags_as_it_ends_inline_ones(mark: str) -> None:
    """A tag with such a mark could never be written inline, so it is two tags to the author."""
    assert inline_tags(f"#数据库{mark} #检索\n") == ["数据库", "检索"]
    assert shaped(f"tags: 数据库{mark}检索") == ["数据库", "检索"]


def test_frontmatter_tags_are_on_every_chunk_beside_the_inline_ones() -> None:
    text = f"---\ntags: alpha, beta\n---\n# A\n\n#own {'word ' * 200}\n\n# B\n\n#Beta {'word ' * 200}\n"
    assert [chunk.tags for chunk in chunks(text)] == [("alpha", "beta", "own"), ("alpha", "beta")]


# --- wikilinks


def test_wl_table_escaped_pipe(stored: Stored) -> None:
    name = "wl-table-escaped-pipe"
    assert links(source(name)) == [
        Link("Projects/Alpha", alias="A-plan"),
        Link("Projects/Beta", alias="B plan"),
        Link("Projects/Beta", ("Scope",), alias="scope"),
    ]
    ((targets, content),) = stored.rows(name, "c.wikilinks, c.content")
    assert targets == ["Projects/Alpha", "Projects/Beta"]
    assert "[[Projects/Beta\\|B plan]]" in content
    resolved = stored.connection.execute(
        "select relative_path from rag.documents where relative_path = any(%s) order by 1",
        [[f"{target}.md" for target in targets]],
    ).fetchall()
    assert resolved == [("Projects/Alpha.md",), ("Projects/Beta.md",)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a | b\n--- | ---\n[[A\\|x]] | [[B#C\\|y]]", [Link("A", alias="x"), Link("B", ("C",), alias="y")]),
        ("| [[Head\\|x]] |\n| - |\n| [[Cell]] |", [Link("Head", alias="x"), Link("Cell")]),
        ("| a |\n| - |\n| ![[i.png\\|100]] ![[j.png\\|cap\\|9x9]] |",
         [Link("i.png", embed=True), Link("j.png", alias="cap", embed=True)]),
        ("| a |\n| - |\n| [[A\\|x\\|y]] [[A#^b\\|z]] |",
         [Link("A", alias="x|y"), Link("A", block="b", alias="z")]),
        ("| a |\n| - |\n| `[[no\\|x]]` [[Yes\\|x]] |", [Link("Yes", alias="x")]),
        ("> | a |\n> | - |\n> | [[A\\|x]] |", [Link("A", alias="x")]),
        ("- | a |\n  | - |\n  | [[A\\|x]] |", [Link("A", alias="x")]),
        ("> [!note] t\n> | a |\n> | - |\n> | [[中文/页\\|别名]] |", [Link("中文/页", alias="别名")]),
        ("| a |\n| - |\n| [[A\\|x]] |\n\n[[B|y]]", [Link("A", alias="x"), Link("B", alias="y")]),
    ],
)  # fmt: skip
def test_escaped_bar_is_an_alias_bar_in_every_kind_of_table(text: str, expected: list[Link]) -> None:
    assert links(f"{text}\n") == expected


def test_wl_embed_heading_block(stored: Stored) -> None:
    name = "wl-embed-heading-block"
    assert links(source(name)) == [
        Link("Diagram.png", embed=True),
        Link("Notes/Setup", ("Install",), embed=True),
        Link("Notes/Setup", ("Install", "Linux"), alias="how"),
        Link("", ("Risks",)),
        Link("2026-01-01", block="a1b2c3"),
        Link("Notes/Setup.md"),
    ]
    ((targets,),) = stored.rows(name, "c.wikilinks")
    assert targets == ["Diagram.png", "Notes/Setup", "2026-01-01"]
    assert "Notes/Setup.md" in paths(stored.connection)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[Page^id]]", [Link("Page^id")]),
        ("![[a.png|100x145]] ![[a.png|A|300]] ![[a.png|A]]",
         [Link("a.png", embed=True), *[Link("a.png", alias="A", embed=True)] * 2]),
        ("![[d.pdf#page=3]] ![[v.mp4#t=10]]",
         [Link("d.pdf", ("page=3",), embed=True), Link("v.mp4", ("t=10",), embed=True)]),
        ("[[#^abc]] ![[#Part]] [[N#H#^b|x]]",
         [Link("", block="abc"), Link("", ("Part",), embed=True), Link("N", ("H",), "b", "x")]),
        ("[[ A b # C d | e f ]]", [Link("A b", ("C d",), alias="e f")]),
        ("[[中文/笔记#标题|别名]]", [Link("中文/笔记", ("标题",), alias="别名")]),
        ("[[A]][[B]] **[[C]]** *[[D|d]]*", [Link("A"), Link("B"), Link("C"), Link("D", alias="d")]),
        ("# [[A]]\n\n- [[B]]\n\n> [[C]]\n\n[^1]: [[D]]\n\n- [ ] [[E]]", [Link(name) for name in "ABCDE"]),
        ("[[A|]] [[A#]] [[A#^]]", [Link("A"), Link("A"), Link("A")]),
        ("[[]] [[ ]] [[|a]] [[#]] [[#^]] [[a\nb]] [[open\n\n]]", []),
        ("`[[no]]`\n\n```\n[[no]]\n```\n\n    [[no]]\n\n<!-- [[no]] --> \\[[no]]", []),
        ("%% [[A]] %%\n\n%%\n[[B]]\n%%", [Link("A"), Link("B")]),
        ("Line::2 [[A]]\n\n`= this.x` [[B]]\n\n<% tp.x %> [[C]]", [Link("A"), Link("B"), Link("C")]),
    ],
)  # fmt: skip
def test_parts_of_a_link_by_the_help_of_obsidian(text: str, expected: list[Link]) -> None:
    assert links(f"{text}\n") == expected


def test_only_the_page_of_a_link_is_kept_for_resolution_and_each_once() -> None:
    (chunk,) = chunks("[[A#x|y]] ![[A.md#^z]] [[A.MD]] [[#own]] [[^b]] [[B.md.md]] [[a]]\n")
    assert chunk.wikilinks == ("A", "^b", "B.md", "a")


# --- chunking


def test_ck_special_tokens(stored: Stored, settings: Any) -> None:
    name = "ck-special-tokens"
    text = source(name).decode()
    assert count_tokens("<|endoftext|>") == 7
    (chunk,) = chunks(text)
    assert chunk.content == text.rstrip()
    assert chunk.token_count == count_tokens(text.rstrip())
    assert stored.rows(name, "c.content, c.token_count") == [(chunk.content, chunk.token_count)]
    answer = Service(settings, Database(stored.url)).ask("Which separator <|endoftext|> ends a document?")
    assert answer.mode == "rag"
    assert answer.citations[0].source == f"{name}.md"


MARKERS = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|endofprompt|>"]


@pytest.mark.parametrize("marker", [*MARKERS, "<|im_start|>"])
def test_marker_is_text_in_heading_body_tag_link_and_frontmatter(marker: str) -> None:
    block = f"title: '{marker}'\ntags: ['x{marker}']"
    text = f"## {marker} #t{marker}\n\n[[{marker}]] {marker}\n\n```\n{marker}\n```"
    note = note_of(f"---\n{block}\n---\n{text}\n")
    assert note.frontmatter["title"] == marker
    (chunk,) = chunk_note(note)
    assert chunk.content == text
    assert chunk.token_count == count_tokens(text)
    assert count_tokens(marker) >= 6
    assert count_tokens(marker * 500) >= 500 * 5
    assert all(chunk.token_count <= 1200 for chunk in chunks(marker * 500))


def test_marker_in_question_file_name_and_context_is_text(url: str, vault: Path, settings: Any) -> None:
    write(vault, {"<|endoftext|>.md": f"# Markers\n\nThe markers are {' '.join(MARKERS)}.\n"})
    ingest(url, vault)
    service = Service(settings, Database(url))
    (result,) = service.search(" ".join(MARKERS)).results
    assert result.source == "<|endoftext|>.md"
    hits, _ = service.find("markers")
    context = pack_context(hits, 6000)
    assert all(marker in context.text for marker in MARKERS)
    assert context.token_count == count_tokens(context.text)
    assert_ok(rag_here(url, "ask", "What does <|endoftext|> mean? <|endofprompt|>"))


PATHOLOGICAL = list(eval(CASES["ck-progress-and-pathological"]["input"]["python"], {"__builtins__": {}}))


def check_pathological(text: str) -> None:
    started = time.perf_counter()
    made = chunk_note(parse_note(text))
    assert time.perf_counter() - started < 20
    assert 1 <= len(made) <= math.ceil(count_tokens(text) / (1200 - 80)) + 1
    for chunk in made:
        assert chunk.token_count == count_tokens(chunk.content) <= 1200
    assert all(one.content != other.content for one, other in pairwise(made))
    wanted, found = ("".join(part.split()) for part in (text, "".join(chunk.content for chunk in made)))
    if len(set(wanted)) == 1:
        assert found.count(wanted[0]) >= len(wanted)
    else:
        marks = iter(found)
        assert all(mark in marks for mark in wanted)


@pytest.mark.parametrize("number", range(len(PATHOLOGICAL)))
def test_ck_progress_and_pathological(number: int) -> None:
    check_pathological(PATHOLOGICAL[number])


@pytest.mark.parametrize(
    "text",
    [
        "汉" * 20_000,
        "".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(15_000)),
        "👨\u200d👩\u200d👧\u200d👦" * 3000,
        "![](data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUg" * 2500 + ")",
        "\n".join("iVBORw0KGgoAAAANSUhEUg" * 3 for _ in range(1200)),
        "x " + " " * 200_000 + "y",
        "# Title\n\nx " + "a" * 30_000 + " b " + "c" * 30_000,
        "- [x] " + "z" * 30_000,
        "| a |\n| - |\n| " + "z" * 30_000 + " |",
        '{"a":' * 5000 + "1" + "}" * 5000,
    ],
    ids=lambda text: f"{text[:12]!r}",
)
def test_long_runs_of_other_scripts_and_formats_end_in_few_chunks(text: str) -> None:
    check_pathological(text)


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"target": 800, "overlap": 800}, ("overlap", "target")),
        ({"target": 800, "overlap": 801}, ("overlap", "target")),
        ({"overlap": 1200}, ("overlap", "target")),
        ({"target": 1200, "overlap": 1200}, ("overlap", "target")),
        ({"overlap": -1}, ("overlap", "target")),
        ({"target": 1300}, ("target", "maximum")),
        ({"maximum": 700}, ("target", "maximum")),
        ({"target": -5}, ("target", "maximum")),
        ({"merge_below": 801}, ("merge_below", "target")),
    ],
)
def test_overlap_that_could_loop_is_refused_with_both_settings_and_exit_code_2(
    sizes: dict[str, int], named: tuple[str, str]
) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        chunk_note(parse_note("x " * 5000), **sizes)
    assert all(re.search(rf"\b{name}\b", caught.value.message) for name in named)
    assert str(next(iter(sizes.values()))) in caught.value.message
    assert caught.value.exit_code == 2


class PanicException(BaseException):
    """What a Rust extension raises when it panics: the same name, and no subclass of Exception."""


def test_panic_of_the_tokenizer_costs_one_file(
    url: str, vault: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(vault, {"a.md": "One.\n", "b.md": "Two.\n", "c.md": "Three.\n"})
    ingest(url, vault)
    write(vault, {"a.md": "One more.\n", "b.md": "Poison.\n", "c.md": "Three more.\n"})
    real = chunk_note

    def panicking(note: Note) -> list[Chunk]:
        if "Poison" in note.lines[0]:
            raise PanicException("called `Result::unwrap()` on an `Err` value")
        return real(note)

    monkeypatch.setattr(reading, "chunk_note", panicking)
    report = ingest(url, vault)
    assert [path for path, _ in report.failed] == ["b.md"]
    assert texts(connection) == ["One more.", "Two.", "Three more."]


class NeverBlank(FakeLexicalEmbedder):
    """Like a server that answers 400 to a batch with one blank text."""

    def embed_documents(self, items: Sequence[EmbeddingInput]) -> list[Vector]:
        assert all(item.content.strip() for item in items)
        return super().embed_documents(items)


def test_ck_empty_and_heading_only(
    rag: Rag, url: str, vault: Path, connection: Connection, settings: Any
) -> None:
    name = "ck-empty-and-heading-only"
    lay_out(name, vault)
    files: dict[str, str] = CASES[name]["input"]["files"]
    assert {path: len(chunks(text)) for path, text in files.items()} == {
        "gap.md": 1,
        "empty.md": 0,
        "blank.md": 0,
        "titles.md": 1,
    }
    (gap,) = chunks(files["gap.md"])
    assert gap.heading_path == ("Plan", "Step two")
    assert gap.content == files["gap.md"].strip()
    report = ingest(url, vault, NeverBlank())
    assert (report.run["status"], report.run["documents_added"]) == ("success", 4)
    assert paths(connection) == ["blank.md", "empty.md", "gap.md", "titles.md"]
    assert texts(connection) == [gap.content, "# Alpha\n## Beta\n## Gamma"]
    again = rag("ingest", str(vault))
    assert_ok(again)
    assert "0 added, 0 updated" in again.stdout
    assert "4 skipped, 0 failed" in again.stdout
    found = Service(settings, Database(url)).search("Alpha Beta Gamma", 1)
    assert found.results[0].source == "titles.md"


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("\ufeff", []),
        ("\ufeff\r\n \r\n", []),
        ("\u00a0\n\u3000\n\u2003\x0b\x0c\n", []),
        ("\0\0\n", []),
        ("---\ntitle: x\n---\n\n \n", []),
        ("Alpha\n===\n\nBeta\n---\n", ["Alpha\n===\n\nBeta\n---"]),
        ("# Alpha\r\n\r\n## Beta\r\n \r\n\u3000\r\n", ["# Alpha\n\n## Beta"]),
        ("# Alpha\n\n---\n\n***\n", ["# Alpha\n\n---\n\n***"]),
        ("# Alpha #tag [[Link]]\n", ["# Alpha #tag [[Link]]"]),
    ],
)
def test_note_without_text_has_no_blank_chunk_and_at_most_one_of_titles(
    text: str, contents: list[str]
) -> None:
    assert [chunk.content for chunk in chunks(text.encode())] == contents


@pytest.mark.parametrize(
    "gap", ["", "\n\n", " \n\t\n", "\u3000\n", "\u00a0\n", "\r\n \r\n", "---\n", "\n* * *\n\n"]
)
def test_section_without_text_is_no_chunk_of_its_own(gap: str) -> None:
    text = f"# Plan\n\n## One\n\n{gap}## Two\n\nReal text.\n\n## Three\n{gap}"
    (chunk,) = chunks(text)
    assert chunk.heading_path == ("Plan", "Two")
    assert all(heading in chunk.content for heading in ("# Plan", "## One", "## Two", "## Three"))


@contextmanager
def socket_for_everyone(url: str) -> Iterator[None]:
    """Opens the socket of a server that only root and its own user may reach."""
    host = str(conninfo_to_dict(url).get("host") or "")
    places = [Path(host), *Path(host).glob(".s.PGSQL.*[0-9]")] if host.startswith("/") else []
    modes = {place: stat.S_IMODE(place.stat().st_mode) for place in places if os.geteuid() == 0}
    try:
        for place in modes:
            place.chmod(0o777 if place.is_socket() else 0o755)
        yield
    finally:
        for place, mode in modes.items():
            place.chmod(mode)


def without_network(url: str) -> tuple[list[str], dict[str, str]]:
    """Words before a command and variables for it that keep it from the network, not from the database."""
    host = str(conninfo_to_dict(url).get("host") or "")
    if host.startswith("/") and shutil.which("unshare"):
        prefix = ["unshare", "-rn"]
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix, {}
    return [], DEAD


def run_bare(url: str, vault: Path, home: Path, prefix: list[str], **variables: str) -> CompletedProcess[str]:
    """`rag ingest` with next to no environment and nothing in its home and temporary folders."""
    folders = {"HOME": str(home / "home"), "TMPDIR": str(home / "tmp")}
    for folder in folders.values():
        Path(folder).mkdir(parents=True)
    with socket_for_everyone(url):
        return subprocess.run(
            [*prefix, sys.executable, "-c", MAIN, "ingest", str(vault)],
            env={"PATH": os.environ["PATH"], "DATABASE_URL": url, **folders, **variables},
            cwd="/",
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=15,
            check=False,
        )


def test_ck_tokenizer_offline(url: str, vault: Path, tmp_path: Path, connection: Connection) -> None:
    write(vault, {"note.md": source("ck-tokenizer-offline")})
    prefix, variables = without_network(url)
    started = time.perf_counter()
    assert_ok(run_bare(url, vault, tmp_path / "bare", prefix, **variables))
    assert time.perf_counter() - started < 10
    rows = connection.execute("select content, token_count from rag.chunks").fetchall()
    assert rows == [("One short note.", 4)]


VOCABULARY = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # what tiktoken calls a downloaded cl100k_base
DEAD = dict.fromkeys(
    ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"), "http://127.0.0.1:9"
)


@pytest.mark.parametrize(
    "variables",
    [
        {"TIKTOKEN_CACHE_DIR": "{folder}/spoilt"},
        {"TIKTOKEN_CACHE_DIR": "{folder}/file"},
        {"TIKTOKEN_CACHE_DIR": "/proc/nowhere"},
        {"DATA_GYM_CACHE_DIR": "/proc/nowhere"},
        {"TMPDIR": "/proc/nowhere", "HOME": "/proc/nowhere"},
        {"TMPDIR": "{folder}/shared"},
    ],
    ids=[
        "spoilt cache",
        "cache is a file",
        "cache cannot be written",
        "older name",
        "no home",
        "shared cache",
    ],
)
def test_count_does_not_depend_on_any_cache_of_the_tokenizer(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    """In "shared", what another user's run left in the common temporary folder cannot be opened."""
    (bundled,) = Path(tiktoken.__file__).parents[1].glob("tiktoken_ext/**/cl100k_base.tiktoken")
    key = hashlib.sha1(str(bundled).encode()).hexdigest()
    write(
        tmp_path, {f"spoilt/{VOCABULARY}": "no vocabulary\n", f"spoilt/{key}": "no vocabulary\n", "file": ""}
    )
    (tmp_path / "shared" / "data-gym-cache" / key).mkdir(parents=True)
    text = "数据库会把每一次写入记在日志里。 Antidisestablishmentarianism 🎉"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from pyrag.tokens import *; print(count_tokens(sys.argv[1]))",
            text,
        ],
        env={
            **os.environ,
            **DEAD,
            **{name: value.format(folder=tmp_path) for name, value in variables.items()},
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("24\n", "")


def test_tokenizer_that_cannot_start_deletes_no_document(
    rag: Rag, vault: Path, connection: Connection
) -> None:
    write(vault, {"a.md": "One.\n", "b.md": "Two.\n"})
    assert_ok(rag("ingest", str(vault)))
    write(vault, {"a.md": "One more.\n"})
    rag("ingest", str(vault), TIKTOKEN_CACHE_DIR="/proc/nowhere")
    assert paths(connection) == ["a.md", "b.md"]


def test_missing_file_of_our_own_is_not_taken_for_a_vanished_note(
    url: str, vault: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(vault, {"a.md": "One.\n", "b.md": "Two.\n"})
    ingest(url, vault)
    write(vault, {"a.md": "One more.\n"})

    def broken(note: Note) -> list[Chunk]:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "cl100k_base.tiktoken")

    monkeypatch.setattr(reading, "chunk_note", broken)
    with suppress(PyragError):
        report = ingest(url, vault)
        assert [path for path, _ in report.failed] == ["a.md"]
    assert texts(connection) == ["One.", "Two."]


# --- filesystem


def test_fs_symlink_loops_and_escape(rag: Rag, vault: Path, connection: Connection) -> None:
    lay_out("fs-symlink-loops-and-escape", vault)
    done = rag("ingest", str(vault))
    assert_ok(done)
    assert "symbolic links" not in done.stderr
    assert paths(connection) == ["note.md"]
    assert texts(connection) == ["Hello."]
    assert warned(done) == ["dangling.md"]


def test_links_inside_the_vault_in_circles_and_chains_add_nothing(vault: Path) -> None:
    write(vault, {"a/one.md": "1\n", "b/two.md": "2\n"})
    for link, target in {
        "a/to-b": "../b",
        "b/to-a": "../a",
        "copy.md": "a/one.md",
        "folder.md": "b",
        "chain.md": "chain2.md",
        "chain2.md": "a/one.md",
        "self.md": "self.md",
        "absolute": str(vault / "a"),
        "root": "/",
    }.items():
        (vault / link).symlink_to(target)
    assert [entry.relative_path for entry in scan_vault(vault)] == ["a/one.md", "b/two.md"]


def test_vault_that_is_given_by_a_link_is_the_folder_itself(
    url: str, tmp_path: Path, vault: Path, connection: Connection
) -> None:
    write(vault, {"note.md": "Hello.\n"})
    (tmp_path / "entry").symlink_to(vault)
    ingest(url, tmp_path / "entry")
    rows = connection.execute("select vault_path, file_path from rag.documents").fetchall()
    assert rows == [(str(vault.resolve()), str(vault.resolve() / "note.md"))]


def on_open(
    monkeypatch: pytest.MonkeyPatch, name: str, action: Callable[[int, Path], None]
) -> Callable[[], int]:
    """Calls `action` with number and path before a file of this name is opened; how often it was."""
    real = os.open
    number = 0

    def hooked(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        nonlocal number
        if os.fsdecode(path).endswith(f"/{name}"):
            number += 1
            action(number, Path(os.fsdecode(path)))
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", hooked)
    return lambda: number


@pytest.mark.parametrize("moment", [1, 2], ids=["before the scan reads it", "before it is parsed"])
def test_note_that_becomes_a_link_after_the_listing_is_not_followed(
    url: str,
    tmp_path: Path,
    vault: Path,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    moment: int,
) -> None:
    write(tmp_path, {"outside/secret.md": "Do not index.\n"})
    write(vault, {"a.md": "One.\n", "b.md": "Two.\n"})

    def swap(number: int, path: Path) -> None:
        if number == moment:
            path.unlink()
            path.symlink_to(tmp_path / "outside" / "secret.md")

    opened = on_open(monkeypatch, "b.md", swap)
    ingest(url, vault)
    assert opened() >= moment
    assert "One." in texts(connection)
    assert not any("Do not index" in text for text in texts(connection))


def test_fs_one_bad_byte(rag: Rag, url: str, vault: Path, connection: Connection) -> None:
    lay_out("fs-one-bad-byte", vault)
    bad = (vault / "bad.md").read_bytes()
    done = rag("ingest", str(vault))
    assert_ok(done, 3)
    assert paths(connection) == ["good.md"]
    assert failed(done) == ["bad.md"]
    assert "0xB0 at offset 14" in done.stderr
    write(vault, {"bad.md": "Temperature 40°C at the inlet.\n"})
    assert ingest(url, vault).run["status"] == "success"
    write(vault, {"bad.md": bad, "good.md": "Finer text.\n"})
    done = rag("ingest", str(vault))
    assert_ok(done, 3)
    assert failed(done) == ["bad.md"]
    assert texts(connection) == ["Temperature 40°C at the inlet.", "Finer text."]


NOT_UTF8 = {
    "cut short": "温度".encode()[:-1],
    "gb18030": "温度很高".encode("gb18030"),
    "latin-1": "Grüße".encode("latin-1"),
    "windows": "“quoted”".encode("cp1252"),
    "shift-jis": "温度".encode("shift_jis"),
    "too long form": b"\xc0\xaf",
    "surrogate": b"\xed\xa0\xbd\xed\xb8\x80",
    "beyond unicode": b"\xf4\x90\x80\x80",
    "utf-16 without mark": "温度".encode("utf-16-le"),
    "utf-16 of odd length": b"\xff\xfea\0b",
    "utf-32": "a".encode("utf-32"),
    "picture": b"\x89PNG\r\n\x1a\n\0",
    "bad byte in frontmatter": b"---\ntitle: 40\xb0C\n---\nBody.\n",
}


@pytest.mark.parametrize("kind", NOT_UTF8)
def test_bytes_that_are_not_utf8_are_never_guessed(kind: str) -> None:
    with pytest.raises(NoteError, match="UTF-8"):
        decode(NOT_UTF8[kind])


def test_every_file_that_is_not_utf8_is_named_and_the_others_are_stored(
    url: str, vault: Path, connection: Connection
) -> None:
    write(vault, {f"{kind}.md": data for kind, data in NOT_UTF8.items()})
    write(vault, {"good.md": "Fine text.\n", "replacement.md": "A real \ufffd of the author.\n"})
    done = rag_here(url, "ingest", str(vault))
    assert_ok(done, 3)
    assert sorted(failed(done)) == sorted(f"{kind}.md" for kind in NOT_UTF8)
    assert texts(connection) == ["Fine text.", "A real \ufffd of the author."]


def test_a_named_encoding_reads_what_is_not_utf8_and_only_that(
    url: str, vault: Path, connection: Connection
) -> None:
    write(vault, {"a.md": "温度很高\n".encode("gb18030"), "b.md": "温度很低\n"})
    assert_ok(rag_here(url, "ingest", str(vault), RAG_VAULT_ENCODING="gb18030"))
    assert texts(connection) == ["温度很高", "温度很低"]


def test_fs_extension_case_and_hidden(rag: Rag, vault: Path, connection: Connection) -> None:
    lay_out("fs-extension-case-and-hidden", vault)
    assert_ok(rag("ingest", str(vault)))
    indexed = ["Upper.MD", "dir.with.dots/x.md", "folder.md/inner.md", "mixed.Md", "plain.md"]
    assert paths(connection) == indexed
    assert texts(connection) == [f"Text of {path}" for path in indexed]
    (vault / "plain.md").rename(vault / ".trash" / "plain.md")
    assert_ok(rag("ingest", str(vault)))
    assert paths(connection) == indexed[:-1]
    assert texts(connection, "plain.md") == []
    assert connection.execute("select count(*) from rag.embeddings").fetchone() == (4,)


def test_names_that_look_like_notes_or_hidden_files(vault: Path) -> None:
    notes = [
        "a.md.MD",
        "b.mD",
        "c..md",
        "sub/d e.md",
        "ü/ñ.md",
        "笔记/。.md",
        "-x.md",
        "#y.md",
        "[z].md",
        "~.md",
    ]
    others = [
        ".md",
        "sub/.x/a.md",
        "sub/.a.md",
        "a.markdown",
        "b.md ",
        "c.mdx",
        "md",
        "d.md~",
        "e.md.tmp",
        "..md",
    ]
    write(vault, dict.fromkeys([*notes, *others], "x\n"))
    assert [entry.relative_path for entry in scan_vault(vault)] == sorted(notes)


def test_note_renamed_to_a_dot_file_is_deleted_and_one_renamed_in_case_is_moved(
    url: str, vault: Path, connection: Connection
) -> None:
    write(vault, {name: f"Text of {name}\n" for name in ("a.md", "b.md", "c.md", "d.md")})
    ingest(url, vault)
    (vault / "a.md").rename(vault / ".a.md")
    (vault / "b.md").rename(vault / "B.MD")
    run = ingest(url, vault).run
    assert (run["documents_deleted"], run["documents_moved"], run["documents_added"]) == (1, 1, 0)
    assert paths(connection) == ["B.MD", "c.md", "d.md"]


@pytest.mark.parametrize("moment", [1, 2], ids=["before the scan reads it", "before it is parsed"])
@pytest.mark.parametrize("known", [False, True], ids=["new", "stored before"])
def test_fs_file_vanishes_during_scan(
    url: str, vault: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch, moment: int, known: bool
) -> None:
    lay_out("fs-file-vanishes-during-scan", vault)
    if known:
        ingest(url, vault)
        write(vault, {name: f"Changed {name}.\n" for name in ("a.md", "b.md", "c.md")})

    def vanish(number: int, path: Path) -> None:
        if number == moment:
            path.unlink()

    opened = on_open(monkeypatch, "b.md", vanish)
    report = ingest(url, vault)
    assert opened() == moment
    assert report.run["status"] == "success"
    assert report.failed == []
    assert paths(connection) == ["a.md", "c.md"]
    expected = ["Changed a.md.", "Changed c.md."] if known else ["One.", "Three."]
    assert texts(connection) == expected


def test_file_that_changes_at_every_read_is_stored_with_the_hash_of_the_bytes_that_were_parsed(
    url: str, vault: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out("fs-file-vanishes-during-scan", vault)
    opened = on_open(
        monkeypatch, "b.md", lambda number, path: write(path.parent, {path.name: f"Two {number}.\n"})
    )
    ingest(url, vault)
    assert opened() >= 2
    row = connection.execute(
        "select d.content_hash, d.size_bytes, c.content from rag.documents as d"
        " join rag.chunks as c on c.document_id = d.id where d.relative_path = 'b.md'"
    ).fetchone()
    assert row is not None
    data = f"{row[2]}\n".encode()
    assert row[:2] == (hashlib.sha256(data).hexdigest(), len(data))


@pytest.mark.parametrize("moment", [1, 2], ids=["before the scan reads it", "before it is parsed"])
@pytest.mark.parametrize("code", [errno.ENOENT, errno.ENOTDIR, errno.ESTALE], ids=errno.errorcode.__getitem__)
def test_every_error_that_means_gone_is_no_failure(
    url: str, vault: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch, moment: int, code: int
) -> None:
    lay_out("fs-file-vanishes-during-scan", vault)

    def vanish(number: int, path: Path) -> None:
        if number >= moment:
            raise OSError(code, os.strerror(code), str(path))

    opened = on_open(monkeypatch, "b.md", vanish)
    report = ingest(url, vault)
    assert opened() >= moment
    assert (report.run["status"], report.failed) == ("success", [])
    assert paths(connection) == ["a.md", "c.md"]


@pytest.mark.parametrize("moment", [1, 2], ids=["before the scan reads it", "before it is parsed"])
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["a folder", "a pipe"])
def test_note_that_is_replaced_by_something_else_does_not_hang_or_stop_the_run(
    url: str,
    vault: Path,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    moment: int,
    make: Callable[[Path], None],
) -> None:
    lay_out("fs-file-vanishes-during-scan", vault)

    def replace(number: int, path: Path) -> None:
        if number == moment:
            path.unlink()
            make(path)

    opened = on_open(monkeypatch, "b.md", replace)
    report = ingest(url, vault)
    assert opened() >= moment
    assert {path for path, _ in report.failed} <= {"b.md"}
    assert paths(connection) == ["a.md", "c.md"]


@pytest.mark.parametrize("moment", [1, 2], ids=["before the scan reads it", "before it is parsed"])
def test_read_error_is_a_failed_file_that_keeps_its_earlier_version(
    url: str, vault: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    lay_out("fs-file-vanishes-during-scan", vault)
    ingest(url, vault)
    write(vault, {"a.md": "One more.\n", "b.md": "Two more.\n"})

    def fail(number: int, path: Path) -> None:
        if number >= moment:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    on_open(monkeypatch, "b.md", fail)
    report = ingest(url, vault)
    assert [path for path, _ in report.failed] == ["b.md"]
    assert "Input/output error" in report.failed[0][1]
    assert texts(connection) == ["One more.", "Two.", "Three."]


def test_folder_that_vanishes_during_the_walk_is_deleted_and_no_failure(
    url: str, vault: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(vault, {"sub/b.md": "Two.\n", **{f"{n}.md": f"{n}\n" for n in range(9)}})
    ingest(url, vault)
    real = os.scandir
    reached: list[Any] = []

    def vanishing(path: Any) -> Any:
        if not reached and Path(path).name == "sub":
            reached.append(path)
            shutil.rmtree(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    report = ingest(url, vault)
    assert reached
    assert (report.run["status"], report.run["documents_deleted"], report.failed) == ("success", 1, [])
    assert "sub/b.md" not in paths(connection)


@pytest.fixture
def open_vault() -> Iterator[Path]:
    """A vault that every user may enter, unlike pytest's own folder for root."""
    folder = Path(tempfile.mkdtemp(prefix="pyrag-test-")).resolve()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("new", [False, True], ids=["stored before", "never stored"])
def test_what_an_ordinary_user_may_not_read_is_named_and_keeps_its_earlier_version(
    url: str, open_vault: Path, connection: Connection, new: bool
) -> None:
    write(open_vault, {"good.md": "Good.\n"})
    secret = {"closed.md": "Closed.\n", "folder/in.md": "In.\n"}
    if not new:
        write(open_vault, secret)
    assert_ok(rag_here(url, "ingest", str(open_vault)))
    write(open_vault, {"good.md": "Better.\n", **({} if not new else secret)})
    (open_vault / "closed.md").chmod(0o000)
    (open_vault / "folder").chmod(0o000)
    with socket_for_everyone(url), as_ordinary_user():
        done = rag_here(url, "ingest", str(open_vault))
    (open_vault / "folder").chmod(0o755)
    assert_ok(done, 3)
    assert re.findall(r"^failed: (\S+): .*Permission denied", done.stderr, re.MULTILINE) == [
        "closed.md",
        "folder/",
    ]
    kept = [] if new else ["Closed.", "In."]
    assert sorted(texts(connection)) == sorted(["Better.", *kept])
