"""The documents say what the code does: settings, commands, errors, links, and the path of a newcomer."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import typer
import typer.main
from conftest import REPOSITORY, SAMPLE_VAULT, VARIABLES, embedded_home
from markdown_it import MarkdownIt
from markdown_it.token import Token

from pyrag import cli, cli_common
from pyrag.config import OTHER_VARIABLES, Settings, load_configuration
from pyrag.errors import error_classes

QUICKSTARTS = {"README.md": "Five minutes by hand", "docs/quickstart.zh-CN.md": "手工五分钟"}
DOCS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "db/README.md",
    *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")),
]
RAG = [sys.executable, "-c", "from pyrag.cli import main; main()"]
MADE_LATER = (".venv", ".pyrag", ".cache")  # folders that commands make
UsageError: Any = typer.BadParameter.__base__  # of click, which newer versions of typer bring along
every_doc = pytest.mark.parametrize("doc", DOCS)


@dataclass
class Section:
    """What stands below one heading: shell blocks, quoted code, links, and the cells of its tables."""

    title: str
    shell: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


@cache
def sections(doc: str) -> list[Section]:
    """A document, cut at its headings; table heads are left out."""
    text = (REPOSITORY / doc).read_text(encoding="utf-8")
    found = [Section("")]
    row: list[str] | None = None
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "tr_open":
            row = []
        elif token.type == "tr_close" and row is not None:
            found[-1].rows.append(row)
            row = None
        elif token.type == "thead_close":
            found[-1].rows.clear()
        elif token.type == "fence" and token.info in ("sh", "bash", ""):
            found[-1].shell.append(token.content)
        elif token.type == "inline":
            if before is not None and before.type == "heading_open":
                found.append(Section(token.content))
            if row is not None:
                row.append(token.content)
            _quoted(token, found[-1])
    return found


def _quoted(token: Token, section: Section) -> None:
    for child in token.children or []:
        if child.type == "code_inline":
            section.code.append(child.content)
        elif child.type in ("link_open", "image"):
            section.links.append(str(child.attrs.get("href", child.attrs.get("src"))))


def section(doc: str, title: str) -> Section:
    """The section of a document with this heading."""
    return next(section for section in sections(doc) if section.title == title)


def bare(cell: str) -> str:
    """A table cell without its quotes."""
    return cell.strip("`")


def command_lines(doc: str) -> Iterator[list[str]]:
    """The words of every command that a document quotes, comments and variables in front left out."""
    for part in sections(doc):
        for text in [*part.code, *(line for block in part.shell for line in block.splitlines())]:
            for command in re.split(r"&&|\|(?!\|)", text):
                try:
                    words = shlex.split(command, comments=True)
                except ValueError:  # a quote of prose, not of a shell
                    continue
                while words and re.match(r"[A-Z_]+=", words[0]):
                    words.pop(0)
                if words:
                    yield words


# Settings ------------------------------------------------------------------------------------------


def setting_rows() -> dict[str, list[str]]:
    return {bare(row[0]): row for row in section("docs/reference.md", "Settings").rows}


def test_every_setting_stands_in_the_reference_and_nothing_else() -> None:
    assert [bare(row[0]) for row in section("docs/reference.md", "Settings").rows] == [
        str(setting.alias) for setting in Settings.model_fields.values()
    ]


def test_the_defaults_are_those_that_config_shows(tmp_path: Path) -> None:
    for name in ("pyproject.toml", ".env.sample"):
        (tmp_path / name).touch()
    loaded = load_configuration(folder=tmp_path, environ={})
    expected = {}
    for row in loaded.summary():
        value = row["value"]
        text = "–" if value in (None, "absent") else str(value).removeprefix(f"{tmp_path.resolve()}/")
        expected[row["variable"]] = text.lower() if isinstance(value, bool) else text
    expected["RAG_RETRIEVAL"] = str(expected.pop("resolved retrieval"))
    expected["RAG_MIN_SIMILARITY"] = f"{float(expected.pop('resolved min similarity')):.2f}"
    assert expected.pop("resolved threshold") == expected["RAG_MIN_CONFIDENCE"]
    assert {variable: bare(row[1]) for variable, row in setting_rows().items()} == expected


def allowed(schema: dict[str, Any]) -> Iterator[str]:
    """The values and bounds in the JSON schema of a setting."""
    for part in [schema, *schema.get("anyOf", [])]:
        yield from map(str, part.get("enum", []))
        for key in ("const", "minimum", "exclusiveMinimum", "maximum"):
            if key in part:
                yield f"{part[key]:g}" if isinstance(part[key], float) else str(part[key])


@pytest.mark.parametrize("variable", sorted(VARIABLES))
def test_values_and_bounds_of_a_setting_are_named(variable: str) -> None:
    cell = setting_rows()[variable][2]
    for value in allowed(Settings.model_json_schema()["properties"][variable]):
        assert re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w.-])", cell), f"{variable}: {value}"


@every_doc
def test_a_variable_that_a_document_names_exists(doc: str) -> None:
    known = VARIABLES | OTHER_VARIABLES | {"PYRAG_TEST_POSTGRES", "PYRAG_SEARCH_ROUNDS"}
    for part in sections(doc):
        for text in [*part.code, *part.shell]:
            named = set(re.findall(r"\b(?:RAG|LLM|EMBEDDING|PYRAG|POSTGRES|TEST|VAULT)_[A-Z_]+\b", text))
            assert named <= known | {"PATH_OF_THE_VAULT"}


# Commands ------------------------------------------------------------------------------------------


def command_tree(command: Any = None, path: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """Every command that does something, with the long names of its options."""
    command = command or typer.main.get_command(cli.app)
    if hasattr(command, "commands"):
        # a group such as `rag runs` does something by itself too
        found = {" ".join(path): _options(command)} if path and command.invoke_without_command else {}
        for name, child in command.commands.items():
            found.update(command_tree(child, (*path, name)))
        return found
    return {" ".join(path): _options(command)}


def _options(command: Any) -> set[str]:
    written = [[*parameter.opts, *parameter.secondary_opts] for parameter in command.params]
    return {name for names in written for name in names if name.startswith("--")} - {"--help"}


def command_rows() -> dict[str, list[str]]:
    """The rows of the reference's table of commands, by command."""
    rows = {}
    for row in section("docs/reference.md", "Commands").rows:
        words = bare(row[0]).split()[1:]
        rows[" ".join(word for word in words if word.islower() or word == "COMMAND")] = row
    return rows


