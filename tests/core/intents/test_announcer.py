"""Announcing: what is kept whatever comes of it, which decisions are recalled, and what governs the code."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from cstp_grpc.contract.enums import DecisionStatus, Stakes, Visibility
from cstp_grpc.contract.errors import GuardrailEvalFailed, InvalidArgument, NotFound, QueryFailed
from cstp_grpc.core.audit.model import AuditEntry, AuditFilter
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.decisions.model import Decision, DecisionFilter, Match, build_predicate
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch
from cstp_grpc.core.decisions.search.relevance import NOTHING_FAVOURED, Favoured
from cstp_grpc.core.decisions.search.search_results import SearchParameters
from cstp_grpc.core.guardrails.checker import GuardrailChecker, RuleSnapshot
from cstp_grpc.core.guardrails.model import NO_CODE, Action, CodeFacts, Verdict
from cstp_grpc.core.intents.announcer import (
    AnnouncementRecords,
    AnnouncementSources,
    Announcer,
    Feedback,
    FeedbackSettings,
)
from cstp_grpc.core.intents.model import Announcement, CodeContext, Intent, IntentFilter, SuggestionBars
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.intents.background import KnownBackground
from tests.core.intents.related import build_related
from tests.lanes import ObservedLane

pytestmark = pytest.mark.above_stores

NOW = datetime(2026, 2, 4, 21, tzinfo=UTC)
CLEAR = Verdict((), (), 5, "rules@1", allowed=True)
CODE = CodeContext(
    "shop",
    ("src/api",),
    nodes=("AGENTS.md",),
    check_items=("Run the contract tests", "Update the client"),
    rules=CodeFacts(checks=("Run the contract tests", "Update the client")),
)
ABOUT_CODE = Announcement("Add a handler", "c-1", project="shop", paths=("src/api",))


def match(number: int, category: str | None, agent: str = "alice") -> Match:
    decision = Decision(
        id=f"dec-{number}",
        title=f"Decision {number}",
        status=DecisionStatus.DECIDED,
        date=NOW,
        agent=agent,
        visibility=Visibility.SHARED,
        category=category,
    )
    return Match(decision, 1 - number / 100)


@dataclass
class Memory(DecisionSearch):
    """Finds its matches by their category and agent, best first, or raises."""

    matches: list[Match] = field(default_factory=list)
    error: Exception | None = None
    short: bool = True
    favoured: list[Favoured] = field(default_factory=list)

    embeds_together = False
    never_waits = False

    def require_revision(self, token: str) -> None:
        raise AssertionError("no announcement here requires a revision")

    def may_recall(self, parameters: SearchParameters) -> bool:
        return False

    def is_short(self, text: str, preferences: Sequence[DecisionFilter], limit: int) -> bool:
        return self.short

    def is_cached(self, text: str) -> bool:
        return self.short

    def find_precedents(
        self,
        text: str,
        preferences: Sequence[DecisionFilter],
        caller: str,
        limit: int,
        min_score: float,
        favoured: Favoured = NOTHING_FAVOURED,
        **_: Any,
    ) -> list[Match]:
        if self.error:
            raise self.error
        self.favoured.append(favoured)
        found = [item for filters in preferences for item in self.matches if build_predicate(filters)(item.decision)]
        return list({item.decision.id: item for item in found}.values())[:limit]


@dataclass
class Rules(GuardrailChecker):
    """Finds nothing wrong, or raises; remembers what it was asked about."""

    error: Exception | None = None
    judged: list[Action] = field(default_factory=list)
    reads: bool = False

    @property
    def reads_intents(self) -> bool:
        return self.reads

    def take_snapshot(self) -> RuleSnapshot:
        return cast("RuleSnapshot", self)

    @property
    def reads_history(self) -> bool:
        return False

    def judge(self, action: Action) -> Verdict:
        self.judged.append(action)
        if self.error:
            raise self.error
        return CLEAR


@dataclass
class Code:
    """Knows what governs paths, or raises."""

    error: Exception | None = None

    def read_context(self, project: str | None, paths: Sequence[str]) -> CodeContext | None:
        if self.error:
            raise self.error
        return CODE if paths else None


@dataclass
class Kit:
    """An announcer on a database, and what that keeps."""

    database: Database
    writer: GroupCommitWriter
    memory: Memory = field(default_factory=Memory)
    rules: Rules = field(default_factory=Rules)
    code: Code = field(default_factory=Code)
    lane: ObservedLane = field(default_factory=ObservedLane)
    stores_content: bool = True
    responds: bool = True
    now: datetime = NOW
    background: KnownBackground = field(default_factory=KnownBackground)

    def __post_init__(self) -> None:
        self.related = build_related(self.database, lambda: self.now, self.lane)

    def announce(self, announcement: Announcement, caller: str, request_id: str) -> Feedback:
        return asyncio.run(self._announcer.announce(announcement, caller, request_id))

    @property
    def _announcer(self) -> Announcer:
        trail = SqlAuditTrail(self.database, self.writer)
        intents = SqlIntentStore(self.database)
        return Announcer(
            self.memory,
            cast("GuardrailChecker", self.rules),
            AnnouncementSources(self.code, self.related, self.background),
            AnnouncementRecords(intents, trail, self.writer),
            lambda: self.now,
            self.lane,
            FeedbackSettings(
                SuggestionBars(0.3, 0.3, 0.5), min_score=0.3, stores_content=self.stores_content, responds=self.responds
            ),
        )

    def intents(self) -> tuple[Intent, ...]:
        return SqlIntentStore(self.database).page(IntentFilter(), PageRequest()).items

    def entries(self) -> tuple[AuditEntry, ...]:
        return SqlAuditTrail(self.database, self.writer).page(AuditFilter(), PageRequest()).items


def texts_of(feedback: Feedback) -> tuple[str, ...]:
    return tuple(suggestion.text for suggestion in feedback.suggestions)


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> Kit:
    return Kit(database, writer)


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
        kit.announce(Announcement("Deploy", "c-1"), "alice", "r-1")
    assert [(intent.intent, intent.received_at) for intent in kit.intents()] == [("Deploy", NOW)]
    assert [(entry.error, entry.correlation_id, entry.allowed) for entry in kit.entries()] == [(reason, "c-1", None)]


def test_a_revision_whose_feedback_failed_is_kept_and_is_the_one_that_a_repetition_gets(kit: Kit) -> None:
    assert kit.announce(Announcement("Deploy", "c-1"), "alice", "r-1").revision == 1
    kit.memory.error = QueryFailed("no")
    with pytest.raises(QueryFailed):
        kit.announce(Announcement("Roll back", "c-1"), "alice", "r-2")
    kit.memory.error = None
    assert kit.announce(Announcement("Roll back", "c-1"), "alice", "r-3").revision == 2
    assert [(entry.request_id, entry.intent_revision) for entry in kit.entries()] == [
        ("r-3", 2),
        ("r-2", 2),
        ("r-1", 1),
    ]


def test_metadata_that_is_too_large_leaves_nothing_behind(kit: Kit) -> None:
    with pytest.raises(InvalidArgument) as raised:
        kit.announce(Announcement("Deploy", "c-1", metadata={"a": "x" * 300_000}), "alice", "r-1")
    assert [violation.field for violation in raised.value.violations] == ["metadata"]
    assert (kit.intents(), kit.entries()) == ((), ())


def test_five_decisions_are_answered_and_those_of_category_and_project_are_favoured(kit: Kit) -> None:
    kit.memory.matches = [match(number, "database" if number in (4, 6) else "network") for number in range(1, 9)]
    feedback = kit.announce(Announcement("Deploy", "c-1", category="database"), "alice", "r-1")
    kit.announce(Announcement("Deploy", "c-2"), "alice", "r-1")
    assert [item.decision.id for item in feedback.similar] == [f"dec-{number}" for number in range(1, 6)]
    assert kit.memory.favoured == [Favoured("database"), NOTHING_FAVOURED]


def test_what_nodes_say_takes_only_the_places_that_decisions_leave(kit: Kit) -> None:
    kit.memory.matches = [match(number, "pitfall", "intent-layer" if number < 7 else "alice") for number in range(10)]
    for category in (None, "pitfall"):
        announcement = Announcement("Deploy", f"c-{category}", category=category)
        feedback = kit.announce(announcement, "alice", "r-1")
        assert [item.decision.id for item in feedback.similar] == [f"dec-{number}" for number in (7, 8, 9, 0, 1)]


def test_a_warm_announcement_changes_threads_for_the_durable_write_only(kit: Kit) -> None:
    kit.announce(Announcement("Deploy", "c-1"), "alice", "r-1")
    assert (kit.lane.short, kit.lane.blocking) == (["find_precedents"], [])


def test_files_and_long_searches_do_not_hold_the_event_loop(kit: Kit) -> None:
    kit.memory.short = False
    kit.announce(ABOUT_CODE, "alice", "r-1")
    assert (kit.lane.short, kit.lane.blocking) == ([], ["read_context", "find_precedents"])


def test_what_governs_the_code_is_answered_judged_and_suggested(kit: Kit) -> None:
    feedback = kit.announce(ABOUT_CODE, "alice", "r-1")

    assert feedback.code == CODE
    assert [action.code for action in kit.rules.judged] == [CODE.rules]
    assert texts_of(feedback) == ("Check: Run the contract tests", "Check: Update the client")


def test_checks_that_were_made_are_not_suggested(kit: Kit) -> None:
    made = replace(ABOUT_CODE, metadata={"confirmedChecks": ["Run the contract tests", {"odd": 1}]})

    assert texts_of(kit.announce(made, "alice", "r-1")) == ("Check: Update the client",)


def test_what_confirms_checks_is_a_list_or_nothing(kit: Kit) -> None:
    claimed = replace(ABOUT_CODE, metadata={"confirmedChecks": "Run the contract tests, Update the client"})

    assert len(kit.announce(claimed, "alice", "r-1").suggestions) == 2


def test_without_paths_there_is_no_code(kit: Kit) -> None:
    feedback = kit.announce(replace(ABOUT_CODE, paths=()), "alice", "r-1")

    assert (feedback.code, feedback.suggestions) == (None, ())
    assert [action.code for action in kit.rules.judged] == [NO_CODE]


def test_a_silent_server_keeps_the_paths_and_tells_nothing(kit: Kit) -> None:
    kit.responds = False

    feedback = kit.announce(ABOUT_CODE, "alice", "r-1")

    assert (feedback.code, feedback.suggestions) == (None, ())
    assert [(intent.project, intent.paths) for intent in kit.intents()] == [("shop", ("src/api",))]


@pytest.mark.parametrize("error", [NotFound("no such project"), InvalidArgument.field("paths[0]", "leaves")])
def test_paths_that_cannot_be_looked_at_leave_nothing_behind(kit: Kit, error: Exception) -> None:
    kit.code.error = error

    with pytest.raises(type(error)):
        kit.announce(ABOUT_CODE, "alice", "r-1")

    assert (kit.intents(), kit.entries(), kit.rules.judged) == ((), (), [])


def test_project_and_paths_are_kept_with_the_content_or_not_at_all(kit: Kit) -> None:
    kit.announce(ABOUT_CODE, "alice", "r-1")
    kit.stores_content = False
    kit.announce(replace(ABOUT_CODE, correlation_id="c-2"), "alice", "r-2")

    kept = {intent.correlation_id: (intent.project, intent.paths) for intent in kit.intents()}
    assert kept == {"c-1": ("shop", ("src/api",)), "c-2": (None, ())}


@pytest.mark.parametrize(
    ("announcement", "digest"),
    [
        (Announcement("Deploy", "c-1"), "89b359fd72a1ecfb2b4d31c286065335edcb4fbd6fd3127dfb3706fd31a87df8"),
        (
            Announcement("Deploy", "c-1", "soon", "process", Stakes.HIGH, 0.5, {"b": [1], "a": None}, "emerson"),
            "855e10a8fc690f3aff9f4a1174f6abe9fd83d687991abc8d8d80f0ca65e205ce",
        ),
    ],
)
def test_announcements_about_no_code_are_told_apart_as_ever(announcement: Announcement, digest: str) -> None:
    """Repetitions of announcements that were stored before there were paths must still be recognised."""
    assert announcement.content_hash() == digest


def test_project_and_paths_make_another_content() -> None:
    kinds = [
        replace(ABOUT_CODE, project=project, paths=paths)
        for project in (None, "shop", "src/api")
        for paths in ((), ("src/api",), ("src", "api"), ("api", "src"))
    ]

    assert len({announcement.content_hash() for announcement in kinds}) == len(kinds)
