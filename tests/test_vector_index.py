"""The approximate index: making, looking at, dropping and interrupting it, and what searches do with it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from subprocess import CompletedProcess
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from conftest import VARIABLES, Server
from falcon import testing
from typer.testing import CliRunner

from pyrag import cli_index
from pyrag.cli import app
from pyrag.cli_index import follow, parse_size
from pyrag.config import Settings
from pyrag.db import Database, Index, IndexSession
from pyrag.errors import DatabaseUnavailable, InternalError, InvalidRequest, VaultBusy
from pyrag.http import create_app
from pyrag.ingest import Silent
from pyrag.service import Service

Rag = Callable[..., CompletedProcess[str]]
Connection = psycopg.Connection[Any]
INDEX = Index("fake", "fake-lexical-v1", 1024)
CONFIG = "'fake', 'fake-lexical-v1', 1024"
ROWS = 1000
COLUMNS = [
    "index_name", "is_valid", "indexed_rows", "size_bytes", "checked_at", "questions", "top_k", "recall",
    "recall_low", "recall_high", "recall_between", "recall_between_low", "recall_between_high", "warning",
]  # fmt: skip

# Unit vectors around eight directions, always the same; three chunks lie in few/, the others in a/ and b/.
FILL = f"""
insert into rag.documents (vault_path, file_path, relative_path, content_hash)
select '/vault', '/vault/' || p.path, p.path, p.path
from (values ('a/note.md'), ('b/note.md'), ('few/note.md')) as p (path);
insert into rag.chunks (document_id, chunk_index, content, file_path, relative_path, content_hash)
select d.id, i, 'Text ' || i, d.file_path, d.relative_path, i::text
from generate_series(1, {ROWS}) as i
join rag.documents as d on d.relative_path = case
    when i <= 3 then 'few/note.md' when i % 2 = 0 then 'a/note.md' else 'b/note.md' end;
insert into rag.embeddings (
    chunk_id, embedding_provider, embedding_model, embedding_dim, embedding, scope, input_hash
)
select c.id, {CONFIG}, public.l2_normalize(array(
    select sin(c.chunk_index * (g % 8 + 1) * 12.9898) + 0.02 * sin(c.chunk_index::float8 * g * g)
    from generate_series(1, 1024) as g order by g
)::real[]::public.vector), d.vault_path, c.content_hash
from rag.chunks as c join rag.documents as d on c.document_id = d.id;
analyze rag.chunks, rag.embeddings;
"""


@pytest.fixture(scope="module")
def filled(server: Server, template: str) -> Iterator[str]:
    """The name of a database with vectors and no approximate index."""
    url = server.create(template)
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in FILL.split(";\n")[:-1]:
            connection.execute(statement.encode())
    yield urlsplit(url).path.lstrip("/")
    server.drop(url)


@pytest.fixture(scope="module")
def built(server: Server, filled: str) -> Iterator[str]:
    """The name of a database with vectors and a complete approximate index that was measured."""
    url = server.create(filled)
    ok(command(url)("db", "index", "create"))
    yield urlsplit(url).path.lstrip("/")
    server.drop(url)


@contextmanager
def copied(server: Server, name: str) -> Iterator[str]:
    url = server.create(name)
    yield url
    server.drop(url)


@pytest.fixture
def bare_url(server: Server, filled: str) -> Iterator[str]:
    with copied(server, filled) as url:
        yield url


@pytest.fixture
def built_url(server: Server, built: str) -> Iterator[str]:
    with copied(server, built) as url:
        yield url


def command(url: str) -> Rag:
    """The command in this process, which is quicker."""

    def run(*arguments: str, **environment: str) -> CompletedProcess[str]:
        words = ["--env-file", os.devnull, *arguments]
        done = CliRunner().invoke(app, words, env={"DATABASE_URL": url, **environment})
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture
def bare(bare_url: str) -> Rag:
    """The command on vectors without an approximate index."""
    return command(bare_url)


@pytest.fixture
def indexed(built_url: str) -> Rag:
    """The command on vectors with an approximate index."""
    return command(built_url)


@pytest.fixture
def sql(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """An autocommit connection to the database of the test's command."""
    name = "built_url" if "indexed" in request.fixturenames else "bare_url"
    with psycopg.connect(request.getfixturevalue(name), autocommit=True) as connection:
        yield connection


