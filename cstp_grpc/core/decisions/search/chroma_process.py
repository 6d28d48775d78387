"""Chroma servers: a child process, one shared with other processes of this host, or an external one."""

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

from cstp_grpc.core.decisions.search.ann_index import IndexCorrupted, IndexUnavailable
from cstp_grpc.core.decisions.search.chroma_index import COLLECTIONS, ChromaHttpClient
from cstp_grpc.platform.child_process import ChildProcess, spawn_module

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

WIPE_SECONDS = 60.0
"""Maximum seconds to remove a collection; Chroma deletes its files meanwhile."""

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
    """Return the seconds to wait after consecutive failures."""
    return min(FIRST_PAUSE * 2.0 ** min(failures, 30), LONGEST_PAUSE)


class ChromaServer(Protocol):
    """A Chroma server that the index supervisor can start and stop."""

    @property
    def private(self) -> bool:
        """Return True if it stores only our data, so that it may be wiped."""

    def start(self, stopping: threading.Event) -> str:
        """Start and return the URL once it responds. Raises IndexUnavailable, also if `stopping` is set."""

    def check(self) -> None:
        """Check that the process runs. Raises IndexUnavailable if it has ended."""

    def kill(self) -> None:
        """Kill the process at once, from any thread, so that requests waiting for it fail; `stop` follows."""

    def stop(self) -> bool:
        """Stop the process, and return True if it had crashed."""

    def wipe(self) -> None:
        """Remove its data if it is private; it must not be running. Raises IndexUnavailable."""


class ExternalChromaServer:
    """A Chroma server that is managed externally."""

    private = False

    def __init__(self, url: str) -> None:
        self._url = url

    def start(self, stopping: threading.Event) -> str:  # noqa: ARG002 (it never waits long)
        """Return the URL if the server responds. Raises IndexUnavailable."""
        with closing(ChromaHttpClient(self._url)) as http:
            http.heartbeat(HEARTBEAT_SECONDS)
        return self._url

    def check(self) -> None:
        """Do nothing: there is no process to check."""

    def kill(self) -> None:
        """Do nothing: there is no process to kill."""

    def stop(self) -> bool:
        """Do nothing: there is no process to stop."""
        return False

    def wipe(self) -> None:
        """Do nothing: collections of others may be on the server."""


class SharedChromaServer(ExternalChromaServer):
    """A Chroma server that our supervisor runs for several processes; its folder contains only our index."""

    private = True

    def wipe(self) -> None:
        """Remove all collections. Raises IndexUnavailable."""
        with closing(ChromaHttpClient(self._url)) as http:
            for found in http.call("GET", COLLECTIONS, None, HEARTBEAT_SECONDS) or []:
                http.call("DELETE", f"{COLLECTIONS}/{found['name']}", None, WIPE_SECONDS)


class ChildChromaServer:
    """A Chroma server in a child process on loopback, which always ends with this process.

    The child inherits a lock beside the folder, so that no two servers ever use one folder, which would lose vectors:
    as long as the child of a killed server still runs, a new one waits.
    """

    private = True

    def __init__(self, folder: Path, port: int | None = None) -> None:
        """Create a server on a folder, with the lock and the child's log beside it.

        With a `port`, only that one is used.
        """
        self._folder = folder
        self._port = port
        self._doomed = folder.with_name(f"{folder.name}.old")
        self._lock_path = folder.with_name(f"{folder.name}.lock")
        self._log_path = folder.with_name(f"{folder.name}.log")
        self._lock: int | None = None
        """The descriptor of the locked file while this process holds the folder."""
        self._child: ChildProcess | None = None
        self._url: str | None = None

    @property
    def url(self) -> str | None:
        return self._url

    @property
    def pid(self) -> int | None:
        """The child's process id; None if there is no child."""
        return self._child.pid if self._child else None

    def start(self, stopping: threading.Event) -> str:
        """Start the child, by default on a free port, and return its URL once it responds.

        Raises IndexUnavailable.
        """
        self._acquire_lock()
        # What `wipe` left behind if the process was killed in it.
        shutil.rmtree(self._doomed, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(1 if self._port else PORT_TRIES):
            port = self._port or find_free_port()
            self._child = self._spawn(port)
            url = f"http://{HOST}:{port}"
            if self._wait_until_ready(self._child, url, stopping):
                self._url = url
                return url
        raise IndexUnavailable("no port was free for the Chroma server")

    def check(self) -> None:
        """Check that the child runs. Raises IndexUnavailable if it has ended, IndexCorrupted if it crashed."""
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
            self._child = self._url = None
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

    def _acquire_lock(self) -> None:
        if self._lock is not None:
            return
        self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # `flock` and not `lockf`: the lock belongs to the open file, which the child inherits, and so outlives this
        # process if it is killed before its child.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise IndexUnavailable(f"{self._folder}: is in use by another process") from None
        self._lock = lock

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


def find_free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


CHECK_SECONDS = 0.2
"""Seconds between two checks of the child. Chosen: a check is one system call, and searches do without it meanwhile."""
SOUND_CHECKS = 300
"""Successful checks in a row, a minute, after which earlier failures no longer count."""


class ChromaKeeper:
    """Restarts a Chroma server when it dies, and removes its data if it cannot be opened.

    It does not check the content of the index; the worker that feeds it does.
    """

    def __init__(self, server: ChromaServer, check_seconds: float = CHECK_SECONDS) -> None:
        self._server = server
        self._check_seconds = check_seconds
        self._failures = 0
        self._wipe_first = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chroma", daemon=True)

    def start(self) -> None:
        """Start the thread, without waiting for the server to respond."""
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            was_ready = False
            try:
                if self._wipe_first:
                    self._server.wipe()
                self._server.start(self._stopping)
                was_ready, self._wipe_first = True, False
                self._watch()
            except IndexUnavailable as error:
                self._note_failure(error, crashed=self._server.stop(), was_ready=was_ready)
            except Exception:
                logger.exception("the Chroma server failed for an unforeseen reason")
                self._note_failure(IndexUnavailable("the log says why"), crashed=self._server.stop(), was_ready=True)
            self._stopping.wait(backoff_seconds(self._failures))
        self._server.stop()

    def _watch(self) -> None:
        """Wait until stopped. Raises IndexUnavailable when the server has ended."""
        checks = 0
        while not self._stopping.wait(self._check_seconds):
            self._server.check()
            checks += 1
            if checks == SOUND_CHECKS:
                self._failures = 0

    def _note_failure(self, error: IndexUnavailable, *, crashed: bool, was_ready: bool) -> None:
        self._failures += 1
        broken = crashed or isinstance(error, IndexCorrupted)
        self._wipe_first = self._wipe_first or (broken and (not was_ready or self._failures > 1))
        if not self._stopping.is_set():
            how = "started on an empty folder" if self._wipe_first else "started again"
            logger.warning("the Chroma server failed: %s; it is %s", error, how)
