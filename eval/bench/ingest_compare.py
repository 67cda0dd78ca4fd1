"""Ingestion of a vault end to end: `rag ingest` beside pipelines of LangChain and LlamaIndex.

    pip install -r eval/bench/requirements.txt
    python eval/bench/ingest_compare.py VAULT [--runs 3] [--only NAME,...]

All use the same fake vectors and the same embedded Postgres, each run with fresh tables, in alternating
order. Every pipeline is a process of its own. Of pyrag the whole command counts, start of the process
included; of the others the time from the first file read to the last row committed, their imports apart.
Writes ingest_compare.md and .json into eval/results.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vectors import (
    ROOT,
    end_on_signals,
    facts_as_markdown,
    machine_facts,
    make_database,
    markdown_table,
    note,
    rag,
    temporary_server,
)

from pyrag.embeddings import DIMENSIONS, FakeLexicalEmbedder
from pyrag.models import EmbeddingInput
from pyrag.tokens import count_tokens, encode

CHUNK, OVERLAP = 800, 80  # tokens of cl100k_base
PACKAGES = (
    "pyrag", "langchain-core", "langchain-text-splitters", "langchain-postgres", "llama-index-core",
    "llama-index-vector-stores-postgres", "sqlalchemy", "psycopg", "psycopg2-binary", "tiktoken",
)  # fmt: skip
LABELS = {
    "pyrag": "pyrag: `rag ingest`",
    "langchain": "LangChain: PGVectorStore",
    "langchain-pgvector": "LangChain: PGVector",
    "llamaindex": "LlamaIndex: PGVectorStore",
}

# runs the command and reports seconds and the largest resident size of any of its processes
MEASURED = """
import json, resource, subprocess, sys, time
begun = time.perf_counter()
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
seconds = time.perf_counter() - begun
kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([seconds, kilobytes / 1024, done.returncode, done.stdout, done.stderr]))
"""


def note_files(vault: Path) -> Iterator[Path]:
    """The .md files outside dot folders, as all pipelines read them."""
    for path in sorted(vault.rglob("*.md")):
        if not any(part.startswith(".") for part in path.relative_to(vault).parts):
            yield path


# The pipelines, each in its process -------------------------------------------------------------------------


def langchain(vault: Path, url: str, older: bool) -> dict[str, Any]:
    """Headers, then pieces by size, then `add_documents` (which embeds and writes)."""
    begun = time.perf_counter()
    postgres: Any = importlib.import_module("langchain_postgres")
    splitters: Any = importlib.import_module("langchain_text_splitters")
    core: Any = importlib.import_module("langchain_core.embeddings")
    documents: Any = importlib.import_module("langchain_core.documents")

    class Fake(core.Embeddings):  # type: ignore[misc]
        """The fake embedder in LangChain's shape; one instance keeps its caches."""

        def __init__(self) -> None:
            self.embedder = FakeLexicalEmbedder()

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            """Vectors of chunks."""
            inputs = [EmbeddingInput(content=text) for text in texts]
            return [list(vector) for vector in self.embedder.embed_documents(inputs)]

        def embed_query(self, text: str) -> list[float]:
            """The vector of a question."""
            return list(self.embedder.embed_query(text))

    count_tokens("loads the vocabulary")
    address = "postgresql+psycopg" + url.removeprefix("postgresql")
    if older:
        store = postgres.PGVector(Fake(), connection=address)
    else:
        engine = postgres.PGEngine.from_connection_string(address)
        engine.init_vectorstore_table("vectors", DIMENSIONS)
        store = postgres.PGVectorStore.create_sync(engine, Fake(), "vectors")
    marks = [("#" * level, f"h{level}") for level in range(1, 7)]
    by_header = splitters.MarkdownHeaderTextSplitter(marks, strip_headers=False)
    by_size = splitters.RecursiveCharacterTextSplitter(
        chunk_size=CHUNK, chunk_overlap=OVERLAP, length_function=count_tokens
    )
    started = time.perf_counter()
    chunks: list[Any] = []
    for path in note_files(vault):
        source = {"source": path.relative_to(vault).as_posix()}
        sections = by_header.split_text(path.read_text(encoding="utf-8", errors="replace"))
        sections = [documents.Document(s.page_content, metadata={**s.metadata, **source}) for s in sections]
        chunks += by_size.split_documents(sections)
    for start in range(0, len(chunks), 1_000):
        store.add_documents(chunks[start : start + 1_000])
    return {"chunks": len(chunks), "seconds": time.perf_counter() - started, "imports s": started - begun}