def ok(done: CompletedProcess[str], exit_code: int = 0) -> CompletedProcess[str]:
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done


def body(done: CompletedProcess[str], exit_code: int = 0) -> Any:
    return json.loads(ok(done, exit_code).stdout)


def rows(connection: Connection, query: str, parameters: list[Any] | None = None) -> list[Any]:
    return connection.execute(query.encode(), parameters).fetchall()


def indexes(connection: Connection) -> list[tuple[str, bool]]:
    """The approximate indexes that are there, valid or not."""
    return rows(connection, "select c.relname, i.indisvalid from pg_class as c join pg_index as i"
                " on i.indexrelid = c.oid where c.relname like 'idx_embeddings_hnsw%'")  # fmt: skip


def need_superuser(connection: Connection) -> None:
    if not rows(connection, "select r.rolsuper from pg_roles as r where r.rolname = current_user")[0][0]:
        pytest.skip("NOT TESTED: needs a superuser in TEST_DATABASE_URL, to change the catalogue")


def pretend_rows(connection: Connection, number: int) -> None:
    """As if the index held so many vectors."""
    need_superuser(connection)
    connection.execute("update pg_class set reltuples = %s where relname like 'idx_embeddings_hnsw%%'",
                       [number])  # fmt: skip


def record_recall(connection: Connection, recall: float) -> None:
    connection.execute("update rag.index_checks set recall = %s, recall_low = 0.83, recall_high = 0.94",
                       [recall])  # fmt: skip


def break_index(connection: Connection) -> None:
    """As an interrupted build leaves it."""
    need_superuser(connection)
    connection.execute("update pg_index as i set indisvalid = false from pg_class as c"
                       " where c.oid = i.indexrelid and c.relname like 'idx_embeddings_hnsw%'")  # fmt: skip


# Making, looking, dropping -------------------------------------------------------------------------


def test_create_status_and_drop_tell_what_they_did(bare: Rag, sql: Connection) -> None:
    assert ok(bare("db", "index", "status")).stdout == "no approximate index; searches are exact\n"
    assert body(bare("db", "index", "status", "--json")) == {"index": None}
    assert body(bare("db", "index", "status", "--check", "--json")) == {"index": None}

    made = ok(bare("db", "index", "create"))
    name = rows(sql, f"select rag.vector_index_name({CONFIG})")[0][0]
    assert indexes(sql) == [(name, True)]
    first, second = made.stdout.splitlines()
    assert first.startswith(f"built {name}: {ROWS} vectors, ")
    assert re.match(
        r"recall: 1\.000 \(0\.963 to 1\.000\) of the 10 nearest of stored vectors,"
        r" \d\.\d{3} \(.*\) of points between two of them; 100 of each",
        second,
    )
    assert "searches stay exact below about 10000 vectors" in made.stderr
    assert "comparing up to 100 stored vectors, and points between them, with the exact scan" in made.stderr
    assert "maintenance_work_mem" not in made.stderr

    shown = ok(bare("db", "index", "status")).stdout
    assert f"index:    {name}, complete\nvectors:  {ROWS}\nsize: " in shown
    assert "recall:   1.000 (" in shown
    assert "warning" not in shown

    dropped = ok(bare("db", "index", "drop"))
    assert dropped.stdout.startswith(f"dropped {name}, ")
    assert indexes(sql) == []
    assert rows(sql, "select * from rag.index_checks") == []
    assert ok(bare("db", "index", "drop")).stdout == "there is no approximate index; searches are exact\n"


