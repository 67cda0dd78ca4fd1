"""Settings: where they come from, what is refused, and what is never shown."""

from __future__ import annotations

import ast
import json
import re
import traceback
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from platformdirs import user_data_path

from pyrag.config import (
    OTHER_VARIABLES,
    Configuration,
    Settings,
    load_configuration,
    mask_password,
    read_env_file,
)
from pyrag.errors import InvalidConfiguration, LlmConfigMissing
from pyrag.llm import build_llm

VARIABLES = {str(field.alias): name for name, field in Settings.model_fields.items()}

# Two allowed values of each variable, as text; where only one is allowed, it stands twice.
ALLOWED = {
    "DATABASE_URL": ("postgresql://a@one/x", "postgresql://a@two/x"),
    "PYRAG_HOME": ("/srv/home-1", "/srv/home-2"),
    "VAULT_PATH": ("/srv/vault-1", "/srv/vault-2"),
    "RAG_VAULT_ENCODING": ("gb18030", "cp1252"),
    "EMBEDDING_PROVIDER": ("local-qwen3", "local-e5"),
    "EMBEDDING_MODEL": ("fake-lexical-v1", "fake-lexical-v1"),
    "EMBEDDING_DIM": ("1024", "1024"),
    "EMBEDDING_DEVICE": ("cuda:1", "mps"),
    "EMBEDDING_CACHE_DIR": ("/srv/cache-1", "/srv/cache-2"),
    "EMBEDDING_BASE_URL": ("https://one.test/v1", "https://two.test/v1"),
    "EMBEDDING_API_KEY": ("key-1", "key-2"),
    "LLM_PROVIDER": ("openai-compatible", "fake"),
    "LLM_BASE_URL": ("http://localhost:8080/v1", "http://[::1]:8080/v1"),
    "LLM_MODEL": ("model-1", "model-2"),
    "LLM_API_KEY": ("key-1", "key-2"),
    "LLM_TIMEOUT_SECONDS": ("0.5", "3600"),
    "LLM_MAX_TOKENS": ("1", "1000000"),
    "RAG_INGEST_CHUNKS": ("4", "1000000"),
    "RAG_LOG_FORMAT": ("text", "json"),
    "RAG_TOP_K": ("1", "20"),
    "RAG_MIN_SIMILARITY": ("0", "1"),
    "RAG_MIN_CONFIDENCE": ("0.25", "0.75"),
    "RAG_RETRIEVAL": ("vector", "vector"),
    "RAG_CONTEXT_TOKEN_BUDGET": ("100", "1000000"),
    "RAG_FALLBACK_ENABLED": ("true", "false"),
    "RAG_REQUIRE_QUOTES": ("true", "false"),
}

# Wrong values of each variable, and a part of the message that says what is allowed.
WRONG = {
    "EMBEDDING_PROVIDER": (
        "'fake', 'local-qwen3', 'local-e5' or 'openai-compatible'",
        ["Fake", "bge", "openai"],
    ),
    "EMBEDDING_MODEL": ("expected fake-lexical-v1", ["fake-lexical-v2", "Qwen/Qwen3-Embedding-0.6B"]),
    "EMBEDDING_DIM": ("expected 1024", ["768", "1024.0", "+1024", "-1", "many", "²", "9" * 5000]),
    "EMBEDDING_DEVICE": ("expected cpu, mps or cuda", ["gpu", "CPU", "cuda:", "cuda:x"]),
    "EMBEDDING_BASE_URL": (
        "expected http://HOST",
        ["ftp://h/v1", "h:8080/v1", "http://", "https:///v1", "http://a b"],
    ),
    "LLM_BASE_URL": (
        "expected http://HOST",
        ["ftp://h/v1", "h:8080/v1", "http://", "https:///v1", "http://a b"],
    ),
    "LLM_PROVIDER": ("'fake' or 'openai-compatible'", ["openai", "Fake", "none"]),
    "LLM_TIMEOUT_SECONDS": ("expected", ["0", "-1", "nan", "inf", "30s", "3600.1"]),
    "RAG_INGEST_CHUNKS": ("expected", ["3", "0", "-1", "1.5", "many"]),
    "LLM_MAX_TOKENS": ("expected", ["0", "-1", "1.5", "many", "1000001"]),
    "RAG_LOG_FORMAT": ("'text' or 'json'", ["xml", "JSON"]),
    "RAG_TOP_K": ("expected", ["0", "21", "-5", "5.5", "five"]),
    "RAG_MIN_SIMILARITY": ("expected", ["-0.01", "1.01", "nan", "inf", "20%"]),
    "RAG_MIN_CONFIDENCE": ("expected", ["-0.01", "1.01", "nan", "inf", "half"]),
    "RAG_RETRIEVAL": ("'vector'", ["Vector", "fast"]),
    "RAG_CONTEXT_TOKEN_BUDGET": ("expected", ["0", "99", "-1", "1.5", "6k", "1000001"]),
    "RAG_FALLBACK_ENABLED": ("expected true or false", ["maybe", "2", "ja"]),
    "RAG_REQUIRE_QUOTES": ("expected true or false", ["strict", "2", "ja"]),
    "RAG_VAULT_ENCODING": (
        "expected a text encoding",
        ["no-such", "hex", "rot13", "unicode_escape", "raw_unicode_escape", "punycode", "idna", "undefined"],
    ),
    "VAULT_PATH": ("no such home folder", ["~nobody-of-this-name/notes"]),
    "PYRAG_HOME": ("no such home folder", ["~nobody-of-this-name/data"]),
    "EMBEDDING_CACHE_DIR": ("no such home folder", ["~nobody-of-this-name/cache"]),
}
# Variables that take any text, and the one whose value is never shown (it has tests of its own).
NOT_IN_WRONG = {"EMBEDDING_API_KEY", "LLM_API_KEY", "LLM_MODEL", "DATABASE_URL"}

