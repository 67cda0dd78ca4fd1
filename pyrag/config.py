"""Settings: OS environment > `.env` > defaults, checked once, frozen. An empty value counts as not set."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError

from pyrag.errors import InvalidConfiguration
from pyrag.models import Retrieval
from pyrag.paths import find_repository

if TYPE_CHECKING:
    from dotenv.parser import Original

FIXED_MODELS = {
    "fake": "fake-lexical-v1",
    "local-qwen3": "Qwen/Qwen3-Embedding-0.6B",
    "local-e5": "intfloat/multilingual-e5-small",
}
FAKE_LLM_MODEL = "fake-local"
INGEST_CHUNKS = 1024
# The fake's 0.20 is held by the questions of eval/questions.yaml, the 0.35 is a start value;
# the last two are provisional until those providers are built.
DEFAULT_MIN_SIMILARITY = {"fake": 0.20, "local-qwen3": 0.35, "local-e5": 0.35, "openai-compatible": 0.35}

# As rag.retrieval_defaults: the fake's vectors know no more than words, and those less well than BM25 does.
DEFAULT_RETRIEVAL: dict[str, Retrieval] = {
    "fake": "lexical",
    "local-qwen3": "hybrid",
    "local-e5": "hybrid",
    "openai-compatible": "hybrid",
}

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


_HOST = r"(?:\[[^\]@/?#]*\]|[^\[\]:,@/?#]*)(?::\d*)?"
_DATABASE_URL = re.compile(rf"postgres(?:ql)?://(?:[^@/?#]*@)?{_HOST}(?:,{_HOST})*(?:/[^@/?#]*)?(?:\?[^#]*)?")
_BAD_PERCENT = re.compile(r"%(?!(?!00)[0-9A-Fa-f]{2})")


def _database_url(value: SecretStr) -> SecretStr:
    # strict, because libpq puts what it cannot read into its messages, and that may be half a password
    text = value.get_secret_value()
    if not _DATABASE_URL.fullmatch(text) or _BAD_PERCENT.search(text):
        raise ValueError(
            "expected postgresql://USER:PASSWORD@HOST:PORT/NAME, with @ : / ? # % in a password written as"
            " %40 %3A %2F %3F %23 %25"
        )
    return value


def _http_url(value: str) -> str:
    # no user and password: they would be shown, and the key has a variable of its own
    value = value.strip().rstrip("/")
    if not re.fullmatch(r"https?://[^/?#@\s]+(?:/[^?#\s]*)?", value):
        raise ValueError("expected http://HOST/… or https://HOST/… without ?, # and user:password@")
    for endpoint in ("/chat/completions", "/embeddings"):
        if value.endswith(endpoint):
            raise ValueError(f"expected the address without {endpoint}, which pyrag adds")
    return value


def _key(value: SecretStr) -> SecretStr:
    # a key goes into a header: what cannot stand there would end in an error that shows it
    if not re.fullmatch(r"[!-~]+", value.get_secret_value()):
        raise ValueError("invalid key format: expected printable ASCII without spaces and line ends")
    return value


_NO_CHARSETS = {"idna", "punycode", "raw-unicode-escape", "unicode-escape", "undefined"}


def _encoding(value: str) -> str | None:
    try:
        b"".decode(value)
        "".encode(value)  # both refuse codecs that turn bytes to bytes or text to text, such as hex and rot13
        name = codecs.lookup(value).name.replace("_", "-")
    except (LookupError, ValueError):
        name = "undefined"
    if name in _NO_CHARSETS:
        raise ValueError("expected a text encoding that Python knows, such as gb18030 or cp1252")
    return None if name in ("utf-8", "utf-8-sig") else value  # UTF-8 is tried in any case


def _device(value: str) -> str:
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", value):
        raise ValueError("expected cpu, mps or cuda")
    return value


DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
Key = Annotated[SecretStr, AfterValidator(_key)]
Encoding = Annotated[str | None, AfterValidator(_encoding)]
Device = Annotated[str, AfterValidator(_device)]


class Settings(BaseModel):
    """All settings. The alias of a field is its variable; `rag config` shows its description."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database_url: DatabaseUrl | None = Field(
        None, alias="DATABASE_URL", description="Postgres with pgvector; unset: an embedded server"
    )
    pyrag_home: Path | None = Field(
        None, alias="PYRAG_HOME", description="folder of the embedded server's data"
    )
    vault_path: Path | None = Field(
        None, alias="VAULT_PATH", description="vault that `rag ingest` takes without a path"
    )
    vault_encoding: Encoding = Field(
        None, alias="RAG_VAULT_ENCODING", description="what notes are that are not UTF-8, e.g. gb18030"
    )
    ingest_chunks: int = Field(
        INGEST_CHUNKS, alias="RAG_INGEST_CHUNKS", ge=4, le=1_000_000,
        description="most chunks of a run in memory at once",
    )  # fmt: skip
    embedding_provider: Literal["fake", "local-qwen3", "local-e5", "openai-compatible"] = Field(
        "fake", alias="EMBEDDING_PROVIDER", description="who makes the vectors"
    )
    embedding_model: str = Field(
        "", alias="EMBEDDING_MODEL", description="model of the provider; unset: the provider's own"
    )
    embedding_dim: Literal[1024] = Field(1024, alias="EMBEDDING_DIM", description="dimensions of a vector")
    embedding_device: Device = Field(
        "cpu", alias="EMBEDDING_DEVICE", description="cpu, mps or cuda, for local models"
    )
    embedding_cache_dir: Path = Field(
        Path(".cache/embeddings"), alias="EMBEDDING_CACHE_DIR", description="where local models are kept"
    )
    embedding_base_url: HttpUrl | None = Field(
        None, alias="EMBEDDING_BASE_URL", description="endpoint of an openai-compatible embedder"
    )
    embedding_api_key: Key | None = Field(None, alias="EMBEDDING_API_KEY", description="its key; never shown")
    llm_provider: Literal["fake", "openai-compatible"] = Field(
        "fake", alias="LLM_PROVIDER", description="who writes the answer; fake quotes the sources"
    )
    llm_base_url: HttpUrl | None = Field(
        None, alias="LLM_BASE_URL", description="endpoint, /v1 included where the server needs it"
    )
    llm_model: str | None = Field(None, alias="LLM_MODEL", description="model name")
    llm_api_key: Key | None = Field(None, alias="LLM_API_KEY", description="key; never shown")
    llm_timeout_seconds: float = Field(
        30, alias="LLM_TIMEOUT_SECONDS", gt=0, le=3600, allow_inf_nan=False,
        description="longest total time for one answer",
    )  # fmt: skip
    llm_max_tokens: int = Field(
        2048, alias="LLM_MAX_TOKENS", ge=1, le=1_000_000, description="most tokens of one answer"
    )
    top_k: int = Field(5, alias="RAG_TOP_K", ge=1, le=20, description="chunks retrieved for a question")
    min_similarity: Share | None = Field(
        None,
        alias="RAG_MIN_SIMILARITY",
        description="threshold of vector retrieval (unset: the provider's), else a floor",
    )
    min_confidence: Share = Field(
        0.5, alias="RAG_MIN_CONFIDENCE",
        description="confidence from which lexical and hybrid retrieval answer",
    )  # fmt: skip
    asked_retrieval: Retrieval | None = Field(
        None, alias="RAG_RETRIEVAL",
        description="vector, lexical (words) or hybrid (both); unset: the provider's best",
    )  # fmt: skip
    context_token_budget: int = Field(
        6000, alias="RAG_CONTEXT_TOKEN_BUDGET", ge=100, le=1_000_000,
        description="most cl100k_base tokens of sources given to the model",
    )  # fmt: skip
    fallback_enabled: bool = Field(
        False, alias="RAG_FALLBACK_ENABLED",
        description="whether a request may ask for an answer from general knowledge",
    )  # fmt: skip
    require_quotes: bool = Field(
        False, alias="RAG_REQUIRE_QUOTES",
        description="whether an answer needs quotes that stand in the sources it cites",
    )  # fmt: skip
    log_format: Literal["text", "json"] = Field(
        "text", alias="RAG_LOG_FORMAT", description="log lines of `rag serve`: text, or JSON for machines"
    )

    @property
    def usual_similarity(self) -> float:
        """The provider's default of RAG_MIN_SIMILARITY."""
        return DEFAULT_MIN_SIMILARITY[self.embedding_provider]

    @property
    def retrieval(self) -> Retrieval:
        """How chunks are found: RAG_RETRIEVAL or what suits the provider best."""
        return self.asked_retrieval or DEFAULT_RETRIEVAL[self.embedding_provider]


