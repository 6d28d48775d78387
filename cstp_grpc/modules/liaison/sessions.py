"""Open, read, update and close chat sessions, and fence off agents that no longer have them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from cstp_grpc.common.canonical_json import encode_canonical_json, hash_canonical_json, is_same_json
from cstp_grpc.contract import errors
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.modules.liaison import model
from cstp_grpc.modules.liaison.audit import AuditedWriter, SessionOperation
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.platform.storage.pagination import Page, PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork


class ClaimFence:
    """Refuse stale writes of agents that no longer have a session; called in the transaction that holds its row.

    `agents` are the names of the local liaison agents by pillar. Only those claim sessions: remote agents, and callers
    that serve no pillar, can only be recognized by a claim number, which they do not have. A caller that may route acts
    as the guide, unless it serves the session's pillar.
    """

    def __init__(self, agents: Mapping[str, Collection[str]]) -> None:
        self._agents = agents

    def check_number(
        self, caller: model.TenantCaller, session: model.Session, number: int | None, now: datetime
    ) -> None:
        """Raise SessionWithAnotherAgent if a caller states a claim number that is not that of the live claim."""
        if number is None:
            return
        if not self._serves(caller, session):
            raise other_agent_error(session)
        # A fencing token: the number tells the present claim from an ended one of the same claimant.
        if number != session.claim_number:
            raise not_holder_error(
                session, f"claim {number} is not the current one", "the claim number is not the current one"
            )
        require_live_claim(session, now)

    def check_speaker(
        self, caller: model.TenantCaller, session: model.Session, number: int | None, now: datetime
    ) -> None:
        """Raise SessionWithAnotherAgent unless a caller may speak as the assistant."""
        if number is not None:
            self.check_number(caller, session, number, now)
        elif self._serves(caller, session):
            require_own_claim(caller, session, now)
        elif self._is_liaison_agent(caller):
            raise other_agent_error(session)

    def check_return(
        self, caller: model.TenantCaller, session: model.Session, number: int | None, now: datetime
    ) -> None:
        """Raise SessionWithAnotherAgent unless a caller may return a liaison agent's session."""
        if number is not None or not caller.may_route:
            self.check_speaker(caller, session, number, now)

    def _serves(self, caller: model.TenantCaller, session: model.Session) -> bool:
        """Return whether a caller is the local liaison agent that has a session."""
        pillar = session.active_agent.removeprefix(model.AGENT_PREFIX)
        return session.activation_key is not None and caller.agent in self._agents.get(pillar, ())

    def _is_liaison_agent(self, caller: model.TenantCaller) -> bool:
        return not caller.may_route and any(caller.agent in names for names in self._agents.values())


def require_own_claim(caller: model.TenantCaller, session: model.Session, now: datetime) -> None:
    """Raise SessionWithAnotherAgent if another instance claimed the session and no claim number was given.

    A caller without a claim number passes if it claimed the session by its own name, or if nobody claimed it.
    """
    if session.claimed_by is None:
        return
    require_live_claim(session, now)
    if session.claimed_by != caller.agent:
        detail = f"{session.claimed_by} claimed it; state the claim_number that it was given"
        raise not_holder_error(session, detail, "the claim number is missing")


def require_live_claim(session: model.Session, now: datetime) -> None:
    """Raise SessionWithAnotherAgent if the claim has ended."""
    if not session.is_claimed(now):
        raise not_holder_error(session, "the claim on it has ended; claim it again", "the claim has ended")


def other_agent_error(session: model.Session) -> errors.SessionWithAnotherAgent:
    return not_holder_error(session, f"it is with {session.active_agent}", "the session is with another agent")


def not_holder_error(session: model.Session, detail: str, reason: str) -> errors.SessionWithAnotherAgent:
    metadata = {"chat_session_id": session.id, "active_agent": session.active_agent, "reason": reason}
    return errors.SessionWithAnotherAgent(f"You do not have the chat session {session.id}: {detail}", metadata=metadata)


MAX_PAGE_SIZE = 100
"""Maximum number of items on a page, and of member names in an event; as the contract says."""

MAX_MEMBER_NAME = 100
"""Maximum length of a member's name in an event. Chosen: events go to every watcher, and name members as a hint."""


