"""Opening, reading, writing and closing chat sessions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from cstp_grpc.errors import Conflict, InvalidArgument, SessionNotFound, SessionUpdateFailed
from cstp_grpc.liaison.acts import Act, ActKind
from cstp_grpc.liaison.canonical import canonical, digest, is_same
from cstp_grpc.liaison.fencing import ClaimFence
from cstp_grpc.liaison.model import (
    HISTORY,
    Caller,
    Event,
    EventType,
    Message,
    MessageContent,
    MessageRole,
    Session,
    SessionFilter,
    SessionStatus,
)
from cstp_grpc.liaison.recorder import Recorder
from cstp_grpc.liaison.store import SessionStore
from cstp_grpc.storage.paging import Page, PageRequest

MAX_PAGE = 100
"""Items on one page at the most."""

SHOWN = 100
"""How many characters of a member's name an event tells."""


class Sessions:
    """Keeps the chat sessions of tenants; what belongs to another tenant than the caller's does not exist."""

    def __init__(
        self,
        store: SessionStore,
        recorder: Recorder,
        clock: Callable[[], datetime],
        max_context_bytes: int,
        fence: ClaimFence,
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._max_context_bytes = max_context_bytes
        self._fence = fence

    def open(
        self, caller: Caller, user_id: str, session_id: str | None, context: Mapping[str, Any]
    ) -> tuple[Session, bool]:
        """Return a session that is on disk, and whether it is new; the same opening again gives the first one.

        Raises InvalidArgument for a context that cannot be kept; Conflict where the user has an active session that was
        opened otherwise, or the id is taken.
        """
        self._check_context(context)
        now = self._clock()
        session = Session(
            tenant=caller.tenant,
            id=session_id or str(uuid.uuid4()),
            user_id=user_id,
            context=context,
            opened_hash=digest(context),
            created_at=now,
            updated_at=now,
        )

        def job(connection: Connection) -> tuple[Session, bool]:
            if not self._store.add(connection, session):
                return self._present(connection, session, session_id), False
            self._note(connection, caller, session, EventType.SESSION_OPENED, ActKind.SESSION_OPENED)
            return session, True

        return self._recorder.run(job)

    def get(self, caller: Caller, session_id: str | None, user_id: str) -> Session:
        """Return a session by its id, or else the active one of a user. Raises SessionNotFound and QueryFailed."""
        with self._store.reading() as connection:
            return found(self._store, connection, caller, session_id, user_id)

    def page(self, conditions: SessionFilter, request: PageRequest) -> Page[Session]:
        """Return the sessions that meet all conditions, last opened first; a page holds at most 100.

        Raises InvalidArgument where the page token is not one of this listing, and QueryFailed.
        """
        with self._store.reading() as connection:
            return self._store.page(connection, conditions, bounded(request))

    async def append_on_loop(
        self, caller: Caller, session_id: str, said: MessageContent, claim_number: int | None = None
    ) -> Message:
        """Return what `append` does, on an event loop, which is not held; the message must be small."""
        return await self._recorder.write(self._appending(caller, session_id, said, claim_number))

    def append(self, caller: Caller, session_id: str, said: MessageContent, claim_number: int | None = None) -> Message:
        """Return a message in its place once it is on disk; one whose message_id is known is not appended again.

        Raises SessionNotFound where the session is not active, Conflict where the message_id was used with another
        content, SessionWithAnotherAgent if the caller does not have the session (any more), and InvalidArgument for
        metadata that is too large.
        """
        return self._recorder.run(self._appending(caller, session_id, said, claim_number))

    def _appending(
        self, caller: Caller, session_id: str, said: MessageContent, claim_number: int | None
    ) -> Callable[[Connection], Message]:
        """Return the transaction that appends a message. Raises InvalidArgument for metadata that is too large."""
        self._check_size("metadata", said.metadata or {})

        def job(connection: Connection) -> Message:
            session = self._store.get(connection, caller.tenant, session_id, lock=True)
            if session is None:
                raise missing(session_id)
            if said.message_id is not None:
                known = self._store.message(connection, caller.tenant, session_id, said.message_id)
                if known is not None:
                    return repeated(known, said)
            if not session.is_open:
                raise closed_already(session)
            now = self._clock()
            check = self._fence.check_speaker if said.role is MessageRole.ASSISTANT else self._fence.check_number
            check(caller, session, claim_number, now)
            message = self._store.append(connection, caller.tenant, session_id, said, caller.agent, now)
            if message is None:
                raise overtaken(session_id)
            self._recorder.event(connection, appended(session, message))
            return message

        return job

    def messages(self, caller: Caller, session_id: str, request: PageRequest) -> Page[Message]:
        """Return the messages of a session in their order; a page holds at most 100.

        Raises SessionNotFound, InvalidArgument where the page token is not one of this listing, and QueryFailed.
        """
        with self._store.reading() as connection:
            if self._store.get(connection, caller.tenant, session_id) is None:
                raise missing(session_id)
            return self._store.messages(connection, caller.tenant, session_id, bounded(request))

    def update_context(
        self,
        caller: Caller,
        session_id: str,
        changes: Mapping[str, Any],
        version: int | None,
        claim_number: int | None = None,
    ) -> Session:
        """Return a session with members of its context set, or removed where they are None.

        Raises SessionNotFound where it is not active, SessionUpdateFailed where it has another version than the stated
        one, SessionWithAnotherAgent if the claim number is not that of the live claim, and InvalidArgument for a
        context that cannot be kept.
        """
        self._check_context(changes)

        def job(connection: Connection) -> Session:
            session = locked(self._store, connection, caller, session_id, version)
            self._fence.check_number(caller, session, claim_number, self._clock())
            removed = {name for name, value in changes.items() if value is None}
            merged = {name: value for name, value in {**session.context, **changes}.items() if name not in removed}
            if is_same(merged, session.context):
                return session
            self._check_size("context", merged)
            updated = changed(session, self._clock(), context=merged)
            self._replace(connection, updated)
            data = {"members": [name[:SHOWN] for name in sorted(changes)[:MAX_PAGE]]}
            kinds = (EventType.CONTEXT_UPDATED, ActKind.SESSION_CONTEXT_UPDATED)
            self._note(connection, caller, updated, *kinds, data)
            return updated

        return self._recorder.run(job)

    def close(self, caller: Caller, session_id: str, version: int | None) -> Session:
        """Return a closed session; one that is closed stays as it is.

        Raises SessionNotFound, and SessionUpdateFailed where it has another version than the stated one.
        """

        def job(connection: Connection) -> Session:
            session = self._store.get(connection, caller.tenant, session_id, lock=True)
            if session is None:
                raise missing(session_id)
            if not session.is_open:
                return session
            check_version(session, version)
            now = self._clock()
            closed = changed(
                session, now, status=SessionStatus.CLOSED, closed_at=now, claimed_by=None, claimed_until=None
            )
            self._replace(connection, closed)
            self._note(connection, caller, closed, EventType.SESSION_CLOSED, ActKind.SESSION_CLOSED)
            return closed

        return self._recorder.run(job)

    def _present(self, connection: Connection, wanted: Session, session_id: str | None) -> Session:
        """Return the session that is in the way of a new one, if it is the same. Raises Conflict."""
        active = self._store.active(connection, wanted.tenant, wanted.user_id)
        if active is None:
            raise Conflict(
                f"There is a chat session {wanted.id} already; choose another identifier, or none",
                metadata={"chat_session_id": wanted.id},
            )
        if active.opened_hash != wanted.opened_hash or session_id not in (None, active.id):
            raise Conflict(
                f"{wanted.user_id} has the active chat session {active.id}, opened otherwise; use it or close it",
                metadata={"chat_session_id": active.id, "user_id": wanted.user_id},
            )
        return active

    def _replace(self, connection: Connection, session: Session) -> None:
        if not self._store.replace(connection, session):
            raise overtaken(session.id)

    def _note(
        self,
        connection: Connection,
        caller: Caller,
        session: Session,
        event: EventType,
        act: ActKind,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        at = session.updated_at
        self._recorder.event(connection, event_in(session, event, at, data or {}))
        self._recorder.act(connection, Act(at, act, caller, session.active_agent, session.id))

    def _check_context(self, context: Mapping[str, Any]) -> None:
        if HISTORY in context:
            raise InvalidArgument.field(
                f"context.{HISTORY}", "is kept by the server; append messages, and they are shared under this name"
            )
        self._check_size("context", context)

    def _check_size(self, field: str, value: Mapping[str, Any]) -> None:
        size = len(canonical(value).encode())
        if size > self._max_context_bytes:
            raise InvalidArgument.field(field, f"has {size} bytes of JSON; at most {self._max_context_bytes} are kept")


def found(store: SessionStore, connection: Connection, caller: Caller, session_id: str | None, user_id: str) -> Session:
    """Return a session by its id, or else the active one of a user. Raises SessionNotFound."""
    if session_id is not None:
        session = store.get(connection, caller.tenant, session_id)
        if session is None:
            raise missing(session_id)
        return session
    session = store.active(connection, caller.tenant, user_id)
    if session is None:
        raise SessionNotFound(f"{user_id} has no active chat session; open one", metadata={"user_id": user_id})
    return session


def locked(
    store: SessionStore, connection: Connection, caller: Caller, session_id: str, version: int | None = None
) -> Session:
    """Return an active session that nobody else can change within the transaction.

    Raises SessionNotFound, and SessionUpdateFailed where it has another version than the stated one.
    """
    session = store.get(connection, caller.tenant, session_id, lock=True)
    if session is None:
        raise missing(session_id)
    if not session.is_open:
        raise closed_already(session)
    check_version(session, version)
    return session


def changed(session: Session, at: datetime, **changes: Any) -> Session:
    """Return the next version of a session."""
    return replace(session, version=session.version + 1, updated_at=at, **changes)


def check_version(session: Session, version: int | None) -> None:
    """Refuse to change a session that is not in the stated version. Raises SessionUpdateFailed."""
    if version not in (None, session.version):
        raise SessionUpdateFailed(
            f"The chat session {session.id} has version {session.version}, not {version}; read it and try again",
            metadata={"chat_session_id": session.id, "version": str(session.version)},
        )


def event_in(session: Session, kind: EventType, at: datetime, data: Mapping[str, Any]) -> Event:
    """Return an event of a session that concerns the agent that has it."""
    return Event(session.tenant, kind, session.active_agent, at, session.id, session.user_id, data)


def appended(session: Session, message: Message) -> Event:
    """Return the event of a message."""
    named = {} if message.said.message_id is None else {"message_id": message.said.message_id}
    data = {"sequence": message.sequence, "role": message.said.role.value, **named}
    return event_in(session, EventType.MESSAGE_APPENDED, message.sent_at, data)


def repeated(known: Message, said: MessageContent) -> Message:
    """Return a message that is there, if the same was said. Raises Conflict."""
    if not says_the_same(known.said, said):
        raise Conflict(
            f"The message_id {said.message_id} was used for another message",
            metadata={"message_id": str(said.message_id)},
        )
    return known


def says_the_same(one: MessageContent, other: MessageContent) -> bool:
    """Whether two messages have the same content."""
    if (one.role, one.content, one.message_id) != (other.role, other.content, other.message_id):
        return False
    return is_same(one.metadata, other.metadata)


def bounded(request: PageRequest) -> PageRequest:
    """Return a page request for at most MAX_PAGE items."""
    return PageRequest(min(request.limit, MAX_PAGE), request.token)


def missing(session_id: str) -> SessionNotFound:
    """Return the error for a session that the tenant does not have."""
    return SessionNotFound(f"There is no chat session {session_id}", metadata={"chat_session_id": session_id})


def closed_already(session: Session) -> SessionNotFound:
    """Return the error for a session that has ended."""
    return SessionNotFound(
        f"The chat session {session.id} is closed; open another one", metadata={"chat_session_id": session.id}
    )


def overtaken(session_id: str) -> SessionUpdateFailed:
    """Return the error for a session that was changed at the same time."""
    return SessionUpdateFailed(
        f"The chat session {session_id} was changed at the same time; try again",
        metadata={"chat_session_id": session_id, "reason": "changed at the same time"},
    )
