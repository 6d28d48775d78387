"""Noting what is to be told: what causes it writes it in its own transaction."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.callbacks.model import Citation, Kind, Notification
from cstp_grpc.callbacks.store import CallbackStore
from cstp_grpc.decisions.model import Decision
from cstp_grpc.decisions.store import Entry
from cstp_grpc.errors import CstpError
from cstp_grpc.storage.writer import Writer
from cstp_grpc.vocabulary import Outcome
from cstp_grpc.webhooks.addresses import AllowList

logger = logging.getLogger(__name__)

MAX_RESPONSE = 1024 * 1024
"""How many characters of JSON a late answer may have that is told on."""


class Decisions(Protocol):
    """The record of decisions."""

    def load(self, connection: Connection, ids: Sequence[str]) -> dict[str, Entry]:
        """Return entries by id."""

    def may_read(self, decision: Decision, caller: str) -> bool:
        """Whether an agent may read a decision."""


class Callbacks:
    """Notes what announcing agents are told later, where they gave an address that feedback is sent to.

    `window` is for how long the failure of a decision is told that an announcement was answered with. `wake` is called
    when there is something to send; within the transaction, which is enough because what then looks for it has to wait
    for the same writer.
    """

    def __init__(
        self,
        store: CallbackStore,
        decisions: Decisions,
        allowed: AllowList,
        writer: Writer,
        clock: Callable[[], datetime],
        window: timedelta,
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._decisions = decisions
        self._allowed = allowed
        self._writer = writer
        self._clock = clock
        self._window = window
        self._wake = wake

    def applies(self, url: str | None) -> bool:
        """Whether feedback is sent to an address."""
        return url is not None and self._allowed.address(url) is not None

    def cite(
        self, connection: Connection, agent: str, correlation_id: str, url: str | None, decisions: Sequence[Decision]
    ) -> None:
        """Note within a transaction which decisions an announcement is answered with, if that is of use.

        What failed since the decisions were read is told like what fails later.
        """
        if url is None or not self.applies(url) or not decisions:
            return
        at = self._clock()
        self._store.cite(
            connection,
            [Citation(decision.id, agent, correlation_id, url, at + self._window) for decision in decisions],
        )
        entries = self._decisions.load(connection, [decision.id for decision in decisions])
        for decision in decisions:
            entry = entries.get(decision.id)
            if has_failed(entry) and decision.outcome is not Outcome.FAILURE:
                self.failed(connection, decision.id, at)

    def failed(self, connection: Connection, decision_id: str, at: datetime) -> None:
        """Note within a transaction that all are told to whom a decision was cited, since it was reviewed as failed."""
        told = self._store.tell(connection, decision_id, at)
        self._add(
            connection,
            [
                Notification(
                    new_id(), Kind.CITED_DECISION_FAILED, each.agent, each.correlation_id, each.url, at, at, decision_id
                )
                for each in told
            ],
        )

    def late(self, agent: str, correlation_id: str, revision: int, url: str, response: Mapping[str, Any]) -> None:
        """Note what a peer answered late to a revision, in the JSON of the contract; return when that is on disk.

        Raises nothing: where it cannot be kept, it is as if the peer had not answered at all.
        """
        about = f"the late answer of {response.get('agent')} to {agent} on {correlation_id}"
        if len(json.dumps(dict(response))) > MAX_RESPONSE:
            logger.warning("%s is too large to be told on", about)
            return
        at = self._clock()
        notification = Notification(
            new_id(),
            Kind.LATE_FEEDBACK,
            agent,
            correlation_id,
            url,
            at,
            at,
            response=response,
            intent_revision=revision,
        )
        try:
            self._writer.run(lambda connection: self._add(connection, [notification]))
        except (CstpError, SQLAlchemyError) as error:
            logger.warning("%s is not told on: %s", about, error)

    def _add(self, connection: Connection, notifications: Sequence[Notification]) -> None:
        self._store.add(connection, notifications)
        if notifications:
            self._wake()


def has_failed(entry: Entry | None) -> bool:
    """Whether a decision is there and failed."""
    return entry is not None and entry.decision.outcome is Outcome.FAILURE


def new_id() -> str:
    """Return an identifier for a notification."""
    return str(uuid.uuid4())
