"""Search, modes and citations over a small index."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrag.config import Settings
from pyrag.db import Database
from pyrag.errors import (
    DatabaseUnavailable,
    InvalidConfiguration,
    InvalidRequest,
    LlmConfigMissing,
    RetrievalNotReady,
    SchemaNotInitialized,
)
from pyrag.ingest import ingest_vault
from pyrag.schemas import MAX_QUESTION
from pyrag.service import Service

PUMP = "# Pump\n\nThe bearing of the feed pump is greased on Monday with lithium grease.\n"
VALVE = "# Valve\n\n安全阀每年校验一次，由维修班长签字。\n"


@pytest.fixture
def indexed(service: Service, tmp_path: Path) -> Service:
    vault = tmp_path / "vault"
    vault.mkdir()
    (vault / "pump.md").write_text(PUMP, encoding="utf-8")
    (vault / "valve.md").write_text(VALVE, encoding="utf-8")
    ingest_vault(vault, service.database, service.embedder)
    return service


def with_settings(service: Service, **changes: object) -> Service:
    return Service(service.settings.model_copy(update=changes), service.database)


def test_a_question_that_fits_is_answered_with_citations(indexed: Service) -> None:
    response = indexed.ask("When is the bearing of the feed pump greased?")
    assert response.mode == "rag"
    assert response.citations[0].source == "pump.md"
    assert response.citations[0].heading == "Pump"
    assert response.confidence == response.citations[0].score
    assert "greased on Monday" in response.answer
    assert "[1]" in response.answer


def test_a_chinese_question_finds_the_chinese_note(indexed: Service) -> None:
    response = indexed.ask("安全阀多久校验一次？")
    assert (response.mode, response.citations[0].source) == ("rag", "valve.md")


def test_an_unrelated_question_is_refused_without_citations(indexed: Service) -> None:
    response = indexed.ask("Mona Lisa painter")
    assert (response.mode, response.citations) == ("no_answer", [])


def test_confidence_at_the_threshold_is_answered(indexed: Service) -> None:
    confidence = indexed.ask("feed pump").confidence
    assert with_settings(indexed, min_similarity=confidence).ask("feed pump").mode == "rag"
    above = with_settings(indexed, min_similarity=confidence + 1e-9)
    assert above.ask("feed pump").mode == "no_answer"


def test_a_question_that_embeds_to_nothing_has_no_confidence(indexed: Service) -> None:
    assert indexed.search("？？？").model_dump() == {
        "confidence": 0.0, "threshold": 0.2, "retrieval": "lexical", "scan": "exact", "results": [],
    }  # fmt: skip
    response = with_settings(indexed, min_similarity=0.0).ask("？？？")
    assert (response.mode, response.confidence, response.citations) == ("no_answer", 0.0, [])


def test_fallback_needs_the_request_and_the_switch(indexed: Service) -> None:
    enabled = with_settings(indexed, fallback_enabled=True)
    question = "Mona Lisa painter"
    assert enabled.ask(question).mode == "no_answer"
    refused = indexed.ask(question, fallback=True)
    assert refused.mode == "no_answer"
    assert "disabled globally" in refused.answer
    response = enabled.ask(question, fallback=True)
    assert (response.mode, response.citations) == ("fallback", [])
    assert "not from the knowledge base" in response.answer
    assert "不来自知识库" in enabled.ask("蒙娜丽莎谁画的", fallback=True).answer


def test_fallback_is_not_used_when_the_vault_answers(indexed: Service) -> None:
    enabled = with_settings(indexed, fallback_enabled=True)
    assert enabled.ask("feed pump bearing", fallback=True).mode == "rag"


@pytest.mark.parametrize("top_k", [0, -1, 21, 1000])
def test_top_k_out_of_range_is_refused(indexed: Service, top_k: int) -> None:
    with pytest.raises(InvalidRequest, match=f"between 1 and 20, got {top_k}"):
        indexed.search("pump", top_k)


def test_top_k_limits_the_results(indexed: Service) -> None:
    by_vectors = with_settings(indexed, asked_retrieval="vector")
    assert len(by_vectors.search("pump", 1).results) == 1
    assert len(by_vectors.search("pump", 20).results) == 2


@pytest.mark.parametrize("question", ["", " ", "\u3000\n", "a\0b", "x\ud800"])
def test_a_question_that_is_not_text_is_refused(service: Service, question: str) -> None:
    with pytest.raises(InvalidRequest):
        service.ask(question)


def test_a_question_of_the_largest_length_is_answered_and_a_longer_one_refused(indexed: Service) -> None:
    question = ("feed pump bearing " * 20_000)[:MAX_QUESTION]
    assert indexed.ask(question).mode == "rag"
    with pytest.raises(InvalidRequest, match="200001 characters, at most 200000"):
        indexed.ask(question + "?")


def test_results_are_the_same_on_every_call(indexed: Service) -> None:
    assert indexed.search("pump 安全阀") == indexed.search("pump 安全阀")


def test_an_empty_index_is_not_ready(service: Service) -> None:
    for question in ("pump", "？？？"):
        with pytest.raises(RetrievalNotReady, match="nothing is indexed"):
            service.ask(question)
    assert service.status().retrieval_ready is False


def test_status_counts_what_is_indexed(indexed: Service) -> None:
    status = indexed.status()
    assert (status.documents, status.chunks, status.embeddings_current_config) == (2, 2, 2)
    assert status.retrieval_ready is True


def test_a_database_without_schema_says_how_to_make_it(empty_url: str, settings: Settings) -> None:
    with pytest.raises(SchemaNotInitialized) as caught:
        Service(settings, Database(empty_url)).search("pump")
    assert "rag db init" in caught.value.hint


def test_a_database_that_is_down_offers_both_ways_out(settings: Settings) -> None:
    with pytest.raises(DatabaseUnavailable) as caught:
        Service(settings, Database("postgresql://u:secret@127.0.0.1:1/x")).search("pump")
    assert "secret" not in caught.value.message
    assert "docker compose up -d postgres" in caught.value.hint
    assert "remove DATABASE_URL" in caught.value.hint


def test_a_missing_llm_setting_is_never_a_silent_fake(indexed: Service) -> None:
    with pytest.raises(LlmConfigMissing, match="LLM_BASE_URL, LLM_API_KEY, LLM_MODEL"):
        with_settings(indexed, llm_provider="openai-compatible", llm_model=None).ask("pump")


def test_a_provider_that_is_not_built_says_so(url: str, settings: Settings) -> None:
    other = settings.model_copy(update={"embedding_provider": "local-qwen3"})
    with pytest.raises(InvalidConfiguration, match="not built in this version"):
        Service(other, Database(url))


def test_a_budget_that_holds_no_source_is_said_and_nothing_is_made_up(indexed: Service) -> None:
    response = with_settings(indexed, context_token_budget=5).ask("feed pump bearing")
    assert (response.mode, response.citations) == ("no_answer", [])
    assert "RAG_CONTEXT_TOKEN_BUDGET=5" in response.answer
