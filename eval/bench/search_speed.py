"""Speed of one search: pyrag beside other stores of vectors, the same vectors and questions, in one run.

    pip install -r eval/bench/requirements.txt
    python eval/bench/search_speed.py [--sizes 10000,100000,300000] [--only NAME,...] [--near] [--random]

Vectors are fake embeddings of the real notes of vaults (and of the passages of retrieval sets), repeated
with noise up to each size. Every contestant runs in a process of its own; they take turns, so that a slow
minute of the machine hits all of them. What cannot be installed or breaks is listed with the reason. Writes
search_speed.md, .json and .png into eval/results.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import importlib
import json
import multiprocessing
import os
import signal
import statistics
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

from vectors import (
    ROOT,
    SIGMA,
    database_url,
    default_sets,
    default_vaults,
    end_on_signals,
    facts_as_markdown,
    machine_facts,
    make_database,
    markdown_table,
    note,
    rag,
    read_texts,
    temporary_server,
    version,
    write_vectors,
)

PROVIDER, MODEL, DIMENSIONS = "fake", "fake-lexical-v1", 1024
CHUNKS_A_DOCUMENT = 20
WARM_UP, WARM_UP_SECONDS = 40, 3.0  # other questions than those that count, whichever ends first
CLIENTS = 4
TIE = 1e-6
BY_LIBRARY = 5_000  # rows that LangChain and LlamaIndex insert themselves; further ones are copied in
VAULT = "/bench"

Search = Callable[[Any], list[int]]


class NotAvailable(Exception):
    """A contestant that cannot take part, with the reason."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one size is measured: plain values, for processes of their own."""

    folder: Path  # of this size, for files
    home: Path  # of the server
    url: str  # of the server
    vectors: Path
    rows: int
    k: int

    def blocks(self, size: int) -> Iterator[tuple[int, Any]]:
        """The vectors in blocks: number of the first row, float32 rows."""
        np: Any = importlib.import_module("numpy")
        stored = np.load(self.vectors, mmap_mode="r")
        for start in range(0, self.rows, size):
            yield start, np.array(stored[start : min(start + size, self.rows)])

    def first(self) -> Any:
        """The first vector."""
        return next(self.blocks(1))[1][0]


class Contestant:
    """A store of vectors. Rows are known by their number, from 0."""

    name: ClassVar[str]
    label: ClassVar[str]
    kind: ClassVar[str] = "exact"
    most: ClassVar[int | None] = None  # rows; above it is left out unless --cap says otherwise
    store: ClassVar[str] = ""  # name of the contestant that loads what this one reads; empty: itself
    above: ClassVar[str] = ""  # name of the contestant whose loading is the first part of this one's
    in_process: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ()
    remark: ClassVar[str] = ""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.prepare()

    def prepare(self) -> None:
        """Imports the library: not measured."""

    def load(self) -> dict[str, Any]:
        """Stores all vectors; what is to be reported beside the seconds."""
        raise NotImplementedError

    def client(self) -> Search:
        """The search of one client, for a thread of its own."""
        raise NotImplementedError

    def disk(self) -> int | None:
        """Bytes stored on disk, index included; None for what lives in memory alone."""
        folder = self.place.folder / self.name
        files = [path for path in folder.rglob("*") if path.is_file()]
        return sum(path.stat().st_size for path in files) if files else None

    def plan(self) -> str:
        """How Postgres runs the query; empty for others."""
        return ""

    def close(self) -> None:
        """Lets go of everything."""

    def folder(self) -> Path:
        """A folder of its own."""
        folder = self.place.folder / self.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


class _OnPostgres(Contestant):
    """What the contestants on the server share; a client is a connection that is kept."""

    in_process = False
    database: ClassVar[str]
    relations: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[str, ...]] = ()
    query: ClassVar[str] = ""

    @property
    def base(self) -> str:
        """Name of the database."""
        return f"{self.database}-{self.place.rows}"

    @property
    def url(self) -> str:
        """URL of the database."""
        return database_url(self.place.url, self.base)

    def connect(self) -> Any:
        """A connection that knows vectors, with this contestant's settings."""
        import psycopg
        from pgvector.psycopg import register_vector

        connection = psycopg.connect(self.url, autocommit=True)
        register_vector(connection)
        for setting in self.settings:
            connection.execute(setting)
        return connection

    def client(self) -> Search:
        """Sends the query on a connection of its own."""
        connection = self.connect()

        def search(question: Any) -> list[int]:
            rows = connection.execute(self.query, {"q": question, "k": self.place.k}).fetchall()
            return [row[0] - 1 for row in rows]

        return search

    def disk(self) -> int | None:
        """Tables with their indexes and out-of-line values."""
        with self.connect() as connection:
            size = "select sum(pg_total_relation_size(to_regclass(r))) from unnest(%s::text[]) as r"
            total = connection.execute(size, [list(self.relations)]).fetchone()[0]
        return int(total) if total is not None else None

    def plan(self) -> str:
        """Kind of scan and number of workers, from `explain` of the query with a vector in place."""
        literal = f"'{self.place.first().tolist()}'::vector"
        query = self.query.replace("%(q)s", literal).replace("%(k)s", str(self.place.k))
        with self.connect() as connection:
            rows = connection.execute(f"explain (costs off) {query}").fetchall()
        lines = [row[0].strip() for row in rows]
        scan = next((line for line in lines if " Scan " in line), "").lstrip("-> ").split(" on ")[0]
        workers = next((line.split(": ")[1] for line in lines if line.startswith("Workers Planned")), "0")
        return f"{scan}, {workers} workers"

    def tidy(self) -> None:
        """What autovacuum would do some time later."""
        with self.connect() as connection:
            connection.execute("vacuum analyze")


