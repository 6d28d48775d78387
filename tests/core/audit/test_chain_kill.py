"""A crash at any moment leaves chains that verify, with everything that was acknowledged."""

from __future__ import annotations

import random
import subprocess
import sys
import threading

import pytest

from cstp_grpc.platform.storage.database import open_database
from tests.core.audit.kit import verify
from tests.databases import POOL_SIZE
from tests.killing import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KILLS = 15
WRITERS = 2


def test_killed_writers_leave_whole_chains(database_url: str) -> None:
    acknowledged = 0
    database = open_database(database_url, POOL_SIZE)
    for kill in range(KILLS):
        command = [sys.executable, "-m", "tests.core.audit.endless_writer", database_url]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(WRITERS)]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        # The moment is random on purpose; nothing is waited for.
        threading.Event().wait(random.uniform(0.0, 0.3))
        for process in processes:
            process.kill()
        for process in processes:
            printed, _ = process.communicate()
            lines = [int(line) for line in printed.splitlines() if line]
            acknowledged += lines[-1] if lines else 5
        report = verify(database)
        assert report.findings == [], f"after {kill + 1} kills"
        assert report.entries >= acknowledged
    assert report.checkpoints > KILLS
    database.close()
