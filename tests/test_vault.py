from __future__ import annotations

import hashlib
import inspect
import os
import shutil
import socket
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyrag import vault
from pyrag.errors import InvalidRequest
from pyrag.models import ManifestEntry
from pyrag.vault import NoteError, NoteGone, decode, read_note, resolve_vault, scan_vault

NOBODY = 65534


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Text of {name}\n", encoding="utf-8")


def paths(root: Path) -> list[str]:
    return [entry.relative_path for entry in scan_vault(root)]


def only(entries: list[ManifestEntry], path: str) -> ManifestEntry:
    (entry,) = [entry for entry in entries if entry.relative_path == path]
    return entry


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder.resolve()
    shutil.rmtree(folder)


@contextmanager
def ordinary_user() -> Iterator[None]:
    """File permissions do not stop root, so a test run as root acts as `nobody`."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_vault_path_is_absolute_with_home_and_symlinks_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vault").mkdir()
    (tmp_path / "alias").symlink_to("vault")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    expected = (tmp_path / "vault").resolve()
    for spelling in ("vault", "./vault/", "~/vault", "alias", tmp_path / "alias" / ".." / "vault"):
        assert resolve_vault(spelling) == expected


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("no/such/folder", "does not exist"),
        (__file__, "is a file, not a folder"),
        ("~no-such-user-here", "cannot be opened"),
        ("a\0b", "cannot be opened"),
    ],
)
def test_wrong_vault_path_is_refused_with_value_and_advice(path: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        resolve_vault(path)
    assert "folder" in caught.value.hint
    assert "vault_path" in caught.value.details
    caught.value.message.encode()


def test_vault_path_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    with pytest.raises(InvalidRequest, match="is not valid UTF-8") as caught:
        resolve_vault(folder)
    caught.value.message.encode()


def test_vault_path_that_leads_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InvalidRequest, match="cannot be opened"):
        resolve_vault(tmp_path / "loop")


def test_vault_without_permission_is_refused(open_folder: Path) -> None:
    (open_folder / "closed").mkdir(mode=0o000)
    with ordinary_user(), pytest.raises(InvalidRequest, match="may not be read by this user"):
        resolve_vault(open_folder / "closed")


def test_suffix_counts_in_any_case_and_dot_names_do_not_count(tmp_path: Path) -> None:
    write(
        tmp_path,
        "Upper.MD",
        "mixed.Md",
        "plain.md",
        "dir.with.dots/x.md",
        "folder.md/inner.md",
        ".obsidian/plugins/p/README.md",
        ".trash/old.md",
        ".git/x.md",
        ".hidden.md",
        ".md",
        "notes.md.bak",
        "image.png",
    )
    assert paths(tmp_path) == ["Upper.MD", "dir.with.dots/x.md", "folder.md/inner.md", "mixed.Md", "plain.md"]


def test_symlinks_are_not_followed_and_do_not_loop(tmp_path: Path) -> None:
    root, outside = tmp_path / "vault", tmp_path / "outside"
    write(root, "note.md", "sub/inner.md")
    write(outside, "secret.md")
    (root / "sub" / "loop").symlink_to("..")
    (root / "again").symlink_to(".")
    (root / "out").symlink_to("../outside")
    (root / "linked.md").symlink_to("../outside/secret.md")
    (root / "dangling.md").symlink_to("/nonexistent")
    assert paths(root) == ["note.md", "sub/inner.md"]
    warnings: list[tuple[str, str]] = []
    scan_vault(root, warn=lambda path, warning: warnings.append((path, warning)))
    assert warnings == [("dangling.md", "this symlink leads nowhere; left out")]


def test_entry_has_hash_size_time_and_path_on_disk(tmp_path: Path) -> None:
    data = "# 标题\r\n".encode()
    (tmp_path / "笔记.md").write_bytes(data)
    os.utime(tmp_path / "笔记.md", ns=(1, 1_700_000_000_123_456_789))
    (entry,) = scan_vault(tmp_path)
    assert entry == ManifestEntry(
        "笔记.md",
        str(tmp_path / "笔记.md"),
        hashlib.sha256(data).hexdigest(),
        1_700_000_000_123_456_789,
        len(data),
    )


def test_entries_are_in_code_point_order_of_the_path(tmp_path: Path) -> None:
    write(tmp_path, "b.md", "a/z.md", "a.md", "B.md", "ä.md", "a b.md")
    assert paths(tmp_path) == ["B.md", "a b.md", "a.md", "a/z.md", "b.md", "ä.md"]


def test_relative_path_is_nfc_and_file_path_is_as_on_disk(tmp_path: Path) -> None:
    raw = unicodedata.normalize("NFD", "Café/é.md")
    write(tmp_path, raw)
    (entry,) = scan_vault(tmp_path)
    assert entry.relative_path == unicodedata.normalize("NFC", raw)
    assert entry.file_path == f"{tmp_path}/{raw}"
    assert entry.error is None


def test_two_names_that_are_equal_in_nfc_give_one_note_and_one_error(tmp_path: Path) -> None:
    composed, decomposed = "é.md", unicodedata.normalize("NFD", "é.md")
    write(tmp_path, composed, decomposed)
    entries = scan_vault(tmp_path)
    assert only(entries, composed).error is None
    assert "rename" in (only(entries, decomposed).error or "")
    assert only(entries, decomposed).content_hash is None


def test_name_that_is_not_utf8_is_an_error_with_escapes(tmp_path: Path) -> None:
    write(tmp_path, "good.md")
    for name in (b"bad\xff.md", b"folder\xfe/note.md"):
        raw = os.path.join(os.fsencode(tmp_path), name)
        os.makedirs(os.path.dirname(raw), exist_ok=True)
        Path(os.fsdecode(raw)).write_text("x")
    entries = scan_vault(tmp_path)
    assert [entry.relative_path for entry in entries] == [r"bad\xff.md", r"folder\xfe/note.md", "good.md"]
    assert [bool(entry.error) for entry in entries] == [True, True, False]
    for entry in entries:
        entry.file_path.encode()


def test_file_that_cannot_be_read_is_an_error_and_the_rest_is_scanned(open_folder: Path) -> None:
    write(open_folder, "good.md", "closed.md")
    (open_folder / "closed.md").chmod(0o000)
    with ordinary_user():
        entries = scan_vault(open_folder)
    assert only(entries, "closed.md").error == "cannot be read: Permission denied"
    assert only(entries, "good.md").error is None


def test_folder_that_cannot_be_listed_is_an_error_with_a_slash(open_folder: Path) -> None:
    write(open_folder, "good.md", "closed/x.md")
    (open_folder / "closed").chmod(0o000)
    with ordinary_user():
        entries = scan_vault(open_folder)
    (open_folder / "closed").chmod(0o755)
    assert [entry.relative_path for entry in entries] == ["closed/", "good.md"]
    assert entries[0].error == "folder cannot be listed: Permission denied"


def test_root_that_cannot_be_listed_is_refused_rather_than_empty(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be listed"):
        scan_vault(tmp_path / "gone")


def test_file_that_vanishes_after_the_listing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.md", "b.md", "c.md")

    def vanishing(path: Path) -> tuple[bytes, os.stat_result]:
        if path.name == "b.md":
            path.unlink()
        return read_note(path)

    monkeypatch.setattr(vault, "read_note", vanishing)
    assert paths(tmp_path) == ["a.md", "c.md"]


def test_pipes_and_sockets_named_like_notes_are_never_opened(tmp_path: Path) -> None:
    write(tmp_path, "note.md")
    os.mkfifo(tmp_path / "pipe.md")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.md"))
        assert paths(tmp_path) == ["note.md"]
    with pytest.raises(NoteGone, match="not a regular file"):
        read_note(tmp_path / "pipe.md")


def test_reading_a_folder_a_link_or_nothing_is_a_note_that_is_gone(tmp_path: Path) -> None:
    write(tmp_path, "note.md")
    (tmp_path / "link.md").symlink_to("note.md")
    for path in (tmp_path, tmp_path / "none.md", tmp_path / "link.md", tmp_path / "note.md" / "x.md"):
        with pytest.raises(NoteGone):
            read_note(path)


def test_read_note_returns_all_bytes_of_a_large_file(tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    (tmp_path / "big.md").write_bytes(data)
    read, info = read_note(tmp_path / "big.md")
    assert read == data
    assert info.st_size == len(data)


def test_deep_folders_do_not_hit_the_recursion_limit(tmp_path: Path) -> None:
    deep = "/".join(["d"] * 300)
    (tmp_path / deep).mkdir(parents=True)
    (tmp_path / deep / "x.md").write_text("x")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)
    try:
        assert paths(tmp_path) == [f"{deep}/x.md"]
    finally:
        sys.setrecursionlimit(limit)


def test_progress_counts_files(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "b.md")
    seen: list[int] = []
    scan_vault(tmp_path, progress=seen.append)
    assert seen == [1, 2]


@pytest.mark.parametrize(
    "data",
    [
        "Grüße 你好\n".encode(),
        b"\xef\xbb\xbf" + "Grüße 你好\n".encode(),
        "Grüße 你好\n".encode("utf-16"),
        b"\xfe\xff" + "Grüße 你好\n".encode("utf-16-be"),
    ],
)
def test_utf8_and_utf16_with_mark_are_read_without_the_mark(data: bytes) -> None:
    assert decode(data) == "Grüße 你好\n"
    assert decode(data, "gb18030") == "Grüße 你好\n"


def test_one_bad_byte_is_an_error_that_names_place_and_way_out() -> None:
    with pytest.raises(NoteError) as caught:
        decode(b"Temperature 40\xb0C at the inlet.\n")
    assert "byte 0xB0 at offset 14" in str(caught.value)
    assert "UTF-8" in str(caught.value)


def test_named_encoding_reads_what_is_not_utf8() -> None:
    data = "温度很高".encode("gb18030")
    assert decode(data, "gb18030") == "温度很高"
    with pytest.raises(NoteError, match="neither UTF-8 nor ascii"):
        decode(data, "ascii")


@pytest.mark.parametrize("data", ["x".encode("utf-32"), b"\xff\xfea", b"\xff\xfe\x00\xd8\x00\xd8"])
def test_what_only_looks_like_utf16_is_an_error(data: bytes) -> None:
    with pytest.raises(NoteError, match="UTF-8"):
        decode(data)


def test_empty_file_is_empty_text() -> None:
    assert decode(b"") == ""


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_refused_unless_it_is_named(encoding: str) -> None:
    data = "# Hi 一七万\n".encode(encoding)
    with pytest.raises(NoteError, match="UTF-16 without a byte-order mark"):
        decode(data)
    assert decode(data, encoding) == "# Hi 一七万\n"