class _Pyrag(_OnPostgres):
    database = "pyrag"
    packages = ("pyrag", "pgvector", "psycopg")
    relations = ("rag.documents", "rag.chunks", "rag.embeddings")
    query = (
        "select chunk_id from rag.search_chunks("
        f"%(q)s::public.vector, '{PROVIDER}', '{MODEL}', {DIMENSIONS}, %(k)s)"
    )

    def plan(self) -> str:
        """What `rag.explain_search` says of one question, where there is such a function."""
        import psycopg

        arguments = f"%s::public.vector, '{PROVIDER}', '{MODEL}', {DIMENSIONS}, %s"
        query = f"select scan, reason, candidates, compared from rag.explain_search({arguments})"
        try:
            with self.connect() as connection:
                row = connection.execute(query, [self.place.first(), self.place.k]).fetchone()
        except psycopg.Error:
            return ""
        scan, reason, candidates, compared = row
        return f"{scan} scan ({reason}), {candidates} candidates, {compared} compared in full"

    def load(self) -> dict[str, Any]:
        """Schema of `rag db init`, rows by COPY, `vacuum analyze`."""
        make_database(self.place.url, self.base)
        rag(self.place.home, "db", "init", url=self.url)
        with self.connect() as connection:
            fill_pyrag(connection, self.place)
        self.tidy()
        return {}


