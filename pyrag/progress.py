"""The progress bars of a run and of an evaluation: on stderr, and only when that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from pyrag.ingest import Progress, Silent

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar with files, chunks and chunks per second; silent off a terminal."""
    if not sys.stderr.isatty():
        yield Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    with RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[chunks]} chunks"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bars:
        yield _Bar(bars, bars.add_task("scanning", total=None, chunks=0, rate=""))


@contextmanager
def question_bar(total: int) -> Iterator[Callable[[], None]]:
    """A bar that the given function moves on by one question; off a terminal a line every 500 questions."""
    if not sys.stderr.isatty():
        numbers = count(1)
        yield lambda: _line_at(next(numbers), total)
        return
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    with RichProgress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("asking", total=total)
        yield lambda: bars.advance(task)


def _line_at(number: int, total: int) -> None:
    if number % 500 == 0 and number < total:
        print(f"asked {number} of {total} questions", file=sys.stderr, flush=True)


class _Bar:
    def __init__(self, bars: RichProgress, task: TaskID) -> None:
        self._bars = bars
        self._task = task
        self._chunks = 0

    def scanned(self, files: int) -> None:
        self._bars.update(self._task, completed=files)

    def planned(self, documents: int) -> None:
        self._bars.reset(self._task, description="storing", total=documents, chunks=0, rate="")

    def stored(self, documents: int, chunks: int) -> None:
        self._chunks += chunks
        seconds = self._bars.tasks[0].elapsed or 0.0
        rate = f"{self._chunks / seconds:.0f} chunks/s" if seconds > 0.5 else ""
        self._bars.update(self._task, advance=documents, chunks=self._chunks, rate=rate)
