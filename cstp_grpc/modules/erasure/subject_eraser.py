"""Erases the data of a user of chat sessions, and records that in the audit trail without the name of the user."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cstp_grpc.common.counted_nouns import count_audit_contents, count_nouns
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.caller import Caller
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditSink
from cstp_grpc.modules.erasure.audit_contents import AuditContentEraser
from cstp_grpc.modules.erasure.sql_store import SqlAgentRecordStore
from cstp_grpc.modules.erasure.user_sessions import StoredUserSessions

if TYPE_CHECKING:
    # Only for its types: chat sessions may be left out while their tables have rows.
    from cstp_grpc.modules.liaison.model import UserRecords

ENTRIES_AT_ONCE: Final = 200
"""Audit entries whose contents are removed in one transaction."""


@dataclass(frozen=True, slots=True)
class SubjectReport:
    """The numbers of a subject's records by kind, before any erasure."""

    erased: bool
    sessions: int
    messages: int
    shared_contexts: int
    routings: int
    events: int
    audit_entries: int


class SubjectEraser:
    """Counts and erases the data of subjects of the caller's tenant."""

    def __init__(
        self,
        store: SqlAgentRecordStore,
        sessions: StoredUserSessions,
        contents: AuditContentEraser,
        sink: AuditSink,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._contents = contents
        self._sink = sink
        self._clock = clock

    def count(self, caller: Caller, subject: str) -> SubjectReport:
        """Return the numbers of a subject's records. Raises QueryFailed."""
        asked_at = self._clock()
        entries = self._store.count_subject_contents(caller.tenant, subject, asked_at)
        records = self._sessions.count(caller, subject, asked_at)
        return report_records(records, records.sessions, entries, erased=False)

    def erase(self, caller: Caller, subject: str) -> SubjectReport:
        """Erase the data of a subject until now. If it is interrupted, a repetition continues.

        Raises QueryFailed and Unavailable.
        """
        asked_at, store = self._clock(), self._store
        records = self._sessions.count(caller, subject, asked_at)
        # The audit trail first: its entries are found by the sessions, which go next.
        entries = self._contents.erase(
            caller, lambda last: store.find_subject_contents(caller.tenant, subject, asked_at, last, ENTRIES_AT_ONCE)
        )
        report = report_records(records, self._sessions.delete(caller, subject), entries, erased=True)
        # Last, so that it records the finished work. If killed before, the repetition records the rest.
        self._sink.record(subject_entry(caller, report, self._clock()))
        return report


def report_records(records: UserRecords, sessions: int, audit_entries: int, *, erased: bool) -> SubjectReport:
    return SubjectReport(
        erased=erased,
        sessions=sessions,
        messages=records.messages,
        shared_contexts=records.shares,
        routings=records.activations,
        events=records.events,
        audit_entries=audit_entries,
    )


def subject_entry(caller: Caller, report: SubjectReport, at: datetime) -> AuditEntry:
    """Return the audit entry of an erasure: the caller and the numbers."""
    # Privacy: without the subject, which the trail would keep. The request id identifies the request.
    erased = count_nouns(
        (report.sessions, "session"),
        (report.messages, "message"),
        (report.shared_contexts, "shared context"),
        (report.routings, "routing"),
        (report.events, "event"),
    )
    text = f"erase what was kept about a subject: {erased}; {count_audit_contents(report.audit_entries)}"
    return AuditEntry(
        timestamp=at,
        event=AuditEvent.SUBJECT_ERASED,
        requesting_agent=caller.agent,
        request_id=caller.request_id,
        action=text,
    )
