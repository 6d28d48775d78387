"""Audit entries as documents for other programs: JSON, rows of CSV, and CloudEvents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from cstp_grpc.common.unicode_text import escape_invisible, normalize_text
from cstp_grpc.core.audit.entry_hashing import EntryRow, format_instant

INSTANTS: Final = ("timestamp", "first_at", "last_at")
LISTS: Final = ("violations", "warnings", "dryrun", "peers")
EVENT_MEMBERS: Final = (
    *(
        "timestamp",
        "event",
        "requesting_agent",
        "claimed_agent",
        "action",
        "allowed",
        "violations",
        "warnings",
        "evaluated",
    ),
    *("rule_set_version", "request_id", "correlation_id", "intent_revision", "decision_id", "approval_id", "error"),
    *("peers", "count", "first_at", "last_at", "dryrun"),
)
"""The members of an exported entry that describe the event; those of the protocol's audit log come first."""
PROOF_MEMBERS: Final = (
    *("id", "chain_id", "chain_position", "previous_hash", "entry_hash", "content_hash", "content_salt", "judged"),
)
"""The members that prove the entry; `judged` is the stored text of the action that guardrails evaluated."""
HASHES: Final = ("previous_hash", "entry_hash", "content_hash", "content_salt")
TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(LISTS, list),
    **dict.fromkeys(("id", "chain_id", "chain_position", "evaluated", "intent_revision", "count"), int),
    "allowed": bool,
}
"""The types of members in JSON; the others are texts."""
CSV_COLUMNS: Final = (*EVENT_MEMBERS, *PROOF_MEMBERS)
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\N{MINUS SIGN}")
"""The first characters of formulas of spreadsheets."""
EVENT_TYPE: Final = "org.cstp.audit"
"""The beginning of the types of CloudEvents; the event of the entry follows."""


def entry_to_document(row: EntryRow) -> dict[str, Any]:
    """Return an entry as a JSON object, without missing members; a verdict always has its list of violations."""
    document: dict[str, Any] = {}
    for name in CSV_COLUMNS:
        value = row[name]
        if value is None and name == "violations" and row["allowed"] is not None:
            value = []
        if value is None:
            continue
        if name in INSTANTS:
            value = format_instant(value)
        elif name in HASHES:
            value = bytes(value).hex()
        elif name == "judged":
            value = bytes(value).decode()
        document[name] = value
    return document


def document_to_row(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an entry that `entry_to_document` made a document of. Raises ValueError and TypeError."""
    row: dict[str, Any] = dict.fromkeys(CSV_COLUMNS) | {name: document.get(name) for name in CSV_COLUMNS}
    for name, value in row.items():
        # The canonical JSON is written member by member, and would take a text for a number or a verdict.
        if value is not None and type(value) is not TYPES.get(name, str):
            raise TypeError(f"{name} is a {type(value).__name__}")
    for name in INSTANTS:
        if row[name] is not None:
            row[name] = datetime.fromisoformat(row[name])
    for name in HASHES:
        if row[name] is not None:
            row[name] = bytes.fromhex(row[name])
    for name in LISTS:
        row[name] = row[name] or None
    if row["judged"] is not None:
        row["judged"] = row["judged"].encode()
    return row


def document_to_csv(document: Mapping[str, Any]) -> list[str]:
    """Return the fields of an exported entry for CSV: lists as JSON, and missing members as ""."""
    return [to_field(document.get(name)) for name in CSV_COLUMNS]


def to_field(value: object) -> str:
    """Return a field of CSV that no spreadsheet evaluates."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    # Texts of callers must not become formulas (https://owasp.org/www-community/attacks/CSV_Injection), also behind
    # spaces and in the wide forms of signs, nor steer a terminal or look like another line.
    is_formula = isinstance(value, str) and normalize_text(text, "NFKC").lstrip().startswith(FORMULA_STARTS)
    line = escape_invisible(text).replace("\n", "\\n").replace("\t", "\\t")
    return f"'{line}" if is_formula else line


def document_to_cloud_event(document: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return an exported entry as a CloudEvent, version 1.0, in structured JSON; `source` names the journal."""
    event = {
        "specversion": "1.0",
        "id": str(document["id"]),
        "source": source,
        "type": f"{EVENT_TYPE}.{document['event']}",
        "time": document["timestamp"],
        "datacontenttype": "application/json",
        "data": dict(document),
    }
    subject = document.get("decision_id") or document.get("correlation_id") or document.get("request_id")
    return {**event, "subject": subject} if subject else event
