"""Removing old citations while the server runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from cstp_grpc.callbacks.store import CallbackStore
from cstp_grpc.storage.periodic import Periodic
from cstp_grpc.storage.writer import Writer

logger = logging.getLogger(__name__)

REMOVAL_BATCH = 100
"""Citations removed in one transaction at the most, so that announcements do not wait for long."""
REMOVAL_SECONDS = 300.0
"""How often old ones are looked for; they do nothing any more, so nothing hurries."""


class CitationRemover:
    """Removes citations in a thread whose end has come, batch by batch."""

    def __init__(
        self,
        store: CallbackStore,
        writer: Writer,
        clock: Callable[[], datetime],
        interval: float = REMOVAL_SECONDS,
    ) -> None:
        """Prepare to look for some every `interval` seconds."""
        self._store = store
        self._writer = writer
        self._clock = clock
        self._interval = interval
        self._removal = Periodic("citation-removal", self._remove, interval, logger, "old citations are not removed")

    def start(self) -> None:
        """Begin."""
        self._removal.start()

    def stop(self) -> None:
        """End, and wait for a batch that is being removed."""
        self._removal.stop()

    def _remove(self) -> float:
        """Remove a batch; after a full one there may be more."""
        now = self._clock()
        removed = self._writer.run(lambda connection: self._store.remove_expired(connection, now, REMOVAL_BATCH))
        return 0.0 if removed == REMOVAL_BATCH else self._interval
