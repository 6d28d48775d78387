"""The stores of chat sessions, shares, activations, events and presence: the Protocols that drivers implement."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

from cstp_grpc.liaison.model import (
    Activation,
    AgentPresence,
    ChatMessage,
    Event,
    EventFilter,
    MessageContent,
    Session,
    SessionFilter,
    SessionHold,
    Share,
)
from cstp_grpc.storage.pagination import Page, PageRequest
from cstp_grpc.storage.unit_of_work import UnitOfWork


class SessionStore(Protocol):
    """Store sessions and their messages, within the transactions of units of work."""

    def read_snapshot(self) -> AbstractContextManager[UnitOfWork]:
        """Open a unit of work that reads one state of the database. Raises QueryFailed."""

    def add(self, unit_of_work: UnitOfWork, session: Session) -> bool:
        """Add a session and return True; False if the id is taken or the user has an active one."""

    def get(self, unit_of_work: UnitOfWork, tenant: str, session_id: str, *, lock: bool = False) -> Session | None:
        """Return a session, or None; with `lock` no other transaction can change it until this one ends."""

    def get_small(
        self, unit_of_work: UnitOfWork, tenant: str, session_id: str | None, user_id: str, max_characters: int
    ) -> Session | None:
        """Return a session by its id, or else the active one of a user.

        Returns None if it is missing, or if the JSON of its context has more than `max_characters`.
        """

    def active(self, unit_of_work: UnitOfWork, tenant: str, user_id: str) -> Session | None:
        """Return the active session of a user, or None."""

    def replace(self, unit_of_work: UnitOfWork, session: Session) -> bool:
        """Replace an active session by its next version; return False if it has another version or is closed.

        Neither message_count nor claim is written, since messages and claims do not change the version. A session whose
        active_agent, routing_epoch or status changes loses its claim.
        """

    def hand_over(self, unit_of_work: UnitOfWork, session: Session, *, with_messages: bool) -> Session | None:
        """Assign an active session to the agent of its next version and return it as stored.

        Returns None if the session has changed: it is closed, has another version, was opened at another instant or for
        another user, or, `with_messages`, has another number of messages. Agent, epoch, activation key and time of
        change are written; the claim, which `session` must not have, ends; its number and the messages stay.
        """

    def claim(self, unit_of_work: UnitOfWork, session: Session, now: datetime) -> bool:
        """Write the claim of a session with the given version, agent and epoch, and return whether it was free.

        A session is free at `now` if nobody has claimed it, the same claimant has, or the claim has ended.
        """

    def append(
        self, unit_of_work: UnitOfWork, tenant: str, session_id: str, said: MessageContent, author: str, at: datetime
    ) -> ChatMessage | None:
        """Append a message to an active session and return it, or None if the session is not active."""

    def message(self, unit_of_work: UnitOfWork, tenant: str, session_id: str, message_id: str) -> ChatMessage | None:
        """Return the message with an id that its sender chose, or None."""

    def history(self, unit_of_work: UnitOfWork, tenant: str, session_id: str, max_characters: int) -> list[ChatMessage]:
        """Return messages in order, up to the first that makes their total exceed `max_characters`."""

    def messages(
        self, unit_of_work: UnitOfWork, tenant: str, session_id: str, request: PageRequest
    ) -> Page[ChatMessage]:
        """Return a page of messages in order. Raises InvalidArgument if the page token is not from this listing."""

    def page(self, unit_of_work: UnitOfWork, conditions: SessionFilter, request: PageRequest) -> Page[Session]:
        """Return a page of sessions, last opened first and by falling id at the same instant.

        Raises InvalidArgument if the page token is not from this listing.
        """


class RoutingStore(Protocol):
    """Store shares, activations and events, within the transactions of units of work."""

    def activation(self, unit_of_work: UnitOfWork, tenant: str, key: str) -> Activation | None:
        """Return the activation of a key, or None."""

    def add_activation(self, unit_of_work: UnitOfWork, tenant: str, activation: Activation) -> None:
        """Add an activation; its key must be new, and the share of that id holds its context."""

    def share(self, unit_of_work: UnitOfWork, tenant: str, share_id: str) -> Share | None:
        """Return a share, or None."""

    def add_share(self, unit_of_work: UnitOfWork, share: Share) -> bool:
        """Add a share and return True; False if the id is taken."""

    def update_delivery(self, unit_of_work: UnitOfWork, share: Share) -> bool:
        """Write the delivery state of a share and return True; False if it was no longer pending.

        The columns are delivery, attempts, next_attempt_at, task_id and delivered_at.
        """

    def take_due(self, unit_of_work: UnitOfWork, now: datetime, until: datetime, limit: int) -> list[Share]:
        """Return due pending shares, the longest due first, and postpone their next attempt to `until`.

        So no other server takes them before.
        """

    def next_due(self, unit_of_work: UnitOfWork) -> datetime | None:
        """Return when the next delivery is due, or None if none is pending."""

    def add_event(self, unit_of_work: UnitOfWork, event: Event) -> Event:
        """Add an event and return it with its sequence number, the tenant's next one."""

    def events(self, unit_of_work: UnitOfWork, conditions: EventFilter, after: int, limit: int) -> Sequence[Event]:
        """Return up to `limit` events after a sequence number, in order."""

    def count_events(self, unit_of_work: UnitOfWork) -> int:
        """Return the number of events that all tenants ever had."""

    def last_sequence(self, unit_of_work: UnitOfWork, tenant: str) -> int:
        """Return the sequence number of the tenant's last event, even if removed; 0 if it never had one."""


class PresenceStore(Protocol):
    """Store presence and supervise held sessions, within the transactions of units of work."""

    def lock_order(self, unit_of_work: UnitOfWork) -> None:
        """Take the order lock, so that other servers' writes wait until the transaction ends."""

    def presence(self, unit_of_work: UnitOfWork, tenant: str, pillar: str) -> AgentPresence | None:
        """Return the presence of a pillar's local agent, or None if it never sent a heartbeat."""

    def presences(self, unit_of_work: UnitOfWork, tenant: str) -> list[AgentPresence]:
        """Return the presence of all local agents of a tenant."""

    def write_presence(self, unit_of_work: UnitOfWork, presence: AgentPresence) -> None:
        """Write the presence of an agent. The sessions of an absent one become due at once."""

    def lapsed_agents(self, unit_of_work: UnitOfWork, now: datetime, limit: int) -> list[AgentPresence]:
        """Return agents that are marked as present though their time is over, the longest first."""

    def due_holds(self, unit_of_work: UnitOfWork, now: datetime, limit: int) -> list[SessionHold]:
        """Return the sessions that are due for a check, the longest due first."""

    def update_hold(self, unit_of_work: UnitOfWork, hold: SessionHold, due_at: datetime | None) -> None:
        """Write the reported alarms of a session and when it is due again; None until something happens."""

    def delete_hold(self, unit_of_work: UnitOfWork, hold: SessionHold) -> None:
        """Delete the record of a session that no liaison agent has."""

    def next_due(self, unit_of_work: UnitOfWork) -> datetime | None:
        """Return when the next session or agent is due for a check, or None if there is none."""

    def held_sessions(self, unit_of_work: UnitOfWork, tenant: str) -> dict[str, int]:
        """Return the number of open sessions of each liaison agent of a tenant."""
