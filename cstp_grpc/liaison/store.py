"""Where chat sessions, shares, activations and events are kept: the Protocol that every driver fulfils."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection

from cstp_grpc.liaison.model import (
    Activation,
    AgentPresence,
    Event,
    EventFilter,
    Hold,
    Message,
    MessageContent,
    Session,
    SessionFilter,
    Share,
)
from cstp_grpc.storage.paging import Page, PageRequest


class SessionStore(Protocol):
    """Keeps sessions and their messages. Methods on a connection raise SQLAlchemyError where the database fails."""

    def reading(self) -> AbstractContextManager[Connection]:
        """Give a connection that sees one state of the database. Raises QueryFailed where it does not answer."""

    def add(self, connection: Connection, session: Session) -> bool:
        """Add a session and return True; False where the id is taken or the user has an active one."""

    def get(self, connection: Connection, tenant: str, session_id: str, *, lock: bool = False) -> Session | None:
        """Return a session; None where there is none. With `lock` no other transaction can change it until the end of
        this one.
        """

    def get_small(
        self, connection: Connection, tenant: str, session_id: str | None, user_id: str, max_characters: int
    ) -> Session | None:
        """Return a session by its id, or else the active one of a user.

        Returns None where there is none, and where the JSON of its context has more than `max_characters`.
        """

    def active(self, connection: Connection, tenant: str, user_id: str) -> Session | None:
        """Return the active session of a user; None where there is none."""

    def replace(self, connection: Connection, session: Session) -> bool:
        """Put an active session in the place of the version before it, and return whether that was there and active.

        Neither message_count nor claim is written: messages and claims change no version. A session whose active_agent,
        routing_epoch or status changes loses its claim.
        """

    def hand_over(self, connection: Connection, session: Session, *, with_messages: bool) -> Session | None:
        """Give an active session to the agent of its next version and return it as it is then.

        Returns None if that session has changed: it is closed, has another version than the one before, was opened at
        another instant or for another user, or, `with_messages`, has another number of messages. Agent, epoch,
        activation key and instant of change are written; the claim, which `session` must not have, ends; its number and
        the messages stay.
        """

    def claim(self, connection: Connection, session: Session, now: datetime) -> bool:
        """Write the claim of an active session whose version, agent and epoch are those given, and return
        whether it was free at `now`: claimed by nobody, by the same, or no longer.
        """

    def append(
        self, connection: Connection, tenant: str, session_id: str, said: MessageContent, author: str, at: datetime
    ) -> Message | None:
        """Append a message to an active session and return it in its place; None where there is no active session."""

    def message(self, connection: Connection, tenant: str, session_id: str, message_id: str) -> Message | None:
        """Return the message of an identifier that its sender chose; None where there is none."""

    def history(self, connection: Connection, tenant: str, session_id: str, max_characters: int) -> list[Message]:
        """Return messages in their order, up to the first by which their contents exceed `max_characters` together."""

    def messages(self, connection: Connection, tenant: str, session_id: str, request: PageRequest) -> Page[Message]:
        """Return a page of messages in their order. Raises InvalidArgument where the page token is not one of it."""

    def page(self, connection: Connection, conditions: SessionFilter, request: PageRequest) -> Page[Session]:
        """Return a page of sessions, last opened first and by falling id at the same instant.

        Raises InvalidArgument where the page token is not one of this listing.
        """


class RoutingStore(Protocol):
    """Keeps shares, activations and events. Methods raise SQLAlchemyError where the database fails."""

    def activation(self, connection: Connection, tenant: str, key: str) -> Activation | None:
        """Return the answer of a routing; None where there is none of that key."""

    def add_activation(self, connection: Connection, tenant: str, activation: Activation) -> None:
        """Add the answer of a routing; its key must be new, and the share of that identifier has its context."""

    def share(self, connection: Connection, tenant: str, share_id: str) -> Share | None:
        """Return a share; None where there is none."""

    def add_share(self, connection: Connection, share: Share) -> bool:
        """Add a share and return True; False where the id is taken."""

    def delivered(self, connection: Connection, share: Share) -> bool:
        """Write what became of a pending share's delivery, and return whether it was pending still: delivery, attempts,
        next_attempt_at, task_id, delivered_at.
        """

    def take_due(self, connection: Connection, now: datetime, until: datetime, limit: int) -> list[Share]:
        """Return pending shares whose delivery is due, the longest due first, and set their next attempt to `until`, so
        that no other server takes them before.
        """

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next delivery is due; None where none waits."""

    def add_event(self, connection: Connection, event: Event) -> Event:
        """Add an event and return it with its sequence, one more than that of the tenant's event before it."""

    def events(self, connection: Connection, conditions: EventFilter, after: int, limit: int) -> Sequence[Event]:
        """Return up to `limit` events after a sequence, in their order."""

    def count_events(self, connection: Connection) -> int:
        """Return how many events all tenants ever had."""

    def last_sequence(self, connection: Connection, tenant: str) -> int:
        """Return the sequence of the tenant's last event, also if it has been removed; 0 if it never had one."""


class PresenceStore(Protocol):
    """Keeps who is there, and what liaison agents hold. Methods raise SQLAlchemyError where the database fails."""

    def hold_order(self, connection: Connection) -> None:
        """Keep the writes of other servers waiting until the transaction ends, before it reads what it decides by."""

    def presence(self, connection: Connection, tenant: str, pillar: str) -> AgentPresence | None:
        """Return whether the local agent of a pillar is there; None if it never told."""

    def presences(self, connection: Connection, tenant: str) -> list[AgentPresence]:
        """Return what the local agents of a tenant told of themselves."""

    def write_presence(self, connection: Connection, presence: AgentPresence) -> None:
        """Write whether an agent is there. Sessions of one that is not are due at once."""

    def lapsed(self, connection: Connection, now: datetime, limit: int) -> list[AgentPresence]:
        """Return agents that count as present though their time is over, the longest first."""

    def due_holds(self, connection: Connection, now: datetime, limit: int) -> list[Hold]:
        """Return the sessions that are due to be looked at, the longest due first."""

    def settle(self, connection: Connection, hold: Hold, due_at: datetime | None) -> None:
        """Write which alarms of a session were told, and when it is due again; None for not until something happens."""

    def release(self, connection: Connection, hold: Hold) -> None:
        """Forget a session that no liaison agent has."""

    def next_due(self, connection: Connection) -> datetime | None:
        """Return when the next session is due, or the next agent's time is over; None if there is none."""

    def held_sessions(self, connection: Connection, tenant: str) -> dict[str, int]:
        """Return how many open sessions each liaison agent of a tenant has."""
