"""The store of approval requests in SQL, and its table as the newest migration leaves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import ApprovalStatus
from cstp_grpc.contract.errors import Conflict
from cstp_grpc.core.commands.model import NO_INVOCATION, Invocation
from cstp_grpc.modules.approvals.model import UNDECIDED, Approval, ApprovalFilter, ApprovalSubject, AskingGuardrail
from cstp_grpc.platform.storage import pagination
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.row_mapper import ColumnCodec, RowMapper
from cstp_grpc.platform.storage.unit_of_work import (
    IDENTIFIER,
    OPTIONAL_JSON,
    GlobalWriteLock,
    UnitOfWork,
    UtcDateTime,
    begins_with,
    metadata,
    partial_index,
)

IS_CURRENT = "is_current"
"""The condition of the partial indexes, as every query repeats it."""

approvals = sa.Table(
    "approvals",
    metadata,
    sa.Column("id", IDENTIFIER, primary_key=True),
    sa.Column("digest", IDENTIFIER, nullable=False),
    sa.Column("agent", IDENTIFIER, nullable=False),
    sa.Column("on_behalf_of", sa.Text),
    sa.Column("stakes", sa.Text, nullable=False),
    sa.Column("category", sa.Text),
    sa.Column("confidence", sa.Double),
    sa.Column("description", sa.Text),
    sa.Column("project", sa.Text),
    sa.Column("paths", OPTIONAL_JSON),
    sa.Column("announced_context", sa.Text, nullable=False),
    sa.Column("context", OPTIONAL_JSON),
    sa.Column("invocation", OPTIONAL_JSON),
    sa.Column("guardrails", OPTIONAL_JSON, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=False),
    sa.Column("check_id", sa.Text, nullable=False),
    sa.Column("rule_set_version", sa.Text, nullable=False),
    sa.Column("correlation_id", sa.Text),
    sa.Column("callback_url", sa.Text),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("decided_by", sa.Text),
    sa.Column("decided_at", UtcDateTime),
    sa.Column("comment", sa.Text),
    sa.Column("reusable_until", UtcDateTime),
    sa.Column("uses", sa.Integer, nullable=False),
    sa.Column("used_at", UtcDateTime),
    sa.Column("used_by", sa.Text),
    sa.Column("is_current", sa.Boolean, nullable=False),
    sa.Column("changed_at", UtcDateTime, nullable=False),
    sa.Column("change", sa.BigInteger, nullable=False),
    # At most one request counts for a digest, in any case.
    partial_index("digest", where=IS_CURRENT, name="uq_approvals_digest", unique=True),
    partial_index("agent", "status", where=IS_CURRENT),
    partial_index("expires_at", where=IS_CURRENT),
    sa.Index(None, "change", unique=True),
    sa.Index(None, "created_at", "id"),
    sa.Index(None, "agent", "created_at", "id"),
    sa.Index(None, "changed_at"),
    sqlite_with_rowid=False,
)
"""Approval requests; `guardrails` is JSON. `change` numbers the last change of each in the order of all changes."""

columns = approvals.c
LARGE = frozenset({"announced_context", "context"})
"""The columns that listings leave out."""
CHANGING = frozenset(
    {
        "guardrails",
        "expires_at",
        "correlation_id",
        "callback_url",
        "status",
        "decided_by",
        "decided_at",
        "comment",
        "reusable_until",
        "uses",
        "used_at",
        "used_by",
        "is_current",
    }
)
"""The columns that change after a request was made."""
CURRENT = sa.text(IS_CURRENT)
NEWEST = sa.select(sa.func.coalesce(sa.func.max(columns.change), 0))
LISTED = [column for column in columns if column.name not in LARGE]


class SqlApprovalStore:
    """Stores approval requests in the table `approvals`; at most one is current for each digest."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._order = GlobalWriteLock(database.dialect)

    def hold(self, unit_of_work: UnitOfWork) -> None:
        """Make the changes of other servers wait until the transaction ends; every change needs it."""
        self._order.hold(unit_of_work)

    def find_current(self, unit_of_work: UnitOfWork, digest: str) -> Approval | None:
        return self._first(unit_of_work, sa.select(approvals).where(columns.digest == digest, CURRENT))

    def load(self, unit_of_work: UnitOfWork, approval_id: str) -> Approval | None:
        return self._first(unit_of_work, sa.select(approvals).where(columns.id == replace_unstorable(approval_id)))

    def count_pending(self, unit_of_work: UnitOfWork, agent: str, at: datetime) -> int:
        """Return how many requests of an agent are pending and not over at an instant."""
        pending = sa.select(sa.func.count()).where(
            columns.agent == agent, columns.status == ApprovalStatus.PENDING.value, CURRENT, columns.expires_at > at
        )
        count: int = unit_of_work.execute(pending).scalar_one()
        return count

    def add(self, unit_of_work: UnitOfWork, approval: Approval, at: datetime) -> None:
        self.hold(unit_of_work)
        row = APPROVAL.to_row(approval) | {"changed_at": at, "change": NEWEST.scalar_subquery() + 1}
        unit_of_work.execute(sa.insert(approvals).values(row))

    def update(self, unit_of_work: UnitOfWork, approval: Approval, at: datetime) -> None:
        """Store the changes of a request since it was read. Raises Conflict if it was changed in the meantime."""
        self.hold(unit_of_work)
        row = {name: value for name, value in APPROVAL.to_row(approval).items() if name in CHANGING}
        row |= {"changed_at": at, "change": NEWEST.scalar_subquery() + 1}
        # The number that was read is the condition: of two that read the same request, one changes it, so that it is
        # used once even if nothing else kept them apart.
        unchanged = (columns.id == approval.id, columns.change == approval.change)
        if unit_of_work.execute(sa.update(approvals).where(*unchanged).values(row)).rowcount != 1:
            raise Conflict(f"the approval {approval.id} has changed meanwhile; read it again")

    def find_over(self, unit_of_work: UnitOfWork, at: datetime, limit: int) -> Sequence[Approval]:
        """Return current requests whose time has run out at an instant, the longest first."""
        over = sa.select(approvals).where(CURRENT, columns.expires_at <= at)
        rows = unit_of_work.execute(over.order_by(columns.expires_at, columns.id).limit(limit)).mappings()
        return [APPROVAL.from_row(row) for row in rows]

    def remove_ended(self, unit_of_work: UnitOfWork, before: datetime, limit: int) -> int:
        """Remove requests that are not current and changed last before an instant, and return how many."""
        self.hold(unit_of_work)
        ended = sa.select(columns.id).where(
            columns.changed_at < before,
            columns.is_current == sa.false(),
            # The last number stays, or it would be assigned again, and watches would miss its new change.
            columns.change < NEWEST.scalar_subquery(),
        )
        chosen = ended.order_by(columns.changed_at).limit(limit)
        return unit_of_work.execute(sa.delete(approvals).where(columns.id.in_(chosen))).rowcount

    def is_any_over(self, at: datetime) -> bool:
        """Return whether the time of any current request has run out at an instant. Raises QueryFailed."""
        with self._database.read_snapshot() as unit_of_work:
            over = sa.select(columns.id).where(CURRENT, columns.expires_at <= at).limit(1)
            return unit_of_work.execute(over).first() is not None

    def get(self, approval_id: str) -> Approval | None:
        """Return a request, or None if it does not exist. Raises QueryFailed."""
        with self._database.read_snapshot() as unit_of_work:
            return self.load(unit_of_work, approval_id)

    def page(
        self, conditions: ApprovalFilter, at: datetime, request: pagination.PageRequest
    ) -> pagination.Page[Approval]:
        """Return the requests that meet conditions at an instant, latest first, without their contexts.

        Raises InvalidArgument if the page token is not one of this listing, and QueryFailed.
        """
        query = matching_query(conditions, at)
        if request.token:
            microseconds, last_id = pagination.decode_page_token(request.token, conditions, (int, str))
            last = sa.tuple_(pagination.from_microseconds(int(microseconds)), str(last_id))
            query = query.where(sa.tuple_(columns.created_at, columns.id) < last)
        query = query.order_by(sa.desc(columns.created_at), sa.desc(columns.id)).limit(request.limit + 1)
        with self._database.read_snapshot() as unit_of_work:
            found = [APPROVAL.from_row(row) for row in unit_of_work.execute(query).mappings()]
        items = tuple(found[: request.limit])
        items = items[: pagination.count_within_budget(items, estimate_approval_size)]
        more = len(found) > len(items)
        key = (pagination.to_microseconds(items[-1].created_at), items[-1].id) if more else ()
        return pagination.Page(items, pagination.encode_page_token(conditions, key) if more else "")

    def changed_after(self, change: int, agent: str | None, limit: int) -> Sequence[Approval]:
        """Return the requests whose last change is greater, in that order, without their contexts; None is any agent.

        Raises QueryFailed.
        """
        query = sa.select(*LISTED).where(columns.change > change)
        if agent is not None:
            query = query.where(columns.agent == agent)
        with self._database.read_snapshot() as unit_of_work:
            rows = unit_of_work.execute(query.order_by(columns.change).limit(limit)).mappings().all()
        return [APPROVAL.from_row(row) for row in rows]

    def newest_change(self) -> int:
        """Return the number of the last change, or 0. Raises QueryFailed."""
        with self._database.read_snapshot() as unit_of_work:
            number: int = unit_of_work.execute(NEWEST).scalar_one()
        return number

    def _first(self, unit_of_work: UnitOfWork, query: sa.Select[Any]) -> Approval | None:
        row = unit_of_work.execute(query).mappings().first()
        return None if row is None else APPROVAL.from_row(row)


