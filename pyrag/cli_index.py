"""The commands `rag db index …`: the approximate index for large vaults."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrag.cli_common import JsonOption, configuration, note, print_json, shown
from pyrag.errors import DatabaseUnavailable, InvalidRequest, PyragError, RetrievalNotReady

if TYPE_CHECKING:
    from pyrag.db import Database, Index, IndexSession
    from pyrag.ingest import Progress
    from pyrag.service import Service

index_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The approximate index: quicker searches in large vaults, a little less exact.",
    epilog="Example: rag db index create --memory 2GB",
)

NONE = "no approximate index; searches are exact"
QUESTIONS = 100  # stored vectors that a check looks up
TOP_K = 10  # neighbours of each that it compares
FEWEST = 10_000  # vectors from which rag.choose_scan uses an index
_BYTES_OF_A_ROW = 2700  # of the graph in memory, about
_POLL_SECONDS = 0.5
_UNITS = {"kb": ("kB", 1 << 10), "mb": ("MB", 1 << 20), "gb": ("GB", 1 << 30)}
_LEAST, _MOST = 1 << 20, (1 << 31) - 1 << 10  # of maintenance_work_mem, in bytes


@index_app.command("create", epilog="Example: rag db index create --memory 2GB")
def index_create(
    ctx: typer.Context,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Drop an index that is there first.")] = False,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="maintenance_work_mem of the build, such as 2GB.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build the approximate index of the current embedding model and measure how much it finds.

    Searching and ingesting go on meanwhile. An interrupted build leaves nothing behind.
    """
    size = None if memory is None else parse_size("--memory", memory)
    service = _service(ctx)
    database, index = service.database, service.index
    rows = database.index_status(index).embeddings_current_config
    if not rows:
        raise RetrievalNotReady(
            f"Nothing is indexed for provider {index.provider}, model {index.model}.",
            hint="Run: rag ingest PATH_OF_THE_VAULT",
        )
    with database.index_session(index) as session:
        found = database.vector_index_status(index)
        if found is not None and found["is_valid"] and not rebuild:
            _print_created(found, None, as_json)
            return
        if size is not None:
            session.set_memory(size)
        if found is not None and found["is_valid"]:
            note("dropping the index that is there; searches are exact until the new one is complete")
        elif found is not None:
            note("dropping what an interrupted build left behind")
        database.forget_index_check(index)
        session.drop()
        _tell(rows, session.memory())
        begun = time.monotonic()
        with _shown_progress(database, index, rows):
            _create(session)
        seconds = time.monotonic() - begun
    try:
        _check(database, index, QUESTIONS)
    except BaseException:
        note("The index is complete; how much it finds was not measured: rag db index status --check")
        raise
    _print_created(database.vector_index_status(index), seconds, as_json)


@index_app.command("drop", epilog="Example: rag db index drop")
def index_drop(ctx: typer.Context) -> None:
    """Drop the approximate index; searches are exact again. Nothing is lost but the time of its build."""
    service = _service(ctx)
    with service.database.index_session(service.index) as session:
        found = service.database.vector_index_status(service.index)
        service.database.forget_index_check(service.index)
        session.drop()
    if found is None:
        print("there is no approximate index; searches are exact")
    else:
        print(f"dropped {found['index_name']}, {size_text(found['size_bytes'])}; searches are exact")


