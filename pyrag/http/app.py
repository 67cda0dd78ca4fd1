"""The routes of the agent API, over one `Service`."""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import falcon
from falcon import Request, Response

from pyrag import __version__
from pyrag.errors import Overloaded, RetrievalNotReady
from pyrag.http.bodies import read_model
from pyrag.http.errors import add_error_handlers
from pyrag.http.openapi import OPERATIONS, openapi_document, openapi_page
from pyrag.http.streaming import HEADERS, MEDIA_TYPE, event_stream, has_gone
from pyrag.schemas import AskRequest, AskResponse, SearchRequest, WhyNotRequest
from pyrag.service import Service

_log = logging.getLogger("pyrag.http")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
DEFAULT_ANSWERS = 224  # answers under way at once in one process; `rag serve` sets it by its threads


def create_app(service: Service, answers: int = DEFAULT_ANSWERS) -> falcon.App[Any, Any]:
    """The WSGI application. At most `answers` answers are under way at once; further ones get 503."""
    app = falcon.App(middleware=[_Requests()])
    app.req_options.auto_parse_qs_csv = False
    add_error_handlers(app)
    app.add_error_handler(_ClientGone, _gone)
    slots = threading.BoundedSemaphore(answers)
    app.add_route("/", _Root())
    app.add_route("/health", _Health(service))
    app.add_route("/live", _Live())
    app.add_route("/ready", _Ready(service))
    app.add_route("/openapi.json", _OpenApi())
    app.add_route("/docs", _Docs())
    app.add_route("/search", _Search(service))
    app.add_route("/ask", _Ask(service, slots))
    app.add_route("/ask/stream", _AskStream(service, slots))
    app.add_route("/explain", _Explain(service))
    app.add_route("/why-not", _WhyNot(service))
    return app


class _Requests:
    """Request ids and one log line a request."""

    def process_request(self, request: Request, response: Response) -> None:
        given = request.get_header("X-Request-Id") or ""
        request.context.request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        request.context.started = time.monotonic()
        response.set_header("X-Request-Id", request.context.request_id)
        response.set_header("Link", '</openapi.json>; rel="service-desc"')

    def process_resource(
        self, request: Request, response: Response, resource: Any, params: dict[str, Any]
    ) -> None:
        if request.method not in falcon.HTTP_METHODS:  # Falcon would say 400
            known = [each for each in falcon.HTTP_METHODS if hasattr(resource, f"on_{each.lower()}")]
            raise falcon.HTTPMethodNotAllowed([*known, "OPTIONS"])

    def process_response(self, request: Request, response: Response, resource: Any, ok: bool) -> None:
        if response.stream is None:  # a stream says itself when it has ended
            _log_request(request, response, getattr(response.context, "error_code", "ok"))


def _log_request(request: Request, response: Response, outcome: str) -> None:
    route = request.uri_template or "(none)"
    status = response.status_code
    ms = round((time.monotonic() - request.context.started) * 1000, 1)
    _log.info(
        "%s %s %s %.1f ms %s %s", request.method, route, status, ms, outcome, request.context.request_id,
        extra={
            "request_id": request.context.request_id, "method": request.method, "route": route,
            "status": status, "ms": ms, "outcome": outcome,
        },
    )  # fmt: skip


class _Root:
    def on_get(self, request: Request, response: Response) -> None:
        response.media = {
            "name": "pyrag",
            "version": __version__,
            "endpoints": [
                *(
                    {"method": each.method.upper(), "path": each.path, "summary": each.summary}
                    for each in OPERATIONS
                ),
                {"method": "GET", "path": "/openapi.json", "summary": "This API for machines (OpenAPI 3.1)"},
                {"method": "GET", "path": "/docs", "summary": "This API for people, without network"},
            ],
        }

    on_head = on_get


class _Live:
    def on_get(self, request: Request, response: Response) -> None:
        response.media = {"status": "ok"}

    on_head = on_get


class _Health:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._started = time.monotonic()

    def on_get(self, request: Request, response: Response) -> None:
        status = self._service.status()
        index = self._service.index
        response.media = {
            "status": "ok",
            "checks": {
                "app": "ok",
                "database": "ok",
                "schema": "ok",
                "pgvector": "ok",
                "embedding_config": "ok",
                "retrieval_ready": "ok" if status.retrieval_ready else "not_ready",
            },
            "details": {
                "embedding_provider": index.provider,
                "embedding_model": index.model,
                "documents": status.documents,
                "chunks": status.chunks,
                "embeddings_current_config": status.embeddings_current_config,
                "uptime_seconds": round(time.monotonic() - self._started, 1),
                "version": __version__,
            },
        }

    on_head = on_get


