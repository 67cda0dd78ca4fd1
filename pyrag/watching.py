"""Watching a vault: runs again after each change, and keeps going when database or vault are away."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from watchfiles import Change, watch

from pyrag.errors import DatabaseUnavailable, InvalidRequest, PyragError, VaultBusy

DEBOUNCE_MS = 1000  # changes that come within this time are one
LOOK_AGAIN_MS = 600_000  # a full look from time to time, for what no event told of
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between two tries


def watch_vault(root: Path, run: Callable[[], None], note: Callable[[str], None]) -> None:
    """Calls `run` now and after each change below `root`, until Ctrl-C.

    A run that finds no database, another run, or no vault is tried again until it works; any other error of
    a run is said by `note`, and the next change tries again. Raises `KeyboardInterrupt`.
    """
    _until_done(run, note)
    while True:
        try:
            for _ in watch(
                root,
                watch_filter=_counts,
                debounce=DEBOUNCE_MS,
                rust_timeout=LOOK_AGAIN_MS,
                yield_on_timeout=True,
                ignore_permission_denied=True,
            ):
                _until_done(run, note)
        except FileNotFoundError:
            note(f"{root} is not there; waiting for it")
            while not root.is_dir():
                time.sleep(_FIRST_PAUSE)
            _until_done(run, note)


def _until_done(run: Callable[[], None], note: Callable[[str], None]) -> None:
    pause = _FIRST_PAUSE
    said = ""
    while True:
        try:
            run()
        except (DatabaseUnavailable, VaultBusy, InvalidRequest) as error:
            if error.message != said:
                note(f"error [{error.code}]: {error.message}; trying again")
                said = error.message
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        except PyragError as error:
            note(f"error [{error.code}]: {error.message}")
            return
        else:
            if said:
                note("back in step")
            return


def _counts(change: Change, path: str) -> bool:
    """Notes, and what may be a folder; nothing whose name or folder begins with a dot."""
    name = os.path.basename(path)
    if "/." in path:
        return False
    return name.lower().endswith(".md") or not os.path.isfile(path)
