"""Brings the vectors and terms of old decisions up to date, in the background."""

from __future__ import annotations

import logging
import threading
import time

from cstp_grpc.decisions.journal import Journal
from cstp_grpc.decisions.store import DecisionStore
from cstp_grpc.errors import CstpError

logger = logging.getLogger(__name__)

REFRESH_BATCH = 16
"""Decisions refreshed in one transaction. Chosen: embedding them takes about as long as a few searches, after which
the thread pauses."""

REFRESH_PAUSE_SHARE = 1.0
"""The pause after a batch, as a share of the time that it took, so that calls get half of a core at least."""

RETRY_SECONDS = 60.0
"""Seconds until the next attempt after a failure."""


class PassageRefresher:
    """Makes the vectors and terms of decisions anew that were made by older rules; the old ones serve meanwhile.

    It works in a thread of low demand, batch by batch, and is done when none is left. What it did is kept if it is
    interrupted.
    """

    def __init__(self, store: DecisionStore, journal: Journal, model: str) -> None:
        self._store = store
        self._journal = journal
        self._model = model
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="passages", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for the batch in progress."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def refresh_all(self) -> int:
        """Refresh what is outdated until nothing is left or it is stopped; return how many decisions were refreshed.

        Raises QueryFailed and Unavailable.
        """
        count = 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            outdated = self._store.outdated_decisions(self._model, REFRESH_BATCH)
            if not outdated:
                break
            self._journal.refresh_passages(outdated)
            count += len(outdated)
            self._stopping.wait((time.monotonic() - begun) * REFRESH_PAUSE_SHARE)
        return count

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                count = self.refresh_all()
            except CstpError:
                logger.exception("passages could not be refreshed; the next attempt is in %d s", RETRY_SECONDS)
                self._stopping.wait(RETRY_SECONDS)
            else:
                if count:
                    logger.info("refreshed the passages of %d decisions", count)
                return
