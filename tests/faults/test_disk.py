"""A disk that is full, read-only, slow or cannot fsync: nothing acknowledged is lost, nothing forbidden allowed."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import pytest

from cstp_grpc.client import CstpClient
from tests.cli.serving import BOUND, ENVIRONMENT, Process, answers, started
from tests.faults.disks import DiskFault, FailingDisk, fill_up, mounted
from tests.faults.load import MixedLoad
from tests.faults.serving import serving, write_settings
from tests.test_kill import TOKEN, verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = 3
"""How often the disk fails in a test and works again."""


def verify_after_restart(settings: Path, load: MixedLoad) -> None:
    """Start the server again, on a disk that works, and assert that all is there."""
    with serving(settings) as process, grpc.insecure_channel(process.value("gRPC")) as channel:
        verify(channel, load.done)
    load.assert_safe()


@contextmanager
def loaded(process: Process) -> Iterator[MixedLoad]:
    """Run a load on a server, which has begun to write."""
    load = MixedLoad(lambda: process.value("gRPC"))
    with load.running():
        load.wait_for_progress()
        yield load


@pytest.mark.parametrize("fault", [DiskFault.FULL, DiskFault.READ_ONLY, DiskFault.FAILING_FSYNC])
def test_a_disk_that_fails_loses_nothing_and_is_used_again(tmp_path: Path, fault: DiskFault) -> None:
    settings = write_settings(tmp_path)
    disk = FailingDisk(tmp_path, tmp_path / "var")
    with serving(settings, environment=disk.environment) as process, loaded(process) as load:
        for _ in range(ROUNDS):
            with disk.failing(fault):
                load.wait_for_failures()
            load.wait_for_progress()
            assert answers(process.value("gRPC"))
        # Killed in the middle of a fault.
        with disk.failing(fault):
            load.wait_for_failures()
            process.popen.kill()
            load.wait_for_failures()
    verify_after_restart(settings, load)


def test_a_slow_disk_fails_no_call(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    disk = FailingDisk(tmp_path, tmp_path / "var")
    with serving(settings, environment=disk.environment) as process:
        with loaded(process) as load, disk.failing(DiskFault.SLOW_FSYNC):
            load.wait_for_progress(8)
        assert load.failed.counts.total() == 0
        assert process.end() == 0
    verify_after_restart(settings, load)


def test_a_file_system_without_room_loses_nothing_and_is_used_again(tmp_path: Path) -> None:
    with mounted(tmp_path / "var", "-t", "tmpfs", "-o", "size=24m", "tmpfs") as folder:
        settings = write_settings(tmp_path)
        with serving(settings) as process:
            with loaded(process) as load:
                for _ in range(ROUNDS):
                    ballast = fill_up(folder)
                    load.wait_for_failures()
                    ballast.unlink()
                    load.wait_for_progress()
            assert process.end() == 0
        verify_after_restart(settings, load)


@pytest.mark.parametrize("is_prepared", [False, True], ids=["empty", "prepared"])
def test_a_server_does_not_start_where_it_could_not_write(tmp_path: Path, is_prepared: bool) -> None:
    settings = write_settings(tmp_path)
    folder = tmp_path / "var"
    if is_prepared:
        with serving(settings) as process:
            assert process.end() == 0
    folder.mkdir(exist_ok=True)
    with mounted(folder, "--bind", str(folder)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        assert refusal(settings) == f"Error: {folder / 'lock'}: Read-only file system"
    with mounted(folder, "-t", "tmpfs", "-o", "size=64k", "tmpfs"):
        assert refusal(settings) == "Error: storage.url: the database cannot be used: database or disk is full"


def test_a_server_that_cannot_write_what_it_must_at_its_start_says_so_in_one_line(tmp_path: Path) -> None:
    with mounted(tmp_path / "var", "-t", "tmpfs", "-o", "size=24m", "tmpfs") as folder:
        settings = write_settings(tmp_path)
        with serving(settings) as process:
            with CstpClient(process.value("gRPC"), TOKEN) as client:
                for number in range(300):
                    client.record_decision(f"Decision {number} about something" * 10)
            assert process.end() == 0
        with closing(sqlite3.connect(folder / "journal.db")) as journal, journal:
            # As after a change of the model: they are made when the server starts.
            journal.execute("DELETE FROM decision_vectors")
        ballast = fill_up(folder)
        # For the lock and the index of SQLite's log.
        os.truncate(ballast, ballast.stat().st_size - 64 * 1024)
        with started("serve", "--config", str(settings), "--no-bridge", environment=ENVIRONMENT) as process:
            assert process.popen.wait(BOUND) == 1
            stated = "Error: storage.url: the database cannot be used: database or disk is full"
            lines = list(iter(process.lines.get, ""))
        assert lines[-1].strip() == stated
        assert not [line for line in lines if line.startswith(("Traceback", "  File"))]


def refusal(settings: Path) -> str:
    """Return the last line of a server that does not start."""
    with started("serve", "--config", str(settings), "--no-bridge", environment=ENVIRONMENT) as process:
        assert process.popen.wait(BOUND) == 1
        return process.wait_for("Error: ").strip()
