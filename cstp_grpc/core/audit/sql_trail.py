"""The audit trail in SQL, and its entries as rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Column, RowMapping, Select, desc, func, insert, select, tuple_

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import JudgedContent, PeerStatus, Stakes
from cstp_grpc.core.audit.entry_hashing import hash_content, hash_entry
from cstp_grpc.core.audit.model import JUDGED_TEXTS, AuditedPeer, AuditEntry, AuditEvent, AuditFilter, JudgedAction
from cstp_grpc.core.audit.sql_chain import AuditChain, ChainedInserter, ChainedRow, SaltSource
from cstp_grpc.core.audit.sql_conditions import all_clauses, filter_clauses
from cstp_grpc.core.audit.sql_tables import (
    JUDGED_COLUMNS,
    LISTED_COLUMNS,
    RARE_COLUMNS,
    audit_entries,
    audit_guardrails,
)
from cstp_grpc.core.commands.model import NO_INVOCATION, Invocation
from cstp_grpc.platform.storage import pagination
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.unit_of_work import (
    CompiledStatement,
    Parameters,
    RowInsertion,
    UnitOfWork,
    bind_parameters,
    run_insertions,
)
from cstp_grpc.platform.storage.writer import GroupCommitWriter

MAX_JUDGED_PAGE = 200
"""Maximum number of entries in a page with their actions. Chosen: 200 of the largest are 13 MB."""
MAX_JUDGED_BYTES: Final = 65_536
"""Maximum size of a stored action; a larger one is not kept. Chosen: hundreds of times what actions have, so that no
caller fills the trail with contexts of 200 000 characters."""
ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
"""Encodes stored actions; raises ValueError for NaN and infinities, which are not JSON (RFC 8259, section 6)."""


class SqlAuditTrail:
    """Stores entries in the tables `audit_entries` and `audit_guardrails`, each chained to the one before by its hash.

    `kept` selects the parts of evaluated actions that it stores; `chain` is the chain of its writer.
    """

    def __init__(
        self,
        database: Database,
        writer: GroupCommitWriter,
        kept: JudgedContent = JudgedContent.FULL,
        chain: AuditChain | None = None,
    ) -> None:
        self._database = database
        self._writer = writer
        self._kept = kept
        self._salts = SaltSource()
        chain = chain or AuditChain(database.dialect)
        dialect = database.dialect
        columns = [column.name for column in audit_entries.c if column.name not in ("id", "content_hash")]
        # Columns that only counts and approvals have cost the entries of all other calls nothing.
        common = [name for name in columns if name not in RARE_COLUMNS]
        # `inline` keeps SQLAlchemy from fetching the new id, which only entries with guardrails need.
        entry = insert(audit_entries).inline().values(bind_parameters(common))
        rare_entry = insert(audit_entries).inline().values(bind_parameters(columns))
        guardrail = insert(audit_guardrails).values(bind_parameters(audit_guardrails.c.keys()))
        self._entries, self._rare_entries = (
            ChainedInserter[ChainedRow](chain, CompiledStatement(statement, dialect))
            for statement in (entry, rare_entry)
        )
        self._entries_with_guardrails, self._rare_entries_with_guardrails = (
            GuardrailEntryInserter(
                chain,
                CompiledStatement(statement.returning(audit_entries.c.id), dialect),
                CompiledStatement(guardrail, dialect),
            )
            for statement in (entry, rare_entry)
        )

    def append(self, unit_of_work: UnitOfWork, entry: AuditEntry) -> None:
        """Add an entry within a transaction, so that both are stored or neither is."""
        self._insertion(entry)(unit_of_work)

    async def write(self, entry: AuditEntry) -> None:
        """Add an entry and return when it is on disk, without blocking the event loop. Raises Unavailable."""
        await self._writer.write(self._insertion(entry))

    async def write_all(self, entries: Sequence[AuditEntry]) -> None:
        """Add entries in one transaction, as `write` adds one. Raises Unavailable."""
        insertions = [self._insertion(entry) for entry in entries]
        await self._writer.write(lambda unit_of_work: run_insertions(unit_of_work, insertions))

    def record(self, entry: AuditEntry) -> None:
        """Add an entry and return when it is on disk; for threads. Raises Unavailable."""
        self._writer.run(self._insertion(entry))

    def submit(self, *entries: AuditEntry) -> Future[None]:
        """Add entries in one transaction; the future completes when they are on disk. Raises Unavailable."""
        insertions = [self._insertion(entry) for entry in entries]
        return self._writer.submit(lambda unit_of_work: run_insertions(unit_of_work, insertions))

    def _insertion(self, entry: AuditEntry) -> RowInsertion:
        """Return the job that inserts an entry.

        Its values are converted here, on the caller's thread, so that the writer only executes.
        """
        if self._kept is not JudgedContent.FULL:
            entry = self._without_content(entry)
        # Few kinds of insertion, so that the writer can execute consecutive ones of a kind as one statement.
        is_rare = entry.count is not None or entry.approval_id is not None
        row = entry_to_row(entry)
        if is_rare:
            row |= {name: getattr(entry, name) for name in RARE_COLUMNS}
        content_hash = None
        if entry.action is not None or entry.judged is not None:
            row["content_salt"] = salt = self._salts.take()
            content_hash = hash_content(row["action"], row["judged"], salt)
        entry_hash = hash_entry(row, content_hash)
        if entry.violations or entry.warnings or entry.dryrun:
            inserter = self._rare_entries_with_guardrails if is_rare else self._entries_with_guardrails
            return RowInsertion(inserter, inserter.prepare_entry(entry, row, entry_hash))
        plain = self._rare_entries if is_rare else self._entries
        return RowInsertion(plain, plain.prepare(row, entry_hash))

    def page(self, conditions: AuditFilter, request: pagination.PageRequest) -> pagination.Page[AuditEntry]:
        """Return the matching entries, latest first; at the same instant, the later stored first.

        Raises InvalidArgument if the page token is not one of this listing, QueryFailed if the database does not
        respond.
        """
        limit = min(request.limit, MAX_JUDGED_PAGE) if conditions.with_judged else request.limit
        query = page_query(conditions, request).limit(limit + 1)
        with self._database.read_snapshot() as unit_of_work:
            entries = [entry_from_row(row) for row in unit_of_work.execute(query).mappings()]
        items = tuple(entries[:limit])
        # Cut again by bytes: a page of long actions would exceed the largest message.
        items = items[: pagination.count_within_budget(items, estimate_entry_size)]
        return pagination.Page(items, next_page_token(items[-1], conditions) if len(entries) > len(items) else "")

    def count(self, conditions: AuditFilter) -> int:
        """Return the number of matching entries. Raises QueryFailed."""
        query = select(func.count()).select_from(audit_entries).where(*all_clauses(conditions))
        with self._database.read_snapshot() as unit_of_work:
            return int(unit_of_work.execute(query).scalar_one())

    def newest_id(self, before: datetime | None = None) -> int:
        """Return the id of the newest entry, or of the newest one of before an instant; 0 without one.

        Raises QueryFailed.
        """
        table = audit_entries.c
        query = select(func.max(table.id))
        if before is not None:
            query = select(table.id).where(table.timestamp <= before).order_by(desc(table.timestamp), desc(table.id))
        with self._database.read_snapshot() as unit_of_work:
            return unit_of_work.execute(query.limit(1)).scalar_one_or_none() or 0

    def ids_after(self, entry_id: int, limit: int | None) -> Sequence[int]:
        """Return the ids of the entries after one, in their order. Raises QueryFailed."""
        query = select(audit_entries.c.id).where(audit_entries.c.id > entry_id).order_by(audit_entries.c.id)
        with self._database.read_snapshot() as unit_of_work:
            return unit_of_work.execute(query.limit(limit)).scalars().all()

    def matching(self, conditions: AuditFilter, ids: Sequence[int]) -> Sequence[AuditEntry]:
        """Return those of some entries that meet conditions, in the order of their ids. Raises QueryFailed."""
        if not ids:
            return ()
        query = select(*LISTED_COLUMNS).where(audit_entries.c.id.in_(ids), *all_clauses(conditions))
        with self._database.read_snapshot() as unit_of_work:
            found = unit_of_work.execute(query.order_by(audit_entries.c.id)).mappings()
            return [entry_from_row(row) for row in found]

    def _without_content(self, entry: AuditEntry) -> AuditEntry:
        if entry.event not in JUDGED_TEXTS:
            return entry
        return replace(entry, judged=None, action=entry.action if self._kept is JudgedContent.DESCRIPTION else None)


class GuardrailEntryInserter(ChainedInserter["PreparedEntry"]):
    """Inserts entries that name guardrails, and the rows by which guardrails are searched."""

    def __init__(
        self, chain: AuditChain, insert_returning_id: CompiledStatement, insert_guardrail: CompiledStatement
    ) -> None:
        super().__init__(chain, insert_returning_id)
        self._insert_guardrail = insert_guardrail

    def prepare_entry(self, entry: AuditEntry, row: Mapping[str, object], entry_hash: bytes) -> PreparedEntry:
        """Convert an entry, whose values for the table and hash are given, to the driver's types."""
        guardrails = sorted({*entry.violations, *entry.warnings, *entry.dryrun})
        # The id of the entry is not known before it is inserted; `insert_chained` fills it in.
        rows = [{"guardrail_id": name, "timestamp": entry.timestamp, "entry_id": 0} for name in guardrails]
        prepared = self.prepare(row, entry_hash)
        return PreparedEntry(
            prepared.parameters, prepared.entry_hash, [self._insert_guardrail.prepare(each) for each in rows]
        )

    def insert_chained(self, unit_of_work: UnitOfWork, rows: Sequence[PreparedEntry]) -> None:
        """Insert entries whose places are filled in, in their order."""
        guardrails = []
        for row in rows:
            # One by one, because each id is needed for the rows below; those go in together.
            ((entry_id,),) = self._statement.all_prepared(unit_of_work, row.parameters)
            for guardrail in row.guardrails:
                self._insert_guardrail.fill_in(guardrail, "entry_id", entry_id)
            guardrails += row.guardrails
        self._insert_guardrail.insert_rows(unit_of_work, guardrails)


