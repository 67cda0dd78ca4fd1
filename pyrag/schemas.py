"""The bodies of requests and replies, the same over HTTP and as `--json` on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from pyrag.models import Calibration, Mode, Retrieval, Rule, Scan, Verdict

MAX_QUESTION = 200_000  # characters
MAX_FILTER = 4000  # characters of a path or tag in a filter

# One character that is neither white space nor a control character, nor one of those that are filled in; no
# NUL, which Postgres cannot hold
_TEXT = r"^[^\x00]*[^\s\x00-\x20\x7f-\xa0\ufeff{}][^\x00]*$"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:?\d\d)", re.ASCII)


def _utf8(value: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError("holds half a surrogate pair, which is not text")
    return value


def _whole(value: Any) -> Any:
    """5.0 is the integer 5, as in JSON Schema; true is no number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _rfc3339(value: Any) -> Any:
    """A time as RFC 3339 writes it; pydantic would also take a number of seconds."""
    if not (isinstance(value, datetime) or (isinstance(value, str) and _TIME.fullmatch(value))):
        raise ValueError("must be a time with a zone, such as 2026-01-31T00:00:00Z")
    return value


def _utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("is out of range") from None


def _text(beside: str, longest: int) -> StringConstraints:
    return StringConstraints(pattern=_TEXT.format(beside), max_length=longest)


Text = Annotated[str, _text("", MAX_QUESTION), AfterValidator(_utf8)]
Path = Annotated[str, _text("/", MAX_FILTER), AfterValidator(_utf8)]
Tag = Annotated[str, _text("#/", MAX_FILTER), AfterValidator(_utf8)]
Time = Annotated[AwareDatetime, BeforeValidator(_rfc3339), AfterValidator(_utc)]
Tags = Annotated[list[Tag], Field(min_length=1, max_length=50)]
TopK = Annotated[int, Field(ge=1, le=20), BeforeValidator(_whole)]  # this order, or OpenAPI has no bounds


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TagFilter(_Body):
    """Tags without `#`, upper and lower case alike; a tag takes in those below it (`a` also `a/b`)."""

    any: Tags | None = Field(None, description="at least one of these")
    all: Tags | None = Field(None, description="every one of these")


class Filter(_Body):
    """Conditions on the chunks that are searched, applied before the best are chosen."""

    vault: Path | None = Field(None, description="path of the vault, as `rag ingest` resolved it")
    path_prefix: Path | None = Field(
        None, description="folder or file below the vault, literal: `a_b` means `a_b` and `a_b/…`"
    )
    tags: TagFilter | None = None
    updated_after: Time | None = Field(
        None,
        strict=False,
        description="only what was stored, changed or moved in the index after this time (with time zone)",
    )

    def as_json(self) -> dict[str, Any]:
        """The filter as `rag.check_filter` takes it: without what is not set."""
        made = self.model_dump(mode="json", exclude_none=True)
        return {name: value for name, value in made.items() if value}


class SearchRequest(_Body):
    """What to look for."""

    query: Text = Field(description="a question or key words, in any language")
    top_k: TopK | None = Field(None, description="number of results; default RAG_TOP_K (5)")
    filter: Filter | None = None


class AskRequest(_Body):
    """A question to be answered."""

    question: Text = Field(description="the question, in any language")
    top_k: TopK | None = Field(None, description="number of chunks retrieved; default RAG_TOP_K (5)")
    fallback: bool = Field(False, description="allow general knowledge, if RAG_FALLBACK_ENABLED=true")
    filter: Filter | None = None


class WhyNotRequest(_Body):
    """A question, and a note that is missed among the sources of its answer."""

    question: Text = Field(description="the question, in any language")
    path: Path = Field(
        description="the note: its path below the vault, its file's path, or the end of either; with"
        " `#heading` only what stands below that heading"
    )
    top_k: TopK | None = Field(None, description="number of chunks retrieved; default RAG_TOP_K (5)")
    filter: Filter | None = None


class _Reply(BaseModel):
    model_config = ConfigDict(frozen=True)


class SearchResult(_Reply):
    """One chunk that was found; `source` and `relative_path` are the same path below the vault."""

    content: str = Field(description="text of the chunk, heading line included")
    source: str = Field(description="path of the note below its vault")
    relative_path: str
    vault: str = Field(description="path of the vault, as `filter.vault` takes it")
    heading_path: list[str] = Field(description="headings from the outermost to the chunk's own")
    heading: str = Field(description="last element of heading_path, or empty")
    score: float = Field(ge=0, le=1, description="cosine similarity, 0 to 1")
    vector_rank: int | None = Field(description="place by vectors; null where they did not find it")
    lexical_rank: int | None = Field(description="place by words; null where they did not find it")
    lexical_score: float | None = Field(description="BM25 score of the words, from 0")
    coverage: float | None = Field(
        description="lexical_score as a share of the highest that the question could reach, 0 to 1"
    )
    matched_terms: list[str] | None = Field(description="terms of the question that the chunk has")


