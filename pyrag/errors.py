"""Every error a user can meet: one class, one code, one HTTP status, one SQLSTATE where SQL raises it.

The codes are those of the HTTP contract; `invalid_configuration`, `vault_busy` and `embedding_gone` appear
on the command line only. `db.translate_error` turns a psycopg error into one of these; the CLI prints
message and hint.
"""

from __future__ import annotations

from typing import Any, ClassVar


class PyragError(Exception):
    """An error with a stable code. `hint` says what to do next, `details` carries machine-readable facts."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    sqlstate: ClassVar[str | None] = None
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = details or {}

    def envelope(self) -> dict[str, Any]:
        """The contract's error body: `{"error": {"code", "message", "details"}}`."""
        details = {**self.details, "hint": self.hint} if self.hint else self.details
        return {"error": {"code": self.code, "message": self.message, "details": details}}


class InvalidRequest(PyragError):
    """A value given by the caller is not allowed."""

    code = "invalid_request"
    http_status = 422
    sqlstate = "RG001"
    exit_code = 2


class InvalidConfiguration(PyragError):
    """A setting has a value that is not allowed; names the variable, the value and what is right."""

    code = "invalid_configuration"
    exit_code = 2


class SchemaNotInitialized(PyragError):
    """The database has no schema `rag`, or one that does not match this version of pyrag."""

    code = "schema_not_initialized"
    http_status = 503
    sqlstate = "RG002"


class RetrievalNotReady(PyragError):
    """Nothing is indexed for the current embedding configuration."""

    code = "retrieval_not_ready"
    http_status = 503
    sqlstate = "RG003"


class EmbeddingDimMismatch(PyragError):
    """A vector has another number of dimensions than the schema."""

    code = "embedding_dim_mismatch"
    http_status = 500
    sqlstate = "RG004"


class NotFound(PyragError):
    """No such run, document or page."""

    code = "not_found"
    http_status = 404
    sqlstate = "RG005"


class VaultBusy(PyragError):
    """Another run of the same vault is alive."""

    code = "vault_busy"
    http_status = 503
    sqlstate = "RG006"
    exit_code = 5


class EmbeddingGone(PyragError):
    """A stored vector that was to be kept has been deleted meanwhile: embed the text again."""

    code = "embedding_gone"
    http_status = 503
    sqlstate = "RG007"


class DatabaseUnavailable(PyragError):
    """No database can be reached, or it went away."""

    code = "database_unavailable"
    http_status = 503


class LlmConfigMissing(PyragError):
    """The LLM provider needs a setting that is missing."""

    code = "llm_config_missing"
    http_status = 503
    exit_code = 2


class LlmTimeout(PyragError):
    """The model did not finish its answer in time."""

    code = "llm_timeout"
    http_status = 504


class LlmAuthFailed(PyragError):
    """The model's server refuses the key or what it may do (401, 403)."""

    code = "llm_auth_failed"
    http_status = 502


class LlmRateLimited(PyragError):
    """The model's server takes no more requests for now (429)."""

    code = "llm_rate_limited"
    http_status = 503


class LlmUpstreamError(PyragError):
    """The model's server cannot be reached, or what it sent is no whole answer."""

    code = "llm_upstream_error"
    http_status = 502


class Overloaded(PyragError):
    """More requests are under way than this server takes."""

    code = "overloaded"
    http_status = 503


class MethodNotAllowed(PyragError):
    """The path exists, but not with this HTTP method."""

    code = "method_not_allowed"
    http_status = 405


class PayloadTooLarge(PyragError):
    """The body of a request is above the limit."""

    code = "payload_too_large"
    http_status = 413


class UnsupportedMediaType(PyragError):
    """The body of a request is not JSON in UTF-8 by its Content-Type."""

    code = "unsupported_media_type"
    http_status = 415


class InternalError(PyragError):
    """A fault of pyrag or of the database that no other class describes."""


def error_classes() -> list[type[PyragError]]:
    """All error classes, each once, in the order of their definition."""
    return [PyragError, *PyragError.__subclasses__()]