SECRET = "pw-s3cret"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder that counts as a repository of pyrag."""
    return make_repository(tmp_path / "repo")


def make_repository(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    (folder / ".env.sample").touch()
    return folder


def load(
    folder: Path = Path("/"), environ: dict[str, str] | None = None, env_file: Path | None = None
) -> Configuration:
    return load_configuration(env_file, environ or {}, folder)


def write(folder: Path, text: str) -> Path:
    path = folder / ".env"
    path.write_bytes(text.encode())
    return path


def value_of(configuration: Configuration, variable: str) -> str:
    value = getattr(configuration.settings, VARIABLES[variable])
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    return str(value)


def as_value(variable: str, text: str) -> str:
    """An allowed value as the settings give it back."""
    return value_of(load(environ={variable: text}), variable)


# Order ---------------------------------------------------------------------------------------------


def test_the_tables_of_this_file_know_every_variable() -> None:
    assert set(ALLOWED) == set(VARIABLES)
    assert set(WRONG) | NOT_IN_WRONG == set(VARIABLES)


@pytest.mark.parametrize("variable", ALLOWED)
def test_the_environment_wins_over_the_env_file(repository: Path, variable: str) -> None:
    first, second = ALLOWED[variable]
    write(repository, f"{variable}={second}\n")
    loaded = load(repository, {variable: first})
    assert value_of(loaded, variable) == as_value(variable, first)
    assert loaded.origins[variable] == "environment"


@pytest.mark.parametrize("variable", ALLOWED)
def test_an_empty_variable_falls_through_to_the_env_file(repository: Path, variable: str) -> None:
    _, second = ALLOWED[variable]
    env_file = write(repository, f"{variable}={second}\n")
    for empty in ("", "  ", "\t"):
        loaded = load(repository, {variable: empty})
        assert value_of(loaded, variable) == as_value(variable, second)
        assert loaded.origins[variable] == str(env_file)


@pytest.mark.parametrize("variable", ALLOWED)
def test_a_variable_that_is_empty_everywhere_has_its_default(repository: Path, variable: str) -> None:
    default = value_of(load(repository), variable)
    for line in ("{}=", "{}=''", '{}=""', '{}="  "', "{}", "# {}=1"):
        write(repository, line.format(variable) + "\n")
        loaded = load(repository, {variable: ""})
        assert value_of(loaded, variable) == default
        assert variable not in loaded.origins


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = load().settings
    assert settings.database_url is None
    assert settings.vault_path is None
    assert (settings.embedding_provider, settings.embedding_model) == ("fake", "fake-lexical-v1")
    assert (settings.embedding_dim, settings.embedding_device) == (1024, "cpu")
    assert (settings.llm_provider, settings.llm_model) == ("fake", "fake-local")
    assert (settings.llm_base_url, settings.llm_api_key, settings.llm_timeout_seconds) == (None, None, 30)
    assert (settings.top_k, settings.context_token_budget) == (5, 6000)
    assert (settings.min_similarity, settings.usual_similarity, settings.min_confidence) == (None, 0.20, 0.5)
    assert (settings.asked_retrieval, settings.retrieval) == (None, "lexical")
    assert settings.fallback_enabled is False
    assert settings.require_quotes is False


def test_without_arguments_the_real_environment_and_folder_are_read(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository, "RAG_TOP_K=3\nRAG_CONTEXT_TOKEN_BUDGET=777\n")
    monkeypatch.chdir(repository)
    monkeypatch.setenv("RAG_TOP_K", "7")
    settings = load_configuration().settings
    assert (settings.top_k, settings.context_token_budget) == (7, 777)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().settings.top_k = 3


# Which .env ----------------------------------------------------------------------------------------


def test_the_env_file_is_found_from_a_folder_below(repository: Path) -> None:
    env_file = write(repository, "RAG_TOP_K=3\n")
    folder = repository / "samples" / "deep" / "er"
    folder.mkdir(parents=True)
    loaded = load(folder)
    assert (loaded.settings.top_k, loaded.env_file) == (3, env_file)


@pytest.mark.parametrize("file", ["pyproject.toml", ".env.sample"])
def test_a_folder_with_only_one_of_the_two_files_is_passed_over(repository: Path, file: str) -> None:
    write(repository, "RAG_TOP_K=3\n")
    inner = repository / "inner"
    inner.mkdir()
    (inner / file).touch()
    write(inner, "RAG_TOP_K=9\n")
    assert load(inner).settings.top_k == 3


def test_a_folder_of_that_name_is_no_env_sample(repository: Path) -> None:
    write(repository, "RAG_TOP_K=3\n")
    inner = repository / "inner"
    (inner / ".env.sample").mkdir(parents=True)
    (inner / "pyproject.toml").touch()
    write(inner, "RAG_TOP_K=9\n")
    assert load(inner).settings.top_k == 3


def test_the_innermost_of_nested_repositories_counts(repository: Path) -> None:
    write(repository, "RAG_TOP_K=3\nRAG_CONTEXT_TOKEN_BUDGET=777\n")
    inner = make_repository(repository / "inner")
    write(inner, "RAG_TOP_K=9\n")
    settings = load(inner).settings
    assert (settings.top_k, settings.context_token_budget) == (9, 6000)


def test_the_search_ends_at_the_first_repository_even_without_an_env_file(repository: Path) -> None:
    write(repository, "RAG_TOP_K=3\n")
    loaded = load(make_repository(repository / "inner"))
    assert (loaded.settings.top_k, loaded.env_file) == (5, None)


def test_an_env_file_outside_a_repository_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, "RAG_TOP_K=3\n")
    assert load(tmp_path).settings.top_k == 5


def test_a_given_env_file_is_read_instead_of_the_repository_one(repository: Path, tmp_path: Path) -> None:
    write(repository, "RAG_TOP_K=3\nRAG_CONTEXT_TOKEN_BUDGET=777\n")
    other = tmp_path / "other.env"
    other.write_text("RAG_TOP_K=4\n")
    settings = load(repository, env_file=other).settings
    assert (settings.top_k, settings.context_token_budget) == (4, 6000)


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_given_env_file_that_does_not_exist_is_an_error(repository: Path, kind: str) -> None:
    write(repository, "RAG_TOP_K=3\n")
    path = repository if kind == "folder" else repository / "none.env"
    with pytest.raises(InvalidConfiguration, match=re.escape(f"--env-file {path}: no such file")):
        load(repository, env_file=path)


# Paths ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["VAULT_PATH", "PYRAG_HOME", "EMBEDDING_CACHE_DIR"])
def test_a_relative_path_in_an_env_file_is_taken_from_its_folder(repository: Path, variable: str) -> None:
    write(repository, f"{variable}=some/place\n")
    below = repository / "below"
    below.mkdir()
    assert value_of(load(below), variable) == str(repository / "some" / "place")


def test_a_relative_path_in_a_given_env_file_is_taken_from_its_folder(
    repository: Path, tmp_path: Path
) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    env_file = write(other, "VAULT_PATH=notes\n")
    assert load(repository, env_file=env_file).settings.vault_path == other / "notes"


def test_a_relative_path_in_the_environment_is_taken_from_the_current_folder(repository: Path) -> None:
    write(repository, "RAG_TOP_K=3\n")
    below = repository / "below"
    below.mkdir()
    assert load(below, {"VAULT_PATH": "notes"}).settings.vault_path == below / "notes"


def test_a_tilde_is_the_home_folder(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/srv/somebody")
    write(repository, "VAULT_PATH=~/notes\n")
    assert load(repository).settings.vault_path == Path("/srv/somebody/notes")


def test_data_and_models_are_kept_in_the_repository_by_default(repository: Path) -> None:
    below = repository / "below"
    below.mkdir()
    settings = load(below).settings
    assert settings.pyrag_home == repository / ".pyrag"
    assert settings.embedding_cache_dir == repository / ".cache" / "embeddings"


def test_outside_a_repository_data_is_kept_in_the_users_data_folder(tmp_path: Path) -> None:
    settings = load(tmp_path).settings
    assert settings.pyrag_home == user_data_path("pyrag")
    assert settings.embedding_cache_dir == tmp_path / ".cache" / "embeddings"


# Values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value"),
    [(variable, value) for variable, (_, values) in WRONG.items() for value in values],
    ids=lambda text: str(text)[:30],
)
def test_a_wrong_value_names_the_variable_the_value_and_what_is_allowed(variable: str, value: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load(environ={variable: value})
    message = str(caught.value)
    assert message.startswith(f"{variable}={value} is not allowed")
    assert WRONG[variable][0] in message.partition("is not allowed")[2]
    assert "it comes from: environment" in caught.value.hint or variable in caught.value.hint


def test_a_wrong_value_in_an_env_file_is_an_error_too(repository: Path) -> None:
    write(repository, "RAG_TOP_K=21\n")
    with pytest.raises(
        InvalidConfiguration, match="RAG_TOP_K=21 is not allowed: expected less than or equal to 20"
    ):
        load(repository)


FIXED = {
    "fake": "fake-lexical-v1",
    "local-qwen3": "Qwen/Qwen3-Embedding-0.6B",
    "local-e5": "intfloat/multilingual-e5-small",
}


@pytest.mark.parametrize("provider", FIXED)
def test_an_unset_model_is_the_one_of_the_provider(provider: str) -> None:
    assert load(environ={"EMBEDDING_PROVIDER": provider}).settings.embedding_model == FIXED[provider]


@pytest.mark.parametrize("model", [*FIXED.values(), "BAAI/bge-m3"])
@pytest.mark.parametrize("provider", FIXED)
def test_a_provider_takes_only_its_own_model(provider: str, model: str) -> None:
    environ = {"EMBEDDING_PROVIDER": provider, "EMBEDDING_MODEL": model}
    if model == FIXED[provider]:
        assert load(environ=environ).settings.embedding_model == model
        return
    with pytest.raises(InvalidConfiguration) as caught:
        load(environ=environ)
    assert f"EMBEDDING_MODEL={model} " in str(caught.value)
    assert f"EMBEDDING_PROVIDER={provider}" in str(caught.value)
    assert str(caught.value).endswith(f"expected {FIXED[provider]}")


def test_the_openai_compatible_provider_takes_any_model() -> None:
    environ = {"EMBEDDING_PROVIDER": "openai-compatible", "EMBEDDING_MODEL": "BAAI/bge-m3"}
    assert load(environ=environ).settings.embedding_model == "BAAI/bge-m3"


@pytest.mark.parametrize("provider", [*FIXED, "openai-compatible"])
def test_no_provider_takes_other_dimensions(provider: str) -> None:
    environ = {
        "EMBEDDING_PROVIDER": provider,
        "EMBEDDING_MODEL": FIXED.get(provider, "m"),
        "EMBEDDING_DIM": "768",
    }
    with pytest.raises(InvalidConfiguration, match="EMBEDDING_DIM=768 is not allowed: expected 1024"):
        load(environ=environ)


@pytest.mark.parametrize(("provider", "default"), [("fake", 0.20), ("local-qwen3", 0.35)])
@pytest.mark.parametrize("given", ["", "0", "0.5", "1"])
def test_the_threshold_is_the_given_one_or_the_providers(provider: str, default: float, given: str) -> None:
    loaded = load(environ={"EMBEDDING_PROVIDER": provider, "RAG_MIN_SIMILARITY": given})
    expected = (float(given) if given else default, "RAG_MIN_SIMILARITY" if given else "provider")
    assert resolved(loaded, "resolved min similarity") == expected
    by_vector = load(
        environ={"EMBEDDING_PROVIDER": provider, "RAG_MIN_SIMILARITY": given, "RAG_RETRIEVAL": "vector"}
    )
    assert resolved(by_vector, "resolved threshold") == expected
    assert resolved(by_vector, "resolved min similarity") == expected


def resolved(loaded: Configuration, variable: str) -> tuple[object, object]:
    """Value and origin of a row of the summary."""
    row = next(row for row in loaded.summary() if row["variable"] == variable)
    return row["value"], row["origin"]


@pytest.mark.parametrize("retrieval", ["", "lexical", "hybrid"])
def test_the_threshold_of_the_other_retrievals_is_the_confidence(retrieval: str) -> None:
    environ = {"RAG_RETRIEVAL": retrieval}
    assert resolved(load(environ=environ), "resolved threshold") == (0.5, "default")
    environ["RAG_MIN_CONFIDENCE"] = "0.7"
    assert resolved(load(environ=environ), "resolved threshold") == (0.7, "environment")


def test_the_threshold_in_an_env_file_overrides_the_providers(repository: Path) -> None:
    write(repository, "RAG_MIN_SIMILARITY=0.6\n")
    assert load(repository).settings.min_similarity == 0.6


@pytest.mark.parametrize("text", ["true", "1", "yes", "on", "TRUE"])
def test_fallback_is_enabled_by_any_usual_yes(text: str) -> None:
    assert load(environ={"RAG_FALLBACK_ENABLED": text}).settings.fallback_enabled is True


# The fake model's name -----------------------------------------------------------------------------

REAL_LLM = {"LLM_PROVIDER": "openai-compatible", "LLM_BASE_URL": "http://localhost:1/v1", "LLM_API_KEY": "k"}


def test_a_given_model_name_is_kept() -> None:
    assert load(environ={**REAL_LLM, "LLM_MODEL": "m"}).settings.llm_model == "m"


@pytest.mark.parametrize("model", ["", "fake-local"])
def test_the_fake_models_name_counts_as_missing_for_a_real_provider(model: str) -> None:
    settings = load(environ={**REAL_LLM, "LLM_MODEL": model}).settings
    assert settings.llm_model is None
    with pytest.raises(LlmConfigMissing, match=r"needs LLM_MODEL$"):
        build_llm(settings)


def test_the_fake_models_name_left_in_an_env_file_counts_as_missing(repository: Path) -> None:
    write(repository, (REPOSITORY / ".env.sample").read_text(encoding="utf-8"))
    with pytest.raises(LlmConfigMissing, match=r"needs LLM_MODEL$"):
        build_llm(load(repository, REAL_LLM).settings)


# Reading .env --------------------------------------------------------------------------------------

HASHES_QUOTES_AND_DOLLAR = """\
DB_PASSWORD=p@ss#word
TOP_K=5   # number of sources
VAULT="/srv/my notes"   # quoted
KEY2='a b#c'
BASE=https://h.test/v1 # trailing
export MODEL=m1
PRICE=cost$5
"""


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["no-bom", "bom"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_hashes_quotes_and_dollars_are_read_alike_with_any_line_end(
    tmp_path: Path, end: str, mark: bytes
) -> None:
    path = tmp_path / ".env"
    path.write_bytes(mark + HASHES_QUOTES_AND_DOLLAR.replace("\n", end).encode())
    assert read_env_file(path) == {
        "DB_PASSWORD": "p@ss#word",
        "TOP_K": "5",
        "VAULT": "/srv/my notes",
        "KEY2": "a b#c",
        "BASE": "https://h.test/v1",
        "MODEL": "m1",
        "PRICE": "cost$5",
    }


@pytest.mark.parametrize("text", ["${HOME}", "'${HOME}'", '"${HOME}"', "a${HOME:-x}b", "$HOME"])
def test_variables_in_a_value_are_left_as_written(tmp_path: Path, text: str) -> None:
    assert read_env_file(write(tmp_path, f"KEY={text}\n")) == {"KEY": text.strip("'\"")}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('A="open\n', 1),
        ("A=1\nB='open\nC=3\n", 2),
        ('A=1\r\nB="open\r\nC=3\r\n', 2),
        ('# note\n\n\nA=1\n\n  \nB="open\n', 7),
        ('A="closed" rest\n', 1),
        ("A=1\nLLM_API_KEY pw-s3cret\n", 2),
        ("=pw-s3cret\n", 1),
    ],
)
def test_a_line_that_cannot_be_read_is_an_error_with_its_number(tmp_path: Path, text: str, line: int) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidConfiguration) as caught:
        read_env_file(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert SECRET not in str(caught.value)


def test_a_line_that_cannot_be_read_stops_the_start(repository: Path) -> None:
    write(repository, 'RAG_TOP_K=3\nLLM_MODEL="open\n')
    with pytest.raises(InvalidConfiguration, match="line 2"):
        load(repository)


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes("VAULT_PATH=笔记\n".encode("gb18030"))
    with pytest.raises(InvalidConfiguration, match=re.escape(f"{path} cannot be read")):
        read_env_file(path)


@pytest.mark.parametrize("name", ["RAG_TOPK", "LLM_KEY", "EMBEDDING_DIMENSION", "PYRAG_HOUSE"])
def test_an_unknown_variable_of_ours_is_warned_about(repository: Path, name: str) -> None:
    env_file = write(repository, f"{name}={SECRET}\nRAG_TOP_K=3\nPATH=/bin\nOTHER=1\n")
    assert load(repository).warnings == [f"{env_file}: {name} is not a setting of pyrag"]


def test_known_variables_are_not_warned_about(repository: Path) -> None:
    write(repository, (REPOSITORY / ".env.sample").read_text(encoding="utf-8"))
    assert load(repository).warnings == []


# Secrets -------------------------------------------------------------------------------------------


def shown_by(configuration: Configuration) -> str:
    """All that a user may get to see of a configuration."""
    settings = configuration.settings
    parts: list[Any] = [settings, repr(settings), repr(settings.model_dump()), settings.model_dump_json()]
    return "\n".join(map(str, [*parts, json.dumps(configuration.summary()), configuration.warnings]))


def shown_by_error(error: InvalidConfiguration) -> str:
    return "\n".join(
        [str(error), repr(error), error.hint, str(error.envelope()), *traceback.format_exception(error)]
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:pw-s3cret@h:5432/db", "postgresql://u:***@h:5432/db"),
        ("postgres://u:pw-s3cret@h/db?sslmode=require", "postgres://u:***@h/db?sslmode=require"),
        ("postgresql://u:pw-s3cret%40pw-s3cret@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:pw-s3cret:pw-s3cret@h/db", "postgresql://u:***@h/db"),
        ("postgresql://:pw-s3cret@h/db", "postgresql://:***@h/db"),
        ("postgresql://u:pw-s3cret@/db?host=/tmp", "postgresql://u:***@/db?host=/tmp"),
        ("postgresql://u:pw-s3cret@[::1]:5432/db", "postgresql://u:***@[::1]:5432/db"),
        ("postgresql://u:pw-s3cret@h1:1,h2:2/db", "postgresql://u:***@h1:1,h2:2/db"),
        ("postgresql://h/db?user=u&password=pw-s3cret", "postgresql://h/db?user=u&password=***"),
        ("postgresql://h/db?password=pw-s3cret&user=u", "postgresql://h/db?password=***&user=u"),
        ("postgresql://u@h:1/db?password=x@pw-s3cret&a=b", "postgresql://u@h:1/db?password=***&a=b"),
        ("postgresql://[::1]:1/db?password=x@pw-s3cret", "postgresql://[::1]:1/db?password=***"),
        ("postgresql://h:1/db?sslpassword=pw-s3cret", "postgresql://h:1/db?sslpassword=***"),
        ("postgresql://u:pw-s3cret@h/db?password=pw-s3cret", "postgresql://u:***@h/db?password=***"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("postgresql:///db", "postgresql:///db"),
    ],
)
def test_a_database_url_is_shown_without_its_password(url: str, shown: str) -> None:
    loaded = load(environ={"DATABASE_URL": url})
    assert value_of(loaded, "DATABASE_URL") == url
    row = next(row for row in loaded.summary() if row["variable"] == "DATABASE_URL")
    assert row["value"] == shown
    assert SECRET not in shown_by(loaded)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:pw-s3cret@h/db",
        "postgresql+psycopg://u:pw-s3cret@h/db",
        "host=h password=pw-s3cret",
        "pw-s3cret",
        "postgresql://u:pw-s3cret",
        "postgresql://u:pw-s3cret/db",
        "postgresql://u:x@pw-s3cret@h/db",
        "postgresql://u:x/pw-s3cret@h/db",
        "postgresql://u:x?pw-s3cret@h/db",
        "postgresql://u:x#pw-s3cret@h/db",
        "postgresql://u:pw-s3cret%@h/db",
        "postgresql://u:pw-s3cret%zz@h/db",
        "postgresql://u:pw-s3cret%00@h/db",
        "postgresql://h/db?password=pw-s3cret%2",
        "postgresql://u@h:pw-s3cret/db",
    ],
)
def test_a_database_url_that_libpq_would_misread_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load(environ={"DATABASE_URL": url})
    assert str(caught.value).startswith(
        "DATABASE_URL is not allowed: expected postgresql://USER:PASSWORD@HOST:PORT/NAME"
    )
    assert SECRET not in shown_by_error(caught.value)


@pytest.mark.parametrize("url", ["postgresql://u:x@pw-s3cret@h/db", "postgresql://u:x/pw-s3cret@h/db"])
def test_even_a_malformed_url_is_masked(url: str) -> None:
    assert mask_password(url) == "postgresql://u:***@h/db"


@pytest.mark.parametrize("variable", ["LLM_API_KEY", "EMBEDDING_API_KEY"])
def test_of_a_key_only_its_presence_is_shown(variable: str) -> None:
    def shown(configuration: Configuration) -> Any:
        return next(row["value"] for row in configuration.summary() if row["variable"] == variable)

    loaded = load(environ={variable: SECRET})
    assert shown(loaded) == "present"
    assert shown(load()) == "absent"
    assert value_of(loaded, variable) == SECRET
    assert SECRET not in shown_by(loaded)


@pytest.mark.parametrize("variable", ["LLM_BASE_URL", "EMBEDDING_BASE_URL"])
@pytest.mark.parametrize(
    "url",
    [
        "https://u:pw-s3cret@h/v1",
        "https://pw-s3cret@h/v1",
        "https://u:x/pw-s3cret@h/v1?y",
        "https://h/v1?key=pw-s3cret",
        "https://h/v1#pw-s3cret",
        "https://h/v1#x?key=pw-s3cret",
        "ftp://u:pw-s3cret@h/v1",
    ],
)
def test_an_endpoint_with_a_secret_in_it_is_refused_without_showing_it(variable: str, url: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"{variable}=.*expected http://HOST") as caught:
        load(environ={variable: url})
    assert SECRET not in shown_by_error(caught.value)


def test_an_at_sign_in_the_path_of_an_endpoint_is_allowed() -> None:
    assert load(environ={"LLM_BASE_URL": "https://h/@cf/v1"}).settings.llm_base_url == "https://h/@cf/v1"


def test_a_missing_llm_setting_is_named_without_the_others(repository: Path) -> None:
    environ = {"LLM_PROVIDER": "openai-compatible", "LLM_API_KEY": SECRET}
    with pytest.raises(LlmConfigMissing) as caught:
        build_llm(load(environ=environ).settings)
    assert str(caught.value) == "LLM_PROVIDER=openai-compatible needs LLM_BASE_URL, LLM_MODEL"
    assert SECRET not in f"{caught.value!r} {caught.value.hint} {caught.value.envelope()}"


@pytest.mark.parametrize("variable", ["RAG_TOP_K", "LLM_BASE_URL", "DATABASE_URL", "EMBEDDING_MODEL"])
def test_an_error_about_one_variable_shows_no_secret_of_another(variable: str) -> None:
    environ = {
        "DATABASE_URL": f"postgresql://u:{SECRET}@h/db",
        "LLM_API_KEY": SECRET,
        "EMBEDDING_API_KEY": SECRET,
        variable: "wrong",
    }
    with pytest.raises(InvalidConfiguration) as caught:
        load(environ=environ)
    assert SECRET not in shown_by_error(caught.value)


def test_the_summary_has_every_variable_with_its_origin(repository: Path) -> None:
    env_file = write(repository, "RAG_TOP_K=3\n")
    rows = {row["variable"]: row for row in load(repository, {"LLM_MODEL": "m"}).summary()}
    assert set(rows) == {*VARIABLES, "resolved retrieval", "resolved threshold", "resolved min similarity"}
    assert (rows["RAG_TOP_K"]["value"], rows["RAG_TOP_K"]["origin"]) == (3, str(env_file))
    assert rows["LLM_MODEL"]["origin"] == "environment"
    assert rows["RAG_CONTEXT_TOKEN_BUDGET"]["origin"] == "default"
    assert all(row["description"] for row in rows.values())
    json.dumps(list(rows.values()))


# .env.sample and the variables ---------------------------------------------------------------------

SEED_VALUES = {
    "POSTGRES_DB": "local_rag",
    "POSTGRES_USER": "local_rag",
    "POSTGRES_PASSWORD": "local_rag",
    "DATABASE_URL": "postgresql://local_rag:local_rag@localhost:5432/local_rag",
    "TEST_DATABASE_URL": "postgresql://local_rag:local_rag@localhost:5432/local_rag_test",
    "VAULT_PATH": "samples/acme-vault",
    "EMBEDDING_PROVIDER": "fake",
    "EMBEDDING_MODEL": "fake-lexical-v1",
    "EMBEDDING_DIM": "1024",
    "EMBEDDING_DEVICE": "cpu",
    "EMBEDDING_CACHE_DIR": ".cache/embeddings",
    "LLM_PROVIDER": "fake",
    "LLM_BASE_URL": "",
    "LLM_MODEL": "fake-local",
    "LLM_API_KEY": "",
    "LLM_TIMEOUT_SECONDS": "30",
    "RAG_TOP_K": "5",
    "RAG_MIN_SIMILARITY": "",
    "RAG_CONTEXT_TOKEN_BUDGET": "6000",
    "RAG_FALLBACK_ENABLED": "false",
}


def test_env_sample_has_its_values() -> None:
    sample = read_env_file(REPOSITORY / ".env.sample")
    assert {name: sample.get(name) for name in SEED_VALUES} == SEED_VALUES


def test_env_sample_lists_every_variable_and_no_other() -> None:
    assert set(read_env_file(REPOSITORY / ".env.sample")) == set(VARIABLES) | OTHER_VARIABLES


def test_env_sample_as_it_is_gives_the_defaults_with_its_database_and_vault(repository: Path) -> None:
    write(repository, (REPOSITORY / ".env.sample").read_text(encoding="utf-8"))
    settings = load(repository).settings
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == SEED_VALUES["DATABASE_URL"]
    assert settings.vault_path == repository / "samples" / "acme-vault"
    own = {"database_url", "vault_path", "embedding_cache_dir", "pyrag_home"}
    assert settings.model_dump(exclude=own) == load().settings.model_dump(exclude=own)


class Recording(dict[str, str]):
    """An environment that has every variable one asks for, and keeps what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return default

    def __getitem__(self, key: str) -> str:
        self.asked.add(key)
        raise KeyError(key)