@index_app.command("status", epilog="Example: rag db index status --check --questions 300")
def index_status(
    ctx: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Measure again how much of the exact answer it finds.")
    ] = False,
    questions: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help=f"Stored vectors that --check looks up; default {QUESTIONS}."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the approximate index: its size, what it finds (recall), and how far a build is."""
    if questions is not None and not check:
        raise InvalidRequest("--questions is only for --check", hint="Add --check.")
    service = _service(ctx)
    database, index = service.database, service.index
    found = database.vector_index_status(index)
    if check and found is not None:
        if found["is_valid"]:
            _check(database, index, questions or QUESTIONS)
            found = database.vector_index_status(index)
        else:
            note("the index is not complete: there is nothing to measure yet")
    if found is None:
        print_json({"index": None}) if as_json else print(NONE)
        return
    progress = None if found["is_valid"] else database.index_progress(index)
    if as_json:
        print_json({"index": found, "progress": progress})
        return
    state = "complete" if found["is_valid"] else "being built" if progress else "not complete"
    print(f"index:    {found['index_name']}, {state}")
    if progress:
        print(f"build:    {progress['rows_done']} of {progress['rows_total']} vectors, {progress['phase']}")
    else:
        print(f"vectors:  {found['indexed_rows']}")
    print(f"size:     {size_text(found['size_bytes'])}")
    print(f"recall:   {recall_text(found)}")
    if found["warning"]:
        print(f"warning:  {found['warning']}")


def parse_size(option: str, given: str) -> str:
    """A size as Postgres takes it. Raises `InvalidRequest` naming option, value and an example."""
    match = re.fullmatch(r"([0-9]{1,15}) ?(kB|MB|GB)", given.strip(), re.IGNORECASE)
    if match is not None:
        unit, factor = _UNITS[match[2].lower()]
        if _LEAST <= int(match[1]) * factor <= _MOST:
            return f"{int(match[1])}{unit}"
    raise InvalidRequest(
        f"{option} must be a number with kB, MB or GB from 1MB to 2047GB, got {shown(given)!r}",
        hint=f"Example: rag db index create {option} 2GB",
    )


def size_text(size: int) -> str:
    """A number of bytes for people."""
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{math.ceil(size / 1024)} kB"


def recall_text(found: dict[str, Any]) -> str:
    """What was measured of an index, for people."""
    if found["recall"] is None:
        return "not measured; rag db index status --check does"
    return (
        f"{_share(found, 'recall')} of the {found['top_k']} nearest of stored vectors,"
        f" {_share(found, 'recall_between')} of points between two of them;"
        f" {found['questions']} of each, {found['checked_at'][:19]}"
    )


def _share(found: dict[str, Any], name: str) -> str:
    """A recall with its interval; the points between are missing where there is only one vector."""
    if found[name] is None:
        return "none"
    return f"{found[name]:.3f} ({found[f'{name}_low']:.3f} to {found[f'{name}_high']:.3f})"


def _service(ctx: typer.Context) -> Service:
    from pyrag.service import Service, open_database

    settings = configuration(ctx).settings
    return Service(settings, open_database(settings, note))


def _tell(rows: int, memory: int) -> None:
    """Says before a build what is worth knowing: that it is of no use yet, or that memory is short."""
    if rows < FEWEST:
        note(f"searches stay exact below about {FEWEST} vectors; there are {rows}")
    needed = rows * _BYTES_OF_A_ROW
    if needed > memory:
        mb = math.ceil(needed * 1.1 / (1 << 20) / 64) * 64
        given = f"{mb}MB" if mb < 4096 else f"{math.ceil(mb / 1024)}GB"
        note(
            f"the build of {rows} vectors needs about {size_text(needed)} of memory; maintenance_work_mem is"
            f" {size_text(memory)}, so it takes much longer. If the server has that much:"
            f" rag db index create --memory {given}"
        )


def _create(session: IndexSession) -> None:
    """Builds the index; a second time in one process where parallel workers find no shared memory."""
    try:
        _create_or_nothing(session)
    except DatabaseUnavailable as error:
        if not re.search(r"shared memory|/PostgreSQL\.\d", error.message):
            raise
        note(f"{error.message}\nbuilding again in one process, which takes longer")
        session.use_one_process()
        _create_or_nothing(session)


def _create_or_nothing(session: IndexSession) -> None:
    try:
        session.create()
    except BaseException:
        note("removing the unfinished index …")
        with suppress(PyragError):  # the connection is gone: the next build drops the rest
            session.drop()
        raise


def _check(database: Database, index: Index, questions: int) -> None:
    note(f"comparing up to {questions} stored vectors, and points between them, with the exact scan …")
    if not database.check_index_recall(index, questions, TOP_K):
        note("there are too few vectors to compare")


def _print_created(found: dict[str, Any] | None, seconds: float | None, as_json: bool) -> None:
    assert found is not None, "the index has vanished"
    if as_json:
        rounded = None if seconds is None else round(seconds, 1)
        print_json({"created": seconds is not None, "seconds": rounded, "index": found})
        return
    about = f"{found['indexed_rows']} vectors, {size_text(found['size_bytes'])}"
    if seconds is None:
        print(f"there is a complete index already: {found['index_name']}, {about}")
        note("To build it anew: rag db index create --rebuild")
    else:
        print(f"built {found['index_name']}: {about}, {seconds:.1f} s")
    print(f"recall: {recall_text(found)}")
    if found["warning"]:
        note(f"warning: {found['warning']}")


@contextmanager
def _shown_progress(database: Database, index: Index, rows: int) -> Iterator[None]:
    """A bar of the build while the block lasts; nothing off a terminal."""
    from pyrag.ingest import Silent
    from pyrag.progress import progress_bar

    with progress_bar() as progress:
        if isinstance(progress, Silent):
            yield
            return
        progress.planned(rows)
        ended = threading.Event()
        follower = threading.Thread(target=follow, args=(database, index, progress, ended), daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()


def follow(database: Database, index: Index, progress: Progress, ended: threading.Event) -> None:
    """Tells `progress` how far the build is, over a connection of its own, until `ended` is set."""
    from pyrag.db import Database

    watcher = Database(database.url, 1, embedded=database.embedded)
    done = waited = 0
    try:
        while not ended.wait(_POLL_SECONDS):
            state = watcher.index_progress(index)
            if state is None:
                continue
            more = min(state["rows_done"] or 0, state["rows_total"]) - done
            if more > 0:
                done += more
                progress.stored(more, more)
            waited = waited + 1 if state["phase"].startswith("waiting") else 0
            if waited == 4:
                note(f"{state['phase']}: another transaction has to end first")
    except PyragError:
        pass  # the build itself says what is wrong
    finally:
        watcher.close()
