"""Rate of ingestion and time of a search, by the command itself on an embedded Postgres of its own.

    python eval/bench/ingest_rate.py VAULT [--runs 3]

Prints, for each run and as medians: chunks per second of the first ingest (scan, parse, cut, fake-embed,
write; process start included), peak memory of the process, seconds of a run with nothing changed and its
share of the first, and seconds of `rag search` on the warm server. Single figures from a shared machine say
little: look at the medians and the share.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUESTION = "如何限制单条查询的内存？"


def rag(home: str, *arguments: str) -> tuple[float, str]:
    """Seconds and standard output of one command."""
    settings = ("DATABASE_URL", "VAULT_PATH", "EMBEDDING_", "LLM_", "RAG_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(settings)}
    started = time.perf_counter()
    done = subprocess.run(
        [str(Path(sys.executable).with_name("rag")), "--env-file", os.devnull, *arguments],
        env={**environment, "PYRAG_HOME": home},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode not in (0, 3):
        raise SystemExit(done.stderr)
    return seconds, done.stdout


def one_run(vault: str) -> dict[str, float]:
    """The figures of one run on a fresh server."""
    with tempfile.TemporaryDirectory(prefix="pyrag-bench-") as home:
        Path(home).chmod(0o755)  # for root the server is another user's
        try:
            rag(home, "db", "init")
            first, output = rag(home, "ingest", vault, "--json")
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            chunks = json.loads(output)["chunks_written"]
            again, output = rag(home, "ingest", vault, "--json")
            if json.loads(output)["chunks_written"]:
                raise SystemExit("the second run stored something: the vault changed meanwhile")
            search = statistics.median(rag(home, "search", QUESTION)[0] for _ in range(5))
        finally:
            rag(home, "db", "stop")
    return {
        "chunks": chunks,
        "first run s": first,
        "chunks/s": chunks / first,
        "peak MB": peak,
        "unchanged s": again,
        "unchanged share": again / first,
        "search s": search,
    }


def main() -> None:
    """Runs and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("vault", help="folder of notes, for example a copy of a large documentation")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    runs = [one_run(arguments.vault) for _ in range(arguments.runs)]
    print(
        f"{'':<16}"
        + "".join(f"{'run ' + str(number):>12}" for number in range(1, len(runs) + 1))
        + f"{'median':>12}"
    )
    for name in runs[0]:
        values = [run[name] for run in runs]
        print(f"{name:<16}" + "".join(f"{value:>12.2f}" for value in [*values, statistics.median(values)]))


if __name__ == "__main__":
    main()
