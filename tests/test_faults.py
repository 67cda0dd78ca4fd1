"""Faults while `rag ingest` is at work, with real processes: nothing is torn, the next run ends in step.

All on an embedded server of this file's own, with fsync on, because some faults end the server. Its data is
on a small file system of its own where one can be mounted, so that a disk can be full.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import VARIABLES, Server, command, embedded_home, fast_temp

from pyrag.db import Database, IngestSession
from pyrag.embedded import EmbeddedServer
from pyrag.embeddings import FakeLexicalEmbedder
from pyrag.ingest import ingest_vault
from pyrag.models import EmbeddingInput, Vector

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: processes are found in /proc")

VERSION = int(os.environ.get("PYRAG_TEST_POSTGRES", "18"))
SPACE = 1 << 30  # bytes of the file system with the server's data
MIB = 1 << 20
WORDS = ["pump", "valve", "bearing", "grease", "replica", "lag", "failover", "backup", "restore", "index"]
WORDS += ["invoice", "customer", "escalation", "shift", "handover", "release", "rollback", "runbook"]
CHINESE = "客户工单升级流程备份恢复索引清理发票审计发布回滚证书轮换值班手册主从延迟故障切换压力阀门轴承润滑"

# What is stored, by content: no number, no time.
STATE = (
    "select d.vault_path, d.relative_path, d.file_path, d.content_hash, d.frontmatter::text, d.warnings,"
    " d.scope, d.size_bytes, d.mtime_ns from rag.documents as d"
    ' order by d.vault_path collate "C", d.relative_path collate "C"',
    "select d.relative_path, c.chunk_index, c.content, c.heading_path, c.tags, c.wikilinks, c.token_count,"
    " c.content_hash, c.metadata::text, c.frontmatter::text, c.file_path, c.relative_path, c.scope"
    " from rag.documents as d join rag.chunks as c on c.document_id = d.id"
    ' order by d.relative_path collate "C", c.chunk_index',
    "select c.relative_path, c.chunk_index, e.embedding_provider, e.embedding_model, e.embedding_dim,"
    " encode(sha256(public.vector_send(e.embedding)), 'hex'), e.input_hash, e.scope"
    " from rag.chunks as c join rag.embeddings as e on e.chunk_id = c.id"
    ' order by c.relative_path collate "C", c.chunk_index, e.embedding_provider collate "C"',
)

# The server process of a run.
BACKEND = (
    "select a.pid from pg_stat_activity as a"
    " where a.datname = current_database() and a.application_name = 'pyrag'"
)

Rows = list[tuple[Any, ...]]
Process = subprocess.Popen[str]


class OtherEmbedder(FakeLexicalEmbedder):
    """Another provider, for vectors that a run of `fake` has to leave alone."""

    provider = "other"
    model = "o"


# The vault ---------------------------------------------------------------------------------------


def note(chance: random.Random, number: int) -> str:
    """A note of one to six sections of very different length, in one of two languages."""
    lines = [f"---\ntitle: Note {number}\ntags: [t{number % 7}]\n---", f"# Note {number}", ""]
    for section in range(chance.randint(1, 6)):
        lines += [f"## Section {section}", "", f"See [[Note {number - 1}]] #inline{section}.", ""]
        for _ in range(chance.choice([1, 1, 2, 4, 12])):
            if number % 2:
                lines.append(" ".join(chance.choices(WORDS, k=chance.randint(5, 40))) + ".")
            else:
                lines.append("".join(chance.choices(CHINESE, k=chance.randint(5, 60))) + "。")
        lines.append("")
    return "\n".join(lines)


def write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def first_notes() -> dict[str, str]:
    """180 notes in four folders; every ninth has the text of the one before."""
    chance = random.Random(5)
    files: dict[str, str] = {}
    text = ""
    for number in range(180):
        text = text if number % 9 == 8 else note(chance, number)
        files[f"{'abcd'[number % 4]}/n{number:03}.md"] = text
    return files


def change_notes(folder: Path) -> None:
    """Edits, renames, deletions and new notes, all in one go."""
    chance = random.Random(6)
    notes = sorted(path for path in folder.rglob("*.md"))
    for number, path in enumerate(notes):
        if number % 5 == 0:
            later = " ".join(chance.choices(WORDS, k=60))
            path.write_text(path.read_text(encoding="utf-8") + f"\n## Later\n\n{later}\n", encoding="utf-8")
        elif number % 5 == 1:
            (folder / "moved").mkdir(exist_ok=True)
            path.rename(folder / "moved" / path.name)
        elif number % 10 == 2:
            path.unlink()
    write(folder, {f"new/n{number}.md": note(chance, 1000 + number) for number in range(40)})
    twin = (folder / "new" / "n1.md").read_text(encoding="utf-8")
    write(folder, {"new/twin.md": twin, "new/empty.md": "", "new/odd.md": "---\na: [\n---\n# Odd\n\nText.\n"})


def tree(folder: Path) -> str:
    """A hash of all names, modes, times and bytes below a folder."""
    digest = hashlib.sha256()
    for path in sorted([folder, *folder.rglob("*")]):
        info = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        digest.update(f"{path} {info.st_mode} {info.st_mtime_ns} {len(data)}\n".encode() + data)
    return digest.hexdigest()


# The server --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Own:
    """An embedded server that tests may kill; `space` is the file system of its data, if it is its own."""

    home: Path
    space: Path | None

    @property
    def embedded(self) -> EmbeddedServer:
        return EmbeddedServer(self.home, version=VERSION)

    @property
    def server(self) -> Server:
        """The server, started if need be."""
        return Server(self.embedded.start())


@contextmanager
def small_file_system() -> Iterator[Path | None]:
    """An empty file system in memory, or None where this process may mount none."""
    folder = Path(tempfile.mkdtemp(prefix="pyrag-test-", dir=fast_temp()))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SPACE},mode=755", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    with small_file_system() as space:
        if space is None:
            with embedded_home() as home:
                yield Own(home, None)
            return
        own = Own(space / "home", space)
        own.home.mkdir(mode=0o755)
        try:
            yield own
        finally:
            own.embedded.stop()
            shutil.rmtree(own.home)


@dataclass(frozen=True)
class Before:
    """A changed vault, the database as it was before the change, and what an undisturbed run makes of it."""

    vault: Path
    template: str
    state: list[Rows]
    run: dict[str, Any]
    steps: int  # documents that the run has to store or embed, before it deletes
    tree: str


def rows(url: str, query: str, *parameters: object) -> Rows:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query.encode(), parameters or None).fetchall()


def state(url: str) -> list[Rows]:
    """All documents, chunks and embeddings by content, whatever their numbers and times."""
    return [rows(url, query) for query in STATE]


@pytest.fixture(scope="module")
def before(own: Own, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Before]:
    """Of the first notes a third has been embedded by `fake` and all by another provider; then they change.

    So a run of `fake` has every kind of thing to do: add, change, move, embed, skip and delete.
    """
    server = own.server
    url = server.create()
    database = Database(url)
    database.install()
    vault = tmp_path_factory.mktemp("faults") / "vault"
    notes = first_notes()
    write(vault, dict(list(notes.items())[:60]))
    ingest_vault(vault, database, FakeLexicalEmbedder())
    write(vault, notes)
    ingest_vault(vault, database, OtherEmbedder())
    change_notes(vault)
    # Postgres copies a sequence without the values that it has put aside in its log: after a crash the copy
    # would give them again.
    rows(
        url,
        "select setval(format('%I.%I', s.schemaname, s.sequencename)::regclass, s.last_value)"
        " from pg_sequences as s where s.schemaname = 'rag'",
    )
    name = url_name(url)
    undisturbed = server.create(name)
    run = ingest_vault(vault, Database(undisturbed), FakeLexicalEmbedder()).run
    assert run["status"] == "success"
    kinds = ("added", "updated", "moved", "embedded", "deleted")
    assert all(run[f"documents_{kind}"] > 10 for kind in (*kinds, "skipped")), run
    assert problems(undisturbed) == []
    steps = sum(run[f"documents_{kind}"] for kind in kinds[:-1])
    yield Before(vault, name, state(undisturbed), run, steps, tree(vault))
    server = own.server
    server.drop(undisturbed)
    server.drop(url)


def url_name(url: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])


@pytest.fixture
def url(own: Own, before: Before) -> Iterator[str]:
    """The database as it was before the vault changed, a copy for each test."""
    url = own.server.create(before.template)
    yield url
    own.server.drop(url)


def problems(url: str) -> Rows:
    return rows(url, "select f.problem, f.place from rag.find_inconsistencies() as f")


def newest(url: str) -> tuple[int, str, str | None]:
    """Number, status and error of the newest run."""
    found = rows(url, "select r.id, r.status, r.error_summary from rag.list_runs(1) as r")
    return found[0][0], found[0][1], found[0][2]


# Runs --------------------------------------------------------------------------------------------


def start(vault: Path, **environment: str) -> Process:
    """`rag ingest` as a process; Ctrl-C reaches it even where the shell has it ignored."""
    shell = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    return subprocess.Popen(
        [sys.executable, "-c", f"{code}; from pyrag.cli import main; main()", "ingest", str(vault)],
        env={**shell, "EMBEDDING_PROVIDER": "fake", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )


def wait_until(process: Process, url: str, done: int) -> None:
    """Returns once the run has done so many documents (-1: once it has begun), or its process has ended."""
    deadline = time.monotonic() + 60
    with psycopg.connect(url, autocommit=True) as connection:
        while process.poll() is None:
            found = connection.execute(
                "select (select count(*) from rag.ingest_run_items as i"
                " where i.run_id = r.id and i.status = 'done' and i.action <> 'skip')"
                " from rag.ingest_runs as r where r.id > 2"
            ).fetchone()
            if found is not None and found[0] >= done:
                return
            assert time.monotonic() < deadline, "the run does not get on"
            time.sleep(0.002)


def wait_for_end(url: str) -> None:
    """Returns once the server has noticed that the run's connection is gone."""
    deadline = time.monotonic() + 20
    while rows(url, BACKEND):
        assert time.monotonic() < deadline, "the run's connection is still there"
        time.sleep(0.01)