class SessionService:
    """Manage the chat sessions of tenants; sessions of other tenants than the caller's are reported as missing."""

    def __init__(
        self,
        store: SqlSessionStore,
        recorder: AuditedWriter,
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
        self, caller: model.TenantCaller, user_id: str, session_id: str | None, context: Mapping[str, Any]
    ) -> tuple[model.Session, bool]:
        """Open a session durably, or return the one that the same call opened before, and whether it is new.

        Raises InvalidArgument for a context that cannot be stored; Conflict if the user has an active session that was
        opened differently, or the id is taken.
        """
        self._check_context(context)
        now = self._clock()
        session = model.Session(
            tenant=caller.tenant,
            id=session_id or str(uuid.uuid4()),
            user_id=user_id,
            context=context,
            opened_hash=hash_canonical_json(context),
            created_at=now,
            updated_at=now,
        )

        def job(unit_of_work: UnitOfWork) -> tuple[model.Session, bool]:
            # The database decides between concurrent calls: the id is a primary key, and a unique index allows a user
            # one active session.
            if not self._store.add(unit_of_work, session):
                return self._existing_session(unit_of_work, session, session_id), False
            self._record(unit_of_work, caller, session, model.EventType.SESSION_OPENED, AuditEvent.SESSION_OPENED)
            return session, True

        return self._recorder.run(job)

    def get(self, caller: model.TenantCaller, session_id: str | None, user_id: str) -> model.Session:
        """Return a session by its id, or else the active one of a user. Raises SessionNotFound and QueryFailed."""
        with self._store.read_snapshot() as unit_of_work:
            return require_session(self._store, unit_of_work, caller, session_id, user_id)

    def page(self, conditions: model.SessionFilter, request: PageRequest) -> Page[model.Session]:
        """Return the sessions that meet all conditions, last opened first; a page holds at most 100.

        Raises InvalidArgument if the page token is not from this listing, and QueryFailed.
        """
        with self._store.read_snapshot() as unit_of_work:
            return self._store.page(unit_of_work, conditions, cap_page_size(request))

    async def append_on_loop(
        self,
        caller: model.TenantCaller,
        session_id: str,
        content: model.MessageContent,
        claim_number: int | None = None,
    ) -> model.ChatMessage:
        """Append a message as `append` does, without blocking the event loop; the message must be small."""
        return await self._recorder.write(self._append_job(caller, session_id, content, claim_number))

    def append(
        self,
        caller: model.TenantCaller,
        session_id: str,
        content: model.MessageContent,
        claim_number: int | None = None,
    ) -> model.ChatMessage:
        """Append a message durably and return it; one with a known message_id is not appended again.

        Raises SessionNotFound if the session is not active, Conflict if the message_id was used with other content,
        SessionWithAnotherAgent if the caller does not have the session (any more), and InvalidArgument for metadata
        that is too large.
        """
        return self._recorder.run(self._append_job(caller, session_id, content, claim_number))

    def _append_job(
        self, caller: model.TenantCaller, session_id: str, content: model.MessageContent, claim_number: int | None
    ) -> Callable[[UnitOfWork], model.ChatMessage]:
        """Return the transaction that appends a message. Raises InvalidArgument for metadata that is too large."""
        # Before the job is queued: the writer's thread only writes.
        self._check_size("metadata", content.metadata or {})

        def job(unit_of_work: UnitOfWork) -> model.ChatMessage:
            session = self._store.get(unit_of_work, caller.tenant, session_id, lock=True)
            if session is None:
                raise session_not_found(session_id)
            if content.message_id is not None:
                # Before the checks of the session: a repeated message gets its answer even if the session was closed
                # since.
                known = self._store.message(unit_of_work, caller.tenant, session_id, content.message_id)
                if known is not None:
                    return require_same_message(known, content)
            if not session.is_open:
                raise session_closed(session)
            now = self._clock()
            check = (
                self._fence.check_speaker if content.role is model.MessageRole.ASSISTANT else self._fence.check_number
            )
            check(caller, session, claim_number, now)
            message = self._store.append(unit_of_work, caller.tenant, session_id, content, caller.agent, now)
            if message is None:
                raise concurrent_update(session_id)
            self._recorder.add_event(unit_of_work, message_event(session, message))
            return message

        return job

    def messages(self, caller: model.TenantCaller, session_id: str, request: PageRequest) -> Page[model.ChatMessage]:
        """Return the messages of a session in order; a page holds at most 100.

        Raises SessionNotFound, InvalidArgument if the page token is not from this listing, and QueryFailed.
        """
        with self._store.read_snapshot() as unit_of_work:
            if self._store.get(unit_of_work, caller.tenant, session_id) is None:
                raise session_not_found(session_id)
            return self._store.messages(unit_of_work, caller.tenant, session_id, cap_page_size(request))

    def update_context(
        self,
        caller: model.TenantCaller,
        session_id: str,
        changes: Mapping[str, Any],
        version: int | None,
        claim_number: int | None = None,
    ) -> model.Session:
        """Set members of a session's context, or remove those that are None, and return the session.

        Raises SessionNotFound if the session is not active, SessionUpdateFailed if it has another version than the
        stated one, SessionWithAnotherAgent if the claim number is not that of the live claim, and InvalidArgument for a
        context that cannot be stored.
        """
        self._check_context(changes)

        def job(unit_of_work: UnitOfWork) -> model.Session:
            session = lock_open_session(self._store, unit_of_work, caller, session_id, version)
            self._fence.check_number(caller, session, claim_number, self._clock())
            removed = {name for name, value in changes.items() if value is None}
            # As in a JSON merge patch (RFC 7396), but for the top level alone.
            merged = {name: value for name, value in {**session.context, **changes}.items() if name not in removed}
            # No new version if nothing changes, so that a repeated update does not make others fail.
            if is_same_json(merged, session.context):
                return session
            # Again: changes that fit may make the whole too large.
            self._check_size("context", merged)
            updated = next_version(session, self._clock(), context=merged)
            self._replace(unit_of_work, updated)
            data = {"members": [name[:MAX_MEMBER_NAME] for name in sorted(changes)[:MAX_PAGE_SIZE]]}
            kinds = (model.EventType.CONTEXT_UPDATED, AuditEvent.SESSION_CONTEXT_UPDATED)
            self._record(unit_of_work, caller, updated, *kinds, data)
            return updated

        return self._recorder.run(job)

    def close(self, caller: model.TenantCaller, session_id: str, version: int | None) -> model.Session:
        """Close a session and return it; a closed one is not changed.

        Raises SessionNotFound, and SessionUpdateFailed if the session has another version than the stated one.
        """

        def job(unit_of_work: UnitOfWork) -> model.Session:
            session = self._store.get(unit_of_work, caller.tenant, session_id, lock=True)
            if session is None:
                raise session_not_found(session_id)
            if not session.is_open:
                return session
            check_version(session, version)
            now = self._clock()
            closed = next_version(
                session, now, status=model.SessionStatus.CLOSED, closed_at=now, claimed_by=None, claimed_until=None
            )
            self._replace(unit_of_work, closed)
            self._record(unit_of_work, caller, closed, model.EventType.SESSION_CLOSED, AuditEvent.SESSION_CLOSED)
            return closed

        return self._recorder.run(job)

    def _existing_session(self, unit_of_work: UnitOfWork, new: model.Session, session_id: str | None) -> model.Session:
        """Return the existing session that prevents opening a new one, if it is the same. Raises Conflict."""
        # The session that the user has decides; without one, it is the id that is taken.
        active = self._store.active(unit_of_work, new.tenant, new.user_id)
        if active is None:
            raise errors.Conflict(
                f"There is a chat session {new.id} already; choose another identifier, or none",
                metadata={"chat_session_id": new.id},
            )
        # By the context of the opening, since the present one may have been updated.
        if active.opened_hash != new.opened_hash or session_id not in (None, active.id):
            raise errors.Conflict(
                f"{new.user_id} has the active chat session {active.id}, opened otherwise; use it or close it",
                metadata={"chat_session_id": active.id, "user_id": new.user_id},
            )
        return active

    def _replace(self, unit_of_work: UnitOfWork, session: model.Session) -> None:
        if not self._store.replace(unit_of_work, session):
            raise concurrent_update(session.id)

    def _record(
        self,
        unit_of_work: UnitOfWork,
        caller: model.TenantCaller,
        session: model.Session,
        event: model.EventType,
        audit_event: AuditEvent,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        at = session.updated_at
        self._recorder.add_event(unit_of_work, session_event(session, event, at, data or {}))
        self._recorder.add_operation(
            unit_of_work, SessionOperation(at, audit_event, caller, session.active_agent, session.id)
        )

    def _check_context(self, context: Mapping[str, Any]) -> None:
        if model.HISTORY_MEMBER in context:
            raise errors.InvalidArgument.field(
                f"context.{model.HISTORY_MEMBER}",
                "is kept by the server; append messages, and they are shared under this name",
            )
        self._check_size("context", context)

    def _check_size(self, field: str, value: Mapping[str, Any]) -> None:
        size = len(encode_canonical_json(value).encode())
        if size > self._max_context_bytes:
            raise errors.InvalidArgument.field(
                field, f"has {size} bytes of JSON; at most {self._max_context_bytes} are kept"
            )


def require_session(
    store: SqlSessionStore, unit_of_work: UnitOfWork, caller: model.TenantCaller, session_id: str | None, user_id: str
) -> model.Session:
    """Return a session by its id, or else the active one of a user. Raises SessionNotFound."""
    if session_id is not None:
        session = store.get(unit_of_work, caller.tenant, session_id)
        if session is None:
            raise session_not_found(session_id)
        return session
    session = store.active(unit_of_work, caller.tenant, user_id)
    if session is None:
        raise errors.SessionNotFound(f"{user_id} has no active chat session; open one", metadata={"user_id": user_id})
    return session


def lock_open_session(
    store: SqlSessionStore,
    unit_of_work: UnitOfWork,
    caller: model.TenantCaller,
    session_id: str,
    version: int | None = None,
) -> model.Session:
    """Return an active session, locked against changes by others within the transaction.

    Raises SessionNotFound, and SessionUpdateFailed if the session has another version than the stated one.
    """
    session = store.get(unit_of_work, caller.tenant, session_id, lock=True)
    if session is None:
        raise session_not_found(session_id)
    if not session.is_open:
        raise session_closed(session)
    check_version(session, version)
    return session


def next_version(session: model.Session, at: datetime, **changes: Any) -> model.Session:
    return replace(session, version=session.version + 1, updated_at=at, **changes)


def assign_agent(
    session: model.Session, at: datetime, agent: str, epoch: int, activation_key: str | None
) -> model.Session:
    return next_version(
        session,
        at,
        active_agent=agent,
        routing_epoch=epoch,
        activation_key=activation_key,
        claimed_by=None,
        claimed_until=None,
    )


def require_same_activation(session: model.Session, activation_key: str) -> None:
    """Raise SessionWithAnotherAgent if a liaison agent no longer has a session by an activation."""
    if session.activation_key != activation_key:
        raise errors.SessionWithAnotherAgent(
            f"The chat session {session.id} has gone on, and is with {session.active_agent}",
            metadata={
                "chat_session_id": session.id,
                "active_agent": session.active_agent,
                "reason": "the session has gone on",
            },
        )


def check_version(session: model.Session, version: int | None) -> None:
    if version not in (None, session.version):
        raise errors.SessionUpdateFailed(
            f"The chat session {session.id} has version {session.version}, not {version}; read it and try again",
            metadata={"chat_session_id": session.id, "version": str(session.version)},
        )


def session_event(session: model.Session, kind: model.EventType, at: datetime, data: Mapping[str, Any]) -> model.Event:
    return model.Event(session.tenant, kind, session.active_agent, at, session.id, session.user_id, data)


def message_event(session: model.Session, message: model.ChatMessage) -> model.Event:
    named = {} if message.body.message_id is None else {"message_id": message.body.message_id}
    data = {"sequence": message.sequence, "role": message.body.role.value, **named}
    return session_event(session, model.EventType.MESSAGE_APPENDED, message.sent_at, data)


def require_same_message(known: model.ChatMessage, content: model.MessageContent) -> model.ChatMessage:
    """Return a stored message if the new one has the same content. Raises Conflict."""
    if not is_same_content(known.body, content):
        raise errors.Conflict(
            f"The message_id {content.message_id} was used for another message",
            metadata={"message_id": str(content.message_id)},
        )
    return known


def is_same_content(one: model.MessageContent, other: model.MessageContent) -> bool:
    if (one.role, one.content, one.message_id) != (other.role, other.content, other.message_id):
        return False
    return is_same_json(one.metadata, other.metadata)


def cap_page_size(request: PageRequest) -> PageRequest:
    return PageRequest(min(request.limit, MAX_PAGE_SIZE), request.token)


def session_not_found(session_id: str) -> errors.SessionNotFound:
    return errors.SessionNotFound(f"There is no chat session {session_id}", metadata={"chat_session_id": session_id})


def session_closed(session: model.Session) -> errors.SessionNotFound:
    return errors.SessionNotFound(
        f"The chat session {session.id} is closed; open another one", metadata={"chat_session_id": session.id}
    )


def concurrent_update(session_id: str) -> errors.SessionUpdateFailed:
    return errors.SessionUpdateFailed(
        f"The chat session {session_id} was changed at the same time; try again",
        metadata={"chat_session_id": session_id, "reason": "changed at the same time"},
    )