class _Ready:
    def __init__(self, service: Service) -> None:
        self._service = service

    def on_get(self, request: Request, response: Response) -> None:
        index = self._service.index
        if not self._service.status().retrieval_ready:
            raise RetrievalNotReady(
                f"Nothing is indexed for provider {index.provider}, model {index.model}.",
                hint="Run: rag ingest PATH_OF_THE_VAULT",
            )
        found = self._service.database.vector_index_status(index)
        warnings = [found["warning"]] if found and found["warning"] else []
        response.media = {"status": "ready", "warnings": warnings}

    on_head = on_get


class _OpenApi:
    def on_get(self, request: Request, response: Response) -> None:
        response.media = openapi_document()

    on_head = on_get


class _Docs:
    def on_get(self, request: Request, response: Response) -> None:
        response.content_type = falcon.MEDIA_HTML
        response.text = openapi_page()

    on_head = on_get


class _Search:
    def __init__(self, service: Service) -> None:
        self._service = service

    def on_post(self, request: Request, response: Response) -> None:
        body = read_model(request, SearchRequest)
        found = self._service.search(body.query, body.top_k, body.filter)
        response.content_type = falcon.MEDIA_JSON
        response.data = found.model_dump_json().encode()


class _Explain:
    def __init__(self, service: Service) -> None:
        self._service = service

    def on_post(self, request: Request, response: Response) -> None:
        body = read_model(request, AskRequest)
        made = self._service.explain(body.question, body.top_k, body.fallback, body.filter)
        response.content_type = falcon.MEDIA_JSON
        response.data = made.model_dump_json().encode()


class _WhyNot:
    def __init__(self, service: Service) -> None:
        self._service = service

    def on_post(self, request: Request, response: Response) -> None:
        body = read_model(request, WhyNotRequest)
        made = self._service.why_not(body.question, body.path, body.top_k, body.filter)
        response.content_type = falcon.MEDIA_JSON
        response.data = made.model_dump_json().encode()


class _Ask:
    def __init__(self, service: Service, slots: threading.BoundedSemaphore) -> None:
        self._service = service
        self._slots = slots

    def on_post(self, request: Request, response: Response) -> None:
        body = read_model(request, AskRequest)
        connection = request.env.get("gunicorn.socket")
        with _slot(self._slots):
            asked = self._service.retrieve_for(body.question, body.top_k, body.fallback, body.filter)
            with closing(self._service.answer(asked, stream=False)) as events:
                for event in events:
                    if event is None and has_gone(connection):
                        raise _ClientGone
                    if isinstance(event, AskResponse):
                        response.content_type = falcon.MEDIA_JSON
                        response.data = event.model_dump_json().encode()


class _AskStream:
    def __init__(self, service: Service, slots: threading.BoundedSemaphore) -> None:
        self._service = service
        self._slots = slots

    def on_post(self, request: Request, response: Response) -> None:
        body = read_model(request, AskRequest)
        if not self._slots.acquire(blocking=False):
            raise _overloaded()
        started = False
        try:
            asked = self._service.retrieve_for(body.question, body.top_k, body.fallback, body.filter)
            started = True
        finally:
            if not started:
                self._slots.release()

        def done(outcome: str) -> None:
            self._slots.release()
            _log_request(request, response, outcome)

        events = self._service.answer(asked, stream=True)
        connection = request.env.get("gunicorn.socket")
        made = event_stream(events, connection, request.context.request_id, done)
        response.stream = _Stream(made, done)
        response.content_type = MEDIA_TYPE
        response.set_headers(HEADERS)


class _Stream:
    """An iterator whose `close` counts even if it was never begun: a generator's would do nothing then."""

    def __init__(self, events: Generator[bytes], done: Callable[[str], None]) -> None:
        self._events = events
        self._done = done
        self._begun = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self._begun = True
        return next(self._events)

    def close(self) -> None:
        """Ends the stream; the server calls it in any case."""
        if not self._begun:
            self._begun = True
            self._done("client_gone")
        self._events.close()


class _ClientGone(Exception):
    """Nobody is there to read the answer: no error of ours, and no code of the contract."""


def _gone(request: Request, response: Response, error: _ClientGone, params: dict[str, Any]) -> None:
    response.status = 499  # as nginx logs it; nobody reads it
    response.context.error_code = "client_gone"


@contextmanager
def _slot(slots: threading.BoundedSemaphore) -> Iterator[None]:
    if not slots.acquire(blocking=False):
        raise _overloaded()
    try:
        yield
    finally:
        slots.release()


def _overloaded() -> Overloaded:
    return Overloaded(
        "As many answers are being written as this server takes.", hint="Try again in a moment."
    )
