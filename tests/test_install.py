"""Installing the SQL: fresh, again, at once, by psql, over older and foreign databases, as a plain user."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml
from conftest import REPOSITORY, Server, command
from psycopg import sql

from pyrag import __version__
from pyrag import install as install_module
from pyrag.db import Database
from pyrag.embedded import EmbeddedServer
from pyrag.errors import DatabaseUnavailable, InternalError, SchemaNotInitialized
from pyrag.install import InstallReport, check_installed, install, is_older, sql_files
from pyrag.paths import data_path

Connection = psycopg.Connection[tuple[Any, ...]]

# The tables as the contract gives them: names, types, keys, uniqueness and cascades that stay for good.
CONTRACT = """
create table documents (
    id bigserial primary key,
    vault_path text not null,
    file_path text not null,
    relative_path text not null,
    content_hash text not null,
    mtime_ns bigint,
    size_bytes bigint,
    frontmatter jsonb not null default '{}'::jsonb,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (vault_path, relative_path)
);
create table chunks (
    id bigserial primary key,
    document_id bigint not null references documents (id) on delete cascade,
    chunk_index integer not null,
    content text not null,
    file_path text not null,
    relative_path text not null,
    heading_path text[] not null default array[]::text[],
    frontmatter jsonb not null default '{}'::jsonb,
    tags text[] not null default array[]::text[],
    wikilinks text[] not null default array[]::text[],
    metadata jsonb not null default '{}'::jsonb,
    content_hash text not null,
    token_count integer,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (document_id, chunk_index)
);
create table embeddings (
    id bigserial primary key,
    chunk_id bigint not null references chunks (id) on delete cascade,
    embedding_provider text not null,
    embedding_model text not null,
    embedding_dim integer not null check (embedding_dim = 1024),
    embedding vector(1024) not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (chunk_id, embedding_provider, embedding_model, embedding_dim)
);
create table ingest_runs (
    id bigserial primary key,
    vault_path text not null,
    embedding_provider text not null,
    embedding_model text not null,
    embedding_dim integer not null check (embedding_dim = 1024),
    status text not null check (status in ('running', 'success', 'failed')),
    started_at timestamptz not null default now(),
    finished_at timestamptz,
    documents_added integer not null default 0,
    documents_updated integer not null default 0,
    documents_deleted integer not null default 0,
    documents_skipped integer not null default 0,
    chunks_written integer not null default 0,
    embeddings_written integer not null default 0,
    error_summary text,
    metadata jsonb not null default '{}'::jsonb
);
create index idx_documents_content_hash on documents (content_hash);
create index idx_chunks_document_id on chunks (document_id);
create index idx_chunks_relative_path on chunks (relative_path);
create index idx_chunks_content_hash on chunks (content_hash);
create index idx_embeddings_config on embeddings (embedding_provider, embedding_model, embedding_dim);
"""

COLUMNS = """
select c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod) || ' '
    || case when a.attnotnull then 'not null' else 'null' end || ' default '
    || coalesce(pg_get_expr(d.adbin, d.adrelid), '') || ' generated ' || a.attgenerated::text
