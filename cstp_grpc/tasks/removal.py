"""Removing expired tasks while the server runs."""

from __future__ import annotations

import logging

from cstp_grpc.storage.periodic import Periodic
from cstp_grpc.tasks.keeper import REMOVAL_BATCH, TaskKeeper

logger = logging.getLogger(__name__)

REMOVAL_SECONDS = 60.0
"""How often expired tasks are looked for; nobody sees them any more, so nothing hurries."""


class TaskRemover:
    """Removes expired tasks in a thread, batch by batch, so that saves come in between."""

    def __init__(self, keeper: TaskKeeper, interval: float = REMOVAL_SECONDS) -> None:
        """Prepare to look for some every `interval` seconds."""
        self._keeper = keeper
        self._interval = interval
        self._removal = Periodic("task-removal", self._remove, interval, logger, "expired tasks are not removed")

    def start(self) -> None:
        """Begin."""
        self._removal.start()

    def stop(self) -> None:
        """End, and wait for a batch that is being removed."""
        self._removal.stop()

    def _remove(self) -> float:
        """Remove a batch; after a full one there may be more."""
        return 0.0 if self._keeper.remove_expired() == REMOVAL_BATCH else self._interval
