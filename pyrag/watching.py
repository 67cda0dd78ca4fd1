"""Watching a vault: runs again after each change, and keeps going when database or vault are away."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from watchfiles import watch

from pyrag.errors import DatabaseUnavailable, InternalError, PyragError, VaultBusy

DEBOUNCE_MS = 1000  # changes that come within this time are one
LOOK_AGAIN_SECONDS = 600.0  # a full look from time to time, for what no event told of
_TICK_MS = 500  # how often is looked whether the folder is still the same one
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between two tries


def watch_vault(root: Path, run: Callable[[], None], note: Callable[[str], None]) -> None:
    """Calls `run` now and after each change below `root`, until Ctrl-C.

    A run that finds no database, or another run, is tried again until it works; any other error of a run is
    said by `note`, and the next change tries again. A folder that goes away is waited for. Raises
    `KeyboardInterrupt`, and `InternalError` where the system cannot watch the folder.
    """
    while True:
        folder = _identity(root)
        if folder is None:
            note(f"{root} is not there; waiting for it")
            while (folder := _identity(root)) is None:
                time.sleep(_FIRST_PAUSE)
        try:
            _watch_folder(root, folder, run, note)
        except FileNotFoundError:
            continue
        except BrokenPipeError:  # of what the run prints
            raise
        except OSError as error:
            raise InternalError(
                f"{root} cannot be watched: {error}",
                hint="Allow more (sysctl fs.inotify.max_user_watches), or run rag ingest from time to time.",
            ) from None


def _watch_folder(
    root: Path, folder: tuple[int, int], run: Callable[[], None], note: Callable[[str], None]
) -> None:
    """Returns when `root` is another folder or none: an old watch sees nothing of a new folder or mount."""
    due = 0.0
    changes = watch(
        root,
        watch_filter=lambda change, path: _counts(root, path),
        debounce=DEBOUNCE_MS,
        rust_timeout=_TICK_MS,
        yield_on_timeout=True,
        ignore_permission_denied=True,
    )
    with closing(changes):
        # the first run comes after the first tick: no change between run and watch is missed
        for changed in changes:
            if _identity(root) != folder:
                return
            if changed or time.monotonic() >= due:
                _until_done(run, note)
                due = time.monotonic() + LOOK_AGAIN_SECONDS


def _identity(root: Path) -> tuple[int, int] | None:
    """Which folder this is; None: there is none."""
    try:
        info = os.stat(root)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _until_done(run: Callable[[], None], note: Callable[[str], None]) -> None:
    pause = _FIRST_PAUSE
    said = ""
    while True:
        try:
            run()
        except (DatabaseUnavailable, VaultBusy) as error:
            if error.message != said:
                note(f"error [{error.code}]: {error.message}; trying again")
                said = error.message
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        except PyragError as error:
            note(f"error [{error.code}]: {error.message}")
            return
        except BrokenPipeError:
            raise
        except OSError as error:  # a fault of the system, such as a disk that cannot be read
            note(f"error: {error}")
            return
        else:
            if said:
                note("back in step")
            return


def _counts(root: Path, path: str) -> bool:
    """Notes, and what may be a folder; nothing whose name, or folder below the vault, begins with a dot."""
    below = path.removeprefix(str(root))
    if "/." in below:
        return False
    return below.lower().endswith(".md") or not os.path.isfile(path)