def fill_pyrag(connection: Any, place: Place) -> None:
    """Documents of some twenty chunks, with the columns that a search needs."""
    documents = -(-place.rows // CHUNKS_A_DOCUMENT)
    with connection.cursor() as cursor, connection.transaction():
        columns = "id, vault_path, file_path, relative_path, content_hash, scope"
        with cursor.copy(f"copy rag.documents ({columns}) from stdin (format binary)") as copy:
            copy.set_types(["int8", "text", "text", "text", "text", "text"])
            for number in range(documents):
                name = f"note{number:07}.md"
                copy.write_row((number + 1, VAULT, f"{VAULT}/{name}", name, f"{number:064x}", VAULT))
        columns = "id, document_id, chunk_index, content, file_path, relative_path, content_hash, scope"
        with cursor.copy(f"copy rag.chunks ({columns}) from stdin (format binary)") as copy:
            copy.set_types(["int8", "int8", "int4", "text", "text", "text", "text", "text"])
            for row in range(place.rows):
                document, index = divmod(row, CHUNKS_A_DOCUMENT)
                name = f"note{document:07}.md"
                copy.write_row((
                    row + 1, document + 1, index, f"chunk {row}", f"{VAULT}/{name}", name, f"{row:064x}",
                    VAULT,
                ))  # fmt: skip
        columns = "chunk_id, embedding_provider, embedding_model, embedding_dim, embedding, scope"
        with cursor.copy(f"copy rag.embeddings ({columns}) from stdin (format binary)") as copy:
            copy.set_types(["int8", "text", "text", "int4", "vector", "text"])
            for start, block in place.blocks(5_000):
                for row, vector in enumerate(block, start=start):
                    copy.write_row((row + 1, PROVIDER, MODEL, DIMENSIONS, vector, VAULT))


class PyragExact(_Pyrag):
    """`rag.search_chunks` as it comes."""

    name, label = "pyrag", "pyrag exact"


class PyragSerial(_Pyrag):
    """The same without parallel workers."""

    name, label, store = "pyrag-serial", "pyrag exact, serial", "pyrag"
    settings = ("set max_parallel_workers_per_gather = 0",)


class PyragIndex(_Pyrag):
    """`rag.search_chunks` after `rag db index create`."""

    name, label, kind, above = "pyrag-index", "pyrag index", "approximate", "pyrag"
    database = "pyrag-index"

    def load(self) -> dict[str, Any]:
        """A copy of the database of pyrag exact (filled here if it is not there), then the index."""
        import psycopg

        exact = f"pyrag-{self.place.rows}"
        with psycopg.connect(self.place.url) as connection:
            found = connection.execute("select 1 from pg_database where datname = %s", [exact]).fetchone()
        if found:
            make_database(self.place.url, self.base, template=exact)
        else:
            super().load()
        begun = time.perf_counter()
        try:
            rag(self.place.home, "db", "index", "create", url=self.url)
        except SystemExit as error:
            said = [line for line in str(error).splitlines() if line.strip()]
            raise NotAvailable(f"`rag db index create` fails: {' '.join(said)[-300:]}") from None
        seconds = time.perf_counter() - begun
        self.tidy()
        return {"index build s": seconds, "index bytes": self.index_bytes(), "copied": bool(found)}

    def index_bytes(self) -> int:
        """Size of the HNSW indexes of the schema."""
        with self.connect() as connection:
            row = connection.execute(
                "select coalesce(sum(pg_relation_size(c.oid)), 0) from pg_class as c"
                " join pg_am as a on a.oid = c.relam where a.amname = 'hnsw'"
                " and c.relnamespace = 'rag'::regnamespace"
            ).fetchone()
        if not row[0]:
            raise NotAvailable("`rag db index create` left no HNSW index in the schema rag")
        return int(row[0])


_TABLE = """
create table chunks (id bigserial primary key);
create table embeddings (
  id bigserial primary key,
  chunk_id bigint not null references chunks(id) on delete cascade,
  embedding_provider text not null,
  embedding_model text not null,
  embedding_dim integer not null check (embedding_dim = 1024),
  embedding vector(1024) not null,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  unique (chunk_id, embedding_provider, embedding_model, embedding_dim)
);
create index on embeddings (embedding_provider, embedding_model, embedding_dim);
"""


class Table(_OnPostgres):
    """A bare table with pgvector and the obvious query, without parallel workers."""

    name, label = "table", "bare pgvector table, serial"
    packages = ("pgvector", "psycopg")
    database = "table"
    relations = ("public.embeddings",)
    settings: ClassVar[tuple[str, ...]] = ("set max_parallel_workers_per_gather = 0",)
    query = (
        f"select id from embeddings where embedding_provider = '{PROVIDER}'"
        f" and embedding_model = '{MODEL}' and embedding_dim = {DIMENSIONS}"
        " order by embedding <=> %(q)s limit %(k)s"
    )

    def load(self) -> dict[str, Any]:
        """Rows by COPY, `vacuum analyze`."""
        import psycopg

        with psycopg.connect(make_database(self.place.url, self.base), autocommit=True) as connection:
            connection.execute("create extension if not exists vector")
            connection.execute(_TABLE)
            connection.execute("insert into chunks select generate_series(1, %s)", [self.place.rows])
        columns = "chunk_id, embedding_provider, embedding_model, embedding_dim, embedding"
        statement = f"copy embeddings ({columns}) from stdin (format binary)"
        with self.connect() as connection, connection.cursor().copy(statement) as copy:
            copy.set_types(["int8", "text", "text", "int4", "vector"])
            for start, block in self.place.blocks(5_000):
                for row, vector in enumerate(block, start=start):
                    copy.write_row((row + 1, PROVIDER, MODEL, DIMENSIONS, vector))
        self.tidy()
        return {}


class TableParallel(Table):
    """The same with a parallel plan, which the planner would not choose by itself for so few pages."""

    name, label, store = "table-parallel", "bare pgvector table, parallel", "table"
    settings: ClassVar[tuple[str, ...]] = (
        "set parallel_setup_cost = 0",
        "set parallel_tuple_cost = 0",
        "set min_parallel_table_scan_size = 0",
    )
    remark = "parallel_setup_cost, parallel_tuple_cost and min_parallel_table_scan_size set to 0"


class _Framework(_OnPostgres):
    """What the stores of LangChain and LlamaIndex share: the first rows through the library, the rest by SQL.

    They insert some hundred rows a second, and a search does not see how a row came in. The seconds of
    loading are extrapolated from the library's own rows.
    """

    most = 100_000
    rest: ClassVar[str]  # inserts what the temporary table `rest` holds: row, embedding

    def opened(self) -> Any:
        """The store, its tables made if need be; its engine keeps a pool of connections."""
        raise NotImplementedError

    def add(self, store: Any, start: int, block: Any) -> None:
        """Adds rows through the library."""
        raise NotImplementedError

    def find(self, store: Any, question: Any) -> list[int]:
        """The search of the library."""
        raise NotImplementedError

    def load(self) -> dict[str, Any]:
        """Blocks of 1,000 through the library, then the rest by COPY."""
        import psycopg

        make_database(self.place.url, self.base)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("create extension if not exists vector")
        begun = time.perf_counter()
        store = self.opened()
        few = dataclasses.replace(self.place, rows=min(self.place.rows, BY_LIBRARY))
        for start, block in few.blocks(1_000):
            self.add(store, start, block)
        seconds = (time.perf_counter() - begun) * self.place.rows / few.rows
        if self.place.rows > few.rows:
            with self.connect() as connection, connection.transaction():
                connection.execute("create temporary table rest (row bigint, embedding vector)")
                with connection.cursor().copy("copy rest from stdin (format binary)") as copy:
                    copy.set_types(["int8", "vector"])
                    for start, block in self.place.blocks(BY_LIBRARY):
                        for row, vector in enumerate(block if start else (), start=start):
                            copy.write_row((row, vector))
                connection.execute(self.rest)
        self.tidy()
        return {"load s": seconds, "load extrapolated": self.place.rows > few.rows}

    def client(self) -> Search:
        """The pool gives each thread a connection."""
        if not hasattr(self, "found"):
            self.found = self.opened()
        return lambda question: self.find(self.found, question)

    def plan(self) -> str:
        """Not looked at."""
        return ""


class LangChain(_Framework):
    """PGVectorStore of langchain-postgres with its defaults."""

    name, label = "langchain", "LangChain PGVectorStore"
    packages = ("langchain-postgres", "langchain-core", "sqlalchemy", "psycopg")
    database = "langchain"
    relations: ClassVar[tuple[str, ...]] = ("public.vectors",)
    rest = (
        "insert into vectors (langchain_id, content, embedding, langchain_metadata)"
        " select lpad(to_hex(row), 32, '0')::uuid, 'chunk ' || row, embedding, '{}' from rest"
    )

    def prepare(self) -> None:
        """Imports."""
        self.module: Any = importlib.import_module("langchain_postgres")
        fake: Any = importlib.import_module("langchain_core.embeddings")
        self.embeddings = fake.DeterministicFakeEmbedding(size=DIMENSIONS)

    def opened(self) -> Any:
        """The store; the table is made once."""
        url = database_url(self.place.url, self.base, "postgresql+psycopg")
        engine = self.module.PGEngine.from_connection_string(url)
        with self.connect() as connection:
            found = connection.execute("select to_regclass('public.vectors') is not null").fetchone()[0]
        if not found:
            engine.init_vectorstore_table("vectors", DIMENSIONS)
        return self.module.PGVectorStore.create_sync(engine, self.embeddings, "vectors")

    def add(self, store: Any, start: int, block: Any) -> None:
        """`add_embeddings`."""
        rows = range(start, start + len(block))
        store.add_embeddings(
            [f"chunk {row}" for row in rows], block.tolist(), ids=[str(uuid.UUID(int=row)) for row in rows]
        )

    def find(self, store: Any, question: Any) -> list[int]:
        """`similarity_search_by_vector`."""
        documents = store.similarity_search_by_vector(question.tolist(), k=self.place.k)
        return [uuid.UUID(str(document.id)).int for document in documents]


class LangChainPGVector(LangChain):
    """The older PGVector of langchain-postgres with its defaults."""

    name, label = "langchain-pgvector", "LangChain PGVector (older)"
    database = "langchain-pgvector"
    relations: ClassVar[tuple[str, ...]] = (
        "public.langchain_pg_embedding",
        "public.langchain_pg_collection",
    )
    rest = (
        "insert into langchain_pg_embedding (id, collection_id, embedding, document, cmetadata)"
        " select row::text, (select uuid from langchain_pg_collection), embedding, 'chunk ' || row, '{}'"
        " from rest"
    )

    def opened(self) -> Any:
        """The store."""
        url = database_url(self.place.url, self.base, "postgresql+psycopg")
        return self.module.PGVector(self.embeddings, connection=url)

    def add(self, store: Any, start: int, block: Any) -> None:
        """`add_embeddings`."""
        rows = range(start, start + len(block))
        store.add_embeddings([f"chunk {row}" for row in rows], block.tolist(), ids=[str(row) for row in rows])

    def find(self, store: Any, question: Any) -> list[int]:
        """`similarity_search_by_vector`."""
        documents = store.similarity_search_by_vector(question.tolist(), k=self.place.k)
        return [int(document.id) for document in documents]


class LlamaIndex(_Framework):
    """PGVectorStore of LlamaIndex with its defaults."""

    name, label = "llamaindex", "LlamaIndex PGVectorStore"
    packages = ("llama-index-vector-stores-postgres", "llama-index-core", "sqlalchemy", "psycopg2-binary")
    database = "llamaindex"
    relations = ("public.data_llamaindex",)
    rest = (
        "insert into data_llamaindex (node_id, text, metadata_, embedding)"
        " select r.row::text, 'chunk ' || r.row, m.metadata_, r.embedding from rest as r"
        " cross join (select metadata_ from data_llamaindex limit 1) as m"
    )

    def prepare(self) -> None:
        """Imports."""
        self.module: Any = importlib.import_module("llama_index.vector_stores.postgres")
        self.schema: Any = importlib.import_module("llama_index.core.schema")
        self.types: Any = importlib.import_module("llama_index.core.vector_stores.types")

    def opened(self) -> Any:
        """The store; it makes its table at first use."""
        return self.module.PGVectorStore.from_params(
            connection_string=database_url(self.place.url, self.base, "postgresql+psycopg2"),
            async_connection_string=database_url(self.place.url, self.base, "postgresql+asyncpg"),
            embed_dim=DIMENSIONS,
        )

    def add(self, store: Any, start: int, block: Any) -> None:
        """`add`."""
        store.add([
            self.schema.TextNode(id_=str(row), text=f"chunk {row}", embedding=vector)
            for row, vector in enumerate(block.tolist(), start=start)
        ])  # fmt: skip

    def find(self, store: Any, question: Any) -> list[int]:
        """`query`."""
        asked = self.types.VectorStoreQuery(query_embedding=question.tolist(), similarity_top_k=self.place.k)
        return [int(number) for number in store.query(asked).ids]


class Numpy(Contestant):
    """A matrix in memory."""

    name, label, packages = "numpy", "numpy", ("numpy",)

    def prepare(self) -> None:
        """Imports."""
        self.np: Any = importlib.import_module("numpy")

    def load(self) -> dict[str, Any]:
        """One float32 matrix."""
        self.matrix = self.np.empty((self.place.rows, DIMENSIONS), self.np.float32)
        for start, block in self.place.blocks(5_000):
            self.matrix[start : start + len(block)] = block
        return {}

    def client(self) -> Search:
        """Matrix product, argpartition, sort."""

        def search(question: Any) -> list[int]:
            found = self.matrix @ question
            best = self.np.argpartition(-found, self.place.k - 1)[: self.place.k]
            return [int(row) for row in best[self.np.argsort(-found[best])]]

        return search


class Faiss(Contestant):
    """IndexFlatIP of FAISS."""

    name, label, packages = "faiss", "FAISS flat", ("faiss-cpu",)

    def prepare(self) -> None:
        """Imports."""
        self.module: Any = importlib.import_module("faiss")

    def load(self) -> dict[str, Any]:
        """`add` in blocks."""
        self.index = self.module.IndexFlatIP(DIMENSIONS)
        for _, block in self.place.blocks(5_000):
            self.index.add(block)
        return {}

    def client(self) -> Search:
        """`search` of one vector."""

        def search(question: Any) -> list[int]:
            return [int(row) for row in self.index.search(question[None], self.place.k)[1][0]]

        return search


class FaissSerial(Faiss):
    """The same with one thread: two are slower than one as soon as something else uses a core."""

    name, label = "faiss-serial", "FAISS flat, one thread"

    def prepare(self) -> None:
        """Imports; OpenMP reads the number when it is loaded."""
        os.environ["OMP_NUM_THREADS"] = "1"
        super().prepare()


class Chroma(Contestant):
    """The persistent client of Chroma with its defaults: an HNSW index."""

    name, label, kind, packages = "chromadb", "Chroma", "approximate", ("chromadb",)
    most = 100_000

    def prepare(self) -> None:
        """Imports."""
        self.module: Any = importlib.import_module("chromadb")
        self.config: Any = importlib.import_module("chromadb.config")

    def load(self) -> dict[str, Any]:
        """`add` in the largest batches that it takes."""
        settings = self.config.Settings(anonymized_telemetry=False)
        self.connected = self.module.PersistentClient(str(self.folder()), settings)
        self.collection = self.connected.create_collection(
            "vectors", configuration={"hnsw": {"space": "cosine"}}, embedding_function=None
        )
        for start, block in self.place.blocks(min(5_000, self.connected.get_max_batch_size())):
            rows = range(start, start + len(block))
            self.collection.add(ids=[str(row) for row in rows], embeddings=block)
        return {}

    def client(self) -> Search:
        """`query` for ids alone."""

        def search(question: Any) -> list[int]:
            found = self.collection.query(query_embeddings=[question], n_results=self.place.k, include=[])
            return [int(number) for number in found["ids"][0]]

        return search


class Lance(Contestant):
    """LanceDB without an index."""

    name, label, packages = "lancedb", "LanceDB flat", ("lancedb", "pyarrow")

    def prepare(self) -> None:
        """Imports."""
        self.module: Any = importlib.import_module("lancedb")
        self.arrow: Any = importlib.import_module("pyarrow")

    def load(self) -> dict[str, Any]:
        """One table from batches, written once."""
        arrow = self.arrow
        vector = arrow.list_(arrow.float32(), DIMENSIONS)
        schema = arrow.schema([arrow.field("id", arrow.int64()), arrow.field("vector", vector)])

        def batches() -> Iterator[Any]:
            for start, block in self.place.blocks(5_000):
                rows = arrow.array(range(start, start + len(block)), arrow.int64())
                values = arrow.FixedSizeListArray.from_arrays(arrow.array(block.reshape(-1)), DIMENSIONS)
                yield arrow.record_batch([rows, values], schema=schema)

        database = self.module.connect(str(self.folder()))
        self.table = database.create_table("vectors", batches(), schema=schema)
        return {}

    def client(self) -> Search:
        """`search` by cosine."""

        def search(question: Any) -> list[int]:
            asked = self.table.search(question).distance_type("cosine").limit(self.place.k)
            return [int(row) for row in asked.select(["id", "_distance"]).to_arrow().column("id").to_pylist()]

        return search


class Qdrant(Contestant):
    """The local mode of qdrant-client, in memory: numpy behind Qdrant's interface, no index."""

    name, label, packages = "qdrant", "Qdrant local mode", ("qdrant-client",)
    most = 100_000
    remark = "in memory; its makers mean it for tests"

    def prepare(self) -> None:
        """Imports."""
        self.module: Any = importlib.import_module("qdrant_client")

    def load(self) -> dict[str, Any]:
        """`upload_collection` in blocks."""
        models = self.module.models
        self.connected = self.module.QdrantClient(":memory:")
        self.connected.create_collection(
            "vectors", vectors_config=models.VectorParams(size=DIMENSIONS, distance=models.Distance.COSINE)
        )
        for start, block in self.place.blocks(1_000):
            ids = range(start, start + len(block))
            self.connected.upload_collection("vectors", vectors=block, ids=ids, batch_size=1_000)
        return {}

    def client(self) -> Search:
        """`query_points` without payload."""

        def search(question: Any) -> list[int]:
            found = self.connected.query_points(
                "vectors", query=question, limit=self.place.k, with_payload=False
            )
            return [int(point.id) for point in found.points]

        return search


class SqliteVec(Contestant):
    """The vec0 table of sqlite-vec, through apsw: some builds of Python cannot load extensions."""

    name, label, packages = "sqlite-vec", "sqlite-vec", ("sqlite-vec", "apsw")

    def prepare(self) -> None:
        """Imports."""
        self.apsw: Any = importlib.import_module("apsw")
        self.extension: Any = importlib.import_module("sqlite_vec")

    def connect(self) -> Any:
        """A connection that knows vec0."""
        connection = self.apsw.Connection(str(self.folder() / "vectors.db"))
        connection.enable_load_extension(True)
        connection.load_extension(self.extension.loadable_path())
        return connection

    def load(self) -> dict[str, Any]:
        """Inserts in one transaction."""
        connection = self.connect()
        connection.execute(
            f"create virtual table vectors using vec0(embedding float[{DIMENSIONS}] distance_metric=cosine)"
        )
        with connection:
            for start, block in self.place.blocks(5_000):
                connection.executemany(
                    "insert into vectors (rowid, embedding) values (?, ?)",
                    ((row, vector.tobytes()) for row, vector in enumerate(block, start=start)),
                )
        connection.close()
        return {}

    def client(self) -> Search:
        """The KNN query on a connection of its own."""
        connection = self.connect()
        query = "select rowid from vectors where embedding match ? and k = ? order by distance"

        def search(question: Any) -> list[int]:
            return [row[0] for row in connection.execute(query, (question.tobytes(), self.place.k))]

        return search


CONTESTANTS: tuple[type[Contestant], ...] = (
    PyragExact, PyragSerial, PyragIndex, Table, TableParallel, Numpy, Faiss, FaissSerial, Lance, SqliteVec,
    Qdrant, Chroma, LangChain, LangChainPGVector, LlamaIndex,
)  # fmt: skip
BY_NAME = {contestant.name: contestant for contestant in CONTESTANTS}


# A process for each contestant ------------------------------------------------------------------------------


def serve(name: str, place: Place, pipe: Connection) -> None:
    """The process: does what it is told until it hears `close` or nobody is there any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    contestant: Contestant | None = None
    kept: Search | None = None
    before = 0
    reply: tuple[bool, Any]
    while True:
        try:
            order, argument = pipe.recv()
        except (EOFError, OSError):
            os._exit(1)
        answer: Any = None
        try:
            if order == "prepare":
                contestant = BY_NAME[name](place)
                gc.collect()
                before = resident()
            elif contestant is None:
                raise NotAvailable("not prepared")
            elif order == "load":
                begun = time.perf_counter()
                answer = contestant.load()
                answer.setdefault("load s", time.perf_counter() - begun)
            elif order == "ask":
                kept = kept or contestant.client()
                answer = ask(kept, *argument)
            elif order == "throughput":
                answer = throughput([contestant.client() for _ in range(CLIENTS)], *argument)
            elif order == "facts":
                gc.collect()
                grown = resident() - before if contestant.in_process else None
                answer = {"disk bytes": contestant.disk(), "memory bytes": grown, "plan": contestant.plan()}
            elif order == "close":
                contestant.close()
            reply = (True, answer)
        except BaseException as error:
            reason = str(error) or type(error).__name__
            if not isinstance(error, NotAvailable | ImportError):
                reason = f"{type(error).__name__}: {reason}"
                traceback.print_exc()
            reply = (False, " ".join(reason.split())[:400])
        try:
            pipe.send(reply)
        except OSError:  # the script was ended meanwhile
            os._exit(1)
        if order == "close":
            os._exit(0)  # threads and event loops of the libraries would keep the process


def ask(search: Search, questions: Any, others: Any) -> list[tuple[float, list[int]]]:
    """Seconds and found rows of each question, after others to warm up."""
    begun = time.perf_counter()
    for question in others[:WARM_UP]:
        search(question)
        if time.perf_counter() - begun > WARM_UP_SECONDS:
            break
    answers = []
    for question in questions:
        begun = time.perf_counter()
        found = search(question)
        answers.append((time.perf_counter() - begun, found))
    return answers


def throughput(clients: list[Search], questions: Any, seconds: float) -> float:
    """Questions a second of several threads that ask without a pause."""
    ready = threading.Barrier(len(clients) + 1)
    counts, ends = [0] * len(clients), [0.0] * len(clients)
    errors: list[BaseException] = []
    stop = 0.0

    def run(number: int) -> None:
        try:
            clients[number](questions[number % len(questions)])
            ready.wait(120)
            while time.perf_counter() < stop:
                clients[number](questions[(number + counts[number] * len(clients)) % len(questions)])
                counts[number] += 1
                ends[number] = time.perf_counter()
        except BaseException as error:
            errors.append(error)
            ready.abort()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(clients))]
    for thread in threads:
        thread.start()
    begun = time.perf_counter()
    stop = begun + 1e9
    with contextlib.suppress(threading.BrokenBarrierError):
        ready.wait(120)
        begun = time.perf_counter()
        stop = begun + seconds
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(counts) / (max(ends) - begun)


def resident() -> int:
    """Resident bytes of this process."""
    psutil: Any = importlib.import_module("psutil")
    return int(psutil.Process().memory_info().rss)


class Worker:
    """A contestant in its process, as the script sees it."""

    def __init__(self, name: str, place: Place) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(name, place, other), daemon=True)
        self.process.start()
        other.close()

    def do(self, order: str, argument: Any = None) -> Any:
        """The answer; NotAvailable with the reason when it failed."""
        try:
            self.pipe.send((order, argument))
            good, answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            raise NotAvailable(f"its process ended with {self.process.exitcode}") from None
        if not good:
            raise NotAvailable(answer)
        return answer

    def end(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            self.pipe.close()
        self.process.join(2)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(10)


# One size -----------------------------------------------------------------------------------------------


class Truth:
    """The exact answer, in float64."""

    def __init__(self, place: Place, questions: Any) -> None:
        np: Any = importlib.import_module("numpy")
        asked = questions.astype(np.float64)
        asked /= np.linalg.norm(asked, axis=1, keepdims=True)
        self.similarities = np.empty((len(asked), place.rows))
        for start, block in place.blocks(5_000):
            rows = block.astype(np.float64)
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            self.similarities[:, start : start + len(rows)] = asked @ rows.T
        self.k = min(place.k, place.rows)
        self.least = -np.partition(-self.similarities, self.k - 1, axis=1)[:, self.k - 1] - TIE

    def recall(self, question: int, found: list[int]) -> float:
        """Share of the k nearest that were found; a tie with the last one counts."""
        similarities, least = self.similarities[question], self.least[question]
        hits = sum(0 <= row < len(similarities) and similarities[row] >= least for row in set(found))
        return float(min(hits, self.k) / self.k)


@dataclasses.dataclass
class Options:
    """What the command line says."""

    sizes: list[int]
    k: int
    questions: int
    rounds: int
    seconds: float
    names: list[str]
    caps: dict[str, int]
    near: bool


def one_size(place: Place, questions: Any, others: Any, options: Options) -> list[dict[str, Any]]:
    """The figures of all contestants at one size, in their order."""
    note(f"{place.rows} vectors: the exact answers")
    truth = Truth(place, questions)
    results = {name: describe(name, place.rows) for name in options.names}
    workers: dict[str, Worker] = {}
    failed: set[str] = set()

    def attempt(name: str, order: str, argument: Any = None) -> Any:
        try:
            return workers[name].do(order, argument)
        except NotAvailable as error:
            results[name]["not available"] = str(error)
            workers.pop(name).end()
            note(f"  {name}: not available: {error}")
            return None

    try:
        for name in options.names:
            contestant, result = BY_NAME[name], results[name]
            most = options.caps.get(name, contestant.most)
            if most is not None and place.rows > most:
                result["left out"] = f"at most {most:,} rows (--cap {name}={place.rows} to try)"
                continue
            owner = contestant.store or name
            if owner in failed:
                result["not available"] = f"as {owner}"
                continue
            note(f"  {name}: loading")
            workers[name] = Worker(name, place)
            attempt(name, "prepare")
            shared = next(
                (other for other in options.names if other != name and store_of(other) == owner), ""
            )
            if shared in workers and "load s" in results[shared]:
                result["load s"] = results[shared]["load s"]
            elif name in workers:
                # without its owner a contestant loads for itself: the classes share `load`
                result.update(attempt(name, "load") or {})
                if result.pop("copied", False):
                    result["load s"] += results[contestant.above].get("load s", 0.0)
            if name not in workers:
                failed.add(owner)
        checkpoint(place.url)
        answers: dict[str, list[tuple[int, float, list[int]]]] = {name: [] for name in options.names}
        for number in range(options.rounds):
            note(f"  round {number + 1} of {options.rounds}")
            chosen = list(range(number, len(questions), options.rounds))
            order = [name for name in options.names if name in workers]
            for name in order if number % 2 == 0 else order[::-1]:
                for question, (seconds, found) in zip(
                    chosen, attempt(name, "ask", (questions[chosen], others)) or [], strict=False
                ):
                    answers[name].append((question, seconds, found))
        note(f"  {CLIENTS} clients")
        for name in [name for name in options.names if name in workers]:
            rate = attempt(name, "throughput", (questions, options.seconds))
            if rate is not None:
                results[name]["questions/s"] = rate
        for name in [name for name in options.names if name in workers]:
            results[name].update(attempt(name, "facts") or {})
        for name in list(workers):
            attempt(name, "close")
            results[name].update(figures(answers[name], truth, place.rows))
    finally:
        for worker in workers.values():
            worker.end()
    return [*results.values()]


def store_of(name: str) -> str:
    """The contestant that loads what this one reads."""
    return BY_NAME[name].store or name


def describe(name: str, rows: int) -> dict[str, Any]:
    """What is known of a contestant beforehand."""
    contestant = BY_NAME[name]
    return {
        "name": name,
        "label": contestant.label,
        "kind": contestant.kind,
        "rows": rows,
        "versions": {package: version(package) for package in contestant.packages},
        "remark": contestant.remark,
    }


def figures(answers: list[tuple[int, float, list[int]]], truth: Truth, rows: int) -> dict[str, Any]:
    """Median, p95, recall and time a row."""
    seconds = sorted(second for _, second, _ in answers)
    median = statistics.median(seconds)
    return {
        "median ms": median * 1e3,
        "min ms": seconds[0] * 1e3,
        "p95 ms": seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))] * 1e3,
        "ns per row": median / rows * 1e9,
        "recall": statistics.fmean(truth.recall(question, found) for question, _, found in answers),
    }


def checkpoint(url: str) -> None:
    """Everything is on disk before the clock runs."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("checkpoint")


def drop_databases(url: str) -> None:
    """Frees the disk after a size."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        names = connection.execute("select datname from pg_database where datname like '%-%'").fetchall()
        for (name,) in names:
            connection.execute(f'drop database "{name}" with (force)')


# The report ---------------------------------------------------------------------------------------------

RATIOS = {"faiss": "÷ FAISS flat", "table": "÷ bare table", "pyrag": "÷ pyrag exact"}


def add_ratios(results: list[dict[str, Any]]) -> None:
    """Medians as multiples of three contestants' medians."""
    medians = {result["name"]: result["median ms"] for result in results if "median ms" in result}
    flat = [medians[name] for name in ("faiss", "faiss-serial") if name in medians]
    if flat:
        medians["faiss"] = min(flat)
    for result in results:
        result["ratios"] = {
            name: result["median ms"] / medians[name]
            for name in RATIOS
            if "median ms" in result and name in medians
        }


def report(facts: dict[str, Any], sizes: dict[int, list[dict[str, Any]]], options: Options) -> str:
    """The page."""
    lines = [
        "# Speed of one search",
        "",
        f"Top {options.k} of vectors of {DIMENSIONS} dimensions by cosine, one question at a time:"
        f" median and p95 of {options.questions} questions in {options.rounds} rounds, contestants in turn,"
        f" up to {WARM_UP} others or {WARM_UP_SECONDS:g} s to warm up before each round. Questions/s:"
        f" {CLIENTS} threads for {options.seconds:g} s, on Postgres each with its own connection.",
        "",
        *facts_as_markdown(facts),
        f"- vectors: {facts['vectors']}",
    ]
    for source in facts["sources"]:
        lines.append(f"  - {source}")
    for rows, results in sizes.items():
        lines += ["", f"## {rows:,} vectors", ""]
        head = [
            "", "kind", "median ms", "p95 ms", *RATIOS.values(), "questions/s", "recall", "load s",
            "memory MB", "disk MB", "bytes/vector",
        ]  # fmt: skip
        lines += markdown_table(head, [_row(result) for result in results if "median ms" in result])
        gone = [result for result in results if "median ms" not in result]
        if gone:
            lines += ["", "Not measured:", ""]
        for result in gone:
            reason = result.get("not available") or result.get("left out")
            lines.append(f"- {result['label']} ({result['name']}): {reason}")
        extra = [
            f"- {result['label']}: {text}"
            for result in results
            if "median ms" in result and (text := _extra(result))
        ]
        if extra:
            lines += ["", *extra]
    if len(sizes) > 1:
        lines += ["", "## Growth: nanoseconds a row (median / rows)", ""]
        head = ["", *(f"{rows:,}" for rows in sizes), "largest ÷ smallest size"]
        table = []
        for name in options.names:
            found = {rows: _of(results, name).get("ns per row") for rows, results in sizes.items()}
            values = [value for value in found.values() if value is not None]
            if values:
                growth = f"{values[-1] / values[0]:.2f}" if len(values) > 1 else "–"
                table.append([BY_NAME[name].label, *(_number(value) for value in found.values()), growth])
        lines += markdown_table(head, table)
    return "\n".join([*lines, "", *_NOTES, ""])


_NOTES = (
    "## How to read it",
    "",
    "- ÷ FAISS flat: by the faster of its two rows. FAISS and numpy with as many threads as cores wait for"
    " the slowest one, so that any other work on the machine costs them far more than the others.",
    "- recall: share of the true k nearest (numpy, float64) that were found; a tie within 1e-6 counts.",
    "- memory: growth of the process over loading and all questions, for libraries that run in it. Postgres"
    " has shared buffers for all its tables instead; see disk.",
    "- disk: for Postgres tables, indexes and out-of-line values. The text of a chunk is a few letters"
    " everywhere: only vectors are compared.",
    "- load: from vectors in memory to ready for questions; on Postgres with `vacuum analyze`, for pyrag"
    " index that of pyrag exact and the index.",
)


def _row(result: dict[str, Any]) -> list[str]:
    disk, memory = result.get("disk bytes"), result.get("memory bytes")
    return [
        result["label"],
        result["kind"],
        _number(result["median ms"]),
        _number(result["p95 ms"]),
        *(_number(result["ratios"].get(name)) for name in RATIOS),
        _number(result.get("questions/s")),
        f"{result['recall']:.4f}",
        _number(result.get("load s")),
        _number(memory and memory / 1e6),
        _number(disk and disk / 1e6),
        _number(disk and disk / result["rows"]),
    ]


def _extra(result: dict[str, Any]) -> str:
    parts = [result["remark"], result.get("plan", "")]
    if result.get("load extrapolated"):
        parts.append(f"load s extrapolated from {BY_LIBRARY:,} rows; the others were copied in by SQL")
    if "index build s" in result:
        size = result["index bytes"] / 1e6
        parts.append(f"index built in {result['index build s']:.1f} s, {size:.0f} MB")
    return "; ".join(part for part in parts if part)


def _of(results: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(result for result in results if result["name"] == name)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def plot(path: Path, sizes: dict[int, list[dict[str, Any]]], names: list[str]) -> None:
    """Latency and questions a second, a bar for each contestant and size."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    shown = [name for name in names if any("median ms" in _of(results, name) for results in sizes.values())]
    shades = pyplot.get_cmap("viridis_r")
    figure, panels = pyplot.subplots(
        1, 2, figsize=(14, 1.6 + 0.26 * len(shown) * max(2, len(sizes))), sharey=True
    )
    height = 0.84 / len(sizes)
    for panel, key, title in (
        (panels[0], "median ms", "one question, median (ms; less is better)"),
        (panels[1], "questions/s", f"questions/s, {CLIENTS} clients (more is better)"),
    ):
        for number, (rows, results) in enumerate(sizes.items()):
            found = [(place, _of(results, name).get(key)) for place, name in enumerate(shown)]
            bars = [
                (place + (number - (len(sizes) - 1) / 2) * height, value) for place, value in found if value
            ]
            drawn = panel.barh(
                [place for place, _ in bars], [value for _, value in bars], height,
                label=f"{rows:,} vectors", color=shades(0.15 + 0.75 * number / max(1, len(sizes) - 1)),
            )  # fmt: skip
            panel.bar_label(drawn, labels=[_number(value) for _, value in bars], padding=2, fontsize=7)
        panel.set_xscale("log")
        panel.margins(x=0.12)
        panel.set_title(title, fontsize=10)
        panel.grid(axis="x", which="major", alpha=0.3)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    panels[0].set_yticks(range(len(shown)))
    panels[0].set_yticklabels([BY_NAME[name].label for name in shown])
    for tick, name in zip(panels[0].get_yticklabels(), shown, strict=True):
        tick.set_fontweight("bold" if name.startswith("pyrag") else "normal")
    panels[0].invert_yaxis()
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(sizes), frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=130)


# The command --------------------------------------------------------------------------------------------


def main() -> None:
    """Measures and writes the three files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="10000,100000,300000", help="numbers of vectors")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2, help="the questions are split over them")
    parser.add_argument("--seconds", type=float, default=4.0, help="of several clients at once")
    parser.add_argument("--vaults", type=Path, nargs="+", help="folders of notes instead of the default ones")
    parser.add_argument("--only", default=",".join(BY_NAME), help=f"some of: {', '.join(BY_NAME)}")
    parser.add_argument(
        "--cap", action="append", default=[], metavar="NAME=N", help="most rows of a contestant"
    )
    parser.add_argument(
        "--random", action="store_true", help="random vectors: no structure, reported as that"
    )
    parser.add_argument(
        "--near", action="store_true", help="ask with noisy copies of stored vectors, not with questions"
    )
    parser.add_argument("--home", type=Path, help="folder for everything temporary (default: the system's)")
    parser.add_argument("--out", type=Path, default=ROOT / "eval" / "results")
    given = parser.parse_args()
    names = [name for name in BY_NAME if name in given.only.split(",")]
    unknown = set(given.only.split(",")) - set(BY_NAME)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(BY_NAME)}")
    caps = {name: int(most) for name, _, most in (entry.partition("=") for entry in given.cap)}
    sizes = sorted({int(size) for size in given.sizes.split(",")})
    options = Options(sizes, given.k, given.questions, given.rounds, given.seconds, names, caps, given.near)
    end_on_signals()
    texts = None
    if not given.random:
        vaults = given.vaults or default_vaults()
        sets = [] if given.vaults else default_sets()
        note(f"reading {', '.join(path.name for path in [*vaults, *sets])}")
        texts = read_texts(vaults, sets)
    try:
        run(texts, options, given.out, given.home)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def run(texts: Any, options: Options, out: Path, parent: Path | None) -> None:
    """Server, sizes, report."""
    begun = time.perf_counter()
    sizes: dict[int, list[dict[str, Any]]] = {}
    with temporary_server(parent) as (home, url):
        stored = home / "vectors.npy"
        both = write_vectors(stored, texts, 2 * options.questions, options.sizes[-1], near=options.near)
        questions, others = both[: options.questions], both[options.questions :]
        packages = sorted({package for name in options.names for package in BY_NAME[name].packages})
        facts = machine_facts(packages, url)
        if texts is None:
            facts["vectors"] = "random, without structure; no target applies to them"
            facts["sources"] = []
        else:
            facts["vectors"] = (
                f"fake embeddings of {len(texts.passages):,} real passages, repeated with normal noise"
                f" (sigma {SIGMA} a component), then of length 1; asked: "
                + (
                    "noisy copies of stored ones"
                    if options.near
                    else f"{len(texts.questions):,} questions of sets, pieces of passages"
                )
            )
            facts["sources"] = list(texts.sources)
            if len(texts.sources) == 1:
                facts["sources"].append("no other vault or set was there")
        for rows in options.sizes:
            folder = home / f"size-{rows}"
            folder.mkdir()
            place = Place(folder, home, url, stored, rows, min(options.k, rows))
            sizes[rows] = one_size(place, questions, others, options)
            add_ratios(sizes[rows])
            drop_databases(url)
        facts["load_average_at_end"] = [round(value, 2) for value in os.getloadavg()]
        facts["seconds"] = round(time.perf_counter() - begun, 1)
        out.mkdir(parents=True, exist_ok=True)
        text = report(facts, sizes, options)
        (out / "search_speed.md").write_text(text, encoding="utf-8")
        everything = {
            "facts": facts,
            "options": dataclasses.asdict(options),
            "results": [result for results in sizes.values() for result in results],
        }
        (out / "search_speed.json").write_text(
            json.dumps(everything, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        print(text)
        try:
            plot(out / "search_speed.png", sizes, options.names)
        except ImportError as error:
            note(f"no plot: {error}")
        except Exception as error:  # the tables are there
            note(f"no plot: {type(error).__name__}: {error}")
    note(f"done in {facts['seconds']} s: {out}")


if __name__ == "__main__":
    main()
