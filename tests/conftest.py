"""Fixtures: a real Postgres, an installed template database, and one fresh copy of it for each test."""

from __future__ import annotations

import getpass
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pyrag.config import Settings, load_configuration, read_env_file
from pyrag.db import Database
from pyrag.embedded import EmbeddedServer
from pyrag.service import Service

REPOSITORY = Path(__file__).resolve().parents[1]
SAMPLE_VAULT = REPOSITORY / "samples" / "acme-vault"
SHARED = REPOSITORY.parent / "shared"

VARIABLES = {str(field.alias) for field in Settings.model_fields.values()}

_numbers = itertools.count(1)


def check_test_url(test_url: str, database_url: str | None) -> None:
    """Raises `pytest.UsageError` unless a test may create and drop databases beside `test_url`."""
    if not re.match(r"postgres(ql)?://[^?]*/[^/?]+(\?|$)", test_url):
        raise pytest.UsageError(
            "TEST_DATABASE_URL: the name must end in _test, as in postgresql://USER@HOST/NAME_test"
        )
    test, name = _place(test_url)
    if not name.endswith("_test"):
        raise pytest.UsageError(f"TEST_DATABASE_URL: the name must end in _test, got {name!r}")
    if database_url and (test, name) == _place(database_url):
        raise pytest.UsageError("TEST_DATABASE_URL is the same database as DATABASE_URL")


def _place(url: str) -> tuple[tuple[str, str], str]:
    """Host (or socket folder) with port, and database that a URL leads to, as libpq reads it."""
    parts = conninfo_to_dict(url)
    host = str(parts.get("hostaddr") or parts.get("host") or "localhost").rstrip(".").lower()
    with suppress(ValueError):
        if ip_address(host).is_loopback:
            host = "localhost"
    name = parts.get("dbname") or parts.get("user") or getpass.getuser()
    return (host, str(parts.get("port") or 5432)), str(name)


@dataclass(frozen=True)
class Server:
    """A Postgres server on which tests make databases whose names end in _test."""

    url: str

    def named(self, name: str) -> str:
        """The URL of another database of this server."""
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def execute(self, statement: str) -> None:
        """Runs a statement in the maintenance database."""
        with psycopg.connect(self.named("postgres"), autocommit=True) as connection:
            connection.execute(statement)

    def create(self, template: str = "template0") -> str:
        """A new database with a name that ends in _test; its URL."""
        name = f"pyrag_{os.getpid()}_{next(_numbers)}_test"
        self.execute(f'create database "{name}" template "{template}"')
        return self.named(name)

    def drop(self, url: str) -> None:
        """Drops a database that `create` made."""
        name = urlsplit(url).path.lstrip("/")
        assert name.endswith("_test")
        self.execute(f'drop database if exists "{name}" with (force)')


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that use a database: those have another result on another Postgres, if any has."""
    for item in items:
        if "server" in getattr(item, "fixturenames", ()):
            item.add_marker("database")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server of TEST_DATABASE_URL, or an embedded one of its own in a temporary folder."""
    env_file = REPOSITORY / ".env"
    shell = {key: value for key, value in os.environ.items() if value}
    configured = {**(read_env_file(env_file) if env_file.exists() else {}), **shell}
    test_url = configured.get("TEST_DATABASE_URL")
    if test_url:
        check_test_url(test_url, configured.get("DATABASE_URL"))
        server = Server(test_url)
        try:
            server.execute("select 1")
        except psycopg.OperationalError as error:
            raise pytest.UsageError(
                f"TEST_DATABASE_URL cannot be reached: {error}. Start that server, or remove the variable"
                " (also from .env) to test on an embedded one."
            ) from None
        yield server
        return
    version = int(os.environ.get("PYRAG_TEST_POSTGRES", "18"))
    with embedded_home() as home:
        server = Server(EmbeddedServer(home, version=version).start())
        server.execute("alter system set fsync = off")  # nothing here has to survive a power failure
        server.execute("select pg_reload_conf()")
        yield server


def fast_temp() -> str | None:
    """A folder in memory for data that only tests see, where there is one with room; None: the usual one."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30
    return str(memory) if roomy else None


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """For root, the rights of nobody for as long as the block lasts: file modes stop nobody, not root."""
    if os.geteuid() != 0:
        yield
        return
    group = os.getegid()
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


@contextmanager
def embedded_home() -> Iterator[Path]:
    """A temporary folder for embedded servers; open to their user, unlike pytest's own for root."""
    home = Path(tempfile.mkdtemp(prefix="pyrag-test-", dir=fast_temp()))
    home.chmod(0o755)
    try:
        yield home
    finally:
        for version in (16, 18):
            EmbeddedServer(home, version=version).stop()
        shutil.rmtree(home)


@pytest.fixture(scope="session")
def template(server: Server) -> Iterator[str]:
    """The name of a database in which schema `rag` is installed and empty."""
    url = server.create()
    Database(url).install()
    yield urlsplit(url).path.lstrip("/")
    server.drop(url)


@pytest.fixture
def empty_url(server: Server) -> Iterator[str]:
    """A database without schema `rag`."""
    url = server.create()
    yield url
    server.drop(url)


@pytest.fixture
def url(server: Server, template: str) -> Iterator[str]:
    """A database with an empty schema `rag`."""
    url = server.create(template)
    yield url
    server.drop(url)


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """An autocommit connection to `url`."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def settings(clean_environment: None) -> Settings:
    """The defaults, with the fake providers."""
    return load_configuration(folder=Path("/"), environ={}).settings


@pytest.fixture
def service(url: str, settings: Settings) -> Service:
    """The service over an empty database."""
    return Service(settings, Database(url))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the developer's shell reaches a test; the user's embedded data is out of reach."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("EMBEDDING_PROVIDER", "fake")
    monkeypatch.setenv("LLM_PROVIDER", "fake")
    monkeypatch.setenv("PYRAG_HOME", str(tmp_path / "pyrag-home"))


def command(url: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs `rag` as a process on this database, in a folder without `.env`."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        shell = {key: value for key, value in os.environ.items() if key not in VARIABLES}
        fake = {"EMBEDDING_PROVIDER": "fake", "LLM_PROVIDER": "fake", "DATABASE_URL": url}
        return subprocess.run(
            [sys.executable, "-c", "from pyrag.cli import main; main()", *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=120,
            cwd="/",
            env={**shell, **fake, **environment},
            check=False,
        )

    return run


@pytest.fixture
def rag(url: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command `rag` on a database with an empty schema."""
    return command(url)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with shared vaults and cases; skips loudly when it is absent."""
    if not SHARED.is_dir():
        pytest.skip("../shared is absent: tests on the shared vaults are left out")
    return SHARED
