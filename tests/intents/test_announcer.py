"""Announcing: what is kept whatever comes of it, and which decisions are recalled."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine

from cstp_grpc.audit.model import AuditEntry, AuditFilter
from cstp_grpc.audit.sql_store import SqlAuditStore
from cstp_grpc.audit.trail import AuditTrail
from cstp_grpc.decisions.model import Decision, DecisionFilter, Match
from cstp_grpc.errors import GuardrailEvalFailed, InvalidArgument, QueryFailed
from cstp_grpc.guardrails.model import Action, Verdict
from cstp_grpc.intents.announcer import Announcement, Announcer
from cstp_grpc.intents.sql_store import SqlIntentStore
from cstp_grpc.intents.store import Intent, IntentFilter
from cstp_grpc.storage.paging import PageRequest
from cstp_grpc.storage.writer import Writer
from cstp_grpc.vocabulary import DecisionStatus, Visibility

NOW = datetime(2026, 2, 4, 21, tzinfo=UTC)
CLEAR = Verdict((), (), 5, "rules@1")


def match(number: int, category: str | None) -> Match:
    decision = Decision(
        id=f"dec-{number}",
        title=f"Decision {number}",
        status=DecisionStatus.DECIDED,
        date=NOW,
        agent="alice",
        visibility=Visibility.SHARED,
        category=category,
    )
    return Match(decision, 1 - number / 100)


@dataclass
class Memory:
    """Finds its matches by their category, best first, or raises."""

    matches: list[Match] = field(default_factory=list)
    error: Exception | None = None

    def search(self, text: str, filters: DecisionFilter, caller: str, limit: int, min_score: float) -> list[Match]:
        if self.error:
            raise self.error
        wanted = filters.category
        return [item for item in self.matches if wanted is None or item.decision.category == wanted][:limit]


@dataclass
class Rules:
    """Finds nothing wrong, or raises."""

    error: Exception | None = None

    def judge(self, action: Action) -> Verdict:
        if self.error:
            raise self.error
        return CLEAR


@dataclass
class Kit:
    """An announcer on a database, and what that keeps."""

    engine: Engine
    writer: Writer
    memory: Memory = field(default_factory=Memory)
    rules: Rules = field(default_factory=Rules)

    @property
    def announcer(self) -> Announcer:
        trail = AuditTrail(SqlAuditStore(self.engine), self.writer)
        intents = SqlIntentStore(self.engine)
        return Announcer(self.memory, self.rules, intents, trail, self.writer, lambda: NOW, min_score=0.3)

    def intents(self) -> tuple[Intent, ...]:
        return SqlIntentStore(self.engine).page(IntentFilter(), PageRequest()).items

    def entries(self) -> tuple[AuditEntry, ...]:
        return SqlAuditStore(self.engine).page(AuditFilter(), PageRequest()).items


@pytest.fixture
def kit(engine: Engine, writer: Writer) -> Kit:
    return Kit(engine, writer)


@pytest.mark.parametrize(
    ("memory", "rules", "kind", "reason"),
    [
        (Memory(error=QueryFailed("no")), Rules(), QueryFailed, "QUERY_FAILED"),
        (Memory(), Rules(GuardrailEvalFailed("no")), GuardrailEvalFailed, "GUARDRAIL_EVAL_FAILED"),
        (Memory(error=RuntimeError("a bug")), Rules(), RuntimeError, "INTERNAL"),
    ],
    ids=["search", "rules", "unforeseen"],
)
def test_an_intent_is_kept_with_the_reason_why_its_feedback_failed(
    kit: Kit, memory: Memory, rules: Rules, kind: type[Exception], reason: str
) -> None:
    kit.memory, kit.rules = memory, rules
    with pytest.raises(kind):
        kit.announcer.announce(Announcement("Deploy", "c-1"), "alice", "r-1")
    assert [(intent.intent, intent.received_at) for intent in kit.intents()] == [("Deploy", NOW)]
    assert [(entry.error, entry.correlation_id, entry.allowed) for entry in kit.entries()] == [(reason, "c-1", None)]


def test_metadata_that_is_too_large_leaves_nothing_behind(kit: Kit) -> None:
    with pytest.raises(InvalidArgument) as raised:
        kit.announcer.announce(Announcement("Deploy", "c-1", metadata={"a": "x" * 300_000}), "alice", "r-1")
    assert [violation.field for violation in raised.value.violations] == ["metadata"]
    assert (kit.intents(), kit.entries()) == ((), ())


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        (None, [1, 2, 3, 4, 5]),
        ("database", [4, 6, 1, 2, 3]),
        ("network", [1, 2, 3, 5, 7]),
        ("unknown", [1, 2, 3, 4, 5]),
    ],
)
def test_decisions_of_the_category_come_first_and_others_fill_up_to_five(
    kit: Kit, category: str | None, expected: list[int]
) -> None:
    kit.memory.matches = [match(number, "database" if number in (4, 6) else "network") for number in range(1, 9)]
    feedback = kit.announcer.announce(Announcement("Deploy", "c-1", category=category), "alice", "r-1")
    assert [item.decision.id for item in feedback.similar] == [f"dec-{number}" for number in expected]
