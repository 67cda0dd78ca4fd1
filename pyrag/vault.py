"""Finding and reading the notes of a vault: canonical paths, hashes, decoding. No file is ever written."""

from __future__ import annotations

import codecs
import errno
import hashlib
import os
import stat
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyrag.errors import InvalidRequest
from pyrag.models import ManifestEntry

# A pipe named x.md must not be waited for, nor a link followed that took the place of a note.
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_READ_SIZE = 1 << 20
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_NO_NOTE_ANY_MORE = (*_GONE, errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ELOOP)


class NoteError(Exception):
    """A file cannot be read as text; the message says why and what to do, without the file's name."""


class NoteGone(Exception):
    """A note was listed, but is not there any more, or is no regular file any more."""


def resolve_vault(path: str | Path) -> Path:
    """The vault's canonical folder: `~` expanded, symlinks resolved, absolute.

    Raises `InvalidRequest` for an empty or missing path, a file, or a folder that cannot be listed.
    """
    if not str(path).strip():
        raise _bad_vault(path, "is empty")
    try:
        root = Path(path).expanduser().resolve(strict=True)
        str(root).encode()
        with os.scandir(root):
            pass
    except UnicodeEncodeError:
        raise _bad_vault(path, "is not valid UTF-8") from None
    except FileNotFoundError:
        raise _bad_vault(path, "does not exist") from None
    except NotADirectoryError:
        raise _bad_vault(path, "is a file, not a folder") from None
    except PermissionError:
        raise _bad_vault(path, "may not be read by this user") from None
    except (OSError, RuntimeError, ValueError) as error:  # ELOOP, unknown ~user, NUL in the path
        raise _bad_vault(path, f"cannot be opened ({getattr(error, 'strerror', None) or error})") from None
    return root


def _bad_vault(path: str | Path, why: str) -> InvalidRequest:
    shown = os.fsencode(str(path)).decode(errors="backslashreplace")
    return InvalidRequest(
        f"vault path {shown!r} {why}",
        hint="Give the folder that holds the notes (the one Obsidian opens as a vault).",
        details={"vault_path": shown},
    )


def scan_vault(
    root: Path,
    *,
    progress: Callable[[int], None] | None = None,
    warn: Callable[[str, str], None] = lambda path, warning: None,
) -> list[ManifestEntry]:
    """Every `.md` file below `root` (the value of `resolve_vault`), hashed, sorted by `relative_path`.

    The suffix counts in any case. Not looked at: dot files and dot folders, symlinks of any kind, and special
    files (Obsidian help, "Symbolic links and junctions": file links are unsupported, folder links must not
    lead back into a vault). A file that vanishes while the scan runs is left out. What cannot be read or
    listed is an entry with `error`. `progress` is called with the number of files read so far, `warn` with
    path and reason of a symlink that leads nowhere. Raises `InvalidRequest` when `root` itself cannot be
    listed: an empty answer would read as "all notes are gone".
    """
    found, entries = _walk(root, warn)
    for number, file in enumerate(found, start=1):
        entry = _hash(file)
        if entry is not None:
            entries.append(entry)
        if progress is not None:
            progress(number)
    return sorted(entries, key=lambda entry: entry.relative_path)


@dataclass(frozen=True, slots=True)
class _File:
    """A listed file: the name to open, the name to store, and what is wrong with the name."""

    raw: str
    path: str
    relative_path: str
    error: str | None = None


def _walk(root: Path, warn: Callable[[str, str], None]) -> tuple[list[_File], list[ManifestEntry]]:
    """The files to read, by raw name, and entries for the folders that could not be listed."""
    names: list[str] = []
    broken: list[ManifestEntry] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(root / folder) as listing:
                for item in listing:
                    kind = _kind(item, folder, warn)
                    if kind == "folder":
                        folders.append(f"{folder}{item.name}/")
                    elif kind == "note":
                        names.append(folder + item.name)
        except OSError as error:
            if not folder:
                raise _bad_vault(root, f"cannot be listed ({error.strerror})") from error
            if error.errno not in _GONE:
                why = f"folder cannot be listed: {error.strerror}"
                broken.append(ManifestEntry(_stored(folder), _shown(f"{root}/{folder}"), error=why))
    return _name(root, names), broken


