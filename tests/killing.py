"""Servers that are killed while they are at work."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path

import grpc

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def server_process(module: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], grpc.Channel]]:
    """Run a module that prints the port of its server as a process, which is killed at the end."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            with grpc.insecure_channel(f"127.0.0.1:{int(process.stdout.readline())}") as channel:
                yield process, channel
        finally:
            process.kill()


def killed_at_work(work: Callable[[], object], workers: int, kill: Callable[[], object], latest: float = 1.0) -> None:
    """Kill a server within `latest` seconds of so many threads beginning to work with it, and wait for them to end."""
    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    # The moment is random on purpose; nothing is waited for.
    threading.Event().wait(random.uniform(0.05, latest))
    kill()
    for thread in threads:
        thread.join()


def count_kills(least: int, done: Sized) -> Iterator[int]:
    """Yield the numbers of kills: as many as wanted, and on a slow machine until as many things were done as well."""
    for number in itertools.count():
        if number >= least and len(done) > least:
            return
        yield number
