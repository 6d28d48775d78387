"""The audit trail in an SQL database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Row,
    Select,
    TextClause,
    desc,
    insert,
    select,
    text,
    tuple_,
)

from cstp_grpc.audit.model import AuditedPeer, AuditEntry, AuditEvent, AuditFilter
from cstp_grpc.storage.driver_statement import DriverStatement, Parameters, parameters
from cstp_grpc.storage.insertion import Insertion
from cstp_grpc.storage.page_token import from_microseconds, read_token, to_microseconds, write_token
from cstp_grpc.storage.paging import Page, PageRequest, estimated_size, fitting
from cstp_grpc.storage.reading import reading
from cstp_grpc.storage.tables import BLOCKED, NOT_A_CHECK, audit_entries, audit_guardrails
from cstp_grpc.storage.text import storable
from cstp_grpc.vocabulary import PeerStatus

OF_COUNTS = ("count", "first_at", "last_at")
"""The columns of entries that count calls."""


class SqlAuditStore:
    """Keeps entries in the tables `audit_entries` and `audit_guardrails`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        dialect = engine.dialect
        columns = [column.name for column in audit_entries.c if column.name != "id"]
        # What only counts have costs the entries of all other calls nothing.
        common = [name for name in columns if name not in OF_COUNTS]
        entry = insert(audit_entries).inline().values(parameters(common))
        guardrail = insert(audit_guardrails).values(parameters(audit_guardrails.c.keys()))
        self._entries = DriverStatement(entry, dialect)
        self._counts = DriverStatement(insert(audit_entries).inline().values(parameters(columns)), dialect)
        self._entries_with_guardrails = EntriesWithGuardrails(
            DriverStatement(entry.returning(audit_entries.c.id), dialect), DriverStatement(guardrail, dialect)
        )

    def insertion(self, entry: AuditEntry) -> Insertion:
        """Return the job that adds an entry; its values are converted here and now."""
        if entry.count is not None:
            counts = {name: getattr(entry, name) for name in OF_COUNTS}
            return Insertion(self._counts, self._counts.prepare(row_of(entry) | counts))
        if entry.violations or entry.warnings:
            return Insertion(self._entries_with_guardrails, self._entries_with_guardrails.prepare(entry))
        return Insertion(self._entries, self._entries.prepare(row_of(entry)))

    def page(self, conditions: AuditFilter, request: PageRequest) -> Page[AuditEntry]:
        """Return the entries that meet all conditions, latest first and the later stored first at the same instant.

        Raises InvalidArgument where the page token is not one of this listing, QueryFailed where the database does not
        answer.
        """
        query = listing(conditions, request).limit(request.limit + 1)
        with reading(self._engine) as connection:
            entries = [entry_of(row) for row in connection.execute(query)]
        items = tuple(entries[: request.limit])
        items = items[: fitting(items, size_of)]
        return Page(items, token_after(items[-1], conditions) if len(entries) > len(items) else "")


class EntriesWithGuardrails:
    """Adds entries that name guardrails, and the rows by which guardrails are found."""

    def __init__(self, insert_returning_id: DriverStatement, insert_guardrail: DriverStatement) -> None:
        self._insert_returning_id = insert_returning_id
        self._insert_guardrail = insert_guardrail

    def prepare(self, entry: AuditEntry) -> PreparedEntry:
        """Convert an entry to what the driver takes."""
        guardrails = sorted({*entry.violations, *entry.warnings})
        rows = [{"guardrail_id": name, "timestamp": entry.timestamp, "entry_id": 0} for name in guardrails]
        return PreparedEntry(
            self._insert_returning_id.prepare(row_of(entry)), [self._insert_guardrail.prepare(row) for row in rows]
        )

    def insert_rows(self, connection: Connection, rows: Sequence[PreparedEntry]) -> None:
        """Add entries within a transaction, in their order. Raises SQLAlchemyError."""
        guardrails = []
        for row in rows:
            ((entry_id,),) = self._insert_returning_id.all_prepared(connection, row.entry)
            for guardrail in row.guardrails:
                self._insert_guardrail.fill_in(guardrail, "entry_id", entry_id)
            guardrails += row.guardrails
        self._insert_guardrail.insert_rows(connection, guardrails)


