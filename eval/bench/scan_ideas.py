"""What makes the exact scan fast and what does not: layouts and tricks side by side, same vectors, one run.

    python eval/bench/scan_ideas.py [--rows 100000] [--questions 12]

Fills one table for each layout on an embedded Postgres of its own, asks in turns, and prints the median of
each idea with its ratio to the scan that pyrag has (`key and half first`). Then, in numpy, which share of
the rows bounds from a prefix or from signs would let through. The figures are in docs/why.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from vectors import default_sets, default_vaults, note, read_texts, temporary_server, write_vectors

KEYS = "embedding_provider text not null, embedding_model text not null, embedding_dim integer not null"
REST = (
    "created_at timestamptz default now(), updated_at timestamptz default now(), scope text, input_hash text"
)
HALF = (
    "half halfvec(1024) generated always as"
    " (case when vector_norm(embedding) between 1e-12 and 1e12"
    " then l2_normalize(embedding)::halfvec(1024) end) stored"
)
KEY = (
    "key bigint generated always as (hashtextextended(embedding_provider || chr(31) || embedding_model,"
    " embedding_dim)) stored"
)
TABLES = {
    "seed": f"id bigint, chunk_id bigint, {KEYS}, embedding vector(1024), {REST}",
    "inline": f"id bigint, chunk_id bigint, {KEYS}, embedding vector(1024), {REST}",
    "half_last": f"id bigint, chunk_id bigint, {KEYS}, embedding vector(1024), {REST}, {KEY}, {HALF}",
    "half_first": f"id bigint, chunk_id bigint, {KEY}, {HALF}, {KEYS}, embedding vector(1024), {REST}",
}
TEXT = "embedding_provider = 'fake' and embedding_model = 'fake-lexical-v1' and embedding_dim = 1024"
NUMBER = "key = hashtextextended('fake' || chr(31) || 'fake-lexical-v1', 1024)"
TOP = "order by (half <#> {h}) + 1 limit 60"
IDEAS = {  # name: (query, questions in one query)
    "seed's table, <=> on vector": (f"select id from seed where {TEXT} order by embedding <=> {{v}} limit 10", 1),
    "vectors in the row (storage plain)": (
        f"select id from inline where {TEXT} order by embedding <=> {{v}} limit 10", 1,
    ),
    "half last, text filter": (f"select id from half_last where {TEXT} {TOP}", 1),
    "half last, key": (f"select id from half_last where {NUMBER} {TOP}", 1),
    "half first, text filter": (f"select id from half_first where {TEXT} {TOP}", 1),
    "half first, cosine": (f"select id from half_first where {NUMBER} order by (half <=> {{h}}) + 1 limit 60", 1),
    "key and half first": (f"select id from half_first where {NUMBER} {TOP}", 1),
    "the same, bound from 2,000 rows": (
        "with b as materialized (select max(d) as bound from (select d from (select (half <#> {h}) + 1 as d"
        f" from half_first where {NUMBER} limit 2000) as s order by d limit 60) as s)"
        f" select id from half_first where {NUMBER} and (half <#> {{h}}) + 1 <= (select bound from b) {TOP}", 1,
    ),
    "table of key and half alone": (f"select id from narrow where {NUMBER} {TOP}", 1),
    "four questions in one scan": (
        "select " + ", ".join(f"min((half <#> {{h{i}}}) + 1)" for i in range(4)) + f" from half_first where {NUMBER}", 4,
    ),
    "one question, minimum alone": (f"select min((half <#> {{h}}) + 1) from half_first where {NUMBER}", 1),
    "the pages alone: count(*)": ("select count(*) from half_first", 1),
}  # fmt: skip
BASE = "key and half first"


def fill(connection: Any, stored: Any) -> None:
    """One table for each layout, with the same rows."""
    from pgvector import Vector
    from pgvector.psycopg import register_vector

    register_vector(connection)
    for name, columns in TABLES.items():
        note(f"filling {name}")
        connection.execute(f"create table {name} ({columns}, primary key (id))")
        if "half" in name:
            connection.execute(f"alter table {name} alter column half set storage plain")
        if name == "inline":
            connection.execute(f"alter table {name} alter column embedding set storage plain")
        with connection.cursor().copy(
            f"copy {name} (id, chunk_id, embedding_provider, embedding_model, embedding_dim, embedding,"
            " scope, input_hash) from stdin (format binary)"
        ) as copy:
            copy.set_types(["int8", "int8", "text", "text", "int4", "vector", "text", "text"])
            for number in range(len(stored)):
                row = [number, number, "fake", "fake-lexical-v1", 1024, Vector(stored[number])]
                copy.write_row([*row, "/srv/vaults/docs", f"{number:064x}"])
    connection.execute("create table narrow (id bigint, key bigint, half halfvec(1024))")
    connection.execute("alter table narrow alter column half set storage plain")
    connection.execute("insert into narrow select id, key, half from half_first order by id")
    for name in (*TABLES, "narrow"):
        connection.execute(f"vacuum analyze {name}")


def text_of(vector: Any, kind: str) -> str:
    """A vector as a literal of the given type."""
    return "'[" + ",".join(map(repr, vector.tolist())) + f"]'::{kind}"


def measure(connection: Any, asked: Any, workers: int) -> dict[str, float]:
    """Median milliseconds a question of each idea, asked in turns."""
    connection.execute(f"set max_parallel_workers_per_gather = {workers}")
    times: dict[str, list[float]] = {name: [] for name in IDEAS}
    for number, vector in enumerate(asked):
        for name, (query, questions) in IDEAS.items():
            more = {f"h{i}": text_of(asked[(number + i) % len(asked)], "halfvec") for i in range(4)}
            filled = query.format(v=text_of(vector, "vector"), h=text_of(vector, "halfvec"), **more)
            begun = time.perf_counter()
            connection.execute(filled).fetchall()
            times[name].append((time.perf_counter() - begun) / questions * 1000)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def bounds(stored: Any, asked: Any, k: int = 10) -> list[str]:
    """Share of rows that a provable bound cannot rule out, medians over the questions."""
    import numpy as np

    lines = []
    for width in (128, 256, 512):
        rest = np.sqrt(np.maximum(0, 1 - (stored[:, :width] ** 2).sum(axis=1)))
        shares = []
        for vector in asked:
            kth = np.sort(stored @ vector)[-k]
            left = np.sqrt(max(0.0, 1 - float((vector[:width] ** 2).sum())))
            shares.append(float((stored[:, :width] @ vector[:width] + rest * left >= kth).mean()))
        lines.append(f"prefix of {width}, lengths of the rests: {statistics.median(shares):.1%}")
    signs = np.where(stored >= 0, 1, -1).astype(np.float32) / np.sqrt(stored.shape[1])
    along = (signs * stored).sum(axis=1)
    shares = []
    for vector in asked:
        kth = np.sort(stored @ vector)[-k]
        seen = signs @ vector
        most = along * seen + np.sqrt(np.maximum(0, 1 - along**2) * np.maximum(0, 1 - seen**2))
        shares.append(float((most >= kth).mean()))
    lines.append(f"signs (1 bit a dimension), exact remainder: {statistics.median(shares):.1%}")
    return lines


def main() -> None:
    """Fills, measures and prints."""
    import numpy as np
    import psycopg

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=12)
    arguments = parser.parse_args()
    with temporary_server(None) as (home, url):
        path = Path(home) / "vectors.npy"
        asked = write_vectors(
            path, read_texts(default_vaults(), default_sets()), arguments.questions, arguments.rows
        )
        stored = np.load(path)
        with psycopg.connect(url, autocommit=True) as connection:
            fill(connection, stored)
            serial = measure(connection, asked, 0)
            parallel = measure(connection, asked, 1)
    print(f"{arguments.rows} rows, median ms a question\n")
    print(f"{'':<38}{'serial':>8}{'ratio':>7}{'parallel':>10}{'ratio':>7}")
    for name in IDEAS:
        print(
            f"{name:<38}{serial[name]:>8.1f}{serial[name] / serial[BASE]:>7.2f}"
            f"{parallel[name]:>10.1f}{parallel[name] / parallel[BASE]:>7.2f}"
        )
    print("\nrows that bounds let through to the full comparison:")
    print("\n".join(bounds(stored, asked)))


if __name__ == "__main__":
    main()
