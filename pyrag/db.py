"""The only module with SQL beside install.py: one method for one function of schema `rag`."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import struct
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.rows import class_row, dict_row

from pyrag import __version__
from pyrag.config import mask_password
from pyrag.errors import (
    DatabaseUnavailable,
    InternalError,
    InvalidConfiguration,
    InvalidRequest,
    Overloaded,
    PyragError,
    SchemaNotInitialized,
    VaultBusy,
    error_classes,
)
from pyrag.install import InstallReport, check_installed, install
from pyrag.models import (
    Candidate,
    Chunk,
    Decision,
    EmbeddingInput,
    Explained,
    Hit,
    ManifestEntry,
    Neighbours,
    NoteFound,
    NotePath,
    NoteTrace,
    OpenItem,
    PlanItem,
    Policy,
    QuoteVerdict,
    RankedChunk,
    Retrieval,
    Term,
    Vector,
)

if TYPE_CHECKING:
    from pgvector import Vector as PgVector
    from psycopg_pool import ConnectionPool

T = TypeVar("T")

_BY_SQLSTATE = {cls.sqlstate: cls for cls in error_classes() if cls.sqlstate}
_NOT_INSTALLED = {"3F000", "42P01", "42883"}  # schema, table, function missing
_UNAVAILABLE = ("08", "57P")  # connection lost, server shutting down
_CONNECT_TIMEOUT_SECONDS = 5
_POOL_TIMEOUT_SECONDS = 2  # longest wait for a connection of the pool
THROWAWAY_PREFIX = "pyrag_eval_"  # of the names of databases that `Database.throwaway` makes
_RECONNECT_SECONDS = 1  # a failed attempt is not repeated for longer: the next request tries again

# What a search reads, in an order that foreign keys allow, and the columns that are not computed from others.
_INDEX_TABLES = (
    "documents", "chunks", "embeddings", "chunk_terms", "uncounted_terms", "term_counts", "calibrations"
)  # fmt: skip
_STORED_COLUMNS = (
    "select a.attname from pg_attribute as a where a.attrelid = %s::regclass and a.attnum > 0"
    " and not a.attisdropped and a.attgenerated = '' order by a.attnum"
)

_DECIDED = """
    select
        r.*, d.mode, d.rule, d.reason, d.confidence, d.threshold, d.min_similarity, d.similarity, d.cjk_share,
        d.calibration
    from (values (%(provider)s, %(model)s)) as i (provider, model)
    left join {}(
        %(question)s, %(vector)s::public.vector, %(provider)s, %(model)s, %(dim)s, %(top_k)s, %(filter)s,
        %(retrieval)s
    ) as r on true
    cross join lateral rag.decide_mode(
        r.confidence,
        case when r.confidence is not null then r.calibration else
        (select f.origin from rag.find_calibration(i.provider, i.model, %(retrieval)s) as f) end,
        r.best_similarity, r.best_coverage, r.cjk_share, %(min_confidence)s, %(min_similarity)s,
        %(usual_similarity)s, %(fallback)s, %(fallback_enabled)s
    ) as d
"""
_CONNECTION_OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": _CONNECT_TIMEOUT_SECONDS,
    "application_name": "pyrag",
}


@dataclass(frozen=True, slots=True)
class Index:
    """One embedding configuration: the three columns that retrieval filters by."""

    provider: str
    model: str
    dim: int


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """The row of `rag.index_status`."""

    documents: int
    chunks: int
    embeddings_current_config: int
    retrieval_ready: bool


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A row of `rag.list_chunk_inputs`: a stored chunk that is to be embedded."""

    chunk_id: int
    content: str
    heading_path: list[str]
    relative_path: str
    tags: list[str]
    wikilinks: list[str]

    def embedding_input(self) -> EmbeddingInput:
        """The same as an embedder reads it."""
        return EmbeddingInput(
            self.content,
            tuple(self.heading_path),
            self.relative_path,
            tuple(self.tags),
            tuple(self.wikilinks),
        )


@dataclass(frozen=True, slots=True)
class DocumentWrite:
    """A file as it is to be stored: the columns of `rag.documents`, its chunks, and what was embedded.

    `input_hashes` runs parallel to `chunks`; `vectors` holds the new vectors by input hash.
    """

    relative_path: str
    file_path: str
    content_hash: str
    mtime_ns: int
    size_bytes: int
    frontmatter: dict[str, Any]
    warnings: tuple[str, ...]
    chunks: Sequence[Chunk]
    input_hashes: Sequence[str]
    vectors: dict[str, Vector]


