"""The OpenAPI 3.1 document, from the models that check the requests, and a page that shows it offline."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pyrag import __version__
from pyrag.schemas import (
    AskRequest,
    AskResponse,
    CitationEvent,
    ErrorResponse,
    ExplainResponse,
    HealthResponse,
    Liveness,
    Readiness,
    RetrievalEvent,
    RootResponse,
    SearchRequest,
    SearchResponse,
    TokenEvent,
    WhyNotRequest,
    WhyNotResponse,
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One route and method; `errors` maps each further status to its codes."""

    method: str
    path: str
    operation_id: str
    summary: str
    description: str
    reply: type[BaseModel] | None  # None: another media type
    media_type: str = "application/json"
    body: type[BaseModel] | None = None
    errors: tuple[tuple[int, str], ...] = ()


_BODY_ERRORS = (
    (413, "payload_too_large"),
    (415, "unsupported_media_type"),
    (422, "invalid_request"),
)
_INDEX_ERRORS = (
    (500, "embedding_dim_mismatch, internal_error"),
    (503, "database_unavailable, schema_not_initialized, retrieval_not_ready, overloaded"),
)
_ASK_ERRORS = (
    (500, "embedding_dim_mismatch, internal_error"),
    (502, "llm_auth_failed, llm_upstream_error"),
    (
        503,
        "database_unavailable, schema_not_initialized, retrieval_not_ready, overloaded, llm_config_missing,"
        " llm_rate_limited",
    ),
    (504, "llm_timeout"),
)

OPERATIONS = (
    Operation(
        "post", "/search", "search",
        "Find the passages of the knowledge base that fit a question",
        "Returns the best chunks with their source and score; writes no answer and asks no model.",
        SearchResponse, body=SearchRequest, errors=(*_BODY_ERRORS, *_INDEX_ERRORS),
    ),
    Operation(
        "post", "/ask", "ask",
        "Answer a question from the knowledge base, with citations",
        "`mode` is `rag` (an answer from the sources), `no_answer` (the knowledge base holds none; no model"
        " was asked) or `fallback` (general knowledge, only if asked for and enabled). `grounded` says"
        " whether the answer rests on sources that it cites.",
        AskResponse, body=AskRequest, errors=(*_BODY_ERRORS, *_ASK_ERRORS),
    ),
    Operation(
        "post", "/ask/stream", "ask_stream",
        "Answer a question as a stream of events",
        "Server-sent events, each with one `data:` line of JSON: `retrieval` (RetrievalEvent), `token`"
        " (TokenEvent), `citation` (CitationEvent), then exactly one `final` (AskResponse) or `error`"
        " (ErrorResponse). What fails before the first event is an HTTP status.",
        None, media_type="text/event-stream", body=AskRequest, errors=(*_BODY_ERRORS, *_ASK_ERRORS),
    ),
    Operation(
        "post", "/explain", "explain",
        "Explain why a question is answered or refused, chunk by chunk",
        "Takes the body of /ask and asks no model. Returns the decision and the 50 best chunks with ranks and"
        " scores; for each that is no source the outcome says what kept it out.",
        ExplainResponse, body=AskRequest, errors=(*_BODY_ERRORS, *_INDEX_ERRORS),
    ),
    Operation(
        "post", "/why-not", "why_not",
        "Tell why a note is not among the sources of an answer",
        "Returns where the note stands for the question and what kept it out; a note that is not indexed is"
        " a 200 too, with what the runs of `rag ingest` know of it.",
        WhyNotResponse, body=WhyNotRequest, errors=(*_BODY_ERRORS, *_INDEX_ERRORS),
    ),
    Operation(
        "get", "/health", "health",
        "Show the state of server, database and index",
        "200 with `retrieval_ready: not_ready` when nothing is indexed yet; 503 when the database, its schema"
        " or pgvector is missing.",
        HealthResponse,
        errors=((500, "internal_error"), (503, "database_unavailable, schema_not_initialized, overloaded")),
    ),
    Operation(
        "get", "/live", "live",
        "Tell that the process runs",
        "Looks at nothing else; for a supervisor that restarts what hangs.",
        Liveness, errors=((500, "internal_error"),),
    ),
    Operation(
        "get", "/ready", "ready",
        "Tell whether questions can be answered now",
        "Looks at database, schema and index; for a load balancer. `warnings` tell what works, but not as"
        " well as it should.",
        Readiness, errors=_INDEX_ERRORS,
    ),
    Operation(
        "get", "/", "index",
        "List what this server offers",
        "Name, version and endpoints.",
        RootResponse, errors=((500, "internal_error"),),
    ),
)  # fmt: skip

