"""Runs commands killed at their n-th step or after a time: `python -m tests.server.maintenance.killed_commands`.

Reads a line of JSON for each, and answers with how it ended. Commands are run in children that have everything
imported, so that a test can afford many.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence

import cstp_grpc.server.maintenance.journal_copy
import cstp_grpc.server.maintenance.restore  # noqa: F401 - so that the children need not import it
from cstp_grpc.cli.main import main

STEPS = frozenset(
    ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "sqlite3.connect/handle", "subprocess.Popen")
)
"""The events of Python's audit hooks before each of which a command may be killed."""


def run_command(arguments: Sequence[str], step: int | None, seconds: float | None) -> None:
    """Run a command in this process, which is killed before its step of that number or after so many seconds."""
    passed = 0

    def count_step(event: str, _: object) -> None:
        nonlocal passed
        if event in STEPS:
            passed += 1
            if passed == step:
                os.kill(os.getpid(), signal.SIGKILL)

    if step is not None:
        sys.addaudithook(count_step)
    if seconds is not None:
        # Without a handler the kernel ends the process at once, as by SIGKILL.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    main(arguments, prog_name="cstp")


def answer_requests() -> None:
    """Run what is asked for; answer with the exit code, or the negative number of the signal that ended it."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)
            run_command(request["arguments"], request.get("step"), request.get("seconds"))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    answer_requests()
