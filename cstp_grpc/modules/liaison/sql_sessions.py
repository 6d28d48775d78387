"""Chat sessions and their messages in an SQL database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa

from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.modules.liaison.model import GUIDE, ChatMessage, MessageContent, Session, SessionFilter, SessionStatus
from cstp_grpc.modules.liaison.sql_tables import (
    OPEN_SESSION,
    Row,
    chat_messages,
    chat_sessions,
    hold_row,
    liaison_holds,
    message_from_row,
    message_row,
    row_context_json,
    session_from_row,
    session_row,
    session_values,
)
from cstp_grpc.platform.storage import pagination
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import (
    CompiledStatement,
    GlobalWriteLock,
    UnitOfWork,
    UtcDateTime,
    bind_parameters,
)

T = TypeVar("T")

HISTORY_ROWS = 200
"""Messages of a history read at a time. Chosen: reading stops at a size that is known only as they come."""

ACTIVE = SessionStatus.ACTIVE.value

table = chat_sessions.c
message_table = chat_messages.c
holds = liaison_holds.c


OF_SESSION = (table.tenant == sa.bindparam("tenant"), table.id == sa.bindparam("id"))
SESSION = sa.select(chat_sessions).where(*OF_SESSION)
# As text, exactly as in the partial index: with a parameter in its place the databases do not use the index.
ACTIVE_SESSION = sa.select(chat_sessions).where(
    table.tenant == sa.bindparam("tenant"), table.user_id == sa.bindparam("user_id"), sa.text(OPEN_SESSION)
)
COUNT_ACTIVE = sa.select(sa.func.count()).select_from(chat_sessions).where(sa.text(OPEN_SESSION))
# A claim stays with its session as long as the same agent has it in the same epoch; otherwise CASE yields NULL.
KEEPS_CLAIM = sa.and_(
    table.active_agent == sa.bindparam("active_agent"),
    table.routing_epoch == sa.bindparam("routing_epoch"),
    table.status == sa.bindparam("status"),
)
# Compare and swap: the row must have the version before the new one.
REPLACE = (
    sa.update(chat_sessions)
    .where(*OF_SESSION, table.version + 1 == sa.bindparam("version"), table.status == ACTIVE)
    .values(
        bind_parameters(
            (
                "active_agent",
                "status",
                "version",
                "routing_epoch",
                "activation_key",
                "updated_at",
                "closed_at",
                "context",
            )
        )
    )
    .values(
        claimed_by=sa.case((KEEPS_CLAIM, table.claimed_by)), claimed_until=sa.case((KEEPS_CLAIM, table.claimed_until))
    )
)
HAND_OVER = (
    sa.update(chat_sessions)
    .where(
        *OF_SESSION,
        table.version + 1 == sa.bindparam("version"),
        table.created_at == sa.bindparam("created_at"),
        table.user_id == sa.bindparam("user_id"),
        table.status == ACTIVE,
    )
    .values(bind_parameters(("active_agent", "version", "routing_epoch", "activation_key", "updated_at")))
    .values(claimed_by=sa.null(), claimed_until=sa.null())
    .returning(table.message_count, table.claim_number)
)
CLAIM = (
    sa.update(chat_sessions)
    .where(
        *OF_SESSION,
        table.version == sa.bindparam("version"),
        table.active_agent == sa.bindparam("active_agent"),
        table.routing_epoch == sa.bindparam("routing_epoch"),
        table.status == ACTIVE,
        sa.or_(
            table.claimed_by.is_(None),
            table.claimed_by == sa.bindparam("claimed_by"),
            table.claimed_until <= sa.bindparam("now"),
        ),
    )
    .values(bind_parameters(("claimed_by", "claimed_until", "claim_number")))
)
COUNT = (
    sa.update(chat_sessions)
    .where(*OF_SESSION, table.status == ACTIVE)
    .values(message_count=table.message_count + 1, updated_at=sa.bindparam("updated_at"))
    .returning(table.message_count, table.active_agent)
)
OF_HOLD = (holds.tenant == sa.bindparam("tenant"), holds.session_id == sa.bindparam("id"))
RELEASE = sa.delete(liaison_holds).where(*OF_HOLD)
# A claim ends the alarms of an unclaimed or silent session; due at once, so that the supervisor finds the next limit.
NOW = sa.bindparam("now", type_=UtcDateTime())
RECORD_CLAIM = (
    sa.update(liaison_holds)
    .where(*OF_HOLD)
    .values(
        claimed_at=NOW,
        due_at=sa.case((sa.or_(holds.unclaimed_told, holds.silence_told), NOW), else_=holds.due_at),
        unclaimed_told=False,
        silence_told=False,
    )
)
RECORD_ACTIVITY = (
    sa.update(liaison_holds).where(*OF_HOLD, holds.silence_told).values(due_at=sa.bindparam("now"), silence_told=False)
)
MESSAGES = sa.select(chat_messages).where(
    message_table.tenant == sa.bindparam("tenant"), message_table.session_id == sa.bindparam("session_id")
)
NAMED = MESSAGES.where(message_table.message_id == sa.bindparam("message_id"))
HISTORY = (
    MESSAGES.where(message_table.sequence > sa.bindparam("after")).order_by(message_table.sequence).limit(HISTORY_ROWS)
)


class SqlSessionStore:
    """Store sessions in the tables `chat_sessions` and `chat_messages`.

    The first statement of a writing transaction waits for the writers of other servers: see `GlobalWriteLock`. To
    replace a session, a transaction first reads it with the lock.

    A session of a liaison agent is due for supervision `first_look` after the hand-over.
    """

    def __init__(self, database: Database, first_look: timedelta = timedelta(0)) -> None:
        self._first_look = first_look
        dialect = database.dialect
        # REPEATABLE READ on PostgreSQL, so that a session and its messages are of one state; SQLite reads so anyway.
        self._database = database.with_repeatable_reads()
        self._order = GlobalWriteLock(database.dialect)
        add = database.insertion(chat_sessions).values(bind_parameters(table.keys())).on_conflict_do_nothing()
        self._add = CompiledStatement(add, dialect)
        self._get = CompiledStatement(SESSION, dialect)
        self._get_locked = CompiledStatement(SESSION.with_for_update(), dialect)
        self._active = CompiledStatement(ACTIVE_SESSION, dialect)
        self._count_active = CompiledStatement(COUNT_ACTIVE, dialect)
        self._replace = CompiledStatement(REPLACE, dialect)
        self._hand_over = CompiledStatement(HAND_OVER, dialect)
        of_messages = table.message_count == sa.bindparam("message_count")
        self._hand_over_with_messages = CompiledStatement(HAND_OVER.where(of_messages), dialect)
        self._claim = CompiledStatement(CLAIM, dialect)
        hold = database.insertion(liaison_holds).values(bind_parameters(holds.keys()))
        hold = hold.on_conflict_do_update(
            index_elements=["tenant", "session_id"],
            set_={name: hold.excluded[name] for name in holds.keys() if name not in ("tenant", "session_id")},  # noqa: SIM118
            # The same activation keeps its times and its reported alarms.
            where=holds.activation_key != hold.excluded.activation_key,
        )
        self._hold = CompiledStatement(hold, dialect)
        self._release = CompiledStatement(RELEASE, dialect)
        self._record_claim = CompiledStatement(RECORD_CLAIM, dialect)
        self._record_activity = CompiledStatement(RECORD_ACTIVITY, dialect)
        self._count = CompiledStatement(COUNT, dialect)
        self._append = CompiledStatement(
            sa.insert(chat_messages).values(bind_parameters(message_table.keys())), dialect
        )
        self._message = CompiledStatement(NAMED, dialect)
        self._history = CompiledStatement(HISTORY, dialect)

    def read_snapshot(self) -> AbstractContextManager[UnitOfWork]:
        """Open a unit of work that reads one state of the database. Raises QueryFailed."""
        return self._database.read_snapshot()

    def add(self, unit_of_work: UnitOfWork, session: Session) -> bool:
        """Add a session and return True; False if the id is taken or the user has an active one."""
        self._order.hold(unit_of_work)
        return self._add.run(unit_of_work, session_row(session)) == 1

    def get(self, unit_of_work: UnitOfWork, tenant: str, session_id: str, *, lock: bool = False) -> Session | None:
        """Return a session, or None; with `lock` no other transaction can change it until this one ends."""
        if lock:
            self._order.hold(unit_of_work)
        statement = self._get_locked if lock else self._get
        row = statement.first(unit_of_work, {"tenant": tenant, "id": replace_unstorable(session_id)})
        return None if row is None else session_from_row(row)

    def get_small(
        self, unit_of_work: UnitOfWork, tenant: str, session_id: str | None, user_id: str, max_characters: int
    ) -> Session | None:
        """Return a session by its id, or else the active one of a user.

        Returns None if it is missing, or if the JSON of its context has more than `max_characters`.
        """
        if session_id is None:
            row = self._active.first(unit_of_work, {"tenant": tenant, "user_id": replace_unstorable(user_id)})
        else:
            row = self._get.first(unit_of_work, {"tenant": tenant, "id": replace_unstorable(session_id)})
        return None if row is None or len(row_context_json(row)) > max_characters else session_from_row(row)

    def count_active(self, unit_of_work: UnitOfWork) -> int:
        ((count,),) = self._count_active.all(unit_of_work, {})
        return int(count)

    def active(self, unit_of_work: UnitOfWork, tenant: str, user_id: str) -> Session | None:
        row = self._active.first(unit_of_work, {"tenant": tenant, "user_id": replace_unstorable(user_id)})
        return None if row is None else session_from_row(row)

    def replace(self, unit_of_work: UnitOfWork, session: Session) -> bool:
        """Replace an active session by its next version; return False if it has another version or is closed.

        Neither message_count nor claim is written, since messages and claims do not change the version. A session whose
        active_agent, routing_epoch or status changes loses its claim.
        """
        replaced = self._replace.run(unit_of_work, session_row(session)) == 1
        if replaced:
            self._update_hold(unit_of_work, session)
        return replaced

    def hand_over(self, unit_of_work: UnitOfWork, session: Session, *, with_messages: bool) -> Session | None:
        """Assign an active session to the agent of its next version and return it as stored.

        Returns None if the session has changed: it is closed, has another version, was opened at another instant or for
        another user, or, `with_messages`, has another number of messages. Agent, epoch, activation key and time of
        change are written; the claim, which `session` must not have, ends; its number and the messages stay.
        """
        self._order.hold(unit_of_work)
        statement = self._hand_over_with_messages if with_messages else self._hand_over
        row = statement.first(unit_of_work, session_values(session))
        if row is None:
            return None
        message_count, claim_number = row
        stored = session
        if (message_count, claim_number) != (session.message_count, session.claim_number):
            stored = replace(session, message_count=message_count, claim_number=claim_number)
        self._update_hold(unit_of_work, stored)
        return stored

    def _update_hold(self, unit_of_work: UnitOfWork, session: Session) -> None:
        """Update the record of the liaison agent that has a session, or delete it if none has."""
        values = {"tenant": session.tenant, "id": replace_unstorable(session.id), "now": session.updated_at}
        if not session.is_open or session.activation_key is None:
            self._release.run(unit_of_work, values)
        elif self._hold.run(unit_of_work, hold_row(session, session.updated_at + self._first_look)) == 0:
            # No row was written: the agent had the session before, and the change counts as activity.
            self._record_activity.run(unit_of_work, values)

    def claim(self, unit_of_work: UnitOfWork, session: Session, now: datetime) -> bool:
        """Write the claim of a session with the given version, agent and epoch, and return whether it was free.

        A session is free at `now` if nobody has claimed it, the same claimant has, or the claim has ended.
        """
        self._order.hold(unit_of_work)
        values = {**session_values(session), "now": now}
        claimed = self._claim.run(unit_of_work, values) == 1
        if claimed:
            self._record_claim.run(unit_of_work, values)
        return claimed

    def append(
        self, unit_of_work: UnitOfWork, tenant: str, session_id: str, content: MessageContent, author: str, at: datetime
    ) -> ChatMessage | None:
        """Append a message to an active session and return it, or None if the session is not active."""
        self._order.hold(unit_of_work)
        # The update locks the session's row and numbers the message, so that sequences have no gaps and no repetitions.
        counted = self._count.first(
            unit_of_work, {"tenant": tenant, "id": replace_unstorable(session_id), "updated_at": at}
        )
        if counted is None:
            return None
        sequence, active_agent = counted
        message = ChatMessage(sequence, content, active_agent, author, at)
        self._append.run(unit_of_work, message_row(tenant, session_id, message))
        if active_agent != GUIDE:
            self._record_activity.run(unit_of_work, {"tenant": tenant, "id": replace_unstorable(session_id), "now": at})
        return message

    def message(self, unit_of_work: UnitOfWork, tenant: str, session_id: str, message_id: str) -> ChatMessage | None:
        """Return the message with an id that its sender chose, or None."""
        values = {
            "tenant": tenant,
            "session_id": replace_unstorable(session_id),
            "message_id": replace_unstorable(message_id),
        }
        row = self._message.first(unit_of_work, values)
        return None if row is None else message_from_row(row)

    def history(self, unit_of_work: UnitOfWork, tenant: str, session_id: str, max_characters: int) -> list[ChatMessage]:
        """Return messages in order, up to the first that makes their total exceed `max_characters`."""
        found: list[ChatMessage] = []
        left = max_characters
        values = {"tenant": tenant, "session_id": replace_unstorable(session_id)}
        while True:
            after = found[-1].sequence if found else 0
            rows = self._history.all(unit_of_work, {**values, "after": after})
            for message in map(message_from_row, rows):
                found.append(message)
                left -= len(message.body.content)
                if left < 0:
                    return found
            if len(rows) < HISTORY_ROWS:
                return found

    def messages(
        self, unit_of_work: UnitOfWork, tenant: str, session_id: str, request: pagination.PageRequest
    ) -> pagination.Page[ChatMessage]:
        """Return a page of messages in order. Raises InvalidArgument if the page token is not from this listing."""
        conditions = ("messages", tenant, session_id)
        after = pagination.decode_page_token(request.token, conditions, (int,))[0] if request.token else 0
        query = MESSAGES.where(message_table.sequence > after).order_by(message_table.sequence)
        values = {"tenant": tenant, "session_id": replace_unstorable(session_id)}
        rows = unit_of_work.execute(query.limit(request.limit + 1), values).all()
        return build_page(
            rows, message_from_row, request, lambda last: pagination.encode_page_token(conditions, (last.sequence,))
        )

    def page(
        self, unit_of_work: UnitOfWork, conditions: SessionFilter, request: pagination.PageRequest
    ) -> pagination.Page[Session]:
        """Return a page of sessions, last opened first and by falling id at the same instant.

        Raises InvalidArgument if the page token is not from this listing.
        """
        rows = unit_of_work.execute(session_query(conditions, request).limit(request.limit + 1)).all()
        return build_page(rows, session_from_row, request, lambda last: next_session_token(last, conditions))


def session_query(conditions: SessionFilter, request: pagination.PageRequest) -> sa.Select[Any]:
    """Return the query of a listing from its page token on."""
    query = sa.select(chat_sessions).where(table.tenant == conditions.tenant)
    for column, wanted in ((table.user_id, conditions.user_id), (table.active_agent, conditions.active_agent)):
        if wanted is not None:
            query = query.where(column == replace_unstorable(wanted))
    if conditions.status is not None:
        query = query.where(table.status == conditions.status.value)
    if request.token:
        microseconds, last_id = pagination.decode_page_token(request.token, conditions, (int, str))
        last = sa.tuple_(pagination.from_microseconds(int(microseconds)), last_id)
        query = query.where(sa.tuple_(table.created_at, table.id) < last)
    return query.order_by(sa.desc(table.created_at), sa.desc(table.id))


def next_session_token(last: Session, conditions: SessionFilter) -> str:
    return pagination.encode_page_token(conditions, (pagination.to_microseconds(last.created_at), last.id))


def build_page(
    rows: Sequence[Row], item_of: Callable[[Row], T], request: pagination.PageRequest, token_of: Callable[[T], str]
) -> pagination.Page[T]:
    fits = rows[: pagination.count_within_budget(rows[: request.limit], row_size)]
    items = tuple(map(item_of, fits))
    return pagination.Page(items, token_of(items[-1]) if len(rows) > len(items) else "")


def row_size(row: Row) -> int:
    return pagination.estimate_message_bytes(value for value in row if isinstance(value, str))
