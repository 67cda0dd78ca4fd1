"""One run of `rag ingest`: scan, plan in SQL, then store one document a transaction.

Files are read ahead (`reading.py`), this thread embeds, another one writes: three stages at the same time.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pyrag.config import INGEST_CHUNKS
from pyrag.db import Database, DocumentWrite, Index, IngestSession
from pyrag.embeddings import Embedder
from pyrag.errors import (
    DatabaseUnavailable,
    EmbeddingGone,
    InternalError,
    InvalidRequest,
    PyragError,
    VaultBusy,
)
from pyrag.models import EmbeddingInput, ManifestEntry, OpenItem, PlanItem, Vector
from pyrag.reading import Reading, read_document, reader
from pyrag.vault import NoteError, NoteGone, resolve_vault, scan_vault

LOCK_SECONDS = 3.0  # how long a run waits for another one of the same vault
_READ_AHEAD = 32  # documents that may be read before they are embedded, at most
_WRITES = 64  # documents that may wait for the writer, at most
_BYTES_OF_A_CHUNK = 2000  # of a note, about: for a file that is not cut yet
_NORM_TOLERANCE = 0.01  # as in rag.check_vectors

T = TypeVar("T")


class Progress(Protocol):
    """Told how far a run is; the command line draws a bar of it."""

    def scanned(self, files: int) -> None:
        """So many files have been found and hashed."""

    def planned(self, documents: int) -> None:
        """So many documents are to be stored."""

    def stored(self, documents: int, chunks: int) -> None:
        """So many more documents, with so many chunks, are done."""


class Silent:
    """Progress that nobody watches."""

    def scanned(self, files: int) -> None:
        """Says nothing."""

    def planned(self, documents: int) -> None:
        """Says nothing."""

    def stored(self, documents: int, chunks: int) -> None:
        """Says nothing."""


@dataclass(slots=True)
class IngestReport:
    """What a run did: its row of `ingest_runs` by column names, and what people should look at."""

    run: dict[str, Any]
    failed: list[tuple[str, str]]
    warnings: list[tuple[str, str]]
    withheld: list[OpenItem]


@dataclass(slots=True)
class _Prepared:
    """A document that was read, on its way to the writer; inputs and hashes run parallel to its chunks."""

    item: PlanItem
    entry: ManifestEntry
    reading: Reading
    inputs: list[EmbeddingInput]
    hashes: list[str]

    def write(self, vectors: dict[str, Vector]) -> DocumentWrite:
        """What is to be stored, with those of the vectors that are of this document."""
        return DocumentWrite(
            self.item.relative_path,
            self.entry.file_path,
            self.reading.content_hash,
            self.reading.mtime_ns,
            self.reading.size_bytes,
            dict(self.reading.frontmatter),
            self.reading.warnings,
            self.reading.chunks,
            self.hashes,
            {key: vectors[key] for key in dict.fromkeys(self.hashes) if key in vectors},
        )


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stored document that lacks embeddings: its chunks without one, in three parallel lists."""

    relative_path: str
    ids: list[int]
    inputs: list[EmbeddingInput]
    hashes: list[str]


def ingest_vault(
    vault: str | Path,
    database: Database,
    embedder: Embedder,
    *,
    allow_mass_delete: bool = False,
    encoding: str | None = None,
    chunks_in_memory: int = INGEST_CHUNKS,
    progress: Progress | None = None,
) -> IngestReport:
    """Brings the index in step with a vault and returns what was done; no file of the vault is written.

    One bad file costs one file: it is reported, and its earlier version stays. `chunks_in_memory` bounds what
    is read, embedded and waits to be written at once, but for a single document that has more. An interrupted
    run is closed as failed; what it stored stays. Raises `InvalidRequest` for a path that is no vault,
    `VaultBusy` when another run of it is alive for longer than `LOCK_SECONDS`, `DatabaseUnavailable`,
    `SchemaNotInitialized`.
    """
    root = resolve_vault(vault)
    index = Index(embedder.provider, embedder.model, embedder.dim)
    with database.ingest_session() as session:
        run_id = _begin(session, str(root), index)
        try:
            run = _Run(session, run_id, index, embedder, encoding, chunks_in_memory, progress or Silent())
            return run.execute(root, allow_mass_delete)
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            try:
                session.fail_run(run_id, "interrupted" if interrupted else str(error))
            except PyragError:  # this connection is gone or still in a query: another one closes the run
                with suppress(PyragError):
                    database.fail_run(run_id, "interrupted")
            raise


def preview_vault(
    vault: str | Path,
    database: Database,
    embedder: Embedder,
    *,
    allow_mass_delete: bool = False,
    progress: Progress | None = None,
) -> list[PlanItem]:
    """What `ingest_vault` would do with each file, by the same plan; unchanged files too. Writes nothing.

    Raises as `ingest_vault` does, save `VaultBusy`.
    """
    root = resolve_vault(vault)
    entries = scan_vault(root, progress=(progress or Silent()).scanned)
    index = Index(embedder.provider, embedder.model, embedder.dim)
    plan = database.preview_ingest(str(root), entries, index, allow_mass_delete)
    if not entries and not plan:
        raise _no_note(root)
    return plan