class _Retrieved(_Reply):
    """What every reply says about its retrieval."""

    confidence: float = Field(
        ge=0,
        le=1,
        description="how likely the answer is there (vector: the best similarity); 0.0 without results",
    )
    threshold: float = Field(ge=0, le=1, description="the confidence from which a question is answered")
    retrieval: Retrieval = Field(description="how chunks are found: by vectors, by words, by both")
    scan: Scan = Field(description="how the vectors were searched: exactly, or by an approximate index")


class _Decided(_Reply):
    """What follows from a retrieval; a base class, so that it comes first."""

    mode: Mode = Field(description="rag: answered from the sources; no_answer; fallback: general knowledge")


class SearchResponse(_Retrieved):
    """The chunks that fit a query best, best first."""

    results: list[SearchResult]


class Quote(_Reply):
    """A passage that the model says it copied from a source, and whether it stands there."""

    quote: str = Field(description="the passage, of a very long one its beginning")
    verdict: Verdict = Field(
        description="supported: it stands in this source; other_source: only in those of found_in; not_found:"
        " in none; too_short: too few characters to prove anything"
    )
    found_in: list[int] = Field(description="numbers of the sources in which it stands")


class FailedQuote(Quote):
    """A quote that does not support its citation; `number` is the [n] that it was given for."""

    number: int


class Citation(_Reply):
    """A source of an answer, in the order of the context's blocks: the n-th one is [n] in the answer."""

    source: str = Field(description="path of the note below its vault")
    heading: str
    score: float = Field(ge=0, le=1)
    cited: bool = Field(description="whether the answer's text cites it")
    quotes: list[Quote] | None = Field(description="the model's quotes of it; null: no quotes are asked for")


class DecisionRecord(_Reply):
    """Why a question is answered or not: the rule that fired, and what was compared."""

    mode: Mode = Field(description="rag, no_answer or fallback")
    rule: Rule = Field(description="the rule that fired")
    reason: str = Field(description="the same in words")
    confidence: float = Field(ge=0, le=1, description="as in the reply")
    threshold: float = Field(ge=0, le=1, description="what it is compared with")
    min_similarity: float | None = Field(description="floor on similarity, null unless one is in force")
    similarity: float | None = Field(description="best similarity; null where nothing was found")
    coverage: float | None = Field(
        description="most that a chunk has of the question's words, 0 to 1; null where words do not count"
    )
    cjk_share: float | None = Field(description="how far the question is CJK, 0 to 1")
    calibration: Calibration | None = Field(
        description="what makes a probability of these; null: confidence is the similarity"
    )


class AskResponse(_Retrieved, _Decided):
    """An answer with its sources, an honest `no_answer`, or a `fallback` from general knowledge."""

    decision: DecisionRecord
    answer: str
    citations: list[Citation] = Field(description="the sources given to the model; empty outside mode rag")
    grounded: bool = Field(description="whether the answer rests on cited sources; if not, `reason` says why")
    reason: str | None = Field(description="why the answer is not grounded or not complete")
    complete: bool = Field(description="false where the model's reply was cut off")
    removed_citations: int = Field(
        ge=0,
        description="citations taken out of the answer: of sources that do not exist, and unverified ones",
    )
    unverified_citations: int | None = Field(
        ge=0, description="those taken out because no quote supports them; null: quotes are not checked"
    )
    failed_quotes: list[FailedQuote] | None = Field(
        description="quotes that do not stand in their source; null: quotes are not checked"
    )


Outcome = Literal["used", "duplicate", "over_budget", "below_threshold", "beyond_top_k", "filtered"]
WhyNotStatus = Literal[
    "used", "duplicate", "over_budget", "below_threshold", "beyond_top_k", "filtered", "missed_by_index",
    "not_embedded", "not_found", "empty_note", "heading_unknown", "failed", "deleted", "moved", "pending",
    "never_seen", "ambiguous", "nothing_indexed",
]  # fmt: skip


class _Ranked(_Reply):
    """Where a chunk stands, and by what."""

    chunk_id: int
    heading_path: list[str] = Field(description="headings from the outermost to the chunk's own")
    heading: str = Field(description="last element of heading_path, or empty")
    preview: str = Field(description="the first 200 characters of the chunk")
    vector_rank: int | None = Field(description="place by vectors; null where they did not find it")
    lexical_rank: int | None = Field(description="place by words; null where they did not find it")
    lexical_score: float | None = Field(description="BM25 score of the words, from 0")
    coverage: float | None = Field(description="how much of the question's words it has, 0 to 1")
    matched_terms: list[str] | None = Field(description="words of the question that the chunk has")


class ExplainedCandidate(_Ranked):
    """A chunk that was compared: how far it got, and why not farther."""

    place: int | None = Field(description="place in the ranking, from 1; null if the filter kept it out")
    outcome: Outcome = Field(description="used, or what kept the chunk out of the sources")
    number: int | None = Field(description="n of [n], its number as a source; null unless used")
    reason: str = Field(description="the outcome in words")
    vault: str = Field(description="path of the vault, as `filter.vault` takes it")
    source: str = Field(description="path of the note below its vault")
    score: float = Field(ge=0, le=1, description="cosine similarity, 0 to 1")
    fused_score: float | None = Field(description="what the ranking is ordered by")


