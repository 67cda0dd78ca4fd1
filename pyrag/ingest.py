"""One run of `rag ingest`: scan, plan in SQL, then store one document a transaction.

Files are read ahead (`reading.py`), this thread embeds, another one writes: three stages at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyrag.db import Database, DocumentWrite, Index, IngestSession
from pyrag.embeddings import Embedder
from pyrag.errors import DatabaseUnavailable, EmbeddingGone, InternalError, InvalidRequest, PyragError
from pyrag.models import EmbeddingInput, ManifestEntry, OpenItem, PlanItem, Vector
from pyrag.reading import Reading, read_document, reader
from pyrag.vault import NoteError, NoteGone, resolve_vault, scan_vault

_BATCH_CHUNKS = 256  # chunks that are embedded together, across documents
_READ_AHEAD = 32  # documents that may be read before they are embedded; with the next, it bounds memory
_WRITES_IN_FLIGHT = 16  # documents that may wait for the writer


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


def ingest_vault(
    vault: str | Path,
    database: Database,
    embedder: Embedder,
    *,
    allow_mass_delete: bool = False,
    encoding: str | None = None,
    progress: Progress | None = None,
) -> IngestReport:
    """Brings the index in step with a vault and returns what was done; no file of the vault is written.

    One bad file costs one file: it is reported, and its earlier version stays. Raises `InvalidRequest` for a
    path that is no vault, `VaultBusy` when another run of it is alive, `DatabaseUnavailable`,
    `SchemaNotInitialized`. An interrupted run is closed as failed; what it stored stays.
    """
    root = resolve_vault(vault)
    index = Index(embedder.provider, embedder.model, embedder.dim)
    with database.ingest_session() as session:
        run_id = session.begin_run(str(root), index)
        try:
            run = _Run(session, run_id, index, embedder, encoding, progress or Silent())
            return run.execute(root, allow_mass_delete)
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            try:
                session.fail_run(run_id, "interrupted" if interrupted else str(error))
            except PyragError:  # this connection is gone; if another can be had, it sees a dead run
                with suppress(PyragError):
                    database.close_dead_runs()
            raise


def _batches(documents: Iterator[_Prepared]) -> Iterator[list[_Prepared]]:
    """Documents in groups of about `_BATCH_CHUNKS` chunks, which are embedded together."""
    batch: list[_Prepared] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += 1 + len(document.inputs)
        if size >= _BATCH_CHUNKS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Run:
    def __init__(
        self,
        session: IngestSession,
        run_id: int,
        index: Index,
        embedder: Embedder,
        encoding: str | None,
        progress: Progress,
    ) -> None:
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
            raise InvalidRequest(
                f"{root} holds no Markdown file (.md)", hint="Name the folder that holds your notes."
            )
        by_path = {entry.relative_path: entry for entry in entries}
        todo = [item for item in plan if item.action != "delete" and item.error is None]
        self._progress.planned(len(todo))
        files = [(item, by_path[item.relative_path]) for item in todo if item.action != "embed"]
        with (
            reader(sum(entry.size_bytes or 0 for _, entry in files)) as readers,
            ThreadPoolExecutor(max_workers=1, thread_name_prefix="pyrag-writer") as writer,
        ):
            try:
                for batch in _batches(self._read(files, readers)):
                    self._store(batch, writer)
                self._settle(0)
                for item in todo:
                    if item.action == "embed":
                        self._embed_stored(item)
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
        for number, (item, entry) in enumerate(files, start=1):
            pending.append((item, entry, readers.submit(read_document, entry.file_path, self._encoding)))
            while pending and (len(pending) > _READ_AHEAD or number == len(files)):
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
            self._settle(_WRITES_IN_FLIGHT)

    def _embed(self, inputs: dict[str, EmbeddingInput], afresh: bool = False) -> dict[str, Vector]:
        """Vectors by input hash, for those that the database does not have yet, or `afresh` for all."""
        known = self._session.known_input_hashes(list(inputs), self._index) if inputs and not afresh else ()
        new = [key for key in inputs if key not in known]
        vectors = self._embedder.embed_documents([inputs[key] for key in new])
        return dict(zip(new, vectors, strict=True))

    def _embed_stored(self, item: PlanItem) -> None:
        """Adds the embeddings that an unchanged document lacks for the current configuration."""
        stored = self._session.list_chunk_inputs(self._run_id, item.relative_path)
        inputs = [chunk.embedding_input() for chunk in stored]
        hashes = [self._embedder.input_hash(each) for each in inputs]
        ids = [chunk.chunk_id for chunk in stored]
        by_hash = dict(zip(hashes, inputs, strict=True))
        try:
            try:
                vectors = self._embed(by_hash)
                self._session.add_embeddings(self._run_id, item.relative_path, ids, hashes, vectors)
            except EmbeddingGone:
                vectors = self._embed(by_hash, afresh=True)
                self._session.add_embeddings(self._run_id, item.relative_path, ids, hashes, vectors)
        except DatabaseUnavailable:
            raise
        except PyragError as error:
            self._fail(item.relative_path, error.message)
        else:
            self._progress.stored(1, len(stored))

    def _settle(self, allowed: int) -> None:
        """Waits until at most `allowed` writes are under way, and records those that failed."""
        while len(self._writes) > allowed:
            document, future = self._writes.popleft()
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