def end(process: Process) -> tuple[int, str]:
    """Exit code and stderr of a process, which prints no traceback."""
    _, stderr = process.communicate(timeout=120)
    assert "Traceback" not in stderr
    return process.returncode, stderr


def check_nothing_is_torn(url: str, before: Before, allowed: Sequence[str] = ("failed", "dead")) -> None:
    """The database is consistent but for a dead run; the vault is untouched."""
    run_id, status, _ = newest(url)
    if run_id > 2:
        assert status in allowed
    dead = [("a run counts as running, but its process is gone", f"run {run_id}")]
    assert problems(url) == (dead if status == "dead" else [])
    assert tree(before.vault) == before.tree


def check_next_run(url: str, before: Before, ingest: Callable[[], dict[str, Any]] | None = None) -> None:
    """The next run does exactly what is left, and ends in the state of the undisturbed run."""
    disturbed = newest(url)
    stored, deleted, computed = rows(
        url,
        "select count(*) filter (where i.action not in ('skip', 'delete') and i.status = 'done'),"
        " count(*) filter (where i.action = 'delete' and i.status = 'done'),"
        " coalesce(sum(i.embeddings_written), 0) from rag.ingest_run_items as i where i.run_id > 2",
    )[0]
    if ingest is not None:
        run = ingest()
    else:
        run = ingest_vault(before.vault, Database(url), FakeLexicalEmbedder()).run
    assert run["status"] == "success"
    assert run["documents_skipped"] == before.run["documents_skipped"] + stored
    assert run["documents_deleted"] == before.run["documents_deleted"] - deleted
    assert run["embeddings_written"] == before.run["embeddings_written"] - computed
    assert problems(url) == []
    assert state(url) == before.state
    assert tree(before.vault) == before.tree
    if disturbed[1] == "dead":
        closed = rows(
            url,
            "select r.status, r.error_summary, r.finished_at is null"
            " from rag.ingest_runs as r where r.id = %s",
            disturbed[0],
        )
        assert closed == [("failed", "interrupted", False)]