_OR_OPTION = {"RAG_VAULT_ENCODING": " or --encoding"}

# Read by docker-compose.yml or the tests only; listed so that they are not taken for typing errors.
OTHER_VARIABLES = frozenset({"POSTGRES_DB", "POSTGRES_USER", "POSTGRES_PASSWORD", "TEST_DATABASE_URL"})


class Configuration:
    """The settings, where each came from, and what looked wrong without being an error."""

    def __init__(
        self, settings: Settings, origins: Mapping[str, str], env_file: Path | None, warnings: list[str]
    ) -> None:
        self.settings = settings
        self.origins = origins
        self.env_file = env_file
        self.warnings = warnings

    def summary(self) -> list[dict[str, Any]]:
        """One `{variable, value, origin, description}` a setting; keys and passwords are never in it."""
        rows: list[dict[str, Any]] = []
        for name, field in Settings.model_fields.items():
            value = getattr(self.settings, name)
            variable = str(field.alias)
            if variable == "DATABASE_URL":
                value = mask_password(value.get_secret_value()) if value else None
            elif variable.endswith("_API_KEY"):
                value = "present" if value else "absent"
            elif isinstance(value, Path):
                value = str(value)
            rows.append(
                {
                    "variable": variable,
                    "value": value,
                    "origin": self.origins.get(variable, "default"),
                    "description": field.description,
                }
            )
        rows.append(
            {
                "variable": "resolved retrieval",
                "value": self.settings.retrieval,
                "origin": "RAG_RETRIEVAL" if self.settings.asked_retrieval else "provider",
                "description": "how chunks are found",
            }
        )
        by_similarity = self.settings.retrieval == "vector"
        given = self.settings.min_similarity
        similarity = {
            "value": self.settings.usual_similarity if given is None else given,
            "origin": "provider" if given is None else "RAG_MIN_SIMILARITY",
        }
        confidence = {
            "value": self.settings.min_confidence,
            "origin": self.origins.get("RAG_MIN_CONFIDENCE", "default"),
        }
        rows.append(
            {
                "variable": "resolved threshold",
                **(similarity if by_similarity else confidence),
                "description": "confidence from which a question is answered",
            }
        )
        rows.append(
            {
                "variable": "resolved min similarity",
                **similarity,
                "description": "the threshold where confidence is a similarity; elsewhere a floor if set",
            }
        )
        return rows


