"""Child processes that never outlive their parent.

A child holds the read end of a pipe whose write end only the parent has. When the parent ends, for any reason, the
kernel closes the pipe and the child stops itself. The command of a child is
`python -P -m cstp_grpc.platform.child_process FD MODULE ARG…`.
A child that receives its task from the parent also has a `TaskChannel`.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from cstp_grpc.common.garbage_collection import spare_modules_collection

logger = logging.getLogger(__name__)

PYTHON_COMMAND = (sys.executable, "-P", "-m")
"""The command that runs an installed module; -P keeps modules of that name in the working folder off the path."""

GRACE_SECONDS = 5.0
"""Seconds that an orphaned child may take to stop before it exits anyway. Chosen: a write in progress ends in less."""


class ChildProcess:
    """A running child process."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int) -> None:
        self._process = process
        self._lifeline = lifeline

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return its exit code, negative for a signal, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended and return its exit code. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout)

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it immediately, even if it is suspended."""
        self._process.kill()

    def stop(self, timeout: float = GRACE_SECONDS) -> None:
        """Terminate it, and kill it after `timeout` seconds."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def spawn_module(
    module: str,
    arguments: Sequence[str] = (),
    *,
    inherit: Sequence[int] = (),
    output: IO[bytes] | int | None = None,
    environment: Mapping[str, str] | None = None,
) -> ChildProcess:
    """Start `python -m MODULE ARGUMENT…` as a child in its own session, so that Ctrl-C reaches only the parent.

    `inherit` lists file descriptors that the child keeps open, for instance a lock's; `output` receives its output;
    `environment` defaults to that of this process.
    """
    # Only this child inherits the reading end (pass_fds). No child inherits the writing end, which Python opens with
    # O_CLOEXEC (PEP 446): a sibling that held it would keep the child alive after this process.
    reading, writing = os.pipe()
    command = [*PYTHON_COMMAND, "cstp_grpc.platform.child_process", str(reading), module, *arguments]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            pass_fds=(reading, *inherit),
            start_new_session=True,
            env=environment,
        )
    except OSError:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return ChildProcess(process, writing)


class TaskChannel:
    """A child's end of a socket: the parent sends the task, the child reports its result as one line of JSON."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)

    def receive(self) -> bytes:
        """Wait for the task and return it; empty if the parent closed the socket without sending one."""
        parts = []
        # The parent shuts down its sending half after the task, which ends the loop.
        while part := self._socket.recv(65_536):
            parts.append(part)
        return b"".join(parts)

    def report(self, **facts: Any) -> None:
        """Send a report to the parent, if it still runs; it reads only the first one."""
        # A parent that has ended ends this process by the lifeline.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(json.dumps(facts).encode() + b"\n")
        self._socket.close()


def stop_with_parent(lifeline: int) -> None:
    """Block until the parent has ended, then stop this process."""
    # Nothing is ever written: the read returns when the last writing end is closed, after kill -9 of the parent too.
    while os.read(lifeline, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    # This thread outlives a main thread that hangs in C code and handles no signal.
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def exit_after(seconds: float) -> None:
    """Exit this process after some seconds if it still runs, whatever it waits for."""
    timer = threading.Timer(seconds, _exit_now, [seconds])
    timer.daemon = True
    timer.start()


def _exit_now(seconds: float) -> None:
    # Acknowledged writes are on disk, so that leaving without clean-up loses nothing.
    names = ", ".join(sorted({thread.name for thread in threading.enumerate()} - {threading.current_thread().name}))
    logger.error("stopping took more than %g s, so the process ends as it is; its threads are %s", seconds, names)
    os._exit(1)


def main() -> None:
    """Run a module as the child of a parent that holds the other end of our pipe."""
    # A closed terminal must not end it before its parent, which decides what a hangup means.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    spare_modules_collection()
    lifeline, module = int(sys.argv[1]), sys.argv[2]
    threading.Thread(target=stop_with_parent, args=(lifeline,), daemon=True, name="lifeline").start()
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
