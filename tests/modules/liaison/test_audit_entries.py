from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cstp_grpc.contract.enums import Severity
from cstp_grpc.core.audit.model import MAX_ACTION, AuditEntry, AuditEvent, AuditFilter
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.guardrails.model import Verdict, Violation
from cstp_grpc.modules.liaison.audit import SessionOperation
from cstp_grpc.modules.liaison.model import GUIDE, TenantCaller
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.named_case import named_case

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
ROUTED = SessionOperation(
    at=NOON,
    event=AuditEvent.SESSION_ROUTED,
    caller=TenantCaller(agent="emerson", tenant="acme", request_id="request-1"),
    agent="liaison_content",
    session_id="s-1",
    reason="wants a post",
    context_hash="ab" * 32,
    shared_context={"b": 1.0, "a": ["é"]},
)


def taken_down(act: SessionOperation, *, keeps_content: bool = False) -> AuditEntry:
    return act.to_audit_entry(with_content=keeps_content)


def test_a_routing_is_taken_down_with_its_hash_and_not_its_content() -> None:
    assert taken_down(ROUTED) == AuditEntry(
        timestamp=NOON,
        event=AuditEvent.SESSION_ROUTED,
        requesting_agent="emerson",
        request_id="request-1",
        action=f"route session s-1 to liaison_content: wants a post; context sha256:{'ab' * 32}",
        correlation_id="s-1",
    )


def test_with_content_the_context_follows_its_hash_as_canonical_json() -> None:
    action = taken_down(ROUTED, keeps_content=True).action
    assert (
        action == f'route session s-1 to liaison_content: wants a post; context sha256:{"ab" * 32} {{"a":["é"],"b":1}}'
    )
    assert taken_down(replace(ROUTED, shared_context=None), keeps_content=True) == taken_down(ROUTED)


def test_a_large_context_is_cut() -> None:
    action = taken_down(replace(ROUTED, shared_context={"a": "x" * MAX_ACTION}), keeps_content=True).action
    assert action is not None
    assert len(action) == MAX_ACTION
    assert action.endswith("x…")


def test_an_entry_has_the_verdict_and_why_it_failed() -> None:
    violation = Violation("no-solution", "No Solution", "not now", Severity.BLOCK)
    warning = Violation("look-again", "Look Again", "hm", Severity.WARN)
    verdict = Verdict((violation,), (warning,), 7, "default@1", allowed=False)

    entry = taken_down(replace(ROUTED, verdict=verdict, error="PERMISSION_DENIED"))

    assert (entry.allowed, entry.violations, entry.warnings) == (False, ("no-solution",), ("look-again",))
    assert (entry.evaluated, entry.rule_set_version, entry.error) == (7, "default@1", "PERMISSION_DENIED")


def test_every_kind_of_act_says_what_was_done() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"event": AuditEvent.SESSION_OPENED, "agent": GUIDE}, "open session s-1"),
        ({"event": AuditEvent.SESSION_CONTEXT_UPDATED, "agent": GUIDE}, "update the context of session s-1"),
        ({"event": AuditEvent.CONTEXT_SHARED}, "share with liaison_content"),
        ({"event": AuditEvent.CONTEXT_SHARED, "session_id": None}, "share with liaison_content"),
        ({"event": AuditEvent.SESSION_ROUTED, "session_id": None}, "route a session to liaison_content"),
        (
            {"event": AuditEvent.SESSION_RETURNED, "agent": GUIDE, "reason": "done"},
            "return session s-1 to guide: done",
        ),
        (
            {"event": AuditEvent.SESSION_CLAIMED, "reason": "by c-2"},
            "claim session s-1 for liaison_content: by c-2",
        ),
        ({"event": AuditEvent.SESSION_CLOSED}, "close session s-1"),
    ]
    for changes, action in cases:
        with named_case(changes, action):
            act = replace(ROUTED, reason="", context_hash=None, shared_context=None)
            entry = taken_down(replace(act, **changes))
            assert entry.action == action
            assert entry.event == changes["event"]


def test_what_is_kept_of_a_context_can_be_read_again() -> None:
    action = taken_down(ROUTED, keeps_content=True).action
    assert action is not None
    assert json.loads(action.split(f"{'ab' * 32} ", 1)[1]) == {"a": ["é"], "b": 1}


def test_acts_within_a_transaction_are_taken_down_with_it(database: Database, writer: GroupCommitWriter) -> None:
    trail = SqlAuditTrail(database, writer)
    act = replace(ROUTED, session_id="s-\0")
    writer.run(lambda unit_of_work: trail.append(unit_of_work, act.to_audit_entry(with_content=False)))
    [entry] = trail.page(AuditFilter(correlation_id="s-\0"), PageRequest(10)).items
    assert replace(entry, id=None, correlation_id="s-\0", action=taken_down(act).action) == taken_down(act)
