"""The bodies of search and ask, the same over HTTP and as `--json` on the command line."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class SearchResult(BaseModel):
    """One chunk that was found; `source` and `relative_path` are the same path below the vault."""

    model_config = ConfigDict(frozen=True)

    content: str
    source: str
    relative_path: str
    heading_path: list[str]
    heading: str
    score: float


class SearchResponse(BaseModel):
    """What `/search` and `rag search --json` give; `confidence` is the best score, 0.0 without results."""

    model_config = ConfigDict(frozen=True)

    confidence: float
    results: list[SearchResult]


class Citation(BaseModel):
    """A source of an answer, in the order of the context's blocks."""

    model_config = ConfigDict(frozen=True)

    source: str
    heading: str
    score: float


class AskResponse(BaseModel):
    """What `/ask` and `rag ask --json` give; `mode` is rag, no_answer or fallback."""

    model_config = ConfigDict(frozen=True)

    mode: str
    confidence: float
    answer: str
    citations: list[Citation]
