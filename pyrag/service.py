"""Search and ask, as the command line and the HTTP API call them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from pyrag.citing import CitationFilter, says_nothing, why_not_grounded
from pyrag.config import Settings
from pyrag.context import pack_context
from pyrag.db import Database, Index, IndexStatus
from pyrag.embeddings import Embedder, build_embedder
from pyrag.errors import InvalidRequest, LlmUpstreamError, RetrievalNotReady
from pyrag.explaining import (
    explain_response,
    unembedded_response,
    unsearched_response,
    why_not_response,
)
from pyrag.llm import Llm, build_llm
from pyrag.models import Context, Decision, Explained, Finish, Hit, Mode, Policy, Prompt
from pyrag.prompts import (
    FENCE_TOKENS,
    answer_prompt,
    fallback_note,
    general_prompt,
    no_answer_text,
    no_room_text,
)
from pyrag.quoting import failed_quotes, judge, quoted_citations
from pyrag.schemas import (
    MAX_QUESTION,
    AskResponse,
    Citation,
    CitationEvent,
    DecisionRecord,
    Event,
    ExplainResponse,
    Filter,
    RetrievalEvent,
    SearchResponse,
    SearchResult,
    TokenEvent,
    WhyNotResponse,
)

_WHOLE = {"stop", "stop_sequence", "end_turn", "eos", "eos_token", "end", "complete", "completed"}
_CUT = {
    "length": "the reply was cut off at LLM_MAX_TOKENS",
    "content_filter": "the reply was cut off by the content filter of the model's server",
}


def open_database(settings: Settings, notify: Callable[[str], None], pool_size: int = 0) -> Database:
    """The database of the settings: DATABASE_URL, or the embedded server, which is started if need be."""
    if settings.database_url is not None:
        return Database(settings.database_url.get_secret_value(), pool_size)
    from pyrag.embedded import EmbeddedServer

    assert settings.pyrag_home is not None
    url = EmbeddedServer(settings.pyrag_home, notify=notify).start()
    return Database(url, pool_size, embedded=True)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question after retrieval and decision, before the model: what an answer is written from."""

    question: str
    hits: list[Hit]
    decision: Decision
    context: Context
    prompt: Prompt | None  # None: no model is asked
    text: str  # what pyrag itself says: before the model's reply, or instead of it

    @property
    def mode(self) -> Mode:
        """The mode of the decision."""
        return self.decision.mode