from pg_class as c
join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef as d on d.adrelid = c.oid and d.adnum = a.attnum
where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'v')
"""
CONSTRAINTS = """
select k.conrelid::regclass::text || ' ' || pg_get_constraintdef(k.oid), k.convalidated
from pg_constraint as k where k.connamespace = %(schema)s::regnamespace and k.contype <> 'n'
"""
INDEXES = """
select i.indrelid::regclass::text || ' ' || pg_get_indexdef(i.indexrelid), i.indisvalid
from pg_index as i join pg_class as c on c.oid = i.indexrelid
where c.relnamespace = %(schema)s::regnamespace
"""
OTHERS = {
    "comments": """
        select pg_describe_object(d.classoid, d.objoid, d.objsubid), d.description
        from pg_description as d, pg_identify_object(d.classoid, d.objoid, d.objsubid) as o
        where o.schema = 'rag' or o.identity = 'rag'
    """,
    "functions": """
        select p.oid::regprocedure::text, pg_get_functiondef(p.oid)
        from pg_proc as p where p.pronamespace = 'rag'::regnamespace
    """,
    "relations": """
        select c.oid::regclass::text, c.relkind::text || coalesce(c.reloptions::text, '')
            || c.relrowsecurity::text || coalesce(c.relacl::text, '') || case
                when c.relkind in ('v', 'm') then pg_get_viewdef(c.oid) else '' end
        from pg_class as c where c.relnamespace = 'rag'::regnamespace
    """,
    "triggers": """
        select t.tgrelid::regclass::text, pg_get_triggerdef(t.oid)
        from pg_trigger as t join pg_class as c on c.oid = t.tgrelid
        where c.relnamespace = 'rag'::regnamespace and not t.tgisinternal
    """,
    "extension": """
        select e.extname, n.nspname from pg_extension as e join pg_namespace as n on n.oid = e.extnamespace
    """,
}


def rows(connection: Connection, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(query, parameters).fetchall()


def value(connection: Connection, query: str) -> Any:
    return rows(connection, query)[0][0]


def catalogue(connection: Connection) -> dict[str, dict[str, Any]]:
    """All that a database knows of schema `rag`, without the data, by kind of object and name."""
    queries = {"columns": COLUMNS, "constraints": CONSTRAINTS, "indexes": INDEXES, **OTHERS}
    return {kind: dict(rows(connection, query, schema="rag")) for kind, query in queries.items()}


def schemas(connection: Connection) -> set[str]:
    found = rows(connection, "select nspname from pg_namespace where nspname !~ '^pg_|information_schema'")
    return {row[0] for row in found}


@pytest.fixture
def empty(empty_url: str) -> Iterator[Connection]:
    """An autocommit connection to a database without schema `rag`."""
    with psycopg.connect(empty_url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def fresh(template: str, server: Server) -> dict[str, dict[str, Any]]:
    """The catalogue of a fresh installation."""
    with psycopg.connect(server.named(template), autocommit=True) as connection:
        return catalogue(connection)


@contextmanager
def rolled_back(url: str) -> Iterator[Connection]:
    """A connection all of whose work is undone at the end."""
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture(scope="module")
def kept_url(template: str, server: Server) -> Iterator[str]:
    """A database with an empty schema `rag`, for tests that leave it as it is."""
    url = server.create(template)
    yield url
    server.drop(url)


@pytest.fixture
def kept(kept_url: str) -> Iterator[Connection]:
    """A connection to a database with an empty schema `rag`; its work is rolled back."""
    with rolled_back(kept_url) as connection:
        yield connection


@pytest.fixture(scope="module")
def bare_url(server: Server) -> Iterator[str]:
    """A database without schema `rag`, for tests that leave it as it is."""
    url = server.create()
    yield url
    server.drop(url)


@pytest.fixture
def bare(bare_url: str) -> Iterator[Connection]:
    """An autocommit connection to a database without schema `rag`; such schemas are dropped afterwards."""
    with psycopg.connect(bare_url, autocommit=True) as connection:
        yield connection
        connection.execute("drop schema if exists rag cascade")
        connection.execute("drop extension if exists vector cascade")
        connection.execute("drop schema if exists extensions cascade")


@pytest.fixture
def copied_db(tmp_path: Path) -> Path:
    """A copy of the `db/` folder that a test may change: a later version of pyrag."""
    return shutil.copytree(data_path("db"), tmp_path / "db")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name} has {text.count(old)} times {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def add_data(connection: Connection) -> None:
    """A document with a chunk, an embedding and a finished run, made by the functions."""
    vector = "[1" + ",0" * 1023 + "]"
    run_id = value(connection, "select rag.begin_run('/vault', 'fake', 'fake-lexical-v1', 1024)")
    connection.execute("select * from rag.record_plan(%s, %s)", [run_id, '[{"path": "a.md", "hash": "1"}]'])
    connection.execute(
        "select rag.replace_document(%s, 'a.md', %s, %s, array[%s::public.vector])",
        [
            run_id,
            '{"file_path": "/vault/a.md", "content_hash": "1", "frontmatter": {}, "warnings": []}',
            '[{"chunk_index": 0, "content": "text", "heading_path": ["A"], "tags": [], "wikilinks": [],'
            ' "metadata": {}, "content_hash": "c", "token_count": 1, "input_hash": "i", "embedding": 1}]',
            vector,
        ],
    )
    connection.execute("select * from rag.finish_run(%s)", [run_id])


def data(connection: Connection) -> dict[str, Any]:
    tables = ("documents", "chunks", "embeddings", "ingest_runs", "ingest_run_items")
    return {
        name: rows(connection, f"select to_jsonb(t) from rag.{name} as t order by t.id") for name in tables
    }


def installed(connection: Connection) -> dict[str, Any]:
    return dict(value(connection, "select to_jsonb(i) from rag.install as i"))


# Fresh, again, at once


def test_a_fresh_installation_is_complete_and_accepted(empty: Connection) -> None:
    report = install(empty)
    files = sql_files()
    assert report == InstallReport(True, (), len(files.functions), files.version)
    assert schemas(empty) == {"public", "rag"}
    check_installed(empty)
    row = installed(empty)
    assert row["schema_version"] == files.version
    assert row["sql_sha256"] == files.sha256
    assert row["pyrag_version"] == __version__


def test_an_installation_leaves_the_settings_of_the_session_alone(empty: Connection) -> None:
    settings = "select s.name, s.setting from pg_settings as s where s.name not like '%%.%%' order by s.name"
    before = rows(empty, settings)
    install(empty)
    assert rows(empty, settings) == before
    assert not value(empty, "select coalesce(current_setting('plpgsql.extra_errors', true), 'none') = 'all'")


def test_installing_again_changes_nothing_and_loses_nothing(connection: Connection) -> None:
    add_data(connection)
    before = catalogue(connection), data(connection), installed(connection)
    report = install(connection)
    assert (catalogue(connection), data(connection), installed(connection)) == before
    assert not report.created
    assert report.migrations == ()


def test_the_functions_work_after_installing_again(connection: Connection) -> None:
    add_data(connection)
    install(connection)
    found = rows(
        connection,
        "select s.source, s.score from rag.search_chunks((select e.embedding from rag.embeddings as e),"
        " 'fake', 'fake-lexical-v1', 1024) as s",
    )
    assert found == [("a.md", 1.0)]


def test_an_old_connection_works_on_after_a_new_installation(url: str, connection: Connection) -> None:
    query = "select s.documents, s.chunks from rag.index_status('fake', 'fake-lexical-v1', 1024) as s"
    for _ in range(6):  # psycopg prepares a statement that it sees often
        assert rows(connection, query) == [(0, 0)]
    with psycopg.connect(url, autocommit=True) as installer:
        install(installer)
    assert rows(connection, query) == [(0, 0)]


def test_twenty_installers_at_once_are_all_fine(empty_url: str, fresh: dict[str, dict[str, Any]]) -> None:
    def run(_: int) -> InstallReport:
        with psycopg.connect(empty_url, autocommit=True) as connection:
            return install(connection)

    with ThreadPoolExecutor(20) as threads:
        reports = list(threads.map(run, range(20)))
    assert sum(report.created for report in reports) == 1
    with psycopg.connect(empty_url, autocommit=True) as connection:
        assert catalogue(connection) == fresh
        check_installed(connection)


def test_an_installation_that_fails_leaves_nothing(empty: Connection, copied_db: Path) -> None:
    (copied_db / "functions" / "zz_broken.sql").write_text("select 1 / 0;", encoding="utf-8")
    with pytest.raises(psycopg.errors.DivisionByZero):
        install(empty, sql_files(copied_db))
    assert schemas(empty) == {"public"}
    assert not rows(empty, "select 1 from pg_extension where extname = 'vector'")


def test_an_update_that_fails_leaves_the_functions_that_were_there(
    connection: Connection, copied_db: Path
) -> None:
    before = catalogue(connection)
    (copied_db / "functions" / "zz_broken.sql").write_text("select 1 / 0;", encoding="utf-8")
    with pytest.raises(psycopg.errors.DivisionByZero):
        install(connection, sql_files(copied_db))
    assert catalogue(connection) == before
    check_installed(connection)


# The same files by psql, as Docker's entrypoint runs them


def mounted_files() -> list[Path]:
    """The SQL files that docker-compose.yml mounts into the init folder, in the order of the names there."""
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text(encoding="utf-8"))
    mounts: dict[str, Path] = {}
    for volume in compose["services"]["postgres"]["volumes"]:
        source, target, *mode = volume.split(":")
        if target.startswith("/docker-entrypoint-initdb.d"):
            folder, _, name = target.rpartition("/")
            assert folder == "/docker-entrypoint-initdb.d", f"{target}: Docker does not look into sub-folders"
            assert mode == ["ro"]
            assert name not in mounts
            mounts[name] = REPOSITORY / source
    return [mounts[name] for name in sorted(mounts)]


@pytest.fixture(scope="module")
def psql(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, list[Path]], None]:
    """Runs SQL files on a database with psql, each as Docker's entrypoint does."""
    try:
        program = str(EmbeddedServer(tmp_path_factory.mktemp("psql")).binary("psql"))
    except DatabaseUnavailable:
        program = shutil.which("psql") or ""
    if not program:
        pytest.skip("NOT TESTED: needs psql; install it with: apt-get install postgresql-client")

    options = ["-v", "ON_ERROR_STOP=1", "--no-psqlrc", "--no-password", "-d"]

    def run(url: str, files: list[Path]) -> None:
        for path in files:
            done = subprocess.run(
                [program, *options, url, "-f", str(path)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "PGOPTIONS": "-c client_min_messages=warning"},
            )
            assert done.returncode == 0, done.stderr
            assert done.stderr == "", f"{path.name} is not quiet: {done.stderr}"

    return run


