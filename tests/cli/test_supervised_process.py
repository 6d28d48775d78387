"""A child process gets its task, reports, is started again when it dies, and is given up if it keeps dying."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cstp_grpc.cli.process_supervision import (
    MAX_DEATHS,
    WINDOW_SECONDS,
    ChildProcessFailed,
    ChildProgram,
    ChildRestarted,
    SupervisedProcess,
)
from tests.waiting import wait_until

BOUND = 60.0
CHILD = """
import pathlib, signal, sys
from cstp_grpc.platform.child_process import TaskChannel

channel = TaskChannel(int(sys.argv[2]))
task = channel.receive()
if not task:
    sys.exit(0)
if task == b"fail":
    sys.exit(7)
if task == b"wait":
    signal.pause()
refusal = pathlib.Path(sys.argv[3])
if refusal.exists():
    channel.report(error=refusal.read_text())
    sys.exit(1)
channel.report(task=task.decode())
signal.pause()
"""

Make = Callable[..., SupervisedProcess]


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def make(tmp_path: Path, now: list[float]) -> Iterator[Make]:
    """Return a factory of processes, which are stopped in the end."""
    (tmp_path / "supervised_child.py").write_text(CHILD)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    made: list[SupervisedProcess] = []

    def build(start_seconds: float = BOUND) -> SupervisedProcess:
        arguments = [str(tmp_path / "refusal")]
        program = ChildProgram("The child", "supervised_child", arguments, environment, start_seconds=start_seconds)
        made.append(SupervisedProcess(program, lambda: now[0]))
        return made[-1]

    yield build
    for each in made:
        each.stop()


def kill(process: SupervisedProcess) -> int:
    assert process.child
    pid = process.child.pid
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_task_is_answered_with_a_report(make: Make) -> None:
    process = make()
    process.assign(b"serve")
    assert process.wait_until_ready() == {"task": "serve"}
    process.stop()
    assert process.child
    assert process.child.exit_code() == -signal.SIGTERM


def test_one_that_is_stopped_without_a_task_ends_by_itself(make: Make) -> None:
    process = make()
    process.prepare()
    process.stop()
    assert process.child
    assert process.child.exit_code() in (0, -signal.SIGTERM)


def test_why_it_cannot_run_is_what_it_reports(make: Make, tmp_path: Path) -> None:
    (tmp_path / "refusal").write_text("the port is taken")
    process = make()
    process.assign(b"serve")
    with pytest.raises(ChildProcessFailed, match=r"^the port is taken$"):
        process.wait_until_ready()


def test_one_that_ends_without_a_report_is_named(make: Make) -> None:
    process = make()
    process.assign(b"fail")
    with pytest.raises(ChildProcessFailed, match="The child ended with code 7 before it was ready"):
        process.wait_until_ready()


def test_one_that_does_not_report_in_time_is_named(make: Make) -> None:
    process = make(start_seconds=0.05)
    process.assign(b"wait")
    with pytest.raises(ChildProcessFailed, match=r"The child was not ready within 0\.05 s"):
        process.wait_until_ready()


def test_it_gets_the_same_task_again_until_it_dies_too_often(make: Make, now: list[float]) -> None:
    process = make()
    process.assign(b"serve")
    process.wait_until_ready()
    events: queue.Queue[ChildRestarted | ChildProcessFailed] = queue.Queue()
    process.keep_alive(events.put)
    for _ in range(MAX_DEATHS):
        kill(process)
        restarted = events.get(timeout=BOUND)
        assert isinstance(restarted, ChildRestarted)
        assert restarted.report == {"task": "serve"}
    # Deaths of long ago do not count.
    now[0] = WINDOW_SECONDS + 1
    for _ in range(MAX_DEATHS):
        kill(process)
        assert isinstance(events.get(timeout=BOUND), ChildRestarted)
    kill(process)
    assert "died 6 times in a row, the last time with code -9" in str(events.get(timeout=BOUND))


def test_one_that_cannot_be_started_again_at_once_is_tried_again(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = make()
    process.assign(b"serve")
    process.wait_until_ready()
    events: queue.Queue[ChildRestarted | ChildProcessFailed] = queue.Queue()
    process.keep_alive(events.put)
    refusal = tmp_path / "refusal"
    refusal.write_text("not yet")
    kill(process)
    wait_until(lambda: "The child could not be started again: not yet" in caplog.text, "a start fails", BOUND)
    refusal.unlink()
    assert isinstance(events.get(timeout=BOUND), ChildRestarted)


def test_none_is_started_after_the_stop(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = make()
    process.assign(b"serve")
    process.wait_until_ready()
    events: queue.Queue[ChildRestarted | ChildProcessFailed] = queue.Queue()
    process.keep_alive(events.put)
    (tmp_path / "refusal").write_text("not yet")
    kill(process)
    wait_until(lambda: "could not be started again" in caplog.text, "a start fails", BOUND)
    process.stop()
    assert process.child
    assert process.child.exit_code() is not None
    assert events.empty()