def load_configuration(
    env_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Configuration:
    """Reads and checks all settings.

    `env_file` is given by the user and must exist; otherwise `.env` of the repository that `folder` (default:
    the current one) lies in is read if it exists. Relative paths in a `.env` are taken from its folder.
    Raises `InvalidConfiguration` naming variable, value and what is allowed.
    """
    environ = os.environ if environ is None else environ
    folder = _current_folder() if folder is None else folder
    repository = find_repository(folder)
    if env_file is not None and (env_file.is_dir() or not env_file.exists()):
        raise InvalidConfiguration(
            f"--env-file {env_file}: no such file", hint="Copy .env.sample to .env and name that."
        )
    if env_file is None and repository is not None and (repository / ".env").is_file():
        env_file = repository / ".env"
    from_file = read_env_file(env_file) if env_file else {}

    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for field in Settings.model_fields.values():
        variable = str(field.alias)
        if environ.get(variable, "").strip():
            values[variable] = _trimmed(variable, environ[variable])
            origins[variable] = "environment"
        elif from_file.get(variable, "").strip():
            values[variable] = _trimmed(variable, from_file[variable])
            origins[variable] = str(env_file)
    base = (repository or folder).resolve()
    for variable in ("PYRAG_HOME", "VAULT_PATH", "EMBEDDING_CACHE_DIR"):
        if variable in values:
            start = folder if origins[variable] == "environment" or not env_file else env_file.parent
            values[variable] = start.resolve() / _expanded(variable, values[variable])
    values.setdefault("PYRAG_HOME", _default_home(repository))
    values.setdefault("EMBEDDING_CACHE_DIR", base / ".cache" / "embeddings")
    settings = _check(values, origins)

    known = {str(field.alias) for field in Settings.model_fields.values()} | OTHER_VARIABLES
    warnings = [
        f"{env_file}: {name} is not a setting of pyrag"
        for name in from_file
        if name not in known and name.startswith(("RAG_", "LLM_", "EMBEDDING_", "PYRAG_"))
    ]
    return Configuration(settings, origins, env_file, warnings)


def read_env_file(path: Path) -> dict[str, str]:
    """The variables of a `.env` file, `${…}` as written. Raises `InvalidConfiguration` for a bad line."""
    from dotenv.parser import parse_stream

    try:
        with path.open(encoding="utf-8-sig") as stream:
            bindings = list(parse_stream(stream))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(
            f"{path} cannot be read: {error}", hint="Save it as UTF-8 text, one NAME=value a line."
        ) from None
    for binding in bindings:
        if binding.error:
            raise InvalidConfiguration(
                f"{path}, line {_line(binding.original)}: not NAME=value, or a quote is not closed",
                hint='Write NAME=value; put a value with spaces or # into "…".',
            )
    return {binding.key: binding.value for binding in bindings if binding.key and binding.value is not None}


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise InvalidConfiguration(
            "the current folder does not exist any more", hint="Change to a folder that exists, e.g.: cd"
        ) from None


def mask_password(url: str) -> str:
    """A database URL that may be shown: the password, also one given as a parameter, becomes ***."""
    url = re.sub(r"((?:^|[?&])(?:ssl)?password=)[^&]*", r"\1***", url)
    return re.sub(r"(?s)^(\w+://[^:/?#]*):.*@", r"\1:***@", url)


def split_password(url: str) -> tuple[str, str | None]:
    """A database URL without its password, and the password, for programs whose arguments others can see."""
    match = re.match(r"(\w+://[^:/?#@]*):([^@]*)(@.*)", url, re.DOTALL)
    return (match[1] + match[3], unquote(match[2])) if match else (url, None)


def _trimmed(variable: str, value: str) -> str:
    """The value without white space around it; a line end in a key is a mistake that its owner should see."""
    return value.strip(" \t") if variable.endswith("_API_KEY") else value.strip()


def _line(original: Original) -> int:
    """The line of what a `.env` parser stumbled over; it counts the empty lines before it as part of it."""
    text = original.string
    return original.line + text[: len(text) - len(text.lstrip())].count("\n")


def _expanded(variable: str, value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise InvalidConfiguration(
            f"{variable}={value} is not allowed: there is no such home folder",
            hint=f"Write the folder of {variable} in full.",
        ) from None


def _default_home(repository: Path | None) -> Path:
    if repository is not None:
        return repository.resolve() / ".pyrag"
    from platformdirs import user_data_path

    return user_data_path("pyrag")


def _check(values: dict[str, Any], origins: Mapping[str, str]) -> Settings:
    try:
        settings = Settings.model_validate(_as_numbers(values))
    except ValidationError as error:
        first = error.errors()[0]
        variable = str(first["loc"][0])
        what = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        if first["type"].startswith("bool"):
            what = "expected true or false"
        raise InvalidConfiguration(
            f"{variable}{_shown(variable, values[variable])} is not allowed: {what}",
            hint=f"Change or remove it; it comes from: {origins[variable]}{_OR_OPTION.get(variable, '')}.",
        ) from None
    provider = settings.embedding_provider
    fixed = FIXED_MODELS.get(provider)
    if fixed and settings.embedding_model not in ("", fixed):
        raise InvalidConfiguration(
            f"EMBEDDING_MODEL={settings.embedding_model} is not allowed with EMBEDDING_PROVIDER={provider}:"
            f" expected {fixed}",
            hint="Remove EMBEDDING_MODEL, or set the provider that has this model.",
        )
    updates: dict[str, Any] = {"embedding_model": settings.embedding_model or fixed or ""}
    if settings.llm_provider == "fake":
        updates["llm_model"] = settings.llm_model or FAKE_LLM_MODEL
    elif settings.llm_model == FAKE_LLM_MODEL:  # left over from .env.sample: no real model has this name
        updates["llm_model"] = None
    return settings.model_copy(update=updates)


def _shown(variable: str, value: object) -> str:
    if variable.endswith("_API_KEY") or variable == "DATABASE_URL":
        return ""
    text = str(value)
    if variable.endswith("_BASE_URL"):
        text = re.sub(r"(?s)[?#].*", "?***", re.sub(r"(?s)//.*@", "//***@", text))
    return f"={text}"


def _as_numbers(values: dict[str, Any]) -> dict[str, Any]:
    """EMBEDDING_DIM as a number if it is the right one: a literal of pydantic compares without converting."""
    return {**values, "EMBEDDING_DIM": 1024} if values.get("EMBEDDING_DIM") == "1024" else values
