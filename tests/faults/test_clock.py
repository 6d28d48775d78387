"""A clock that is set forward and back while a server works: calls go on, and nothing acknowledged is lost."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from tests.faults.load import MixedLoad
from tests.faults.preloading import compile_preload
from tests.faults.serving import serving, write_settings
from tests.test_kill import SAMPLE, verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = [timedelta(hours=1), timedelta(hours=-2), timedelta(days=6), timedelta(days=-6), timedelta(0)]
"""Where the clock stands after each step, from the real time. No step forward ends a task at work."""


def test_a_clock_that_is_set_fails_no_call(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    shift = tmp_path / "shift"
    shift.write_bytes(struct.pack("q", 0))
    environment = {"LD_PRELOAD": str(compile_preload(tmp_path, "stepped_clock")), "CSTP_CLOCK_SHIFT": str(shift)}
    with serving(settings, environment=environment) as process:
        load = MixedLoad(lambda: process.value("gRPC"))
        with load.running():
            for step in STEPS:
                load.wait_for_progress()
                # In place: the server has mapped this very file.
                with shift.open("r+b") as file:
                    file.write(struct.pack("q", int(step.total_seconds())))
            # Others are told of recent intents alone; as many as are looked for shall be recent.
            load.wait_for_progress(3 * SAMPLE)
        assert load.failed.counts == {}
        with grpc.insecure_channel(process.value("gRPC")) as channel:
            verify(channel, load.done)
        assert process.end() == 0, process.rest()
    assert days_of_entries(tmp_path / "var" / "journal.db") >= {
        f"{datetime.now(UTC) + step:%Y-%m-%d}" for step in STEPS
    }
    with serving(settings) as process, grpc.insecure_channel(process.value("gRPC")) as channel:
        verify(channel, load.done)
    load.assert_safe()


def days_of_entries(database: Path) -> set[str]:
    """Return the days of the audit entries, which show that the server's clock was another."""
    with closing(sqlite3.connect(database)) as connection:
        return {day for (day,) in connection.execute("SELECT DISTINCT substr(timestamp, 1, 10) FROM audit_entries")}