class Service:
    """Answers questions about what is indexed. Holds no connection while a model thinks."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings = settings
        self.database = database
        self.embedder: Embedder = build_embedder(settings)
        self.index = Index(self.embedder.provider, self.embedder.model, self.embedder.dim)

    @cached_property
    def llm(self) -> Llm:
        """The model of the settings, made once a process."""
        return build_llm(self.settings)

    def search(self, query: str, top_k: int | None = None, filter: Filter | None = None) -> SearchResponse:
        """The chunks that fit a question best, best first."""
        hits, decision = self.find(query, top_k, filter=filter)
        return SearchResponse(**self._how(hits, decision), results=_results(hits))

    def ask(
        self,
        question: str,
        top_k: int | None = None,
        fallback: bool = False,
        filter: Filter | None = None,
    ) -> AskResponse:
        """An answer with citations, an honest no_answer, or a fallback if asked for and enabled."""
        return last_of(self.answer(self.retrieve_for(question, top_k, fallback, filter), stream=False))

    def retrieve_for(
        self,
        question: str,
        top_k: int | None = None,
        fallback: bool = False,
        filter: Filter | None = None,
    ) -> Asked:
        """Everything up to the model: what is wrong with the request, index or settings is raised here."""
        _ = self.llm
        hits, decision = self.find(question, top_k, fallback, filter)
        decision, context = self._pack(hits, decision)
        if decision.mode == "fallback":
            return Asked(question, hits, decision, context, general_prompt(question), fallback_note(question))
        if decision.rule == "no_room":
            text = no_room_text(question, self.settings.context_token_budget)
            return Asked(question, hits, decision, context, None, text)
        if decision.mode == "no_answer":
            text = no_answer_text(question, fallback and not self.settings.fallback_enabled)
            return Asked(question, hits, decision, context, None, text)
        prompt = answer_prompt(question, context, self.settings.require_quotes)
        return Asked(question, hits, decision, context, prompt, "")

    def _pack(self, hits: list[Hit], decision: Decision) -> tuple[Decision, Context]:
        """The decision, which needs room for a source, and the sources: none unless the mode is rag."""
        if decision.mode != "rag":
            return decision, Context()
        budget = self.settings.context_token_budget
        neighbours = None
        if self.settings.retrieval != "vector":
            neighbours = self.database.list_neighbours([hit.chunk_id for hit in hits])
        context = pack_context(hits, budget, FENCE_TOKENS, neighbours)
        if not context.blocks:
            decision = replace(
                decision,
                mode="no_answer",
                rule="no_room",
                reason=f"RAG_CONTEXT_TOKEN_BUDGET={budget} holds not one source",
            )
        return decision, context

    def explain(
        self,
        question: str,
        top_k: int | None = None,
        fallback: bool = False,
        filter: Filter | None = None,
    ) -> ExplainResponse:
        """Why a question is answered from its sources or not: what `ask` does, without asking a model."""
        explained = self._explained(question, top_k, fallback, filter)
        decision, context = self._pack(explained.hits, explained.decision)
        return explain_response(
            explained,
            decision,
            context,
            self._how(explained.hits, decision),
            self._top_k(top_k),
            self.settings.context_token_budget,
            fallback,
            self.settings.require_quotes,
        )

    def why_not(
        self, question: str, path: str, top_k: int | None = None, filter: Filter | None = None
    ) -> WhyNotResponse:
        """Where a note (`PATH` or `PATH#HEADING`) stands for a question, and what kept it out of the sources.

        A note that is not in the index is a reply too: what the ledger says of it.
        """
        check_question(question)
        check_text("path", path)
        if not path.strip():
            raise InvalidRequest("path is empty", hint="Name a note, such as: runbooks/reset.md")
        found = self.database.locate_note(path, filter.vault if filter else None)
        reply = unsearched_response(found)
        if reply is not None:
            return reply
        note = found.notes[0]
        try:
            explained = self._explained(question, top_k, False, filter, (note.document_id, found.heading))
        except RetrievalNotReady as error:
            return unembedded_response(found, error.message)
        decision, context = self._pack(explained.hits, explained.decision)
        return why_not_response(
            found,
            explained,
            decision,
            context,
            self.settings.retrieval,
            self._top_k(top_k),
            self.settings.context_token_budget,
        )

    def _explained(
        self,
        question: str,
        top_k: int | None,
        fallback: bool,
        filter: Filter | None,
        note: tuple[int, str | None] | None = None,
    ) -> Explained:
        """Like `find`, with what did not get so far."""
        check_question(question)
        return self.database.explain(
            question,
            self.embedder.embed_query(question),
            self.index,
            self._top_k(top_k),
            self.settings.retrieval,
            self._policy(fallback),
            filter.as_json() if filter else None,
            note,
        )

    def _top_k(self, top_k: int | None) -> int:
        return self.settings.top_k if top_k is None else top_k

    def _policy(self, fallback: bool) -> Policy:
        settings = self.settings
        return Policy(
            settings.min_confidence,
            settings.min_similarity,
            settings.usual_similarity,
            fallback,
            settings.fallback_enabled,
        )

    def answer(self, asked: Asked, stream: bool) -> Generator[Event | None]:
        """The events of an answer: retrieval, tokens, citations, and last the whole `AskResponse`.

        None comes about twice a second while the model is waited for. Closing the iterator ends the model's
        work at once. Raises the errors of the model; what was yielded before is then not an answer. Where
        quotes are required, nothing of the reply comes before they are checked.
        """
        how = self._how(asked.hits, asked.decision)
        record = DecisionRecord(**asdict(asked.decision))
        yield RetrievalEvent(mode=asked.mode, **how, decision=record, hits=_results(asked.hits))
        if asked.prompt is not None and asked.prompt.quotes:
            yield from self._verified(asked, asked.prompt, how, stream)
            return
        marks = CitationFilter(len(asked.context.blocks))
        parts = [asked.text]
        finish = Finish()
        if asked.text:
            yield TokenEvent(token=asked.text)
        if asked.prompt is not None:
            for piece in self.llm.reply(asked.prompt, stream=stream):
                if isinstance(piece, Finish):
                    finish = piece
                elif piece is None:
                    yield None
                elif shown := marks.feed(piece):
                    parts.append(shown)
                    yield TokenEvent(token=shown)
            if rest := marks.finish():
                parts.append(rest)
                yield TokenEvent(token=rest)
        answer = "".join(parts)
        if asked.prompt is not None and says_nothing(answer[len(asked.text) :]):
            raise _empty_answer()
        citations = [
            CitationEvent(
                source=block.hit.source,
                heading=block.hit.heading,
                score=block.hit.score,
                cited=block.number in marks.cited,
                quotes=None,
                number=block.number,
            )
            for block in asked.context.blocks
        ]
        yield from citations
        reason = _reason(asked, answer, marks.cited)
        cut = _why_cut(finish.reason)
        yield AskResponse(
            mode=asked.mode,
            **how,
            decision=record,
            answer=answer,
            citations=[Citation(**each.model_dump(exclude={"number"})) for each in citations],
            grounded=reason is None,
            reason="; ".join(filter(None, (reason, cut))) or None,
            complete=cut is None,
            removed_citations=marks.removed,
            unverified_citations=0 if self.settings.require_quotes else None,
            failed_quotes=[] if self.settings.require_quotes else None,
        )

    def _verified(
        self, asked: Asked, prompt: Prompt, how: dict[str, Any], stream: bool
    ) -> Generator[Event | None]:
        """The events after the first where quotes are required: the reply is held until they are checked."""
        pieces: list[str] = []
        finish = Finish()
        for piece in self.llm.reply(prompt, stream=stream):
            if isinstance(piece, Finish):
                finish = piece
                continue
            if piece is not None:
                pieces.append(piece)
            yield None
        cut = _why_cut(finish.reason)
        judged = judge(asked.question, asked.context, "".join(pieces), cut, self.database.verify_quotes)
        if judged is None:
            raise _empty_answer()
        yield TokenEvent(token=judged.text)
        decision = asked.decision
        if judged.refused and judged.reason:
            decision = replace(decision, mode="no_answer", rule="no_supported_quote", reason=judged.reason)
        citations = quoted_citations(asked.context, judged)
        yield from citations
        reasons = [judged.reason] if judged.reason else []
        if cut and not (judged.reason and cut in judged.reason):
            reasons.append(cut)
        yield AskResponse(
            mode=decision.mode,
            **how,
            decision=DecisionRecord(**asdict(decision)),
            answer=judged.text,
            citations=[Citation(**each.model_dump(exclude={"number"})) for each in citations],
            grounded=judged.reason is None,
            reason="; ".join(reasons) or None,
            complete=cut is None,
            removed_citations=judged.removed + judged.unverified,
            unverified_citations=judged.unverified,
            failed_quotes=failed_quotes(judged),
        )

    def status(self) -> IndexStatus:
        """What is indexed for the current configuration."""
        return self.database.index_status(self.index)

    def find(
        self,
        question: str,
        top_k: int | None = None,
        fallback: bool = False,
        filter: Filter | None = None,
    ) -> tuple[list[Hit], Decision]:
        """The chunks that fit a question best, and what follows from them."""
        check_question(question)
        return self.database.retrieve(
            question,
            self.embedder.embed_query(question),
            self.index,
            self._top_k(top_k),
            self.settings.retrieval,
            self._policy(fallback),
            filter.as_json() if filter else None,
        )

    def _how(self, hits: list[Hit], decision: Decision) -> dict[str, Any]:
        """What every reply says about its retrieval."""
        return {
            "confidence": decision.confidence,
            "threshold": decision.threshold,
            "retrieval": self.settings.retrieval,
            "scan": hits[0].scan
            if hits
            else "exact",  # an index that finds nothing is followed by an exact scan
        }


def last_of(events: Iterator[Event | None]) -> AskResponse:
    """The whole answer at the end of `Service.answer`."""
    last = deque(events, maxlen=1).pop()
    assert isinstance(last, AskResponse)
    return last


def check_question(question: str) -> None:
    """Raises `InvalidRequest` for a question that is blank, too long, or not text."""
    if not question.strip():
        raise InvalidRequest("question is empty", hint='Example: rag ask "客户 P1 工单应该怎么升级？"')
    if len(question) > MAX_QUESTION:
        raise InvalidRequest(
            f"question has {len(question)} characters, at most {MAX_QUESTION} are allowed",
            hint="Ask a shorter question.",
        )
    check_text("question", question)


def check_text(name: str, value: str) -> None:
    """Raises `InvalidRequest` for what Postgres cannot hold: NUL, and half a surrogate pair."""
    bad = next((char for char in value if char == "\0" or "\ud800" <= char <= "\udfff"), None)
    if bad is not None:
        raise InvalidRequest(
            f"{name} holds U+{ord(bad):04X}, which is not text", hint=f"Send the {name} as UTF-8."
        )


def _empty_answer() -> LlmUpstreamError:
    return LlmUpstreamError("The model gave an empty answer.", hint="Ask again, or set another LLM_MODEL.")


def _why_cut(finish_reason: str) -> str | None:
    """Why a reply with this finish_reason is not whole, None if it is."""
    if finish_reason.lower() in _WHOLE:
        return None
    return _CUT.get(
        finish_reason, f"the model's server ended the reply early (finish_reason {finish_reason})"
    )


def _reason(asked: Asked, answer: str, cited: set[int]) -> str | None:
    """Why the answer does not rest on sources, None if it does."""
    if asked.mode == "rag":
        return why_not_grounded(answer, cited)
    if asked.mode == "fallback":
        return f"general knowledge, not the knowledge base: {asked.decision.reason}"
    return asked.decision.reason


def _results(hits: list[Hit]) -> list[SearchResult]:
    return [
        SearchResult(
            content=hit.content,
            source=hit.source,
            relative_path=hit.source,
            vault=hit.vault_path,
            heading_path=hit.heading_path,
            heading=hit.heading,
            score=hit.score,
            vector_rank=hit.vector_rank,
            lexical_rank=hit.lexical_rank,
            lexical_score=hit.lexical_score,
            coverage=hit.coverage,
            matched_terms=hit.matched_terms,
        )
        for hit in hits
    ]
