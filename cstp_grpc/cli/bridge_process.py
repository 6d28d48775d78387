"""The bridge as a child process that is kept alive."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cstp_grpc import process
from cstp_grpc.config import join, reachable

logger = logging.getLogger(__name__)

START_SECONDS = 30.0
"""How long the bridge may take to listen."""
MAX_DEATHS = 5
"""How often the bridge may die within `WINDOW_SECONDS` and is started again."""
WINDOW_SECONDS = 300.0


class BridgeFailed(Exception):
    """The bridge cannot run; what it printed says why."""


@dataclass(frozen=True, slots=True)
class BridgeAddress:
    """Where a bridge listens."""

    url: str
    a2a_target: str
    """A2A over gRPC, `host:port`."""


class BridgeProcess:
    """A bridge to a server, started again when it dies.

    `port_file` is where it writes its address over HTTP; the one of A2A over gRPC is in a file beside it. It has
    `stop_seconds` to stop before it is ended. `secure` says that the bridge is configured to speak TLS. `environment`
    replaces that of this process.
    """

    def __init__(
        self,
        config_file: Path | None,
        port_file: Path,
        clock: Callable[[], float] = time.monotonic,
        stop_seconds: float = process.GRACE_SECONDS,
        *,
        secure: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._port_file = port_file
        self._a2a_port_file = port_file.with_name(f"{port_file.name}.a2a")
        self._arguments = ["--port-file", str(self._port_file), "--a2a-port-file", str(self._a2a_port_file)]
        if config_file:
            self._arguments += ["--config", str(config_file)]
        self._scheme = "https" if secure else "http"
        self._clock = clock
        self._stop_seconds = stop_seconds
        self._environment = environment
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._server: tuple[str, str] | None = None
        self._targets = -1
        self.child: process.Child | None = None
        """The process; None before the first start."""

    def prepare(self) -> None:
        """Start the process, which loads what it needs and then waits to be told its server."""
        reading, self._targets = os.pipe()
        arguments = ["--targets-fd", str(reading), *self._arguments]
        try:
            self.child = process.spawn("bridge", arguments, inherit=[reading], environment=self._environment)
        finally:
            os.close(reading)

    def start(self, target: str, announced: str = "") -> BridgeAddress:
        """Have it serve the server at `target` and return where it listens. Raises BridgeFailed.

        `announced` is how others reach the server, where that is another way.
        """
        # The files of another bridge are in use until the server has the data folder for itself.
        self._forget_ports()
        self._server = target, announced
        if self.child is None:
            self.prepare()
        assert self.child is not None
        # Whether it has ended meanwhile is seen below.
        with suppress(BrokenPipeError):
            os.write(self._targets, f"{target}\n{announced}\n".encode())
        self._close_targets()
        deadline = self._clock() + START_SECONDS
        while not self._port_file.exists():
            if self._ended(0.02):
                raise BridgeFailed(f"The bridge ended with code {self.child.exit_code()} before it listened.")
            if self._clock() > deadline:
                raise BridgeFailed(f"The bridge did not listen within {START_SECONDS:g} s.")
        # The file of A2A is written first.
        url = f"{self._scheme}://{read_address(self._port_file)}"
        return BridgeAddress(url, read_address(self._a2a_port_file))

    def revive(self) -> BridgeAddress | None:
        """Start it again if it has died, and return its address then. Raises BridgeFailed where it keeps dying."""
        if not self._ended(0):
            return None
        assert self.child is not None
        code = self.child.exit_code()
        logger.warning("the bridge ended with code %s and is started again", code)
        now = self._clock()
        if len(self._deaths) == MAX_DEATHS and now - self._deaths[0] < WINDOW_SECONDS:
            raise BridgeFailed(f"The bridge died {MAX_DEATHS + 1} times in a row, the last time with code {code}.")
        self._deaths.append(now)
        self.child.stop()
        self.child = None
        assert self._server is not None
        return self.start(*self._server)

    def stop(self) -> None:
        """Stop it and wait for its end."""
        self._close_targets()
        if self.child:
            self.child.stop(self._stop_seconds)
        if self._server:
            self._forget_ports()

    def _close_targets(self) -> None:
        if self._targets >= 0:
            os.close(self._targets)
            self._targets = -1

    def _forget_ports(self) -> None:
        for path in (self._port_file, self._a2a_port_file):
            path.unlink(missing_ok=True)

    def _ended(self, seconds: float) -> bool:
        """Whether it has ended, after waiting so long for that."""
        assert self.child is not None
        try:
            self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def read_address(port_file: Path) -> str:
    """Return the `host:port` of a port file, as one that can be called from here."""
    host, _, port = port_file.read_text(encoding="utf-8").strip().rpartition(":")
    return join(reachable(host.strip("[]")), int(port))