def llamaindex(vault: Path, url: str) -> dict[str, Any]:
    """SimpleDirectoryReader, then one IngestionPipeline: nodes by headers, pieces, embedding, store."""
    begun = time.perf_counter()
    core: Any = importlib.import_module("llama_index.core")
    parsers: Any = importlib.import_module("llama_index.core.node_parser")
    base: Any = importlib.import_module("llama_index.core.base.embeddings.base")
    ingestion: Any = importlib.import_module("llama_index.core.ingestion")
    postgres: Any = importlib.import_module("llama_index.vector_stores.postgres")
    with contextlib.suppress(ImportError):  # the reader would import it when it reads
        importlib.import_module("llama_index.readers.file")
    embedder = FakeLexicalEmbedder()

    class Fake(base.BaseEmbedding):  # type: ignore[misc]
        """The fake embedder in LlamaIndex's shape."""

        def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            inputs = [EmbeddingInput(content=text) for text in texts]
            return [list(vector) for vector in embedder.embed_documents(inputs)]

        def _get_text_embedding(self, text: str) -> list[float]:
            return self._get_text_embeddings([text])[0]

        def _get_query_embedding(self, query: str) -> list[float]:
            return list(embedder.embed_query(query))

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return self._get_query_embedding(query)

    count_tokens("loads the vocabulary")
    parts = url.removeprefix("postgresql")
    store = postgres.PGVectorStore.from_params(
        connection_string=f"postgresql+psycopg2{parts}",
        async_connection_string=f"postgresql+asyncpg{parts}",
        embed_dim=DIMENSIONS,
    )
    pipeline = ingestion.IngestionPipeline(
        transformations=[
            parsers.MarkdownNodeParser(),
            parsers.SentenceSplitter(chunk_size=CHUNK, chunk_overlap=OVERLAP, tokenizer=encode),
            Fake(model_name="fake-lexical-v1", embed_batch_size=100),
        ],
        vector_store=store,
    )
    store.add([])  # makes the table
    started = time.perf_counter()
    reader = core.SimpleDirectoryReader(input_files=[str(path) for path in note_files(vault)])
    nodes = pipeline.run(documents=reader.load_data(), show_progress=False)
    return {"chunks": len(nodes), "seconds": time.perf_counter() - started, "imports s": started - begun}