def test_the_index_is_one_that_the_searches_use(indexed: Rag, sql: Connection) -> None:
    definition = rows(sql, "select pg_get_indexdef(c.oid) from pg_class as c"
                      " where c.relname like 'idx_embeddings_hnsw%'")[0][0]  # fmt: skip
    assert "USING hnsw (embedding_half halfvec_ip_ops) WHERE" in definition.replace("public.", "")
    for part in ("'fake'::text", "'fake-lexical-v1'::text", "embedding_dim = 1024"):
        assert part in definition


def test_a_second_create_says_that_there_is_one_and_a_rebuild_makes_another(
    indexed: Rag, sql: Connection
) -> None:
    number = "select c.oid from pg_class as c where c.relname like 'idx_embeddings_hnsw%'"
    before = rows(sql, number)
    again = ok(indexed("db", "index", "create"))
    assert again.stdout.startswith("there is a complete index already: idx_embeddings_hnsw_")
    assert "--rebuild" in again.stderr
    found = body(indexed("db", "index", "create", "--json"))
    assert (found["created"], found["seconds"], list(found["index"])) == (False, None, COLUMNS)
    assert rows(sql, number) == before

    record_recall(sql, 0.9)
    rebuilt = indexed("db", "index", "create", "--rebuild", "--json")
    made = body(rebuilt)
    assert "searches are exact until the new one is complete" in rebuilt.stderr
    assert made["created"] is True
    assert made["seconds"] > 0
    assert made["index"]["recall"] > 0.99
    assert len(rows(sql, number)) == 1
    assert rows(sql, number) != before


def test_status_in_json_has_all_columns_and_check_measures_again(indexed: Rag, sql: Connection) -> None:
    record_recall(sql, 0.9)
    found = body(indexed("db", "index", "status", "--json"))
    assert list(found) == ["index", "progress"]
    assert list(found["index"]) == COLUMNS
    assert found["progress"] is None
    assert found["index"]["recall"] == 0.9
    assert "found only 0.900" in found["index"]["warning"]
    assert "warning:  The approximate index found only 0.900" in indexed("db", "index", "status").stdout

    checked = body(indexed("db", "index", "status", "--check", "--questions", "50", "--json"))["index"]
    assert checked["questions"] == 50
    assert checked["recall"] == 1.0
    assert 0.9 < checked["recall_low"] < 1.0
    assert checked["recall_high"] <= 1.0
    assert checked["warning"] is None
    assert checked["checked_at"] > found["index"]["checked_at"]
    wrong = ok(indexed("db", "index", "status", "--questions", "50"), 2)
    assert "--questions is only for --check" in wrong.stderr


def test_an_invalid_index_is_not_measured_and_the_next_build_replaces_it(
    indexed: Rag, sql: Connection
) -> None:
    break_index(sql)
    shown = ok(indexed("db", "index", "status", "--check"))
    assert "not complete: there is nothing to measure" in shown.stderr
    assert ", not complete\n" in shown.stdout
    assert "warning:  The approximate index is not complete" in shown.stdout
    made = ok(indexed("db", "index", "create"))
    assert "dropping what an interrupted build left behind" in made.stderr
    assert [valid for _, valid in indexes(sql)] == [True]


def test_the_index_stays_when_the_functions_are_installed_again(indexed: Rag, sql: Connection) -> None:
    before = indexes(sql), rows(sql, "select * from rag.index_checks")
    ok(indexed("db", "init"))
    assert (indexes(sql), rows(sql, "select * from rag.index_checks")) == before


def test_an_invalid_index_can_be_dropped(indexed: Rag, sql: Connection) -> None:
    break_index(sql)
    assert ok(indexed("db", "index", "drop")).stdout.startswith("dropped ")
    assert indexes(sql) == []


def test_nothing_indexed_is_an_error_of_create_only(url: str) -> None:
    rag = command(url)
    done = ok(rag("db", "index", "create"), 1)
    assert "error [retrieval_not_ready]: Nothing is indexed for provider fake" in done.stderr
    assert "rag ingest" in done.stderr
    ok(rag("db", "index", "status"))
    ok(rag("db", "index", "drop"))


