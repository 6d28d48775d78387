"""A child process that serves, and is started again when it dies."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from cstp_grpc import process

logger = logging.getLogger(__name__)

MAX_DEATHS = 5
"""How often a process may die within `WINDOW_SECONDS` and is started again."""
WINDOW_SECONDS = 300.0
FIRST_PAUSE = 0.5
"""Seconds before another attempt to start a process anew; the pause doubles with each failure."""

Report: TypeAlias = Mapping[str, Any]
"""What a process told when it was ready to serve."""


class ChildFailed(Exception):
    """A process cannot run; the message says why, or what it printed does."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a supervised process runs: a module that waits for its task on the descriptor after `--task-fd`."""

    name: str
    """How sentences call it at their beginning, for instance `The bridge`."""
    module: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] | None = None
    """Its environment; None for that of this process."""
    inherit: Sequence[int] = ()
    """Descriptors that it keeps open."""
    start_seconds: float = 30.0
    """How long it may take to be ready."""
    stop_seconds: float = process.GRACE_SECONDS
    """How long it may take to stop before it is ended."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """A process died and another one serves in its place."""

    program: Program
    report: Report


Notify = Callable[[Restarted | ChildFailed], None]
"""Takes what became of a process that had died; called on a thread of its own."""


class SupervisedProcess:
    """A process that is prepared, given a task, and started again with the same task when it dies."""

    def __init__(self, program: Program, clock: Callable[[], float] = time.monotonic) -> None:
        self.program = program
        self._clock = clock
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._task = b""
        self._channel: socket.socket | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        """Held while a process takes the place of another, so that none is started after `stop`."""
        self._keeper: threading.Thread | None = None
        self.child: process.Child | None = None
        """The process; None before the first start."""

    def prepare(self) -> None:
        """Start the process, which loads what it needs and then waits for its task."""
        ours, theirs = socket.socketpair()
        program = self.program
        try:
            self.child = process.spawn(
                program.module,
                ["--task-fd", str(theirs.fileno()), *program.arguments],
                inherit=[theirs.fileno(), *program.inherit],
                environment=program.environment,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = ours

    def assign(self, task: bytes) -> None:
        """Give the process its task; it is prepared first if it is not."""
        self._task = task
        if self.child is None:
            self.prepare()
        assert self._channel is not None
        # Whether it has ended meanwhile is seen when its report is read.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._channel.sendall(task)
            self._channel.shutdown(socket.SHUT_WR)

    def wait_until_ready(self) -> Report:
        """Wait for the report of the process. Raises ChildFailed, with the reason that the process gave if it did."""
        assert self._channel is not None
        assert self.child is not None
        try:
            line = read_line(self._channel, self.program.start_seconds)
        except TimeoutError:
            seconds = f"{self.program.start_seconds:g} s"
            raise ChildFailed(f"{self.program.name} was not ready within {seconds}.") from None
        finally:
            self._close_channel()
        if not line:
            code = self.child.wait()
            raise ChildFailed(f"{self.program.name} ended with code {code} before it was ready.")
        report: Report = json.loads(line)
        if error := report.get("error"):
            raise ChildFailed(str(error))
        return report

    def keep_alive(self, notify: Notify) -> None:
        """Start the process again whenever it dies, and tell so; give up if it keeps dying, and tell that."""
        self._keeper = threading.Thread(target=self._keep, args=(notify,), name=self.program.name, daemon=True)
        self._keeper.start()

    def stop(self) -> None:
        """Stop the process and wait for its end."""
        self._stopping.set()
        with self._lock:
            if self._channel:
                # Whoever waits for a report is woken; closing the socket would take it from under them.
                with suppress(OSError):
                    self._channel.shutdown(socket.SHUT_RDWR)
            if self.child:
                self.child.stop(self.program.stop_seconds)
        if self._keeper:
            self._keeper.join()
        self._close_channel()

    def _keep(self, notify: Notify) -> None:
        while True:
            assert self.child is not None
            code = self.child.wait()
            if self._stopping.is_set():
                return
            logger.warning("%s ended with code %s and is started again", self.program.name, code)
            try:
                report = self._replace(code)
            except ChildFailed as error:
                notify(error)
                return
            if report is None:
                return
            notify(Restarted(self.program, report))

    def _replace(self, code: int) -> Report | None:
        """Start another process and return its report; None if meanwhile it was asked to stop. Raises ChildFailed."""
        pause = 0.0
        while True:
            self._note_death(code)
            if self._stopping.wait(pause) or not self._exchange():
                return None
            try:
                return self.wait_until_ready()
            except ChildFailed as error:
                if self._stopping.is_set():
                    return None
                logger.warning("%s could not be started again: %s", self.program.name, error)
                code = self._end()
            pause = max(2 * pause, FIRST_PAUSE)

    def _exchange(self) -> bool:
        """Start another process in the place of the one that has ended; False if it was asked to stop."""
        with self._lock:
            if self._stopping.is_set():
                return False
            assert self.child is not None
            self.child.stop()
            self.child = None
            self.assign(self._task)
            return True

    def _end(self) -> int:
        """End a process that did not become ready, and return its exit code."""
        with self._lock:
            assert self.child is not None
            self.child.stop()
            return self.child.wait()

    def _note_death(self, code: int) -> None:
        """Take note of a death. Raises ChildFailed if there were too many of late."""
        now = self._clock()
        if len(self._deaths) == MAX_DEATHS and now - self._deaths[0] < WINDOW_SECONDS:
            name = self.program.name
            raise ChildFailed(f"{name} died {MAX_DEATHS + 1} times in a row, the last time with code {code}.")
        self._deaths.append(now)

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel:
            channel.close()


def stop_all(processes: Iterable[SupervisedProcess]) -> None:
    """Stop several processes at the same time and wait for their end."""
    found = list(processes)
    if not found:
        return
    with ThreadPoolExecutor(len(found)) as pool:
        for _ in pool.map(SupervisedProcess.stop, found):
            pass


def read_line(channel: socket.socket, seconds: float) -> bytes:
    """Return what arrives on a socket up to the end of the line; empty if it is closed before. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    read = b""
    while not read.endswith(b"\n"):
        channel.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            part = channel.recv(65_536)
        except ConnectionResetError:
            part = b""
        if not part:
            return b""
        read += part
    return read
