"""Retrieval by words and by both legs: BM25 against another reckoning, counts at any time, the modes."""

from __future__ import annotations

import math
import random
import subprocess
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyrag.config import DEFAULT_RETRIEVAL, Settings, load_configuration
from pyrag.db import Database
from pyrag.embeddings import FakeLexicalEmbedder
from pyrag.errors import InvalidConfiguration
from pyrag.ingest import ingest_vault
from pyrag.models import Retrieval
from pyrag.schemas import Filter
from pyrag.service import Service

Connection = psycopg.Connection[tuple[Any, ...]]
Rag = Callable[..., subprocess.CompletedProcess[str]]

WORDS = [
    "replica", "lag", "backups", "restoring", "the", "数据库", "主从延迟", "重置", "密码", "猫", "API-503",
    "tidb_mem_quota_query", "v8.5.1", "Größe", "ЖУРНАЛ", "C++",
]  # fmt: skip
MODES: tuple[Retrieval, ...] = ("vector", "lexical", "hybrid")


def value(connection: Connection, query: str, parameters: Any = None) -> Any:
    row = connection.execute(query, parameters).fetchone()
    assert row is not None
    return row[0]


def rows(connection: Connection, query: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    return connection.execute(query, parameters).fetchall()


def write(vault: Path, notes: dict[str, str]) -> None:
    for name, text in notes.items():
        path = vault / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def text_of(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 60)))


def meddle(rng: random.Random, path: Path) -> None:
    """What people do to a note: delete, rename or edit it."""
    deed = rng.randrange(3)
    if deed == 0:
        path.unlink()
    elif deed == 1:
        path.rename(path.with_name(f"r{path.name}"))
    else:
        path.write_text(text_of(rng), encoding="utf-8")


def ingest(url: str, vault: Path, **options: Any) -> None:
    ingest_vault(vault, Database(url), FakeLexicalEmbedder(), **options)


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    folder = tmp_path / "vault"
    folder.mkdir()
    return folder


def service_of(url: str, settings: Settings, retrieval: Retrieval, **more: Any) -> Service:
    return Service(settings.model_copy(update={"asked_retrieval": retrieval, **more}), Database(url))


# The tokenizer -------------------------------------------------------------------------------------


def test_letters_are_folded_as_unicode_has_it_whatever_the_server_s_locale(connection: Connection) -> None:
    letters = [
        chr(code) for code in range(0x20, 0xFF00) if unicodedata.category(chr(code)) in ("Lu", "Ll", "Lt")
    ]
    letters = [each for each in letters if unicodedata.normalize("NFKC", each) == each]
    folded = value(
        connection,
        "select array_agg(rag.fold_text(l.letter) order by l.position)"
        " from unnest(%s::text[]) with ordinality as l (letter, position)",
        [letters],
    )
    wrong = [
        (each, got)
        for each, got in zip(letters, folded, strict=True)
        if got != {"ς": "σ", "İ": "i"}.get(each, each.lower() if len(each.lower()) == 1 else each)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("重置密码", "如何重置数据库密码"),
        ("tidb_mem_quota_query", "set tidb_mem_quota_query = 1"),
        ("mem quota", "set tidb_mem_quota_query = 1"),
        ("API-503", "error api-503."),
        ("503", "error API-503."),
        ("v8.5.1", "since (v8.5.1)"),
        ("c++", "written in C++, not C"),
        ("restoring a backup", "Backups can be restored"),
        ("größe", "GRÖSSE? GRÖẞE? Größe"),
        ("журнал", "ЖУРНАЛ"),
        ("ＡＢＣ１２３", "abc123"),
        ("猫", "狗, 猫, 鸟"),
        ("カタカナ", "ﾊﾝｶｸｶﾀｶﾅ"),
        ("한국어", "한국어 문서"),
    ],
)
def test_a_text_is_found_by(connection: Connection, question: str, text: str) -> None:
    assert value(
        connection,
        "select rag.question_terms(%s) && rag.lexical_terms(%s)",
        [question, text],
    )


