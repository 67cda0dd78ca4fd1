"""`rag watch` as a process: what changes in a vault arrives in the index, whatever happens meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import VARIABLES, embedded_home

from pyrag import watching
from pyrag.db import Database
from pyrag.embedded import EmbeddedServer
from pyrag.errors import DatabaseUnavailable, InternalError, InvalidRequest, VaultBusy

Connection = psycopg.Connection[Any]
# a shell that runs in the background hands on an ignored Ctrl-C
MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    " from pyrag.cli import main; main()"
)
DEADLINE = 20.0


class Watch:
    """A running `rag watch`, whose output goes to files."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self._out, self._err = out, err

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8")

    def until(self, what: str, happened: Callable[[], bool]) -> None:
        """Waits for something, while the process must live."""
        deadline = time.monotonic() + DEADLINE
        while not happened():
            assert self.process.poll() is None, f"ended: {self.err}"
            assert time.monotonic() < deadline, f"not within {DEADLINE} s: {what}\n{self.out}\n{self.err}"
            time.sleep(0.05)


@contextmanager
def watched(url: str, vault: Path, folder: Path) -> Iterator[Watch]:
    """`rag watch` on a vault, ended with SIGTERM: exit code 130, no traceback."""
    out, err = folder / "out.txt", folder / "err.txt"
    shell = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "watch", str(vault)],
            stdout=stdout,
            stderr=stderr,
            cwd="/",
            env={**shell, "DATABASE_URL": url, "EMBEDDING_PROVIDER": "fake", "LLM_PROVIDER": "fake"},
        )
    watch = Watch(process, out, err)
    try:
        yield watch
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 130
        assert watch.err.endswith("interrupted\n")
        assert "Traceback" not in watch.err
    finally:
        process.kill()
        process.wait()


def paths(connection: Connection) -> list[str]:
    rows = connection.execute('select relative_path from rag.documents order by relative_path collate "C"')
    return [path for (path,) in rows]


def text(connection: Connection, path: str) -> str:
    rows = connection.execute("select content from rag.chunks where relative_path = %s", [path])
    return "\n".join(content for (content,) in rows)


def runs(connection: Connection) -> int:
    row = connection.execute("select count(*) from rag.ingest_runs").fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """Two notes, in a vault below a hidden folder."""
    folder = tmp_path / ".hidden" / "vault"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.md").write_text("# A\n\nText of a.\n", encoding="utf-8")
    (folder / "sub" / "b.md").write_text("# B\n\nText of b.\n", encoding="utf-8")
    return folder


def test_changes_of_every_kind_arrive_and_other_files_start_no_run(
    url: str, vault: Path, tmp_path: Path, connection: Connection
) -> None:
    with watched(url, vault, tmp_path) as watch:
        watch.until("first run", lambda: paths(connection) == ["a.md", "sub/b.md"])
        watch.until("report", lambda: "documents: 2 added" in watch.out)
        (vault / "a.md").write_text("# A\n\nEdited.\n", encoding="utf-8")
        watch.until("edit", lambda: "Edited" in text(connection, "a.md"))
        (vault / "sub" / "c.md").write_text("New.\n", encoding="utf-8")
        watch.until("new note", lambda: "sub/c.md" in paths(connection))
        (vault / "sub").rename(vault / "other")
        watch.until("folder", lambda: paths(connection) == ["a.md", "other/b.md", "other/c.md"])
        (vault / "other" / "d.md").write_text("In a renamed folder.\n", encoding="utf-8")
        watch.until("note in it", lambda: "other/d.md" in paths(connection))
        (vault / "a.md").unlink()
        watch.until("deletion", lambda: paths(connection) == ["other/b.md", "other/c.md", "other/d.md"])
        watch.until("report", lambda: ", 1 deleted" in watch.out)
        before, said = runs(connection), (watch.out, watch.err)
        (vault / ".obsidian").mkdir()
        (vault / ".obsidian" / "workspace.md").write_text("x", encoding="utf-8")
        (vault / "picture.png").write_bytes(b"x")
        time.sleep(2.0)
        assert (runs(connection), watch.out, watch.err) == (before, *said)
    assert "2 moved" in watch.out
    assert watch.err.startswith(f"watching {vault}; end with Ctrl-C\n")


def test_withheld_deletions_are_said_and_the_watch_goes_on(
    url: str, vault: Path, tmp_path: Path, connection: Connection
) -> None:
    with watched(url, vault, tmp_path) as watch:
        watch.until("first run", lambda: len(paths(connection)) == 2)
        (vault / "a.md").unlink()
        (vault / "sub" / "b.md").unlink()
        watch.until("note", lambda: "2 deletions withheld (no file was found at all)" in watch.err)
        assert len(paths(connection)) == 2
        (vault / "a.md").write_text("Back.\n", encoding="utf-8")
        watch.until("next change", lambda: paths(connection) == ["a.md"])


def test_a_vault_that_goes_away_and_comes_back_as_another_folder_is_watched_again(
    url: str, vault: Path, tmp_path: Path, connection: Connection
) -> None:
    with watched(url, vault, tmp_path) as watch:
        watch.until("first run", lambda: len(paths(connection)) == 2)
        copy = tmp_path / "copy"
        shutil.copytree(vault, copy)
        shutil.rmtree(vault)
        watch.until("note", lambda: f"{vault} is not there; waiting for it" in watch.err)
        (copy / "c.md").write_text("New.\n", encoding="utf-8")
        copy.rename(vault)
        watch.until("new note", lambda: paths(connection) == ["a.md", "c.md", "sub/b.md"])
        (vault / "d.md").write_text("New too.\n", encoding="utf-8")
        watch.until("change in the new folder", lambda: "d.md" in paths(connection))


