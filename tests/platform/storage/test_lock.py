"""One server for each data folder."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cstp_grpc.platform.storage.locks import AlreadyRunning, DataDirLock

HOLD = """
import sys
from pathlib import Path
from cstp_grpc.platform.storage.locks import DataDirLock
with DataDirLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


SHARE = HOLD.replace("DataDirLock(Path(sys.argv[1]))", "DataDirLock(Path(sys.argv[1]), shared=True)")


@contextmanager
def holding_process(program: str, data_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that holds a lock on a folder for the length of a block."""
    arguments = [sys.executable, "-c", program, str(data_dir)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def is_locked(data_dir: Path) -> bool:
    try:
        with DataDirLock(data_dir):
            return False
    except AlreadyRunning:
        return True


def test_the_folder_is_created_for_its_owner_alone(tmp_path: Path) -> None:
    data_dir = tmp_path / "var" / "cstp"
    with DataDirLock(data_dir):
        assert stat.S_IMODE(data_dir.stat().st_mode) == stat.S_IRWXU


def test_a_second_one_is_told_which_folder_is_in_use(tmp_path: Path) -> None:
    with DataDirLock(tmp_path), pytest.raises(AlreadyRunning, match=str(tmp_path)):
        DataDirLock(tmp_path).acquire()
    assert not is_locked(tmp_path)


def test_the_lock_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert is_locked(tmp_path)
        process.kill()
        process.wait()
        assert not is_locked(tmp_path)


def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    with holding_process(SHARE, tmp_path), DataDirLock(tmp_path, shared=True):
        pass


def test_a_process_that_wants_a_shared_folder_for_itself_waits_and_is_told_who_has_it(tmp_path: Path) -> None:
    with holding_process(SHARE, tmp_path) as process:
        with pytest.raises(AlreadyRunning, match=f"in use by the cstp process {process.pid}"):
            DataDirLock(tmp_path, wait_seconds=0.1).acquire()
        process.kill()
        with DataDirLock(tmp_path):
            pass


def test_a_process_that_would_share_a_folder_is_told_who_has_it_alone(tmp_path: Path) -> None:
    with holding_process(HOLD, tmp_path) as process:
        with pytest.raises(AlreadyRunning, match=f"in use by the cstp process {process.pid}"):
            DataDirLock(tmp_path, shared=True).acquire()
        process.kill()
        with DataDirLock(tmp_path, shared=True, wait_seconds=10):
            pass


def test_a_process_that_has_ended_is_not_named(tmp_path: Path) -> None:
    with holding_process(HOLD, tmp_path) as process:
        process.kill()
    lock = DataDirLock(tmp_path)
    lock.acquire()
    (tmp_path / "lock").write_text(str(process.pid))
    with pytest.raises(AlreadyRunning, match="in use by another cstp process"):
        DataDirLock(tmp_path).acquire()
    lock.release()


def test_a_child_that_inherits_the_lock_holds_it_too(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path)
    lock.acquire()
    child = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(child, stdin=subprocess.PIPE, pass_fds=(lock.fileno(),)) as process:
        lock.release()
        assert is_locked(tmp_path)
        process.kill()
        process.wait()
        assert not is_locked(tmp_path)


def test_a_child_that_does_not_inherit_the_lock_does_not_hold_it(tmp_path: Path) -> None:
    with DataDirLock(tmp_path):
        child = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
        process = subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert not is_locked(tmp_path)
        process.kill()