@pytest.mark.parametrize(
    "words", [(), ("create",), ("drop",), ("status",)], ids=lambda words: " ".join(words)
)
def test_every_help_shows_an_example(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["db", "index", *words, "--help"])
    assert done.exit_code == 0
    assert "Example: rag db index" in done.stdout


# Memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "taken"), [("2GB", "2GB"), ("512 mb", "512MB"), ("2048kB", "2048kB")])
def test_a_size_is_taken_as_postgres_writes_it(given: str, taken: str) -> None:
    assert parse_size("--memory", given) == taken


@pytest.mark.parametrize("given", ["", "2", "2G", "2.5GB", "-1GB", "1kB", "0MB", "2048GB", "9" * 30 + "GB",
                                   "1GB; drop", "٢GB", "2GB\n3"])  # fmt: skip
def test_any_other_size_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequest, match="--memory must be a number with kB, MB or GB") as error:
        parse_size("--memory", given)
    assert "\n" not in error.value.message
    assert "--memory 2GB" in error.value.hint


def test_a_wrong_memory_is_refused_before_anything_else(bare: Rag, sql: Connection) -> None:
    done = ok(bare("db", "index", "create", "--memory", "2 gigs"), 2)
    assert "--memory must be" in done.stderr
    assert "'2 gigs'" in done.stderr
    assert indexes(sql) == []


def test_too_little_memory_is_told_with_the_option_that_helps(bare: Rag, sql: Connection) -> None:
    done = ok(bare("db", "index", "create", "--memory", "1MB"))
    assert f"the build of {ROWS} vectors needs about 2.6 MB of memory" in done.stderr
    assert "maintenance_work_mem is 1.0 MB" in done.stderr
    assert "rag db index create --memory 64MB" in done.stderr
    assert [valid for _, valid in indexes(sql)] == [True]


def test_memory_counts_for_the_session_of_the_build(bare_url: str) -> None:
    database = Database(bare_url)
    with database.index_session(INDEX) as session:
        before = session.memory()
        session.set_memory(parse_size("--memory", "123MB"))
        assert session.memory() == 123 << 20
    with database.index_session(INDEX) as session:
        assert session.memory() == before


# Builds that fail ------------------------------------------------------------------------------------