class Database:
    """One Postgres database; each method uses a connection for as long as it needs one.

    With `pool_size` connections are kept open, at most so many; without, each call opens its own. The pool
    opens with the first call, so that a process may fork before. `embedded` is for the hint of an error.
    """

    def __init__(self, url: str, pool_size: int = 0, *, embedded: bool = False) -> None:
        self.url = url
        self.embedded = embedded
        self.pool_size = pool_size
        self._pool: ConnectionPool | None = None
        self._pool_lock = threading.Lock()

    def install(self) -> InstallReport:
        """Creates or updates schema `rag`; see `install.install`."""
        with self._connection() as connection:
            return install(connection)

    def fill_terms(self, limit: int) -> int:
        """`rag.fill_terms`: makes the terms of up to `limit` chunks that have none; how many it made."""
        return int(self._rows("select rag.fill_terms(%s) as made", [limit])[0]["made"])

    def close(self) -> None:
        """Closes the connections of the pool."""
        with self._pool_lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def retrieve(
        self,
        question: str,
        vector: Vector,
        index: Index,
        top_k: int,
        retrieval: Retrieval,
        policy: Policy,
        filter: dict[str, Any] | None = None,
    ) -> tuple[list[Hit], Decision]:
        """`rag.retrieve`: the chunks that fit a question best, and `rag.decide_mode` on them.

        `filter` as `rag.check_filter` takes it.
        """
        values = _retrieval_values(question, vector, index, top_k, retrieval, policy, filter)
        with (
            self._connection(check=True) as connection,
            connection.cursor(row_factory=dict_row) as cursor,
        ):
            rows = cursor.execute(sql.SQL(_DECIDED).format(sql.SQL("rag.retrieve")), values).fetchall()
        hits = [_part(Hit, row) for row in rows if row["chunk_id"] is not None]
        return hits, _decision(rows[0])

    def explain(
        self,
        question: str,
        vector: Vector,
        index: Index,
        top_k: int,
        retrieval: Retrieval,
        policy: Policy,
        filter: dict[str, Any] | None = None,
        note: tuple[int, str | None] | None = None,
    ) -> Explained:
        """`rag.explain_retrieval` with `rag.decide_mode`, `rag.weigh_question`, and `rag.rank_note`.

        `note` is the id of a document and a heading. All of one state of the database. If no chunk of the
        note passes the filter, its chunks are placed as without one.
        """
        values = _retrieval_values(question, vector, index, top_k, retrieval, policy, filter)
        with (
            self._connection(check=True) as connection,
            connection.transaction(),
            connection.cursor(row_factory=dict_row) as cursor,
        ):
            cursor.execute("set transaction isolation level repeatable read, read only")
            rows = cursor.execute(
                sql.SQL(_DECIDED).format(sql.SQL("rag.explain_retrieval")), values
            ).fetchall()
            terms = cursor.execute(
                "select w.term, w.chunks, w.weight from rag.weigh_question(%(question)s,"
                " rtrim(%(filter)s::jsonb ->> 'vault', '/')) as w where %(retrieval)s <> 'vector'",
                values,
            ).fetchall()
            ranked: list[RankedChunk] = []
            for lifted in ("{}",) if note is None else (values["filter"], "{}"):
                if note is None or any(each.passes for each in ranked):
                    break
                found = cursor.execute(
                    "select * from rag.rank_note(%(document_id)s, %(heading)s, %(question)s,"
                    " %(vector)s::public.vector, %(provider)s, %(model)s, %(dim)s, %(lifted)s,"
                    " %(retrieval)s)",
                    {**values, "document_id": note[0], "heading": note[1], "lifted": lifted},
                ).fetchall()
                passes = lifted == values["filter"]
                ranked = [_part(RankedChunk, {**row, "passes": row["passes"] and passes}) for row in found]
        candidates = [
            Candidate(_part(Hit, row), row["place"], row["state"])
            for row in rows
            if row["chunk_id"] is not None
        ]
        return Explained(candidates, _decision(rows[0]), [_part(Term, row) for row in terms], ranked)

    def locate_note(self, path: str, vault: str | None) -> NotePath:
        """`rag.locate_note`, and `rag.trace_note` and `rag.suggest_paths` where it finds nothing.

        What follows a `#` is a heading, unless the whole names a note or a file that the ledger knows.
        """
        with (
            self._connection(check=True) as connection,
            connection.cursor(row_factory=dict_row) as cursor,
        ):
            readings = _readings(path)
            for name, heading in readings:
                notes = cursor.execute("select * from rag.locate_note(%s, %s)", [name, vault]).fetchall()
                traces = cursor.execute(
                    "select * from rag.trace_note(%s, %s) where not %s", [name, vault, bool(notes)]
                ).fetchall()
                if notes or traces:
                    found = [_part(NoteFound, row) for row in notes]
                    return NotePath(name, heading, found, _part(NoteTrace, traces[0]) if traces else None)
            similar = cursor.execute("select * from rag.suggest_paths(%s)", [readings[-1][0]]).fetchall()
            known = cursor.execute(
                "select exists (select 1 from rag.documents as d where d.owner is null) as known"
            ).fetchall()
        paths = [(row["vault_path"], row["relative_path"]) for row in similar]
        return NotePath(path, None, [], None, paths, known[0]["known"])

    def list_neighbours(self, chunk_ids: Sequence[int]) -> dict[int, Neighbours]:
        """`rag.list_neighbours`: the text around each of these chunks in its section, by chunk id."""
        with self._connection() as connection, connection.cursor(row_factory=class_row(Neighbours)) as cursor:
            rows = cursor.execute("select * from rag.list_neighbours(%s)", [list(chunk_ids)]).fetchall()
        return {row.chunk_id: row for row in rows}

    def verify_quotes(self, quotes: Sequence[tuple[int, str]], sources: Sequence[str]) -> list[QuoteVerdict]:
        """`rag.verify_quotes`: whether each (number, quote) stands in the source of that number, from 1."""
        with (
            self._connection() as connection,
            connection.cursor(row_factory=class_row(QuoteVerdict)) as cursor,
        ):
            return cursor.execute(
                "select * from rag.verify_quotes(%s::integer[], %s::text[], %s::text[])",
                [[number for number, _ in quotes], [quote for _, quote in quotes], list(sources)],
            ).fetchall()

    def find_unknown_sources(self, sources: Sequence[str], index: Index) -> list[str]:
        """`rag.find_unknown_sources`: those of these paths that the index does not hold."""
        rows = self._rows(
            "select * from rag.find_unknown_sources(%s, %s, %s, %s)",
            [list(sources), index.provider, index.model, index.dim],
        )
        return [row["source"] for row in rows]

    def list_calibrations(self, index: Index) -> list[dict[str, Any]]:
        """`rag.list_calibrations`: all, by column names; `in_force` marks those that count for the index."""
        return self._rows("select * from rag.list_calibrations(%s, %s)", [index.provider, index.model])

    def set_calibration(
        self,
        index: Index,
        retrieval: Retrieval,
        weights: Sequence[float],
        fitted_on: str,
        answerable: int,
        unanswerable: int,
        auroc: float,
        wrong_answers: float,
        wrong_refusals: float,
    ) -> None:
        """`rag.set_calibration`: puts a calibration of one's own in force."""
        query = "select rag.set_calibration(%s, %s, %s, %s::float8[], %s, %s, %s, %s, %s, %s)::text as done"
        about = [index.provider, index.model, retrieval, list(weights), fitted_on]
        with self._writing_calibrations():
            self._rows(query, [*about, answerable, unanswerable, auroc, wrong_answers, wrong_refusals])

    def copy_calibration(self, index: Index, row: dict[str, Any]) -> None:
        """`set_calibration` with a row of `list_calibrations`, perhaps of another database."""
        weights = ("intercept", "similarity_weight", "coverage_weight", "cjk_weight")
        figures = ("answerable", "unanswerable", "auroc", "wrong_answers", "wrong_refusals")
        self.set_calibration(
            index,
            row["retrieval"],
            [row[name] for name in weights],
            row["fitted_on"],
            *(row[name] for name in figures),
        )

    def drop_calibration(self, index: Index, retrieval: Retrieval) -> bool:
        """`rag.drop_calibration`: takes one's own out of force; whether there was one."""
        query = "select rag.drop_calibration(%s, %s, %s) as dropped"
        with self._writing_calibrations():
            rows = self._rows(query, [index.provider, index.model, retrieval])
        return bool(rows[0]["dropped"])

    @contextmanager
    def _writing_calibrations(self) -> Iterator[None]:
        """Names role, table and grant where the right to write calibrations is missing."""
        try:
            yield
        except PyragError as error:
            if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
                raise
            role = self._rows("select pg_catalog.quote_ident(current_user) as role", [])[0]["role"]
            raise InternalError(
                f"Role {role} may not write the table rag.calibrations",
                hint="Its owner can allow that: grant select, insert, update, delete on rag.calibrations"
                f" to {role}",
            ) from None

    def cjk_share(self, question: str) -> float | None:
        """`rag.cjk_share`: how far a question is Chinese, Japanese or Korean; None without any words."""
        share = self._rows("select rag.cjk_share(%s) as share", [question])[0]["share"]
        return None if share is None else float(share)

    def close_dead_runs(self) -> int:
        """`rag.close_dead_runs`: runs whose process is gone are marked as interrupted; how many."""
        return int(self._rows("select rag.close_dead_runs() as closed", [])[0]["closed"])

    def fail_run(self, run_id: int, error_summary: str) -> None:
        """`rag.fail_run` over another connection than the run's own."""
        self._rows("select r.id from rag.fail_run(%s, %s) as r", [run_id, error_summary])

    def preview_ingest(
        self, vault_path: str, entries: Sequence[ManifestEntry], index: Index, allow_mass_delete: bool
    ) -> list[PlanItem]:
        """`rag.preview_ingest`: what a run would do with each file, unchanged ones too; writes nothing."""
        with (
            self._connection(check=True) as connection,
            connection.cursor(row_factory=class_row(PlanItem)) as cursor,
        ):
            return cursor.execute(
                "select * from rag.preview_ingest(%s, %s, %s, %s, %s, %s)",
                [
                    vault_path,
                    _manifest(entries),
                    index.provider,
                    index.model,
                    index.dim,
                    allow_mass_delete,
                ],
            ).fetchall()

    def list_runs(
        self, limit: int, vault_path: str | None = None, run_id: int | None = None
    ) -> list[dict[str, Any]]:
        """`rag.list_runs`: the newest runs by column names, newest first."""
        return self._rows("select * from rag.list_runs(%s, %s, %s)", [limit, vault_path, run_id])

    def list_run_items(self, run_id: int, unchanged: bool) -> list[dict[str, Any]]:
        """`rag.list_run_items`: what a run planned and did. Raises `NotFound` for an unknown run."""
        return self._rows("select * from rag.list_run_items(%s, %s)", [run_id, unchanged])

    def list_vaults(self, index: Index) -> list[dict[str, Any]]:
        """`rag.list_vaults`: what is stored of each vault, and its last run."""
        return self._rows(
            "select * from rag.list_vaults(%s, %s, %s)", [index.provider, index.model, index.dim]
        )

    def list_coverage(self) -> list[dict[str, Any]]:
        """`rag.list_coverage`: chunks of each vault embedded by each configuration."""
        return self._rows("select * from rag.list_coverage()", [])

    def forget(self, vault_path: str, path: str | None, confirmed: bool) -> dict[str, int]:
        """`rag.forget`: counts of what is stored of a vault or a path below it; `confirmed` removes it."""
        return self._rows("select * from rag.forget(%s, %s, %s)", [vault_path, path, confirmed])[0]

    def move_vault(self, old_path: str, new_path: str) -> int:
        """`rag.move_vault`: another path for all that is stored of a vault; the number of documents."""
        return int(self._rows("select rag.move_vault(%s, %s) as moved", [old_path, new_path])[0]["moved"])

    def find_inconsistencies(self) -> list[dict[str, Any]]:
        """`rag.find_inconsistencies`: what does not fit together; mostly nothing."""
        return self._rows("select * from rag.find_inconsistencies()", [])

    def _rows(self, query: str, parameters: list[Any]) -> list[dict[str, Any]]:
        with (
            self._connection(check=True) as connection,
            connection.cursor(row_factory=dict_row) as cursor,
        ):
            return [_plain(row) for row in cursor.execute(sql.SQL(query), parameters).fetchall()]

    def ping(self) -> None:
        """Raises `DatabaseUnavailable` unless the database can be reached."""
        with self._connection():
            pass

    def answers(self) -> bool:
        """Whether the database can be reached."""
        try:
            self.ping()
        except DatabaseUnavailable:
            return False
        return True

    def index_status(self, index: Index) -> IndexStatus:
        """`rag.index_status`: what is stored, and whether it can be searched.

        Raises `SchemaNotInitialized` also when pgvector has gone missing.
        """
        with (
            self._connection(check=True) as connection,
            connection.cursor(row_factory=class_row(IndexStatus)) as cursor,
        ):
            found = connection.execute("select to_regtype('public.vector') is not null").fetchone()
            if not (found and found[0]):
                raise SchemaNotInitialized(
                    "The extension vector is missing from the database.",
                    hint="Restore the database, or run in an empty one: rag db init",
                )
            row = cursor.execute(
                "select * from rag.index_status(%s, %s, %s)", [index.provider, index.model, index.dim]
            ).fetchone()
            assert row is not None
            return row

    def vector_index_status(self, index: Index) -> dict[str, Any] | None:
        """`rag.vector_index_status`: the approximate index by column names; None: there is none."""
        rows = self._rows(
            "select * from rag.vector_index_status(%s, %s, %s)", [index.provider, index.model, index.dim]
        )
        return rows[0] if rows else None

    def index_progress(self, index: Index) -> dict[str, Any] | None:
        """`rag.index_progress`: how far a build of the approximate index is; None: none is under way."""
        rows = self._rows(
            "select * from rag.index_progress(%s, %s, %s)", [index.provider, index.model, index.dim]
        )
        return rows[0] if rows else None

    def check_index_recall(self, index: Index, questions: int, top_k: int) -> bool:
        """`rag.check_index_recall`: measures the approximate index and keeps the result.

        False if there is no complete index, or too few vectors to compare.
        """
        rows = self._rows(
            "select k.recall from rag.check_index_recall(%s, %s, %s, %s, %s) as k",
            [index.provider, index.model, index.dim, questions, top_k],
        )
        return bool(rows)

    def forget_index_check(self, index: Index) -> None:
        """`rag.forget_index_check`: what was measured counts no longer."""
        self._rows("select rag.forget_index_check(%s, %s, %s)", [index.provider, index.model, index.dim])

    @contextmanager
    def index_session(self, index: Index) -> Iterator[IndexSession]:
        """A connection that alone makes or drops the approximate index, as long as the block lasts.

        Raises `VaultBusy` when another session does so, or when somebody builds it by hand.
        """
        values = [index.provider, index.model, index.dim]
        with self._connection(check=True) as connection, connection.cursor() as cursor:
            row = cursor.execute(
                "select n.name, pg_try_advisory_lock(hashtextextended('rag.' || n.name, 0)),"
                " exists (select 1 from rag.index_progress(%s, %s, %s))"
                " from rag.vector_index_name(%s, %s, %s) as n (name)",
                [*values, *values],
            ).fetchone()
            assert row is not None
            name, alone, built = row
            if built or not alone:
                raise VaultBusy(
                    "Another session builds or drops the approximate index right now.",
                    hint="See how far it is with: rag db index status",
                )
            connection.execute("set statement_timeout = 0")
            yield IndexSession(connection, index, name)

    @contextmanager
    def throwaway(self, pool_size: int = 2) -> Iterator[Database]:
        """A new database with schema `rag` on the same server, dropped at the end of the block in any case.

        Raises `InvalidConfiguration` when the role of the URL may not create databases or install pgvector.
        """
        name = f"{THROWAWAY_PREFIX}{secrets.token_hex(6)}"
        database = Database(_url_of_other(self.url, name), pool_size, embedded=self.embedded)
        self.ping()
        try:
            with self._connection() as connection:
                _create_database(connection, name)
            try:
                database.install()
            except SchemaNotInitialized as error:
                hint = error.hint.replace(f"run in {name}", "run in template1")  # this one is gone by then
                raise InvalidConfiguration(error.message, hint=hint) from None
            yield database
        finally:
            database.close()
            self._drop(name)

    def copy_index(self, target: Database, index: Index) -> None:
        """Copies what is stored, with the vectors of this index alone, to an empty schema `rag`."""
        only = {
            "embeddings": sql.SQL(
                " where (embedding_provider, embedding_model, embedding_dim) = ({})"
            ).format(sql.SQL(", ").join(map(sql.Literal, (index.provider, index.model, index.dim)))),
            "calibrations": sql.SQL(" where origin = 'calibrated'"),
        }
        with (
            self._connection(check=True) as source,
            target._connection(check=True) as other,
            source.transaction(),
            other.transaction(),
        ):
            source.execute("set transaction isolation level repeatable read, read only")  # one state of all
            for table in _INDEX_TABLES:
                names = source.execute(_STORED_COLUMNS, [f"rag.{table}"]).fetchall()
                columns = sql.SQL(", ").join(sql.Identifier(name) for (name,) in names)
                place = sql.Identifier("rag", table)
                query = sql.SQL("select {} from {}{}").format(columns, place, only.get(table, sql.SQL("")))
                with (
                    source.cursor().copy(sql.SQL("copy ({}) to stdout").format(query)) as reading,
                    other.cursor().copy(sql.SQL("copy {} ({}) from stdin").format(place, columns)) as writing,
                ):
                    for data in reading:
                        writing.write(data)
                other.execute(sql.SQL("analyze {}").format(place))

    @contextmanager
    def without(self, sources: Sequence[str]) -> Iterator[Database]:
        """This database as if notes of these paths had never been stored, for the length of the block.

        All that is asked of it runs in one transaction, which is rolled back.
        """
        with self._connection() as connection, connection.transaction(force_rollback=True):
            connection.execute(
                "delete from rag.documents as d where d.relative_path = any(%s)", [list(sources)]
            )
            yield _Within(self.url, connection)

    def _drop(self, name: str) -> None:
        statement = sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
        try:
            with self._connection() as connection:
                connection.execute(statement)
        except PyragError as error:
            raise InternalError(
                f"The throw-away database {name} could not be dropped: {error.message}",
                hint=f"Drop it yourself: drop database if exists {name} with (force)",
            ) from None

    @contextmanager
    def ingest_session(self) -> Iterator[IngestSession]:
        """A connection of its own for one run: the run lives as long as this connection."""
        from pgvector.psycopg.vector import register_vector_info
        from psycopg.types import TypeInfo

        with self._connection(check=True) as connection:
            register_vector_info(connection, TypeInfo.fetch(connection, "public.vector"))
            # No wait for the disk at each document: rag.end_run waits once for all of them. A server that
            # crashes meanwhile forgets whole documents at the end of the run, which the next run finds.
            connection.execute("set synchronous_commit = off")
            yield IngestSession(connection)

    @contextmanager
    def _connection(self, check: bool = False) -> Iterator[psycopg.Connection[Any]]:
        """An autocommit connection; errors come out as `PyragError`. `check` compares the schema first."""
        with translated_errors(), self._pooled(check) if self.pool_size else self._connect() as connection:
            if check and not self.pool_size:
                check_installed(connection)
            yield connection

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            return psycopg.connect(self.url, **_CONNECTION_OPTIONS)
        except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
            raise _unreachable(self.url, self.embedded, error) from None

    @contextmanager
    def _pooled(self, check: bool) -> Iterator[psycopg.Connection[Any]]:
        """A connection of the pool, tried before use. Raises `Overloaded` when all stay busy."""
        from psycopg_pool import ConnectionPool, PoolTimeout

        with self._pool_lock:
            if self._pool is None:
                self._pool = ConnectionPool(
                    self.url,
                    kwargs=_CONNECTION_OPTIONS,
                    min_size=1,
                    max_size=self.pool_size,
                    timeout=_POOL_TIMEOUT_SECONDS,
                    reconnect_timeout=_RECONNECT_SECONDS,
                    name="pyrag",
                    open=True,
                )
            pool = self._pool
        try:
            connection = _live_connection(pool, check_installed if check else pool.check_connection)
        except PoolTimeout:
            self._connect().close()  # says why the database cannot be reached, if that is the reason
            raise Overloaded(
                f"All {self.pool_size} database connections have been busy for {_POOL_TIMEOUT_SECONDS} s.",
                hint="Try again in a moment.",
            ) from None
        try:
            yield connection
        finally:
            pool.putconn(connection)