# BM25 ----------------------------------------------------------------------------------------------


def bm25(terms: list[list[str]], asked: list[str], more: int = 0) -> list[float]:
    """The score of each document by the textbook: weights in steps of a fifteenth, usual length 300.

    As many documents `more` without any of the terms count for idf.
    """
    found = []
    frequencies = [Counter(each) for each in terms]
    for counts in frequencies:
        length = sum(counts.values())
        total = 0.0
        for term in asked:
            holding = sum(term in other for other in frequencies)
            idf = math.log(1 + (len(terms) + more - holding + 0.5) / (holding + 0.5))
            if term in counts:
                share = counts[term] / (counts[term] + 1.2 * (0.25 + 0.75 * length / 300))
                total += idf * max(1, round(15 * share)) / 15 * 2.2
        found.append(total)
    return found


def test_scores_ranks_and_coverage_are_those_of_bm25(url: str, connection: Connection, vault: Path) -> None:
    rng = random.Random(11)
    write(vault, {f"n{number:02}.md": text_of(rng) for number in range(40)})
    ingest(url, vault)
    stored = rows(
        connection,
        "select c.relative_path, rag.lexical_terms(rag.lexical_text("
        "c.content, c.heading_path, c.relative_path, c.tags, c.frontmatter)) from rag.chunks as c order by 1",
    )
    for _ in range(40):
        question = " ".join(rng.sample([*WORDS, "nowhere", "不在这里"], rng.randint(1, 5)))
        asked = value(connection, "select rag.question_terms(%s)", [question])
        scores = bm25([terms for _, terms in stored], asked)
        covered = dict(zip(dict(stored), bm25([terms for _, terms in stored], asked, more=50), strict=True))
        most = sum(
            math.log(1 + (90 - holding + 0.5) / (holding + 0.5)) * 2.2
            for term in asked
            for holding in [sum(term in terms for _, terms in stored)]
        )
        expected = sorted(
            ((-score, name) for score, (name, _) in zip(scores, stored, strict=True) if score > 0)
        )[:10]
        got = rows(
            connection,
            "select r.source, r.lexical_rank, r.lexical_score, r.coverage, r.matched_terms"
            " from rag.retrieve(%s, p_top_k => 10) as r",
            [question],
        )
        assert len(got) == len(expected)
        terms_of = dict(stored)
        for place, ((source, rank, score, coverage, matched), (negative, _)) in enumerate(
            zip(got, expected, strict=True), start=1
        ):
            assert rank == place
            assert score == pytest.approx(-negative, rel=1e-5)
            assert score == pytest.approx(dict(zip(terms_of, scores, strict=True))[source], rel=1e-5)
            assert coverage == pytest.approx(covered[source] / most, rel=1e-5)
            assert matched == [term for term in asked if term in terms_of[source]]


# Counts --------------------------------------------------------------------------------------------