@dataclass(slots=True)
class PreparedEntry(ChainedRow):
    """An entry in the driver's types, and its guardrail rows, which still lack the entry's id."""

    guardrails: list[Parameters]


def page_query(conditions: AuditFilter, request: pagination.PageRequest) -> Select[Any]:
    """Return the query of a page, starting at its token."""
    table = audit_entries.c
    columns = JUDGED_COLUMNS if conditions.with_judged else LISTED_COLUMNS
    query = select(*columns).where(*filter_clauses(conditions))
    timestamp: Column[object] = table.timestamp
    identity: Column[object] = table.id
    if conditions.guardrail_id is not None:
        # Walking this table's index gives the entries in their order, without sorting.
        guardrails = audit_guardrails.c
        query = query.join_from(audit_guardrails, audit_entries, guardrails.entry_id == table.id)
        query = query.where(guardrails.guardrail_id == replace_unstorable(conditions.guardrail_id))
        timestamp, identity = guardrails.timestamp, guardrails.entry_id
    # On the column that the chosen index is ordered by, which is not always that of the entries.
    if conditions.after is not None:
        query = query.where(timestamp >= conditions.after)
    if conditions.before is not None:
        query = query.where(timestamp <= conditions.before)
    if request.token:
        microseconds, last_id = pagination.decode_page_token(request.token, conditions, (int, int))
        last = tuple_(pagination.from_microseconds(int(microseconds)), int(last_id))
        query = query.where(tuple_(timestamp, identity) < last)
    return query.order_by(desc(timestamp), desc(identity))


