"""What the comparisons share: real texts and their fake vectors, a server of their own, the machine."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyrag.embeddings import DIMENSIONS, FakeLexicalEmbedder
from pyrag.models import EmbeddingInput
from pyrag.reading import read_document
from pyrag.vault import NoteError, NoteGone, resolve_vault, scan_vault

ROOT = Path(__file__).resolve().parents[2]
SIGMA = 0.01  # of the noise on each component
SEED = 20240229
_BLOCK = 10_000  # rows made at once
_PIECE = re.compile(r"[^\n.!?。！？]{12,90}")


def note(line: str) -> None:
    """Progress, on standard error."""
    print(line, file=sys.stderr, flush=True)


# Texts and vectors --------------------------------------------------------------------------------------


@dataclass
class Texts:
    """The real texts of a run: what is embedded, what is asked, and where both come from."""

    passages: list[EmbeddingInput] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)


def default_vaults() -> list[Path]:
    """The sample vault, and the folders of ../shared/vaults if there are any."""
    shared = ROOT.parent / "shared" / "vaults"
    return [ROOT / "samples" / "acme-vault", *(sorted(shared.iterdir()) if shared.is_dir() else [])]


def default_sets() -> list[Path]:
    """The retrieval sets of ../shared/evalsets (BEIR layout) if there are any."""
    return sorted(path.parent for path in (ROOT.parent / "shared" / "evalsets").glob("*/corpus.jsonl"))


def read_texts(vaults: Sequence[Path], sets: Sequence[Path]) -> Texts:
    """Chunks of the vaults as `rag ingest` cuts them, passages and questions of the sets, no text twice."""
    texts = Texts()
    for vault in vaults:
        root, before, files = resolve_vault(vault), len(texts.passages), 0
        for entry in scan_vault(root):
            try:
                chunks = read_document(entry.file_path, None).chunks
            except (NoteError, NoteGone, OSError):
                continue
            files += 1
            texts.passages += (
                EmbeddingInput(c.content, c.heading_path, entry.relative_path, c.tags, c.wikilinks)
                for c in chunks
            )
        texts.sources.append(f"{vault.name}: {len(texts.passages) - before} chunks of {files} notes")
    seen_passages: set[str] = set()
    seen_questions: set[str] = set()
    for folder in sets:
        before, asked = len(texts.passages), len(texts.questions)
        for row in _rows(folder / "corpus.jsonl"):
            text = "\n".join(filter(None, (row.get("title"), row["text"])))
            if text not in seen_passages:
                seen_passages.add(text)
                texts.passages.append(EmbeddingInput(text))
        for row in _rows(folder / "queries.jsonl"):
            if row["text"] not in seen_questions:
                seen_questions.add(row["text"])
                texts.questions.append(row["text"])
        if len(texts.passages) > before or len(texts.questions) > asked:
            texts.sources.append(
                f"{folder.name}: {len(texts.passages) - before} passages,"
                f" {len(texts.questions) - asked} questions"
            )
    if not texts.passages:
        raise SystemExit("no text was found in the vaults")
    return texts


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.strip())


def pick_questions(texts: Texts, count: int) -> list[str]:
    """Half pieces of the passages, half questions of the sets (if there are any), the same each time."""
    generator = random.Random(SEED)
    asked = generator.sample(texts.questions, min(len(texts.questions), count // 2))
    pieces: list[str] = []
    while len(pieces) < count - len(asked):
        found = _PIECE.findall(generator.choice(texts.passages).content)
        pieces.append(generator.choice(found) if found else generator.choice(texts.passages).content[:90])
    both = asked + pieces
    generator.shuffle(both)
    return both


def write_vectors(path: Path, texts: Texts | None, questions: int, rows: int, near: bool = False) -> Any:
    """Writes `rows` vectors of length one as .npy; the vectors of the questions. No texts: random vectors.

    Real vectors are repeated in a shuffled order, each time with other noise. The first rows are the same for
    every number of rows. `near` makes questions of passages instead of questions.
    """
    np: Any = importlib.import_module("numpy")
    base: Any = None
    if texts is None:
        asked = np.random.default_rng(SEED).standard_normal((questions, DIMENSIONS), dtype=np.float32)
    else:
        embedder = FakeLexicalEmbedder()
        base = np.array(embedder.embed_documents(texts.passages), dtype=np.float32)
        base = base[np.linalg.norm(base, axis=1) > 0]
        base = base[np.random.default_rng(SEED).permutation(len(base))]
        if near:
            asked = base[np.random.default_rng(SEED + 2).integers(0, len(base), questions)]
        else:
            asked = np.array(
                [embedder.embed_query(question) for question in pick_questions(texts, questions)], np.float32
            )
        asked = asked + SIGMA * np.random.default_rng(SEED + 1).standard_normal(asked.shape, dtype=np.float32)
    stored = np.lib.format.open_memmap(path, "w+", np.float32, (rows, DIMENSIONS))
    for number, start in enumerate(range(0, rows, _BLOCK)):
        block = np.random.default_rng([SEED, number]).standard_normal((_BLOCK, DIMENSIONS), dtype=np.float32)
        block = block[: rows - start]
        if base is not None:
            block *= SIGMA
            block += base[np.arange(start, start + len(block)) % len(base)]
        stored[start : start + len(block)] = _unit(block)
    stored.flush()
    return _unit(asked)


def _unit(rows: Any) -> Any:
    np: Any = importlib.import_module("numpy")
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).astype(np.float32)


# A server -----------------------------------------------------------------------------------------------


def rag(home: Path, *arguments: str, url: str = "") -> str:
    """Standard output of a command of pyrag with nothing but default settings; SystemExit if it fails."""
    settings = ("DATABASE_URL", "VAULT_PATH", "EMBEDDING_", "LLM_", "RAG_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(settings)}
    environment["PYRAG_HOME"] = str(home)
    if url:
        environment["DATABASE_URL"] = url
    done = subprocess.run(
        [str(Path(sys.executable).with_name("rag")), "--env-file", os.devnull, *arguments],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        encoding="utf-8", check=False,
    )  # fmt: skip
    if done.returncode not in (0, 3):
        raise SystemExit(f"rag {shlex.join(arguments)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


@contextlib.contextmanager
def temporary_server(parent: Path | None) -> Iterator[tuple[Path, str]]:
    """A temporary folder with an embedded Postgres: folder and URL. Both are gone afterwards."""
    if parent:
        parent.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="pyrag-bench-", dir=parent))
    home.chmod(0o755)  # for root the server is another user's
    data = home
    try:
        rag(home, "db", "init")
        status = json.loads(rag(home, "db", "status", "--json"))
        data = Path(status["data_dir"]).parent if status.get("data_dir") else home
        yield home, str(status["url"])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not leave a server behind
            signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(SystemExit):
            rag(home, "db", "stop")
        for folder in {home, data}:
            shutil.rmtree(folder, ignore_errors=True)


def end_on_signals() -> None:
    """Turns SIGTERM into an exit that cleans up, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def database_url(url: str, name: str, scheme: str = "postgresql") -> str:
    """The same server, another database, and perhaps SQLAlchemy's name of a driver."""
    return f"{scheme}://postgres@/{quote(name)}?" + url.partition("?")[2]