def check_counts(connection: Connection) -> None:
    """Every count, for each vault and over all, is what counting the chunks gives."""
    scopes = [row[0] for row in rows(connection, "select distinct d.vault_path from rag.documents as d")]
    for scope in [None, *scopes]:
        expected = dict(
            rows(
                connection,
                "with each as (select rag.weigh_chunk(c.content, c.heading_path, c.relative_path, c.tags,"
                " c.frontmatter) as terms"
                " from rag.chunks as c join rag.documents as d on d.id = c.document_id"
                " where %(scope)s::text is null or d.vault_path = %(scope)s)"
                " select l.dim, count(*) from each as e, rag.list_dims(e.terms) as l group by l.dim"
                " union all select 0, count(*) from each",
                {"scope": scope},
            )
        )
        got = dict(
            rows(
                connection,
                "select s.dim, s.chunks from rag.term_statistics(array(select distinct k.dim"
                " from rag.term_counts as k) || %(dims)s::integer[], %(scope)s) as s",
                {"scope": scope, "dims": list(expected)},
            )
        )
        assert {dim: count for dim, count in got.items() if count} == {
            dim: count for dim, count in expected.items() if count
        }


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_right_after_whatever_happens(
    url: str, connection: Connection, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    vaults = [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(vaults):
        write(folder, {f"n{number}{each}.md": text_of(rng) for each in range(8)})
        ingest(url, folder)
    check_counts(connection)

    def change() -> None:
        folder = rng.choice(vaults)
        names = sorted(folder.glob("*.md"))
        for path in rng.sample(names, min(len(names), rng.randint(0, 3))):
            meddle(rng, path)
        write(folder, {f"x{rng.randint(0, 999)}.md": text_of(rng)})
        ingest(url, folder, allow_mass_delete=True)

    def by_hand() -> None:
        connection.execute(
            "insert into rag.chunks"
            " (document_id, chunk_index, content, file_path, relative_path, content_hash)"
            " select d.id, 1000 + %s, %s, d.file_path, d.relative_path, 'h' from rag.documents as d"
            " order by d.id limit 1",
            [rng.randint(0, 10**6), text_of(rng)],
        )

    steps: list[Callable[[], object]] = [
        change,
        change,
        by_hand,
        lambda: connection.execute("select rag.count_terms()"),
        lambda: connection.execute("select rag.fill_terms(1)"),
        lambda: connection.execute("delete from rag.documents where id %% 5 = %s", [rng.randint(0, 4)]),
        lambda: connection.execute("delete from rag.chunks where id %% 7 = %s", [rng.randint(0, 6)]),
        lambda: connection.execute(
            "select rag.forget(d.vault_path, d.relative_path, true)"
            " from rag.documents as d order by d.id limit 1"
        ),
    ]
    for _ in range(14):
        rng.choice(steps)()
        check_counts(connection)
    moved = str(tmp_path / "three")
    if value(connection, "select count(*) from rag.documents as d where d.vault_path = %s", [str(vaults[0])]):
        connection.execute("select rag.move_vault(%s, %s)", [str(vaults[0]), moved])
        check_counts(connection)
    connection.execute("select rag.fill_terms(1000)")
    check_counts(connection)
    assert value(connection, "select count(*) from rag.uncounted_terms") == 0
    assert value(connection, "select count(*) from rag.chunk_terms as t where t.chunk_id is null") == 0
    connection.execute("delete from rag.documents")
    check_counts(connection)
    connection.execute("select rag.count_terms()")
    for table in ("chunk_terms", "uncounted_terms", "term_counts"):
        assert value(connection, f"select count(*) from rag.{table}") == 0, table


def test_changing_notes_ends_where_a_new_index_of_them_begins(
    url: str, empty_url: str, tmp_path: Path, settings: Settings
) -> None:
    rng = random.Random(5)
    vault = tmp_path / "vault"
    write(vault, {f"n{number}.md": text_of(rng) for number in range(20)})
    ingest(url, vault)
    for path in sorted(vault.glob("*.md"))[:12]:
        meddle(rng, path)
    ingest(url, vault, allow_mass_delete=True)
    Database(empty_url).install()
    ingest(empty_url, vault)
    for mode in MODES:
        one, other = service_of(url, settings, mode), service_of(empty_url, settings, mode)
        for _ in range(10):
            question = " ".join(rng.sample(WORDS, 3))
            assert one.search(question, 20) == other.search(question, 20)


def test_counting_from_several_sessions_at_once_counts_each_chunk_once(
    url: str, connection: Connection, vault: Path
) -> None:
    rng = random.Random(3)
    write(vault, {f"n{number}.md": text_of(rng) for number in range(60)})
    ingest(url, vault)
    connection.execute("truncate rag.chunk_terms, rag.uncounted_terms, rag.term_counts")
    connection.execute("update rag.chunks set has_terms = false")
    failed: list[BaseException] = []

    def work(query: str) -> None:
        try:
            with psycopg.connect(url, autocommit=True) as own:
                for _ in range(30):
                    own.execute(query)
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=work, args=[query])
        for query in (
            "select rag.fill_terms(3)",
            "select rag.fill_terms(2)",
            "select rag.count_terms()",
            "select rag.count_terms()",
            "delete from rag.chunks where id = (select min(id) from rag.chunks)",
        )
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
    check_counts(connection)
    while value(connection, "select rag.fill_terms(100)"):
        pass
    check_counts(connection)
    assert value(connection, "select count(*) from rag.chunk_terms") == 30


def test_a_chunk_inserted_with_the_columns_of_the_seed_is_found_by_every_retrieval(
    url: str, connection: Connection, vault: Path, settings: Settings
) -> None:
    write(vault, {f"n{number}.md": f"Nothing to see here {number}." for number in range(4)})
    ingest(url, vault)
    connection.execute(
        "with d as (insert into rag.documents (vault_path, file_path, relative_path, content_hash)"
        " values ('/hand', '/hand/made.md', 'made.md', 'h') returning id), c as ("
        " insert into rag.chunks (document_id, chunk_index, content, file_path, relative_path, content_hash)"
        " select d.id, 0, 'Zebra crossing', '/hand/made.md', 'made.md', 'h' from d returning id)"
        " insert into rag.embeddings"
        " (chunk_id, embedding_provider, embedding_model, embedding_dim, embedding)"
        " select c.id, 'fake', 'fake-lexical-v1', 1024, %s::public.vector from c",
        [str(list(FakeLexicalEmbedder().embed_query("Zebra crossing")))],
    )
    for mode in MODES:
        first = service_of(url, settings, mode).search("zebra").results[0]
        assert (first.source, first.vault) == ("made.md", "/hand"), mode
        assert first.score > 0.5
    # the next run stores its words
    ingest(url, vault)
    assert value(connection, "select count(*) from rag.chunks as c where not c.has_terms") == 0


# The modes -----------------------------------------------------------------------------------------


def test_python_and_sql_agree_on_the_default_of_each_provider(connection: Connection) -> None:
    for provider, retrieval in DEFAULT_RETRIEVAL.items():
        chosen = value(connection, "select d.retrieval from rag.retrieval_defaults(%s) as d", [provider])
        assert chosen == retrieval, provider


def test_the_setting_is_checked_and_shown_resolved() -> None:
    with pytest.raises(InvalidConfiguration, match=r"RAG_RETRIEVAL=words is not allowed: expected 'vector'"):
        load_configuration(environ={"RAG_RETRIEVAL": "words"})
    for given, resolved, origin in (
        ("", "lexical", "provider"),
        ("hybrid", "hybrid", "RAG_RETRIEVAL"),
        ("vector", "vector", "RAG_RETRIEVAL"),
    ):
        summary = load_configuration(environ={"RAG_RETRIEVAL": given}).summary()
        row = next(each for each in summary if each["variable"] == "resolved retrieval")
        assert (row["value"], row["origin"]) == (resolved, origin)


@pytest.fixture
def notes(url: str, vault: Path) -> Path:
    rng = random.Random(9)
    write(vault, {f"n{number:02}.md": f"# Note {number}\n\n{text_of(rng)}\n" for number in range(30)})
    ingest(url, vault)
    return vault


def test_vector_retrieval_is_the_plain_scan(
    url: str, connection: Connection, notes: Path, settings: Settings
) -> None:
    service = service_of(url, settings, "vector")
    for question in ("replica lag", "重置密码", "v8.5.1 API-503"):
        response = service.search(question, 20)
        vector = str(list(service.embedder.embed_query(question)))
        plain = rows(
            connection,
            "select s.source, s.score"
            " from rag.search_chunks_plain(%s, 'fake', 'fake-lexical-v1', 1024, 20) as s",
            [vector],
        )
        assert [(each.source, each.score) for each in response.results] == plain
        assert response.confidence == plain[0][1]
        assert [each.vector_rank for each in response.results] == list(range(1, 21))
        assert {each.lexical_rank for each in response.results} == {None}
        assert (response.retrieval, response.threshold) == ("vector", 0.2)


def test_a_hybrid_hit_has_both_ranks_and_their_weighted_fusion(
    url: str, connection: Connection, notes: Path, settings: Settings
) -> None:
    question = "replica 密码 nowhere"
    vector = str(list(FakeLexicalEmbedder().embed_query(question)))
    found = {}
    for mode in MODES:
        for source, by_vector, by_words, fused, similarity in rows(
            connection,
            "select r.source, r.vector_rank, r.lexical_rank, r.fused_score, r.score"
            " from rag.retrieve(%s, %s::public.vector, 'fake', 'fake-lexical-v1', 1024, 20, '{}', %s) as r",
            [question, vector, mode],
        ):
            found[mode, source] = (by_vector, by_words, fused, similarity)
    hybrid = {source: row for (mode, source), row in found.items() if mode == "hybrid"}
    assert len(hybrid) == 20
    for source, (by_vector, by_words, fused, similarity) in hybrid.items():
        expected = 0.0
        if by_vector is not None:
            expected += 0.015 / (60 + by_vector)
        if by_words is not None:
            expected += 0.985 / (60 + by_words)
        assert fused == pytest.approx(expected)
        for mode, position in (("vector", 0), ("lexical", 1)):
            if (mode, source) in found:
                assert found[mode, source][position] == hybrid[source][position]
                assert found[mode, source][3] == pytest.approx(similarity, abs=1e-9)
    assert [row[2] for row in hybrid.values()] == sorted((row[2] for row in hybrid.values()), reverse=True)


def test_a_filter_holds_in_every_retrieval(url: str, tmp_path: Path, settings: Settings) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, {"a/n.md": "# A\n\nreplica lag #ops", "b/n.md": "# B\n\nreplica lag"})
        ingest(url, tmp_path / name)
    for mode in MODES:
        service = service_of(url, settings, mode)
        vault = str(tmp_path / "two")
        only = service.search("replica lag", 20, Filter.model_validate({"vault": vault})).results
        assert {each.vault for each in only} == {vault}
        assert len(only) == 2
        below = service.search("replica lag", 20, Filter.model_validate({"path_prefix": "a"})).results
        assert {each.source for each in below} == {"a/n.md"}
        assert len(below) == 2
        tagged = service.search(
            "replica lag", 20, Filter.model_validate({"tags": {"any": ["ops"]}, "vault": vault})
        ).results
        assert [(each.vault, each.source) for each in tagged] == [(vault, "a/n.md")]