def next_page_token(last: AuditEntry, conditions: AuditFilter) -> str:
    assert last.id is not None
    return pagination.encode_page_token(conditions, (pagination.to_microseconds(last.timestamp), last.id))


def estimate_entry_size(entry: AuditEntry) -> int:
    """Return the estimated number of bytes that an entry takes in a message."""
    texts = (
        entry.requesting_agent,
        entry.request_id,
        entry.claimed_agent,
        entry.action,
        entry.rule_set_version,
        entry.correlation_id,
        entry.decision_id,
        entry.error,
        entry.approval_id,
    )
    named = (*entry.violations, *entry.warnings, *entry.dryrun, *(peer.agent for peer in entry.peers))
    judged = 0 if entry.judged is None else len(encode_judged_action(entry.judged) or b"")
    return pagination.estimate_message_bytes((*texts, *named)) + judged


def encode_judged_action(action: JudgedAction) -> bytes | None:
    """Encode an action as JSON, without empty members; None if it cannot be stored.

    That is if it takes more than `MAX_JUDGED_BYTES`, or holds a NaN or an infinity, which no rule can read.
    """
    document: dict[str, object] = {"stakes": action.stakes}
    # One by one: a loop over the fields takes twice as long, and every check is encoded.
    if action.category is not None:
        document["category"] = action.category
    if action.confidence is not None:
        document["confidence"] = action.confidence
    if action.context:
        document["context"] = action.context
    if action.project is not None:
        document["project"] = action.project
    if action.announced_context:
        document["announcedContext"] = action.announced_context
    if action.paths:
        document["paths"] = action.paths
    if action.permissions:
        document["permissions"] = sorted(action.permissions)
    if action.approval_required:
        document["approvalRequired"] = True
    if action.invocation is not NO_INVOCATION:
        document["invocation"] = action.invocation.to_json()
    try:
        # ASCII, with escapes for everything else, halves of surrogate pairs included.
        encoded = ENCODER.encode(document).encode()
    except ValueError:
        return None
    return encoded if len(encoded) <= MAX_JUDGED_BYTES else None


