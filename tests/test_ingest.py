"""Runs over real folders: what is added, kept, moved, deleted, and what a bad file costs."""

from __future__ import annotations

import hashlib
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pyrag.db import Database, Index
from pyrag.embeddings import FakeLexicalEmbedder
from pyrag.errors import DatabaseUnavailable, InternalError, InvalidRequest, VaultBusy
from pyrag.ingest import IngestReport, ingest_vault
from pyrag.models import EmbeddingInput, Vector
from pyrag.service import Service

Connection = psycopg.Connection[Any]
COUNTERS = ("added", "updated", "moved", "embedded", "deleted", "skipped", "failed")


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """Three notes."""
    folder = tmp_path / "vault"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.md").write_text(f"# Note {name}\n\nText of note {name}.\n", encoding="utf-8")
    return folder


class Counting(FakeLexicalEmbedder):
    """The fake embedder, counting what it computes, under a model name of its own."""

    def __init__(self, model: str = "fake-lexical-v1") -> None:
        super().__init__()
        self.model = model
        self.computed = 0

    def embed_documents(self, items: Sequence[EmbeddingInput]) -> list[Vector]:
        self.computed += len(items)
        return super().embed_documents(items)


class ContentOnly(Counting):
    """A model that reads the content alone, as one whose text has no folder."""

    def input_hash(self, item: EmbeddingInput) -> str:
        return hashlib.sha256(item.content.encode()).hexdigest()


def ingest(
    url: str, vault: Path, embedder: FakeLexicalEmbedder | None = None, **options: Any
) -> IngestReport:
    return ingest_vault(vault, Database(url), embedder or FakeLexicalEmbedder(), **options)


def counts(report: IngestReport) -> dict[str, int]:
    return {name: n for name in COUNTERS if (n := report.run[f"documents_{name}"])}


def rows(connection: Connection, query: str) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query).fetchall()


def content(connection: Connection) -> list[tuple[Any, ...]]:
    """All that is stored, without ids and times."""
    return connection.execute(
        "select d.relative_path, d.content_hash, d.file_path, d.scope, c.chunk_index, c.content, c.scope,"
        " c.relative_path, e.embedding_provider, e.embedding_model, e.embedding::text, e.input_hash, e.scope"
        " from rag.documents as d left join rag.chunks as c on c.document_id = d.id"
        " left join rag.embeddings as e on e.chunk_id = c.id"
        ' order by d.relative_path collate "C", c.chunk_index, e.embedding_model'
    ).fetchall()


def test_a_first_run_stores_documents_chunks_and_embeddings(
    url: str, vault: Path, connection: Connection
) -> None:
    report = ingest(url, vault)
    assert counts(report) == {"added": 3}
    assert report.run["status"] == "success"
    assert report.run["chunks_written"] == report.run["embeddings_written"] == 3
    document = rows(connection, "select * from rag.documents order by relative_path")[0]
    data = (vault / "a.md").read_bytes()
    assert document["vault_path"] == document["scope"] == str(vault)
    assert document["relative_path"] == "a.md"
    assert document["file_path"] == str(vault / "a.md")
    assert document["content_hash"] == hashlib.sha256(data).hexdigest()
    assert document["size_bytes"] == len(data)
    assert document["mtime_ns"] == (vault / "a.md").stat().st_mtime_ns
    chunk = rows(connection, "select * from rag.chunks order by relative_path")[0]
    assert chunk["content"] == "# Note a\n\nText of note a."
    assert chunk["heading_path"] == ["Note a"]
    assert chunk["content_hash"] == hashlib.sha256(chunk["content"].encode()).hexdigest()


def test_a_second_run_skips_everything(url: str, vault: Path, connection: Connection) -> None:
    ingest(url, vault)
    before = rows(connection, "select * from rag.chunks order by id")
    report = ingest(url, vault)
    assert counts(report) == {"skipped": 3}
    assert report.run["chunks_written"] == report.run["embeddings_written"] == 0
    assert rows(connection, "select * from rag.chunks order by id") == before


def test_a_touched_file_is_still_unchanged(url: str, vault: Path) -> None:
    ingest(url, vault)
    os.utime(vault / "a.md", (1, 1))
    assert counts(ingest(url, vault)) == {"skipped": 3}