def test_the_words_of_another_vault_change_no_score_of_a_filtered_search(
    url: str, tmp_path: Path, settings: Settings
) -> None:
    write(
        tmp_path / "one", {f"{number}.md": f"replica {'lag' * (number % 2)} {number}" for number in range(6)}
    )
    ingest(url, tmp_path / "one")
    service = service_of(url, settings, "lexical")
    only = Filter.model_validate({"vault": str(tmp_path / "one")})
    before = service.search("replica lag", 20, only)
    write(tmp_path / "two", {f"{number}.md": f"lag lag {number}" for number in range(9)})
    ingest(url, tmp_path / "two")
    assert service.search("replica lag", 20, only) == before


def test_lexical_retrieval_finds_what_has_no_vector_at_all(
    url: str, connection: Connection, vault: Path, settings: Settings
) -> None:
    """The fake provider embeds no Cyrillic: nothing near, but the word is there."""
    write(vault, {"ru.md": "Журнал событий", "en.md": "Event log"})
    ingest(url, vault)
    response = service_of(url, settings, "lexical").search("журнал")
    assert [(each.source, each.score) for each in response.results] == [("ru.md", 0.0)]
    assert response.confidence > 0.9, "by the words"


def test_answers_name_retrieval_and_threshold(url: str, notes: Path, settings: Settings) -> None:
    for mode in MODES:
        response = service_of(url, settings, mode, min_similarity=0.01).ask("replica lag")
        threshold = 0.01 if mode == "vector" else 0.5
        assert (response.mode, response.retrieval, response.threshold) == ("rag", mode, threshold)
        similarity = max(each.score for each in response.citations)
        assert response.decision.similarity == similarity
        assert (response.confidence == similarity) == (mode == "vector")


