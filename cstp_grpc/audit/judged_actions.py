"""What guardrails judged, as the audit trail keeps it so that other rules can judge it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cstp_grpc.enums import Stakes

MAX_JUDGED_BYTES: Final = 65_536
"""Maximum size of a stored action; a larger one is not kept. Chosen: hundreds of times what actions have, so that no
caller fills the trail with contexts of 200 000 characters."""
ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
"""Encodes stored actions; raises ValueError for NaN and infinities, which are not JSON (RFC 8259, section 6)."""


@dataclass(frozen=True, slots=True)
class JudgedAction:
    """What guardrails judged an action by, besides its description and its agent, which its audit entry has.

    `permissions` are those of the agent at the time. `approval_required` is whether an approval alone was needed.
    """

    category: str | None = None
    stakes: Stakes = Stakes.MEDIUM
    confidence: float | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    project: str | None = None
    announced_context: str = ""
    paths: tuple[str, ...] = ()
    permissions: frozenset[str] = frozenset()
    approval_required: bool = False


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
