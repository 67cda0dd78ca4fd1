"""The HTTP server under load: `rag serve` with its defaults, fake providers, the sample vault.

    python eval/bench/http_load.py [--seconds 60] [--requests 100000] [--only cpu,load,streams,restart,memory]

Needs `wrk` (Debian package). Each part prints its figure beside what it is compared with in the same run:

- cpu: processor time of all workers per POST /search, by that of the same search through the service layer in
  one process.
- load: 32 clients; errors, median and 99th percentile.
- streams: 200 answers at once from a model that writes one token a second; GET /health meanwhile and idle.
- restart: Postgres killed under load; what clients get, and seconds from its restart to the last failure.
- memory: resident size of the workers before and after many requests, and open connections of the database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

REPOSITORY = Path(__file__).resolve().parents[2]
QUERY = "客户 P1 工单应该怎么升级？"
PARTS = ("cpu", "load", "streams", "restart", "memory")
STREAMS = 200
TICKS = os.sysconf("SC_CLK_TCK")

SERVICE_LAYER = """
import sys, time
from pyrag.config import load_configuration
from pyrag.service import Service, open_database
settings = load_configuration().settings
service = Service(settings, open_database(settings, print, 16))
for _ in range(300):
    service.search(sys.argv[1])
begun = time.process_time()
for _ in range(3000):
    service.search(sys.argv[1])
print((time.process_time() - begun) / 3000 * 1000)
"""

WRK_SCRIPT = """
wrk.method = "POST"
wrk.body = '{"query": "%s"}'
wrk.headers["Content-Type"] = "application/json"
"""


def environment(home: str, **more: str) -> dict[str, str]:
    """The shell's environment without settings of pyrag, with a home of its own and no `.env`."""
    settings = ("DATABASE_URL", "VAULT_PATH", "EMBEDDING_", "LLM_", "RAG_", "PYRAG_")
    shell = {key: value for key, value in os.environ.items() if not key.startswith(settings)}
    return {**shell, "PYRAG_HOME": home, "PYRAG_ENV_FILE": os.devnull, **more}


def rag(home: str, *arguments: str) -> str:
    """Standard output of one command."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("rag")), "--env-file", os.devnull, *arguments],
        env=environment(home), check=True, capture_output=True, text=True, encoding="utf-8",
    ).stdout  # fmt: skip


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(home: str, *options: str, **settings: str) -> Iterator[tuple[str, list[int]]]:
    """Address and worker processes of a running `rag serve`."""
    url = f"http://127.0.0.1:{free_port()}"
    with open(Path(home) / "serve.log", "a") as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("rag")), "--env-file", os.devnull, "serve",
             "--bind", url.removeprefix("http://"), *options],
            env=environment(home, **settings), stdout=log, stderr=log,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 30
        while get(f"{url}/ready")[0] != 200:
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit((Path(home) / "serve.log").read_text()[-2000:])
            time.sleep(0.1)
        time.sleep(1)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield url, [int(child) for child in children]
    finally:
        process.terminate()
        process.wait(60)


def get(url: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of a GET, or of a POST of JSON; 0 when nothing answers."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()


def wrk(url: str, seconds: int, clients: int) -> dict[str, float]:
    """Figures of wrk: requests, errors, p50 and p99 in milliseconds."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(WRK_SCRIPT % QUERY)
        script.flush()
        said = subprocess.run(
            ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "30s", "--latency",
             "-s", script.name, f"{url}/search"],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
    units = {"us": 0.001, "ms": 1.0, "s": 1000.0}
    latency = {
        name: float(value) * units[unit]
        for name, value, unit in re.findall(r"^\s+(\d+)%\s+([\d.]+)(us|ms|s)$", said, re.MULTILINE)
    }
    errors = sum(int(number) for number in re.findall(r"(?:connect|read|write|timeout) (\d+)", said))
    errors += sum(int(number) for number in re.findall(r"Non-2xx or 3xx responses: (\d+)", said))
    requests = int(re.search(r"(\d+) requests in", said)[1])  # type: ignore[index]
    return {"requests": requests, "errors": errors, "p50": latency["50"], "p99": latency["99"]}


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of processes so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def resident_mb(pids: list[int]) -> float:
    """Resident size of processes, MB."""
    found = (re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()) for pid in pids)
    return sum(int(each[1]) for each in found if each) / 1024


def part_cpu(home: str) -> None:
    """Processor time of a request against the service layer, in turn, three times."""
    with served(home) as (url, workers):
        wrk(url, 3, 8)
        pairs = []
        for _ in range(3):
            before = cpu_seconds(workers)
            requests = wrk(url, 10, 8)["requests"]
            over_http = (cpu_seconds(workers) - before) / requests * 1000
            alone = float(
                subprocess.run(
                    [sys.executable, "-c", SERVICE_LAYER, QUERY], env=environment(home), cwd="/", check=True,
                    capture_output=True, text=True,
                ).stdout
            )  # fmt: skip
            pairs.append((over_http, alone))
    http, alone = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    print(
        f"cpu      /search {http:.2f} ms, service layer {alone:.2f} ms: ratio {ratio:.2f} (asked: 2 or less)"
    )


def part_load(home: str, seconds: int) -> None:
    """32 clients."""
    with served(home) as (url, _):
        wrk(url, 3, 32)
        made = wrk(url, seconds, 32)
    print(
        f"load     32 clients for {seconds} s: {made['requests'] / seconds:.0f} requests/s,"
        f" {made['errors']:.0f} errors, p50 {made['p50']:.1f} ms, p99 {made['p99']:.1f} ms:"
        f" ratio {made['p99'] / made['p50']:.1f} (asked: 10 or less)"
    )