class _Within(Database):
    """The database as one connection sees it in its transaction."""

    def __init__(self, url: str, connection: psycopg.Connection[Any]) -> None:
        super().__init__(url)
        self._open = connection

    @contextmanager
    def _connection(self, check: bool = False) -> Iterator[psycopg.Connection[Any]]:
        with translated_errors():
            yield self._open


class IngestSession:
    """The functions of one ingest run, over one connection; each call is one transaction."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def begin_run(self, vault_path: str, index: Index) -> int:
        """`rag.begin_run`: the number of the new run."""
        about = {"host": socket.gethostname(), "pid": os.getpid(), "pyrag": __version__}
        row = self._one(
            "select rag.begin_run(%s, %s, %s, %s, %s) as run_id",
            [vault_path, index.provider, index.model, index.dim, json.dumps(about)],
        )
        return int(row["run_id"])

    def record_plan(
        self, run_id: int, entries: Sequence[ManifestEntry], allow_mass_delete: bool
    ) -> list[PlanItem]:
        """`rag.record_plan`: what is to be done, in order; unchanged files are not among it."""
        with translated_errors(), self._connection.cursor(row_factory=class_row(PlanItem)) as cursor:
            return cursor.execute(
                "select * from rag.record_plan(%s, %s, %s)", [run_id, _manifest(entries), allow_mass_delete]
            ).fetchall()

    def known_input_hashes(self, hashes: Sequence[str], index: Index) -> set[str]:
        """`rag.known_input_hashes`: those of the hashes that have a vector already."""
        rows = self._all(
            "select k.input_hash from rag.known_input_hashes(%s, %s, %s, %s) as k",
            [list(hashes), index.provider, index.model, index.dim],
        )
        return {row["input_hash"] for row in rows}

    def replace_document(self, run_id: int, document: DocumentWrite) -> None:
        """`rag.replace_document`: stores document, chunks and embeddings in one transaction."""
        positions = {key: number for number, key in enumerate(document.vectors, start=1)}
        chunks = [
            {
                "chunk_index": chunk.chunk_index,
                "content": chunk.content,
                "heading_path": chunk.heading_path,
                "tags": chunk.tags,
                "wikilinks": chunk.wikilinks,
                "metadata": chunk.metadata,
                "content_hash": chunk.content_hash,
                "token_count": chunk.token_count,
                "input_hash": input_hash,
                "embedding": positions.get(input_hash),
            }
            for chunk, input_hash in zip(document.chunks, document.input_hashes, strict=True)
        ]
        about = {
            "file_path": document.file_path,
            "content_hash": document.content_hash,
            "mtime_ns": document.mtime_ns,
            "size_bytes": document.size_bytes,
            "frontmatter": document.frontmatter,
            "warnings": document.warnings,
        }
        self._one(
            "select rag.replace_document(%s, %s, %s, %s, %b::public.vector[]) as id",
            [
                run_id,
                document.relative_path,
                json.dumps(about, ensure_ascii=False, allow_nan=False),
                json.dumps(chunks, ensure_ascii=False, allow_nan=False),
                [_sendable(vector) for vector in document.vectors.values()],
            ],
        )

    def list_chunk_inputs(self, run_id: int, relative_path: str) -> list[StoredChunk]:
        """`rag.list_chunk_inputs`: the chunks of a document that lack an embedding."""
        with translated_errors(), self._connection.cursor(row_factory=class_row(StoredChunk)) as cursor:
            return cursor.execute(
                "select * from rag.list_chunk_inputs(%s, %s)", [run_id, relative_path]
            ).fetchall()

    def add_embeddings(
        self,
        run_id: int,
        relative_path: str,
        chunk_ids: Sequence[int],
        input_hashes: Sequence[str],
        vectors: dict[str, Vector],
    ) -> None:
        """`rag.add_embeddings`: the missing vectors of an unchanged document."""
        parallel = [vectors.get(key) for key in input_hashes]
        self._one(
            "select rag.add_embeddings(%s, %s, %s, %s, %b::public.vector[]) as n",
            [
                run_id,
                relative_path,
                list(chunk_ids),
                list(input_hashes),
                [None if vector is None else _sendable(vector) for vector in parallel],
            ],
        )

    def fail_item(self, run_id: int, relative_path: str, error: str) -> None:
        """`rag.fail_item`: this file could not be stored."""
        self._one("select rag.fail_item(%s, %s, %s)", [run_id, relative_path, error])

    def retract_item(self, run_id: int, relative_path: str) -> None:
        """`rag.retract_item`: this file vanished after the plan."""
        self._one("select rag.retract_item(%s, %s)", [run_id, relative_path])

    def delete_documents(self, run_id: int, allow_mass_delete: bool) -> None:
        """`rag.delete_documents`: the documents whose files are gone."""
        self._one("select rag.delete_documents(%s, %s)", [run_id, allow_mass_delete])

    def finish_run(self, run_id: int) -> dict[str, Any]:
        """`rag.finish_run`: closes the run; its row by column names, times as ISO 8601 text."""
        return _plain(self._one("select * from rag.finish_run(%s)", [run_id]))

    def fail_run(self, run_id: int, error_summary: str) -> dict[str, Any]:
        """`rag.fail_run`: closes a run that broke."""
        return _plain(self._one("select * from rag.fail_run(%s, %s)", [run_id, error_summary]))

    def list_open_items(self, run_id: int) -> list[OpenItem]:
        """`rag.list_open_items`: files that failed, and withheld deletions."""
        with translated_errors(), self._connection.cursor(row_factory=class_row(OpenItem)) as cursor:
            return cursor.execute("select * from rag.list_open_items(%s)", [run_id]).fetchall()

    def _one(self, query: str, parameters: list[Any]) -> dict[str, Any]:
        return self._all(query, parameters)[0]

    def _all(self, query: str, parameters: list[Any]) -> list[dict[str, Any]]:
        with translated_errors(), self._connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(sql.SQL(query), parameters).fetchall()


class IndexSession:
    """Makes and drops the approximate index of one embedding configuration, over one connection."""

    def __init__(self, connection: psycopg.Connection[Any], index: Index, name: str) -> None:
        self._connection = connection
        self._index = index
        self._name = name

    def memory(self) -> int:
        """Bytes of maintenance_work_mem: what a build may use before it slows down."""
        with translated_errors():
            row = self._connection.execute(
                "select pg_size_bytes(current_setting('maintenance_work_mem'))"
            ).fetchone()
            assert row is not None
            return int(row[0])

    def set_memory(self, size: str) -> None:
        """Another maintenance_work_mem for this session, such as 2GB."""
        with translated_errors():
            self._connection.execute("select set_config('maintenance_work_mem', %s, false)", [size])

    def use_one_process(self) -> None:
        """No parallel workers in this session: those share memory that containers often lack."""
        with translated_errors():
            self._connection.execute("set max_parallel_maintenance_workers = 0")

    def create(self) -> None:
        """Builds the index while others read and write.

        Ctrl-C cancels it in the server. A build that fails leaves an index that is not valid.
        """
        statement = sql.SQL(
            "create index concurrently {} on rag.embeddings"
            " using hnsw (embedding_half public.halfvec_ip_ops)"
            " where embedding_provider = {} and embedding_model = {} and embedding_dim = {}"
        ).format(
            sql.Identifier(self._name),
            sql.Literal(self._index.provider),
            sql.Literal(self._index.model),
            sql.Literal(self._index.dim),
        )
        with translated_errors():
            self._connection.execute(statement)

    def drop(self) -> None:
        """Drops the index while others read and write; nothing happens if there is none."""
        with translated_errors():
            self._connection.execute(
                sql.SQL("drop index concurrently if exists rag.{}").format(sql.Identifier(self._name))
            )


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turns every `psycopg.Error` of the block into a `PyragError`."""
    try:
        yield
    except psycopg.Error as error:
        raise translate_error(error) from error