def test_every_command_stands_in_the_reference_and_nothing_else() -> None:
    assert set(command_rows()) == {*command_tree(), "COMMAND"}


def test_every_option_of_a_command_stands_in_its_row_and_nothing_else() -> None:
    tree = {**command_tree(), "COMMAND": _options(typer.main.get_command(cli.app))}
    for command, row in command_rows().items():
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", " ".join(row[:2])))
        assert named == tree[command], command


def parse(words: list[str], command: Any = None, parent: Any = None) -> None:
    """Raises a usage error of click unless these words behind `rag` are a command with options that exist."""
    command = command or typer.main.get_command(cli.app)
    words = [{"COMMAND": "config", "N": "1"}.get(word.strip("[]"), word.strip("[]")) for word in words]
    if words[-1:] == ["--help"]:
        words = words[:-1]
        if any(name.split()[: len(words)] == words for name in command_tree(command)):
            return
    context = command.make_context("rag", list(words), parent=parent)
    if hasattr(command, "commands"):
        left = [*context._protected_args, *context.args]
        if not left and parent is not None and command.invoke_without_command:
            return
        _, child, rest = command.resolve_command(context, left)
        parse(rest, child, context)


def rag_words(words: list[str]) -> list[str]:
    """What follows `rag` in a quoted command; nothing if it is another command or `rag` alone."""
    return words[1:] if words[0].rpartition("/")[2] == "rag" else []


@every_doc
def test_every_quoted_rag_command_parses(doc: str) -> None:
    if doc == "CHANGELOG.md":  # it tells of commands that were
        return
    for words in map(rag_words, command_lines(doc)):
        if not words or " ".join(words) in command_tree():  # the command as such, in prose
            continue
        try:
            parse(words)
        except UsageError as error:
            pytest.fail(f"{doc}: rag {shlex.join(words)}: {error.message}")


@pytest.mark.parametrize(
    "line",
    ["bogus", "db", "db bogus", "ask", "ask q --bogus", "search q --top-k 21", "db init x", "bogus --help"],
)
def test_a_command_that_is_wrong_does_not_parse(line: str) -> None:
    with pytest.raises(UsageError):
        parse(line.split())


