"""Child processes that are restarted when they die, and the ports reserved for several of them."""

from __future__ import annotations

import json
import logging
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, TypeAlias

import click

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.platform import child_process
from cstp_grpc.platform.config import join_host_port

logger = logging.getLogger(__name__)


class PortReservationFailed(click.ClickException):
    """The port cannot be reserved; the message names the setting."""


class PortReservation:
    """A port on which several processes of this user can listen, and no other program.

    It is bound but never listened on, so that the kernel gives it no connections; `port` 0 chooses a free one.
    `setting` names it in errors. Raises PortReservationFailed.
    """

    def __init__(self, host: str, port: int, setting: str) -> None:
        self._sockets = ExitStack()
        self.port = port
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            with ExitStack() as opened:
                for family, kind, protocol, _, address in dict.fromkeys(addresses):
                    self._bind(opened, (family, kind, protocol), address)
                self._sockets = opened.pop_all()
        except OSError as error:
            where = join_host_port(host, port)
            raise PortReservationFailed(
                f"cannot listen on {where}: {error.strerror}; is the port taken? Set {setting} to another"
            ) from error

    def release(self) -> None:
        self._sockets.close()

    def _bind(self, opened: ExitStack, kind: tuple[int, int, int], address: tuple[Any, ...]) -> None:
        # With port 0 the first address chooses the port, and the others get the same one.
        address_to_bind = (address[0], self.port, *address[2:])
        # Without SO_REUSEPORT, which would succeed next to a listener of the same user: another CSTP on this port must
        # be an error, not share its connections.
        with open_socket(kind) as probe:
            probe.bind(address_to_bind)
        reserved = opened.enter_context(open_socket(kind))
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(address_to_bind)
        self.port = reserved.getsockname()[1]


def open_socket(kind: tuple[int, int, int]) -> socket.socket:
    """Return a socket that can bind a port with connections in TIME_WAIT; an IPv6 socket is for IPv6 only."""
    opened = socket.socket(*kind)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if opened.family == socket.AF_INET6:
        # Otherwise :: would take the port of 0.0.0.0 as well, which is bound separately.
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return opened


MAX_DEATHS = 5
"""Deaths within `WINDOW_SECONDS` after which a process is still restarted; at one more it is given up."""
WINDOW_SECONDS = 300.0
"""Chosen: five deaths in five minutes have a lasting cause, which restarts do not mend."""
FIRST_PAUSE = 0.5
"""Seconds before the second attempt to restart a process; the pause doubles with each failure."""

ReadinessReport: TypeAlias = Mapping[str, Any]
"""The report of a process that is ready to serve."""


class ChildProcessFailed(click.ClickException):
    """A child process cannot run; the message, or what the process printed, gives the reason."""


@dataclass(frozen=True, slots=True)
class ChildProgram:
    """The program of a supervised process: a module that reads its task from the descriptor `--task-fd`."""

    name: str
    """Its name at the beginning of a sentence, for instance `The bridge`."""
    module: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] | None = None
    """Its environment; None for that of this process."""
    inherit: Sequence[int] = ()
    """Descriptors that it keeps open."""
    start_seconds: float = 30.0
    """Seconds that it may take to become ready."""
    stop_seconds: float = child_process.GRACE_SECONDS
    """Seconds that it may take to stop before it is killed."""


@dataclass(frozen=True, slots=True)
class ChildRestarted:
    """A process died and was replaced by a new one."""

    program: ChildProgram
    report: ReadinessReport


RestartCallback = Callable[[ChildRestarted | ChildProcessFailed], None]
"""Receives the result of a restart; called on the thread that supervises the process."""