def translate_error(error: psycopg.Error) -> PyragError:
    """The `PyragError` for an error of psycopg or of a rag function, its hint kept."""
    state = error.sqlstate or ""
    message = error.diag.message_primary or _first_line(error)
    hint = error.diag.message_hint or ""
    if state in _BY_SQLSTATE:
        return _BY_SQLSTATE[state](message, hint=hint)
    if state in _NOT_INSTALLED:
        return SchemaNotInitialized(
            f"The database schema does not fit this version of pyrag: {message}", hint="Run: rag db init"
        )
    if state == "2BP01":
        return InternalError(
            f"{message}: {error.diag.message_detail}",
            hint="Keep the definition of what depends on it, drop that, run the command again, make it anew.",
        )
    if state == "42501":
        return InternalError(
            f"The database refuses: {message}",
            hint="Ask its administrator for rights on schema rag, its tables and functions.",
        )
    if state.startswith("53"):
        return DatabaseUnavailable(
            f"The database has no room left: {message}",
            hint="Give it disk space, memory or connections, then run the command again.",
        )
    if not state or state.startswith(_UNAVAILABLE):
        return DatabaseUnavailable(
            f"The database went away: {message}", hint="Check the server, then run the command again."
        )
    if state.startswith("22"):
        return InvalidRequest(f"The database refused a value: {message}", hint=hint)
    return InternalError(f"The database reports {state}: {message}", hint=hint)