def _kind(item: os.DirEntry[str], folder: str, warn: Callable[[str, str], None]) -> str | None:
    name = item.name
    if name.startswith("."):
        return None
    is_note = name.lower().endswith(".md")
    if item.is_symlink():
        if is_note and not os.path.exists(item.path):
            warn(_shown(folder + name), "this symlink leads nowhere; left out")
        return None
    if item.is_dir(follow_symlinks=False):
        return "folder"
    return "note" if is_note and item.is_file(follow_symlinks=False) else None


def _name(root: Path, names: list[str]) -> list[_File]:
    """Give each file its stored path: NFC, and only one file a path.

    Of two names that are equal in NFC the one already in NFC keeps the path, else the first in code point
    order; the others keep their raw spelling and carry an error.
    """
    names.sort()
    taken = {name: name for name in names if unicodedata.is_normalized("NFC", name)}
    files = []
    for name in names:
        path, stored = f"{root}/{name}", _stored(name)
        owner = taken.setdefault(stored, name)
        if stored != _nfc(name):
            files.append(_File(path, _shown(path), stored, "the name is not valid UTF-8; rename the file"))
        elif owner != name:
            why = f"the name equals that of {owner!r} in Unicode NFC; rename one"
            files.append(_File(path, path, name, why))
        else:
            files.append(_File(path, path, stored))
    return files


def _nfc(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _shown(name: str) -> str:
    """A file name with bytes that are not UTF-8 written as backslash escapes."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _stored(name: str) -> str:
    return _nfc(_shown(name))


def _hash(file: _File) -> ManifestEntry | None:
    """The manifest entry of a file, or None when it is gone or not a regular file any more."""
    if file.error is not None:
        return ManifestEntry(file.relative_path, file.path, error=file.error)
    try:
        data, info = read_note(Path(file.raw))
    except NoteGone:
        return None
    except OSError as error:
        return ManifestEntry(file.relative_path, file.path, error=f"cannot be read: {error.strerror}")
    return ManifestEntry(
        file.relative_path, file.path, hashlib.sha256(data).hexdigest(), info.st_mtime_ns, len(data)
    )


def read_note(path: Path) -> tuple[bytes, os.stat_result]:
    """The bytes of a regular file and the state of the very file they came from, in one read.

    Raises `NoteGone` when there is no such note, or a folder, link or pipe in its place; `OSError`.
    """
    try:
        return _read(path)
    except OSError as error:
        if error.errno in _NO_NOTE_ANY_MORE:
            raise NoteGone(str(error)) from None
        raise


def _read(path: Path) -> tuple[bytes, os.stat_result]:
    descriptor = os.open(path, _OPEN)
    try:
        info = os.fstat(descriptor)
        if stat.S_ISDIR(info.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        parts = []
        while part := os.read(descriptor, max(_READ_SIZE, info.st_size + 1)):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts), info


def decode(data: bytes, encoding: str | None = None) -> str:
    """The text of a note, without byte-order mark: UTF-8, or UTF-16 when the mark says so, else `encoding`.

    `encoding` names what the files are that are not UTF-8, such as `gb18030`; it is never guessed. Raises
    `NoteError` when the bytes are something else.
    """
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise NoteError("is UTF-32; save the file as UTF-8")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            return data.decode("utf-16")
        except UnicodeDecodeError as error:
            why = f"begins like UTF-16 but is not ({_where(error)})"
            raise NoteError(f"{why}; save the file as UTF-8") from None
    advice = "save it as UTF-8, or name its encoding, e.g. --encoding gb18030"
    if not _like_utf_16(data):
        try:
            return data.decode().removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            if encoding is None:
                raise NoteError(f"not UTF-8 ({_where(error)}); {advice}") from None
    elif encoding is None:
        raise NoteError("UTF-16 without a byte-order mark? save it as UTF-8, or say --encoding utf-16-le")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise NoteError(f"neither UTF-8 nor {encoding} ({_where(error)}); save the file as UTF-8") from None


def _like_utf_16(data: bytes) -> bool:
    """Whether every second byte is often zero, the others hardly: Latin in UTF-16 without a mark."""
    zeros = (data[::2].count(0), data[1::2].count(0))
    return len(data) % 2 == 0 and 4 * min(zeros) <= max(zeros) and max(zeros) >= max(2, len(data) / 8)


def _where(error: UnicodeDecodeError) -> str:
    return f"byte 0x{error.object[error.start]:02X} at offset {error.start}"
