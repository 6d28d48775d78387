"""Hashes of audit entries: of the content of callers, of the entry itself, and of its place in a chain.

All are SHA-256 over canonical JSON (RFC 8785). The text is written here member by member, in the order of the names,
because the general encoder takes several times as long and every entry is hashed before its call is answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Any, Final, TypeAlias

from cstp_grpc.common.canonical_json import hash_canonical_json

EntryRow: TypeAlias = Mapping[str, Any]
"""The values of an entry by the names of its columns; an absent one is None or missing."""

encode_list: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def format_instant(value: datetime) -> str:
    """Return an aware instant as RFC 3339 in UTC, with microseconds unless they are zero."""
    if value.tzinfo is not UTC:
        value = value.astimezone(UTC)
    return f"{value.isoformat()[:-6]}Z"


def encode_entry(row: EntryRow, content_hash: bytes | None) -> str:
    """Return the canonical JSON of an entry, with the hash of its content in the place of the content.

    Members stand in the order of their names; those that are None are left out. A new column of entries gets its place
    here: entries without it keep their hashes.
    """
    # By hand: a loop over the members takes nearly twice as long.
    get, quote = row.get, encode_basestring
    members: list[str] = []
    add = members.append
    if (value := row["allowed"]) is not None:
        add('"allowed":true' if value else '"allowed":false')
    if (value := get("approval_id")) is not None:
        add(f'"approval_id":{quote(value)}')
    if (value := row["claimed_agent"]) is not None:
        add(f'"claimed_agent":{quote(value)}')
    if content_hash is not None:
        add(f'"content":"{content_hash.hex()}"')
    if (value := row["correlation_id"]) is not None:
        add(f'"correlation_id":{quote(value)}')
    if (value := get("count")) is not None:
        add(f'"count":{value}')
    if (value := row["decision_id"]) is not None:
        add(f'"decision_id":{quote(value)}')
    if (value := row["dryrun"]) is not None:
        add(f'"dryrun":{encode_list(value)}')
    if (value := row["error"]) is not None:
        add(f'"error":{quote(value)}')
    add(f'"evaluated":{row["evaluated"]},"event":{quote(row["event"])}')
    if (value := get("first_at")) is not None:
        add(f'"first_at":"{format_instant(value)}"')
    if (value := row["intent_revision"]) is not None:
        add(f'"intent_revision":{value}')
    if (value := get("last_at")) is not None:
        add(f'"last_at":"{format_instant(value)}"')
    if (value := row["peers"]) is not None:
        add(f'"peers":{encode_list(value)}')
    add(f'"request_id":{quote(row["request_id"])},"requesting_agent":{quote(row["requesting_agent"])}')
    if (value := row["rule_set_version"]) is not None:
        add(f'"rule_set_version":{quote(value)}')
    add(f'"timestamp":"{format_instant(row["timestamp"])}"')
    if (value := row["violations"]) is not None:
        add(f'"violations":{encode_list(value)}')
    if (value := row["warnings"]) is not None:
        add(f'"warnings":{encode_list(value)}')
    return f"{{{','.join(members)}}}"


def hash_entry(row: EntryRow, content_hash: bytes | None) -> bytes:
    """Return the hash of an entry without its place in a chain."""
    return sha256(encode_entry(row, content_hash).encode("utf-8", "surrogatepass")).digest()


def hash_content(action: str | None, judged: bytes | None, salt: bytes | None) -> bytes | None:
    """Return the hash of an entry's content, which stays when the content is removed; None without content.

    `salt` protects short contents from being guessed from their hash; entries older than the chains lack it.
    """
    if action is None and judged is None:
        return None
    said = "null" if action is None else encode_basestring(action)
    kept = "null" if judged is None else encode_basestring(judged.decode())
    content = f'{{"action":{said},"judged":{kept},"salt":"{"" if salt is None else salt.hex()}"}}'
    return sha256(content.encode("utf-8", "surrogatepass")).digest()


def hash_link(chain_id: int, position: int, previous: bytes, entry: bytes) -> bytes:
    """Return the hash of an entry in its place: `previous` is that of the entry before, `entry` its own without it."""
    place = f'{{"chain":{chain_id},"entry":"{entry.hex()}","position":{position},"previous":"{previous.hex()}"}}'
    return sha256(place.encode()).digest()


def hash_chain_start(chain_id: int, nonce: str, started_at: datetime) -> bytes:
    """Return the hash that the first entry of a chain has in the place of the hash of the previous entry."""
    start = {"chain": chain_id, "nonce": nonce, "started_at": format_instant(started_at)}
    return bytes.fromhex(hash_canonical_json(start))


def stored_content_hash(row: EntryRow) -> bytes | None:
    kept: bytes | None = row["content_hash"]
    if kept is not None:
        return bytes(kept)
    return hash_content(row["action"], row["judged"], row["content_salt"])
