"""Dumps of a PostgreSQL database by its own programs, pg_dump, pg_restore and psql, and their restores."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from psycopg import sql
from psycopg.conninfo import make_conninfo
from sqlalchemy import Connection, inspect, text

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.platform.storage.database import POSTGRESQL_ARGUMENTS, Database
from cstp_grpc.platform.storage.migration import MIGRATION_LOCK, read_revision
from cstp_grpc.platform.storage.sqlite_snapshot import SnapshotFailed, require_known_migration, sync_file

CHUNK_BYTES: Final = 1 << 20
"""How much of a dump is passed on at a time."""

NAMELESS: Final = frozenset({"password", "passfile", "application_name"})
"""Parameters of a connection that are not given to a program by its arguments."""

TRIGGER_FUNCTIONS: Final = text(
    "SELECT DISTINCT pg_trigger.tgfoid::regprocedure::text FROM pg_trigger "
    "JOIN pg_class ON pg_class.oid = pg_trigger.tgrelid "
    "WHERE NOT tgisinternal AND relnamespace = current_schema()::regnamespace AND relname = ANY(:tables) ORDER BY 1"
)

REFUSE_SERVERS: Final = f"""
DO $$ BEGIN
IF EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
           AND application_name = '{POSTGRESQL_ARGUMENTS["application_name"]}' AND pid <> %d)
THEN RAISE EXCEPTION 'servers are connected to the database; stop them first'; END IF;
END $$;
"""
"""Fails if servers of ours are connected, by a connection with another process id than the one given."""


@dataclass(frozen=True, slots=True)
class PostgresqlTools:
    """Runs the client programs of PostgreSQL on a database."""

    database: Database
    environment: Mapping[str, str]
    """The environment variables of the programs, without a password."""

    @contextmanager
    def run(
        self, name: str, arguments: Sequence[str], *, connects: bool = True, takes_input: bool = False
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program for the length of a block. Raises SnapshotFailed if it is missing or fails."""
        path = shutil.which(name)
        if path is None:
            raise SnapshotFailed(f"{name}: is not installed; it comes with the client programs of PostgreSQL")
        command, environment = [path, *arguments], dict(self.environment)
        if connects:
            # The password not as an argument, which every user of the machine could read.
            target, password = self._connection()
            command.insert(1, f"--dbname={target}")
            environment |= {"PGPASSWORD": password} if password else {}
        stdin = subprocess.PIPE if takes_input else subprocess.DEVNULL
        with tempfile.TemporaryFile() as complaints:
            with subprocess.Popen(
                command, stdin=stdin, stdout=subprocess.PIPE, stderr=complaints, env=environment
            ) as tool:
                try:
                    yield tool
                except BaseException:
                    tool.kill()
                    raise
            if tool.returncode != 0:
                complaints.seek(0)
                told = complaints.read().decode(errors="replace").strip()
                raise SnapshotFailed(f"{name}: {told or f'ended with code {tool.returncode}'}")

    def _connection(self) -> tuple[str, str | None]:
        url = self.database.engine.url
        parameters = url.translate_connect_args(username="user", database="dbname")
        parameters |= {name: value for name, value in url.query.items() if isinstance(value, str)}
        password = parameters.get("password")
        return make_conninfo(**{key: value for key, value in parameters.items() if key not in NAMELESS}), password


def write_postgresql_dump(
    tools: PostgresqlTools, target: Path, on_progress: Callable[[int], object]
) -> tuple[str, dict[str, int]]:
    """Dump one state of a database into a new file; return its migration, and the rows of each table.

    Raises SnapshotFailed, and SQLAlchemyError if the database does not respond.
    """
    with tools.database.with_repeatable_reads().engine.connect() as connection, connection.begin():
        migration = read_revision(connection)
        if migration is None:
            raise SnapshotFailed("storage.url: the database is not a journal of this program")
        # Counted and dumped in one state despite other writers: pg_dump takes over the snapshot of this connection.
        snapshot = connection.execute(text("SELECT pg_export_snapshot()")).scalar_one()
        rows = count_table_rows(connection)
        arguments = ["--format=custom", "--no-owner", "--no-privileges", f"--snapshot={snapshot}"]
        target.touch(mode=0o600, exist_ok=False)
        with target.open("wb") as output, tools.run("pg_dump", arguments) as tool:
            assert tool.stdout is not None
            while chunk := tool.stdout.read(CHUNK_BYTES):
                output.write(chunk)
                on_progress(len(chunk))
    sync_file(target)
    return migration, rows