def test_changed_deleted_and_new_files_are_told_apart(url: str, vault: Path, connection: Connection) -> None:
    ingest(url, vault)
    (vault / "a.md").write_text("# Note a\n\nOther text.\n", encoding="utf-8")
    (vault / "b.md").unlink()
    (vault / "sub").mkdir()
    (vault / "sub" / "d.md").write_text("New.\n", encoding="utf-8")
    report = ingest(url, vault)
    assert counts(report) == {"added": 1, "updated": 1, "deleted": 1, "skipped": 1}
    paths = [row["relative_path"] for row in rows(connection, "select * from rag.documents order by 4")]
    assert paths == ["a.md", "c.md", "sub/d.md"]
    texts = " ".join(row["content"] for row in rows(connection, "select * from rag.chunks"))
    assert "Text of note a" not in texts
    assert "Text of note b" not in texts


def test_the_state_after_edits_equals_a_fresh_index(
    url: str, vault: Path, connection: Connection, server: Any, template: str
) -> None:
    ingest(url, vault)
    (vault / "a.md").write_text("# Note a\n\nEdited.\n\n## More\n\nMore text.\n", encoding="utf-8")
    (vault / "b.md").rename(vault / "z.md")
    (vault / "c.md").unlink()
    ingest(url, vault)
    fresh = server.create(template)
    try:
        ingest(fresh, vault)
        with psycopg.connect(fresh) as other:
            assert content(other) == content(connection)
    finally:
        server.drop(fresh)


def test_a_renamed_file_keeps_its_document(url: str, vault: Path, connection: Connection) -> None:
    ingest(url, vault)
    before = rows(connection, "select * from rag.documents where relative_path = 'a.md'")[0]
    (vault / "sub").mkdir()
    (vault / "a.md").rename(vault / "sub" / "renamed.md")
    report = ingest(url, vault)
    assert counts(report) == {"moved": 1, "skipped": 2}
    after = rows(connection, "select * from rag.documents where relative_path = 'sub/renamed.md'")[0]
    assert after["id"] == before["id"]
    assert after["file_path"] == str(vault / "sub" / "renamed.md")
    item = rows(connection, "select * from rag.ingest_run_items where action = 'move'")[0]
    assert (item["moved_from"], item["reason"]) == ("a.md", "same content as the vanished a.md")


def test_a_renamed_file_is_not_embedded_again_when_the_model_reads_no_path(url: str, vault: Path) -> None:
    ingest(url, vault, ContentOnly("content-only"))
    (vault / "a.md").rename(vault / "renamed.md")
    embedder = ContentOnly("content-only")
    report = ingest(url, vault, embedder)
    assert embedder.computed == 0
    assert (report.run["embeddings_written"], report.run["embeddings_reused"]) == (0, 1)


def test_only_the_changed_section_is_embedded_again(url: str, vault: Path) -> None:
    sections = [f"## Section {n}\n\n" + f"Sentence number {n} of the text. " * 30 + "\n\n" for n in range(8)]
    (vault / "long.md").write_text("".join(sections), encoding="utf-8")
    ingest(url, vault)
    sections[3] = sections[3].replace("number", "figure")
    (vault / "long.md").write_text("".join(sections), encoding="utf-8")
    embedder = Counting()
    report = ingest(url, vault, embedder)
    assert embedder.computed == report.run["embeddings_written"] == 1
    assert report.run["embeddings_reused"] == report.run["chunks_written"] - 1 == 7


def test_another_model_gets_only_its_embeddings(url: str, vault: Path, connection: Connection) -> None:
    ingest(url, vault)
    chunks = rows(connection, "select * from rag.chunks order by id")
    report = ingest(url, vault, Counting("other"))
    assert counts(report) == {"embedded": 3}
    assert (report.run["chunks_written"], report.run["embeddings_written"]) == (0, 3)
    assert rows(connection, "select * from rag.chunks order by id") == chunks
    assert len(rows(connection, "select * from rag.embeddings")) == 6
    assert counts(ingest(url, vault)) == {"skipped": 3}


def test_an_unchanged_section_keeps_the_embeddings_of_other_models(url: str, vault: Path) -> None:
    sections = [f"## Section {n}\n\n" + f"Sentence number {n} of the text. " * 30 + "\n\n" for n in range(4)]
    (vault / "long.md").write_text("".join(sections), encoding="utf-8")
    ingest(url, vault)
    ingest(url, vault, Counting("other"))
    (vault / "long.md").write_text("".join([*sections, "## New\n\n" + "Brand new. " * 60]), encoding="utf-8")
    ingest(url, vault)
    embedder = Counting("other")
    assert counts(ingest(url, vault, embedder)) == {"embedded": 1, "skipped": 3}
    assert embedder.computed == 1


