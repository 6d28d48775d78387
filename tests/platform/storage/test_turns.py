"""Writing in turns with other processes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from cstp_grpc.contract.errors import Unavailable
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.locks import ProcessWriteLock
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.platform.storage.writer.jobs import TransactionCounter
from tests.waiting import wait_until

BOUND = 20.0

pytestmark = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)

HOLD = """
import sys
from pathlib import Path
from cstp_grpc.platform.storage.locks import ProcessWriteLock

with ProcessWriteLock(Path(sys.argv[1])):
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(database: Database) -> Path:
    return Path(str(database.engine.url.database))


@pytest.fixture
def turn(path: Path) -> Iterator[ProcessWriteLock]:
    """The turn of another process."""
    with closing(ProcessWriteLock(path)) as turn:
        yield turn


def someone_waits(path: Path) -> bool:
    """Whether a process waits for its turn."""
    descriptor = os.open(path.with_name(f"{path.name}.next"), os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def test_who_waits_comes_before_who_just_wrote(path: Path, turn: ProcessWriteLock) -> None:
    order: list[str] = []

    def write_once() -> None:
        with closing(ProcessWriteLock(path)) as own, own:
            order.append("other")

    with ThreadPoolExecutor() as others:
        with turn:
            other = others.submit(write_once)
            wait_until(lambda: someone_waits(path), "the other one waits")
            assert order == []
        with turn:
            order.append("first again")
        other.result(BOUND)
    assert order == ["other", "first again"]


def test_the_turn_of_a_process_ends_with_it(path: Path, turn: ProcessWriteLock) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder.stdin, holder.stdout, ThreadPoolExecutor() as others:
        assert holder.stdout.readline() == b"writing\n"
        entering = others.submit(turn.__enter__)
        wait_until(lambda: someone_waits(path), "the turn is waited for")
        assert not entering.done()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        entering.result(BOUND).__exit__(None, None, None)


def test_what_arrives_while_others_write_is_one_transaction(
    database: Database, path: Path, turn: ProcessWriteLock
) -> None:
    transactions = TransactionCounter()
    with closing(ProcessWriteLock(path)) as own, closing(GroupCommitWriter(database, BOUND, own)) as writer:
        with turn:
            first = writer.submit(transactions.counted(lambda _: 1))
            wait_until(lambda: someone_waits(path), "the writer waits for its turn")
            others = [writer.submit(transactions.counted(lambda _: 1)) for _ in range(4)]
        assert [each.result(BOUND) for each in (first, *others)] == [1] * 5
    assert transactions.count == 1


def test_a_process_that_went_silent_in_its_turn_holds_no_caller(
    database: Database, path: Path, turn: ProcessWriteLock
) -> None:
    with closing(ProcessWriteLock(path)) as own, closing(GroupCommitWriter(database, 0.05, own)) as writer:
        with turn, pytest.raises(Unavailable):
            writer.run(lambda _: None)
        assert writer.submit(lambda _: "again").result(BOUND) == "again"


def test_a_turn_that_cannot_be_had_fails_the_jobs_that_wait(database: Database, path: Path) -> None:
    own = ProcessWriteLock(path)
    with closing(GroupCommitWriter(database, BOUND, own)) as writer:
        own.close()
        with pytest.raises(Unavailable):
            writer.run(lambda _: None)
