"""The signed records of entries that were removed because their time was over."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Final

from cstp_grpc.common.canonical_json import encode_canonical_json
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.audit.entry_hashing import format_instant
from cstp_grpc.core.audit.verification import KeyRing, RemovedSegment

SEGMENT: Final = "cstp-audit-segment"
"""The `type` of the statement about a removed segment."""
UNCHAINED: Final = 0
"""The chain of removed segments of entries without a chain, whose positions are their ids."""


@dataclass(frozen=True, slots=True)
class SegmentRemoval:
    """The entries of a chain that are to be removed, up to one that a checkpoint signs."""

    chain_id: int
    first_position: int
    last_position: int
    last_hash: bytes
    checkpoint: int
    count: int
    """How many entries these are."""

    def encode(self, key_id: str, removed_at: datetime) -> str:
        """Return the canonical JSON that is signed."""
        return encode_canonical_json(
            {
                "type": SEGMENT,
                "chain": self.chain_id,
                "first_position": self.first_position,
                "last_position": self.last_position,
                "last_hash": self.last_hash.hex(),
                "checkpoint": self.checkpoint,
                "removed_at": format_instant(removed_at),
                "key": key_id,
            }
        )


def check_segment(segment: RemovedSegment, statement: str, signature: bytes, keys: KeyRing) -> str | None:
    """Return the fault of the record of a removed segment, or None if a trusted key signed its content."""
    try:
        stated = json.loads(statement)
        found = [stated[name] for name in ("type", "chain", "first_position", "last_position", "last_hash")]
        key_id = str(stated["key"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "its statement is not that of a removed segment"
    place = [segment.chain_id, segment.first_position, segment.last_position]
    if found != [SEGMENT, *place, segment.last_hash.hex()]:
        return "it does not agree with its signed statement"
    return keys.find_fault(key_id, statement, signature)