Psql = Callable[[str, list[Path]], None]


def test_docker_mounts_every_sql_file_in_the_order_of_the_installer() -> None:
    files = sql_files(REPOSITORY / "db")
    assert mounted_files() == [files.schema, *files.functions]


def test_psql_makes_the_same_database_as_the_installer_which_takes_it_over(
    empty_url: str, empty: Connection, psql: Psql, fresh: dict[str, dict[str, Any]]
) -> None:
    psql(empty_url, mounted_files())
    assert catalogue(empty) == fresh
    check_installed(empty)
    assert installed(empty)["schema_version"] == sql_files().version, "schema.sql names another version"
    assert installed(empty)["sql_sha256"] is None

    add_data(empty)
    before = data(empty)
    report = install(empty)
    assert not report.created
    assert report.migrations == ()
    assert (catalogue(empty), data(empty)) == (fresh, before)
    assert installed(empty)["sql_sha256"] == sql_files().sha256
    check_installed(empty)


def test_psql_may_run_the_files_again(url: str, connection: Connection, psql: Psql) -> None:
    add_data(connection)
    before = catalogue(connection), data(connection), installed(connection)
    psql(url, mounted_files())
    assert (catalogue(connection), data(connection), installed(connection)) == before
    psql(url, [data_path("db") / "drop_functions.sql", *mounted_files()])
    assert (catalogue(connection), data(connection), installed(connection)) == before
    check_installed(connection)


def test_dropping_the_functions_drops_all_of_them_and_no_table(
    url: str, connection: Connection, psql: Psql
) -> None:
    add_data(connection)
    connection.execute("create view rag.overview as select * from rag.index_status('fake', 'm', 1024)")
    connection.execute("create procedure rag.do_nothing() language sql as ''")
    before = data(connection)
    for _ in range(2):  # the second time there is nothing left to drop
        psql(url, [data_path("db") / "drop_functions.sql"])
        assert catalogue(connection)["functions"] == {}
        assert data(connection) == before
    assert "rag.overview" not in catalogue(connection)["relations"]


# Another version of the functions


def test_a_function_may_change_its_parameters_and_columns(connection: Connection, copied_db: Path) -> None:
    """`create or replace` alone cannot do any of these."""
    add_data(connection)
    before = data(connection)
    edit(
        copied_db / "functions" / "status.sql",
        "returns table (\n        documents bigint,",
        "returns table (\n        documents_total bigint,",
    )
    top_k = copied_db / "functions" / "common.sql"
    top_k.write_text(
        top_k.read_text(encoding="utf-8")
        .replace("check_top_k(p_top_k integer)", "check_top_k(p_top_k integer, p_most integer default 20)")
        .replace("function rag.check_top_k(integer)", "function rag.check_top_k(integer, integer)"),
        encoding="utf-8",
    )
    report = install(connection, sql_files(copied_db))
    assert not report.created
    functions = catalogue(connection)["functions"]
    assert "rag.check_top_k(integer,integer)" in functions
    assert "rag.check_top_k(integer)" not in functions
    assert value(connection, "select s.documents_total from rag.index_status('fake', 'm', 1024) as s") == 1
    assert data(connection) == before


