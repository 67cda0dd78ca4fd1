"""The values that travel between the modules: frozen, without behaviour beyond their own fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Vector = Sequence[float]
Action = Literal["add", "change", "move", "delete", "skip", "embed"]
Mode = Literal["rag", "no_answer", "fallback"]
Scan = Literal["exact", "index"]  # how the nearest chunks were found
Retrieval = Literal["vector", "lexical", "hybrid"]  # by vectors, by words, by both
Calibration = Literal["shipped", "calibrated"]
Rule = Literal[  # why a question is answered or not
    "nothing_found",
    "below_threshold",
    "below_min_similarity",
    "reached_threshold",
    "no_room",  # RAG_CONTEXT_TOKEN_BUDGET holds not one source
    "no_supported_quote",  # RAG_REQUIRE_QUOTES
]
Verdict = Literal["supported", "other_source", "not_found", "too_short"]  # on a quote


CandidateState = Literal["within", "beyond_top_k", "filtered"]  # how far a chunk got
Fate = Literal[  # what the ledger says last about a note
    "vanished", "failed", "deleted", "withheld", "moved", "pending", "interrupted", "stored"
]


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One file of a vault as the scan saw it.

    `relative_path` is POSIX, NFC, relative to the vault. `content_hash` is the lower-case hex SHA-256 of the
    bytes, None when they could not be read; `error` then says why. A folder that could not be listed is an
    entry whose path ends in `/` and whose error is set.
    """

    relative_path: str
    file_path: str
    content_hash: str | None = None
    mtime_ns: int | None = None
    size_bytes: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """One `[[wikilink]]` or `![[embed]]`: only `target` names a note; it is empty for this very note.

    `offset` is where the link stands in the body (characters); it does not count when links are compared.
    """

    target: str
    heading: tuple[str, ...] = ()
    block: str | None = None
    alias: str | None = None
    embed: bool = False
    offset: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class Block:
    """One top-level Markdown block of a section, as source lines.

    `start` and `end` are line numbers of `Note.lines` (0-based, end exclusive). A list or quote has the leaf
    blocks inside it as `children`; a child's `depth` is 1 where an outermost item begins, more further in.
    `markup` is the fence of a fenced code block, such as three backticks.
    """

    kind: Literal["heading", "text", "list", "table", "fence", "quote", "html"]
    start: int
    end: int
    markup: str = ""
    depth: int = 0
    children: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with the blocks below it, up to the next heading; level 0 is the text before the first one.

    `heading_path` lists the plain-text headings from the outermost to this one, without empty ones; `heading`
    is this section's own. `tags` are the inline tags, each once; `tag_marks` has every place (offset in the
    body, tag).
    """

    level: int
    heading_path: tuple[str, ...]
    blocks: tuple[Block, ...]
    tags: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    heading: str = ""
    tag_marks: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """A parsed Markdown file. `lines` is the body (frontmatter removed), LF line ends kept on each line."""

    frontmatter: Mapping[str, Any]
    tags: tuple[str, ...]
    lines: tuple[str, ...]
    sections: tuple[Section, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a note as it is stored: field names are the columns of `rag.chunks`."""

    chunk_index: int
    content: str
    heading_path: tuple[str, ...]
    tags: tuple[str, ...]
    wikilinks: tuple[str, ...]
    metadata: Mapping[str, Any]
    content_hash: str
    token_count: int


