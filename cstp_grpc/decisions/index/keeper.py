"""Keeping a Chroma server alive for other processes."""

from __future__ import annotations

import logging
import threading

from cstp_grpc.decisions.index import IndexBroken, IndexUnavailable
from cstp_grpc.decisions.index.servers import ChromaServer, pause_after

logger = logging.getLogger(__name__)

CHECK_SECONDS = 0.2
SOUND_CHECKS = 300
"""After so many checks in a row, a minute, earlier failures no longer count."""


class ChromaKeeper:
    """Starts a Chroma server again when it dies, and removes what it keeps if it cannot be opened.

    It knows nothing of what is in the index: the worker that feeds it judges that.
    """

    def __init__(self, server: ChromaServer, check_seconds: float = CHECK_SECONDS) -> None:
        self._server = server
        self._check_seconds = check_seconds
        self._failures = 0
        self._anew = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chroma", daemon=True)

    def start(self) -> None:
        """Begin, without waiting for the server to answer."""
        self._thread.start()

    def stop(self) -> None:
        """End the server."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            was_ready = False
            try:
                if self._anew:
                    self._server.wipe()
                self._server.start(self._stopping)
                was_ready, self._anew = True, False
                self._watch()
            except IndexUnavailable as error:
                self._note_failure(error, crashed=self._server.stop(), was_ready=was_ready)
            except Exception:
                logger.exception("the Chroma server failed for an unforeseen reason")
                self._note_failure(IndexUnavailable("the log says why"), crashed=self._server.stop(), was_ready=True)
            self._stopping.wait(pause_after(self._failures))
        self._server.stop()

    def _watch(self) -> None:
        """Return when asked to stop. Raises IndexUnavailable when the server has ended."""
        checks = 0
        while not self._stopping.wait(self._check_seconds):
            self._server.check()
            checks += 1
            if checks == SOUND_CHECKS:
                self._failures = 0

    def _note_failure(self, error: IndexUnavailable, *, crashed: bool, was_ready: bool) -> None:
        self._failures += 1
        broken = crashed or isinstance(error, IndexBroken)
        self._anew = self._anew or (broken and (not was_ready or self._failures > 1))
        if not self._stopping.is_set():
            how = "started on an empty folder" if self._anew else "started again"
            logger.warning("the Chroma server failed: %s; it is %s", error, how)
