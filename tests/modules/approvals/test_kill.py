"""No approval is used twice and none that was granted is lost when the server is killed, whatever it was doing."""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from cstp_grpc.gen.cstp.v1 import approvals_pb2, approvals_pb2_grpc, audit_pb2, audit_pb2_grpc, cstp_pb2, types_pb2
from cstp_grpc.gen.cstp.v1 import cstp_pb2_grpc as cstp_grpc_stubs
from tests.harness import TOKENS
from tests.killing import killed_at_work, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 12
REQUESTERS = 3
USERS = 4
GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
SEEN = 20
"""How many of the approvals that were granted last are tried; several threads then try the same ones."""


@dataclass
class Acknowledged:
    """What the server answered, by the ids of approvals."""

    granted: dict[str, str] = field(default_factory=dict)
    """The descriptions of the actions."""
    allowed: Counter[str] = field(default_factory=Counter)
    """How many checks were let through."""
    lock: threading.Lock = field(default_factory=threading.Lock)


def given(agent: str) -> dict[str, Any]:
    """Return the options of a call by an agent."""
    return {"metadata": (("authorization", f"Bearer {TOKENS[agent]}"),), "timeout": 30}


def check(channel: grpc.Channel, description: str) -> cstp_pb2.CheckGuardrailsResponse:
    """Check an action that needs an approval."""
    action = cstp_pb2.Action(description=description)
    action.context.update({"rows": 5000})
    return cstp_grpc_stubs.CstpServiceStub(channel).CheckGuardrails(
        cstp_pb2.CheckGuardrailsRequest(action=action), **given("alice")
    )


def announce(channel: grpc.Channel, description: str) -> cstp_pb2.GuardrailStatus:
    """Announce the same action."""
    request = cstp_pb2.AnnounceIntentRequest(intent=description)
    request.metadata.update({"rows": 5000})
    return cstp_grpc_stubs.CstpServiceStub(channel).AnnounceIntent(request, **given("alice")).guardrail_status


def request_approvals(channel: grpc.Channel, done: Acknowledged) -> None:
    """Request and grant approvals."""
    service = approvals_pb2_grpc.ApprovalServiceStub(channel)
    while True:
        description = f"Update prices {uuid.uuid4().hex}"
        approval_id = check(channel, description).approval.id
        service.GrantApproval(approvals_pb2.GrantApprovalRequest(id=approval_id), **given("bob"))
        with done.lock:
            done.granted[approval_id] = description


def use_approvals(channel: grpc.Channel, done: Acknowledged) -> None:
    """Check and announce actions that were approved, which others do as well."""
    while True:
        with done.lock:
            known = list(done.granted.items())[-SEEN:]
        if not known:
            continue
        approval_id, description = random.choice(known)
        verdict = random.choice((check, announce))(channel, description)
        if verdict.allowed:
            assert verdict.approval.status == types_pb2.APPROVAL_STATUS_USED
            with done.lock:
                done.allowed[verdict.approval.id] += 1
        else:
            # It was used before, so that this asks anew.
            assert verdict.approval.id != approval_id


def work_until_gone(work: Any, channel: grpc.Channel, done: Acknowledged) -> None:
    """Work until the server is gone."""
    try:
        work(channel, done)
    except grpc.RpcError as error:
        if error.code() not in GONE:  # type: ignore[attr-defined]
            raise


def every_page(call: Any, request: Any, items: str, agent: str) -> Iterator[Any]:
    """Yield the items of every page."""
    request.page_size = 1000
    while True:
        page = call(request, **given(agent))
        yield from getattr(page, items)
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def verify(channel: grpc.Channel, done: Acknowledged) -> int:
    """Compare what is on disk with what was answered, and return how many approvals were used."""
    service = approvals_pb2_grpc.ApprovalServiceStub(channel)
    stored = {
        each.id: each
        for each in every_page(service.ListApprovals, approvals_pb2.ListApprovalsRequest(), "approvals", "bob")
    }
    decided = (types_pb2.APPROVAL_STATUS_GRANTED, types_pb2.APPROVAL_STATUS_USED)
    assert all(stored[key].status in decided for key in done.granted)
    used = {key for key, each in stored.items() if each.status == types_pb2.APPROVAL_STATUS_USED}
    assert all(stored[key].uses == (key in used) for key in stored)
    assert set(done.allowed) <= used
    assert max(done.allowed.values(), default=1) == 1
    trail = audit_pb2_grpc.AuditServiceStub(channel).ListAuditEntries
    entries = list(every_page(trail, audit_pb2.ListAuditEntriesRequest(allowed=True), "entries", "bob"))
    let_through = Counter(entry.approval_id for entry in entries if entry.HasField("approval_id"))
    events = audit_pb2.ListAuditEntriesRequest(event=audit_pb2.AUDIT_EVENT_APPROVAL_USED)
    uses = Counter(entry.approval_id for entry in every_page(trail, events, "entries", "bob"))
    # One transaction: an approval is used exactly where a verdict that it allows is on record, and once.
    assert let_through == uses == Counter(used)
    return len(used)


def test_no_approval_is_used_twice_and_none_is_lost(tmp_path: Path) -> None:
    done = Acknowledged()
    for _ in range(KILLS):
        with server_process("tests.modules.approvals.serving", str(tmp_path)) as (process, channel):
            verify(channel, done)
            turns = iter([request_approvals] * REQUESTERS + [use_approvals] * USERS)
            lock = threading.Lock()

            def work(channel: grpc.Channel = channel, turns: Iterator[Any] = turns, lock: Any = lock) -> None:
                with lock:
                    task = next(turns)
                work_until_gone(task, channel, done)

            killed_at_work(work, REQUESTERS + USERS, process.kill)
    with server_process("tests.modules.approvals.serving", str(tmp_path)) as (_, channel):
        used = verify(channel, done)
        # What was granted and not used lets its action through now, once.
        service = approvals_pb2_grpc.ApprovalServiceStub(channel)
        condition = approvals_pb2.ListApprovalsRequest(status=[types_pb2.APPROVAL_STATUS_GRANTED])
        left = [each.subject.description for each in every_page(service.ListApprovals, condition, "approvals", "bob")]
        assert left
        assert all(check(channel, description).allowed for description in left)
        assert not any(check(channel, description).allowed for description in left)
        assert verify(channel, done) == used + len(left)
    assert len(done.allowed) > KILLS