@every_doc
def test_make_targets_that_a_document_names_exist(doc: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for words in command_lines(doc):
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets, words


# Errors and exit codes -----------------------------------------------------------------------------


def test_every_error_stands_in_the_reference_with_status_and_exit_code() -> None:
    rows = [(bare(row[0]), row[2], row[3]) for row in section("docs/reference.md", "Errors").rows]
    assert sorted(rows) == sorted(
        {(error.code, str(error.http_status), str(error.exit_code)) for error in error_classes()}
    )


def test_the_exit_codes_are_those_of_the_code() -> None:
    codes = {0, cli_common.EXIT_FAILED_FILES, cli_common.EXIT_WITHHELD, cli_common.EXIT_INTERRUPTED}
    codes |= {error.exit_code for error in error_classes()}
    assert [int(row[0]) for row in section("docs/reference.md", "Exit codes").rows] == sorted(codes)


def test_the_error_codes_of_the_quickstart_have_their_exit_codes() -> None:
    exit_codes = {error.code: error.exit_code for error in error_classes()}
    named: set[str] = set()
    for row in section("docs/quickstart.zh-CN.md", "常见错误").rows:
        number = re.search(r"\d+", row[0])
        assert number is not None
        for code in re.findall(r"`(\w+)`", row[0]):
            assert exit_codes[code] == int(number[0]), code
            named.add(code)
    assert named >= {"database_unavailable", "schema_not_initialized", "retrieval_not_ready", "vault_busy"}


# Links and paths -----------------------------------------------------------------------------------


@every_doc
def test_every_relative_link_leads_somewhere(doc: str) -> None:
    for part in sections(doc):
        for link in part.links:
            if re.match(r"[a-z]+:", link):
                continue
            assert not link.startswith("/"), link
            path = unquote(link.partition("#")[0])
            assert ((REPOSITORY / doc).parent / path).exists(), link


@every_doc
def test_every_path_into_the_repository_exists(doc: str) -> None:
    top = "|".join(re.escape(path.name) for path in REPOSITORY.iterdir() if path.is_dir())
    for part in sections(doc):
        for text in [*part.code, *part.shell]:
            for path in re.findall(rf"(?<![\w./-])(?:{top})/[\w./-]*\w(?![\w*<])", text):
                if not path.startswith(MADE_LATER) and "NNNN" not in path:
                    assert (REPOSITORY / path).exists(), path


@every_doc
def test_no_document_names_a_folder_of_one_machine(doc: str) -> None:
    text = (REPOSITORY / doc).read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.~])/(?:home|Users|work|root|mnt|tmp)/", text)


# The path of a newcomer ----------------------------------------------------------------------------


@pytest.mark.parametrize("doc", QUICKSTARTS)
def test_the_commands_by_hand_do_what_their_comments_say(doc: str) -> None:
    block = section(doc, QUICKSTARTS[doc]).shell[0]
    lines = block[block.index("rag db init") :].splitlines()
    assert lines[-1].startswith("rag eval")
    modes = []
    with embedded_home() as home:
        shell = {key: value for key, value in os.environ.items() if key not in VARIABLES}
        for line in lines:
            words = rag_words(shlex.split(line, comments=True))
            done = subprocess.run(
                # without the developer's .env, which may name a database that is not for tests
                [*RAG, "--env-file", os.devnull, *words],
                capture_output=True,
                text=True,
                encoding="utf-8",
                timeout=120,
                cwd=REPOSITORY,
                env={**shell, "PYRAG_HOME": str(home)},
                check=False,
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"
            if words[0] == "ask":
                mode = "no_answer" if "no_answer" in line.partition("#")[2] else "rag"
                assert done.stdout.startswith(f"mode: {mode} "), f"{line}: {done.stdout}"
                assert ("\ncitations:\n[1] " in done.stdout) == (mode == "rag")
                modes.append(mode)
            else:
                assert re.search(said(words), done.stdout, re.MULTILINE), f"{line}: {done.stdout}"
    assert modes == ["rag", "no_answer"]


def said(words: list[str]) -> str:
    """What a command of the quickstart prints, as a regular expression."""
    notes = len(list(SAMPLE_VAULT.rglob("*.md")))
    return {
        "db": r"^schema rag created: version \d",
        "ingest": rf"^documents: {notes} added, 0 updated, .* 0 failed$",
        "eval": r"^(\d+) of \1 right",
    }[words[0]]


@pytest.mark.parametrize("page", ["docs/sql.md", "db/README.md"])
def test_the_sql_of_a_page_runs(rag: Any, tmp_path: Path, page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    script = tmp_path / "page.sql"
    script.write_text("\n".join(blocks), encoding="utf-8")
    assert rag("ingest", str(REPOSITORY / "samples" / "acme-vault")).returncode == 0
    done = rag("db", "psql", "-v", "ON_ERROR_STOP=1", "-f", str(script))
    assert (done.returncode, done.stderr) == (0, "")
