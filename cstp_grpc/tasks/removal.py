"""Removing expired tasks while the server runs."""

from __future__ import annotations

import logging
import threading

from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.errors import Unavailable
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
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="task-removal", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for a batch that is being removed."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        failing = False
        pause = 0.0
        while not self._stopping.wait(pause):
            pause = self._interval
            try:
                if self._keeper.remove_expired() == REMOVAL_BATCH:
                    pause = 0.0
            except (Unavailable, SQLAlchemyError) as error:
                if not failing:
                    logger.warning("expired tasks are not removed: %s", error)
                failing = True
            else:
                failing = False