def _retrieval_values(
    question: str,
    vector: Vector,
    index: Index,
    top_k: int,
    retrieval: Retrieval,
    policy: Policy,
    filter: dict[str, Any] | None,
) -> dict[str, Any]:
    """The parameters of `_DECIDED`."""
    return {
        "question": question,
        "vector": _vector_text(vector),
        "provider": index.provider,
        "model": index.model,
        "dim": index.dim,
        "top_k": top_k,
        "filter": json.dumps(filter or {}, ensure_ascii=False),
        "retrieval": retrieval,
        **asdict(policy),
    }


def _readings(path: str) -> list[tuple[str, str | None]]:
    """What `PATH#HEADING` may mean: the whole as a path, then cut at a `#`, the longest path first."""
    places = [place for place, char in enumerate(path) if char == "#" and path[:place].strip()]
    tried = sorted({*places[:4], *places[-4:]}, reverse=True)
    cut = [(path[:place], path[place + 1 :].lstrip(" #").rstrip() or None) for place in tried]
    return [(path, None), *cut]


def _create_database(connection: psycopg.Connection[Any], name: str) -> None:
    """An empty database in UTF-8, with the locale of the connection's own.

    For a role that may not install pgvector it is a copy of template1, where an administrator can put it.
    """
    row = connection.execute(
        "select d.datcollate, d.datctype, current_user, r.rolsuper or exists ("
        "select 1 from pg_available_extension_versions as v where v.name = 'vector' and v.trusted)"
        " from pg_database as d join pg_roles as r on r.rolname = current_user"
        " where d.datname = current_database()"
    ).fetchone()
    assert row is not None
    collate, ctype, user, installs = row
    try:
        if not installs:
            connection.execute(sql.SQL("create database {} template template1").format(sql.Identifier(name)))
            return
        connection.execute(
            sql.SQL("create database {} template template0 encoding 'UTF8' lc_collate {} lc_ctype {}").format(
                sql.Identifier(name), sql.Literal(collate), sql.Literal(ctype)
            )
        )
    except psycopg.errors.InsufficientPrivilege:
        raise InvalidConfiguration(
            f"The database user {user} may not create databases; this needs one, and drops it afterwards.",
            hint="Let an administrator run: alter role"
            f" {sql.Identifier(user).as_string(connection)} createdb\n"
            "or remove DATABASE_URL to use the embedded server.",
        ) from None


