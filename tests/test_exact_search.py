"""The exact scan in two stages returns what the plain statement returns: same rows, same order, same scores.

Ten kinds of vectors, the worst that could be thought of among them: differences that half precision cannot
show, many equal rows, lengths far from one. `PYRAG_SEARCH_ROUNDS=20` asks twenty times as many questions.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from conftest import Server
from numpy.typing import NDArray
from pgvector import Vector as PgVector
from pgvector.psycopg import register_vector

from pyrag.embeddings import FakeLexicalEmbedder
from pyrag.models import EmbeddingInput

Vectors = NDArray[np.float32]
Connection = psycopg.Connection[tuple[Any, ...]]

DIM = 1024
ROWS = 240  # vectors of each kind
ROUNDS = int(os.environ.get("PYRAG_SEARCH_ROUNDS", "1"))
WORDS = [
    "replica",
    "lag",
    "backup",
    "restore",
    "数据库",
    "主从延迟",
    "备份",
    "恢复",
    "alert",
    "on-call",
    "P1",
    "工单",
]


def unit(vectors: NDArray[Any]) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def random(rng: np.random.Generator) -> Vectors:
    return unit(rng.normal(size=(ROWS, DIM)))


def clustered(rng: np.random.Generator) -> Vectors:
    centres = rng.normal(size=(6, DIM))
    return unit(centres[rng.integers(0, 6, ROWS)] + rng.normal(size=(ROWS, DIM)) * 0.05)


def duplicated(rng: np.random.Generator) -> Vectors:
    return random(rng)[rng.integers(0, 12, ROWS)]


def near_tied(rng: np.random.Generator) -> Vectors:
    """All distances to one point equal to within the rounding of single precision."""
    axis = unit(rng.normal(size=(1, DIM)))
    others = rng.normal(size=(ROWS, DIM))
    others -= (others @ axis.T) * axis
    return unit(0.8 * axis + 0.6 * unit(others))


def below_half_precision(rng: np.random.Generator) -> Vectors:
    """Copies of one vector that differ by less than a step of half precision in a few coordinates."""
    base = unit(rng.normal(size=(1, DIM))).repeat(ROWS, axis=0)
    return unit(base + base * rng.choice([-1, 0, 1], size=base.shape) * 2.0**-13)


def against_the_rounding(rng: np.random.Generator) -> Vectors:
    """Half of the coordinates just short of half a step above 1/32, so that all are rounded the same way."""
    up = rng.permuted(np.tile([True, False], (ROWS, DIM // 2)), axis=1)
    shift = 0.998 * 2.0**-11 * rng.uniform(0.9, 1, size=(ROWS, 1))
    return unit(np.where(up, 1 + shift, 1 - shift) / 32)


def sparse(rng: np.random.Generator) -> Vectors:
    """What the fake provider makes of short texts."""
    embedder = FakeLexicalEmbedder()
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(ROWS)]
    return np.array(embedder.embed_documents([EmbeddingInput(text) for text in texts]), dtype=np.float32)


def all_lengths(rng: np.random.Generator) -> Vectors:
    """Lengths from 1e-15 to 1e15: at the ends half vectors, and single precision too, give up."""
    return (random(rng) * 10.0 ** rng.integers(-15, 16, size=(ROWS, 1))).astype(np.float32)


def tiny_coordinates(rng: np.random.Generator) -> Vectors:
    """One large coordinate, the others too small for half precision."""
    vectors = rng.normal(size=(ROWS, DIM)) * 1e-7
    vectors[np.arange(ROWS), rng.integers(0, 5, ROWS)] = 1
    return unit(vectors)


def with_zeros(rng: np.random.Generator) -> Vectors:
    vectors = clustered(rng)
    vectors[rng.integers(0, ROWS, ROWS // 2)] = 0
    vectors[rng.integers(0, ROWS, ROWS // 8)] *= -1
    return vectors


KINDS: dict[str, Callable[[np.random.Generator], Vectors]] = {
    make.__name__: make
    for make in (
        random, clustered, duplicated, near_tied, below_half_precision, against_the_rounding, sparse,
        all_lengths, tiny_coordinates, with_zeros,
    )
}  # fmt: skip

FILTERS: list[dict[str, Any]] = [
    {},
    {"vault": "/a"},
    {"vault": "/without scope"},
    {"path_prefix": "d1"},
    {"path_prefix": "d2/n12.md"},
    {"tags": {"any": ["ops"]}},
    {"tags": {"all": ["ops", "p1"]}},
    {"updated_after": "2021-01-01T00:00:00Z"},
    {"vault": "/b", "path_prefix": "d0", "tags": {"any": ["p1"]}},
]


@pytest.fixture(scope="module")
def filled(server: Server, template: str) -> Iterator[Connection]:
    """Every kind of vectors as a provider of its own, over the same 240 chunks in three vaults."""
    url = server.create(template)
    with psycopg.connect(url, autocommit=True) as connection:
        register_vector(connection)
        connection.execute(
            """
            insert into rag.documents (
                vault_path, file_path, relative_path, content_hash, updated_at, scope
            )
            select v.vault, v.vault || '/' || n, 'd' || n % 4 || '/n' || n || '.md', 'h',
                '2020-06-01'::timestamptz + n * interval '10 days', nullif(v.vault, '/without scope')
            from generate_series(1, 40) as n
            join (values (0, '/a'), (1, '/b'), (2, '/without scope')) as v (rest, vault) on n % 3 = v.rest;
            insert into rag.chunks (
                document_id, chunk_index, content, file_path, relative_path, heading_path, tags,
                content_hash, scope
            )
            select d.id, i, 'text ' || i, d.file_path, d.relative_path, array['H' || i % 2],
                case i % 3 when 0 then array['ops'] when 1 then array['ops/db', 'P1'] else '{}' end,
                md5(i::text), d.scope
            from rag.documents as d, generate_series(1, 6) as i;
            """
        )
        chunks = [row[0] for row in connection.execute("select id from rag.chunks order by hashint8(id)")]
        assert len(chunks) == ROWS
        for number, (kind, make) in enumerate(KINDS.items()):
            with connection.cursor().copy(
                "copy rag.embeddings (chunk_id, embedding_provider, embedding_model, embedding_dim,"
                " embedding, scope) from stdin (format binary)"
            ) as copy:
                copy.set_types(["int8", "text", "text", "int4", "vector", "text"])
                for chunk, vector in zip(chunks, make(np.random.default_rng(number)), strict=True):
                    copy.write_row([chunk, kind, "m", DIM, PgVector(vector), None])
        connection.execute(
            # every seventh as an insert of the contract's columns leaves it
            "update rag.embeddings as e set scope = c.scope from rag.chunks as c"
            " where c.id = e.chunk_id and c.id % 7 > 0"
        )
        connection.execute("analyze")
        yield connection
    server.drop(url)


def questions(kind: str, seed: int) -> list[Vectors]:
    """Stored vectors, points beside and between them, something far, opposites, odd lengths, nothing."""
    rng = np.random.default_rng(1000 + seed)
    stored = KINDS[kind](np.random.default_rng(list(KINDS).index(kind)))
    one, other = stored[rng.integers(0, ROWS, 2)]
    noise = rng.normal(size=DIM).astype(np.float32)
    return [
        one,
        one + noise * 1e-4,
        one * 0.5 + other * 0.5,
        unit(noise[None])[0],
        -one,
        one * np.float32(10.0 ** rng.integers(-8, 9)),
        stored.mean(axis=0),
        one * np.float32(1e-16),
        np.zeros(DIM, dtype=np.float32),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_both_stages_give_what_the_plain_statement_gives(filled: Connection, kind: str) -> None:
    seen: Counter[str] = Counter()
    for round_ in range(ROUNDS):
        for number, question in enumerate(questions(kind, round_)):
            for top_k in range(1, 21):
                wanted = FILTERS[(number + top_k + round_) % len(FILTERS)]
                arguments = [PgVector(question), kind, "m", DIM, top_k, json.dumps(wanted)]
                parameters = "%s::public.vector, %s, %s, %s, %s, %s"
                found = filled.execute(f"select * from rag.search_chunks({parameters})", arguments).fetchall()
                expected = filled.execute(
                    f"select * from rag.search_chunks_plain({parameters})", arguments
                ).fetchall()
                assert found == expected, (number, top_k, wanted)
                seen["searches"] += 1
                seen["chunks"] += len(found)
    print(f"{kind}: {seen['searches']} searches, {seen['chunks']} chunks, the same by both")
    assert seen["searches"] == ROUNDS * 9 * 20
    assert seen["chunks"] > seen["searches"]


def test_the_proof_holds_at_once_for_some_and_not_for_others(filled: Connection) -> None:
    """Without both the test above would be about one half of the algorithm only."""
    proven = {}
    for kind in KINDS:
        question = questions(kind, 0)[0]
        proven[kind] = filled.execute(
            "select e.proven_at_once from rag.explain_search(%s::public.vector, %s, 'm', %s, 5) as e",
            [PgVector(question), kind, DIM],
        ).fetchone()
    assert proven["random"] == proven["clustered"] == proven["sparse"] == (True,)
    assert proven["near_tied"] == (True,), "the stored vector itself is nearer than the tied ones"
    assert proven["below_half_precision"] == proven["against_the_rounding"] == (False,)


def test_half_distances_stay_within_the_error(filled: Connection) -> None:
    """The bound that the proof rests on, for every pair of stored vectors; the largest is near it."""
    rows = filled.execute(
        """
        select a.embedding_provider, max(abs(
            (a.embedding_half <#> b.embedding_half) + 1 - (a.embedding <=> b.embedding)
        )), rag.half_error()
        from rag.embeddings as a
        join rag.embeddings as b using (embedding_provider)
        where a.id % 4 = 0 and a.embedding_half is not null and b.embedding_half is not null
        group by a.embedding_provider
        """
    ).fetchall()
    assert {kind for kind, _, _ in rows} == set(KINDS)
    errors = {kind: error for kind, error, _ in rows}
    bound = rows[0][2]
    assert max(errors.values()) < bound
    assert errors["against_the_rounding"] > bound / 4, errors
