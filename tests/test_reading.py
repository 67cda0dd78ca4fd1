"""Reading in processes: the same result, and no process that outlives its run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyrag import reading
from pyrag.db import Database
from pyrag.embeddings import FakeLexicalEmbedder
from pyrag.ingest import IngestReport, ingest_vault

ALL = (
    "select d.relative_path, d.content_hash, d.frontmatter, c.chunk_index, c.content, c.tags, c.wikilinks"
    " from rag.documents as d left join rag.chunks as c on c.document_id = d.id"
    ' order by d.relative_path collate "C", c.chunk_index'
)


@pytest.fixture
def large_vault(tmp_path: Path) -> Path:
    """Notes of more than the size from which processes are used."""
    folder = tmp_path / "vault"
    folder.mkdir()
    for number in range(300):
        text = (
            f"---\ntags: [t{number}]\n---\n# Note {number}\n\nSee [[Note {number - 1}]]. " + "Words. " * 700
        )
        (folder / f"n{number:03}.md").write_text(text, encoding="utf-8")
    (folder / "bad.md").write_bytes(b"40\xb0C")
    assert sum(path.stat().st_size for path in folder.iterdir()) > reading._WORTH_A_PROCESS
    return folder


def ingest(url: str, vault: Path) -> IngestReport:
    return ingest_vault(vault, Database(url), FakeLexicalEmbedder())


def test_processes_and_threads_store_the_same(
    url: str, large_vault: Path, monkeypatch: pytest.MonkeyPatch, server: Any, template: str
) -> None:
    report = ingest(url, large_vault)
    assert report.run["documents_added"] == 300
    assert [path for path, _ in report.failed] == ["bad.md"]
    other = server.create(template)
    try:
        monkeypatch.setattr(reading, "_WORTH_A_PROCESS", 1 << 60)
        assert ingest(other, large_vault).failed == report.failed
        with psycopg.connect(url) as one, psycopg.connect(other) as two:
            assert one.execute(ALL).fetchall() == two.execute(ALL).fetchall()
    finally:
        server.drop(other)


@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: children are found in /proc")
@pytest.mark.parametrize("victim", ["the run", "its reader"])
def test_a_kill_leaves_no_process_and_no_traceback(url: str, large_vault: Path, victim: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from pyrag.cli import main; main()", "ingest", str(large_vault)],
        env={**os.environ, "DATABASE_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with psycopg.connect(url, autocommit=True) as connection:
        deadline = time.monotonic() + 30
        while connection.execute("select count(*) from rag.documents").fetchone() == (0,):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    readers = [pid for pid in children(process.pid) if "spawn_main" in command_line(pid)]
    assert readers
    if victim == "the run":
        process.kill()
    else:
        os.kill(readers[0], signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr
    if victim == "its reader":
        assert process.returncode == 1
        assert "a process that reads notes was ended from outside" in stderr
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in readers):
        assert time.monotonic() < deadline, "a reading process is still there"
        time.sleep(0.05)
    assert ingest(url, large_vault).run["documents_failed"] == 1, "the bad file alone"


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