def _begin(session: IngestSession, vault_path: str, index: Index) -> int:
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return session.begin_run(vault_path, index)
        except VaultBusy:
            if time.monotonic() >= until:
                raise
            time.sleep(0.2)


def _no_note(root: Path) -> InvalidRequest:
    return InvalidRequest(
        f"{root} holds no Markdown file (.md)", hint="Name the folder that holds your notes."
    )


def _batches(documents: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Documents in groups of about `most` chunks, which are embedded together."""
    batch: list[T] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += 1 + size_of(document)
        if size >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _checked(vectors: Sequence[Vector], wanted: int, dim: int) -> list[Vector]:
    """The vectors in compact form. Raises `InternalError` unless they are as many and as long as wanted.

    A zero vector, one with NaN or infinity and one that is not normalised have another length than 1.
    """
    hint = "The embedder must give one L2-normalised vector for each text, in their order."
    if len(vectors) != wanted:
        raise InternalError(f"the embedder gave {len(vectors)} vectors for {wanted} texts", hint=hint)
    origin = [0.0] * dim
    for number, vector in enumerate(vectors):
        if len(vector) != dim:
            what = f"vector {number} has {len(vector)} dimensions, expected {dim}"
            raise InternalError(f"the embedder's {what}", hint=hint)
        norm = math.dist(vector, origin)
        if not abs(norm - 1) <= _NORM_TOLERANCE:
            raise InternalError(
                f"the embedder's vector {number} has the length {norm:g}, expected 1", hint=hint
            )
    return [array("f", vector) for vector in vectors]


class _Run:
    def __init__(
        self,
        session: IngestSession,
        run_id: int,
        index: Index,
        embedder: Embedder,
        encoding: str | None,
        chunks_in_memory: int,
        progress: Progress,
    ) -> None:
        # a quarter is read ahead, a quarter embedded, half of it waits to be written
        self._batch = max(1, chunks_in_memory // 4)
        self._waiting_most = max(1, chunks_in_memory // 2)
        self._waiting = 0  # chunks that wait to be written
        self._session = session
        self._run_id = run_id
        self._index = index
        self._embedder = embedder
        self._encoding = encoding
        self._progress = progress
        self._warnings: list[tuple[str, str]] = []
        self._writes: deque[tuple[_Prepared, Future[None]]] = deque()

    def execute(self, root: Path, allow_mass_delete: bool) -> IngestReport:
        entries = scan_vault(root, progress=self._progress.scanned, warn=self._warn)
        plan = self._session.record_plan(self._run_id, entries, allow_mass_delete)
        if not entries and not plan:
            raise _no_note(root)
        by_path = {entry.relative_path: entry for entry in entries}
        todo = [item for item in plan if item.action != "delete" and item.error is None]
        self._progress.planned(len(todo))
        files = [(item, by_path[item.relative_path]) for item in todo if item.action != "embed"]
        with (
            reader(sum(entry.size_bytes or 0 for _, entry in files)) as readers,
            ThreadPoolExecutor(max_workers=1, thread_name_prefix="pyrag-writer") as writer,
        ):
            try:
                prepared = self._read(files, readers)
                for batch in _batches(prepared, lambda document: len(document.inputs), self._batch):
                    self._store(batch, writer)
                self._settle(0)
                stored = (self._stored(item) for item in todo if item.action == "embed")
                for group in _batches(stored, lambda each: len(each.ids), self._batch):
                    self._embed_stored(group)
            except BaseException as error:
                readers.shutdown(wait=False, cancel_futures=True)
                writer.shutdown(wait=True, cancel_futures=True)
                if isinstance(error, BrokenExecutor):
                    raise InternalError(
                        "a process that reads notes was ended from outside",
                        hint="Is there enough memory? What is stored stays; run rag ingest again.",
                    ) from None
                raise
        self._session.delete_documents(self._run_id, allow_mass_delete)
        run = self._session.finish_run(self._run_id)
        left = self._session.list_open_items(self._run_id)
        return IngestReport(
            run,
            [(item.relative_path, item.error or item.reason) for item in left if item.status == "failed"],
            self._warnings,
            [item for item in left if item.action == "delete" and item.status == "pending"],
        )

    def _read(self, files: list[tuple[PlanItem, ManifestEntry]], readers: Executor) -> Iterator[_Prepared]:
        """The files as documents, in order, read ahead; bad ones are recorded, not given."""
        pending: deque[tuple[PlanItem, ManifestEntry, Future[Reading]]] = deque()
        most = self._batch * _BYTES_OF_A_CHUNK
        size = 0
        for number, (item, entry) in enumerate(files, start=1):
            pending.append((item, entry, readers.submit(read_document, entry.file_path, self._encoding)))
            size += entry.size_bytes or 0
            while pending and (len(pending) > _READ_AHEAD or size > most or number == len(files)):
                size -= pending[0][1].size_bytes or 0
                prepared = self._prepared(*pending.popleft())
                if prepared is not None:
                    yield prepared

    def _prepared(self, item: PlanItem, entry: ManifestEntry, future: Future[Reading]) -> _Prepared | None:
        try:
            reading = future.result()
        except NoteGone:
            self._session.retract_item(self._run_id, item.relative_path)
            self._progress.stored(1, 0)
            return None
        except BrokenExecutor:
            raise
        except (NoteError, OSError) as error:
            self._fail(item.relative_path, str(error))
            return None
        except Exception as error:  # a fault of ours; still one bad file costs one file
            self._fail(item.relative_path, f"unexpected {type(error).__name__}: {error}")
            return None
        for warning in reading.warnings:
            self._warn(item.relative_path, warning)
        inputs = [
            EmbeddingInput(chunk.content, chunk.heading_path, item.relative_path, chunk.tags, chunk.wikilinks)
            for chunk in reading.chunks
        ]
        return _Prepared(item, entry, reading, inputs, [self._embedder.input_hash(each) for each in inputs])

    def _store(self, batch: list[_Prepared], writer: ThreadPoolExecutor) -> None:
        """Embeds what is new in a batch, and hands its documents to the writer."""
        inputs = {
            key: each
            for document in batch
            for key, each in zip(document.hashes, document.inputs, strict=True)
        }
        try:
            vectors = self._embed(inputs)
        except DatabaseUnavailable:
            raise
        except PyragError as error:
            if len(batch) == 1:
                self._fail(batch[0].item.relative_path, error.message)
            else:  # find the document that cannot be embedded
                for document in batch:
                    self._store([document], writer)
            return
        for document in batch:
            future = writer.submit(self._session.replace_document, self._run_id, document.write(vectors))
            self._writes.append((document, future))
            self._waiting += len(document.inputs)
            self._settle(self._waiting_most)

    def _embed(self, inputs: dict[str, EmbeddingInput], afresh: bool = False) -> dict[str, Vector]:
        """Vectors by input hash, for those that the database does not have yet, or `afresh` for all."""
        known = self._session.known_input_hashes(list(inputs), self._index) if inputs and not afresh else ()
        # of like length, so that a model pads little
        new = sorted((key for key in inputs if key not in known), key=lambda key: len(inputs[key].content))
        try:
            vectors = self._embedder.embed_documents([inputs[key] for key in new])
        except PyragError:
            raise
        except Exception as error:  # a fault of an embedder costs the files that it cannot embed
            raise InternalError(f"the embedder failed: {type(error).__name__}: {error}") from error
        return dict(zip(new, _checked(vectors, len(new), self._index.dim), strict=True))

    def _stored(self, item: PlanItem) -> _Stored:
        chunks = self._session.list_chunk_inputs(self._run_id, item.relative_path)
        inputs = [chunk.embedding_input() for chunk in chunks]
        return _Stored(
            item.relative_path,
            [chunk.chunk_id for chunk in chunks],
            inputs,
            [self._embedder.input_hash(each) for each in inputs],
        )

    def _embed_stored(self, group: list[_Stored]) -> None:
        """Adds the embeddings that unchanged documents lack for the current configuration."""
        inputs = {
            key: each
            for document in group
            for key, each in zip(document.hashes, document.inputs, strict=True)
        }
        try:
            vectors = self._embed(inputs)
        except DatabaseUnavailable:
            raise
        except PyragError as error:
            if len(group) == 1:
                self._fail(group[0].relative_path, error.message)
            else:  # find the document that cannot be embedded
                for document in group:
                    self._embed_stored([document])
            return
        for document in group:
            try:
                try:
                    self._add_embeddings(document, vectors)
                except EmbeddingGone:
                    own = dict(zip(document.hashes, document.inputs, strict=True))
                    self._add_embeddings(document, self._embed(own, afresh=True))
            except DatabaseUnavailable:
                raise
            except PyragError as error:
                self._fail(document.relative_path, error.message)
            else:
                self._progress.stored(1, len(document.ids))

    def _add_embeddings(self, document: _Stored, vectors: dict[str, Vector]) -> None:
        self._session.add_embeddings(
            self._run_id, document.relative_path, document.ids, document.hashes, vectors
        )

    def _settle(self, allowed: int) -> None:
        """Waits until at most `allowed` chunks wait to be written, and records the writes that failed."""
        while self._writes and (self._waiting > allowed or not allowed or len(self._writes) > _WRITES):
            document, future = self._writes.popleft()
            self._waiting -= len(document.inputs)
            try:
                try:
                    future.result()
                except EmbeddingGone:  # another document or run has deleted it since it was asked for
                    inputs = dict(zip(document.hashes, document.inputs, strict=True))
                    write = document.write(self._embed(inputs, afresh=True))
                    self._session.replace_document(self._run_id, write)
            except DatabaseUnavailable:
                raise
            except PyragError as error:
                self._fail(document.item.relative_path, error.message)
            else:
                self._progress.stored(1, len(document.inputs))

    def _warn(self, relative_path: str, warning: str) -> None:
        self._warnings.append((relative_path, warning))

    def _fail(self, relative_path: str, reason: str) -> None:
        self._session.fail_item(self._run_id, relative_path, reason)
        self._progress.stored(1, 0)