def check_postgresql_dump(tools: PostgresqlTools, dump: Path, migration: str) -> None:
    """Check that pg_restore can read a dump and this version knows its migration. Raises SnapshotFailed."""
    require_known_migration(migration, dump)
    for _ in read_dump_script(tools, dump):
        pass


def restore_postgresql_dump(
    tools: PostgresqlTools,
    dump: Path,
    rows: Mapping[str, int],
    ours: AbstractSet[str],
    *,
    force: bool,
    on_progress: Callable[[int], object],
) -> None:
    """Replace the contents of a database by a dump, in one transaction that ends with counting all rows.

    `rows` are those of the tables in the dump, `ours` all tables of this version, which are replaced. Without `force`
    the database must be empty. Raises SnapshotFailed, and SQLAlchemyError if the database
    does not respond.
    """
    with tools.database.engine.connect() as connection:
        dropped = drop_statements(connection, rows.keys() | ours)
        schema, own_process = connection.execute(text("SELECT current_schema(), pg_backend_pid()")).one()
    if dropped and not force:
        raise SnapshotFailed("storage.url: the database is not empty; --force replaces what it contains")
    arguments = ["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--output=/dev/null", "--file=-"]
    # A broken pipe: psql has ended with an error, which is reported when it is waited for.
    with tools.run("psql", arguments, takes_input=True) as tool, suppress(BrokenPipeError):
        assert tool.stdin is not None
        with tool.stdin as script:
            # Servers that start meanwhile wait for this lock, and find the restored tables when they get it.
            lock = f"DO $$ BEGIN PERFORM pg_advisory_xact_lock({MIGRATION_LOCK}); END $$;"
            script.write("\n".join(["BEGIN;", lock, REFUSE_SERVERS % own_process, *dropped, ""]).encode())
            for chunk in read_dump_script(tools, dump):
                script.write(chunk)
                on_progress(len(chunk))
            # Whatever fails before this line, the connection ends without a commit, and nothing is replaced.
            script.write("\n".join([*check_statements(schema, rows), "COMMIT;\n"]).encode())


def count_table_rows(connection: Connection) -> dict[str, int]:
    quote = connection.dialect.identifier_preparer.quote
    return {
        table: connection.execute(text(f"SELECT count(*) FROM {quote(table)}")).scalar_one()  # noqa: S608 - quoted
        for table in sorted(inspect(connection).get_table_names())
    }


def drop_statements(connection: Connection, tables: AbstractSet[str]) -> list[str]:
    present = sorted(tables & set(inspect(connection).get_table_names()))
    functions = connection.execute(TRIGGER_FUNCTIONS, {"tables": present}).scalars().all()
    dropped = [sql.SQL("DROP TABLE {} CASCADE;").format(sql.Identifier(name)).as_string(None) for name in present]
    return [*dropped, *(f"DROP FUNCTION {name} CASCADE;" for name in functions)]


def check_statements(schema: str, rows: Mapping[str, int]) -> Iterator[str]:
    """Yield statements that fail unless each table has its number of rows, and give the journal a new name."""
    for table, count in rows.items():
        name = sql.Identifier(schema, table).as_string(None)
        told = sql.Literal(f"{table}: not {count} rows were restored").as_string(None)
        wrong = f"(SELECT count(*) FROM {name}) <> {count}"  # noqa: S608 - quoted
        yield f"DO $$ BEGIN IF {wrong} THEN RAISE EXCEPTION USING MESSAGE = {told}; END IF; END $$;"
    identity = sql.Identifier(schema, "journal_identity").as_string(None)
    # So that no revision of another database is taken for one of this.
    yield f"UPDATE {identity} SET id = substr(md5(gen_random_uuid()::text), 1, 12);"  # noqa: S608


def read_dump_script(tools: PostgresqlTools, dump: Path) -> Iterator[bytes]:
    """Yield the SQL of a dump. Raises SnapshotFailed if the dump is damaged."""
    arguments = ["--no-owner", "--no-privileges", "--file=-", str(dump)]
    with tools.run("pg_restore", arguments, connects=False) as tool:
        assert tool.stdout is not None
        while chunk := tool.stdout.read(CHUNK_BYTES):
            yield chunk