@dataclass(frozen=True, slots=True)
class PreparedEntry:
    """An entry as the driver takes it, and the rows of its guardrails, which lack the id of the entry."""

    entry: Parameters
    guardrails: list[Parameters]


def listing(conditions: AuditFilter, request: PageRequest) -> Select[tuple[object, ...]]:
    """Return the query of a listing from its page token on."""
    table = audit_entries.c
    query = select(audit_entries).where(*restrictions(conditions))
    timestamp: Column[object] = table.timestamp
    identity: Column[object] = table.id
    if conditions.guardrail_id is not None:
        # Walking this table's index gives the entries in their order, without sorting.
        guardrails = audit_guardrails.c
        query = query.join_from(audit_guardrails, audit_entries, guardrails.entry_id == table.id)
        query = query.where(guardrails.guardrail_id == storable(conditions.guardrail_id))
        timestamp, identity = guardrails.timestamp, guardrails.entry_id
    if conditions.after is not None:
        query = query.where(timestamp >= conditions.after)
    if conditions.before is not None:
        query = query.where(timestamp <= conditions.before)
    if request.token:
        microseconds, last_id = read_token(request.token, conditions, (int, int))
        last = tuple_(from_microseconds(int(microseconds)), int(last_id))
        query = query.where(tuple_(timestamp, identity) < last)
    return query.order_by(desc(timestamp), desc(identity))


def restrictions(conditions: AuditFilter) -> Iterator[ColumnElement[bool] | TextClause]:
    """Yield the conditions on the entries themselves, except those on their instant."""
    table = audit_entries.c
    for column, wanted in (
        (table.requesting_agent, conditions.requesting_agent),
        (table.request_id, conditions.request_id),
        (table.correlation_id, conditions.correlation_id),
        (table.decision_id, conditions.decision_id),
        (table.error, conditions.error),
    ):
        if wanted is not None:
            yield column == storable(wanted)
    if conditions.event is not None:
        yield table.event == conditions.event
        if conditions.event != AuditEvent.GUARDRAIL_CHECK:
            yield text(NOT_A_CHECK)  # implied, and what lets the partial index be used
    if conditions.allowed is not None:
        yield table.allowed.is_(True) if conditions.allowed else text(BLOCKED)


def row_of(entry: AuditEntry) -> dict[str, object]:
    """Return an entry as a row of `audit_entries`."""
    return {
        "timestamp": entry.timestamp,
        "event": entry.event.value,
        "requesting_agent": entry.requesting_agent,
        "request_id": entry.request_id,
        "claimed_agent": storable(entry.claimed_agent),
        "action": storable(entry.action),
        "allowed": entry.allowed,
        "violations": entry.violations or None,
        "warnings": entry.warnings or None,
        "evaluated": entry.evaluated,
        "rule_set_version": entry.rule_set_version,
        "correlation_id": storable(entry.correlation_id),
        "decision_id": entry.decision_id,
        "error": entry.error,
        "peers": [[peer.agent, peer.status, peer.allowed] for peer in entry.peers] or None,
        "intent_revision": entry.intent_revision,
    }


def entry_of(row: Row[tuple[object, ...]]) -> AuditEntry:
    """Return a row of `audit_entries` as an entry."""
    values = dict(row._mapping)
    values["event"] = AuditEvent(values["event"])
    values["violations"] = tuple(values["violations"] or ())
    values["warnings"] = tuple(values["warnings"] or ())
    values["peers"] = tuple(
        AuditedPeer(agent, PeerStatus(status), allowed) for agent, status, allowed in values["peers"] or ()
    )
    return AuditEntry(**values)


def token_after(last: AuditEntry, conditions: AuditFilter) -> str:
    """Return the token of the page after an entry."""
    assert last.id is not None
    return write_token(conditions, (to_microseconds(last.timestamp), last.id))


def size_of(entry: AuditEntry) -> int:
    """Return about how many bytes an entry takes in a message."""
    texts = (
        entry.requesting_agent,
        entry.request_id,
        entry.claimed_agent,
        entry.action,
        entry.rule_set_version,
        entry.correlation_id,
        entry.decision_id,
        entry.error,
    )
    return estimated_size((*texts, *entry.violations, *entry.warnings, *(peer.agent for peer in entry.peers)))