def test_the_command_says_which_words_found_a_chunk(rag: Rag, notes: Path) -> None:
    done = rag("search", "tidb_mem_quota_query", "--top-k", "1")
    assert done.returncode == 0
    assert "retrieval lexical" in done.stdout
    assert "by words at 1 (coverage 0." in done.stdout
    assert "tidb_mem_quota_query" in done.stdout.split("by words")[1].splitlines()[0]


def test_db_init_makes_the_words_of_chunks_that_have_none(
    rag: Rag, connection: Connection, notes: Path
) -> None:
    connection.execute("truncate rag.chunk_terms, rag.uncounted_terms, rag.term_counts")
    connection.execute("update rag.chunks set has_terms = false")
    done = rag("db", "init")
    assert (done.returncode, "words of 30 stored chunks indexed" in done.stderr) == (0, True)
    check_counts(connection)
    assert "words of" not in rag("db", "init").stderr


# Contexts ------------------------------------------------------------------------------------------


def test_the_chunks_around_a_hit_join_its_block(url: str, vault: Path, settings: Settings) -> None:
    parts = [f"Paragraph {number} about pumps. " + f"filler{number} " * 300 for number in range(4)]
    parts[2] += "The zebra valve closes at noon."
    write(vault, {"long.md": "# Valves\n\n" + "\n\n".join(parts), "other.md": "# Other\n\nNothing."})
    ingest(url, vault)
    lexical = service_of(url, settings, "lexical", min_similarity=0.0, min_confidence=0.0, top_k=1)
    context = lexical.retrieve_for("zebra valve").context
    (block,) = context.blocks
    assert "zebra valve" in block.hit.content
    assert len(block.content) > len(block.hit.content)
    assert context.token_count <= settings.context_token_budget
    whole = (vault / "long.md").read_text(encoding="utf-8")
    assert block.content.strip() in whole, "joined as the note has it, without the overlap"

    (alone,) = (
        service_of(url, settings, "vector", min_similarity=0.0, min_confidence=0.0, top_k=1)
        .retrieve_for("zebra valve")
        .context.blocks
    )
    assert alone.content == alone.hit.content
    tight = replace_budget(lexical, 900).retrieve_for("zebra valve").context
    assert tight.token_count <= 900
    assert tight.blocks[0].content.startswith(tight.blocks[0].hit.content[:50])


