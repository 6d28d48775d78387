"""Where citations and notifications are kept: the Protocol that every driver fulfils."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection

from cstp_grpc.callbacks.model import Citation, Notification


class CallbackStore(Protocol):
    """Keeps what may have to be told, and what is to be.

    Everything belongs to the transaction of the connection it is given and raises SQLAlchemyError.
    """

    def hold(self, connection: Connection) -> None:
        """Keep the changes of other servers waiting until the transaction ends; see `WriteOrder`."""

    def cite(self, connection: Connection, citations: Sequence[Citation]) -> None:
        """Add citations; of one that is there, the address and the end are replaced, and what was told stays so."""

    def tell(self, connection: Connection, decision_id: str, at: datetime) -> Sequence[Citation]:
        """Return the citations of a decision whose end is after an instant and that were not told; now they are."""

    def untell(self, connection: Connection, notification: Notification) -> None:
        """Let the citation that a notification is about be one that was not told."""

    def remove_expired(self, connection: Connection, at: datetime, limit: int) -> int:
        """Remove up to `limit` citations whose end has come, and return how many."""

    def add(self, connection: Connection, notifications: Sequence[Notification]) -> None:
        """Add notifications."""

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next notification is due; None where there is none."""

    def take_due(self, connection: Connection, now: datetime, until: datetime, limit: int) -> Sequence[Notification]:
        """Return due notifications, the longest due first, and let them be due at `until`."""

    def put_off(self, connection: Connection, notification: Notification) -> None:
        """Write the attempts of a notification and when the next is due, unless it is gone."""

    def remove(self, connection: Connection, notification: Notification) -> bool:
        """Remove a notification and return whether it was there."""