class ExplainedTerm(_Reply):
    """A word of the question as it is compared: by its stem, Chinese as pairs of characters."""

    term: str
    chunks: int = Field(description="in how many chunks it stands")
    weight: float = Field(description="how much it counts in coverage; more for a rare one")


class _Summed(_Reply):
    """The whole in one sentence; a base class, so that it comes first."""

    summary: str = Field(description="the whole in one plain sentence")


class ExplainResponse(_Retrieved, _Summed):
    """Why a question is answered from these sources, or not at all: what `ask` with the same request does."""

    decision: DecisionRecord
    terms: list[ExplainedTerm] = Field(description="words of the question that count; none in `vector`")
    candidates: list[ExplainedCandidate] = Field(
        description="by place down to the 50 best, then those that only the filter kept out"
    )
    context_tokens: int = Field(ge=0, description="size of the sources given to the model")
    budget: int = Field(description="the most that they may have (RAG_CONTEXT_TOKEN_BUDGET)")


class NoteName(_Reply):
    """A note that was asked about."""

    path: str = Field(description="path below the vault; as it was given where no such note is known")
    vault: str | None = Field(description="path of the vault; null where no such note is known")
    heading: str | None = Field(description="the heading that was asked for")


class NoteRun(_Reply):
    """A run of `rag ingest`."""

    id: int = Field(description="its number, for `rag runs show`")
    at: datetime = Field(description="when it came to the note")


class NoteChunk(_Ranked):
    """The chunk of a note that fits a question best. Ranks are exact, however far down."""

    place: int | None = Field(description="place in the ranking, from 1; null where it has none")
    score: float | None = Field(description="cosine similarity, 0 to 1")
    missing_terms: list[str] | None = Field(description="words of the question that the chunk lacks")


class WhyNotResponse(_Summed):
    """Where a note stands for a question, and what kept it out of the sources."""

    status: WhyNotStatus = Field(description="what became of the note")
    note: NoteName
    run: NoteRun | None = Field(description="the run that says so, where the ledger speaks")
    best: NoteChunk | None = Field(description="its best chunk; null where it has none in the index")
    ahead: list[ExplainedCandidate] = Field(description="the chunks that took the places")
    hints: list[str] = Field(description="what to do, or what may have been meant")
    decision: DecisionRecord | None = Field(description="as for `ask`; null where nothing was searched")


class RetrievalEvent(_Retrieved, _Decided):
    """First event of a stream: what was found and what follows from it."""

    decision: DecisionRecord
    hits: list[SearchResult]


class TokenEvent(_Reply):
    """A piece of the answer; all pieces concatenated are the `answer` of the final event."""

    token: str


class CitationEvent(Citation):
    """One of the answer's sources; `number` is its [n]."""

    number: int


class HealthChecks(_Reply):
    """Each part is `ok`; `retrieval_ready` is `not_ready` while nothing is indexed."""

    app: Literal["ok"]
    database: Literal["ok"]
    schema_: Literal["ok"] = Field(alias="schema")
    pgvector: Literal["ok"]
    embedding_config: Literal["ok"]
    retrieval_ready: Literal["ok", "not_ready"]


class HealthDetails(_Reply):
    """What is indexed for the current embedding configuration."""

    embedding_provider: str
    embedding_model: str
    documents: int
    chunks: int
    embeddings_current_config: int
    uptime_seconds: float
    version: str


class HealthResponse(_Reply):
    """The state of server, database and index."""

    status: Literal["ok"]
    checks: HealthChecks
    details: HealthDetails


class Liveness(_Reply):
    """A short yes."""

    status: Literal["ok"]


class Readiness(_Reply):
    """Questions can be answered; `warnings` tell what an operator should look at."""

    status: Literal["ready"]
    warnings: list[str] = Field(description="mostly empty; e.g. the approximate index finds too little")


class Endpoint(_Reply):
    """One thing that the server offers."""

    method: str
    path: str
    summary: str


class RootResponse(_Reply):
    """What this server is."""

    name: str
    version: str
    endpoints: list[Endpoint]


class ErrorBody(_Reply):
    """What went wrong."""

    code: str
    message: str
    details: dict[str, Any]


class ErrorResponse(_Reply):
    """The body of every error."""

    error: ErrorBody


Event = RetrievalEvent | TokenEvent | CitationEvent | AskResponse
EventName = Literal["retrieval", "token", "citation", "final"]


def event_name(event: Event) -> EventName:
    """The name of an event in a stream; an AskResponse is the final one."""
    if isinstance(event, RetrievalEvent):
        return "retrieval"
    if isinstance(event, TokenEvent):
        return "token"
    return "citation" if isinstance(event, CitationEvent) else "final"
