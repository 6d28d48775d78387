"""Reads of the records of every agent, each with an entry in the audit trail."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from cstp_grpc.contract.caller import OVERSEER, Caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.errors import PermissionDenied
from cstp_grpc.contract.methods import missing_permission_error
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink, truncate_action


class Oversight:
    """Permits and records the reads of callers with the permission `oversee`; without a sink it refuses all."""

    def __init__(self, sink: AuditSink | None, clock: Callable[[], datetime]) -> None:
        self._sink = sink
        self._clock = clock

    def choose_reader(self, caller: Caller, method: str, subject: str) -> str:
        """Return the name of a reader of every agent's records. Raises as `record` does."""
        self.record(caller, method, subject)
        return OVERSEER

    def record(self, caller: Caller, method: str, subject: str | None) -> None:
        """Record a read before it is answered. For threads.

        Raises PermissionDenied if the caller may not oversee, or nothing records it, and Unavailable.
        """
        if Permission.OVERSEE not in caller.permissions:
            raise missing_permission_error(f"{method} with oversee", caller.agent, Permission.OVERSEE)
        if self._sink is None:
            raise PermissionDenied("the records of every agent can be read only while audit.enabled is true")
        self._sink.record(
            AuditEntry(
                timestamp=self._clock(),
                event=AuditEvent.RECORDS_OVERSEEN,
                requesting_agent=caller.agent,
                request_id=caller.request_id,
                action=truncate_action(f"{method} {subject}" if subject else method),
            )
        )
