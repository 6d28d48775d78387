"""Of several processes on one SQLite file one is killed: nothing acknowledged is lost, and the others go on."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from cstp_grpc.gen.cstp.v1 import journal_pb2, journal_pb2_grpc
from cstp_grpc.server.interceptors.rate_limits import create_shared_memory
from tests.test_kill import TOKENS, Acknowledged, everything, verify, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 12
WORKERS = 3
WRITERS = 3
"""Threads that write, for each worker."""


class Worker:
    """A server process that can be started again and again."""

    def __init__(self, settings: Path, memory: int) -> None:
        self._settings = settings
        self._memory = memory
        self._process: subprocess.Popen[str] | None = None
        self.channel: grpc.Channel | None = None

    def start(self) -> grpc.Channel:
        command = [sys.executable, "-m", "tests.worker", str(self._settings), str(self._memory)]
        with self._settings.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, pass_fds=[self._memory]
            )
        assert self._process.stdout is not None
        self.channel = grpc.insecure_channel(f"127.0.0.1:{int(self._process.stdout.readline())}")
        grpc.channel_ready_future(self.channel).result(60)
        return self.channel

    def end(self, *, kill: bool) -> int:
        """End the process and return its exit code."""
        if self._process is None:
            return 0
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if kill:
            self._process.kill()
        with self._process.stdin, self._process.stdout:
            self._process.stdin.close()
            code = self._process.wait(60)
        self._process = None
        if self.channel is not None:
            self.channel.close()
        return code


@contextmanager
def ending(workers: list[Worker]) -> Iterator[None]:
    """Kill all workers after a block, so that those who write to them end."""
    try:
        yield
    finally:
        for worker in workers:
            worker.end(kill=True)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[Worker]]:
    wanted: dict[str, Any] = {
        "data_dir": str(tmp_path / "var"),
        "grpc": {"port": 0},
        "auth": {"tokens": TOKENS},
        "embedding": {"provider": "lexical"},
        "rate_limits": {"enabled": False},
        "liaison": {"pillars": {"content": {"agent": "tester"}}},
    }
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(wanted))
    memory = create_shared_memory()
    made = [Worker(settings, memory) for _ in range(WORKERS)]
    with ending(made):
        yield made
    os.close(memory)


def lacks_nothing(channel: grpc.Channel, decisions: dict[str, str]) -> bool:
    """Whether a server has decisions, while others go on to record more."""
    journal = journal_pb2_grpc.JournalServiceStub(channel)
    listed = everything(journal.ListDecisions, journal_pb2.ListDecisionsRequest(), "decisions")
    return decisions.items() <= {decision.id: decision.title for decision in listed}.items()


def test_nothing_acknowledged_is_lost_when_one_of_several_is_killed(workers: list[Worker]) -> None:
    done, lock = Acknowledged(), threading.Lock()
    with ThreadPoolExecutor(WORKERS * WRITERS * (KILLS + 1)) as threads, ending(workers):
        # All start at once on a folder that is empty.
        channels = list(threads.map(Worker.start, workers))
        writing = {
            worker: [threads.submit(write, channel, done, lock) for _ in range(WRITERS)]
            for worker, channel in zip(workers, channels, strict=True)
        }
        for _ in range(KILLS):
            victim = random.choice(workers)
            # The moment is random on purpose; nothing is waited for.
            threading.Event().wait(random.uniform(0.05, 1.0))
            victim.end(kill=True)
            for ended in writing.pop(victim):
                ended.result(60)
            # Whoever was killed in its turn to write keeps no other from writing.
            assert not any(each.done() for going_on in writing.values() for each in going_on)
            with lock:
                known = dict(done.decisions)
            channel = victim.start()
            assert lacks_nothing(channel, known)
            writing[victim] = [threads.submit(write, channel, done, lock) for _ in range(WRITERS)]
    for going_on in writing.values():
        for each in going_on:
            each.result(60)
    for worker in workers:
        verify(worker.start(), done)
    counts = {name: len(getattr(done, name)) for name in ("decisions", "intents", "checks", "tasks")}
    assert min(counts.values()) > KILLS, json.dumps(counts)
    assert [worker.end(kill=False) for worker in workers] == [0] * WORKERS
