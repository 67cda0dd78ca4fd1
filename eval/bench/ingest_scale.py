"""Runs of `rag ingest` on generated notes: nothing changed, one changed, a folder renamed; memory by size.

    python eval/bench/ingest_scale.py [--notes 10000]

Ratios come from one server and one run of this script. The part on the renamed folder uses an embedder whose
text has no folder, as the local models have.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pyrag.db import Database
from pyrag.embeddings import FakeLexicalEmbedder
from pyrag.ingest import ingest_vault
from pyrag.models import EmbeddingInput, Vector

WORDS = [f"word{number}" for number in range(3000)] + list("数据库连接超时重启配置参数升级流程值班工程师")
FOLDERS = 10

# runs the command and reports the largest resident size of any of its processes
MEASURED = """
import json, resource, subprocess, sys, time
begun = time.perf_counter()
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([time.perf_counter() - begun, kilobytes / 1024, done.returncode, done.stdout, done.stderr]))
"""


class Folderless(FakeLexicalEmbedder):
    """The fake embedder over texts without their folder."""

    provider = "fake-folderless"

    def input_hash(self, item: EmbeddingInput) -> str:
        """As of the parent, of the file's name alone."""
        return super().input_hash(self._without(item))

    def embed_documents(self, items: Sequence[EmbeddingInput]) -> list[Vector]:
        """As of the parent, of the file's name alone."""
        return super().embed_documents([self._without(item) for item in items])

    def _without(self, item: EmbeddingInput) -> EmbeddingInput:
        return dataclasses.replace(item, relative_path=Path(item.relative_path).stem)


def write_notes(folder: Path, notes: int) -> None:
    """Notes of three sections and some 150 words, in ten folders, the same each time."""
    for number in range(notes):
        generator = random.Random(number)
        sections = [f"## Part {part}\n\n{' '.join(generator.choices(WORDS, k=50))}\n" for part in range(3)]
        path = folder / f"folder{number % FOLDERS}" / f"note{number:05}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# Note {number}\n\n" + "\n".join(sections), encoding="utf-8")


def rag(home: Path, *arguments: str) -> tuple[float, float, str]:
    """Seconds, MB of the largest process, and standard output of one command."""
    settings = ("DATABASE_URL", "VAULT_PATH", "EMBEDDING_", "LLM_", "RAG_")
    shell = {key: value for key, value in os.environ.items() if not key.startswith(settings)}
    program = str(Path(sys.executable).with_name("rag"))
    said = subprocess.run(
        [sys.executable, "-c", MEASURED, program, "--env-file", os.devnull, *arguments],
        env={**shell, "PYRAG_HOME": str(home)}, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    seconds, megabytes, code, output, error = json.loads(said)
    if code not in (0, 3):
        raise SystemExit(error)
    return seconds, megabytes, output


def first_run(home: Path, vault: Path) -> tuple[float, float]:
    """Seconds and MB of a first ingest."""
    seconds, megabytes, output = rag(home, "ingest", str(vault), "--json")
    if not json.loads(output)["chunks_written"]:
        raise SystemExit("nothing was stored")
    return seconds, megabytes


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--notes", type=int, default=10_000)
    notes = parser.parse_args().notes
    with tempfile.TemporaryDirectory(prefix="pyrag-bench-") as name:
        home = Path(name)
        home.chmod(0o755)  # for root the server is another user's
        try:
            rag(home, "db", "init")
            small, large = home / "small", home / "large"
            write_notes(small, notes // 10)
            write_notes(large, notes)
            _, small_memory = first_run(home, small)
            first, large_memory = first_run(home, large)
            print(f"first run of {notes} notes: {first:.1f} s")
            unchanged = statistics.median(rag(home, "ingest", str(large))[0] for _ in range(3))
            print(
                f"nothing changed: {unchanged:.2f} s, {unchanged / first:.1%} of the first"
                " (asked: 10 % or less)"
            )
            changed = []
            for number in range(3):
                with (large / "folder0" / "note00000.md").open("a", encoding="utf-8") as note:
                    note.write(f"\nOne more line, {number}.\n")
                changed.append(rag(home, "ingest", str(large))[0])
            more = statistics.median(changed) - unchanged
            print(f"one file changed: {more:+.2f} s against nothing changed (asked: +0.5 or less)")
            print(
                f"memory of the largest process: {small_memory:.0f} MB for {notes // 10} notes,"
                f" {large_memory:.0f} MB for {notes}: {large_memory / small_memory - 1:+.0%}"
                " (asked: 20 % or less)"
            )
            database = Database(json.loads(rag(home, "db", "status", "--json")[2])["url"])
            ingest_vault(large, database, Folderless())
            (large / "folder3").rename(large / "renamed")
            begun = time.perf_counter()
            run = ingest_vault(large, database, Folderless()).run
            print(
                f"folder of {run['documents_moved']} notes renamed: {run['embeddings_written']} embeddings"
                f" computed (asked: 0), {run['embeddings_reused']} reused,"
                f" {time.perf_counter() - begun:.1f} s"
            )
            wrong = database.find_inconsistencies()
            print(f"inconsistencies: {len(wrong)}")
        finally:
            rag(home, "db", "stop")


if __name__ == "__main__":
    main()
