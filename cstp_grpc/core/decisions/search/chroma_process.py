"""Chroma servers: a child process, that of another process of this host, or an external one."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import socket
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import IO

from cstp_grpc.core.decisions.search.ann_index import IndexCorrupted, IndexUnavailable
from cstp_grpc.core.decisions.search.chroma_index import ChromaHttpClient
from cstp_grpc.platform.child_process import ChildProcess, spawn_module
from cstp_grpc.platform.storage.locks import open_lock_file, try_file_lock

logger = logging.getLogger(__name__)

PROGRAM = "cstp_grpc.core.decisions.search.chroma_main"
HOST = "127.0.0.1"
"""Loopback only: Chroma has no authentication here."""
START_SECONDS = 60.0
"""Maximum seconds until the child answers. Chosen for a large index on a slow disk."""

FIRST_HEARTBEAT_SECONDS = 0.5
"""Seconds to wait for an answer of the child before checking again whether it still runs."""

HEARTBEAT_SECONDS = 5.0
"""Maximum seconds until an external server answers. Chosen: several times that of a busy server on a network."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 15.0
"""Seconds before a failed server is restarted; the pause doubles with each failure in a row. Chosen: the first failure
is hardly noticed, and a server that cannot start costs little."""

PORT_TRIES = 5
"""Attempts to find a free port: another process may take it between its choice and its use."""

MAX_LOG_BYTES = 1_000_000
"""A log larger than this is truncated at the next start of the child."""