def matching_query(conditions: ApprovalFilter, at: datetime) -> sa.Select[Any]:
    """Return the query of the requests that meet conditions at an instant."""
    query = sa.select(*LISTED)
    if conditions.agent is not None:
        query = query.where(columns.agent == replace_unstorable(conditions.agent))
    if conditions.digest is not None:
        query = query.where(columns.digest == replace_unstorable(conditions.digest))
    if conditions.id_prefix is not None:
        query = query.where(begins_with(columns.id, conditions.id_prefix))
    if conditions.statuses:
        query = query.where(sa.or_(*(has_status(status, at) for status in conditions.statuses)))
        if UNDECIDED.issuperset(conditions.statuses):
            # Implied, and needed to use a partial index: there are few of these among the requests of a year.
            query = query.where(columns.id.in_(sa.select(columns.id).where(CURRENT, columns.expires_at > at)))
    return query


def has_status(status: ApprovalStatus, at: datetime) -> sa.ColumnElement[bool]:
    """Return the condition that requests have a status at an instant, as `Approval.status_at` tells it."""
    stored = columns.status == status.value
    if status in UNDECIDED:
        return sa.and_(stored, columns.expires_at > at)
    if status is not ApprovalStatus.EXPIRED:
        return stored
    undecided = columns.status.in_(sorted(each.value for each in UNDECIDED))
    return sa.or_(stored, sa.and_(undecided, columns.expires_at <= at))


