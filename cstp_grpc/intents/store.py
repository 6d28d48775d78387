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
    """An intent as it was announced; with its agent, the correlation id identifies it.

    `received_at` is aware, in UTC; `content_hash` tells a repetition from another content. `intent`, `context`,
    `metadata` and `project` are None, and `paths` empty, where contents are not kept.
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


class IntentStore(Protocol):
    """Keeps each intent once for its agent and correlation id."""

    def remember(self, connection: Connection, intent: Intent) -> Intent:
        """Add an intent within a transaction, or return the one that is there with the same content.

        Raises Conflict where the agent used the correlation id for another content, SQLAlchemyError where the database
        does not answer.
        """

    def page(self, conditions: IntentFilter, request: PageRequest) -> Page[Intent]:
        """Return the intents that meet all conditions, latest first and the later stored first at the same instant.

        Raises InvalidArgument where the page token is not one of this listing, QueryFailed where the database does not
        answer.
        """