def _url_of_other(url: str, name: str) -> str:
    """The URL of another database on the same server; a name given as a parameter goes too."""
    start, _, query = url.partition("?")
    match = re.match(r"\w+://[^/]*", start)
    assert match is not None
    left = [part for part in query.split("&") if part and not part.startswith("dbname=")]
    return f"{match[0]}/{name}" + ("?" + "&".join(left) if left else "")


def _unreachable(url: str, embedded: bool, error: psycopg.Error) -> DatabaseUnavailable:
    why = _first_line(error)
    if embedded:
        hint = "Start the embedded server with: rag db start"
    elif "does not exist" in why or "authentication failed" in why:
        hint = "Correct user, password or name in DATABASE_URL, or remove it to use the embedded server."
    else:
        hint = (
            "Start it with: docker compose up -d postgres\nor remove DATABASE_URL to use the embedded server."
        )
    return DatabaseUnavailable(f"The database {mask_password(url)} cannot be reached: {why}", hint=hint)


def _live_connection(
    pool: ConnectionPool, check: Callable[[psycopg.Connection[Any]], None]
) -> psycopg.Connection[Any]:
    """A connection that passes `check`. If one is dead, the server restarted: all are renewed.

    The pool's own check would wait a second before it looks at the next one.
    """
    while True:
        connection = pool.getconn()
        try:
            check(connection)
            return connection
        except psycopg.OperationalError:
            pool.putconn(connection)  # which drops it
            pool.drain()
        except BaseException:
            pool.putconn(connection)
            raise