def decode_judged_action(encoded: bytes) -> JudgedAction:
    document = json.loads(encoded)
    return JudgedAction(
        category=document.get("category"),
        stakes=Stakes(document["stakes"]),
        confidence=document.get("confidence"),
        context=document.get("context", {}),
        project=document.get("project"),
        announced_context=document.get("announcedContext", ""),
        paths=tuple(document.get("paths", ())),
        permissions=frozenset(document.get("permissions", ())),
        approval_required=document.get("approvalRequired", False),
        invocation=Invocation.from_json(document.get("invocation", {})),
    )


def entry_to_row(entry: AuditEntry) -> dict[str, Any]:
    """Convert an entry to a row of `audit_entries`."""
    # By hand: `asdict` copies nested values, and takes several times as long. Each check makes one.
    return {
        "timestamp": entry.timestamp,
        "event": entry.event.value,
        "requesting_agent": entry.requesting_agent,
        "request_id": entry.request_id,
        "claimed_agent": entry.claimed_agent and replace_unstorable(entry.claimed_agent),
        "action": entry.action and replace_unstorable(entry.action),
        "allowed": entry.allowed,
        "violations": entry.violations or None,
        "warnings": entry.warnings or None,
        "evaluated": entry.evaluated,
        "rule_set_version": entry.rule_set_version,
        "correlation_id": entry.correlation_id and replace_unstorable(entry.correlation_id),
        "decision_id": entry.decision_id,
        "error": entry.error,
        "peers": [[peer.agent, peer.status, peer.allowed] for peer in entry.peers] if entry.peers else None,
        "intent_revision": entry.intent_revision,
        "dryrun": entry.dryrun or None,
        "judged": None if entry.judged is None else encode_judged_action(entry.judged),
        # Filled in where they are known.
        "content_salt": None,
        "chain_id": None,
        "chain_position": None,
        "previous_hash": None,
        "entry_hash": None,
    }


def entry_from_row(row: RowMapping) -> AuditEntry:
    """Convert a row of `audit_entries` to an entry."""
    values = dict(row)
    values["event"] = AuditEvent(values["event"])
    values["violations"] = tuple(values["violations"] or ())
    values["warnings"] = tuple(values["warnings"] or ())
    values["dryrun"] = tuple(values["dryrun"] or ())
    encoded = values.pop("judged", None)
    values["judged"] = None if encoded is None else decode_judged_action(encoded)
    values["peers"] = tuple(
        AuditedPeer(agent, PeerStatus(status), allowed) for agent, status, allowed in values["peers"] or ()
    )
    return AuditEntry(**values)
