"""A session to store, and jobs that change what is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from cstp_grpc.modules.liaison.model import (
    ChatMessage,
    MessageContent,
    MessageRole,
    Session,
)
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.modules.liaison.strategies import TENANT

T = TypeVar("T")


NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ALL = PageRequest(1000)
SESSION = Session(
    tenant=TENANT,
    id="s-1",
    user_id="ada",
    context={"shared_intent": "migrate the reports", "draft": None, "nested": {"é": [1, 2.5, True]}},
    opened_hash="hash",
    created_at=NOON,
    updated_at=NOON,
)
HELLO = MessageContent(MessageRole.USER, "Hello")


Write = Callable[[Callable[[UnitOfWork], T]], T]


def read(sessions: SqlSessionStore, session_id: str = SESSION.id, tenant: str = TENANT) -> Session | None:
    with sessions.read_snapshot() as unit_of_work:
        return sessions.get(unit_of_work, tenant, session_id)


def active(sessions: SqlSessionStore, user_id: str, tenant: str = TENANT) -> Session | None:
    with sessions.read_snapshot() as unit_of_work:
        return sessions.active(unit_of_work, tenant, user_id)


def history(sessions: SqlSessionStore, max_characters: int = 10**9) -> list[ChatMessage]:
    with sessions.read_snapshot() as unit_of_work:
        return sessions.history(unit_of_work, TENANT, SESSION.id, max_characters)


def add(sessions: SqlSessionStore, writer: GroupCommitWriter, session: Session = SESSION) -> bool:
    return writer.run(lambda unit_of_work: sessions.add(unit_of_work, session))


def swap(sessions: SqlSessionStore, writer: GroupCommitWriter, session: Session) -> bool:
    return writer.run(lambda unit_of_work: sessions.replace(unit_of_work, session))


def claim(sessions: SqlSessionStore, writer: GroupCommitWriter, session: Session, now: datetime = NOON) -> bool:
    return writer.run(lambda unit_of_work: sessions.claim(unit_of_work, session, now))


def say(
    sessions: SqlSessionStore, writer: GroupCommitWriter, said: MessageContent = HELLO, session_id: str = SESSION.id
) -> ChatMessage | None:
    return writer.run(lambda unit_of_work: sessions.append(unit_of_work, TENANT, session_id, said, "emerson", NOON))


# Claims

ROUTED = replace(SESSION, version=2, active_agent="liaison_content", routing_epoch=1, activation_key="key")
