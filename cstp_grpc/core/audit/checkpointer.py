"""Signs checkpoints of the audit trail in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cstp_grpc.contract.errors import CstpError
from cstp_grpc.platform.storage.background_work import PeriodicTask
from cstp_grpc.platform.storage.writer import GroupCommitWriter

if TYPE_CHECKING:
    from cstp_grpc.core.audit.checkpoint_keys import SigningKeyFile
    from cstp_grpc.core.audit.sql_checkpoints import SqlCheckpointStore

logger = logging.getLogger(__name__)

NOT_SIGNED: Final = "the last entries of the audit trail are not in a checkpoint yet"


class Checkpointer(PeriodicTask):
    """Signs a checkpoint every `interval` seconds, when it is woken, and when it stops, if entries were added.

    `load_key` is called before the first of them, so that a server without entries needs no key.
    """

    def __init__(
        self,
        store: SqlCheckpointStore,
        writer: GroupCommitWriter,
        load_key: Callable[[], SigningKeyFile],
        clock: Callable[[], datetime],
        interval: float,
    ) -> None:
        self._store = store
        self._writer = writer
        self._load_key = load_key
        self._clock = clock
        self._key: SigningKeyFile | None = None
        self._is_due = False
        complaint = "the audit trail has no new checkpoint"
        super().__init__("audit-checkpoints", self._sign_regularly, interval, logger, complaint, delay=interval)

    def stop(self) -> None:
        """Stop, and sign the entries since the last checkpoint; log a failure."""
        super().stop()
        try:
            self.sign()
        except (CstpError, OSError) as error:
            logger.error("%s: %s", NOT_SIGNED, error.__cause__ or error)  # noqa: TRY400 - a full disk needs no traceback
        except Exception:
            logger.exception(NOT_SIGNED)

    def wake(self) -> None:
        """Sign soon."""
        self._is_due = True
        super().wake()

    def sign(self) -> None:
        """Sign a checkpoint if entries were added. Raises Unavailable, QueryFailed, and any error of the key's file."""
        if not self._store.has_unsigned():
            return
        key = self._key = self._key or self._load_key()
        # Reading all old entries takes seconds, so it is not done in a transaction that writes.
        unchained = self._store.digest_unchained() if self._store.last_time() is None else None
        self._writer.submit(
            lambda unit_of_work: self._store.add(unit_of_work, key, self._clock(), unchained), alone=True
        ).result()

    def _sign_regularly(self) -> float | None:
        is_due, self._is_due = self._is_due, False
        last = None if is_due else self._store.last_time()
        passed = None if last is None else (self._clock() - last).total_seconds()
        # Of several processes on one database, one signs for all of them.
        if passed is None or not 0 <= passed < self._interval:
            self.sign()
            return None
        return self._interval - passed
