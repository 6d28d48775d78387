"""Where announced intents are kept: the Protocol that every driver fulfils, and what it speaks in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Connection

from cstp_grpc.storage.paging import Page, PageRequest
from cstp_grpc.vocabulary import Stakes


@dataclass(frozen=True, slots=True)
class Intent:
    """A revision of an intent as it was announced; agent, correlation id and revision identify it.

    `received_at` is aware, in UTC; `content_hash` tells a repetition from a revision. `intent`, `context`, `metadata`
    and `project` are None, and `paths` empty, if contents are not kept. `revision` counts from 1 without gaps; the
    store sets it.
    """

    agent: str
    correlation_id: str
    content_hash: str
    received_at: datetime
    claimed_id: str | None = None
    claimed_url: str | None = None
    intent: str | None = None
    context: str | None = None
    category: str | None = None
    stakes: Stakes = Stakes.MEDIUM
    confidence: float | None = None
    metadata: Mapping[str, Any] | None = None
    project: str | None = None
    paths: tuple[str, ...] = ()
    revision: int = 1

    @property
    def previous_revision(self) -> int | None:
        """The revision that this one replaced; None for the first."""
        return self.revision - 1 if self.revision > 1 else None


@dataclass(frozen=True, slots=True)
class IntentFilter:
    """Conditions that intents must all meet; None or empty does not restrict.

    Instants are inclusive; `stakes` means any of.
    """

    agent: str | None = None
    correlation_id: str | None = None
    category: str | None = None
    stakes: tuple[Stakes, ...] = ()
    after: datetime | None = None
    before: datetime | None = None


class IntentContended(Exception):
    """Another transaction is adding a revision of the same intent.

    It is not waited for, since it may wait for this one. A transaction that begins with `IntentStore.hold` waits.
    """


class IntentStore(Protocol):
    """Keeps the revisions of intents, each once for its agent and correlation id."""

    def remember(self, connection: Connection, intent: Intent) -> Intent:
        """Return the latest revision of an intent if it has the same content, else add the next one and return that.

        It is added within the transaction. Raises IntentContended, and SQLAlchemyError if the database does not answer.
        """

    def hold(self, connection: Connection, intent: Intent) -> None:
        """Wait until no other transaction is adding a revision of an intent, and keep others from it until this ends.

        Raises SQLAlchemyError if the database does not answer.
        """

    def page(self, conditions: IntentFilter, request: PageRequest) -> Page[Intent]:
        """Return the intents that meet all conditions, latest first and the later stored first at the same instant.

        Raises InvalidArgument where the page token is not one of this listing, QueryFailed where the database does not
        answer.
        """
