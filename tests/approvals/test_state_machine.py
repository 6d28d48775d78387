"""Approval requests of several agents, decided and used in any order, beside a model of what they should be."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cstp_grpc.audit.model import AuditEvent, AuditFilter
from cstp_grpc.enums import ApprovalStatus
from cstp_grpc.errors import Conflict, PermissionDenied
from cstp_grpc.guardrails.model import Action, Violation
from cstp_grpc.storage.database import open_database
from cstp_grpc.storage.pagination import PageRequest
from tests.approvals.kit import ACTION, LIFETIME, MANY_ROWS, PRICES, ApprovalKit, approver
from tests.databases import POOL_SIZE, ServerWriter, write_journal

AGENTS = st.sampled_from(["alice", "bob"])
DESCRIPTIONS = st.sampled_from(["Update prices", "Delete orders"])
ASKED = st.sampled_from([(MANY_ROWS,), (PRICES,), (MANY_ROWS, PRICES)])
DECIDERS = st.sampled_from(["alice", "bob", "carol"])
REUSE = st.none() | st.sampled_from([timedelta(minutes=20), timedelta(hours=3)])
STEPS = st.sampled_from([timedelta(minutes=7), timedelta(minutes=31), LIFETIME])
MAY_DECIDE = {"many-rows": {"alice", "bob", "carol"}, "prices": {"bob"}}


@dataclass
class Expected:
    """What is expected of a request."""

    agent: str
    expires_at: datetime
    asked: list[str]
    grants: dict[str, datetime | None] = field(default_factory=dict)
    status: ApprovalStatus = ApprovalStatus.PENDING
    uses: int = 0
    reusable_until: datetime | None = None

    def status_at(self, now: datetime) -> ApprovalStatus:
        """Return its status, which ends with its time if nobody has decided."""
        open_states = (ApprovalStatus.PENDING, ApprovalStatus.GRANTED)
        return ApprovalStatus.EXPIRED if self.status in open_states and now >= self.expires_at else self.status

    def decidable(self, by: str) -> list[str]:
        """Return the guardrails that an agent may decide on."""
        return [] if by == self.agent else [each for each in self.asked if by in MAY_DECIDE[each]]


class ApprovalMachine(RuleBasedStateMachine):
    """Checks, decides and lets time pass, and compares with what is expected."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        write_journal(self.folder / "journal.db")
        self.database = open_database(f"sqlite:///{self.folder / 'journal.db'}", POOL_SIZE)
        self.writer = ServerWriter(self.database)
        self.kit = ApprovalKit(self.database, self.writer)
        self.expected: dict[str, Expected] = {}
        self.latest: dict[tuple[str, str], str] = {}

    def teardown(self) -> None:
        self.writer.close()
        self.database.close()
        shutil.rmtree(self.folder)

    @rule(agent=AGENTS, description=DESCRIPTIONS, asked=ASKED)
    def check(self, agent: str, description: str, asked: tuple[Violation, ...]) -> None:
        action: Action = replace(ACTION, agent=agent, description=description)
        verdict = self.kit.check(action, *asked)
        assert verdict.approval is not None
        known = self._current(agent, description)
        if known is None:
            self.latest[agent, description] = verdict.approval.id
            assert verdict.approval.id not in self.expected
            self.expected[verdict.approval.id] = known = Expected(agent, self.kit.now + LIFETIME, [])
        else:
            assert verdict.approval.id == self.latest[agent, description]
        if known.status is not ApprovalStatus.DENIED:
            added = [each.guardrail_id for each in asked if each.guardrail_id not in known.asked]
            known.asked += added
            known.status = ApprovalStatus.PENDING if added else known.status
        assert verdict.allowed == (known.status is ApprovalStatus.GRANTED)
        if verdict.allowed:
            known.uses += 1
            known.status = ApprovalStatus.GRANTED if known.reusable_until else ApprovalStatus.USED
        assert verdict.approval_required == (not verdict.allowed and known.status is not ApprovalStatus.DENIED)

    @precondition(lambda self: self.expected)
    @rule(by=DECIDERS, reuse=REUSE, data=st.data())
    def grant(self, by: str, reuse: timedelta | None, data: st.DataObject) -> None:
        approval_id, known = self._draw(data)
        until = None if reuse is None else self.kit.now + reuse
        mine = known.decidable(by)
        open_states = (ApprovalStatus.PENDING, ApprovalStatus.GRANTED)
        if not mine:
            with pytest.raises(PermissionDenied):
                self.kit.reviewer.grant(approval_id, approver(by), None, until)
        elif known.status_at(self.kit.now) not in open_states:
            with pytest.raises(Conflict):
                self.kit.reviewer.grant(approval_id, approver(by), None, until)
        else:
            self.kit.reviewer.grant(approval_id, approver(by), None, until)
            new = [each for each in mine if each not in known.grants]
            known.grants |= dict.fromkeys(new, until)
            if new and known.grants.keys() >= set(known.asked):
                instants = [each for each in known.grants.values() if each is not None]
                known.reusable_until = min(instants) if len(instants) == len(known.grants) else None
                known.expires_at = known.reusable_until or self.kit.now + LIFETIME
                known.status = ApprovalStatus.GRANTED

    @precondition(lambda self: self.expected)
    @rule(by=DECIDERS, revokes=st.booleans(), data=st.data())
    def take_back(self, by: str, revokes: bool, data: st.DataObject) -> None:
        approval_id, known = self._draw(data)
        decide = self.kit.reviewer.revoke if revokes else self.kit.reviewer.deny
        wanted = ApprovalStatus.REVOKED if revokes else ApprovalStatus.DENIED
        decided = (ApprovalStatus.GRANTED, ApprovalStatus.DENIED)
        needed = decided if revokes else (ApprovalStatus.PENDING,)
        if not known.decidable(by):
            with pytest.raises(PermissionDenied):
                decide(approval_id, approver(by), None)
        elif known.status_at(self.kit.now) not in (*needed, wanted):
            with pytest.raises(Conflict):
                decide(approval_id, approver(by), None)
        else:
            decide(approval_id, approver(by), None)
            known.status = wanted

    @rule(step=STEPS)
    def let_time_pass(self, step: timedelta) -> None:
        self.kit.now += step

    @rule()
    def end_expired(self) -> None:
        assert not self.kit.reviewer.end_expired()

    @invariant()
    def requests_are_as_expected(self) -> None:
        for approval_id, known in self.expected.items():
            stored = self.kit.read(approval_id)
            assert stored.status_at(self.kit.now) is known.status_at(self.kit.now)
            assert stored.uses == known.uses
            assert known.uses <= 1 or known.reusable_until is not None

    @invariant()
    def each_use_is_on_record(self) -> None:
        used = self.kit.trail.page(AuditFilter(event=AuditEvent.APPROVAL_USED), PageRequest(1000)).items
        counts = {key: known.uses for key, known in self.expected.items() if known.uses}
        assert {key: [entry.approval_id for entry in used].count(key) for key in counts} == counts
        assert len(used) == sum(counts.values())

    def _current(self, agent: str, description: str) -> Expected | None:
        """Return what a check of an action should find, None for nothing."""
        key = self.latest.get((agent, description))
        known = None if key is None else self.expected[key]
        ended = (ApprovalStatus.USED, ApprovalStatus.REVOKED, ApprovalStatus.EXPIRED)
        if known is None or known.status_at(self.kit.now) in ended or self.kit.now >= known.expires_at:
            return None
        return known

    def _draw(self, data: st.DataObject) -> tuple[str, Expected]:
        # By place, since ids are made up anew in each run.
        place = data.draw(st.integers(0, len(self.expected) - 1))
        return list(self.expected.items())[place]


TestApprovals = ApprovalMachine.TestCase