def points(seed: int, number: int, before: Before, share: float = 0.8) -> list[int]:
    """So many numbers of documents, one from each equal part of this share of the run."""
    chance = random.Random(seed)
    return [int(before.steps * share * (part + chance.random()) / number) for part in range(number)]


# The faults --------------------------------------------------------------------------------------


def test_two_databases_with_one_difference_are_told_apart(url: str, before: Before) -> None:
    ingest_vault(before.vault, Database(url), FakeLexicalEmbedder())
    assert state(url) == before.state
    changes = (
        "update rag.documents set warnings = '{x}' where id = (select min(id) from rag.documents)",
        "update rag.chunks set tags = '{x}' where id = (select min(id) from rag.chunks)",
        "update rag.embeddings set embedding = embedding + embedding"
        " where id = (select min(id) from rag.embeddings)",
        "delete from rag.embeddings where id = (select max(id) from rag.embeddings)",
    )
    for change in changes:
        with psycopg.connect(url) as connection:
            connection.execute(change.encode())
            changed = [connection.execute(query.encode()).fetchall() for query in STATE]
            assert changed != before.state
            connection.rollback()


@pytest.mark.parametrize("part", range(20))
def test_a_kill_of_the_command_loses_nothing(url: str, before: Before, part: int) -> None:
    """Parts 0 to 2 while the process starts, then from the plan to the last document; 19 after deletions."""
    chance = random.Random(100 + part)
    process = start(before.vault, DATABASE_URL=url)
    if part < 3:
        time.sleep(chance.random() * 0.4)
    else:
        wait_until(process, url, [-1, *points(1, 15, before, 1.0), before.steps + 1][part - 3])
        time.sleep(chance.random() * 0.01)
    process.kill()
    end(process)
    wait_for_end(url)
    run_id, status, _ = newest(url)
    if process.returncode == -signal.SIGKILL and run_id > 2 and part < 18:
        assert status == "dead"
    check_nothing_is_torn(url, before, ("dead", "success"))
    check_next_run(url, before)


