"""Search and ask, as the command line and the HTTP API call them."""

from __future__ import annotations

from collections.abc import Callable

from pyrag.config import Settings
from pyrag.context import pack_context
from pyrag.db import Database, Index, IndexStatus
from pyrag.embeddings import Embedder, build_embedder
from pyrag.errors import InvalidRequest
from pyrag.llm import build_llm
from pyrag.models import Context, Hit
from pyrag.prompts import fallback_text, no_answer_text, no_room_text
from pyrag.schemas import AskResponse, Citation, SearchResponse, SearchResult


def open_database(settings: Settings, notify: Callable[[str], None]) -> Database:
    """The database of the settings: DATABASE_URL, or the embedded server, which is started if need be."""
    if settings.database_url is not None:
        return Database(settings.database_url.get_secret_value())
    from pyrag.embedded import EmbeddedServer

    assert settings.pyrag_home is not None
    return Database(EmbeddedServer(settings.pyrag_home, notify=notify).start())


class Service:
    """Answers questions about what is indexed. Holds no connection between calls."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings = settings
        self.database = database
        self.embedder: Embedder = build_embedder(settings)
        self.index = Index(self.embedder.provider, self.embedder.model, self.embedder.dim)

    def search(self, query: str, top_k: int | None = None) -> SearchResponse:
        """The chunks nearest to a question; confidence is the best score, 0.0 without results."""
        hits = self._retrieve(query, top_k)
        return SearchResponse(
            confidence=_confidence(hits),
            results=[
                SearchResult(
                    content=hit.content,
                    source=hit.source,
                    relative_path=hit.source,
                    heading_path=hit.heading_path,
                    heading=hit.heading,
                    score=hit.score,
                )
                for hit in hits
            ],
        )

    def ask(self, question: str, top_k: int | None = None, fallback: bool = False) -> AskResponse:
        """An answer with citations, an honest no_answer, or a fallback if asked for and enabled."""
        llm = build_llm(self.settings)
        hits = self._retrieve(question, top_k)
        decision = self.database.decide_mode(
            hits[0].score if hits else None,
            self.settings.threshold,
            fallback,
            self.settings.fallback_enabled,
        )
        mode = decision.mode
        citations: list[Citation] = []
        context = pack_context(hits, self.settings.context_token_budget) if mode == "rag" else Context()
        if context.blocks:
            answer = llm.answer(question, context)
            citations = [
                Citation(source=block.hit.source, heading=block.hit.heading, score=block.hit.score)
                for block in context.blocks
            ]
        elif mode == "rag":  # not even the frame of one source fits into the budget
            mode = "no_answer"
            answer = no_room_text(question, self.settings.context_token_budget)
        elif mode == "fallback":
            answer = fallback_text(question, llm.answer_generally(question))
        else:
            answer = no_answer_text(question, fallback and not self.settings.fallback_enabled)
        return AskResponse(mode=mode, confidence=_confidence(hits), answer=answer, citations=citations)

    def status(self) -> IndexStatus:
        """What is indexed for the current configuration."""
        return self.database.index_status(self.index)

    def _retrieve(self, question: str, top_k: int | None) -> list[Hit]:
        check_question(question)
        return self.database.search_chunks(
            self.embedder.embed_query(question),
            self.index,
            self.settings.top_k if top_k is None else top_k,
        )


def check_question(question: str) -> None:
    """Raises `InvalidRequest` for a blank question or one that is not text."""
    if not question.strip():
        raise InvalidRequest("question is empty", hint='Example: rag ask "客户 P1 工单应该怎么升级？"')
    bad = next((char for char in question if char == "\0" or "\ud800" <= char <= "\udfff"), None)
    if bad is not None:
        raise InvalidRequest(
            f"question holds U+{ord(bad):04X}, which is not text", hint="Send the question as UTF-8."
        )


def _confidence(hits: list[Hit]) -> float:
    return hits[0].score if hits else 0.0
