"""The tables of the audit trail, and their rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    RowMapping,
    Table,
    Text,
)

from cstp_grpc.audit.model import AuditedPeer, AuditEntry, AuditEvent, JudgedAction
from cstp_grpc.enums import PeerStatus, Stakes
from cstp_grpc.storage.unit_of_work import (
    IDENTIFIER,
    OPTIONAL_JSON,
    SERIAL,
    UtcDateTime,
    metadata,
    partial_index,
)
from cstp_grpc.unicode_text import replace_unstorable

NOT_A_CHECK = "event <> 'guardrail_check'"
BLOCKED = "allowed = false"

audit_entries = Table(
    "audit_entries",
    metadata,
    Column("id", SERIAL, primary_key=True),
    Column("timestamp", UtcDateTime, nullable=False),
    Column("event", Text, nullable=False),
    Column("requesting_agent", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("claimed_agent", Text),
    Column("action", Text),
    Column("allowed", Boolean),
    Column("violations", OPTIONAL_JSON),
    Column("warnings", OPTIONAL_JSON),
    Column("evaluated", Integer, nullable=False),
    Column("rule_set_version", Text),
    Column("correlation_id", Text),
    Column("decision_id", IDENTIFIER),
    Column("error", Text),
    Column("peers", OPTIONAL_JSON),
    Column("intent_revision", Integer),
    Column("count", Integer),
    Column("first_at", UtcDateTime),
    Column("last_at", UtcDateTime),
    Column("approval_id", IDENTIFIER),
    Column("dryrun", OPTIONAL_JSON),
    # Behind the others, so that SQLite reads past it only where it is asked for.
    Column("judged", LargeBinary),
    Column("content_salt", LargeBinary),
    Column("content_hash", LargeBinary),
    Column("chain_id", Integer),
    Column("chain_position", BigInteger),
    Column("previous_hash", LargeBinary),
    Column("entry_hash", LargeBinary),
    # Nearly all end in the instant and the id, the order of every listing, so that filters need no sort; the few
    # entries of one request are sorted.
    Index(None, "timestamp", "id"),
    Index(None, "requesting_agent", "timestamp", "id"),
    Index(None, "request_id"),
    # Guardrail checks that pass are most of the trail; the indexes that leave them out cost them nothing.
    partial_index("correlation_id", "timestamp", "id", where="correlation_id IS NOT NULL"),
    partial_index("decision_id", "timestamp", "id", where="decision_id IS NOT NULL"),
    partial_index("event", "timestamp", "id", where=NOT_A_CHECK),
    partial_index("allowed", "timestamp", "id", where=BLOCKED),
    partial_index("error", "timestamp", "id", where="error IS NOT NULL"),
    partial_index("approval_id", "timestamp", "id", where="approval_id IS NOT NULL"),
)
"""The audit trail; triggers refuse every UPDATE but those that remove the content of an entry, and every DELETE but
that of entries that a removed segment names. `violations`, `warnings`, `dryrun`, `peers` are NULL where empty. `judged`
is what `encode_judged_action` made. `content_hash` is NULL while the content is there; the columns after it are NULL in
entries of before there were chains."""

audit_guardrails = Table(
    "audit_guardrails",
    metadata,
    Column("guardrail_id", Text, primary_key=True),
    Column("timestamp", UtcDateTime, primary_key=True),
    Column("entry_id", BigInteger, ForeignKey("audit_entries.id"), primary_key=True),
    sqlite_with_rowid=False,
)
"""Which guardrails an audit entry names, and its instant, for filtering; as append-only as the trail."""

audit_chains = Table(
    "audit_chains",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("nonce", Text, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
)
"""The chains of entries, as append-only as the trail: one for a SQLite file, on PostgreSQL one for each connection of a
writer."""

audit_checkpoints = Table(
    "audit_checkpoints",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("signed_at", UtcDateTime, nullable=False),
    Column("last_entry_id", BigInteger, nullable=False),
    Column("statement", Text, nullable=False),
    Column("signature", LargeBinary, nullable=False),
)
"""The signed checkpoints, numbered from 1 without gaps; append-only. `statement` is the signed canonical JSON."""

audit_checkpoint_heads = Table(
    "audit_checkpoint_heads",
    metadata,
    Column("chain_id", Integer, primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("number", Integer, ForeignKey("audit_checkpoints.number"), nullable=False),
    sqlite_with_rowid=False,
)
"""Up to which position of a chain a checkpoint has signed, to be found by the chain; append-only."""

audit_segments = Table(
    "audit_segments",
    metadata,
    Column("chain_id", Integer, primary_key=True),
    Column("first_position", BigInteger, primary_key=True),
    Column("last_position", BigInteger, nullable=False),
    Column("last_hash", LargeBinary, nullable=False),
    Column("statement", Text, nullable=False),
    Column("signature", LargeBinary, nullable=False),
)
"""The segments of chains that were removed because their time was over, each with a signed statement; append-only. The
chain 0 has the entries without one, by their ids."""

CHAIN_COLUMNS = ("chain_id", "chain_position", "previous_hash", "entry_hash")
"""The columns that give an entry its place in a chain, next to each other; the writer fills them in."""
HASH_COLUMNS = ("content_salt", "content_hash", *CHAIN_COLUMNS)
"""The columns that no listing of entries reads."""
RARE_COLUMNS = ("count", "first_at", "last_at", "approval_id")
"""The columns of entries that count calls or that are about an approval."""
JUDGED_COLUMNS = [column for column in audit_entries.c if column.name not in HASH_COLUMNS]
"""The columns of a listing of entries with what was judged."""
LISTED_COLUMNS = [column for column in JUDGED_COLUMNS if column.name != "judged"]
"""The columns of a listing of entries: what was judged may be large, and is read where it is wanted only."""
MAX_JUDGED_BYTES: Final = 65_536
"""Maximum size of a stored action; a larger one is not kept. Chosen: hundreds of times what actions have, so that no
caller fills the trail with contexts of 200 000 characters."""
ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
"""Encodes stored actions; raises ValueError for NaN and infinities, which are not JSON (RFC 8259, section 6)."""


def encode_judged_action(action: JudgedAction) -> bytes | None:
    """Encode an action as JSON, without what is empty; None if it cannot be kept.

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
    try:
        # ASCII, with escapes for everything else, halves of surrogate pairs included.
        encoded = ENCODER.encode(document).encode()
    except ValueError:
        return None
    return encoded if len(encoded) <= MAX_JUDGED_BYTES else None


def decode_judged_action(encoded: bytes) -> JudgedAction:
    """Decode an action that `encode_judged_action` encoded."""
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
    )


def entry_to_row(entry: AuditEntry) -> dict[str, Any]:
    """Convert an entry to a row of `audit_entries`."""
    # By hand: `asdict` copies whatever is nested, and takes several times as long. Each check makes one.
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


def name_guardrails(row: Mapping[Any, Any]) -> list[tuple[str, Any, int]]:
    """Return the rows by which an entry is found: guardrail, instant, entry."""
    names = {*(row["violations"] or ()), *(row["warnings"] or ()), *(row["dryrun"] or ())}
    return [(name, row["timestamp"], row["id"]) for name in names]