@pytest.mark.parametrize("part", range(3))
def test_a_terminated_connection_is_a_clear_error(url: str, before: Before, part: int) -> None:
    process = start(before.vault, DATABASE_URL=url)
    wait_until(process, url, points(2, 3, before)[part])
    ended = rows(url, f"select pg_terminate_backend(pid) from ({BACKEND}) as b")
    assert ended == [(True,)]
    code, stderr = end(process)
    assert code == 1
    assert "error [database_unavailable]: The database went away" in stderr
    assert newest(url)[1:] == ("failed", "interrupted")
    check_nothing_is_torn(url, before, ("failed",))
    check_next_run(url, before)


@pytest.mark.parametrize("part", range(2))
def test_a_killed_backend_restarts_the_server_and_loses_nothing(
    own: Own, url: str, before: Before, part: int
) -> None:
    process = start(before.vault, DATABASE_URL=url)
    wait_until(process, url, points(3, 2, before)[part])
    os.kill(rows(url, BACKEND)[0][0], signal.SIGKILL)
    code, stderr = end(process)
    assert code == 1
    assert "error [database_unavailable]" in stderr
    wait_for_server(own, url)
    check_nothing_is_torn(url, before)
    check_next_run(url, before)


def wait_for_server(own: Own, url: str) -> None:
    """Returns once the server takes connections again: it restarts itself, or is started."""
    deadline = time.monotonic() + 60
    while True:
        try:
            own.embedded.start()
            rows(url, "select 1")
            return
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def embedded(own: Own, before: Before) -> dict[str, str]:
    """The variables with which commands use the server's own database, as it was before the change."""
    server = own.server
    server.execute("drop database if exists pyrag with (force)")
    server.execute(f'create database pyrag template "{before.template}"')
    if VERSION == 18:
        return {"PYRAG_HOME": str(own.home)}
    return {"DATABASE_URL": server.named("pyrag")}  # commands start no other version themselves


@pytest.mark.parametrize("part", range(2))
def test_a_killed_server_is_started_by_the_next_command_and_loses_nothing(
    own: Own, before: Before, embedded: dict[str, str], part: int
) -> None:
    url = own.server.named("pyrag")
    process = start(before.vault, **embedded)
    wait_until(process, url, points(4, 2, before)[part])
    kill_server(own)
    code, stderr = end(process)
    assert code == 1
    assert "error [database_unavailable]" in stderr
    log = own.embedded.status().log_file
    said = log.stat().st_size
    if VERSION != 18:
        own.embedded.start()
    assert command("")("search", "pump", **embedded).returncode == 0
    assert "automatic recovery in progress" in log.read_text(encoding="utf-8")[said:]
    check_nothing_is_torn(url, before, ("dead",))
    check_next_run(url, before, lambda: ingest(before.vault, embedded))


def ingest(vault: Path, environment: dict[str, str]) -> dict[str, Any]:
    """The report of `rag ingest`."""
    done = command("")("ingest", str(vault), "--json", **environment)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def kill_server(own: Own) -> None:
    """Kills the postmaster, then all its children."""
    pid = own.embedded.status().pid
    assert pid
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    os.kill(pid, signal.SIGKILL)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize("part", range(2))
def test_an_interrupted_run_is_closed_and_goes_on_next_time(
    url: str, before: Before, number: signal.Signals, part: int
) -> None:
    process = start(before.vault, DATABASE_URL=url)
    wait_until(process, url, points(5, 2, before)[part])
    process.send_signal(number)
    code, stderr = end(process)
    assert code == 130
    assert stderr.endswith("interrupted\n")
    assert newest(url)[1:] == ("failed", "interrupted")
    check_nothing_is_torn(url, before, ("failed",))
    check_next_run(url, before)


