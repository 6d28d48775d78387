"""What is done with chat sessions, for the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from sqlalchemy import Connection

from cstp_grpc.guardrails.model import Verdict
from cstp_grpc.liaison.model import Caller


class ActKind(StrEnum):
    """What kind of thing was done."""

    SESSION_OPENED = "session_opened"
    SESSION_CONTEXT_UPDATED = "session_context_updated"
    CONTEXT_SHARED = "context_shared"
    SESSION_ROUTED = "session_routed"
    SESSION_RETURNED = "session_returned"
    SESSION_CLAIMED = "session_claimed"
    SESSION_CLOSED = "session_closed"
    SESSION_DELETED = "session_deleted"


@dataclass(frozen=True, slots=True)
class Act:
    """Something that is done, or failed with `error`, a reason as in `errors.CstpError`.

    `agent` is whom it concerns: a liaison agent, or the guide. `reason` is empty where none was given. `context_hash`
    is the SHA-256, in hex, of the canonical JSON of what was shared or deleted, `verdict` is None where nothing was
    judged. `at` is aware, in UTC.
    """

    at: datetime
    kind: ActKind
    caller: Caller
    agent: str
    session_id: str | None = None
    reason: str = ""
    context_hash: str | None = None
    shared_context: Mapping[str, Any] | None = None
    verdict: Verdict | None = None
    error: str | None = None


class ActTrail(Protocol):
    """Keeps what was done."""

    def append(self, connection: Connection, act: Act) -> None:
        """Keep an act within a transaction."""

    async def write(self, act: Act) -> None:
        """Return when the act is safe, without holding the event loop. Raises Unavailable where it cannot be kept."""

    def record(self, act: Act) -> None:
        """Return when the act is safe; for threads. Raises Unavailable where it cannot be kept."""