@dataclass(frozen=True, slots=True)
class EmbeddingInput:
    """What an embedder may look at of one chunk; a question has content only."""

    content: str
    heading_path: tuple[str, ...] = ()
    relative_path: str = ""
    tags: tuple[str, ...] = ()
    wikilinks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hit:
    """One row of `rag.retrieve`; `score` is the clamped cosine similarity in [0, 1].

    A rank is None where that leg did not find the chunk. `lexical_score` is BM25, `coverage` its share (0 to
    1) of what the question could reach; `duplicate_of` is the id of an earlier hit that says nearly the same.
    """

    chunk_id: int
    vault_path: str
    source: str
    heading_path: list[str]
    chunk_index: int
    content: str
    content_hash: str
    metadata: dict[str, Any]
    score: float
    scan: Scan = "exact"
    vector_rank: int | None = None
    lexical_rank: int | None = None
    lexical_score: float | None = None
    coverage: float | None = None
    matched_terms: list[str] | None = None
    fused_score: float | None = None
    duplicate_of: int | None = None

    @property
    def heading(self) -> str:
        """The last element of `heading_path`, or the empty string."""
        return self.heading_path[-1] if self.heading_path else ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row of `rag.explain_retrieval`: a chunk, its place from 1 (None: filtered), how far it got."""

    hit: Hit
    place: int | None
    state: CandidateState


@dataclass(frozen=True, slots=True)
class Term:
    """A word of a question as it is compared: in how many chunks it stands, and how much it weighs."""

    term: str
    chunks: int
    weight: float


@dataclass(frozen=True, slots=True)
class NoteFound:
    """A row of `rag.locate_note`: a note that a path means.

    `problem` is what the last run of the vault (`run_id`, `run_at`) left undone with it, None for nothing.
    """

    document_id: int
    vault_path: str
    relative_path: str
    chunks: int
    headings: list[str]
    warnings: list[str]
    run_id: int | None
    run_at: datetime | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class NoteTrace:
    """The row of `rag.trace_note`: what the ledger says last about a note."""

    fate: Fate
    run_id: int
    vault_path: str
    relative_path: str
    moved_to: str | None
    reason: str
    happened_at: datetime


@dataclass(frozen=True, slots=True)
class NotePath:
    """A path and a heading that a person gave, and what they lead to: notes, or else the ledger.

    `known` says whether any note is stored at all; `similar` are (vault, path) that may have been meant.
    """

    path: str
    heading: str | None
    notes: list[NoteFound]
    trace: NoteTrace | None = None
    similar: list[tuple[str, str]] = field(default_factory=list)
    known: bool = True


@dataclass(frozen=True, slots=True)
class RankedChunk:
    """A row of `rag.rank_note`: where a chunk of a note stands among all that pass the filter."""

    chunk_id: int
    heading_path: list[str]
    chunk_index: int
    content: str
    passes: bool
    embedded: bool
    similarity: float | None
    vector_rank: int | None
    lexical_rank: int | None
    lexical_score: float | None
    coverage: float | None
    matched_terms: list[str] | None


@dataclass(frozen=True, slots=True)
class Explained:
    """What a retrieval went by: the candidates, the decision, the words; the chunks of one note, if asked."""

    candidates: list[Candidate]
    decision: Decision
    terms: list[Term]
    ranked: list[RankedChunk] = field(default_factory=list)

    @property
    def hits(self) -> list[Hit]:
        """What `rag.retrieve` gives."""
        return [each.hit for each in self.candidates if each.state == "within"]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A row of `rag.list_neighbours`: the text before and after a chunk in its section, if any."""

    chunk_id: int
    previous_id: int | None
    previous: str | None
    next_id: int | None
    next: str | None


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One row of `rag.plan_ingest`: what is to be done with a path, and why."""

    relative_path: str
    action: Action
    reason: str
    moved_from: str | None
    old_hash: str | None
    new_hash: str | None
    error: str | None

    @property
    def withheld(self) -> bool:
        """Whether this deletion is withheld: SQL says so at the beginning of the reason."""
        return self.reason.startswith("withheld: ")


@dataclass(frozen=True, slots=True)
class OpenItem:
    """One row of `rag.list_open_items`: what a run did not do."""

    relative_path: str
    action: Action
    status: Literal["pending", "failed"]
    reason: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Policy:
    """What `rag.decide_mode` compares with, and whether an answer from general knowledge is allowed.

    `min_similarity` is None unless RAG_MIN_SIMILARITY is set; `usual_similarity` is the provider's default.
    """

    min_confidence: float
    min_similarity: float | None
    usual_similarity: float
    fallback: bool
    fallback_enabled: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """The row of `rag.decide_mode`: the mode, the rule that fired and the same in words, what was compared.

    `confidence` is a probability where `calibration` names one (shipped or calibrated), else the best
    similarity. `min_similarity` is the floor, if one is in force.
    """

    mode: Mode
    rule: Rule
    reason: str
    confidence: float
    threshold: float
    min_similarity: float | None = None
    similarity: float | None = None
    coverage: float | None = None
    cjk_share: float | None = None
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True)
class QuoteVerdict:
    """A row of `rag.verify_quotes`: the verdict on the quote of source `number`, and where it stands."""

    number: int
    quote: str
    verdict: Verdict
    found_in: list[int]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat with a model."""

    role: Literal["system", "user"]
    content: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a model's reply. `reason` is the server's finish_reason, "stop" where the reply is whole."""

    reason: str = "stop"


@dataclass(frozen=True, slots=True)
class ContextBlock:
    """A numbered piece of the context: the hit, the whole block, and its content alone (it may be cut)."""

    number: int
    hit: Hit
    text: str
    content: str
    truncated: bool = False
    joined: tuple[int, ...] = ()  # ids of the neighbouring chunks whose text it took in


@dataclass(frozen=True, slots=True)
class Dropped:
    """A hit without a block: it repeats an earlier one (chunk id `same_as`), or the budget had no room."""

    chunk_id: int
    why: Literal["duplicate", "over_budget"]
    same_as: int | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """The packed context: its text, its blocks in order, its size in cl100k_base tokens, what it left out."""

    text: str = ""
    blocks: tuple[ContextBlock, ...] = field(default=())
    token_count: int = 0
    dropped: tuple[Dropped, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked: the messages that are sent, and what they were made of.

    `context` is None where the model may use its general knowledge. `quotes`: it was asked for a quote of
    each source that it cites.
    """

    question: str
    messages: tuple[Message, ...]
    context: Context | None = None
    quotes: bool = False
