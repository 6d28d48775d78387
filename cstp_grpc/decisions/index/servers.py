"""Where the Chroma server comes from: a child process of our own, or one that somebody else runs."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import socket
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import IO, Protocol

from cstp_grpc.decisions.index import IndexBroken, IndexUnavailable
from cstp_grpc.decisions.index.chroma_http import COLLECTIONS, ChromaHttp
from cstp_grpc.process import Child, spawn

logger = logging.getLogger(__name__)

PROGRAM = "cstp_grpc.decisions.index.chroma_server"
HOST = "127.0.0.1"
START_SECONDS = 60.0
"""How long the child may take until it answers."""

FIRST_HEARTBEAT_SECONDS = 0.5
"""How long to wait for the child's answer before looking whether it is still there."""

HEARTBEAT_SECONDS = 5.0
"""How long a server by URL may take to answer."""

WIPE_SECONDS = 60.0
"""How long the removal of a collection may take."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 15.0
"""Seconds before a server that failed is started again; the pause doubles with each failure in a row."""

PORT_TRIES = 5
"""How often a port may turn out to be taken between its choice and its use."""

MAX_LOG_BYTES = 1_000_000
"""A larger log is begun anew at the next start."""

ENDED_BY_OTHERS = {0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
"""Exit codes that say nothing against the folder."""


def pause_after(failures: int) -> float:
    """Return how many seconds to wait after so many failures in a row."""
    return min(FIRST_PAUSE * 2.0 ** min(failures, 30), LONGEST_PAUSE)


class ChromaServer(Protocol):
    """A Chroma server as the supervisor sees it."""

    @property
    def private(self) -> bool:
        """Whether nobody else keeps anything in it."""

    def start(self, stopping: threading.Event) -> str:
        """Return its URL once it answers. Raises IndexUnavailable, also as soon as `stopping` is set."""

    def check(self) -> None:
        """Raise IndexUnavailable where the process has ended."""

    def kill(self) -> None:
        """End at once what was started, from any thread, so that requests that wait for it fail; `stop` follows."""

    def stop(self) -> bool:
        """End what was started, and return whether it had crashed."""

    def wipe(self) -> None:
        """Remove what it keeps where it is private; it must not be running. Raises IndexUnavailable."""


class RemoteChroma:
    """A Chroma server that somebody else runs."""

    private = False

    def __init__(self, url: str) -> None:
        self._url = url

    def start(self, stopping: threading.Event) -> str:  # noqa: ARG002 (it never waits long)
        """Return the URL if the server answers there. Raises IndexUnavailable."""
        with closing(ChromaHttp(self._url)) as http:
            http.heartbeat(HEARTBEAT_SECONDS)
        return self._url

    def check(self) -> None:
        """There is no process to look at."""

    def kill(self) -> None:
        """There is nothing to end."""

    def stop(self) -> bool:
        """There is nothing to end."""
        return False

    def wipe(self) -> None:
        """Leave it alone; only our collection is ours."""


class SupervisedChroma(RemoteChroma):
    """The Chroma server that our supervisor keeps alive for us and others; its folder holds our index alone."""

    private = True

    def wipe(self) -> None:
        """Remove all collections. Raises IndexUnavailable."""
        with closing(ChromaHttp(self._url)) as http:
            for found in http.call("GET", COLLECTIONS, None, HEARTBEAT_SECONDS) or []:
                http.call("DELETE", f"{COLLECTIONS}/{found['name']}", None, WIPE_SECONDS)


class EmbeddedChroma:
    """A Chroma server in a child process on loopback, which ends with this process, however that ends.

    A lock beside the folder, which the child inherits, makes sure that no two servers ever use one folder, since that
    loses vectors: as long as a child of a server that was killed has not ended, a new one waits.
    """

    private = True

    def __init__(self, folder: Path, port: int | None = None) -> None:
        """Prepare to keep the index in a folder; the lock and the child's log lie beside it.

        With a `port` it is served there and nowhere else.
        """
        self._folder = folder
        self._port = port
        self._doomed = folder.with_name(f"{folder.name}.old")
        self._lock_path = folder.with_name(f"{folder.name}.lock")
        self._log_path = folder.with_name(f"{folder.name}.log")
        self._lock: int | None = None
        self._child: Child | None = None
        self._url: str | None = None

    @property
    def url(self) -> str | None:
        """Where the child answers; None before it does."""
        return self._url

    @property
    def pid(self) -> int | None:
        """The child's process id; None where there is no child."""
        return self._child.pid if self._child else None

    def start(self, stopping: threading.Event) -> str:
        """Start the child, on a free port if none is given, and return its URL once it answers.

        Raises IndexUnavailable.
        """
        self._acquire_lock()
        shutil.rmtree(self._doomed, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(1 if self._port else PORT_TRIES):
            port = self._port or free_port()
            self._child = self._spawn(port)
            url = f"http://{HOST}:{port}"
            if self._answers(self._child, url, stopping):
                self._url = url
                return url
        raise IndexUnavailable("no port was free for the Chroma server")

    def check(self) -> None:
        """Raise IndexUnavailable where the child has ended, IndexBroken where it crashed."""
        code = self._child.exit_code() if self._child else 0
        if code is not None:
            raise ended(code)

    def kill(self) -> None:
        """End the child at once; a suspended one would not hear anything else."""
        if (child := self._child) is not None:
            child.kill()

    def stop(self) -> bool:
        """End the child and give up the lock; return whether the child had crashed."""
        crashed = False
        if self._child is not None:
            self._child.stop()
            crashed = self._child.exit_code() not in ENDED_BY_OTHERS
            self._child = self._url = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        return crashed

    def wipe(self) -> None:
        """Remove the folder. Raises IndexUnavailable."""
        self._acquire_lock()
        shutil.rmtree(self._doomed, ignore_errors=True)
        # Renamed first, so that a crash meanwhile cannot leave half a folder in its place.
        if self._folder.exists():
            self._folder.rename(self._doomed)
        shutil.rmtree(self._doomed, ignore_errors=True)

    def _acquire_lock(self) -> None:
        if self._lock is not None:
            return
        self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise IndexUnavailable(f"{self._folder}: is in use by another process") from None
        self._lock = lock

    def _spawn(self, port: int) -> Child:
        assert self._lock is not None
        with self._open_log() as log:
            return spawn(PROGRAM, [str(self._folder.resolve()), str(port)], inherit=[self._lock], output=log)

    def _open_log(self) -> IO[bytes]:
        large = self._log_path.exists() and self._log_path.stat().st_size > MAX_LOG_BYTES
        return self._log_path.open("wb" if large else "ab")

    def _answers(self, child: Child, url: str, stopping: threading.Event) -> bool:
        """Wait until the child answers; False where its port was taken. Raises IndexUnavailable."""
        deadline = time.monotonic() + START_SECONDS
        with closing(ChromaHttp(url)) as http:
            while time.monotonic() < deadline:
                code = child.exit_code()
                if code == 0:
                    return False
                if code is not None:
                    logger.warning("the Chroma server did not start; its log is %s", self._log_path)
                    raise ended(code)
                try:
                    http.heartbeat(FIRST_HEARTBEAT_SECONDS)
                except IndexUnavailable:
                    if stopping.wait(0.01):
                        raise
                else:
                    return True
        raise IndexUnavailable(f"the Chroma server did not answer within {START_SECONDS:g} seconds")


def ended(code: int) -> IndexUnavailable:
    """Return the error for a child that ended."""
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    kind = IndexUnavailable if code in ENDED_BY_OTHERS else IndexBroken
    return kind(f"the Chroma server ended {how}")


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port