def make_database(url: str, name: str, *, template: str = "template1") -> str:
    """An empty database, or a copy of another one, in place of what has this name; its URL."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'drop database if exists "{name}" with (force)')
        connection.execute(f'create database "{name}" template "{template}" strategy file_copy')
    return database_url(url, name)


# The machine --------------------------------------------------------------------------------------------


def machine_facts(packages: Sequence[str], url: str = "") -> dict[str, Any]:
    """Machine, versions, settings of the server and the exact command, for the report."""
    facts: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]]),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "ram_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average_at_start": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "threads_environment": {
            key: value for key, value in os.environ.items() if re.match(r"OMP_|OPENBLAS_|MKL_", key)
        },
        "versions": {name: version(name) for name in packages},
    }
    if url:
        import psycopg

        names = ["server_version", "shared_buffers", "work_mem", "max_parallel_workers_per_gather"]
        with psycopg.connect(url) as connection:
            facts["postgres"] = {
                name: connection.execute("select current_setting(%s)", [name]).fetchone()[0]  # type: ignore[index]
                for name in names
            }
            row = connection.execute(
                "select extversion from pg_extension where extname = 'vector'"
            ).fetchone()
            facts["postgres"]["pgvector"] = row[0] if row else None
    return facts


def version(package: str) -> str:
    """Version of an installed package, or a dash."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "–"


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def facts_as_markdown(facts: dict[str, Any]) -> list[str]:
    """The facts as lines of a list."""
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items() if value != "–")
    lines = [
        f"- {facts['date']}, `{facts['command']}`",
        f"- {facts['cpu']}, {facts['cores']} cores, {facts['ram_gb']} GB RAM, {facts['system']},"
        f" Python {facts['python']}; load average at the start"
        f" {', '.join(str(value) for value in facts['load_average_at_start'])}",
    ]
    if facts["threads_environment"]:
        lines.append(f"- environment: {facts['threads_environment']}")
    if "postgres" in facts:
        server = facts["postgres"]
        lines.append(
            f"- Postgres {server['server_version']} with pgvector {server['pgvector']}, embedded;"
            f" shared_buffers {server['shared_buffers']}, work_mem {server['work_mem']},"
            f" max_parallel_workers_per_gather {server['max_parallel_workers_per_gather']}"
        )
    return [*lines, f"- {versions}"]


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; the first column to the left, the others to the right."""
    rule = ["---", *("---:" for _ in head[1:])]
    return ["| " + " | ".join(row) + " |" for row in (head, rule, *rows)]