def replace_budget(service: Service, budget: int) -> Service:
    return Service(service.settings.model_copy(update={"context_token_budget": budget}), service.database)


def test_a_near_copy_of_an_earlier_hit_is_left_out_of_the_context(
    url: str, vault: Path, settings: Settings
) -> None:
    text = "The zebra valve closes at noon. " + " ".join(f"word{number}" for number in range(150))
    write(
        vault,
        {"a.md": text, "b.md": text.replace("word7 ", "word7x "), "c.md": "A zebra valve is striped."},
    )
    ingest(url, vault)
    for mode, expected in (
        ("lexical", ["a.md", "c.md"]),
        ("hybrid", ["a.md", "c.md"]),
        ("vector", ["a.md", "b.md", "c.md"]),
    ):
        service = service_of(url, settings, mode, min_similarity=0.0, min_confidence=0.0)  # type: ignore[arg-type]
        assert len(service.search("zebra valve").results) == 3, "a search shows them all"
        blocks = service.retrieve_for("zebra valve").context.blocks
        assert sorted(block.hit.source for block in blocks) == expected, mode


# Plans ---------------------------------------------------------------------------------------------


@pytest.fixture
def many(connection: Connection) -> Connection:
    connection.execute(
        "insert into rag.documents (vault_path, file_path, relative_path, content_hash)"
        " select '/' || mod(i, 50), '/f', i || '.md', 'h' from generate_series(1, 2000) as i"
    )
    connection.execute(
        "insert into rag.chunks (document_id, chunk_index, content, file_path, relative_path, content_hash)"
        " select d.id, i, 'word' || d.id || ' common', '/f', d.relative_path, 'h'"
        " from rag.documents as d, generate_series(0, 1) as i"
    )
    while value(connection, "select rag.fill_terms(2000)"):
        pass
    connection.execute("analyze")
    return connection


