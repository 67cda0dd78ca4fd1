"""Looking at runs and vaults and taking them out: dry run, guards, runs, status, forget, vault move."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psycopg
import pytest
from conftest import as_ordinary_user, command
from psycopg.rows import dict_row
from typer.testing import CliRunner

from pyrag import ingest as ingest_module
from pyrag.cli import app
from pyrag.db import Database
from pyrag.embeddings import FakeLexicalEmbedder
from pyrag.ingest import ingest_vault, preview_vault
from pyrag.vault import scan_vault

Rag = Callable[..., CompletedProcess[str]]
Connection = psycopg.Connection[Any]
MAIN = "from pyrag.cli import main; main()"
TABLES = ("documents", "chunks", "embeddings", "ingest_runs", "ingest_run_items")
INDEX = ("fake", "fake-lexical-v1", 1024)


@pytest.fixture
def process(url: str) -> Rag:
    """The command as a process."""
    return command(url)


@pytest.fixture
def rag(url: str) -> Rag:
    """The command in this process, which is quicker."""

    def run(*arguments: str) -> CompletedProcess[str]:
        words = ["--env-file", os.devnull, *arguments]
        done = CliRunner().invoke(app, words, env={"DATABASE_URL": url})
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """Eight notes."""
    folder = tmp_path / "vault"
    folder.mkdir()
    for name in "abcdefgh":
        (folder / f"{name}.md").write_text(f"# Note {name}\n\nText of note {name}.\n", encoding="utf-8")
    return folder


def ok(done: CompletedProcess[str], exit_code: int = 0) -> CompletedProcess[str]:
    assert done.returncode == exit_code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def body(done: CompletedProcess[str], exit_code: int = 0) -> Any:
    return json.loads(ok(done, exit_code).stdout)


def ingest(url: str, vault: Path) -> dict[str, Any]:
    return ingest_vault(vault, Database(url), FakeLexicalEmbedder()).run


def rows(connection: Connection, query: str, parameters: list[Any] | None = None) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, parameters).fetchall()


def sizes(connection: Connection) -> list[tuple[Any, ...]]:
    """Rows and next numbers of all tables."""
    return [
        connection.execute(
            f"select count(*), max(t.id), (select s.last_value from pg_sequences as s where s.schemaname"
            f" = 'rag' and s.sequencename = '{table}_id_seq') from rag.{table} as t"
        ).fetchone()
        or ()
        for table in TABLES
    ]


def everything(connection: Connection) -> str:
    """All that the tables hold, as text."""
    return "\n".join(
        str(row) for table in TABLES for row in connection.execute(f"select t::text from rag.{table} as t")
    )


def changed(vault: Path) -> None:
    """One note each that is new, changed, moved, gone, not readable as UTF-8."""
    (vault / "a.md").write_text("Changed.\n", encoding="utf-8")
    (vault / "b.md").unlink()
    (vault / "sub").mkdir()
    (vault / "c.md").rename(vault / "sub" / "c.md")
    (vault / "new.md").write_text("New.\n", encoding="utf-8")
    (vault / "d.md").write_bytes(b"40\xb0C\n")


# rag ingest --dry-run ------------------------------------------------------------------------------


def test_a_dry_run_shows_what_the_next_run_does_in_its_order_and_with_its_reasons(
    process: Rag, url: str, vault: Path, connection: Connection
) -> None:
    ingest(url, vault)
    connection.execute("delete from rag.embeddings where chunk_id in"
                       " (select id from rag.chunks where relative_path = 'h.md')")  # fmt: skip
    changed(vault)
    plan = body(process("ingest", str(vault), "--dry-run", "--json"))
    text = ok(process("ingest", str(vault), "--dry-run"))
    ok(process("ingest", str(vault)), 3)
    items = rows(
        connection,
        "select i.relative_path, i.action, i.reason, i.moved_from, i.old_hash, i.new_hash"
        " from rag.ingest_run_items as i where i.run_id = 2 order by i.id",
    )
    assert [{**item, "error": None, "withheld": False} for item in items] == plan
    assert [(item["relative_path"], item["action"]) for item in items] == [
        ("a.md", "change"), ("d.md", "change"), ("e.md", "skip"), ("f.md", "skip"), ("g.md", "skip"),
        ("h.md", "embed"), ("new.md", "add"), ("sub/c.md", "move"), ("b.md", "delete"),
    ]  # fmt: skip
    assert text.stdout.splitlines() == [
        "change    a.md  (content changed)",
        "change    d.md  (content changed)",
        "embed     h.md  (not embedded by fake fake-lexical-v1)",
        "add       new.md  (new file)",
        "move      sub/c.md  (same content as the vanished c.md)",
        "delete    b.md  (file is gone)",
        "would be: 1 add, 2 change, 1 move, 1 embed, 1 delete, 0 withhold, 0 fail, 3 skip",
        "dry run: nothing was written",
    ]
    assert text.stderr == ""


def test_a_dry_run_writes_nothing_also_while_another_run_is_alive(
    rag: Rag, url: str, vault: Path, connection: Connection
) -> None:
    ok(rag("ingest", str(vault), "--dry-run"))
    assert [size[0] for size in sizes(connection)] == [0] * 5
    ingest(url, vault)
    changed(vault)
    connection.execute("select rag.begin_run(%s, 'fake', 'fake-lexical-v1', 1024)", [str(vault)])
    before = sizes(connection), everything(connection)
    assert "1 delete," in ok(rag("ingest", str(vault), "--dry-run")).stdout
    assert (sizes(connection), everything(connection)) == before


def test_a_dry_run_shows_withheld_deletions_and_that_they_can_be_allowed(
    rag: Rag, url: str, vault: Path
) -> None:
    ingest(url, vault)
    for name in "abcdef":
        (vault / f"{name}.md").unlink()
    lines = ok(rag("ingest", str(vault), "--dry-run")).stdout.splitlines()
    assert lines[0] == "withhold  a.md  (6 of 8 documents would vanish)"
    assert lines[6] == "would be: 0 add, 0 change, 0 move, 0 embed, 0 delete, 6 withhold, 0 fail, 2 skip"
    allowed = ok(rag("ingest", str(vault), "--dry-run", "--allow-mass-delete")).stdout.splitlines()
    assert allowed[0] == "delete    a.md  (file is gone)"


def test_a_dry_run_of_no_vault_is_the_error_of_a_run(rag: Rag, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments in (("nowhere",), ("empty",)):
        path = str(tmp_path / arguments[0])
        done, real = rag("ingest", path, "--dry-run"), rag("ingest", path)
        assert (done.returncode, done.stderr) == (real.returncode, real.stderr)
        assert done.returncode == 2


# Guards --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "gone", "why"),
    [
        (8, 8, "no file was found at all"),
        (1, 1, "no file was found at all"),
        (8, 6, "6 of 8 documents would vanish"),
        (8, 5, None),  # not more than 5
        (20, 6, None),  # not more than 30 %
        (19, 6, "6 of 19 documents would vanish"),
    ],
)
def test_deletions_that_look_like_an_accident_are_withheld(
    url: str, tmp_path: Path, connection: Connection, stored: int, gone: int, why: str | None
) -> None:
    for number in range(stored):
        (tmp_path / f"n{number}.md").write_text(f"Text {number}.\n", encoding="utf-8")
    ingest(url, tmp_path)
    for number in range(gone):
        (tmp_path / f"n{number}.md").unlink()
    report = ingest_vault(tmp_path, Database(url), FakeLexicalEmbedder())
    left = len(rows(connection, "select id from rag.documents"))
    if why is None:
        assert (left, report.run["status"], report.withheld) == (stored - gone, "success", [])
        return
    assert (left, report.run["status"]) == (stored, "failed")
    assert report.run["error_summary"] == f"{gone} deletions withheld"
    assert {item.reason for item in report.withheld} == {f"withheld: {why}"}
    allowed = ingest_vault(tmp_path, Database(url), FakeLexicalEmbedder(), allow_mass_delete=True)
    assert (allowed.run["documents_deleted"], allowed.run["status"]) == (gone, "success")


def test_withheld_deletions_do_not_hold_up_what_else_changed(
    rag: Rag, url: str, vault: Path, connection: Connection
) -> None:
    ingest(url, vault)
    for name in "abcdef":
        (vault / f"{name}.md").unlink()
    (vault / "g.md").write_text("Changed.\n", encoding="utf-8")
    done = ok(rag("ingest", str(vault)), 4)
    assert "1 updated" in done.stdout
    assert "6 deletions withheld (6 of 8 documents would vanish).\n" in done.stderr
    shown = ok(rag("runs", "show", "2")).stdout
    assert "deletions withheld: 6" in shown
    assert "pending  delete  a.md\n         withheld: 6 of 8 documents would vanish\n" in shown
    assert len(rows(connection, "select id from rag.documents")) == 8


def test_a_folder_that_may_not_be_read_deletes_nothing_below_it(
    url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scan_as_ordinary_user(*arguments: Any, **options: Any) -> Any:
        with as_ordinary_user():
            return scan_vault(*arguments, **options)

    monkeypatch.setattr(ingest_module, "scan_vault", scan_as_ordinary_user)
    with tempfile.TemporaryDirectory() as name:
        vault, secret = Path(name).resolve(), Path(name).resolve() / "secret"
        vault.chmod(0o755)
        (secret / "deep").mkdir(parents=True)
        for path in ("secret/x.md", "secret/deep/y.md", "open.md", "gone.md"):
            (vault / path).write_text(f"Text of {path}.\n", encoding="utf-8")
        ingest(url, vault)
        (vault / "gone.md").unlink()
        secret.chmod(0o000)
        try:
            plan = preview_vault(vault, Database(url), FakeLexicalEmbedder())
            report = ingest_vault(vault, Database(url), FakeLexicalEmbedder())
        finally:
            secret.chmod(0o755)
        why = "folder cannot be listed: Permission denied"
        assert [(item.relative_path, item.action, item.error) for item in plan] == [
            ("open.md", "skip", None),
            ("secret/", "skip", why),
            ("gone.md", "delete", None),
        ]
        assert report.failed == [("secret/", why)]
        assert (report.run["documents_deleted"], report.run["documents_failed"]) == (1, 1)
        assert len(rows(connection, "select id from rag.documents")) == 3
        assert ingest(url, vault)["documents_skipped"] == 3


# rag runs ------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_and_can_be_narrowed(
    rag: Rag, url: str, vault: Path, tmp_path: Path
) -> None:
    assert ok(rag("runs")).stdout == "no run yet; start with: rag ingest PATH_OF_THE_VAULT\n"
    assert body(rag("runs", "--json")) == []
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.md").write_text("X.\n", encoding="utf-8")
    for each in (vault, other, vault):
        ingest(url, each)
    text = ok(rag("runs")).stdout
    assert re.findall(r"^ +(\d+)  \S+  success  (\S+)$", text, re.MULTILINE) == [
        ("3", str(vault)), ("2", str(other)), ("1", str(vault)),
    ]  # fmt: skip
    assert re.findall(r"^ {7}(.*)$", text, re.MULTILINE) == ["8 skipped", "1 added", "8 added"]
    assert [row["id"] for row in body(rag("runs", "--json", "--limit", "2"))] == [3, 2]
    assert [row["id"] for row in body(rag("runs", "--json", "--vault", f"{other}/"))] == [2]
    assert body(rag("runs", "--json", "--vault", "/nowhere")) == []
    assert ok(rag("runs", "--limit", "0"), 2).stdout == ""


def test_a_run_whose_process_is_gone_is_closed_as_interrupted_and_this_is_said(
    process: Rag, url: str, vault: Path, connection: Connection
) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        for number in (1, 2):
            other.execute(
                "select rag.begin_run(%s, 'fake', 'fake-lexical-v1', 1024)", [f"/{number}"]
            ).fetchone()
        living = ok(process("runs"))
        assert (living.stdout.count("running"), living.stderr) == (2, "")
        pid = other.info.backend_pid
    while rows(connection, "select 1 from pg_stat_activity where pid = %s", [pid]):
        pass
    assert ok(process("status", "--no-scan")).stdout.count(", dead, ") == 2
    done = ok(process("runs"))
    assert done.stderr == "closed as interrupted: 2\n"
    assert done.stdout.count("failed") == done.stdout.count("nothing to do; interrupted") == 2
    assert ok(process("runs")).stderr == ""


def test_a_run_is_shown_document_by_document(process: Rag, url: str, vault: Path) -> None:
    ingest(url, vault)
    changed(vault)
    ok(process("ingest", str(vault)), 3)
    lines = ok(process("runs", "show", "2")).stdout.splitlines()
    assert lines[0] == f"run 2 of {vault}: failed"
    assert re.fullmatch(r"started 20\S+, ended 20\S+", lines[1])
    assert lines[2] == "provider fake, model fake-lexical-v1"
    assert lines[3] == ("documents: 1 added, 1 updated, 1 moved, 0 embedded, 1 deleted, 4 skipped, 1 failed")
    assert lines[4] == ("chunks: 3 written; embeddings: 3 computed, 0 reused; deletions withheld: 0")
    assert lines[5] == "error: 1 failed: d.md"
    assert lines[6:] == [
        "done     change  a.md",
        "         content changed; 1 chunks, 1 computed, 0 reused",
        "failed   change  d.md",
        "         not UTF-8 (byte 0xB0 at offset 2); save it as UTF-8, or name its encoding,"
        " e.g. --encoding gb18030",
        "done     add     new.md",
        "         new file; 1 chunks, 1 computed, 0 reused",
        "done     move    sub/c.md from c.md",
        "         same content as the vanished c.md; 1 chunks, 1 computed, 0 reused",
        "done     delete  b.md",
        "         file is gone",
    ]
    assert "unchanged" not in "".join(lines)
    assert ok(process("runs", "show", "2", "--all")).stdout.count("\n         unchanged\n") == 4
    shown = body(process("runs", "show", "2", "--json"))
    assert (shown["run"]["id"], shown["run"]["error_summary"]) == (2, "1 failed: d.md")
    items = {item["relative_path"]: item for item in shown["items"]}
    assert list(items) == ["a.md", "d.md", "new.md", "sub/c.md", "b.md"]
    hashes = {path: (item["old_hash"], item["new_hash"]) for path, item in items.items()}
    assert len({*hashes["a.md"], *hashes["d.md"]}) == 4
    assert hashes["sub/c.md"][0] == hashes["sub/c.md"][1]
    assert hashes["new.md"][0] is hashes["b.md"][1] is None


def test_a_run_that_does_not_exist_is_not_found(process: Rag) -> None:
    done = ok(process("runs", "show", "7"), 1)
    assert "error [not_found]: there is no run 7\n  rag runs lists the runs there are.\n" in done.stderr
    assert ok(process("runs", "show", "x"), 2).stdout == ""


# rag status ----------------------------------------------------------------------------------------


def test_status_of_an_empty_index_says_how_to_start(rag: Rag) -> None:
    assert ok(rag("status")).stdout == "nothing is indexed; start with: rag ingest PATH_OF_THE_VAULT\n"
    assert body(rag("status", "--json"))["vaults"] == []


def test_status_shows_what_is_stale_failed_withheld_and_embedded_vault_by_vault(
    rag: Rag, url: str, vault: Path, tmp_path: Path, connection: Connection
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    (gone / "x.md").write_text("X.\n", encoding="utf-8")
    ingest(url, gone)
    (gone / "x.md").unlink()
    ok(rag("ingest", str(gone)), 4)
    gone.rmdir()
    ingest(url, vault)
    (vault / "bad.md").write_bytes(b"40\xb0C\n")
    ok(rag("ingest", str(vault)), 3)
    # three chunks of another provider, and one that the current one lacks
    connection.execute(
        "insert into rag.embeddings (chunk_id, embedding_provider, embedding_model, embedding_dim, embedding,"
        " input_hash) select e.chunk_id, 'local-e5', 'm', 1024, e.embedding, e.input_hash from rag.embeddings"
        " as e join rag.chunks as c on c.id = e.chunk_id where c.relative_path in ('a.md', 'b.md', 'g.md')"
    )
    connection.execute("delete from rag.embeddings where embedding_provider = 'fake' and chunk_id in"
                       " (select id from rag.chunks where relative_path = 'g.md')")  # fmt: skip
    (vault / "bad.md").unlink()
    changed(vault)
    text = ok(rag("status"))
    assert [re.sub(r"20\d\d-\d\d-\d\dT[\d:]{8}", "TIME", line) for line in text.stdout.splitlines()] == [
        str(gone),
        "  indexed: 1 documents, 1 chunks",
        f"  on disk: vault path '{gone}' does not exist",
        "  embedded by fake fake-lexical-v1: 1 of 1 chunks",
        "  embedded by local-e5 m: 0 of 1 chunks",
        "  last run: 2, failed, TIME; last success TIME",
        "  withheld: 1 deletions; see: rag runs show 2",
        str(vault),
        "  indexed: 8 documents, 8 chunks",
        "  on disk: 1 to add, 2 to change, 1 to move, 1 to embed, 1 to delete",
        "  embedded by fake fake-lexical-v1: 7 of 8 chunks",
        "  embedded by local-e5 m: 3 of 8 chunks",
        "  last run: 4, failed, TIME; last success TIME",
        "  failed: bad.md: not UTF-8 (byte 0xB0 at offset 2); save it as UTF-8, or name its encoding,"
        " e.g. --encoding gb18030",
    ]
    shown = body(rag("status", "--json"))
    assert (shown["embedding_provider"], shown["embedding_model"]) == INDEX[:2]
    first, second = shown["vaults"]
    assert first["stale"] == {"error": f"vault path '{gone}' does not exist"}
    assert (first["withheld"], first["failures"]) == (1, [])
    assert second["stale"] == {
        "add": 1,
        "change": 2,
        "move": 1,
        "embed": 1,
        "delete": 1,
        "withhold": 0,
        "unreadable": 0,
    }
    assert [failure["relative_path"] for failure in second["failures"]] == ["bad.md"]
    assert second["coverage"] == [
        {"embedding_provider": "fake", "embedding_model": "fake-lexical-v1", "chunks": 8, "embedded": 7},
        {"embedding_provider": "local-e5", "embedding_model": "m", "chunks": 8, "embedded": 3},
    ]
    assert "on disk" not in ok(rag("status", "--no-scan")).stdout
    assert [each["stale"] for each in body(rag("status", "--no-scan", "--json"))["vaults"]] == [None, None]


def test_status_of_a_vault_in_step_says_so_and_writes_nothing(
    rag: Rag, url: str, vault: Path, connection: Connection
) -> None:
    ingest(url, vault)
    before = sizes(connection)
    assert "  on disk: in step\n" in ok(rag("status")).stdout
    assert sizes(connection) == before


# rag forget ----------------------------------------------------------------------------------------


def test_without_yes_nothing_is_forgotten_and_the_counts_are_shown(
    rag: Rag, url: str, vault: Path, connection: Connection
) -> None:
    ingest(url, vault)
    before = sizes(connection), everything(connection)
    done = ok(rag("forget", str(vault)), 2)
    assert done.stdout == (
        f"stored of {vault}: 8 documents, 8 chunks, 8 embeddings, 1 runs, 8 ledger items\n"
    )
    assert done.stderr == "Nothing was removed. To remove it: add --yes\n"
    counts = {"documents": 1, "chunks": 1, "embeddings": 1, "runs": 0, "run_items": 1}
    assert body(rag("forget", str(vault / "a.md"), "--json"), 2) == {
        "path": str(vault / "a.md"), "vaults": [str(vault)], "stored": counts, "left": None,
    }  # fmt: skip
    assert (sizes(connection), everything(connection)) == before


def test_a_forgotten_vault_is_gone_from_all_tables(
    process: Rag, url: str, vault: Path, tmp_path: Path, connection: Connection
) -> None:
    other = tmp_path / "vault2"  # begins like the other one
    other.mkdir()
    (other / "x.md").write_text("X.\n", encoding="utf-8")
    ingest(url, other)
    kept = everything(connection)
    ingest(url, vault)
    for path in vault.iterdir():
        path.unlink()
    ok(process("ingest", str(vault)), 4)
    vault.rmdir()  # it can be forgotten although it is gone
    done = ok(process("forget", str(vault), "--yes"))
    assert done.stdout.splitlines() == [
        f"removed of {vault}: 8 documents, 8 chunks, 8 embeddings, 2 runs, 16 ledger items",
        "left: 0 documents, 0 chunks, 0 embeddings, 0 runs, 0 ledger items",
    ]
    assert done.stderr == ""
    assert everything(connection) == kept
    assert ok(process("forget", str(vault), "--yes")).stdout == f"nothing is stored of {vault}\n"
    zero = {"documents": 0, "chunks": 0, "embeddings": 0, "runs": 0, "run_items": 0}
    assert body(process("forget", str(vault), "--yes", "--json")) == {
        "path": str(vault), "vaults": [str(vault)], "stored": zero, "left": zero,
    }  # fmt: skip


def test_a_forgotten_note_is_gone_from_the_ledger_too_and_the_sums_stay(
    rag: Rag, url: str, vault: Path, connection: Connection
) -> None:
    (vault / "salaries.md").write_text("# Salaries\n\nMona earns 1,000.\n", encoding="utf-8")
    ingest(url, vault)
    (vault / "salaries.md").rename(vault / "salaries-2.md")
    ingest(url, vault)
    (vault / "salaries-2.md").write_bytes(b"Mona \xb0\n")
    ok(rag("ingest", str(vault)), 3)
    sums = rows(connection, "select id, status, documents_added, documents_failed from rag.ingest_runs")
    done = ok(rag("forget", str(vault / "salaries-2.md"), "--yes"))
    assert "removed of" in done.stdout
    assert "left: 0 documents, 0 chunks, 0 embeddings, 0 runs, 0 ledger items" in done.stdout
    assert "Mona" not in everything(connection)
    assert "salaries-2" not in everything(connection)
    ok(rag("forget", str(vault / "salaries.md"), "--yes"))
    assert "salaries" not in everything(connection)
    assert (
        rows(connection, "select id, status, documents_added, documents_failed from rag.ingest_runs") == sums
    )
    assert rows(connection, "select * from rag.find_inconsistencies()") == []
    assert len(rows(connection, "select id from rag.documents")) == 8
    done = ok(rag("ingest", str(vault)), 3)
    assert "failed: salaries-2.md" in done.stderr, "what is still in the vault comes back"


@pytest.mark.parametrize("name", ["a_b", "50%", "%", "back\\slash", "值班"])
def test_a_folder_name_is_taken_literally(
    rag: Rag, url: str, tmp_path: Path, connection: Connection, name: str
) -> None:
    vault = tmp_path / "vault"
    others = {"a_bc", "axb", "a_", "50", "500", "back/slash", "值班表", "x"}
    for folder in {name, *others}:
        (vault / folder).mkdir(parents=True, exist_ok=True)
        (vault / folder / "n.md").write_text(f"Text of {folder}.\n", encoding="utf-8")
    (vault / f"{name}.md").write_text("Beside.\n", encoding="utf-8")
    ingest(url, vault)
    done = ok(rag("forget", f"{vault}/{name}/", "--yes"))
    assert "1 documents, 1 chunks, 1 embeddings, 0 runs, 1 ledger items" in done.stdout
    left = {row["relative_path"] for row in rows(connection, "select relative_path from rag.documents")}
    assert left == {f"{folder}/n.md" for folder in others} | {f"{name}.md"}


def test_what_is_stored_of_a_path_is_forgotten_in_every_vault_that_holds_it(
    rag: Rag, url: str, vault: Path, tmp_path: Path, connection: Connection
) -> None:
    ingest(url, tmp_path)  # a vault around the other one
    ingest(url, vault)
    done = ok(rag("forget", str(vault / "a.md"), "--yes"))
    assert "2 documents" in done.stdout
    assert f"  of the vault {tmp_path}\n" in done.stdout
    assert f"  of the vault {vault}\n" in done.stdout
    assert "Text of note a" not in everything(connection)
    assert len(rows(connection, "select id from rag.documents")) == 14
    ok(rag("forget", str(tmp_path), "--yes"))
    assert [size[0] for size in sizes(connection)] == [0] * 5


def test_a_busy_vault_is_not_forgotten(rag: Rag, url: str, vault: Path, connection: Connection) -> None:
    ingest(url, vault)
    connection.execute("select rag.begin_run(%s, 'fake', 'fake-lexical-v1', 1024)", [str(vault)])
    done = ok(rag("forget", str(vault / "a.md"), "--yes"), 5)
    assert "error [vault_busy]: run 2 of" in done.stderr
    assert len(rows(connection, "select id from rag.documents")) == 8


# rag vault move ------------------------------------------------------------------------------------


def test_a_moved_vault_is_known_under_its_new_path_and_nothing_is_embedded_again(
    process: Rag, url: str, vault: Path, tmp_path: Path, connection: Connection
) -> None:
    ingest(url, vault)
    ingest(url, vault)
    new = tmp_path / "new place"
    vault.rename(new)
    done = ok(process("vault", "move", str(vault), f"{new}/"))
    assert done.stdout == f"8 documents of {vault} are now of {new}\n"
    assert str(vault) not in everything(connection)
    run = body(process("ingest", str(new), "--json"))
    assert (run["documents_skipped"], run["embeddings_written"], run["chunks_written"]) == (8, 0, 0)
    assert [row["id"] for row in body(process("runs", "--vault", str(new), "--json"))] == [3, 2, 1]
    assert str(new / "a.md") in {
        row["file_path"] for row in rows(connection, "select file_path from rag.chunks")
    }
    assert rows(connection, "select * from rag.find_inconsistencies()") == []


def test_a_symlink_in_the_old_place_does_not_hide_the_vault_that_was_there(
    rag: Rag, url: str, vault: Path, tmp_path: Path
) -> None:
    ingest(url, vault)
    new = tmp_path / "new"
    vault.rename(new)
    vault.symlink_to(new)
    assert len(body(rag("runs", "--vault", str(vault), "--json"))) == 1
    assert "8 documents" in ok(rag("forget", str(vault)), 2).stdout
    assert ok(rag("vault", "move", str(vault), str(new))).stdout.startswith("8 documents")
    assert "8 documents" in ok(rag("forget", str(vault)), 2).stdout, "now by the symlink"


def test_a_move_that_cannot_be_is_refused(
    rag: Rag, url: str, vault: Path, tmp_path: Path, connection: Connection
) -> None:
    ingest(url, vault)
    new = tmp_path / "new"
    new.mkdir()
    (new / "x.md").write_text("X.\n", encoding="utf-8")
    before = everything(connection)
    missing = ok(rag("vault", "move", str(vault), "/nowhere"), 2)
    assert "error [invalid_request]: vault path '/nowhere' does not exist" in missing.stderr
    same = ok(rag("vault", "move", str(vault), f"{vault}/."), 2)
    assert "old and new path are the same" in same.stderr
    unknown = ok(rag("vault", "move", "/nowhere", str(new)), 1)
    assert "error [not_found]: nothing is stored of /nowhere" in unknown.stderr
    assert everything(connection) == before
    ingest(url, new)
    taken = ok(rag("vault", "move", str(vault), str(new)), 2)
    assert f"there are documents of {new} already" in taken.stderr
    connection.execute("select rag.begin_run(%s, 'fake', 'fake-lexical-v1', 1024)", [str(vault)])
    ok(rag("vault", "move", str(vault), str(new)), 5)


# Two runs at the same time -------------------------------------------------------------------------


def start(url: str, vault: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "ingest", str(vault)],
        env={**os.environ, "DATABASE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_in_concurrent_runs(server: Any, template: str, tmp_path: Path) -> None:
    for number in range(1, 201):
        (tmp_path / f"n{number}.md").write_text(f"# N{number}\n\nText {number}.\n", encoding="utf-8")
    for _ in range(5):
        url = server.create(template)
        both = [start(url, tmp_path) for _ in range(2)]
        ends = [(process.communicate(timeout=60)[1], process.returncode) for process in both]
        assert {code for _, code in ends} <= {0, 5}
        assert 0 in {code for _, code in ends}
        for stderr, _ in ends:
            assert not re.search("Traceback|40P01|duplicate key", stderr)
        with psycopg.connect(url) as connection:
            assert rows(
                connection,
                "select count(*) as n, count(distinct (d.vault_path, d.relative_path)) as paths,"
                " count(distinct (c.document_id, c.chunk_index)) as chunks, count(e.id) as embeddings"
                " from rag.documents as d left join rag.chunks as c on c.document_id = d.id"
                " left join rag.embeddings as e on e.chunk_id = c.id",
            ) == [{"n": 200, "paths": 200, "chunks": 200, "embeddings": 200}]
            assert rows(connection, "select * from rag.find_inconsistencies()") == []
            assert rows(connection, "select id from rag.ingest_runs where status <> 'success'") == []
        server.drop(url)


def test_a_forgotten_note_goes_from_the_ledger_under_its_former_path_as_well(
    rag: Rag, vault: Path, connection: Connection
) -> None:
    ok(rag("ingest", str(vault)))
    (vault / "a.md").rename(vault / "secret.md")
    ok(rag("ingest", str(vault)))
    ok(rag("forget", str(vault / "secret.md"), "--yes"))
    rows = connection.execute("select relative_path, moved_from, reason from rag.ingest_run_items").fetchall()
    assert not [row for row in rows if {"a.md", "secret.md"} & set(row) or "a.md" in str(row[2])]


def test_the_summary_of_a_run_stays_unless_it_speaks_of_the_forgotten_note(
    rag: Rag, vault: Path, connection: Connection
) -> None:
    (vault / "data.md").write_bytes(b"\xff\xfe\xfd")
    ok(rag("ingest", str(vault)), 3)
    ok(rag("forget", str(vault / "a.md"), "--yes"))
    assert connection.execute("select error_summary from rag.ingest_runs").fetchall() == [
        ("1 failed: data.md",)
    ]
    ok(rag("forget", str(vault / "data.md"), "--yes"))
    assert connection.execute("select error_summary from rag.ingest_runs").fetchall() == [("(forgotten)",)]


def test_a_vanished_note_is_forgotten_under_all_paths_that_it_had(
    rag: Rag, vault: Path, connection: Connection
) -> None:
    ok(rag("ingest", str(vault)))
    (vault / "a.md").rename(vault / "b2.md")
    ok(rag("ingest", str(vault)))
    (vault / "b2.md").unlink()
    ok(rag("ingest", str(vault)))
    ok(rag("forget", str(vault / "b2.md"), "--yes"))
    paths = connection.execute("select relative_path from rag.ingest_run_items").fetchall()
    assert not {("a.md",), ("b2.md",)} & set(paths)
    assert ("b.md",) in paths


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("forget", "", "--yes"), "is empty"),
        (("forget", " ", "--yes"), "is empty"),
        (("forget", "~no-such-user/x", "--yes"), "home directory"),
        (("vault", "move", "", "."), "is empty"),
        (("runs", "--vault", ""), "is empty"),
        (("search", "x", "--vault", ""), "is empty"),
        (("ask", "x", "--vault", "~no-such-user/x"), "home directory"),
        (("forget", "\udcff", "--yes"), "not valid UTF-8"),
    ],
)
def test_a_path_that_is_none_is_refused_and_nothing_is_removed(
    rag: Rag, vault: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch, arguments: Any, why: str
) -> None:
    ok(rag("ingest", str(vault)))
    monkeypatch.chdir(vault)
    done = rag(*arguments)
    assert done.returncode == 2
    assert why in done.stderr
    assert connection.execute("select count(*) from rag.documents").fetchall() == [(8,)]


def test_a_vault_that_is_not_there_is_never_a_reason_to_forget_the_new_one(rag: Rag, vault: Path) -> None:
    ok(rag("ingest", str(vault)))
    done = rag("vault", "move", str(vault.parent / "typo"), str(vault))
    assert done.returncode == 1
    assert "nothing is stored of" in done.stderr
    assert "--yes" not in done.stderr


def test_a_moved_vault_is_found_without_its_runs_too(rag: Rag, vault: Path, connection: Connection) -> None:
    ok(rag("ingest", str(vault)))
    connection.execute("delete from rag.ingest_runs")
    new = vault.rename(vault.parent / "new")
    vault.symlink_to(new)
    assert "8 documents" in ok(rag("vault", "move", str(vault), str(new))).stdout


def test_status_tells_deletions_that_a_run_would_withhold(rag: Rag, vault: Path) -> None:
    ok(rag("ingest", str(vault)))
    for note in vault.glob("*.md"):
        note.unlink()
    said = ok(rag("status")).stdout
    assert "8 deletions that a run would withhold" in said
    assert "to delete" not in said


def test_json_of_a_run_says_what_failed_and_what_was_withheld(rag: Rag, vault: Path) -> None:
    ok(rag("ingest", str(vault)))
    for note in vault.glob("*.md"):
        note.unlink()
    (vault / "bad.md").write_bytes(b"\xff")
    report = body(rag("ingest", str(vault), "--json"), 4)
    assert report["deletions_withheld"] == 8
    assert [failure["relative_path"] for failure in report["failures"]] == ["bad.md"]