def test_without_shared_memory_the_build_is_tried_once_more_in_one_process(
    bare: Rag, sql: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, workers = IndexSession.create, []

    def first_fails(session: IndexSession) -> None:
        workers.append(rows(session._connection, "show max_parallel_maintenance_workers")[0][0])
        if len(workers) == 1:
            raise DatabaseUnavailable(
                'The database has no room left: could not resize shared memory segment "/PostgreSQL.1" to 9'
                " bytes: No space left on device"
            )
        create(session)

    monkeypatch.setattr(IndexSession, "create", first_fails)
    done = ok(bare("db", "index", "create"))
    assert "building again in one process" in done.stderr
    assert len(workers) == 2
    assert workers[0] != "0"
    assert workers[1] == "0"
    assert [valid for _, valid in indexes(sql)] == [True]


@pytest.mark.parametrize("error", [DatabaseUnavailable("No space left on device"), InternalError("broken")])
def test_another_failure_is_not_tried_again_and_leaves_no_index(
    bare: Rag, sql: Connection, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    create, calls = IndexSession.create, []

    def fails_in_the_end(session: IndexSession) -> None:
        calls.append(1)
        create(session)
        break_index(sql)
        raise error

    monkeypatch.setattr(IndexSession, "create", fails_in_the_end)
    done = ok(bare("db", "index", "create"), 1)
    assert str(error) in done.stderr
    assert "removing the unfinished index" in done.stderr
    assert len(calls) == 1
    assert indexes(sql) == []


def test_an_index_whose_check_fails_stays(
    bare: Rag, sql: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Database, "check_index_recall", interrupted)
    done = ok(bare("db", "index", "create"), 130)
    assert "The index is complete; how much it finds was not measured" in done.stderr
    assert [valid for _, valid in indexes(sql)] == [True]


@contextmanager
def blocked_build(url: str) -> Iterator[tuple[subprocess.Popen[str], Connection, Connection]]:
    """A real `rag db index create` that waits for the end of a transaction: process, that one, another."""
    shell = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    with psycopg.connect(url) as writer, psycopg.connect(url, autocommit=True) as looker:
        writer.execute("lock table rag.embeddings in row exclusive mode")
        process = subprocess.Popen(
            [sys.executable, "-c", "from pyrag.cli import main; main()", "db", "index", "create"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", cwd="/",
            env={**shell, "EMBEDDING_PROVIDER": "fake", "LLM_PROVIDER": "fake", "DATABASE_URL": url},
        )  # fmt: skip
        try:
            wait_for(lambda: under_way(looker))
            yield process, writer, looker
        finally:
            process.kill()
            process.communicate()


def under_way(connection: Connection) -> list[Any]:
    return rows(connection, f"select p.phase from rag.index_progress({CONFIG}) as p")


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def test_an_interrupted_build_leaves_no_index(bare_url: str) -> None:
    with blocked_build(bare_url) as (process, writer, looker):
        assert [valid for _, valid in indexes(looker)] == [False]
        process.send_signal(signal.SIGINT)
        wait_for(lambda: not under_way(looker))
        writer.rollback()
        stdout, stderr = process.communicate(timeout=30)
        assert (process.returncode, stdout) == (130, ""), stderr
        assert stderr.splitlines()[-2:] == ["removing the unfinished index …", "interrupted"]
        assert indexes(looker) == []
    ok(command(bare_url)("db", "index", "create"))


def test_while_a_build_is_under_way_status_shows_it_and_others_keep_away(bare_url: str) -> None:
    rag = command(bare_url)
    with blocked_build(bare_url) as (process, writer, looker):
        found = body(rag("db", "index", "status", "--json"))
        assert found["index"]["is_valid"] is False
        assert list(found["progress"]) == ["phase", "rows_done", "rows_total"]
        assert found["progress"]["rows_total"] == ROWS
        shown = ok(rag("db", "index", "status")).stdout
        assert ", being built\n" in shown
        assert f" of {ROWS} vectors, waiting for writers before build\n" in shown
        for words in (("create",), ("create", "--rebuild"), ("drop",)):
            done = ok(rag("db", "index", *words), 5)
            assert "error [vault_busy]: Another session builds or drops" in done.stderr
        writer.rollback()
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        assert stdout.startswith("built idx_embeddings_hnsw_")
        assert [valid for _, valid in indexes(looker)] == [True]


def test_two_sessions_never_have_the_index_at_once(bare_url: str) -> None:
    database = Database(bare_url)
    with database.index_session(INDEX):
        with pytest.raises(VaultBusy), database.index_session(INDEX):
            pass
        with database.index_session(Index("fake", "another", 1024)):
            pass
    with database.index_session(INDEX):
        pass


def test_the_progress_is_followed_over_a_connection_of_its_own(
    bare_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Told:
        done = 0

        def scanned(self, files: int) -> None: ...

        def planned(self, documents: int) -> None: ...

        def stored(self, documents: int, chunks: int) -> None:
            self.done += documents

    monkeypatch.setattr(cli_index, "_POLL_SECONDS", 0.01)
    told, ended = Told(), threading.Event()
    with blocked_build(bare_url) as (process, writer, _):
        thread = threading.Thread(target=follow, args=(Database(bare_url), INDEX, told, ended))
        thread.start()
        try:
            time.sleep(0.5)
            assert told.done == 0
            writer.rollback()
            process.communicate(timeout=60)
        finally:
            ended.set()
            thread.join()
    assert 0 < told.done <= ROWS
    assert capsys.readouterr().err.count("another transaction has to end first") == 1


def test_a_follower_that_loses_the_database_stops_quietly(empty_url: str) -> None:
    follow(Database(empty_url), INDEX, Silent(), threading.Event())


# What searches do with it ----------------------------------------------------------------------------


def scan_of(rag: Rag, *options: str) -> str:
    return str(body(rag("search", "Text 7", "--json", *options, RAG_RETRIEVAL="vector"))["scan"])


def test_a_search_uses_the_index_from_ten_thousand_vectors_on(indexed: Rag, sql: Connection) -> None:
    assert scan_of(indexed) == "exact"
    pretend_rows(sql, 9_999)
    assert scan_of(indexed) == "exact"
    pretend_rows(sql, 20_000)
    assert scan_of(indexed) == "index"
    break_index(sql)
    assert scan_of(indexed) == "exact"


NEAREST = """
select n.chunk_id, n.scan, n.reason
from rag.embeddings as e
cross join lateral rag.find_nearest(e.embedding, 'fake', 'fake-lexical-v1', 1024, 5, %s, %s) as n
where e.id = %s
order by n.distance, n.chunk_id limit 5
"""


@pytest.mark.parametrize("filter", ["{}", '{"path_prefix": "a"}', '{"vault": "/vault"}'])
def test_the_index_finds_what_the_exact_scan_finds(indexed: Rag, sql: Connection, filter: str) -> None:
    ids = [row[0] for row in rows(sql, "select e.id from rag.embeddings as e order by e.id limit 20")]
    for number in ids:
        exact = rows(sql, NEAREST, [filter, "exact", number])
        approximate = rows(sql, NEAREST, [filter, "index", number])
        assert {row[1] for row in approximate} == {"index"}
        assert [row[0] for row in approximate] == [row[0] for row in exact]


def test_where_few_pass_the_filter_the_search_is_exact(indexed: Rag, sql: Connection) -> None:
    few = '{"path_prefix": "few"}'
    number = rows(sql, "select max(e.id) from rag.embeddings as e")[0][0]
    found = rows(sql, NEAREST, [few, "index", number])
    assert found == [(row[0], "exact", "the approximate index found 3 of 5") for row in found]
    assert len(found) == 3
    pretend_rows(sql, 20_000)
    assert scan_of(indexed, "--path", "few") == "exact"


# Warnings --------------------------------------------------------------------------------------------


def ready(settings: Settings, url: str) -> testing.Result:
    return testing.TestClient(create_app(Service(settings, Database(url)))).simulate_get("/ready")


def test_status_and_readiness_warn_when_too_little_is_found(
    indexed: Rag, built_url: str, sql: Connection, settings: Settings
) -> None:
    assert ready(settings, built_url).json == {"status": "ready", "warnings": []}
    before = ok(indexed("status", "--no-scan")).stdout
    assert f"\napproximate index: {ROWS} vectors, " in before
    assert "warning" not in before

    record_recall(sql, 0.9)
    after = ok(indexed("status", "--no-scan")).stdout
    assert "; recall 0.900 (0.830 to 0.940) of the 10 nearest of stored vectors" in after
    assert "\nwarning: The approximate index found only 0.900 of the true neighbours" in after
    found = body(indexed("status", "--no-scan", "--json"))["vector_index"]
    assert list(found) == ["index_name", "is_valid", "indexed_rows", "size_bytes", "recall", "recall_low",
                           "recall_high", "recall_between", "recall_between_low", "recall_between_high",
                           "checked_at", "warning"]  # fmt: skip
    answer = ready(settings, built_url)
    assert answer.status_code == 200
    assert answer.json == {"status": "ready", "warnings": [found["warning"]]}

    record_recall(sql, 0.95)
    assert ready(settings, built_url).json["warnings"] == []
    break_index(sql)
    assert "not complete, so searches are exact" in ready(settings, built_url).json["warnings"][0]
    assert "; not complete\nwarning: " in ok(indexed("status", "--no-scan")).stdout


def test_without_an_index_status_says_nothing_of_one(bare: Rag, bare_url: str, settings: Settings) -> None:
    assert "approximate" not in ok(bare("status", "--no-scan")).stdout
    assert body(bare("status", "--no-scan", "--json"))["vector_index"] is None
    assert ready(settings, bare_url).json == {"status": "ready", "warnings": []}
