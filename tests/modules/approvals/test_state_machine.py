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

from cstp_grpc.contract.enums import ApprovalStatus
from cstp_grpc.contract.errors import Conflict, PermissionDenied
from cstp_grpc.core.audit.model import AuditEvent, AuditFilter
from cstp_grpc.core.guardrails.model import Action, Violation
from cstp_grpc.platform.storage.database import open_database
from cstp_grpc.platform.storage.pagination import PageRequest
from tests.databases import POOL_SIZE, ServerWriter, write_journal
from tests.modules.approvals.kit import ACTION, LIFETIME, MANY_ROWS, PRICES, ApprovalKit, approver

AGENTS = st.sampled_from(["alice", "bob"])
DESCRIPTIONS = st.sampled_from(["Update prices", "Delete orders"])
CAROLS_PRICES = replace(PRICES, approvers=("carol",))
ASKED = st.sampled_from([(MANY_ROWS,), (PRICES,), (MANY_ROWS, PRICES), (MANY_ROWS, CAROLS_PRICES)])
DECIDERS = st.sampled_from(["alice", "bob", "carol"])
REUSE = st.none() | st.sampled_from([timedelta(minutes=20), timedelta(hours=3)])
STEPS = st.sampled_from([timedelta(minutes=7), timedelta(minutes=31), LIFETIME])
EVERYBODY = frozenset({"alice", "bob", "carol"})


@dataclass
class Expected:
    """What is expected of a request."""

    agent: str
    expires_at: datetime
    asked: dict[str, frozenset[str]] = field(default_factory=dict)
    """The guardrails that ask, and who may decide."""
    grants: dict[str, tuple[str, datetime | None]] = field(default_factory=dict)
    """Who granted it for each, and until when."""
    status: ApprovalStatus = ApprovalStatus.PENDING
    uses: int = 0
    uses_of_grant: int = 0
    """Since it was granted last."""
    reusable_until: datetime | None = None

    def status_at(self, now: datetime) -> ApprovalStatus:
        """Return its status, which ends with its time if nobody has decided."""
        open_states = (ApprovalStatus.PENDING, ApprovalStatus.GRANTED)
        return ApprovalStatus.EXPIRED if self.status in open_states and now >= self.expires_at else self.status

    def decidable(self, by: str) -> list[str]:
        """Return the guardrails that an agent may decide on."""
        return [] if by == self.agent else [each for each, able in self.asked.items() if by in able]

    def ask(self, asked: tuple[Violation, ...]) -> None:
        """Have guardrails ask, perhaps others or of others than before."""
        self.asked |= {each.guardrail_id: frozenset(each.approvers) or EVERYBODY for each in asked}
        self.grants = {name: grant for name, grant in self.grants.items() if grant[0] in self.asked[name]}
        if self.grants.keys() != self.asked.keys():
            self.status = ApprovalStatus.PENDING

    def grant(self, by: str, now: datetime, until: datetime | None) -> None:
        """Grant it for the guardrails on which an agent may decide, if it is not granted by then."""
        counted = {name: grant for name, grant in self.grants.items() if grant[1] is None or now < grant[1]}
        new = [each for each in self.decidable(by) if each not in counted]
        if not new:
            return
        self.grants = counted | dict.fromkeys(new, (by, until))
        if self.grants.keys() == self.asked.keys():
            instants = [each for _, each in self.grants.values() if each is not None]
            is_reusable = len(instants) == len(self.grants)
            self.expires_at = min(instants if is_reusable else [*instants, now + LIFETIME])
            self.reusable_until = self.expires_at if is_reusable else None
            self.status = ApprovalStatus.GRANTED
            self.uses_of_grant = 0


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
            self.expected[verdict.approval.id] = known = Expected(agent, self.kit.now + LIFETIME)
        else:
            assert verdict.approval.id == self.latest[agent, description]
        if known.status is not ApprovalStatus.DENIED:
            known.ask(asked)
        assert verdict.allowed == (known.status is ApprovalStatus.GRANTED)
        if verdict.allowed:
            known.uses += 1
            known.uses_of_grant += 1
            known.status = ApprovalStatus.GRANTED if known.reusable_until else ApprovalStatus.USED
        assert verdict.approval_required == (not verdict.allowed and known.status is not ApprovalStatus.DENIED)

    @precondition(lambda self: self.expected)
    @rule(by=DECIDERS, reuse=REUSE, data=st.data())
    def grant(self, by: str, reuse: timedelta | None, data: st.DataObject) -> None:
        approval_id, known = self._draw(data)
        until = None if reuse is None else self.kit.now + reuse
        open_states = (ApprovalStatus.PENDING, ApprovalStatus.GRANTED)
        if not known.decidable(by):
            with pytest.raises(PermissionDenied):
                self.kit.reviewer.grant(approval_id, approver(by), None, until)
        elif known.status_at(self.kit.now) not in open_states:
            with pytest.raises(Conflict):
                self.kit.reviewer.grant(approval_id, approver(by), None, until)
        else:
            self.kit.reviewer.grant(approval_id, approver(by), None, until)
            known.grant(by, self.kit.now, until)

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
            assert known.uses_of_grant <= 1 or known.reusable_until is not None

    @invariant()
    def each_use_is_on_record(self) -> None:
        used = self.kit.trail.page(AuditFilter(event=AuditEvent.APPROVAL_USED), PageRequest(1000)).items
        counts = {key: known.uses for key, known in self.expected.items() if known.uses}
        assert {key: [entry.approval_id for entry in used].count(key) for key in counts} == counts
        assert len(used) == sum(counts.values())

    def _current(self, agent: str, description: str) -> Expected | None:
        """Return the approval that a check of an action should find, if any."""
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
