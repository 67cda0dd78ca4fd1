"""The SQL of `db/`: runs the pgTAP files of `sql-tests/`, and checks what SQL alone cannot see."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import REPOSITORY, Server

from pyrag.errors import error_classes
from pyrag.install import sql_files

FILES = sorted((REPOSITORY / "sql-tests").glob("*.sql"))
EXTENSION_FOLDERS = (  # Debian, Red Hat, Homebrew, own builds
    "usr/share/postgresql/*/extension",
    "usr/pgsql-*/share/extension",
    "opt/homebrew/share/postgresql*/extension",
    "usr/local/share/postgresql*/extension",
)
CONFIGURATION = ("fake", "fake-lexical-v1", 1024)
VECTOR = "[1" + ",0" * 1023 + "]"

Connection = psycopg.Connection[tuple[Any, ...]]


def find_pgtap() -> Path | None:
    """The newest complete script of pgTAP on this machine; upgrade scripts (two `--`) are not complete."""
    found = []
    for folder in EXTENSION_FOLDERS:
        for path in Path("/").glob(f"{folder}/pgtap--*.sql"):
            match = re.fullmatch(r"pgtap--(\d+(?:\.\d+)*)\.sql", path.name)
            if match:
                found.append(([int(part) for part in match[1].split(".")], path))
    return max(found)[1] if found else None


@pytest.fixture(scope="module")
def tap_url(server: Server, template: str) -> Iterator[str]:
    """A database with an empty schema `rag` and pgTAP in schema `tap`, loaded as plain SQL."""
    script = find_pgtap()
    if script is None:
        pytest.skip("NOT TESTED: the SQL tests need pgTAP; install it with: apt-get install pgtap")
    url = server.create(template)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create schema tap")
        connection.execute("set search_path = tap, public")
        connection.execute(script.read_bytes().replace(b"@extschema@", b"tap"))
    yield url
    server.drop(url)


@pytest.fixture
def tap(tap_url: str) -> Iterator[Connection]:
    """A connection as the files of `sql-tests/` expect it; each of them undoes what it does."""
    with psycopg.connect(tap_url, autocommit=True) as connection:
        connection.execute("set search_path = tap, public")
        yield connection


def run_script(connection: Connection, script: str) -> list[str]:
    """All lines of text that the statements of a script return."""
    lines: list[str] = []
    cursor = connection.execute(script.encode())  # no parameters: one simple query, many results
    while True:
        if cursor.description:
            lines += [line for row in cursor.fetchall() for line in str(row[0]).split("\n")]
        if not cursor.nextset():
            return lines


def tap_problems(lines: list[str]) -> list[str]:
    """What is wrong with the output of a TAP run: failed tests with diagnostics, a wrong count, no test."""
    problems: list[str] = []
    numbers: list[int] = []
    plans: list[int] = []
    failing = False
    for line in lines:
        if plan := re.fullmatch(r"1\.\.(\d+)", line):
            plans.append(int(plan[1]))
        elif result := re.match(r"(not )?ok (\d+)\b", line):
            numbers.append(int(result[2]))
            failing = result[1] is not None
            if failing:
                problems.append(line)
        elif line.startswith("#") and (failing or line.startswith("# Looks like")):
            problems.append(line)
    if not numbers:
        problems.append("no test ran")
    elif len(plans) != 1:
        problems.append(f"expected one plan, got {plans}")
    elif numbers != list(range(1, plans[0] + 1)):
        problems.append(f"planned {plans[0]} tests, but {len(numbers)} ran")
    return problems


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_pgtap(tap: Connection, path: Path) -> None:
    script = path.read_text(encoding="utf-8")
    try:
        lines = run_script(tap, script)
    except psycopg.Error as error:
        place = int(error.diag.statement_position or 0)
        pytest.fail(f"{path.name}:{script[:place].count(chr(10)) + 1}: {error}")
    problems = tap_problems(lines)
    assert not problems, f"{path.name}\n" + "\n".join(problems)
    left = tap.execute("select exists (select 1 from rag.ingest_runs union all select 1 from rag.documents)")
    assert left.fetchone() == (False,), f"{path.name} does not undo what it does"


def test_each_file_of_functions_has_a_file_of_tests() -> None:
    expected = {"00_conventions.sql", *(path.name for path in sql_files().functions)}
    assert {path.name for path in FILES} == expected


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "no test ran"),
        (["1..3"], "no test ran"),
        (["ok 1 - a"], "expected one plan, got []"),
        (["1..2", "ok 1 - a"], "planned 2 tests, but 1 ran"),
        (["1..1", "ok 1 - a", "ok 2 - b"], "planned 1 tests, but 2 ran"),
        (["1..1", "not ok 1 - a", "# have: 1"], "not ok 1 - a\n# have: 1"),
        (["1..1", "# a note", "ok 1 - a"], ""),
    ],
)
def test_tap_output_is_judged(lines: list[str], problem: str) -> None:
    assert "\n".join(tap_problems(lines)) == problem


def test_codes_raised_in_sql_are_those_of_the_error_classes() -> None:
    raised = {
        code
        for path in sql_files().functions
        for code in re.findall(r"errcode\s*=\s*'(\w+)'", path.read_text(encoding="utf-8"))
    }
    # RG002 says that the functions are missing or old, so only Python can raise it.
    assert raised | {"RG002"} == {cls.sqlstate for cls in error_classes() if cls.sqlstate}
    assert "RG002" not in raised


def test_each_sqlstate_belongs_to_one_class() -> None:
    states = [cls.__dict__["sqlstate"] for cls in error_classes() if cls.__dict__.get("sqlstate")]
    assert len(states) == len(set(states))


def test_the_provider_filter_is_applied_in_the_scan(connection: Connection) -> None:
    plan = explain(connection, "select * from rag.scan_halves(%s::public.halfvec, %s, %s, %s, p_limit => 5)")
    assert "Function Scan" not in plan
    scan = plan[plan.index(" on rag.embeddings") :]
    condition = re.search(r"Filter: (.*)", scan)
    assert condition is not None, plan
    key = connection.execute("select rag.embedding_key(%s, %s, %s)", CONFIGURATION).fetchone()
    assert key is not None
    assert f"embedding_key = '{key[0]}'" in condition[1].replace("(", "").replace(")", "")


@pytest.mark.parametrize(
    ("function", "arguments"),
    [("scan_filtered_halves", "'{}', p_limit => 5"), ("scan_index", "5"), ("scan_filtered_index", "'{}', 5")],
)
def test_every_scan_is_inlined(connection: Connection, function: str, arguments: str) -> None:
    plan = explain(connection, f"select * from rag.{function}(%s::public.halfvec, %s, %s, %s, {arguments})")
    assert "Function Scan" not in plan
    assert "rag.filtered_chunks" not in plan


def test_an_approximate_index_never_serves_an_exact_scan(connection: Connection) -> None:
    """Even where the planner would rather not scan."""
    connection.execute(
        "create index on rag.embeddings using hnsw (embedding_half public.halfvec_ip_ops);"
        "create index on rag.embeddings using hnsw (embedding public.vector_cosine_ops);"
        "set enable_seqscan = off; set enable_sort = off"
    )
    halves = "select * from rag.scan_halves(%s::public.halfvec, %s, %s, %s, p_limit => 5)"
    assert "_idx" not in explain(connection, halves)
    plain = "select * from rag.search_chunks_plain(%s::public.vector, %s, %s, %s)"
    assert "_idx" not in explain(connection, plain)
    index = explain(connection, "select * from rag.scan_index(%s::public.halfvec, %s, %s, %s, 5)")
    assert "embeddings_embedding_half_idx" in index


def explain(connection: Connection, query: str) -> str:
    rows = connection.execute(f"explain (verbose) {query}", [VECTOR, *CONFIGURATION]).fetchall()
    return "\n".join(row[0] for row in rows)


def begin(connection: Connection, vault: str = "/vault") -> int:
    row = connection.execute("select rag.begin_run(%s, %s, %s, %s)", [vault, *CONFIGURATION]).fetchone()
    assert row is not None
    return int(row[0])


def runs(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute(
        "select r.id, r.status, r.error_summary from rag.ingest_runs as r order by r.id"
    ).fetchall()


def test_a_run_lives_as_long_as_its_connection(url: str, connection: Connection) -> None:
    with psycopg.connect(url, autocommit=True) as owner:
        first = begin(owner)
        with pytest.raises(psycopg.DatabaseError) as refused:
            begin(connection)
        assert refused.value.sqlstate == "RG006"
        assert runs(connection) == [(first, "running", None)]
    second = retry(lambda: begin(connection))
    assert runs(connection) == [(first, "failed", "interrupted"), (second, "running", None)]


def test_a_killed_connection_ends_its_run(url: str, connection: Connection) -> None:
    with psycopg.connect(url, autocommit=True) as owner:
        first = begin(owner)
        connection.execute("select pg_terminate_backend(%s)", [owner.info.backend_pid])
        second = retry(lambda: begin(connection))
    assert runs(connection) == [(first, "failed", "interrupted"), (second, "running", None)]


def test_a_finished_run_lets_the_next_one_begin_elsewhere(url: str, connection: Connection) -> None:
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("select rag.finish_run(%s)", [begin(owner)])
        second = begin(connection)
        assert runs(connection)[1] == (second, "running", None)


def test_a_run_of_the_same_number_in_another_database_does_not_count(
    url: str, connection: Connection, server: Server, template: str
) -> None:
    other_url = server.create(template)
    with psycopg.connect(other_url, autocommit=True) as other:
        assert begin(other) == 1
        connection.execute(
            "insert into rag.ingest_runs"
            " (vault_path, embedding_provider, embedding_model, embedding_dim, status)"
            " values ('/vault', 'fake', 'm', 1024, 'running')"
        )
        begin(connection)
    server.drop(other_url)
    assert [row[:2] for row in runs(connection)] == [(1, "failed"), (2, "running")]


def test_runs_of_different_vaults_do_not_disturb_each_other(url: str, connection: Connection) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        begin(other, "/one")
        begin(connection, "/two")
    assert [row[1] for row in runs(connection)] == ["running", "running"]


def test_of_many_runs_begun_at_once_one_wins(url: str, connection: Connection) -> None:
    def attempt(owner: Connection) -> str:
        try:
            return f"run {begin(owner)}"
        except psycopg.Error as error:
            return error.sqlstate or "?"

    with ExitStack() as stack:
        owners = [stack.enter_context(psycopg.connect(url, autocommit=True)) for _ in range(10)]
        with ThreadPoolExecutor(len(owners)) as threads:
            outcomes = sorted(threads.map(attempt, owners))
    assert outcomes[:9] == ["RG006"] * 9
    assert outcomes[9].startswith("run ")
    assert len(runs(connection)) == 1


def test_a_begun_run_that_is_rolled_back_leaves_nothing(url: str, connection: Connection) -> None:
    with psycopg.connect(url) as owner:
        begin(owner)
        owner.rollback()
        begin(connection)
    assert [row[1] for row in runs(connection)] == ["running"]


def retry(action: Any, seconds: float = 10) -> Any:
    """What an action returns once it raises RG006 no more: a server sees a closed socket after a moment."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except psycopg.DatabaseError as error:
            if error.sqlstate != "RG006" or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