def test_a_watch_survives_the_loss_of_its_connections_and_a_restart_of_the_server(tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    vault.mkdir()
    for number in range(400):
        (vault / f"n{number}.md").write_text(f"# N{number}\n\nText {number}.\n" * 30, encoding="utf-8")
    with embedded_home() as home:
        server = EmbeddedServer(home)
        url = server.start()
        Database(url).install()
        with watched(url, vault, tmp_path) as watch:
            with psycopg.connect(url, autocommit=True) as connection:
                watch.until("first notes", lambda: bool(paths(connection)))
                killed = connection.execute(
                    "select pg_terminate_backend(a.pid) from pg_stat_activity as a"
                    " where a.application_name = 'pyrag' and a.pid <> pg_backend_pid()"
                ).fetchall()
                assert killed
                watch.until("all notes", lambda: len(paths(connection)) == 400)
            watch.until("note", lambda: "back in step" in watch.err)
            assert "error [database_unavailable]" in watch.err
            server.stop()
            (vault / "late.md").write_text("Written while the server was away.\n", encoding="utf-8")
            watch.until("note", lambda: watch.err.count("error [database_unavailable]") == 2)
            assert server.start() == url
            with psycopg.connect(url, autocommit=True) as connection:
                watch.until("late note", lambda: "late.md" in paths(connection))
                rows = connection.execute("select r.status, r.error_summary from rag.ingest_runs as r")
                assert ("failed", "interrupted") in rows.fetchall()
            watch.until("note", lambda: watch.err.count("back in step") == 2)


@pytest.mark.parametrize("moment", ["idle", "while another run holds the vault"])
def test_ctrl_c_ends_a_watch_without_traceback(
    url: str, vault: Path, tmp_path: Path, connection: Connection, moment: str
) -> None:
    if moment != "idle":
        connection.execute("select rag.begin_run(%s, 'fake', 'fake-lexical-v1', 1024)", [str(vault)])
    with watched(url, vault, tmp_path) as watch:
        if moment == "idle":
            watch.until("first run", lambda: "2 added" in watch.out)
        else:
            watch.until("note", lambda: "error [vault_busy]" in watch.err)
        watch.process.send_signal(signal.SIGINT)
        assert watch.process.wait(timeout=20) == 130


# The loop itself, in this process


class End(Exception):
    """Stops the loop of a test."""


def test_an_error_of_a_run_is_said_and_the_next_change_tries_again(
    vault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_FIRST_PAUSE", 0.01)
    steps: list[Exception | None] = [
        VaultBusy("busy"),
        VaultBusy("busy"),
        DatabaseUnavailable("away"),
        None,
        InvalidRequest("no notes"),
        OSError("disk"),
        InternalError("odd"),
        End(),
    ]
    notes: list[str] = []

    def run() -> None:
        (vault / "a.md").write_text(f"{len(steps)}\n", encoding="utf-8")  # so that there is a next change
        step = steps.pop(0)
        if step is not None:
            raise step

    with pytest.raises(End):
        watching.watch_vault(vault, run, notes.append)
    assert notes == [
        "error [vault_busy]: busy; trying again",
        "error [database_unavailable]: away; trying again",
        "back in step",
        "error [invalid_request]: no notes",
        "error: disk",
        "error [internal_error]: odd",
    ]


def test_a_note_written_during_the_first_run_is_not_missed(vault: Path) -> None:
    calls: list[float] = []

    def run() -> None:
        calls.append(time.monotonic())
        if len(calls) > 1:
            raise End
        (vault / "late.md").write_text("Written after the scan.\n", encoding="utf-8")

    with pytest.raises(End):
        watching.watch_vault(vault, run, print)
    assert calls[1] - calls[0] < DEADLINE


def test_there_is_a_full_look_from_time_to_time(vault: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK_AGAIN_SECONDS", 0.2)
    calls: list[float] = []

    def run() -> None:
        calls.append(time.monotonic())
        if len(calls) > 2:
            raise End

    with pytest.raises(End):
        watching.watch_vault(vault, run, print)


def test_a_folder_that_the_system_cannot_watch_is_an_error_with_a_way_out(
    vault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> Iterator[set[object]]:
        raise OSError("OS file watch limit reached.")
        yield set()

    monkeypatch.setattr(watching, "watch", refuse)
    with pytest.raises(InternalError, match="cannot be watched: OS file watch limit") as error:
        watching.watch_vault(vault, lambda: None, print)
    assert "rag ingest" in error.value.hint


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("a.md", True),
        ("sub/B.MD", True),
        ("folder", True),
        ("gone.png", True),  # it may have been a folder
        ("there.png", False),
        (".obsidian/workspace.json", False),
        ("sub/.trash/a.md", False),
        (".hidden.md", False),
    ],
)
def test_only_what_may_be_a_note_or_folder_counts(vault: Path, path: str, counts: bool) -> None:
    (vault / "there.png").write_bytes(b"x")
    assert watching._counts(vault, f"{vault}/{path}") is counts
