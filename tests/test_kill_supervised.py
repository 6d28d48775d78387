"""Workers of one `cstp serve` are killed under load: nothing acknowledged is lost, and the service goes on."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import yaml

from tests.cli.serving import BOUND, ENVIRONMENT, READY, Process, started
from tests.cli.test_workers import WORKER, children
from tests.test_kill import TOKENS, Acknowledged, verify, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 5
"""One worker may die so often; if it does once more, everything stops."""
WORKERS = 3
WRITERS = 6
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "cstp.yaml"
    pillars = {"content": {"agent": "tester"}}
    wanted = {
        "data_dir": "var",
        "auth": {"tokens": TOKENS},
        # Loads sooner than all packs, at each of many starts.
        "cstp": {"guardrails": {"preset": "default"}},
        "rate_limits": {"enabled": False},
        "liaison": {"pillars": pillars},
    }
    path.write_text(yaml.safe_dump(wanted))
    return path


def serve(config: Path) -> Iterator[Process]:
    """Yield a running server."""
    command = ("serve", "--config", str(config), "--workers", str(WORKERS), "--no-bridge")
    with started(*command, environment=ENVIRONMENT) as process:
        process.wait_for(READY)
        yield process


def write_until(stopping: threading.Event, target: str, done: Acknowledged, lock: threading.Lock) -> int:
    """Write until asked to stop, over a new connection whenever one is lost, and return how many there were."""
    connections = 0
    while not stopping.is_set():
        connections += 1
        with grpc.insecure_channel(target, OWN_CONNECTION) as channel:
            grpc.channel_ready_future(channel).result(BOUND)
            write(channel, done, lock)
    return connections


def test_nothing_acknowledged_is_lost_when_workers_are_killed(config: Path) -> None:
    done, lock, stopping = Acknowledged(), threading.Lock(), threading.Event()
    for process in serve(config):
        target = process.value("gRPC")
        with ThreadPoolExecutor(WRITERS) as threads:
            writing = [threads.submit(write_until, stopping, target, done, lock) for _ in range(WRITERS)]
            try:
                for _ in range(KILLS):
                    # The moment is random on purpose; nothing is waited for.
                    threading.Event().wait(random.uniform(0.05, 1.0))
                    os.kill(random.choice(children(process, WORKER)), signal.SIGKILL)
                    process.wait_for("serves again")
                    assert not any(each.done() for each in writing)
            finally:
                stopping.set()
                process.popen.terminate()
        assert process.popen.wait(BOUND) == 0
        assert sum(each.result() for each in writing) >= WRITERS
    for process in serve(config):
        with grpc.insecure_channel(process.value("gRPC")) as channel:
            verify(channel, done)
        assert process.end() == 0
    assert len(done.decisions) > KILLS