def test_the_same_text_in_two_files_is_embedded_once_for_a_model_that_reads_no_path(
    url: str, vault: Path, connection: Connection
) -> None:
    (vault / "copy.md").write_bytes((vault / "a.md").read_bytes())
    embedder = ContentOnly("content-only")
    ingest(url, vault, embedder)
    assert embedder.computed == 3
    assert len(rows(connection, "select * from rag.embeddings")) == 4


def test_spellings_of_one_vault_path_are_one_vault(
    url: str, vault: Path, monkeypatch: pytest.MonkeyPatch, connection: Connection
) -> None:
    monkeypatch.chdir(vault.parent)
    link = vault.parent / "link"
    link.symlink_to(vault)
    for spelling in (vault, "vault", "./vault/../vault/", link):
        ingest_vault(spelling, Database(url), FakeLexicalEmbedder())
    assert {row["vault_path"] for row in rows(connection, "select * from rag.documents")} == {str(vault)}


def test_two_vaults_keep_files_of_the_same_name_apart(url: str, vault: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.md").write_text("Another a.\n", encoding="utf-8")
    ingest(url, vault)
    assert counts(ingest(url, other)) == {"added": 1}
    assert counts(ingest(url, vault)) == {"skipped": 3}


def test_no_file_of_the_vault_is_written(url: str, vault: Path) -> None:
    def snapshot() -> list[tuple[str, int, int, bytes]]:
        return sorted(
            (str(path), path.stat().st_mtime_ns, path.stat().st_mode, path.read_bytes())
            for path in vault.rglob("*")
            if path.is_file()
        )

    before = snapshot()
    ingest(url, vault)
    assert snapshot() == before


def test_one_bad_file_costs_one_file(url: str, vault: Path, connection: Connection) -> None:
    ingest(url, vault)
    old = [row for row in content(connection) if row[0] == "b.md"]
    (vault / "b.md").write_bytes(b"Temperature 40\xb0C at the inlet.\n")
    (vault / "c.md").write_text("Changed.\n", encoding="utf-8")
    report = ingest(url, vault)
    assert counts(report) == {"updated": 1, "skipped": 1, "failed": 1}
    assert [path for path, _ in report.failed] == ["b.md"]
    assert "UTF-8" in report.failed[0][1]
    assert report.run["status"] == "failed"
    assert report.run["error_summary"] == "1 failed: b.md"
    assert [row for row in content(connection) if row[0] == "b.md"] == old
    (vault / "b.md").write_text("Temperature 40°C at the inlet.\n", encoding="utf-8")
    assert ingest(url, vault).run["status"] == "success"


def test_broken_frontmatter_is_a_warning(url: str, vault: Path, connection: Connection) -> None:
    (vault / "t.md").write_text("---\nyear: {{date:YYYY}}\n---\nAgenda goes here.\n", encoding="utf-8")
    report = ingest(url, vault)
    assert report.run["status"] == "success"
    assert [path for path, _ in report.warnings] == ["t.md"]
    row = rows(connection, "select * from rag.documents where relative_path = 't.md'")[0]
    assert row["frontmatter"] == {}
    assert len(row["warnings"]) == 1


def test_an_empty_file_is_a_document_without_chunks(url: str, vault: Path, connection: Connection) -> None:
    (vault / "empty.md").write_text("", encoding="utf-8")
    (vault / "blank.md").write_text("\n \n\t\n", encoding="utf-8")
    assert counts(ingest(url, vault)) == {"added": 5}
    assert counts(ingest(url, vault)) == {"skipped": 5}
    assert len(rows(connection, "select * from rag.chunks")) == 3


def test_a_run_withholds_deletions_when_no_file_is_left(
    url: str, vault: Path, connection: Connection
) -> None:
    ingest(url, vault)
    for path in vault.glob("*.md"):
        path.unlink()
    report = ingest(url, vault)
    assert len(report.withheld) == 3
    assert report.run["status"] == "failed"
    assert report.run["error_summary"] == "3 deletions withheld"
    assert len(rows(connection, "select * from rag.documents")) == 3
    assert counts(ingest(url, vault, allow_mass_delete=True)) == {"deleted": 3}
    assert rows(connection, "select * from rag.embeddings") == []


def test_a_folder_without_notes_is_an_error_and_leaves_no_run_open(
    url: str, tmp_path: Path, connection: Connection
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InvalidRequest, match="no Markdown file"):
        ingest(url, empty)
    assert rows(connection, "select * from rag.ingest_runs where status = 'running'") == []


def test_every_run_and_document_is_in_the_ledger(url: str, vault: Path, connection: Connection) -> None:
    ingest(url, vault)
    (vault / "a.md").write_text("Changed.\n", encoding="utf-8")
    run = ingest(url, vault).run
    items = rows(connection, f"select * from rag.ingest_run_items where run_id = {run['id']} order by 3")
    assert [(row["relative_path"], row["action"], row["status"]) for row in items] == [
        ("a.md", "change", "done"),
        ("b.md", "skip", "done"),
        ("c.md", "skip", "done"),
    ]
    assert items[0]["old_hash"] != items[0]["new_hash"]
    assert items[0]["chunks_written"] == 1


def test_a_second_run_of_a_vault_is_refused_while_the_first_lives(url: str, vault: Path) -> None:
    database = Database(url)
    with database.ingest_session() as session:
        session.begin_run(str(vault), Index("fake", "fake-lexical-v1", 1024))
        with pytest.raises(VaultBusy, match=f"process {os.getpid()}"):
            ingest(url, vault)
    assert counts(ingest(url, vault)) == {"added": 3}


def test_a_run_whose_process_is_gone_is_closed_as_interrupted(
    url: str, vault: Path, connection: Connection
) -> None:
    with Database(url).ingest_session() as session:
        run_id = session.begin_run(str(vault), Index("fake", "fake-lexical-v1", 1024))
    time.sleep(0.1)  # the server notices the closed connection a moment later
    ingest(url, vault)
    row = rows(connection, f"select * from rag.ingest_runs where id = {run_id}")[0]
    assert (row["status"], row["error_summary"]) == ("failed", "interrupted")
    assert row["finished_at"] is not None


def test_a_lost_connection_stops_the_run_and_keeps_what_is_stored(
    url: str, vault: Path, connection: Connection
) -> None:
    for number in range(200):
        (vault / f"n{number:03}.md").write_text(f"# N{number}\n\nText {number}.\n", encoding="utf-8")

    class Slow(FakeLexicalEmbedder):
        def embed_documents(self, items: Sequence[EmbeddingInput]) -> list[Vector]:
            killer.start()
            killer.join()
            return super().embed_documents(items)

    def kill() -> None:
        connection.execute(
            "select pg_terminate_backend(a.pid) from pg_stat_activity as a"
            " where a.application_name = 'pyrag' and a.datname = current_database()"
        )

    killer = threading.Thread(target=kill)
    with pytest.raises(DatabaseUnavailable):
        ingest(url, vault, Slow())
    closed = rows(connection, "select * from rag.ingest_runs")
    assert [(row["status"], row["error_summary"]) for row in closed] == [("failed", "interrupted")]
    report = ingest(url, vault)
    assert report.run["status"] == "success"
    assert len(rows(connection, "select * from rag.documents")) == 203


def test_a_file_that_vanishes_after_the_plan_is_no_failure(
    url: str, vault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyrag import reading as module
    from pyrag import vault as vault_module

    ingest(url, vault)
    (vault / "b.md").write_text("Changed.\n", encoding="utf-8")
    real = vault_module.read_note

    def read(path: Path) -> Any:
        if path.name == "b.md":
            path.unlink()
        return real(path)

    monkeypatch.setattr(module, "read_note", read)
    report = ingest(url, vault)
    assert counts(report) == {"deleted": 1, "skipped": 2}
    assert report.run["status"] == "success"


def test_an_unnormalised_vector_is_refused_and_the_old_version_stays(
    url: str, vault: Path, connection: Connection
) -> None:
    class Broken(FakeLexicalEmbedder):
        def embed_documents(self, items: Sequence[EmbeddingInput]) -> list[Vector]:
            return [[0.5, *([0.0] * 1023)] for _ in items]

    ingest(url, vault)
    before = content(connection)
    (vault / "a.md").write_text("Changed.\n", encoding="utf-8")
    report = ingest(url, vault, Broken())
    assert counts(report) == {"skipped": 2, "failed": 1}
    assert "length" in report.failed[0][1]
    assert content(connection) == before


def test_a_section_that_moves_to_another_file_is_stored_there(url: str, vault: Path) -> None:
    section = "## Moving\n\n" + "This section moves to another note. " * 30
    (vault / "a.md").write_text("# A\n\nText of a.\n\n" + section, encoding="utf-8")
    ingest(url, vault, ContentOnly("content-only"))
    (vault / "a.md").write_text("# A\n\nText of a.\n", encoding="utf-8")
    (vault / "b.md").write_text(section, encoding="utf-8")
    report = ingest(url, vault, ContentOnly("content-only"))
    assert (report.failed, report.run["status"]) == ([], "success")
    assert counts(report) == {"updated": 2, "skipped": 1}


def test_a_vector_that_vanishes_before_the_write_is_made_again(
    url: str, vault: Path, connection: Connection
) -> None:
    class Unlucky(ContentOnly):
        """Another run deletes the stored vectors after they were asked for."""

        def embed_documents(self, items: Sequence[EmbeddingInput]) -> list[Vector]:
            connection.execute("delete from rag.documents where vault_path like '%other'")
            return super().embed_documents(items)

    other = vault.parent / "other"
    other.mkdir()
    (other / "x.md").write_bytes((vault / "a.md").read_bytes())
    ingest(url, other, ContentOnly("content-only"))
    report = ingest(url, vault, Unlucky("content-only"))
    assert (counts(report), report.failed) == ({"added": 3}, [])


def test_a_text_that_cannot_be_embedded_costs_one_file(url: str, vault: Path, connection: Connection) -> None:
    class Picky(FakeLexicalEmbedder):
        def embed_documents(self, items: Sequence[EmbeddingInput]) -> list[Vector]:
            if any("note b" in item.content for item in items):
                raise InternalError("the model does not like this text")
            return super().embed_documents(items)

    report = ingest(url, vault, Picky())
    assert counts(report) == {"added": 2, "failed": 1}
    assert report.failed == [("b.md", "the model does not like this text")]
    ingest(url, vault, Counting("other"))
    connection.execute("delete from rag.embeddings where embedding_model <> 'other'")
    report = ingest(url, vault, Picky())
    assert counts(report) == {"embedded": 2, "failed": 1}


def test_a_symlink_that_leads_nowhere_is_a_warning(url: str, vault: Path) -> None:
    (vault / "gone.md").symlink_to("/nonexistent")
    report = ingest(url, vault)
    assert report.warnings == [("gone.md", "this symlink leads nowhere; left out")]
    assert counts(report) == {"added": 3}


def test_a_named_encoding_is_used_for_files_that_are_not_utf8(
    url: str, vault: Path, connection: Connection
) -> None:
    (vault / "gb.md").write_bytes("# 泵\n\n每周一加油。\n".encode("gb18030"))
    assert [path for path, _ in ingest(url, vault).failed] == ["gb.md"]
    report = ingest(url, vault, encoding="gb18030")
    assert (report.failed, counts(report)) == ([], {"added": 1, "skipped": 3})
    row = rows(connection, "select c.content from rag.chunks as c where c.relative_path = 'gb.md'")[0]
    assert row["content"] == "# 泵\n\n每周一加油。"


# One run of a vault at a time ----------------------------------------------------------------------


def test_a_busy_vault_is_waited_for_three_seconds_and_then_its_holder_is_named(
    url: str, vault: Path, rag: Callable[..., CompletedProcess[str]]
) -> None:
    with Database(url).ingest_session() as session:
        session.begin_run(str(vault), Index("fake", "fake-lexical-v1", 1024))
        begun = time.monotonic()
        done = rag("ingest", str(vault))
        assert 3 <= time.monotonic() - begun < 10
    assert done.returncode == 5
    assert done.stdout == ""
    assert re.fullmatch(
        rf"error \[vault_busy\]: run 1 of {vault} is at work \(process {os.getpid()} on"
        rf" {re.escape(socket.gethostname())}, since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \S+\)\n"
        r"  Wait until it ends, or stop that process\.\n",
        done.stderr,
    )


def test_a_run_that_ends_within_three_seconds_lets_the_next_one_through(url: str, vault: Path) -> None:
    with Database(url).ingest_session() as session:
        run_id = session.begin_run(str(vault), Index("fake", "fake-lexical-v1", 1024))
        session.record_plan(run_id, [], False)
        ending = threading.Timer(1, session.finish_run, [run_id])
        ending.start()
        assert counts(ingest(url, vault)) == {"added": 3}
        ending.join()


# What the embedder gives is checked ----------------------------------------------------------------


class Faulty(FakeLexicalEmbedder):
    """Gives something wrong for every batch that holds a text about note b."""

    def __init__(self, fault: str, model: str = "fake-lexical-v1") -> None:
        super().__init__()
        self.fault, self.model = fault, model

    def embed_documents(self, items: Sequence[EmbeddingInput]) -> list[Vector]:
        vectors = [list(vector) for vector in super().embed_documents(items)]
        if not any("note b" in item.content for item in items):
            return list(vectors)
        last = vectors[-1]
        match self.fault:
            case "too few":
                vectors.pop()
            case "too many":
                vectors.append(last)
            case "too short":
                last.pop()
            case "zero":
                last[:] = [0.0] * 1024
            case "nan":
                last[3] = math.nan
            case "infinite":
                last[3] = math.inf
            case "not normalised":
                last[:] = [2 * value for value in last]
        return list(vectors)


FAULTS = {
    "too few": "the embedder gave 0 vectors for 1 texts",
    "too many": "the embedder gave 2 vectors for 1 texts",
    "too short": "the embedder's vector 0 has 1023 dimensions, expected 1024",
    "zero": "the embedder's vector 0 has the length 0, expected 1",
    "nan": "the embedder's vector 0 has the length nan, expected 1",
    "infinite": "the embedder's vector 0 has the length inf, expected 1",
    "not normalised": "the embedder's vector 0 has the length 2, expected 1",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_vector_costs_its_file_which_keeps_its_earlier_version(
    url: str, vault: Path, connection: Connection, fault: str
) -> None:
    ingest(url, vault)
    old = [row for row in content(connection) if row[0] == "b.md"]
    for name in "abc":
        (vault / f"{name}.md").write_text(f"# Note {name}\n\nEdited note {name}.\n", encoding="utf-8")
    report = ingest(url, vault, Faulty(fault))
    assert report.failed == [("b.md", FAULTS[fault])]
    assert counts(report) == {"updated": 2, "failed": 1}
    assert [row for row in content(connection) if row[0] == "b.md"] == old
    assert counts(ingest(url, vault)) == {"updated": 1, "skipped": 2}


def test_a_wrong_vector_for_an_unchanged_document_costs_its_file(url: str, vault: Path) -> None:
    ingest(url, vault)
    report = ingest(url, vault, Faulty("too few", "other"))
    assert report.failed == [("b.md", FAULTS["too few"])]
    assert counts(report) == {"embedded": 2, "failed": 1}


def test_in_partial_failure_keeps_old_version(
    url: str, vault: Path, connection: Connection, settings: Any
) -> None:
    class Requests(FakeLexicalEmbedder):
        """Embeds in requests of four texts; of the second version the second one fails."""

        def embed_documents(self, items: Sequence[EmbeddingInput]) -> list[Vector]:
            vectors: list[Vector] = []
            for start in range(0, len(items), 4):
                if start and any("version two" in item.content for item in items):
                    raise InternalError("the server says 500")
                vectors += super().embed_documents(items[start : start + 4])
            return vectors

    def sections(text: str, number: int) -> str:
        return "".join(f"## S{i}\n\n" + text * 150 + "\n\n" for i in range(number))

    def texts() -> list[str]:
        return [row[5] for row in content(connection) if row[0] == "note.md"]

    (vault / "note.md").write_text(sections("version one text. ", 12), encoding="utf-8")
    assert counts(ingest(url, vault, Requests(), chunks_in_memory=16)) == {"added": 4}
    old = [row for row in content(connection) if row[0] == "note.md"]
    assert len(old) == 12
    (vault / "note.md").write_text(sections("version two text. ", 5), encoding="utf-8")
    (vault / "a.md").write_text("Changed.\n", encoding="utf-8")
    report = ingest(url, vault, Requests(), chunks_in_memory=16)
    assert report.failed == [("note.md", "the server says 500")]
    assert counts(report) == {"updated": 1, "skipped": 2, "failed": 1}
    assert [row for row in content(connection) if row[0] == "note.md"] == old
    found = Service(settings, Database(url)).search("version text", top_k=20).results
    assert {hit.content.count("version two") for hit in found if hit.source == "note.md"} == {0}
    assert counts(ingest(url, vault)) == {"updated": 1, "skipped": 3}
    assert [text.count("version two") > 0 for text in texts()] == [True] * 5
    assert not any("version one" in text for text in texts())


# Batches -------------------------------------------------------------------------------------------


class Batches(Counting):
    """Remembers the texts of each batch."""

    def __init__(self, model: str = "fake-lexical-v1") -> None:
        super().__init__(model)
        self.batches: list[list[str]] = []

    def embed_documents(self, items: Sequence[EmbeddingInput]) -> list[Vector]:
        self.batches.append([item.content for item in items])
        return super().embed_documents(items)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Forty notes of very different length, one of them with more chunks than a small batch."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    for number in range(39):
        text = f"Word{number} " * (1 + number * 37 % 23)
        (folder / f"n{number:02}.md").write_text(f"# N{number}\n\n{text}\n", encoding="utf-8")
    sections = (f"## S{n}\n\n" + f"Sentence number {n} of the text. " * (20 + n) + "\n\n" for n in range(9))
    (folder / "long.md").write_text("".join(sections), encoding="utf-8")
    return folder


@pytest.mark.parametrize("stored", [False, True], ids=["new documents", "stored documents"])
def test_texts_of_many_files_are_embedded_together_by_length_and_each_chunk_gets_its_vector(
    url: str, mixed: Path, connection: Connection, stored: bool
) -> None:
    if stored:
        ingest(url, mixed)
    embedder = Batches("other")
    ingest(url, mixed, embedder, chunks_in_memory=64)
    batches = [batch for batch in embedder.batches if batch]
    assert sum(map(len, batches)) == 48
    assert 3 <= len(batches) <= 12
    assert max(map(len, batches)) <= 16 + 9
    for batch in batches:
        assert batch == sorted(batch, key=len)
    for row in rows(
        connection,
        "select c.content, c.heading_path, c.relative_path, c.tags, c.wikilinks,"
        " e.embedding::real[] as stored from rag.chunks as c join rag.embeddings as e on e.chunk_id = c.id"
        " where e.embedding_model = 'other'",
    ):
        vector = row.pop("stored")
        expected = FakeLexicalEmbedder().embed_documents([EmbeddingInput(**row)])[0]
        assert vector == pytest.approx(list(expected), abs=1e-6), row["relative_path"]


def test_the_memory_of_a_run_changes_nothing_of_its_result(
    url: str, mixed: Path, connection: Connection, server: Any, template: str,
    rag: Callable[..., CompletedProcess[str]],
) -> None:  # fmt: skip
    done = rag("ingest", str(mixed), RAG_INGEST_CHUNKS="4")
    assert done.returncode == 0, done.stderr
    fresh = server.create(template)
    try:
        ingest(fresh, mixed)
        with psycopg.connect(fresh) as other:
            assert content(other) == content(connection)
    finally:
        server.drop(fresh)
    for wrong in ("3", "1000001", "x"):
        refused = rag("ingest", str(mixed), RAG_INGEST_CHUNKS=wrong)
        assert refused.returncode == 2
        assert f"RAG_INGEST_CHUNKS={wrong}" in refused.stderr


# Reuse ---------------------------------------------------------------------------------------------


def test_a_renamed_folder_computes_nothing_for_a_model_that_reads_no_folder(
    url: str, mixed: Path, connection: Connection
) -> None:
    ingest(url, mixed.parent, ContentOnly("content-only"))
    before = connection.execute("select embedding::text from rag.embeddings order by id").fetchall()
    mixed.rename(mixed.parent / "renamed")
    embedder = ContentOnly("content-only")
    report = ingest(url, mixed.parent, embedder)
    assert counts(report) == {"moved": 40}
    assert embedder.computed == report.run["embeddings_written"] == 0
    assert report.run["embeddings_reused"] == 48
    after = connection.execute("select embedding::text from rag.embeddings").fetchall()
    assert sorted(after) == sorted(before)


def test_switching_models_forth_and_back_computes_nothing_again(url: str, mixed: Path) -> None:
    ingest(url, mixed, Counting("one"))
    assert ingest(url, mixed, Counting("two")).run["embeddings_written"] == 48
    for model in ("one", "two", "one"):
        embedder = Counting(model)
        report = ingest(url, mixed, embedder)
        assert embedder.computed == report.run["embeddings_written"] == 0
        assert counts(report) == {"skipped": 40}