def test_an_interrupt_in_the_middle_of_a_query_closes_the_run(url: str, before: Before) -> None:
    """A signal may come when a query has been sent and nobody waits for its answer yet."""
    sessions: list[IngestSession] = []

    class Watched(Database):
        @contextmanager
        def ingest_session(self) -> Iterator[IngestSession]:
            with super().ingest_session() as session:
                sessions.append(session)
                yield session

    class Interrupted(FakeLexicalEmbedder):
        def embed_documents(self, items: Sequence[EmbeddingInput]) -> list[Vector]:
            sessions[0]._connection.pgconn.send_query(b"select pg_sleep(0.5)")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest_vault(before.vault, Watched(url), Interrupted())
    assert newest(url)[1:] == ("failed", "interrupted")
    wait_for_end(url)
    check_next_run(url, before)


# A full disk -------------------------------------------------------------------------------------


@contextmanager
def space_left(own: Own, left: int) -> Iterator[None]:
    """All but so many bytes of the server's file system are taken."""
    assert own.space is not None
    ballast = own.space / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(own.space).free - left)
    try:
        yield
    finally:
        ballast.unlink()


def fill_log_segment(url: str, room: int) -> None:
    """Leaves so many bytes in the last segment of the write-ahead log that there is."""
    here = "pg_current_wal_insert_lsn()"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("checkpoint")
        while connection.execute(
            f"select 1 from pg_ls_waldir() as w where w.name > pg_walfile_name({here})"
            " and w.name ~ '^[0-9A-F]{24}$'"
        ).fetchone():
            connection.execute("select pg_switch_wal()")
            connection.execute("select pg_logical_emit_message(false, 'test', 'x')")
        connection.execute(
            "select pg_logical_emit_message(false, 'test', repeat('x', greatest(0, pg_size_bytes("
            f"current_setting('wal_segment_size')) - (pg_walfile_name_offset({here})).file_offset"
            f" - {room})::integer))"
        )


@contextmanager
def file_size_limit(own: Own, url: str) -> Iterator[None]:
    """No file of a new connection may grow beyond 17 MiB; the vectors have that size already."""
    limit = 17 * MIB
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("alter table rag.embeddings set (toast.autovacuum_enabled = off)")
        connection.execute(
            "with d as (insert into rag.documents (vault_path, file_path, relative_path, content_hash)"
            " values ('/big', '/big/a', 'a', 'a') returning id), c as (insert into rag.chunks (document_id,"
            " chunk_index, content, file_path, relative_path, content_hash)"
            " select d.id, n, '', '/big/a', 'a', 'a' from d, generate_series(0, 3999) as g (n) returning id)"
            " insert into rag.embeddings (chunk_id, embedding_provider, embedding_model, embedding_dim,"
            " embedding) select c.id, 'big', 'b', 1024, array_fill(1, array[1024])::public.vector from c"
        )
        connection.execute("delete from rag.documents where vault_path = '/big'")  # the file stays large
    if not limit_files(own, limit):
        pytest.skip("NOT TESTED: this process may not limit the size of the server's files")
    try:
        yield
    finally:
        assert limit_files(own, "unlimited")


def limit_files(own: Own, limit: int | str) -> bool:
    """Whether files of the server's coming processes were limited; only its own user may do that."""
    status = own.embedded.status()
    owner = status.data_dir.stat()
    words = ["prlimit", "--pid", str(status.pid), f"--fsize={limit}:unlimited"]
    if os.geteuid() == 0:
        ids = ["--reuid", str(owner.st_uid), "--regid", str(owner.st_gid), "--clear-groups"]
        words = ["setpriv", *ids, *words]
    with suppress(FileNotFoundError):
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    return False


@pytest.mark.parametrize("full", ["data", "log", "file"])
def test_a_full_disk_is_a_clear_error_and_loses_nothing(
    own: Own, before: Before, url: str, full: str
) -> None:
    if full != "file" and own.space is None:
        pytest.skip("NOT TESTED: a full disk needs the right to mount a file system (run as root)")
    if full == "data":
        fill_log_segment(url, 12 * MIB)
        fault, codes, said = space_left(own, 2 * MIB), {1, 3}, "No space left on device"
    elif full == "log":  # which Postgres does not survive: it ends itself
        fill_log_segment(url, 3 * MIB)
        fault, codes, said = space_left(own, 10 * MIB), {1}, "error [database_unavailable]"
    else:
        fault, codes, said = file_size_limit(own, url), {1, 3}, "File too large"
    with fault:
        code, stderr = end(start(before.vault, DATABASE_URL=url))
    assert code in codes
    assert said in stderr
    wait_for_server(own, url)
    check_nothing_is_torn(url, before)
    check_next_run(url, before)