async def slow_model(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers one request with one token a second, 20 of them."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])  # type: ignore[index]
    await reader.readexactly(length)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    try:
        for number in range(20):
            delta = {"choices": [{"index": 0, "delta": {"content": f"word{number} "}, "finish_reason": None}]}
            writer.write(f"data: {json.dumps(delta)}\n\n".encode())
            await writer.drain()
            await asyncio.sleep(1)
        last = {"choices": [{"index": 0, "delta": {"content": "[1]"}, "finish_reason": "stop"}]}
        writer.write(f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode())
        await writer.drain()
    except ConnectionError:
        pass
    writer.close()


async def one_stream(port: int, ends: Counter[str]) -> None:
    """Reads one answer to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"question": QUERY}).encode()
    writer.write(
        b"POST /ask/stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    said = (await reader.read(-1)).decode()
    names = re.findall(r"^event: (\w+)", said, re.MULTILINE)
    ends[names[-1] if names else said[:60]] += 1
    writer.close()


def health_times(url: str, seconds: float) -> list[float]:
    """Times of GET /health, one after the other, in milliseconds."""
    times = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        begun = time.perf_counter()
        if get(f"{url}/health")[0] != 200:
            raise SystemExit("GET /health failed")
        times.append((time.perf_counter() - begun) * 1000)
        time.sleep(0.05)
    return times


async def streams(home: str) -> None:
    """200 answers from a slow model."""
    model = await asyncio.start_server(slow_model, "127.0.0.1", 0, backlog=500)
    port = model.sockets[0].getsockname()[1]
    settings = {
        "LLM_PROVIDER": "openai-compatible", "LLM_MODEL": "slow", "LLM_API_KEY": "none",
        "LLM_BASE_URL": f"http://127.0.0.1:{port}/v1", "LLM_TIMEOUT_SECONDS": "120",
    }  # fmt: skip
    manager = served(home, **settings)
    url, _ = await asyncio.to_thread(manager.__enter__)
    try:
        idle = await asyncio.to_thread(health_times, url, 5.0)
        ends: Counter[str] = Counter()
        running = [asyncio.create_task(one_stream(int(url.rpartition(":")[2]), ends)) for _ in range(STREAMS)]
        await asyncio.sleep(4)
        busy = await asyncio.to_thread(health_times, url, 10.0)
        still = sum(not task.done() for task in running)
        await asyncio.gather(*running)
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)
        model.close()
    medians = statistics.median(busy), statistics.median(idle)
    print(
        f"streams  {STREAMS} at once, {still} still running after the measurement, ended with {dict(ends)};"
        f" /health median {medians[0]:.1f} ms (largest {max(busy):.1f}), idle {medians[1]:.1f} ms"
        f" (largest {max(idle):.1f}): ratio {medians[0] / medians[1]:.1f} (asked: 5 or less)"
    )


def part_restart(home: str) -> None:
    """Postgres killed under load."""
    body = json.dumps({"query": QUERY}).encode()
    seen: list[tuple[float, int, str]] = []
    stop = threading.Event()

    with served(home) as (url, _):

        def client() -> None:
            while not stop.is_set():
                status, said = get(f"{url}/search", body)
                code = "" if status == 200 else said.decode(errors="replace")[:60]
                if status and status != 200:
                    code = json.loads(said)["error"]["code"]
                seen.append((time.monotonic(), status, code))

        clients = [threading.Thread(target=client) for _ in range(8)]
        for each in clients:
            each.start()
        time.sleep(2)
        pid = json.loads(rag(home, "db", "status", "--json"))["pid"]
        os.kill(pid, signal.SIGQUIT)  # immediate shutdown: connections are cut
        time.sleep(5)
        rag(home, "db", "start")
        up = time.monotonic()
        time.sleep(8)
        stop.set()
        for each in clients:
            each.join()
    kinds = Counter(f"{status} {code}".strip() for _, status, code in seen)
    last = max((at for at, status, _ in seen if status != 200), default=up)
    print(
        f"restart  replies {dict(kinds)}; last failure {last - up:+.2f} s after the restart"
        " (asked: 2 or less)"
    )


def part_memory(home: str, requests: int) -> None:
    """Many requests."""
    with served(home) as (url, workers):
        wrk(url, 10, 32)
        before, made = resident_mb(workers), 0
        while made < requests:
            made += int(wrk(url, 20, 32)["requests"])
        after = resident_mb(workers)
        database = json.loads(rag(home, "db", "status", "--json"))["url"]
        with psycopg.connect(database) as connection:
            rows = connection.execute(
                "select application_name, state, count(*) from pg_stat_activity"
                " where backend_type = 'client backend' and pid <> pg_backend_pid() group by 1, 2"
            ).fetchall()
    print(
        f"memory   workers {before:.0f} MB after warm-up, {after:.0f} MB after {made} requests:"
        f" {(after / before - 1) * 100:+.1f} % (asked: below +10); connections {rows}"
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pyrag-bench-") as home:
        Path(home).chmod(0o755)  # for root the server is another user's
        try:
            rag(home, "db", "init")
            rag(home, "ingest", str(REPOSITORY / "samples" / "acme-vault"))
            for part in options.only.split(","):
                if part == "cpu":
                    part_cpu(home)
                elif part == "load":
                    part_load(home, options.seconds)
                elif part == "streams":
                    asyncio.run(streams(home))
                elif part == "restart":
                    part_restart(home)
                elif part == "memory":
                    part_memory(home, options.requests)
                else:
                    raise SystemExit(f"--only {part}: expected some of {','.join(PARTS)}")
                sys.stdout.flush()
        finally:
            rag(home, "db", "stop")


if __name__ == "__main__":
    main()