_EVENTS: dict[str, type[BaseModel]] = {
    "retrieval": RetrievalEvent,
    "token": TokenEvent,
    "citation": CitationEvent,
    "final": AskResponse,
    "error": ErrorResponse,
}
_EXAMPLES = {
    "search": {"query": "客户 P1 工单应该怎么升级？", "top_k": 3},
    "ask": {"question": "客户 P1 工单应该怎么升级？"},
    "explain": {"question": "客户 P1 工单应该怎么升级？"},
    "why_not": {"question": "客户 P1 工单应该怎么升级？", "path": "00-index.md"},
    "ask_stream": {"question": "What is a critical replication lag in Postgres?"},
}


@cache
def openapi_document() -> dict[str, Any]:
    """The document as JSON values."""
    bodies = {each.body for each in OPERATIONS if each.body}
    replies = {each.reply for each in OPERATIONS if each.reply}
    wanted: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = []
    wanted += [(model, "validation") for model in bodies]
    wanted += [(model, "serialization") for model in {*replies, *_EVENTS.values()}]
    wanted.sort(key=lambda each: each[0].__name__)
    _, definitions = models_json_schema(wanted, ref_template="#/components/schemas/{model}")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pyrag",
            "version": __version__,
            "description": "Answers from a company's notes, with citations, or an honest no_answer.",
        },
        "paths": {each.path: {each.method: _operation(each)} for each in OPERATIONS},
        "components": {"schemas": definitions.get("$defs", {})},
    }


def _operation(each: Operation) -> dict[str, Any]:
    reply = {"schema": _ref(each.reply) if each.reply else {"oneOf": [_event(name) for name in _EVENTS]}}
    responses = {"200": {"description": each.summary, "content": {each.media_type: reply}}}
    for status, codes in each.errors:
        responses[str(status)] = {
            "description": codes,
            "content": {"application/json": {"schema": _ref(ErrorResponse)}},
        }
    made: dict[str, Any] = {
        "operationId": each.operation_id,
        "summary": each.summary,
        "description": each.description,
        "responses": responses,
    }
    if each.body:
        body = {"schema": _ref(each.body), "example": _EXAMPLES[each.operation_id]}
        made["requestBody"] = {"required": True, "content": {"application/json": body}}
    return made


def _event(name: str) -> dict[str, Any]:
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": _ref(_EVENTS[name])}
    return {
        "type": "object",
        "required": ["event", "data"],
        "properties": {"event": {"const": name}, "data": data},
    }


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem } code, pre { font-size: 14px }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto } table { border-collapse: collapse }
td, th { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0 }
.method { text-transform: uppercase }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #e6e6e6 } pre { background: #242424 }
h2 { border-color: #333 } a { color: #8ab4f8 } }
"""


@cache
def openapi_page() -> str:
    """The document as one page of HTML that loads nothing from anywhere."""
    document = openapi_document()
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>pyrag API</title>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style><h1>pyrag API {html.escape(__version__)}</h1>",
        f"<p>{html.escape(document['info']['description'])}"
        ' The same for machines: <a href="/openapi.json">/openapi.json</a>.</p>',
    ]
    for each in OPERATIONS:
        parts.append(
            f'<h2 id="{each.operation_id}"><span class=method>{each.method}</span>'
            f" <code>{each.path}</code></h2>"
            f"<p><strong>{html.escape(each.summary)}.</strong> {html.escape(each.description)}</p>"
        )
        if each.body:
            example = json.dumps(_EXAMPLES[each.operation_id], ensure_ascii=False)
            parts.append(_fields("Body", each.body.__name__, document))
            curl = f"curl -sS localhost:8000{each.path} -H 'Content-Type: application/json' -d '{example}'"
            parts.append(f"<pre>{html.escape(curl)}</pre>")
        if each.reply:
            parts.append(_fields("Reply", each.reply.__name__, document))
        rows = "".join(f"<tr><td>{status}<td>{html.escape(codes)}" for status, codes in each.errors)
        parts.append(f"<p>Errors</p><table>{rows}</table>")
    parts.append("<h2>Schemas</h2>")
    for name, schema in document["components"]["schemas"].items():
        shown = html.escape(json.dumps(schema, ensure_ascii=False, indent=2))
        parts.append(
            f'<details id="{name}"><summary><code>{name}</code></summary><pre>{shown}</pre></details>'
        )
    return "\n".join(parts)


def _fields(title: str, name: str, document: dict[str, Any]) -> str:
    schema = document["components"]["schemas"][name]
    required = schema.get("required", [])
    rows = "".join(
        f"<tr><td><code>{html.escape(field)}</code>{'' if field in required else ' (optional)'}"
        f"<td>{html.escape(about.get('description', ''))}"
        for field, about in schema["properties"].items()
    )
    return f'<p>{title}: <a href="#{name}"><code>{name}</code></a></p><table>{rows}</table>'
