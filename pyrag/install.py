"""Runs the SQL files of `db/` on a database, and checks that what is there fits this version of pyrag."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrag import __version__
from pyrag.errors import SchemaNotInitialized
from pyrag.paths import data_path

if TYPE_CHECKING:
    from psycopg import Connection

_LOCK_KEY = 7_240_315_001  # any fixed number: one installer at a time
_PGVECTOR = "0.8.0"  # has half vectors, and index scans that go on until enough rows pass a filter


@dataclass(frozen=True, slots=True)
class SqlFiles:
    """The files of `db/`: schema, migrations by number, and functions in the order to run them."""

    schema: Path
    drop_functions: Path
    migrations: dict[int, Path]
    functions: tuple[Path, ...]

    @property
    def version(self) -> int:
        """Number of the newest migration; 1 is what `schema.sql` was first released with."""
        return max(self.migrations, default=1)

    @property
    def sha256(self) -> str:
        """One hash over names and contents of all files."""
        digest = hashlib.sha256()
        for path in (self.schema, self.drop_functions, *self.migrations.values(), *self.functions):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class InstallReport:
    """What an installation did."""

    created: bool
    migrations: tuple[str, ...]
    functions: int
    version: int


def sql_files(folder: Path | None = None) -> SqlFiles:
    """The SQL files of this version of pyrag, or of another `db/` folder."""
    folder = folder or data_path("db")
    migrations: dict[int, Path] = {}
    for path in sorted((folder / "migrations").glob("*.sql")):
        match = re.match(r"(\d{4})_", path.name)
        if match is None or int(match[1]) in migrations or int(match[1]) < 2:
            raise SchemaNotInitialized(f"{path}: expected NNNN_what.sql, a new number from 0002 on")
        migrations[int(match[1])] = path
    return SqlFiles(
        folder / "schema.sql",
        folder / "drop_functions.sql",
        migrations,
        tuple(sorted((folder / "functions").glob("*.sql"))),
    )


@cache
def _own_version() -> tuple[int, str]:
    """Version and hash of the SQL files of this pyrag, read once a process."""
    files = sql_files()
    return files.version, files.sha256


def install(connection: Connection[Any], files: SqlFiles | None = None) -> InstallReport:
    """Creates or updates schema `rag` in one transaction; running it again changes nothing.

    Raises `SchemaNotInitialized` when the database is not in UTF-8, pgvector is missing or too old, a foreign
    schema `rag` is in the way, an applied migration has changed, or the database is newer than this pyrag.
    """
    files = files or sql_files()
    with connection.transaction():
        connection.execute("set local search_path = pg_catalog, public")
        connection.execute("set local client_min_messages = warning")
        connection.execute("set local plpgsql.extra_errors = 'all'")
        connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK_KEY])
        _check_encoding(connection)
        _check_pgvector(connection)
        created = not _has_tables(connection)
        applied: list[str] = []
        if created:
            _run_schema(connection, files)
        else:
            _check_history(connection, files)
            _run(connection, files.drop_functions)
            applied = _migrate(connection, files)
        for path in files.functions:
            _run(connection, path)
        _record_migrations(connection, files)
        connection.execute(
            "update rag.install as i set schema_version = %(version)s, sql_sha256 = %(sha256)s,"
            " pyrag_version = %(pyrag)s, installed_at = now()"
            " where (i.schema_version, i.sql_sha256, i.pyrag_version)"
            " is distinct from (%(version)s, %(sha256)s, %(pyrag)s)",
            {"version": files.version, "sha256": files.sha256, "pyrag": __version__},
        )
    return InstallReport(created, tuple(applied), len(files.functions), files.version)


def check_installed(connection: Connection[Any]) -> None:
    """Raises `SchemaNotInitialized` unless the database has the SQL of this version of pyrag.

    A database that psql or Docker's init folder filled has no hash: there the version alone decides.
    """
    from psycopg import errors

    try:
        version, sha256 = _installed(connection)
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        raise SchemaNotInitialized(
            "The database schema has not been initialized.", hint="Run: rag db init"
        ) from None
    expected, expected_sha256 = _own_version()
    if version > expected:
        raise SchemaNotInitialized(
            f"The database has schema version {version}, newer than this pyrag {__version__} ({expected}).",
            hint="Install the newer pyrag.",
        )
    if version < expected or (sha256 is not None and sha256 != expected_sha256):
        raise SchemaNotInitialized(
            "The SQL in the database is not that of this version of pyrag; after an upgrade restart what"
            " still runs the old one.",
            hint="Run: rag db init",
        )


def is_older(version: str, other: str) -> bool:
    """Whether a version such as 0.7.4 is older than another; what is no number is left out."""
    numbers, others = ([int(part) for part in re.findall(r"\d+", each)] for each in (version, other))
    length = max(len(numbers), len(others))
    return numbers + [0] * (length - len(numbers)) < others + [0] * (length - len(others))


def _check_encoding(connection: Connection[Any]) -> None:
    """Raises `SchemaNotInitialized` unless the database is in UTF-8: elsewhere text cannot be folded."""
    row = connection.execute("show server_encoding").fetchone()
    encoding = row[0] if row else None
    if isinstance(encoding, bytes):  # psycopg decodes nothing of a database in SQL_ASCII
        encoding = encoding.decode()
    if encoding != "UTF8":
        raise SchemaNotInitialized(
            f"The database {connection.info.dbname} has the encoding {encoding}; pyrag needs UTF8.",
            hint="Use another database: create database NAME template template0 encoding 'UTF8'",
        )


def _check_pgvector(connection: Connection[Any]) -> None:
    """Raises `SchemaNotInitialized` where the extension, or what the server would install, is too old."""
    row = connection.execute(
        "select x.extversion, a.default_version from (select 1) as one"
        " left join pg_extension as x on x.extname = 'vector'"
        " left join pg_available_extensions as a on a.name = 'vector'"
    ).fetchone()
    present, offered = row or (None, None)
    found = present or offered
    if found is None or not is_older(found, _PGVECTOR):  # with none at all the schema says what to do
        return
    where = connection.info.dbname
    if present and offered and not is_older(offered, _PGVECTOR):
        hint = f"Ask an administrator to run in {where}: alter extension vector update;"
    else:
        hint = (
            f"Update pgvector on the server to {_PGVECTOR} or later, or use the image pgvector/pgvector:pg16."
        )
        if present:
            hint += f"\nThen run in {where}: alter extension vector update;"
    place = f"The extension vector in database {where}" if present else "The pgvector of this Postgres server"
    raise SchemaNotInitialized(
        f"{place} has version {found}; pyrag needs {_PGVECTOR} or later. Nothing was changed.", hint=hint
    )


def _has_tables(connection: Connection[Any]) -> bool:
    if _table_exists(connection, "rag.install"):
        return True
    found = connection.execute(
        "select pg_describe_object(d.classid, d.objid, d.objsubid) from pg_depend as d"
        " join pg_namespace as n on d.refclassid = 'pg_namespace'::regclass and d.refobjid = n.oid"
        " where n.nspname = 'rag' order by 1 limit 1"
    ).fetchone()
    if found:
        raise SchemaNotInitialized(
            f"The database has a schema rag that pyrag did not make (it holds {found[0]}).",
            hint="Use another database, or rename that schema.",
        )
    return False


def _table_exists(connection: Connection[Any], name: str) -> bool:
    row = connection.execute("select to_regclass(%s) is not null", [name]).fetchone()
    return bool(row and row[0])


def _run(connection: Connection[Any], path: Path) -> None:
    connection.execute(path.read_bytes())


def _run_schema(connection: Connection[Any], files: SqlFiles) -> None:
    from psycopg import errors

    try:
        _run(connection, files.schema)
    except errors.InsufficientPrivilege as error:
        where = connection.info.dbname
        if "extension" not in str(error):
            raise
        raise SchemaNotInitialized(
            f"The extension vector is not installed in database {where}, and this role may not install it.",
            hint=f"Ask an administrator to run in {where}: create extension vector;",
        ) from None
    except (errors.UndefinedFile, errors.FeatureNotSupported) as error:
        if "vector" not in str(error):
            raise
        raise SchemaNotInitialized(
            "This Postgres server has no pgvector: its extension files are missing.",
            hint="Install pgvector on the server, or use the image pgvector/pgvector:pg16.",
        ) from None
    except errors.UndefinedObject:
        raise SchemaNotInitialized(
            "The extension vector is installed, but not in schema public.",
            hint="Ask an administrator to run: alter extension vector set schema public;",
        ) from None


def _installed(connection: Connection[Any]) -> tuple[int, str | None]:
    row = connection.execute("select i.schema_version, i.sql_sha256 from rag.install as i").fetchone()
    if row is None:
        raise SchemaNotInitialized("Table rag.install is empty.", hint="Restore the database from a backup.")
    return row[0], row[1]


def _check_history(connection: Connection[Any], files: SqlFiles) -> None:
    version, _ = _installed(connection)
    if version > files.version:
        raise SchemaNotInitialized(
            f"The database has schema version {version}; this pyrag {__version__} knows {files.version}.",
            hint="Install the newer pyrag. Nothing was changed.",
        )
    rows = connection.execute("select m.version, m.name, m.sha256 from rag.migrations as m").fetchall()
    for number, name, sha256 in rows:
        path = files.migrations.get(number)
        if path is None or _sha256(path) != sha256:
            raise SchemaNotInitialized(
                f"Migration {name} was applied to this database, but its file has changed or is gone.",
                hint="Restore the file; a change of a table is a new migration. Nothing was changed.",
            )


def _migrate(connection: Connection[Any], files: SqlFiles) -> list[str]:
    version, _ = _installed(connection)
    pending = [files.migrations[number] for number in sorted(files.migrations) if number > version]
    for path in pending:
        _run(connection, path)
    return [path.name for path in pending]


def _record_migrations(connection: Connection[Any], files: SqlFiles) -> None:
    for number, path in files.migrations.items():
        connection.execute(
            "insert into rag.migrations (version, name, sha256) values (%s, %s, %s) on conflict do nothing",
            [number, path.name, _sha256(path)],
        )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
