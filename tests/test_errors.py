"""Errors: codes and statuses of the contract, the envelope, and the exit codes of the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from pyrag import cli, cli_common, config
from pyrag.errors import (
    InternalError,
    InvalidConfiguration,
    InvalidRequest,
    LlmConfigMissing,
    PyragError,
    RetrievalNotReady,
    VaultBusy,
    error_classes,
)

CONTRACT = {
    "schema_not_initialized": 503,
    "llm_config_missing": 503,
    "llm_timeout": 504,
    "llm_auth_failed": 502,
    "llm_rate_limited": 503,
    "llm_upstream_error": 502,
    "embedding_dim_mismatch": 500,
    "invalid_request": 422,
    "retrieval_not_ready": 503,
    "database_unavailable": 503,
    "overloaded": 503,
    "rate_limited": 429,
    "not_found": 404,
    "method_not_allowed": 405,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "internal_error": 500,
}
COMMAND_LINE_ONLY = {"invalid_configuration", "vault_busy", "embedding_gone"}
EXIT_CODES = {InvalidRequest: 2, InvalidConfiguration: 2, LlmConfigMissing: 2, VaultBusy: 5}

by_class = pytest.mark.parametrize(
    "error_class", error_classes(), ids=lambda error_class: error_class.__name__
)


@by_class
def test_the_status_is_that_of_the_contract(error_class: type[PyragError]) -> None:
    if error_class.code not in COMMAND_LINE_ONLY:
        assert error_class.http_status == CONTRACT[error_class.code]


def test_the_codes_of_this_version_have_a_class() -> None:
    codes = {error_class.code for error_class in error_classes()}
    assert codes >= COMMAND_LINE_ONLY | {
        "schema_not_initialized",
        "llm_config_missing",
        "embedding_dim_mismatch",
        "invalid_request",
        "retrieval_not_ready",
        "database_unavailable",
        "not_found",
        "internal_error",
    }


def test_a_code_and_a_sqlstate_stand_for_one_class_only() -> None:
    classes = [error_class for error_class in error_classes() if error_class is not PyragError]
    codes = [error_class.code for error_class in classes]
    states = [error_class.sqlstate for error_class in classes if error_class.sqlstate]
    assert len(set(codes)) == len(codes)
    assert len(set(states)) == len(states)
    assert all(len(state) == 5 and state.startswith("RG") for state in states)


def test_every_subclass_is_listed_once() -> None:
    def below(error_class: type[PyragError]) -> set[type[PyragError]]:
        return {error_class}.union(*map(below, error_class.__subclasses__()))

    assert len(error_classes()) == len(set(error_classes()))
    assert set(error_classes()) == below(PyragError)


def test_the_envelope_has_code_message_and_details() -> None:
    error = RetrievalNotReady("Nothing is indexed.", details={"provider": "fake"})
    assert error.envelope() == {
        "error": {
            "code": "retrieval_not_ready",
            "message": "Nothing is indexed.",
            "details": {"provider": "fake"},
        }
    }


def test_the_hint_travels_in_the_details() -> None:
    error = InvalidRequest("top_k is 0", hint="1 to 20", details={"field": "top_k"})
    assert error.envelope()["error"]["details"] == {"field": "top_k", "hint": "1 to 20"}
    assert error.details == {"field": "top_k"}


@by_class
def test_an_envelope_without_details_has_an_empty_object(error_class: type[PyragError]) -> None:
    body = json.loads(json.dumps(error_class("说明").envelope()))
    assert body == {"error": {"code": error_class.code, "message": "说明", "details": {}}}


def test_two_errors_do_not_share_their_details() -> None:
    first, second = InternalError("a"), InternalError("b")
    first.details["x"] = 1
    assert second.details == {}


def test_the_text_of_an_error_is_its_message() -> None:
    assert str(InvalidRequest("top_k is 0", hint="1 to 20")) == "top_k is 0"


# Exit codes ----------------------------------------------------------------------------------------


@by_class
def test_the_command_line_prints_message_and_hint_and_exits_with_the_code_of_the_class(
    error_class: type[PyragError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error_class("What went wrong.", hint="Do this\nor that.")

    monkeypatch.setattr(config, "load_configuration", fail)
    result = CliRunner().invoke(cli.app, ["config"])
    assert result.exit_code == EXIT_CODES.get(error_class, 1)
    assert result.stdout == ""
    assert result.stderr == f"error [{error_class.code}]: What went wrong.\n  Do this\n  or that.\n"


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(config, "load_configuration", interrupt)
    result = CliRunner().invoke(cli.app, ["config"])
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    "arguments",
    [["--env-file", "/no/such/.env", "config"], ["no-such-command"], ["search", "x", "--top-k", "21"]],
    ids=["missing-env-file", "unknown-command", "option-out-of-range"],
)
def test_wrong_usage_or_configuration_is_exit_code_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr


def test_the_exit_codes_of_an_ingest_are_those_of_the_contract() -> None:
    assert (
        cli_common.EXIT_FAILED_FILES,
        cli_common.EXIT_WITHHELD,
        VaultBusy.exit_code,
        cli_common.EXIT_INTERRUPTED,
    ) == (
        3,
        4,
        5,
        130,
    )
