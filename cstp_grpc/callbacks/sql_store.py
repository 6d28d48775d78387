"""Citations and notifications in an SQL database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, insert, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from cstp_grpc.callbacks.model import Citation, Kind, Notification
from cstp_grpc.storage.driver_statement import DriverStatement
from cstp_grpc.storage.order import WriteOrder
from cstp_grpc.storage.tables import callbacks, citations

cited = citations.c
waiting = callbacks.c
KEY = (cited.decision_id, cited.agent, cited.correlation_id)
NEXT_DUE = select(waiting.next_attempt_at).order_by(waiting.next_attempt_at).limit(1)


class SqlCallbackStore:
    """Keeps citations and notifications in the tables `citations` and `callbacks`; fulfils `CallbackStore`."""

    def __init__(self, engine: Engine) -> None:
        insertion = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
        added = insertion(citations)
        self._cite = added.on_conflict_do_update(
            index_elements=KEY, set_={"url": added.excluded.url, "expires_at": added.excluded.expires_at}
        )
        self._next_due = DriverStatement(NEXT_DUE, engine.dialect)
        self._order = WriteOrder(engine)

    def hold(self, connection: Connection) -> None:
        """Keep the changes of other servers waiting until the transaction ends; see `WriteOrder`."""
        self._order.hold(connection)

    def cite(self, connection: Connection, citations: Sequence[Citation]) -> None:
        """Add citations; of one that is there, the address and the end are replaced, and what was told stays so."""
        self.hold(connection)
        if citations:
            connection.execute(self._cite, [asdict(citation) for citation in citations])

    def tell(self, connection: Connection, decision_id: str, at: datetime) -> Sequence[Citation]:
        """Return the citations of a decision whose end is after an instant and that were not told; now they are."""
        self.hold(connection)
        told = (
            update(citations)
            .where(cited.decision_id == decision_id, cited.told_at.is_(None), cited.expires_at > at)
            .values(told_at=at)
            .returning(*KEY, cited.url, cited.expires_at)
        )
        found = [Citation(**row._mapping) for row in connection.execute(told)]
        return sorted(found, key=lambda citation: (citation.agent, citation.correlation_id))

    def untell(self, connection: Connection, notification: Notification) -> None:
        """Let the citation that a notification is about be one that was not told."""
        self.hold(connection)
        key = (notification.decision_id, notification.agent, notification.correlation_id)
        connection.execute(update(citations).where(tuple_(*KEY) == key).values(told_at=None))

    def remove_expired(self, connection: Connection, at: datetime, limit: int) -> int:
        """Remove up to `limit` citations whose end has come, and return how many."""
        self.hold(connection)
        expired = select(*KEY).where(cited.expires_at <= at).order_by(cited.expires_at).limit(limit)
        return connection.execute(delete(citations).where(tuple_(*KEY).in_(expired))).rowcount

    def add(self, connection: Connection, notifications: Sequence[Notification]) -> None:
        """Add notifications."""
        self.hold(connection)
        if notifications:
            connection.execute(insert(callbacks), [row_of(notification) for notification in notifications])

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next notification is due; None where there is none."""
        row = self._next_due.first(connection, {})
        return None if row is None else row[0]

    def take_due(self, connection: Connection, now: datetime, until: datetime, limit: int) -> Sequence[Notification]:
        """Return due notifications, the longest due first, and let them be due at `until`."""
        self.hold(connection)
        due = (
            select(callbacks)
            .where(waiting.next_attempt_at <= now)
            .order_by(waiting.next_attempt_at, waiting.id)
            .limit(limit)
        )
        taken = [replace(notification_of(row), next_attempt_at=until) for row in connection.execute(due)]
        for notification in taken:
            self.put_off(connection, notification)
        return taken

    def put_off(self, connection: Connection, notification: Notification) -> None:
        """Write the attempts of a notification and when the next is due, unless it is gone."""
        self.hold(connection)
        connection.execute(
            update(callbacks)
            .where(waiting.id == notification.id)
            .values(attempts=notification.attempts, next_attempt_at=notification.next_attempt_at)
        )

    def remove(self, connection: Connection, notification: Notification) -> bool:
        """Remove a notification and return whether it was there."""
        self.hold(connection)
        return connection.execute(delete(callbacks).where(waiting.id == notification.id)).rowcount == 1


def row_of(notification: Notification) -> dict[str, object]:
    """Return a notification as a row of `callbacks`."""
    row = {name: getattr(notification, name) for name in waiting.keys()}  # noqa: SIM118 - columns, not names, else
    response = notification.response
    return row | {"kind": notification.kind.value, "response": None if response is None else json.dumps(dict(response))}


def notification_of(row: Row[Any]) -> Notification:
    """Return a row of `callbacks` as a notification."""
    values = dict(row._mapping)
    values["kind"] = Kind(values["kind"])
    values["response"] = None if values["response"] is None else json.loads(values["response"])
    return Notification(**values)
