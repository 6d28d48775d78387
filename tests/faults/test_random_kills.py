"""All processes of a service are killed at random under a mixed load: nothing acknowledged is lost."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from tests.cli.serving import ENVIRONMENT, READY, Process, bridge_of, started
from tests.cli.test_workers import WORKER, children
from tests.faults.load import MixedLoad
from tests.faults.serving import write_settings
from tests.test_kill import verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

logger = logging.getLogger(__name__)

KILLS = int(os.environ.get("CSTP_KILLS", "20"))
WORKERS = 2
KILLS_OF_ONE_LIFE = 4
"""How many children of a supervisor are killed before it is killed itself: one that dies too often stays dead."""


def victims(process: Process) -> dict[str, Callable[[], list[int]]]:
    """Return how to find the processes of each kind."""
    return {
        "worker": lambda: children(process, WORKER),
        "bridge": lambda: [bridge_of(process.popen.pid)],
    }


def test_nothing_acknowledged_is_lost_whichever_process_is_killed(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    targets: list[str] = []
    load = MixedLoad(lambda: targets[-1])
    kills = Counter[str]()
    command = ("serve", "--config", str(settings), "--workers", str(WORKERS))
    while kills.total() < KILLS:
        with started(*command, environment=ENVIRONMENT) as process:
            process.wait_for(READY)
            targets.append(process.value("gRPC"))
            with grpc.insecure_channel(targets[-1]) as channel:
                verify(channel, load.done)
            with load.running():
                for _ in range(KILLS_OF_ONE_LIFE):
                    load.wait_for_progress(5)
                    kind = random.choice(list(victims(process)))
                    found = victims(process)[kind]()
                    if found:
                        os.kill(random.choice(found), signal.SIGKILL)
                        kills[kind] += 1
                load.wait_for_progress(5)
                process.popen.kill()
                kills["supervisor"] += 1
    with started(*command, environment=ENVIRONMENT) as process:
        process.wait_for(READY)
        with grpc.insecure_channel(process.value("gRPC")) as channel:
            verify(channel, load.done)
    logger.info("%d kills: %s", kills.total(), dict(kills))
    load.assert_safe()