def test_a_function_that_is_gone_from_the_files_is_dropped(connection: Connection, copied_db: Path) -> None:
    (copied_db / "functions" / "vector_index.sql").unlink()
    install(connection, sql_files(copied_db))
    assert not [name for name in catalogue(connection)["functions"] if "index_recall" in name]


def test_views_are_made_anew_with_the_functions_they_read(connection: Connection, copied_db: Path) -> None:
    view = copied_db / "functions" / "views.sql"
    for column in ("one", "two"):
        view.write_text(
            f"create or replace view rag.scores as select rag.similarity_score(1) as {column};",
            encoding="utf-8",
        )
        install(connection, sql_files(copied_db))
        assert rows(connection, "select * from rag.scores") == [(0.0,)]
        assert f"scores.{column}" in catalogue(connection)["columns"]


def test_warnings_of_plpgsql_stop_an_installation(connection: Connection, copied_db: Path) -> None:
    (copied_db / "functions" / "zz_shadow.sql").write_text(
        "create or replace function rag.shadow(p_x integer) returns integer language plpgsql as $$"
        " declare p_x integer; begin return p_x; end $$;",
        encoding="utf-8",
    )
    with pytest.raises(psycopg.errors.DuplicateAlias):
        install(connection, sql_files(copied_db))


# Migrations


def with_migration(db: Path) -> Path:
    """Makes a copied `db/` the next version: one column more in a migration and in schema.sql."""
    migration = db / "migrations" / f"{sql_files(db).version + 1:04d}_note.sql"
    comment = "comment on column rag.documents.note is 'A note.';"
    migration.write_text(f"alter table rag.documents add column note text;\n{comment}\n", encoding="utf-8")
    schema = db / "schema.sql"
    edit(schema, "comment on table rag.documents is", f"{comment}\ncomment on table rag.documents is")
    edit(
        schema,
        "create table if not exists rag.documents (\n",
        "create table if not exists rag.documents (\n    note text,\n",
    )
    return migration


def test_a_migration_brings_an_old_database_to_the_state_of_a_new_one(
    connection: Connection, empty: Connection, copied_db: Path
) -> None:
    add_data(connection)
    before = data(connection)
    migration = with_migration(copied_db)
    files = sql_files(copied_db)

    report = install(connection, files)
    assert report.migrations == (migration.name,)
    assert report.version == files.version == sql_files().version + 1
    after = data(connection)
    for (row,) in after["documents"]:
        assert row.pop("note", "absent") is None
    assert after == before

    assert install(empty, files).migrations == ()
    assert catalogue(connection) == catalogue(empty)
    history = "select m.version, m.name, m.sha256 from rag.migrations as m order by m.version"
    assert rows(connection, history) == rows(empty, history)
    assert rows(connection, history)[-1][:2] == (files.version, migration.name)
    for each in (connection, empty):
        assert installed(each)["schema_version"] == files.version
        assert installed(each)["sql_sha256"] == files.sha256


@pytest.fixture(params=["db_0001", "db_0002", "db_0003"])
def earlier_version(request: pytest.FixtureRequest, empty: Connection) -> Connection:
    """A database as an earlier version left it: its tables, and two configurations of vectors."""
    return filled_by(empty, request.param)


@pytest.fixture
def first_version(empty: Connection) -> Connection:
    """A database as the first release left it."""
    return filled_by(empty, "db_0001")


def filled_by(empty: Connection, version: str) -> Connection:
    install(empty, sql_files(REPOSITORY / "tests" / "data" / version))
    empty.execute(
        """
        insert into rag.documents (vault_path, file_path, relative_path, content_hash, scope)
        values ('/v', '/v/a.md', 'a.md', 'h', '/v');
        insert into rag.chunks (document_id, chunk_index, content, file_path, relative_path, content_hash)
        select d.id, i, 'text ' || i, d.file_path, d.relative_path, 'c' || i
        from rag.documents as d, generate_series(0, 9) as i;
        insert into rag.embeddings (
            chunk_id, embedding_provider, embedding_model, embedding_dim, embedding, scope, input_hash
        )
        select c.id, p.provider, 'm', 1024,
            (array[c.chunk_index, 1] || array_fill(0, array[1022]))::public.vector, '/v', 'i' || c.id
        from rag.chunks as c, unnest(array['one', 'two']) as p (provider)
        where c.chunk_index > 0 or p.provider = 'one'
        order by c.id desc;
        delete from rag.embeddings where id in (3, (select max(id) from rag.embeddings));
        update rag.embeddings set embedding = array_fill(0, array[1024])::public.vector where id = 5;
        """
    )
    return empty


def column_order(connection: Connection) -> list[tuple[Any, ...]]:
    return rows(
        connection,
        "select c.relname, array_agg(a.attname::text order by a.attnum)"
        " from pg_attribute as a join pg_class as c on c.oid = a.attrelid"
        " where c.relnamespace = 'rag'::regnamespace and c.relkind = 'r' and a.attnum > 0"
        " and not a.attisdropped group by c.relname order by c.relname",
    )


