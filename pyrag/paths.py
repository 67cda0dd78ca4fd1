"""Where the files that travel with pyrag are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_path(name: str) -> Path:
    """The path of `db`, `samples` or `eval`, in a checkout or in an installed wheel."""
    checkout = _PACKAGE.parent / name
    if (_PACKAGE.parent / "pyproject.toml").is_file() and checkout.exists():
        return checkout
    return _PACKAGE / "_data" / name


def find_repository(start: Path) -> Path | None:
    """The first folder, from `start` upwards, that has both `pyproject.toml` and `.env.sample`."""
    for folder in (start, *start.parents):
        if (folder / "pyproject.toml").is_file() and (folder / ".env.sample").is_file():
            return folder
    return None