ENDED_BY_OTHERS = {0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
"""Exit codes that do not indicate a broken folder: a clean exit, or a signal of people, supervisors and the OOM
killer."""


def backoff_seconds(failures: int) -> float:
    return min(FIRST_PAUSE * 2.0 ** min(failures, 30), LONGEST_PAUSE)


class ChromaServer:
    """A Chroma server that somebody else runs."""

    is_private = False
    """Whether it stores only our data, so that it may be wiped."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url
        """Where it responds; None while that is not known."""

    def start(self, stopping: threading.Event) -> str:  # noqa: ARG002 (it never waits long)
        """Start and return the URL once it responds. Raises IndexUnavailable, also if `stopping` is set."""
        url = self.url
        if url is None:
            raise IndexUnavailable("the Chroma server has not been started")
        with closing(ChromaHttpClient(url)) as http:
            http.heartbeat(HEARTBEAT_SECONDS)
        return url

    def check(self) -> None:
        """Check that a process of ours runs. Raises IndexUnavailable if it has ended, IndexCorrupted if it crashed."""

    def kill(self) -> None:
        """Kill a process of ours at once, from any thread, so that requests waiting for it fail; `stop` follows."""

    def stop(self) -> bool:
        """Stop a process of ours, and return True if it had crashed."""
        return False

    def wipe(self) -> None:
        """Remove the data if it is private; it must not be running. Raises IndexUnavailable."""


class SharedChromaServer(ChromaServer):
    """The child of another process of this host, whose URL is in the lock file next to the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._lock_path = lock_path(folder)

    def start(self, stopping: threading.Event) -> str:
        """Return the URL once it responds. Raises IndexUnavailable."""
        # Read each time, because the child gets another port when it is restarted.
        self.url = None
        with suppress(FileNotFoundError), self._lock_path.open(encoding="ascii") as file:
            # A URL without a held lock is that of a child that has ended.
            if not try_file_lock(file.fileno(), fcntl.LOCK_SH):
                self.url = file.read() or None
        return super().start(stopping)


class ChildChromaServer(ChromaServer):
    """A Chroma server in a child process on loopback, which always ends with this process.

    The child inherits a lock next to the folder, so that no two servers ever use one folder, which would lose vectors:
    as long as the child of a killed server still runs, a new one waits. The locked file contains the URL.
    """

    is_private = True

    def __init__(self, folder: Path) -> None:
        """Create a server on a folder, with the lock and the child's log next to it."""
        super().__init__()
        self._folder = folder
        self._doomed = folder.with_name(f"{folder.name}.old")
        self._lock_path = lock_path(folder)
        self._log_path = folder.with_name(f"{folder.name}.log")
        self._lock: int | None = None
        """The descriptor of the locked file while this process holds the folder."""
        self._child: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def start(self, stopping: threading.Event) -> str:
        """Start the child on a free port, and return its URL once it responds. Raises IndexUnavailable."""
        lock = self._acquire_lock()
        # Left behind if the process was killed in `wipe`.
        shutil.rmtree(self._doomed, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(PORT_TRIES):
            port = find_free_port()
            self._child = self._spawn(port)
            url = f"http://{HOST}:{port}"
            if self._wait_until_ready(self._child, url, stopping):
                self.url = url
                os.pwrite(lock, url.encode("ascii"), 0)
                return url
        raise IndexUnavailable("no port was free for the Chroma server")

    def check(self) -> None:
        code = self._child.exit_code() if self._child else 0
        if code is not None:
            raise exit_error(code)

    def kill(self) -> None:
        """Kill the child at once; a suspended one would ignore any other signal."""
        if (child := self._child) is not None:
            child.kill()

    def stop(self) -> bool:
        """Stop the child and release the lock; return True if the child had crashed."""
        crashed = False
        if self._child is not None:
            self._child.stop()
            crashed = self._child.exit_code() not in ENDED_BY_OTHERS
            self._child = self.url = None
        if self._lock is not None:
            # After the child has ended: it has a descriptor of the same open file, and keeps the lock until then.
            os.close(self._lock)
            self._lock = None
        return crashed

    def wipe(self) -> None:
        """Remove the folder. Raises IndexUnavailable."""
        self._acquire_lock()
        shutil.rmtree(self._doomed, ignore_errors=True)
        # Renamed first, which is atomic: killed during the removal, the process leaves no half folder that Chroma would
        # open. The next `start` or `wipe` removes the rest.
        if self._folder.exists():
            self._folder.rename(self._doomed)
        shutil.rmtree(self._doomed, ignore_errors=True)

    def _acquire_lock(self) -> int:
        if self._lock is not None:
            return self._lock
        self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open_lock_file(self._lock_path)
        # The lock belongs to the open file, which the child inherits, and so outlives this process if it is killed
        # before its child.
        if not try_file_lock(lock, fcntl.LOCK_EX):
            os.close(lock)
            raise IndexUnavailable(f"{self._folder}: is in use by another process")
        os.ftruncate(lock, 0)
        self._lock = lock
        return lock

    def _spawn(self, port: int) -> ChildProcess:
        assert self._lock is not None
        with self._open_log() as log:
            return spawn_module(PROGRAM, [str(self._folder.resolve()), str(port)], inherit=[self._lock], output=log)

    def _open_log(self) -> IO[bytes]:
        large = self._log_path.exists() and self._log_path.stat().st_size > MAX_LOG_BYTES
        return self._log_path.open("wb" if large else "ab")

    def _wait_until_ready(self, child: ChildProcess, url: str, stopping: threading.Event) -> bool:
        """Wait until the child responds; return False if its port was taken. Raises IndexUnavailable."""
        deadline = time.monotonic() + START_SECONDS
        with closing(ChromaHttpClient(url)) as http:
            while time.monotonic() < deadline:
                if stopping.is_set():
                    raise IndexUnavailable("the Chroma server is no longer wanted")
                code = child.exit_code()
                if code == 0:
                    # `chroma_main` says so: the port was taken.
                    return False
                if code is not None:
                    logger.warning("the Chroma server did not start; its log is %s", self._log_path)
                    raise exit_error(code)
                try:
                    http.heartbeat(FIRST_HEARTBEAT_SECONDS)
                except IndexUnavailable:
                    stopping.wait(0.01)
                else:
                    return True
        raise IndexUnavailable(f"the Chroma server did not answer within {START_SECONDS:g} seconds")


def exit_error(code: int) -> IndexUnavailable:
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    kind = IndexUnavailable if code in ENDED_BY_OTHERS else IndexCorrupted
    return kind(f"the Chroma server ended {how}")


def lock_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port