def test_an_earlier_version_is_brought_to_the_state_of_a_new_installation(
    earlier_version: Connection, connection: Connection
) -> None:
    before = data(earlier_version)
    last_id = value(earlier_version, "select max(id) from rag.embeddings")
    version = value(earlier_version, "select schema_version from rag.install")
    assert install(earlier_version).migrations == tuple(
        path.name for number, path in sorted(sql_files().migrations.items()) if number > version
    )
    assert catalogue(earlier_version) == catalogue(connection)
    assert column_order(earlier_version) == column_order(connection)

    after = data(earlier_version)
    for name, old in before.items():
        for (was,), (now,) in zip(old, after[name], strict=True):
            assert {key: now[key] for key in was} == was, name
    assert value(earlier_version, "select count(*) from rag.embeddings where embedding_half is null") == 1
    found = "select s.chunk_index from rag.{}('[9,1{}]', 'two', 'm', 1024, 20) as s"
    nearest = rows(earlier_version, found.format("search_chunks", ",0" * 1022))
    assert nearest == rows(earlier_version, found.format("search_chunks_plain", ",0" * 1022))
    assert nearest[0] == (9,)
    new_id = value(
        earlier_version,
        "insert into rag.embeddings (chunk_id, embedding_provider, embedding_model, embedding_dim, embedding)"
        f" select min(id), 'three', 'm', 1024, '[1{',0' * 1023}]' from rag.chunks returning id",
    )
    assert new_id == last_id + 2, "numbers go on where they were, those of deleted rows are not used again"


def test_a_database_in_another_encoding_is_refused(empty: Connection) -> None:
    name = f"latin_{os.getpid()}_test"
    empty.execute(
        f"create database {name} template template0 encoding 'LATIN1' locale_provider libc locale 'C'"
    )
    try:
        with (
            psycopg.connect(empty.info.dsn, dbname=name, autocommit=True) as latin,
            pytest.raises(SchemaNotInitialized, match=f"{name} has the encoding LATIN1; pyrag needs UTF8"),
        ):
            install(latin)
    finally:
        empty.execute(f"drop database {name}")


def test_words_of_chunks_from_before_are_found_at_once_and_stored_later(earlier_version: Connection) -> None:
    install(earlier_version)
    found = "select r.chunk_index, r.lexical_score from rag.retrieve('text 7') as r"
    before = rows(earlier_version, found)
    assert len(before) == 5
    assert before[0][0] == 7
    assert value(earlier_version, "select count(*) from rag.chunk_terms") == 0
    counts = "select array_agg(s.chunks order by s.dim) from rag.term_statistics(array[0, {}]) as s".format(
        "rag.term_dim('text')"
    )
    assert value(earlier_version, counts) == [10, 10]
    assert [value(earlier_version, "select rag.fill_terms(6)") for _ in range(3)] == [6, 4, 0]
    assert value(earlier_version, "select count(*) from rag.chunk_terms") == 10
    assert value(earlier_version, "select count(*) from rag.uncounted_terms") == 0
    assert value(earlier_version, counts) == [10, 10]
    assert rows(earlier_version, found) == before


def test_who_may_read_chunks_may_read_their_terms_after_the_migration(first_version: Connection) -> None:
    role = f"terms_reader_{os.getpid()}"
    first_version.execute(f"create role {role}")
    try:
        first_version.execute(f"grant usage on schema rag to {role}; grant select on rag.chunks to {role}")
        install(first_version)
        for table in ("chunk_terms", "uncounted_terms", "term_counts"):
            granted = [
                value(first_version, f"select has_table_privilege('{role}', 'rag.{table}', '{right}')")
                for right in ("select", "insert")
            ]
            assert granted == [True, False], table
    finally:
        first_version.execute(f"drop owned by {role}; drop role {role}")


def test_the_migration_keeps_the_grants_on_the_table_it_copies(first_version: Connection) -> None:
    role = f'reader_{os.getpid()}"'
    name = sql.Identifier(role)
    first_version.execute(sql.SQL("create role {}").format(name))
    try:
        first_version.execute(
            sql.SQL(
                "grant select on rag.embeddings to {0};"
                "grant insert on rag.embeddings to {0} with grant option;"
                "grant usage on sequence rag.embeddings_id_seq to {0};"
                "grant select on rag.embeddings to public"
            ).format(name)
        )
        query = (
            "select c.relname, a.privilege_type, a.grantee = 0, a.is_grantable"
            " from pg_class as c, aclexplode(c.relacl) as a"
            " where c.oid in ('rag.embeddings'::regclass, 'rag.embeddings_id_seq'::regclass)"
            " and a.grantee <> c.relowner order by 1, 2, 3"
        )
        before = rows(first_version, query)
        assert len(before) == 4
        first_version.execute(sql.SQL("alter table rag.embeddings owner to {}").format(name))
        install(first_version)
        owners = rows(
            first_version,
            "select distinct c.relowner::regrole::text from pg_class as c where c.oid in"
            " ('rag.embeddings'::regclass, 'rag.embeddings_id_seq'::regclass, 'rag.index_checks'::regclass)",
        )
        assert owners == [(f'"{role.replace(chr(34), chr(34) * 2)}"',)]
        allowed = rows(
            first_version,
            "select has_table_privilege('public', t, 'select'), has_table_privilege('public', t, 'insert')"
            " from unnest(array['rag.embeddings', 'rag.index_checks']) as t",
        )
        assert allowed == [(True, False), (True, False)], "who may read the vectors may read the checks"
    finally:
        first_version.execute(
            sql.SQL("reassign owned by {0} to current_user; drop owned by {0}; drop role {0}").format(name)
        )


