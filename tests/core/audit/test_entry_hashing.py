"""The hashes of entries are those of their canonical JSON, as anybody can compute them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.common.canonical_json import encode_canonical_json, hash_canonical_json
from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.core.audit.entry_hashing import encode_entry, format_instant, hash_chain_start, hash_content, hash_link
from cstp_grpc.core.audit.model import AuditedPeer
from cstp_grpc.core.audit.sql_tables import RARE_COLUMNS
from cstp_grpc.core.audit.sql_trail import entry_to_row
from tests.core.audit.test_sql_store import COUNTS, ENTRIES, TEXTS

HASHES = st.binary(min_size=32, max_size=32)
PEERS = st.builds(AuditedPeer, TEXTS, st.sampled_from(PeerStatus), st.none() | st.booleans())
NOT_IN_THE_ENTRY = {"action", "judged", "content_salt", "chain_id", "chain_position", "previous_hash", "entry_hash"}


def to_json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_instant(value)
    return [to_json_value(each) for each in value] if isinstance(value, list | tuple) else value


@given(ENTRIES | COUNTS, st.lists(PEERS, max_size=2), st.none() | HASHES)
def test_an_entry_is_written_as_canonical_json(entry: Any, peers: list[AuditedPeer], content: bytes | None) -> None:
    row = entry_to_row(entry) | {name: getattr(entry, name) for name in RARE_COLUMNS}
    row["peers"] = [[peer.agent, peer.status, peer.allowed] for peer in peers] or None
    members = {name: to_json_value(value) for name, value in row.items() if name not in NOT_IN_THE_ENTRY}
    expected = {name: value for name, value in members.items() if value is not None}
    if content is not None:
        expected["content"] = content.hex()
    assert encode_entry(row, content) == encode_canonical_json(expected)


@given(st.none() | TEXTS, st.none() | TEXTS.map(str.encode), st.none() | st.binary(min_size=16, max_size=16))
def test_a_content_is_hashed_as_canonical_json(action: str | None, judged: bytes | None, salt: bytes | None) -> None:
    document = {
        "action": action,
        "judged": None if judged is None else judged.decode(),
        "salt": "" if salt is None else salt.hex(),
    }
    expected = None if action is None and judged is None else bytes.fromhex(hash_canonical_json(document))
    assert hash_content(action, judged, salt) == expected


@given(st.integers(1, 2**31), st.integers(1, 2**53 - 1), HASHES, HASHES)
def test_a_place_is_hashed_as_canonical_json(chain: int, position: int, previous: bytes, entry: bytes) -> None:
    document = {"chain": chain, "entry": entry.hex(), "position": position, "previous": previous.hex()}
    assert hash_link(chain, position, previous, entry).hex() == hash_canonical_json(document)


def test_an_instant_is_written_in_utc() -> None:
    instant = datetime(2026, 2, 4, 22, 0, 0, 5, tzinfo=timezone(timedelta(hours=1)))
    assert format_instant(instant) == "2026-02-04T21:00:00.000005Z"


def test_the_start_of_a_chain_is_hashed_as_canonical_json() -> None:
    document = b'{"chain":3,"nonce":"00ff","started_at":"2026-02-04T21:00:00Z"}'
    start = hash_chain_start(3, "00ff", datetime(2026, 2, 4, 21, tzinfo=UTC))
    assert start == hashlib.sha256(document).digest()