def child(name: str, vault: Path, url: str) -> None:
    """One pipeline; its figures as JSON in the last line."""
    figures = (
        llamaindex(vault, url)
        if name == "llamaindex"
        else langchain(vault, url, name == "langchain-pgvector")
    )
    figures["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(figures), flush=True)
    os._exit(0)  # background threads of the libraries would keep the process


# The comparison -------------------------------------------------------------------------------------------


def one_run(name: str, vault: Path, home: Path, server: str) -> dict[str, Any]:
    """The figures of one pipeline on a fresh database; its error instead where it breaks."""
    base = f"run-{name}"
    url = make_database(server, base)
    settings = ("DATABASE_URL", "VAULT_PATH", "EMBEDDING_", "LLM_", "RAG_")
    shell = {key: value for key, value in os.environ.items() if not key.startswith(settings)}
    if name == "pyrag":
        rag(home, "db", "init", url=url)
        program = str(Path(sys.executable).with_name("rag"))
        command = [program, "--env-file", os.devnull, "ingest", str(vault), "--json"]
    else:
        execute(url, "create extension if not exists vector")
        command = [sys.executable, __file__, "--child", name, "--url", url, str(vault)]
    said = subprocess.run(
        [sys.executable, "-c", MEASURED, *command],
        env={**shell, "PYRAG_HOME": str(home), "DATABASE_URL": url},
        check=True, capture_output=True, text=True, encoding="utf-8",
    ).stdout  # fmt: skip
    whole, megabytes, code, output, error = json.loads(said)
    if code not in ((0, 3) if name == "pyrag" else (0,)):
        lines = [line for line in error.splitlines() if line.strip()]
        return {"not available": " ".join(lines[-1:])[:300] or f"exit code {code}"}
    if name == "pyrag":
        figures = {"chunks": json.loads(output)["chunks_written"], "seconds": whole, "peak MB": megabytes}
    else:
        figures = json.loads(output.splitlines()[-1])
    figures["whole process s"] = whole
    figures["chunks/s"] = figures["chunks"] / figures["seconds"]
    return figures


def execute(url: str, statement: str) -> None:
    """One statement on a connection of its own."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def summary(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Medians, and how many times longer than pyrag."""
    rows: list[dict[str, Any]] = []
    for name, done in runs.items():
        row: dict[str, Any] = {"name": name, "label": LABELS[name], "runs": done}
        broken = next((run["not available"] for run in done if "not available" in run), None)
        if broken is not None:
            row["not available"] = broken
        else:
            row |= {
                key: statistics.median(run.get(key, 0.0) for run in done)
                for key in ("chunks", "seconds", "chunks/s", "peak MB", "imports s", "whole process s")
            }
        rows.append(row)
    own = next((row for row in rows if row["name"] == "pyrag" and "seconds" in row), None)
    for row in rows:
        if own and "seconds" in row:
            row["seconds ÷ pyrag"] = row["seconds"] / own["seconds"]
            row["chunks/s ÷ pyrag"] = row["chunks/s"] / own["chunks/s"]
    return rows


def report(facts: dict[str, Any], rows: list[dict[str, Any]], runs: int) -> str:
    """The page."""
    lines = [
        "# Ingestion of a vault, end to end",
        "",
        f"The vault {facts['vault']} ({facts['notes']} notes, {facts['megabytes']:.2f} MB) with fake"
        f" vectors of {DIMENSIONS} dimensions into one embedded Postgres, medians of {runs} runs on fresh"
        f" tables in alternating order. Pieces of up to {CHUNK} tokens (cl100k_base), overlap {OVERLAP}.",
        "",
        *facts_as_markdown(facts),
        "",
    ]
    head = [
        "", "chunks", "seconds", "chunks/s", "seconds ÷ pyrag", "chunks/s ÷ pyrag", "peak MB", "imports s",
        "whole process s", "seconds of each run",
    ]  # fmt: skip
    table = []
    for row in rows:
        if "seconds" in row:
            table.append([
                row["label"], f"{row['chunks']:,.0f}", f"{row['seconds']:.2f}", f"{row['chunks/s']:,.0f}",
                f"{row['seconds ÷ pyrag']:.2f}" if "seconds ÷ pyrag" in row else "–",
                f"{row['chunks/s ÷ pyrag']:.2f}" if "chunks/s ÷ pyrag" in row else "–",
                f"{row['peak MB']:.0f}", f"{row['imports s']:.2f}" if row["imports s"] else "counted",
                f"{row['whole process s']:.2f}", ", ".join(f"{run['seconds']:.2f}" for run in row["runs"]),
            ])  # fmt: skip
    lines += markdown_table(head, table)
    for row in rows:
        if "not available" in row:
            lines.append(f"\n{row['label']}: not available: {row['not available']}")
    return "\n".join([*lines, "", *_NOTES, ""])


_NOTES = (
    "- seconds: of pyrag the whole command, start of Python included; of the others from the first file read"
    " to the last row committed. Their imports, the tokenizer's vocabulary and the set-up of tables stand"
    " apart.",
    "- The pipelines cut differently, so the numbers of chunks differ: compare seconds for the vault as a"
    " whole, and chunks/s with that in mind. Only pyrag keeps a ledger, hashes and copies of metadata"
    " for later runs.",
    "- peak MB: largest process of the pipeline; pyrag reads large vaults with several processes.",
)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("vault", type=Path, help="folder of notes")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default=",".join(LABELS), help=f"some of: {', '.join(LABELS)}")
    parser.add_argument("--home", type=Path, help="folder for everything temporary (default: the system's)")
    parser.add_argument("--out", type=Path, default=ROOT / "eval" / "results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    vault = given.vault.resolve()
    if given.child:
        child(given.child, vault, given.url)
        return
    names = given.only.split(",")
    if set(names) - set(LABELS):
        parser.error(f"known are {', '.join(LABELS)}")
    files = list(note_files(vault))
    if not files:
        parser.error(f"no .md file in {given.vault}")
    end_on_signals()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in LABELS if name in names}
    with temporary_server(given.home) as (home, server):
        facts = machine_facts(PACKAGES, server)
        facts["vault"] = given.vault.name or str(given.vault)
        facts["notes"] = len(files)
        facts["megabytes"] = sum(path.stat().st_size for path in files) / 1e6
        for number in range(given.runs):
            for name in list(runs) if number % 2 == 0 else [*runs][::-1]:
                if any("not available" in run for run in runs[name]):
                    continue
                figures = one_run(name, vault, home, server)
                runs[name].append(figures)
                execute(server, f'drop database "run-{name}" with (force)')
                execute(server, "checkpoint")
                note(f"run {number + 1}, {name}: {figures.get('not available') or figures}")
    rows = summary(runs)
    text = report(facts, rows, given.runs)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "ingest_compare.md").write_text(text, encoding="utf-8")
    (given.out / "ingest_compare.json").write_text(
        json.dumps({"facts": facts, "results": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(text)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
