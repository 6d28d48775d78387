"""Moving windows admit what the limiter of one process admits, and hold across processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from cstp_grpc.server.interceptors.rate_limits import (
    MovingWindows,
    create_shared_memory,
    machine_seconds,
    window_value_count,
)

RATE = parse("4/10 seconds")
START = 1_000_000.0

TAKE = """
import sys
from cstp_grpc.server.interceptors.rate_limits import MovingWindows, window_value_count

descriptor, most, tries = map(int, sys.argv[1:])
windows = MovingWindows(window_value_count(most), descriptor)
print("ready", flush=True)
sys.stdin.readline()
print(sum(windows.take(0, most, 3600) is None for _ in range(tries)), flush=True)
"""


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = create_shared_memory()
    yield descriptor
    os.close(descriptor)


@given(st.lists(st.tuples(st.floats(0, 6), st.integers(0, 1), st.integers(1, RATE.amount)), max_size=60))
def test_calls_are_admitted_as_by_the_limiter_of_one_process(calls: list[tuple[float, int, int]]) -> None:
    now = [START]
    descriptor = create_shared_memory()
    # Two servers in turn, with one window in the memory that they share.
    servers = [MovingWindows(window_value_count(RATE.amount), descriptor, clock=lambda: now[0]) for _ in range(2)]
    with patch("time.time", lambda: now[0]):
        limiter = MovingWindowRateLimiter(MemoryStorage())
        for pause, server, count in calls:
            now[0] += pause
            wait = servers[server].take(0, RATE.amount, RATE.get_expiry(), count)
            assert (wait is None) == limiter.hit(RATE, "agent", cost=count)
            if wait is not None and count == 1:
                assert now[0] + wait == pytest.approx(limiter.get_window_stats(RATE, "agent").reset_time)
    os.close(descriptor)


def test_windows_beside_each_other_count_by_themselves() -> None:
    windows = MovingWindows(2 * window_value_count(2))
    assert [windows.take(0, 2, 60) is None for _ in range(3)] == [True, True, False]
    assert [windows.take(window_value_count(2), 2, 60) is None for _ in range(3)] == [True, True, False]


def test_a_clock_that_is_set_keeps_nobody_out(memory: int) -> None:
    assert MovingWindows(window_value_count(1), memory).take(0, 1, 3600) is None
    later = MovingWindows(window_value_count(1), memory, clock=lambda: machine_seconds() + 3601)
    with patch("time.time", lambda: 0.0):
        assert later.take(0, 1, 3600) is None


def test_a_machine_that_has_just_started_admits_calls() -> None:
    windows = MovingWindows(window_value_count(1))
    with patch("time.monotonic", lambda: 1.0):
        assert windows.take(0, 1, 365 * 24 * 3600) is None


def start_process(descriptor: int, most: int, tries: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TAKE, str(descriptor), str(most), str(tries)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, pass_fds=(descriptor,))


def test_processes_that_call_at_once_get_together_what_the_limit_is(memory: int) -> None:
    processes = [start_process(memory, 1000, 900) for _ in range(3)]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    assert sum(int(process.communicate()[0]) for process in processes) == 1000


def test_a_process_that_dies_with_a_window_leaves_it_to_the_others(memory: int) -> None:
    holding = "import fcntl, sys; fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX, 1, 0); print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(memory)], stdin=pipe, stdout=pipe, pass_fds=(memory,)
    ) as holder:
        assert holder.stdout
        holder.stdout.readline()
        windows = MovingWindows(window_value_count(2), memory)
        # One that is stopped with it delays the others, and does not stop them.
        assert windows.take(0, 2, 60) is None
        holder.kill()
        holder.wait()
        assert windows.take(0, 2, 60) is None
        assert windows.take(0, 2, 60) is not None
