"""The estimated memory of decisions, by which caches of them are bounded."""

from __future__ import annotations

from cstp_grpc.decisions.model import Decision
from cstp_grpc.storage.pagination import estimate_message_bytes

OBJECT_BYTES = 1000
"""Estimated memory of a decision without its texts: the objects of Python."""


def estimate_memory_bytes(decision: Decision) -> int:
    """Return the estimated number of bytes that a decision without its private parts takes in memory."""
    reasons = (reason.type for reason in decision.reasons)
    return OBJECT_BYTES + estimate_message_bytes(
        (decision.id, decision.title, decision.notes, *decision.tags, *reasons)
    )