def test_what_depends_on_a_table_that_a_migration_copies_is_named(
    first_version: Connection, empty_url: str
) -> None:
    first_version.execute("create view public.mine as select chunk_id from rag.embeddings")
    before = data(first_version)
    with pytest.raises(InternalError, match=r"view mine depends on table rag\.embeddings") as refused:
        Database(empty_url).install()
    assert "CASCADE" not in refused.value.hint
    assert "Keep the definition" in refused.value.hint
    assert data(first_version) == before
    assert installed(first_version)["schema_version"] == 1


def test_a_migration_is_applied_once(connection: Connection, copied_db: Path) -> None:
    with_migration(copied_db)
    files = sql_files(copied_db)
    install(connection, files)
    before = catalogue(connection), installed(connection)
    assert install(connection, files).migrations == ()
    assert (catalogue(connection), installed(connection)) == before


def test_migrations_are_applied_in_order_from_where_the_database_is(
    connection: Connection, copied_db: Path
) -> None:
    first = with_migration(copied_db)
    install(connection, sql_files(copied_db))
    number = sql_files(copied_db).version
    names = []
    for step, statement in enumerate(
        ["add column extra text", "rename column extra to more", "rename column more to most"], start=1
    ):
        names.append(f"{number + step:04d}_step.sql")
        (copied_db / "migrations" / names[-1]).write_text(
            f"alter table rag.documents {statement};", encoding="utf-8"
        )
    assert install(connection, sql_files(copied_db)).migrations == tuple(names)
    assert "documents.most" in catalogue(connection)["columns"]
    assert first.name not in names


def test_a_migration_that_fails_changes_nothing(connection: Connection, copied_db: Path) -> None:
    add_data(connection)
    migration = with_migration(copied_db)
    migration.write_text(migration.read_text(encoding="utf-8") + "select 1 / 0;", encoding="utf-8")
    before = catalogue(connection), data(connection), installed(connection)
    with pytest.raises(psycopg.errors.DivisionByZero):
        install(connection, sql_files(copied_db))
    assert (catalogue(connection), data(connection), installed(connection)) == before


@pytest.mark.parametrize("damage", [lambda path: path.write_text("select 1;", "utf-8"), Path.unlink])
def test_a_changed_or_missing_applied_migration_is_refused(
    connection: Connection, copied_db: Path, damage: Callable[[Path], object]
) -> None:
    migration = with_migration(copied_db)
    install(connection, sql_files(copied_db))
    before = catalogue(connection), installed(connection)
    later = copied_db / "migrations" / f"{sql_files(copied_db).version + 1:04d}_later.sql"
    later.write_text("alter table rag.documents add column later text;", encoding="utf-8")
    damage(migration)
    with pytest.raises(SchemaNotInitialized, match="changed or is gone") as error:
        install(connection, sql_files(copied_db))
    assert migration.name in error.value.message
    assert "Restore the file" in error.value.hint
    assert (catalogue(connection), installed(connection)) == before


@pytest.mark.parametrize("name", ["2_short.sql", "0001_first.sql", "note.sql", "0002_a.sql+0002_b.sql"])
def test_a_migration_without_a_number_of_its_own_is_refused(copied_db: Path, name: str) -> None:
    for each in name.split("+"):
        (copied_db / "migrations" / each).write_text("select 1;", encoding="utf-8")
    with pytest.raises(SchemaNotInitialized, match=r"expected NNNN_what\.sql"):
        sql_files(copied_db)


def test_a_database_newer_than_the_code_is_refused(connection: Connection, copied_db: Path) -> None:
    add_data(connection)
    with_migration(copied_db)
    install(connection, sql_files(copied_db))
    before = catalogue(connection), data(connection), installed(connection)
    known = sql_files().version
    with pytest.raises(SchemaNotInitialized, match=f"version {known + 1}; this pyrag .* {known}") as error:
        install(connection)
    assert "Install the newer pyrag" in error.value.hint
    assert (catalogue(connection), data(connection), installed(connection)) == before


# Databases that are not ours, and roles that may not do all


@pytest.mark.parametrize(
    ("statement", "held"),
    [
        ("create table rag.notes (id integer)", "notes"),
        ("create view rag.overview as select 1 as one", "overview"),
        ("create function rag.their_function() returns integer language sql return 1", "their_function"),
        ("create type rag.mood as enum ('calm')", "mood"),
    ],
    ids=["table", "view", "function", "type"],
)
def test_a_schema_rag_of_somebody_else_is_refused_and_stays(
    bare: Connection, statement: str, held: str
) -> None:
    bare.execute("create schema rag")
    bare.execute(statement)
    before = catalogue(bare)
    with pytest.raises(SchemaNotInitialized, match=f"schema rag that pyrag did not make .*{held}") as error:
        install(bare)
    assert error.value.hint
    assert catalogue(bare) == before


def test_an_empty_schema_rag_is_used(bare: Connection, fresh: dict[str, dict[str, Any]]) -> None:
    bare.execute("create schema rag")
    assert install(bare).created
    assert catalogue(bare) == fresh


@pytest.fixture
def plain_role(server: Server, empty: Connection, empty_url: str) -> Iterator[str]:
    """A role that is no superuser and owns the empty database."""
    if not value(empty, "select rolsuper from pg_roles where rolname = current_user"):
        pytest.skip("NOT TESTED: needs a superuser in TEST_DATABASE_URL, to make a role that is none")
    role = f"{urlsplit(empty_url).path.lstrip('/')}_role"
    server.execute(f'create role "{role}" nosuperuser nocreatedb nocreaterole')
    server.execute(f'alter database "{urlsplit(empty_url).path.lstrip("/")}" owner to "{role}"')
    yield role
    empty.close()
    server.drop(empty_url)  # what the role owns
    server.execute(f'drop role "{role}"')


