"""A real `rag serve` on a loopback port, its log, and clients that read its streams."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from conftest import REPOSITORY, VARIABLES, Server

from pyrag.db import Database
from pyrag.embeddings import FakeLexicalEmbedder
from pyrag.ingest import ingest_vault

MAIN = "from pyrag.cli import main; main()"


@dataclass
class Serving:
    """A running server: where it is, its master's process id, and the file that its log goes to."""

    url: str
    port: int
    pid: int
    log_file: Path

    def client(self, **options: Any) -> httpx.Client:
        """A client of this server; the proxies of the environment do not count."""
        return httpx.Client(base_url=self.url, trust_env=False, timeout=20, **options)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """One request with a JSON body."""
        with self.client() as client:
            return client.post(path, json=body, headers=headers)

    def get(self, path: str, **headers: str) -> httpx.Response:
        with self.client() as client:
            return client.get(path, headers=headers)

    def connect(self) -> socket.socket:
        """A connection on which a test writes every byte itself."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def raw(self, request: bytes, end_within: float = 0) -> Reply:
        """The reply to these very bytes."""
        with self.connect() as connection:
            connection.sendall(request)
            return read_reply(connection, end_within)

    def workers(self) -> list[int]:
        """Process ids of the workers."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def memory(self) -> int:
        """Most bytes that a worker has ever held in memory."""
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in self.workers()]
        return max(int(found[1]) for text in texts if (found := re.search(r"VmHWM:\s*(\d+) kB", text))) * 1024

    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8")

    def log_lines(self, request_id: str, count: int = 1) -> list[dict[str, Any]]:
        """The JSON lines about a request, once there are `count` of them."""
        found: list[dict[str, Any]] = []
        for _ in range(100):
            lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
            found = [line for line in lines if line.get("request_id") == request_id]
            if len(found) >= count:
                break
            time.sleep(0.05)
        return found


@dataclass
class Reply:
    """An HTTP reply as it came over a socket."""

    status: int
    headers: dict[str, str]
    body: bytes
    closed: bool | None  # whether the server closed the connection after it; None: nobody waited for that

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def read_reply(connection: socket.socket, end_within: float = 0) -> Reply:
    """One reply, and whether the end of the connection follows within some seconds."""
    response = http.client.HTTPResponse(connection, method="POST")
    response.begin()
    body = response.read()
    headers = {name.lower(): value for name, value in response.getheaders()}
    if not end_within:
        return Reply(response.status, headers, body, None)
    connection.settimeout(end_within)
    try:
        closed = connection.recv(1) == b""
    except TimeoutError:
        closed = False
    except ConnectionError:
        closed = True
    return Reply(response.status, headers, body, closed)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    database_url: str,
    folder: Path,
    *,
    threads: int = 16,
    patches: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Serving]:
    """`rag serve` with one worker, once it answers; stopped at the end.

    `patches` sets constants by their dotted names before the application is made; gunicorn is then started
    by itself, as `rag serve` starts it.
    """
    port = free_port()
    shell = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    fake = {"EMBEDDING_PROVIDER": "fake", "LLM_PROVIDER": "fake", "DATABASE_URL": database_url}
    variables = {**shell, **fake, "RAG_LOG_FORMAT": "json", **(environment or {})}
    options = ["--bind", f"127.0.0.1:{port}", "--workers", "1", "--threads", str(threads)]
    if patches is None:
        command = [sys.executable, "-c", MAIN, "serve", *options]
    else:
        lines = [f"import {name.rpartition('.')[0]}\n{name} = {value!r}\n" for name, value in patches.items()]
        (folder / "patched_app.py").write_text("".join(lines) + "from pyrag.wsgi import app as app\n")
        variables |= {
            "PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)]),  # this code, not an installed one
            "PYRAG_ANSWERS": str(threads - max(1, threads // 8)),
            "PYRAG_LOG_FORMAT": variables["RAG_LOG_FORMAT"],
        }
        config = ["--config", "python:pyrag.gunicorn_conf", "--worker-class", "pyrag.http.worker.Worker"]
        command = [sys.executable, "-m", "gunicorn", *config, *options, "patched_app:app"]
    log_file = folder / "serve.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, cwd="/", env=variables, stdout=log, stderr=log)
    server = Serving(f"http://127.0.0.1:{port}", port, process.pid, log_file)
    try:
        _wait_until_live(server, process)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait(10)


def _wait_until_live(server: Serving, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            assert server.get("/live").status_code == 200
            return
        except httpx.TransportError:
            assert process.poll() is None, server.log()
            assert time.monotonic() < until, server.log()
            time.sleep(0.05)


@contextmanager
def indexed(server: Server, template: str, vault: Path) -> Iterator[str]:
    """The URL of a fresh database with this vault."""
    url = server.create(template)
    report = ingest_vault(vault, Database(url), FakeLexicalEmbedder())
    assert not report.failed
    yield url
    server.drop(url)


@dataclass(frozen=True)
class Event:
    """One event of a stream."""

    name: str
    data: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def parse_events(body: bytes) -> list[Event]:
    """Events by the standard (HTML, 9.2.6), and strictly: whole events, known fields, UTF-8."""
    events: list[Event] = []
    name, data, comment = "", list[str](), False
    text = body.decode("utf-8")
    lines = re.split(r"\r\n|\n|\r", text)
    assert lines[-1] == "", "the last line is not ended"
    for line in lines[:-1]:
        if not line:
            if data:
                events.append(Event(name or "message", "\n".join(data)))
            assert data or comment, "a blank line that ends nothing"
            name, data, comment = "", [], False
        elif line.startswith(":"):
            comment = True
        else:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            assert field in ("event", "data"), line
            if field == "event":
                name = value
            else:
                data.append(value)
    assert not name, "an event that is not ended"
    assert not data, "an event that is not ended"
    return events


def read_as_seed_client(body: bytes) -> tuple[str, list[dict[str, Any]]]:
    """What the line-based client of the contract makes of a stream: its text, and all that it parsed."""
    text, parsed = "", list[dict[str, Any]]()
    for line in body.decode().split("\n"):
        if line.startswith("data: "):
            value = json.loads(line[len("data: ") :])
            parsed.append(value)
            text += value.get("token", "")
            if value.get("done"):
                break
    return text, parsed


def check_order(events: Sequence[Event]) -> tuple[list[dict[str, Any]], Any]:
    """Checks the contract's order; the citations, and the body of the last event (`final` or `error`)."""
    assert re.fullmatch(r"retrieval( token)*( citation)*( final| error)", " ".join(e.name for e in events))
    for event in events:
        assert ("token" in event.json) == (event.name == "token")
        assert "done" not in event.json
    tokens = "".join(event.json["token"] for event in events if event.name == "token")
    last = events[-1].json
    citations = [event.json for event in events if event.name == "citation"]
    if events[-1].name == "final":
        assert tokens == last["answer"]
        assert [each["number"] for each in citations] == list(range(1, len(citations) + 1))
        without = [{key: value for key, value in each.items() if key != "number"} for each in citations]
        assert without == last["citations"]
    return citations, last