class SupervisedProcess:
    """A process that is prepared, given a task, and restarted with the same task when it dies."""

    def __init__(self, program: ChildProgram, clock: Callable[[], float] = time.monotonic) -> None:
        self.program = program
        self._clock = clock
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._task = b""
        self._channel: socket.socket | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        """Guards `child`, and `_channel` in `stop`. Held while a process is replaced, so that none is started after
        `stop`, but not while its report is awaited: `stop` ends that wait by shutting the channel down.
        """
        self._is_ready = False
        self._keeper: threading.Thread | None = None
        self.child: child_process.ChildProcess | None = None
        """The process; None before the first start."""

    def prepare(self) -> None:
        """Start the process, which loads its modules and then waits for its task."""
        self._is_ready = False
        ours, theirs = socket.socketpair()
        program = self.program
        try:
            self.child = child_process.spawn_module(
                program.module,
                ["--task-fd", str(theirs.fileno()), *program.arguments],
                inherit=[theirs.fileno(), *program.inherit],
                environment=program.environment,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            # The child has its own copy: once it ends, reading from our end returns.
            theirs.close()
        self._channel = ours

    def assign(self, task: bytes) -> None:
        """Send the process its task, after preparing it if needed."""
        self._task = task
        if self.child is None:
            self.prepare()
        assert self._channel is not None
        # A process that ended meanwhile is noticed when its report is read.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._channel.sendall(task)
            self._channel.shutdown(socket.SHUT_WR)

    def wait_until_ready(self) -> ReadinessReport:
        """Return the readiness report. Raises ChildProcessFailed, with the reason that the process gave if it did."""
        assert self._channel is not None
        assert self.child is not None
        try:
            # Without the lock, since `stop` takes it to end this very wait.
            line = read_line(self._channel, self.program.start_seconds)
        except TimeoutError:
            seconds = f"{self.program.start_seconds:g} s"
            raise ChildProcessFailed(f"{self.program.name} was not ready within {seconds}.") from None
        finally:
            self._close_channel()
        if not line:
            code = self.child.wait()
            raise ChildProcessFailed(f"{self.program.name} ended with code {code} before it was ready.")
        report: ReadinessReport = json.loads(line)
        if error := report.get("error"):
            raise ChildProcessFailed(str(error))
        self._is_ready = True
        return report

    def keep_alive(self, notify: RestartCallback) -> None:
        """Restart the process whenever it dies and notify; give up and notify if it keeps dying."""
        self._keeper = threading.Thread(
            target=self._restart_until_stopped, args=(notify,), name=self.program.name, daemon=True
        )
        self._keeper.start()

    def request_reload(self) -> None:
        """Send the process SIGHUP if it serves; one that does not yet will read its files anyway."""
        with self._lock:
            # Before it is ready it might have no handler yet, and the signal would end it.
            if self.child and self._is_ready:
                self.child.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """Stop the process and wait for it to exit."""
        self._stopping.set()
        with self._lock:
            if self._channel:
                # Wakes the thread that waits for a report. Not closed here: that thread still uses the descriptor,
                # whose number another file could get.
                with suppress(OSError):
                    self._channel.shutdown(socket.SHUT_RDWR)
            if self.child:
                self.child.stop(self.program.stop_seconds)
        if self._keeper:
            self._keeper.join()
        self._close_channel()

    def _restart_until_stopped(self, notify: RestartCallback) -> None:
        while True:
            assert self.child is not None
            code = self.child.wait()
            if self._stopping.is_set():
                return
            logger.warning("%s ended with code %s and is started again", self.program.name, code)
            try:
                report = self._restart(code)
            except ChildProcessFailed as error:
                notify(error)
                return
            if report is None:
                return
            notify(ChildRestarted(self.program, report))

    def _restart(self, code: int) -> ReadinessReport | None:
        """Restart the process and return its report, or None if stopped meanwhile. Raises ChildProcessFailed."""
        pause = 0.0
        while True:
            self._note_death(code)
            # The first attempt follows at once: most deaths have no lasting cause.
            if self._stopping.wait(pause) or not self._replace_child():
                return None
            try:
                return self.wait_until_ready()
            except ChildProcessFailed as error:
                if self._stopping.is_set():
                    return None
                logger.warning("%s could not be started again: %s", self.program.name, error)
                # It may hang rather than have ended.
                code = self._stop_child()
            pause = max(2 * pause, FIRST_PAUSE)

    def _replace_child(self) -> bool:
        """Start a process in place of the one that ended; return False if stopped meanwhile."""
        with self._lock:
            if self._stopping.is_set():
                return False
            assert self.child is not None
            self.child.stop()
            self.child = None
            self.assign(self._task)
            return True

    def _stop_child(self) -> int:
        """Stop a process that did not become ready, and return its exit code."""
        with self._lock:
            assert self.child is not None
            self.child.stop()
            return self.child.wait()

    def _note_death(self, code: int) -> None:
        """Record a death. Raises ChildProcessFailed after too many within the window."""
        # The deque keeps the latest MAX_DEATHS only, so that its first one is the oldest that counts.
        now = self._clock()
        if len(self._deaths) == MAX_DEATHS and now - self._deaths[0] < WINDOW_SECONDS:
            name = self.program.name
            raise ChildProcessFailed(f"{name} died {MAX_DEATHS + 1} times in a row, the last time with code {code}.")
        self._deaths.append(now)

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel:
            channel.close()


class ProcessGroup:
    """Processes of one kind that are started, kept alive and stopped together, and what they share."""

    processes: Sequence[SupervisedProcess]
    _opened: ExitStack

    def prepare(self) -> None:
        """Start the processes, which load their modules and then wait for their task."""
        for each in self.processes:
            each.prepare()

    def keep_alive(self, notify: RestartCallback) -> None:
        """Restart each process whenever it dies."""
        for each in self.processes:
            each.keep_alive(notify)

    def stop(self) -> None:
        """Stop all processes concurrently, let calls in progress drain, and wait for them to exit."""
        if self.processes:
            with ThreadPoolExecutor(len(self.processes)) as pool:
                # Going through the results raises the error of a stop that failed.
                list(pool.map(SupervisedProcess.stop, self.processes))
        self._opened.close()


def read_line(channel: socket.socket, seconds: float) -> bytes:
    """Return a line read from a socket, or empty if it is closed first. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    read = b""
    while not read.endswith(b"\n"):
        # A timeout of 0 would make the socket non-blocking.
        channel.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            part = channel.recv(65_536)
        except ConnectionResetError:
            part = b""
        if not part:
            return b""
        read += part
    return read