def become(connection: Connection, role: str) -> None:
    connection.execute(sql.SQL("set session authorization {}").format(sql.Identifier(role)))
    assert not value(connection, "select rolsuper from pg_roles where rolname = current_user")


def test_a_plain_owner_installs_where_the_extension_is_present(
    empty: Connection, plain_role: str, fresh: dict[str, dict[str, Any]]
) -> None:
    empty.execute("create extension vector schema public")
    become(empty, plain_role)
    assert install(empty).created
    add_data(empty)
    before = data(empty)
    assert not install(empty).created
    assert data(empty) == before
    check_installed(empty)
    assert catalogue(empty) == fresh


def test_a_plain_owner_is_told_who_can_install_the_extension(empty: Connection, plain_role: str) -> None:
    become(empty, plain_role)
    with pytest.raises(SchemaNotInitialized) as error:
        install(empty)
    name = empty.info.dbname
    assert f"extension vector is not installed in database {name}" in error.value.message
    assert f"Ask an administrator to run in {name}: create extension vector;" in error.value.hint
    assert schemas(empty) == {"public"}


def test_the_command_tells_it_without_a_traceback(empty: Connection, empty_url: str, plain_role: str) -> None:
    rag = command(empty_url)
    empty.execute(sql.SQL("grant {} to current_user").format(sql.Identifier(plain_role)))
    done = rag("db", "init", PGOPTIONS=f"-c role={plain_role}")
    assert done.returncode == 1, done.stderr
    assert "extension vector is not installed" in done.stderr
    assert "create extension vector;" in done.stderr
    assert "Traceback" not in done.stderr
    empty.execute("create extension vector schema public")
    done = rag("db", "init", PGOPTIONS=f"-c role={plain_role}")
    assert done.returncode == 0, done.stderr
    check_installed(empty)


def test_a_server_without_pgvector_is_named(bare: Connection, copied_db: Path) -> None:
    """The files of an extension that does not exist are as absent as those of one that is not installed."""
    edit(copied_db / "schema.sql", "extension if not exists vector ", "extension vector_absent ")
    with pytest.raises(SchemaNotInitialized, match="has no pgvector") as error:
        install(bare, sql_files(copied_db))
    assert "Install pgvector on the server" in error.value.hint
    assert schemas(bare) == {"public"}


def test_an_extension_in_another_schema_is_named(bare: Connection) -> None:
    bare.execute("create schema extensions")
    bare.execute("create extension vector schema extensions")
    with pytest.raises(SchemaNotInitialized, match="not in schema public") as error:
        install(bare)
    assert "alter extension vector set schema public" in error.value.hint
    assert schemas(bare) == {"public", "extensions"}
    bare.execute("alter extension vector set schema public")
    assert install(bare).created


@pytest.mark.parametrize(
    ("version", "other", "older"),
    [
        ("0.7.4", "0.8.0", True),
        ("0.8.0", "0.8.0", False),
        ("0.8", "0.8.0", False),
        ("0.8.0", "0.8", False),
        ("0.8.5", "0.8.0", False),
        ("0.10.0", "0.8.0", False),
        ("0.8.0", "0.10.0", True),
        ("1.0", "0.8.0", False),
        ("0.5.1-dev", "0.8.0", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, other: str, older: bool) -> None:
    assert is_older(version, other) is older


def pretend_pgvector(connection: Connection, version: str) -> None:
    connection.execute("update pg_extension set extversion = %s where extname = 'vector'", [version])


@pytest.fixture
def old_pgvector(bare: Connection) -> Connection:
    """A database whose extension says that it is of version 0.7.4."""
    if not value(bare, "select rolsuper from pg_roles where rolname = current_user"):
        pytest.skip("NOT TESTED: needs a superuser in TEST_DATABASE_URL, to pretend an old pgvector")
    bare.execute("create extension vector schema public")
    pretend_pgvector(bare, "0.7.4")
    return bare


def test_an_old_extension_is_named_before_anything_is_changed(old_pgvector: Connection) -> None:
    name = old_pgvector.info.dbname
    with pytest.raises(SchemaNotInitialized) as error:
        install(old_pgvector)
    assert f"extension vector in database {name} has version 0.7.4; pyrag needs 0.8.0" in error.value.message
    assert error.value.hint == f"Ask an administrator to run in {name}: alter extension vector update;"
    assert schemas(old_pgvector) == {"public"}
    pretend_pgvector(old_pgvector, "0.8.0")
    assert install(old_pgvector).created


def test_an_update_over_an_old_extension_changes_nothing(connection: Connection) -> None:
    if not value(connection, "select rolsuper from pg_roles where rolname = current_user"):
        pytest.skip("NOT TESTED: needs a superuser in TEST_DATABASE_URL, to pretend an old pgvector")
    add_data(connection)
    pretend_pgvector(connection, "0.6.2")
    before = catalogue(connection), data(connection), installed(connection)
    with pytest.raises(SchemaNotInitialized, match=r"has version 0\.6\.2"):
        install(connection)
    assert (catalogue(connection), data(connection), installed(connection)) == before


def test_a_server_whose_pgvector_is_too_old_is_named(
    bare: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install_module, "_PGVECTOR", "99.0")
    offered = value(bare, "select default_version from pg_available_extensions where name = 'vector'")
    with pytest.raises(SchemaNotInitialized) as error:
        install(bare)
    assert f"pgvector of this Postgres server has version {offered}; pyrag needs 99.0" in error.value.message
    assert error.value.hint.startswith("Update pgvector on the server to 99.0 or later")
    assert "alter extension" not in error.value.hint
    assert schemas(bare) == {"public"}
    bare.execute("create extension vector schema public")
    with pytest.raises(SchemaNotInitialized, match=f"in database .* has version {offered}") as error:
        install(bare)
    assert error.value.hint.startswith("Update pgvector on the server to 99.0 or later")
    assert "alter extension vector update;" in error.value.hint


# What start-up says of the schema


def test_a_missing_schema_is_named(bare: Connection) -> None:
    with pytest.raises(SchemaNotInitialized, match="has not been initialized") as error:
        check_installed(bare)
    assert error.value.hint == "Run: rag db init"


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ("sql_sha256 = 'of older files'", "not that of this version of pyrag", "Run: rag db init"),
        ("schema_version = 0", "not that of this version of pyrag", "Run: rag db init"),
        ("schema_version = 0, sql_sha256 = null", "not that of this version of pyrag", "Run: rag db init"),
        ("schema_version = 999", "version 999, newer than this pyrag", "Install the newer pyrag."),
    ],
)
def test_another_version_of_the_sql_is_named(kept: Connection, change: str, message: str, hint: str) -> None:
    kept.execute(f"update rag.install set {change}")
    with pytest.raises(SchemaNotInitialized, match=message) as error:
        check_installed(kept)
    assert error.value.hint == hint