def guardrail_to_json(guardrail: AskingGuardrail) -> dict[str, Any]:
    return {
        "id": guardrail.id,
        "name": guardrail.name,
        "message": guardrail.message,
        "approvers": list(guardrail.approvers),
        "granted_by": guardrail.granted_by,
        "granted_at": guardrail.granted_at and pagination.to_microseconds(guardrail.granted_at),
        "reusable_until": guardrail.reusable_until and pagination.to_microseconds(guardrail.reusable_until),
    }


def guardrail_from_json(stored: Mapping[str, Any]) -> AskingGuardrail:
    granted_at, reusable_until = (
        None if (count := stored[name]) is None else pagination.from_microseconds(count)
        for name in ("granted_at", "reusable_until")
    )
    return AskingGuardrail(
        stored["id"],
        stored["name"],
        stored["message"],
        tuple(stored["approvers"]),
        stored["granted_by"],
        granted_at,
        reusable_until,
    )


APPROVAL = RowMapper(
    Approval,
    approvals,
    codecs={
        "guardrails": ColumnCodec(
            lambda guardrails: [guardrail_to_json(each) for each in guardrails],
            lambda stored: tuple(map(guardrail_from_json, stored)),
        )
    },
    nested={
        "subject": RowMapper(
            ApprovalSubject,
            approvals,
            codecs={
                "invocation": ColumnCodec(
                    lambda invocation: invocation.to_json() or None, Invocation.from_json, NO_INVOCATION
                )
            },
        )
    },
)
"""Rows may lack the large columns."""


def estimate_approval_size(approval: Approval) -> int:
    """Return the estimated number of bytes that a request takes in a message of a listing."""
    subject = approval.subject
    texts = (
        approval.id,
        approval.digest,
        approval.agent,
        approval.on_behalf_of,
        approval.check_id,
        approval.rule_set_version,
        approval.correlation_id,
        approval.decided_by,
        approval.comment,
        approval.used_by,
        subject.category,
        subject.description,
        subject.project,
        *subject.paths,
        subject.invocation.command,
        subject.invocation.directory,
        *subject.invocation.reads,
        *subject.invocation.writes,
    )
    guardrails = (
        text
        for each in approval.guardrails
        for text in (each.id, each.name, each.message, each.granted_by, *each.approvers)
    )
    return pagination.estimate_message_bytes((*texts, *guardrails))
