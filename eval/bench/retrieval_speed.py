"""Time of one retrieval by vectors, by words and by both, on the same chunks, in turn, in one run.

    python eval/bench/retrieval_speed.py [VAULT] [--chunks 100000] [--questions 30]

A vault is ingested into a server of its own and its documents repeated as further vaults up to the number of
chunks. Questions are headings of the vault, and single words of them for the short ones. Times are those of
the function `rag.retrieve` over one connection.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
from vectors import end_on_signals, temporary_server

from pyrag.config import load_configuration
from pyrag.db import Database
from pyrag.embeddings import build_embedder
from pyrag.ingest import ingest_vault

ROOT = Path(__file__).resolve().parents[2]
MODES = ("vector", "lexical", "hybrid")

REPEAT = """
with documents as (
    insert into rag.documents (vault_path, file_path, relative_path, content_hash, frontmatter, scope)
    select d.vault_path || %(n)s, d.file_path, d.relative_path, d.content_hash, d.frontmatter,
        d.vault_path || %(n)s
    from rag.documents as d where d.vault_path = %(vault)s
    returning id, relative_path, vault_path
), chunks as (
    insert into rag.chunks (document_id, chunk_index, content, file_path, relative_path, heading_path,
        frontmatter, tags, wikilinks, metadata, content_hash, token_count, scope, has_terms)
    select n.id, c.chunk_index, c.content, c.file_path, c.relative_path, c.heading_path, c.frontmatter,
        c.tags, c.wikilinks, c.metadata, c.content_hash, c.token_count, n.vault_path, true
    from rag.documents as d
    join rag.chunks as c on c.document_id = d.id
    join documents as n on n.relative_path = d.relative_path
    where d.vault_path = %(vault)s
    returning id, document_id, chunk_index, scope
), pairs as (
    select c.id as old_id, n.id as new_id, n.scope
    from rag.documents as d
    join rag.chunks as c on c.document_id = d.id
    join documents as m on m.relative_path = d.relative_path
    join chunks as n on n.document_id = m.id and n.chunk_index = c.chunk_index
    where d.vault_path = %(vault)s
), terms as (
    insert into rag.chunk_terms (id, chunk_id, scope, terms)
    select p.new_id, p.new_id, p.scope, t.terms
    from pairs as p join rag.chunk_terms as t on t.id = p.old_id
    returning id
), uncounted as (
    insert into rag.uncounted_terms (id) select t.id from terms as t
)
insert into rag.embeddings (chunk_id, embedding_provider, embedding_model, embedding_dim, embedding, scope)
select p.new_id, e.embedding_provider, e.embedding_model, e.embedding_dim, e.embedding, p.scope
from pairs as p join rag.embeddings as e on e.chunk_id = p.old_id
"""


def main() -> None:
    """Prints medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("vault", nargs="?", type=Path, default=ROOT / "../shared/vaults/tidb-docs-cn")
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=30)
    options = parser.parse_args()
    if not options.vault.is_dir():
        sys.exit(f"{options.vault}: no such folder; name a vault")
    end_on_signals()
    with temporary_server(None) as (_, url):
        measure(Database(url, embedded=True), options)


def value(connection: psycopg.Connection[Any], query: str, parameters: Any = None) -> Any:
    """The one value that a query gives."""
    row = connection.execute(query, parameters).fetchone()
    assert row is not None
    return row[0]


def measure(database: Database, options: argparse.Namespace) -> None:
    """Fills the database and asks every question in each mode, in turn."""
    database.install()
    embedder = build_embedder(load_configuration(environ={}, folder=Path("/")).settings)
    print("ingesting", file=sys.stderr)
    ingest_vault(options.vault, database, embedder)
    vault = str(options.vault.resolve())
    with psycopg.connect(database.url, autocommit=True) as connection:
        count = "select count(*) from rag.chunks"
        first = value(connection, count)
        for number in range(1, round(options.chunks / first)):
            connection.execute(REPEAT, {"vault": vault, "n": f"/{number}"})
        connection.execute("select rag.count_terms()")
        connection.execute("vacuum analyze")
        chunks = value(connection, count)
        rows = connection.execute(
            "select distinct h.heading from rag.chunks as c, unnest(c.heading_path) as h (heading)"
            " where length(h.heading) between 8 and 60 order by 1"
        ).fetchall()
        questions = [row[0] for row in random.Random(7).sample(rows, options.questions)]
        terms = value(
            connection,
            "select avg(cardinality(rag.question_terms(q.text))) from unnest(%s::text[]) as q (text)",
            [questions],
        )
        times: dict[str, list[float]] = {mode: [] for mode in MODES}
        for turn in range(3):  # the first warms up
            for question in questions:
                vector = str(list(embedder.embed_query(question)))
                for mode in MODES:
                    begun = time.perf_counter()
                    connection.execute(
                        "select * from rag.retrieve(%s, %s::public.vector, %s, %s, %s, 5, '{}', %s)",
                        [question, vector, embedder.provider, embedder.model, embedder.dim, mode],
                    ).fetchall()
                    if turn:
                        times[mode].append((time.perf_counter() - begun) * 1000)
    base = statistics.median(times["vector"])
    print(f"{chunks} chunks, {len(questions)} questions of {terms:.1f} terms, twice; milliseconds\n")
    print("| retrieval | median | p95 | ratio to vector |\n|---|---|---|---|")
    for mode, values in times.items():
        ordered = sorted(values)
        middle = statistics.median(ordered)
        last = ordered[int(0.95 * (len(ordered) - 1))]
        print(f"| {mode} | {middle:.1f} | {last:.1f} | {middle / base:.2f} |")


if __name__ == "__main__":
    main()