def test_other_functions_than_those_of_the_code_are_noticed(connection: Connection, copied_db: Path) -> None:
    with (copied_db / "functions" / "status.sql").open("a", encoding="utf-8") as file:
        file.write("\n-- a later version\n")
    install(connection, sql_files(copied_db))
    with pytest.raises(SchemaNotInitialized, match="not that of this version"):
        check_installed(connection)
    install(connection)
    check_installed(connection)


def test_an_emptied_version_table_is_named(kept: Connection) -> None:
    kept.execute("delete from rag.install")
    with pytest.raises(SchemaNotInitialized, match=r"rag\.install is empty"):
        check_installed(kept)
    with pytest.raises(SchemaNotInitialized, match=r"rag\.install is empty"):
        install(kept)


# The tables of the contract


@pytest.fixture
def contract(kept: Connection) -> Connection:
    """A connection to an installed database in which schema `contract` holds the contract's own tables."""
    kept.execute("create schema contract")
    kept.execute("set search_path = contract, public")
    kept.execute(CONTRACT.encode())
    kept.execute("set search_path = pg_catalog")
    return kept


def both(connection: Connection, query: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a query gives for the contract's tables and for ours, both under the name of our schema."""
    promised = {
        key.replace("contract.", "rag."): text.replace("contract.", "rag.") if isinstance(text, str) else text
        for key, text in rows(connection, query, schema="contract")
    }
    return promised, dict(rows(connection, query, schema="rag"))


def test_every_column_of_the_contract_has_its_type_and_default(contract: Connection) -> None:
    promised, ours = both(contract, COLUMNS)
    assert {name: ours.get(name) for name in promised} == promised
    assert len(promised) == 49


def test_keys_uniqueness_checks_and_cascades_of_the_contract_hold(contract: Connection) -> None:
    promised, ours = both(contract, CONSTRAINTS)
    assert promised.keys() - ours.keys() == set()
    assert any("ON DELETE CASCADE" in key for key in promised)


def test_added_columns_can_be_left_out_of_an_insert(contract: Connection) -> None:
    promised, ours = both(contract, COLUMNS)
    tables = {name.split(".")[0] for name in promised}
    added = {
        name: text for name, text in ours.items() if name not in promised and name.split(".")[0] in tables
    }
    assert added, "owner and scope at least"
    required = [name for name, text in added.items() if " not null default  generated " in text]
    assert required == []


def test_no_constraint_is_tighter_than_the_contract(contract: Connection) -> None:
    promised, ours = both(contract, CONSTRAINTS)
    tables = {key.split(" ")[0] for key in promised}
    added = {key for key in ours.keys() - promised.keys() if key.split(" ")[0] in tables}
    assert added == set()


def test_every_index_of_the_contract_has_one_that_begins_with_its_columns(contract: Connection) -> None:
    columns = """
        select i.indrelid::regclass::text || ' ' || i.indexrelid::regclass::text, (
            select array_agg(a.attname::text order by k.place)
            from unnest(i.indkey) with ordinality as k (number, place)
            join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.number
        )
        from pg_index as i join pg_class as c on c.oid = i.indexrelid
        where c.relnamespace = %(schema)s::regnamespace and i.indpred is null and i.indexprs is null
    """
    promised, ours = both(contract, columns)
    for key, wanted in promised.items():
        table = key.split(" ")[0]
        found = [have for name, have in ours.items() if name.split(" ")[0] == table]
        assert any(have[: len(wanted)] == wanted for have in found), f"no index for {table} {wanted}"


@pytest.mark.parametrize("change", ["embedding = '[1,2,3]'", "embedding_dim = 768"])
def test_a_vector_of_another_dimension_cannot_be_stored(kept: Connection, change: str) -> None:
    add_data(kept)
    with pytest.raises((psycopg.errors.DataException, psycopg.errors.CheckViolation)):
        kept.execute(f"update rag.embeddings set {change}")


def test_deleting_a_document_deletes_its_chunks_and_embeddings(kept: Connection) -> None:
    add_data(kept)
    kept.execute("delete from rag.documents")
    left = data(kept)
    assert (left["chunks"], left["embeddings"]) == ([], [])
    assert len(left["ingest_runs"]) == 1
