"""Child processes that never outlive their parent.

A child holds the read end of a pipe whose write end only the parent has. When the parent ends, however it ends, the
kernel closes the pipe and the child stops itself. `python -P -m cstp_grpc.process FD MODULE ARG…` is how a child
starts. A child that waits to be told its task has a `TaskChannel` too.
"""

from __future__ import annotations

import gc
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
from typing import IO, Any, Final

logger = logging.getLogger(__name__)

PYTHON = (sys.executable, "-P", "-m")
"""What runs a module that is installed, never one of that name in the working folder."""

GRACE_SECONDS = 5.0
"""How long an orphaned child may take to stop by itself before it is ended."""


class Child:
    """A running child process."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int) -> None:
        self._process = process
        self._lifeline = lifeline

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended and return its exit code. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout)

    def kill(self) -> None:
        """End it at once, also if it is suspended."""
        self._process.kill()

    def stop(self, timeout: float = GRACE_SECONDS) -> None:
        """Ask it to stop, and end it after `timeout` seconds."""
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


def spawn(
    module: str,
    arguments: Sequence[str] = (),
    *,
    inherit: Sequence[int] = (),
    output: IO[bytes] | int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Child:
    """Start `python -m MODULE ARGUMENT…` as a child in a session of its own, so that Ctrl-C reaches the parent alone.

    `inherit` names file descriptors that the child keeps open, for instance a lock's; `output` takes what it prints;
    `environment` is the one of this process where none is given.
    """
    reading, writing = os.pipe()
    command = [*PYTHON, "cstp_grpc.process", str(reading), module, *arguments]
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
    return Child(process, writing)


USUAL_THRESHOLDS: Final = gc.get_threshold()
LOADING_THRESHOLD: Final = 100_000
"""How many objects are made between two collections; a start makes 130 000 that stay."""


class TaskChannel:
    """A child's end of a socket: by it the parent says what to do, and the child how that went, one line of JSON."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)

    def receive(self) -> bytes:
        """Wait for the task and return it; empty if the parent ended or stopped without one."""
        parts = []
        while part := self._socket.recv(65_536):
            parts.append(part)
        return b"".join(parts)

    def report(self, **facts: Any) -> None:
        """Tell the parent, which may have ended meanwhile; only the first report is read."""
        # A parent that has ended ends this process by the lifeline.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(json.dumps(facts).encode() + b"\n")
        self._socket.close()


def stop_with_parent(lifeline: int) -> None:
    """Block until the parent has ended, then stop this process."""
    while os.read(lifeline, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def spare_collections() -> None:
    """Have few garbage collections while a program loads; it calls `keep_what_is_loaded` when it is ready.

    Modules are not garbage, and looking for some among them again and again takes an eighth of the start.
    """
    gc.set_threshold(LOADING_THRESHOLD)


def keep_what_is_loaded() -> None:
    """Leave all present objects out of garbage collections, each of which would stop every thread for them."""
    gc.freeze()
    gc.set_threshold(*USUAL_THRESHOLDS)


def end_after(seconds: float) -> None:
    """End this process if it still runs after so many seconds, whatever it waits for."""
    timer = threading.Timer(seconds, _end_at_once, [seconds])
    timer.daemon = True
    timer.start()


def _end_at_once(seconds: float) -> None:
    # What was acknowledged is on disk, so that this loses nothing.
    names = ", ".join(sorted({thread.name for thread in threading.enumerate()} - {threading.current_thread().name}))
    logger.error("stopping took more than %g s, so the process ends as it is; its threads are %s", seconds, names)
    os._exit(1)


def main() -> None:
    """Run a module as the child of a parent that holds the other end of our pipe."""
    # A child ends with its parent, which decides what a hangup means.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    spare_collections()
    lifeline, module = int(sys.argv[1]), sys.argv[2]
    threading.Thread(target=stop_with_parent, args=(lifeline,), daemon=True, name="lifeline").start()
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