def test_a_lexical_search_scans_the_terms_once_with_the_vault_in_the_scan(many: Connection) -> None:
    query = value(many, "select rag.sparse_vector(array[rag.term_dim('common')], '{1}')")
    plan = "\n".join(
        row[0]
        for row in rows(
            many,
            f"explain select * from rag.scan_terms('{query}', '/7', p_limit => 10)",
        )
    )
    assert plan.count("Seq Scan on chunk_terms") == 1
    assert "Filter: " in plan
    assert "scope = '/7'::text" in plan
    assert "rag.chunks" not in plan


def test_the_counts_of_a_question_are_looked_up_by_their_keys(many: Connection) -> None:
    scans = (
        "select s.seq_scan from pg_stat_force_next_flush(), pg_stat_user_tables as s"
        " where s.relname = 'term_counts'"
    )
    before = value(many, scans)
    assert value(many, "select w.chunks from rag.weigh_question('word7') as w") == 2
    assert value(many, scans) == before


def test_the_confidence_does_not_depend_on_how_many_chunks_are_asked_for(
    url: str, notes: Path, settings: Settings
) -> None:
    for mode in MODES:
        service = service_of(url, settings, mode)
        for question in ("replica lag", "重置 密码 API-503", "v8.5.1 Größe"):
            confidences = {service.search(question, top_k).confidence for top_k in (1, 3, 20)}
            assert len(confidences) == 1, (mode, question)
    nearest = service_of(url, settings, "vector").search("replica lag", 1).confidence
    _, decision = service_of(url, settings, "hybrid").find("replica lag", 1)
    assert (decision.similarity, decision.calibration) == (nearest, "shipped")


def test_a_question_of_one_character_is_searched_by_vectors_in_lexical_too(
    url: str, vault: Path, settings: Settings
) -> None:
    write(vault, {"a.md": "黑猫警长", "b.md": "别的东西"})
    ingest(url, vault)
    results = service_of(url, settings, "lexical").search("猫").results
    assert (results[0].source, results[0].vector_rank, results[0].lexical_rank) == ("a.md", 1, None)


def test_terms_are_made_anew_and_counted_once(url: str, connection: Connection, notes: Path) -> None:
    connection.execute("update rag.chunks set content = content || ' quokka' where id % 3 = 0")
    assert rows(connection, "select * from rag.retrieve('quokka')") == []
    connection.execute("update rag.chunks set has_terms = false")
    found = rows(connection, "select r.chunk_id from rag.retrieve('replica', p_top_k => 20) as r")
    assert len(set(found)) == len(found), "each chunk once, by the terms it had"
    while value(connection, "select rag.fill_terms(7)"):
        pass
    check_counts(connection)
    assert len(rows(connection, "select * from rag.retrieve('quokka', p_top_k => 20)")) == 10


def test_counts_that_a_truncate_left_behind_are_named_and_counted_again(
    url: str, connection: Connection, notes: Path
) -> None:
    problems = "select f.problem from rag.find_inconsistencies() as f"
    connection.execute("truncate rag.documents cascade")
    assert rows(connection, problems) == [("rag.term_counts does not have as many chunks as there are",)]
    connection.execute("select rag.recount_terms()")
    assert rows(connection, problems) == []
    check_counts(connection)