def test_only_the_listed_variables_are_read() -> None:
    environ = Recording()
    load_configuration(None, environ, Path("/"))
    assert environ.asked == set(VARIABLES)


VENDORS = re.compile(
    "kimi|moonshot|anthropic|claude|deepseek|dashscope|gemini|mistral|cohere|groq|zhipu|azure|openai_|openrouter",
    re.IGNORECASE,
)


def test_no_vendor_is_named_in_the_code() -> None:
    found = {
        path.name: VENDORS.findall(path.read_text(encoding="utf-8"))
        for path in sorted((REPOSITORY / "pyrag").rglob("*.py"))
    }
    assert "config.py" in found
    assert {name: vendors for name, vendors in found.items() if vendors} == {}


def test_every_key_endpoint_and_model_variable_in_the_code_is_a_listed_one() -> None:
    constants = {
        node.value
        for path in sorted((REPOSITORY / "pyrag").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    pattern = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_(?:KEY|TOKEN|SECRET|URL|MODEL|PROVIDER)")
    named = {text for text in constants if pattern.fullmatch(text)}
    assert "LLM_API_KEY" in named
    assert named <= set(VARIABLES) | OTHER_VARIABLES


@pytest.mark.parametrize("vendor", ["OPENAI", "KIMI", "MOONSHOT", "ANTHROPIC", "DEEPSEEK"])
def test_a_vendors_variables_change_nothing(vendor: str) -> None:
    environ = {f"{vendor}_API_KEY": SECRET, f"{vendor}_BASE_URL": "https://h/v1", f"{vendor}_MODEL": "m"}
    real = {"LLM_PROVIDER": "openai-compatible"}
    settings = load(environ={**environ, **real}).settings
    assert settings == load(environ=real).settings
    with pytest.raises(LlmConfigMissing, match=r"needs LLM_BASE_URL, LLM_API_KEY, LLM_MODEL$"):
        build_llm(settings)


@pytest.mark.parametrize("name", ["utf-8", "UTF8", "utf_8_sig"])
def test_utf_8_as_the_vaults_encoding_is_the_default(name: str) -> None:
    assert load(environ={"RAG_VAULT_ENCODING": name}).settings.vault_encoding is None


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("https://h.test/v1", "https://h.test/v1"),
        ("https://h.test/v1//", "https://h.test/v1"),
        (" https://h.test/v1 ", "https://h.test/v1"),
        ("https://h.test/api/v9x/", "https://h.test/api/v9x"),
        ("https://h.test", "https://h.test"),
    ],
)
def test_blanks_and_slashes_at_the_end_of_a_base_url_do_not_count(given: str, used: str) -> None:
    assert load(environ={"LLM_BASE_URL": given}).settings.llm_base_url == used


@pytest.mark.parametrize("variable", ["LLM_BASE_URL", "EMBEDDING_BASE_URL"])
@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings", "/chat/completions/"])
def test_a_whole_endpoint_is_refused_as_base_url(variable: str, path: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"without {path.rstrip('/')}, which pyrag adds"):
        load(environ={variable: f"https://h.test/v1{path}"})


@pytest.mark.parametrize("variable", ["LLM_API_KEY", "EMBEDDING_API_KEY"])
@pytest.mark.parametrize("key", ["sk-0123456789\n", "sk 0123456789", "sk-0123456789é", "“sk-0123456789”"])
def test_a_key_that_cannot_stand_in_a_header_is_refused_without_showing_it(variable: str, key: str) -> None:
    with pytest.raises(InvalidConfiguration, match="invalid key format") as caught:
        load(environ={variable: key})
    assert "0123456789" not in f"{caught.value} {caught.value.hint} {caught.value!r}"
