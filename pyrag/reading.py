"""A file to what is stored of it, here or in processes of their own: reading is most of the work of a run."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyrag.chunking import chunk_note
from pyrag.errors import InvalidRequest
from pyrag.markdown import parse_note
from pyrag.models import Chunk
from pyrag.vault import NoteError, NoteGone, decode, read_note

_WORTH_A_PROCESS = 1_000_000  # bytes of notes; starting a process takes as long as reading about this much
_MOST_PROCESSES = 4


@dataclass(frozen=True, slots=True)
class Reading:
    """A file that was read once: its hash and its chunks come from the same bytes."""

    content_hash: str
    mtime_ns: int
    size_bytes: int
    frontmatter: Mapping[str, Any]
    warnings: tuple[str, ...]
    chunks: Sequence[Chunk]


def read_document(file_path: str, encoding: str | None) -> Reading:
    """The file parsed and cut; `encoding` is for a file that is not UTF-8.

    Raises `NoteError`, `NoteGone`, `OSError`.
    """
    data, stat = read_note(Path(file_path))
    try:
        note = parse_note(decode(data, encoding))
        chunks = chunk_note(note)
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # of the tokenizer; no subclass of Exception
            raise NoteError(f"the tokenizer cannot read it: {error}") from None
        raise
    return Reading(
        hashlib.sha256(data).hexdigest(),
        stat.st_mtime_ns,
        len(data),
        dict(note.frontmatter),
        note.warnings,
        chunks,
    )


def stored_form(path: Path, encoding: str | None) -> dict[str, Any]:
    """A file as it would be stored: `{"document": …, "chunks": […]}` by the column names of the tables.

    Raises `InvalidRequest` for a path that is no readable file or no text.
    """
    try:
        reading = read_document(str(path), encoding)
    except NoteError as error:
        raise InvalidRequest(f"{path} cannot be read: {error}") from None
    except (NoteGone, OSError) as error:
        raise InvalidRequest(
            f"{path} cannot be read: {error}", hint="Name a Markdown file, e.g.: rag chunk README.md"
        ) from None
    resolved = path.resolve()
    return {
        "document": {
            "file_path": str(resolved),
            "content_hash": reading.content_hash,
            "mtime_ns": reading.mtime_ns,
            "size_bytes": reading.size_bytes,
            "frontmatter": reading.frontmatter,
            "warnings": list(reading.warnings),
        },
        "chunks": [asdict(chunk) for chunk in reading.chunks],
    }


def reader(total_bytes: int) -> Executor:
    """Where to run `read_document`: in a thread, or for much to read in processes beside this one."""
    if total_bytes < _WORTH_A_PROCESS:
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix="pyrag-reader")
    return ProcessPoolExecutor(
        max_workers=max(1, min(_MOST_PROCESSES, (os.cpu_count() or 2) - 1)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_depend_on_parent,
    )


def _depend_on_parent() -> None:
    """Leaves Ctrl-C to the parent, and ends when the parent does, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
