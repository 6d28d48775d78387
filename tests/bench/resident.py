"""The resident process of hooks, with the CPU time that it and its forks use."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cstp_grpc.cli.resident_client import resident_socket
from tests.bench.stack import clean_environment
from tests.waiting import wait_until

LOADING_SECONDS = 60
PROGRAM = """
import os, resource, signal, sys
from pathlib import Path
from cstp_grpc.cli import resident_process

def report(*_):
    os.wait()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    os.write(1, b"%f" % sum(each.ru_utime + each.ru_stime for each in used))

# The process lets the system bury its forks, which then counts their time for nobody.
os.register_at_fork(after_in_parent=lambda: signal.signal(signal.SIGCHLD, report))
resident_process.serve_hooks(Path(sys.argv[1]), resident_process.load_modules)
"""


class CountedResident:
    """A resident process that has answered a hook; one hook at a time may use it."""

    def __init__(self, process: subprocess.Popen[bytes], home: str) -> None:
        self.environment = {**clean_environment(), "HOME": home}
        """The environment in which hooks find it."""
        self._process = process
        self._spent = 0.0

    def take_cpu(self) -> float:
        """Return the CPU seconds of the process and its forks since the last call, once the next fork has ended."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], LOADING_SECONDS)[0]:
            raise RuntimeError("the hook was not answered by the resident process")
        before, self._spent = self._spent, float(os.read(self._process.stdout.fileno(), 100))
        return self._spent - before


@contextmanager
def counted_resident() -> Iterator[CountedResident]:
    """Run a resident process in a home of its own until the end of the block."""
    # Short, as the path of a socket must be.
    with tempfile.TemporaryDirectory() as home:
        path = Path(home, ".cache", "cstp", Path(resident_socket() or "").name)
        command = [sys.executable, "-c", PROGRAM, str(path)]
        environment = {**clean_environment(), "HOME": home}
        with subprocess.Popen(command, cwd="/", env=environment, stdout=subprocess.PIPE) as process:
            try:
                wait_until(path.exists, "the resident process", LOADING_SECONDS)
                yield CountedResident(process, home)
            finally:
                process.send_signal(signal.SIGKILL)
