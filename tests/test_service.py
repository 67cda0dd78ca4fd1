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
    assert response.confidence > 0.9
    decision = response.decision
    assert (decision.mode, decision.rule, decision.calibration) == ("rag", "reached_threshold", "shipped")
    assert (decision.confidence, decision.threshold) == (response.confidence, response.threshold)
    assert decision.similarity == response.citations[0].score
    assert decision.reason.startswith("confidence 0.")
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
    assert with_settings(indexed, min_confidence=confidence).ask("feed pump").mode == "rag"
    above = with_settings(indexed, min_confidence=confidence + 1e-9).ask("feed pump")
    assert (above.mode, above.decision.rule) == ("no_answer", "below_threshold")
    assert above.reason == above.decision.reason


def test_similarity_at_the_threshold_of_vector_retrieval_is_answered(indexed: Service) -> None:
    vector = with_settings(indexed, asked_retrieval="vector", min_confidence=1.0)
    confidence = vector.ask("feed pump").confidence
    assert with_settings(vector, min_similarity=confidence).ask("feed pump").mode == "rag"
    above = with_settings(vector, min_similarity=confidence + 1e-9).ask("feed pump")
    assert (above.mode, above.decision.rule) == ("no_answer", "below_threshold")
    assert vector.ask("feed pump").threshold == 0.2


@pytest.mark.parametrize("retrieval", ["lexical", "hybrid"])
def test_a_set_similarity_is_a_floor_in_the_other_retrievals(indexed: Service, retrieval: str) -> None:
    service = with_settings(indexed, asked_retrieval=retrieval)
    similarity = service.ask("feed pump").decision.similarity
    assert similarity is not None
    at = with_settings(service, min_similarity=similarity).ask("feed pump")
    assert (at.mode, at.decision.min_similarity, at.threshold) == ("rag", similarity, 0.5)
    below = with_settings(service, min_similarity=similarity + 1e-9).ask("feed pump")
    assert (below.mode, below.decision.rule) == ("no_answer", "below_min_similarity")
    assert below.reason is not None
    assert "RAG_MIN_SIMILARITY" in below.reason


def test_a_question_that_embeds_to_nothing_has_no_confidence(indexed: Service) -> None:
    assert indexed.search("？？？").model_dump() == {
        "confidence": 0.0, "threshold": 0.5, "retrieval": "lexical", "scan": "exact", "results": [],
    }  # fmt: skip
    response = with_settings(indexed, min_similarity=0.0, min_confidence=0.0).ask("？？？")
    assert (response.mode, response.confidence, response.citations) == ("no_answer", 0.0, [])
    assert response.decision.model_dump() == {
        "mode": "no_answer", "rule": "nothing_found", "reason": "nothing was found", "confidence": 0.0,
        "threshold": 0.0, "min_similarity": 0.0, "similarity": None, "coverage": None, "cjk_share": None,
        "calibration": "shipped",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("question", "mode"),
    [
        ("Hi, this is Petra from Brightwater. When is the bearing of the feed pump greased?", "rag"),
        ("您好，我是华东区新来的客户经理。安全阀多久校验一次，由谁签字？非常感谢您的帮助！", "rag"),
        ("Hi, this is Petra from Brightwater. Who painted the Mona Lisa in Florence?", "no_answer"),
        ("您好，我是华东区新来的客户经理。火星上今天的天气怎么样？非常感谢您的帮助！", "no_answer"),
    ],
)
def test_a_question_among_other_sentences_is_judged_by_itself(
    indexed: Service, question: str, mode: str
) -> None:
    for retrieval in ("lexical", "hybrid"):
        assert with_settings(indexed, asked_retrieval=retrieval).ask(question).mode == mode


@pytest.mark.parametrize("notes", [1, 2, 9])
def test_small_bases_are_judged_as_well(service: Service, tmp_path: Path, notes: int) -> None:
    texts = {
        "pump.md": PUMP,
        "valve.md": VALVE,
        "leave.md": "# 年假\n\n员工每年有十五天年假，申请要提前两周交给部门主管。\n",
        "boiler.md": "# Boiler\n\nThe boiler is inspected every spring by an engineer of the insurer.\n",
        "key.md": "# Keys\n\nA lost key of the warehouse costs forty euros and is reported to the porter.\n",
        "vpn.md": "# VPN\n\n远程办公必须使用公司的虚拟专用网络，密码每九十天更换一次。\n",
        "bike.md": "# Bikes\n\nBicycles may be leased through the company for thirty-six months.\n",
        "cafe.md": "# 食堂\n\n食堂周五供应鱼，午餐时间从十一点半到一点。\n",
        "fire.md": "# Fire drill\n\nThe fire drill takes place twice a year; assemble behind hall three.\n",
    }
    questions = {
        "pump.md": "On which day is the feed pump greased?",
        "valve.md": "安全阀由谁签字？",
        "leave.md": "年假申请要提前多久交？",
        "boiler.md": "How often is the boiler inspected?",
        "key.md": "What does a lost warehouse key cost?",
        "vpn.md": "虚拟专用网络的密码多久更换一次？",
        "bike.md": "For how many months can bicycles be leased?",
        "cafe.md": "食堂的午餐时间是什么时候？",
        "fire.md": "Where do we assemble in a fire drill?",
    }
    vault = tmp_path / "vault"
    vault.mkdir()
    stored = list(texts)[:notes]
    for name in stored:
        (vault / name).write_text(texts[name], encoding="utf-8")
    ingest_vault(vault, service.database, service.embedder)
    for retrieval in ("lexical", "hybrid"):
        asked = with_settings(service, asked_retrieval=retrieval)
        got = {name: asked.ask(question) for name, question in questions.items()}
        assert {name for name, reply in got.items() if reply.mode == "rag"} == set(stored), retrieval
        assert all(got[name].citations[0].source == name for name in stored)
        for unrelated in ("Who painted the Mona Lisa?", "火星上今天的天气怎么样？", "How deep is the sea?"):
            assert asked.ask(unrelated).mode == "no_answer", (retrieval, unrelated)


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