def _manifest(entries: Sequence[ManifestEntry]) -> str:
    """The files of a vault as `rag.plan_ingest` takes them."""
    return json.dumps(
        [
            {
                "path": entry.relative_path,
                "hash": entry.content_hash,
                "size": entry.size_bytes,
                "mtime": entry.mtime_ns,
                "error": entry.error,
            }
            for entry in entries
        ]
    )


def _sendable(vector: Vector) -> PgVector:
    """The vector for psycopg's binary protocol, by its bytes: much quicker than as a list of floats."""
    from pgvector import Vector as PgVector

    values = vector if isinstance(vector, array) and vector.typecode == "f" else array("f", vector)
    if sys.byteorder == "little":
        values = values[:]
        values.byteswap()
    return PgVector.from_binary(struct.pack(">HH", len(values), 0) + values.tobytes())


def _vector_text(vector: Vector) -> str:
    return "[" + ",".join(map(repr, vector)) + "]"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _part(kind: type[T], row: dict[str, Any]) -> T:
    """The fields of a dataclass from a row that has more columns."""
    return kind(**{each.name: row[each.name] for each in fields(kind)})  # type: ignore[arg-type]


def _decision(row: dict[str, Any]) -> Decision:
    """The decision of a row of `_DECIDED`, in which `coverage` is the chunk's own."""
    return _part(Decision, {**row, "coverage": row["best_coverage"]})


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
