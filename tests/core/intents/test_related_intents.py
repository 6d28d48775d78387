"""Related intents: who is told of whose intents, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.contract.errors import Conflict, InvalidArgument, NotFound, QueryFailed
from cstp_grpc.core.audit.model import AuditEntry, AuditFilter
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.decisions.model import Decision, DecisionFilter, Match
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.core.decisions.search.decision_search import DecisionSearch
from cstp_grpc.core.decisions.search.search_results import SearchParameters
from cstp_grpc.core.guardrails.checker import GuardrailChecker
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.model import Action, RuleSet
from cstp_grpc.core.intents.announcer import (
    AnnouncementRecords,
    AnnouncementSources,
    Announcer,
    Feedback,
    FeedbackSettings,
)
from cstp_grpc.core.intents.closing import ClosingRequest, IntentCloser
from cstp_grpc.core.intents.model import Announcement, Intent, IntentFilter, NoProjects, SharedIntent, SuggestionBars
from cstp_grpc.core.intents.related_intents import IntentSubject, RecentIntents, RelatedIntents, paths_overlap
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.platform.embedding.embedder import CachedEmbedder, Vectors
from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.guardrails.rulebooks import rule, rule_set
from tests.core.intents.background import KnownBackground
from tests.core.intents.related import build_recent
from tests.lanes import ObservedLane

pytestmark = pytest.mark.above_stores

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
REBUILD = "Rebuild the orders search index tonight"
SHARED = Announcement(REBUILD, "c-1", category="database", visibility=Visibility.SHARED)
PRIVATE = replace(SHARED, visibility=Visibility.PRIVATE)
MAIL = Announcement("Send the newsletter of May", "c-mail", visibility=Visibility.SHARED)
ALONE = rule_set([rule("alone", 'intents.related("1h") > 0')])
NO_RULES = rule_set([rule("never", "false")])


class CountedEmbedder(LexicalEmbedder):
    """Remembers what it embedded, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded: list[str] = []
        self.error: Exception | None = None

    def embed(self, texts: Sequence[str]) -> Vectors:
        if self.error:
            raise self.error
        self.embedded += texts
        return super().embed(texts)


@dataclass
class Memory(DecisionSearch):
    """Embeds what is searched, and finds nothing."""

    embedder: CachedEmbedder

    embeds_together = False
    never_waits = False

    def require_revision(self, token: str) -> None:
        raise AssertionError("no announcement here requires a revision")

    def may_recall(self, parameters: SearchParameters) -> bool:
        return False

    def is_short(self, text: str, preferences: Sequence[DecisionFilter], limit: int) -> bool:
        return True

    def find_precedents(
        self,
        text: str,
        preferences: Sequence[DecisionFilter],
        caller: str,
        limit: int,
        min_score: float,
        *_: Any,
        **__: Any,
    ) -> list[Match]:
        self.embedder.embed([text])
        return []


class Journal:
    """Has one decision, which its agent may read."""

    def get(self, decision_id: str, caller: str) -> Decision:
        if (decision_id, caller) != ("dec-1", "ada"):
            raise NotFound(f"there is no decision {decision_id}")
        return Decision(
            id="dec-1",
            title="Rebuild at night",
            status=DecisionStatus.DECIDED,
            date=NOON,
            agent="ada",
            visibility=Visibility.PRIVATE,
        )


@dataclass
class Server:
    """Announces and closes as one server does."""

    database: Database
    writer: GroupCommitWriter
    rules: RuleSet = NO_RULES
    policy: ReadPolicy = SHARE_WITH_ALL
    stores_content: bool = True
    responds: bool = True
    follows_others: bool = False
    now: datetime = NOON
    inner: CountedEmbedder = field(default_factory=CountedEmbedder)
    lane: ObservedLane = field(default_factory=ObservedLane)
    sink_error: Exception | None = None
    recent: RecentIntents = field(init=False)
    related: RelatedIntents = field(init=False)

    def __post_init__(self) -> None:
        self.embedder = CachedEmbedder(self.inner, 100)
        self.recent = build_recent(self.database, lambda: self.now, self.embedder)
        self.related = RelatedIntents(
            self.recent,
            self.embedder,
            self.policy,
            lambda: self.now,
            self.lane,
            min_score=0.5,
            follows_others=self.follows_others,
        )
        self.trail = Trail(self.database, self.writer, self)
        self.intent_store = SqlIntentStore(self.database)
        self.checker = GuardrailChecker(GuardrailEvaluator(self.rules), self.trail, lambda: self.now, self.related)
        self.announcer = Announcer(
            Memory(self.embedder),
            self.checker,
            AnnouncementSources(NoProjects(), self.related, KnownBackground()),
            AnnouncementRecords(self.intent_store, self.trail, self.writer),
            lambda: self.now,
            self.lane,
            FeedbackSettings(
                SuggestionBars(0.3, 0.3, 0.5), min_score=0.3, stores_content=self.stores_content, responds=self.responds
            ),
        )
        self.closer = IntentCloser(
            self.intent_store, self.recent, Journal(), self.trail, self.writer, lambda: self.now, self.lane
        )

    def announce(self, announcement: Announcement, caller: str, reader: str | None = None) -> Feedback:
        return asyncio.run(self.announcer.announce(announcement, caller, "r-1", reader))

    def told(self, announcement: Announcement, caller: str, reader: str | None = None) -> list[tuple[str, str]]:
        """Return agents and correlation ids of what an announcement is answered with."""
        return [
            (item.intent.agent, item.intent.correlation_id)
            for item in self.announce(announcement, caller, reader).related
        ]

    def close(self, request: ClosingRequest, caller: str = "ada") -> Intent:
        return asyncio.run(self.closer.close(request, caller, "r-2"))

    def intents(self) -> tuple[Intent, ...]:
        return self.intent_store.page(IntentFilter(), PageRequest()).items

    def entries(self) -> tuple[AuditEntry, ...]:
        return self.trail.page(AuditFilter(), PageRequest()).items


class Trail(SqlAuditTrail):
    """An audit trail that may fail within a transaction."""

    def __init__(self, database: Database, writer: GroupCommitWriter, server: Server) -> None:
        super().__init__(database, writer)
        self._server = server

    def append(self, unit_of_work: UnitOfWork, entry: AuditEntry) -> None:
        if self._server.sink_error:
            raise self._server.sink_error
        super().append(unit_of_work, entry)


@pytest.fixture
def server(database: Database, writer: GroupCommitWriter) -> Server:
    return Server(database, writer)


def test_the_second_agent_that_announces_the_same_is_told_of_the_first(server: Server) -> None:
    assert server.told(SHARED, "ada") == []
    server.now += timedelta(minutes=5)
    (related,) = server.announce(replace(SHARED, correlation_id="c-2", intent=f"{REBUILD}!"), "bob").related
    assert (related.intent.agent, related.intent.intent, related.intent.received_at) == ("ada", REBUILD, NOON)
    assert (related.shared.allowed, related.intent.closing, round(related.score, 2)) == (True, None, 1.0)


def test_private_intents_are_told_to_nobody_and_their_agents_are_told_of_shared_ones(server: Server) -> None:
    server.announce(PRIVATE, "ada")
    assert server.told(SHARED, "bob") == []
    assert server.told(PRIVATE, "ada") == [("bob", "c-1")]


def test_nobody_is_told_of_their_own_or_of_other_subjects(server: Server) -> None:
    server.announce(SHARED, "ada")
    server.announce(MAIL, "bob")
    assert server.told(replace(SHARED, correlation_id="c-2"), "ada") == []


def test_an_intent_that_is_taken_back_is_no_longer_told(server: Server) -> None:
    server.announce(SHARED, "ada")
    server.announce(PRIVATE, "ada")
    assert [intent.revision for intent in server.intents()] == [2, 1]
    assert server.told(SHARED, "bob") == []


def test_a_revision_takes_the_place_of_the_former(server: Server) -> None:
    server.announce(SHARED, "ada")
    server.announce(replace(SHARED, intent="Send the newsletter"), "ada")
    assert server.told(SHARED, "bob") == []
    assert server.told(replace(MAIL, intent="Send a newsletter"), "bob") == [("ada", "c-1")]


def test_an_intent_is_told_for_a_day(server: Server) -> None:
    server.announce(SHARED, "ada")
    server.now += timedelta(hours=24)
    assert server.told(SHARED, "bob") == [("ada", "c-1")]
    server.now += timedelta(seconds=1)
    assert server.told(replace(SHARED, correlation_id="c-2"), "eve") == [("bob", "c-1")]


def test_open_intents_come_first_and_at_most_five_are_told(server: Server) -> None:
    for number in range(4):
        server.announce(replace(SHARED, correlation_id=f"open {number}", intent=f"{REBUILD} {'now ' * number}"), "ada")
    for number in range(3):
        server.announce(replace(SHARED, correlation_id=f"done {number}"), "ada")
        server.close(ClosingRequest(f"done {number}", Outcome.SUCCESS))
    found = server.announce(SHARED, "bob").related
    assert [item.intent.correlation_id for item in found] == ["open 0", "open 1", "open 2", "open 3", "done 0"]
    assert [item.score for item in found[:4]] == sorted((item.score for item in found[:4]), reverse=True)


def test_a_common_path_raises_the_score(server: Server) -> None:
    """The same intent without a common place, in the same project and on the same path."""
    text = "Rebuild the search index of the customers and of the suppliers by Friday"
    places: list[tuple[str | None, tuple[str, ...]]] = [(None, ()), ("shop", ("docs",)), ("shop", ("src/orders",))]
    scores = []
    for project, paths in places:
        vector = server.embedder.embed([REBUILD])[0]
        intent = Intent("ada", "c-1", "", NOON, intent=REBUILD, project=project, paths=paths)
        server.related.add(SharedIntent(intent, vector, allowed=True))
        subject = IntentSubject(server.embedder.embed([text])[0], "bob", "bob", "shop", ("src/orders/index.py",))
        (related,) = server.related.find(subject)
        scores.append(related.score)
    assert 0.5 < scores[0] < 0.8
    assert [round(score - scores[0], 6) for score in scores] == [0, 0.05, 0.2]


@pytest.mark.parametrize(
    ("some", "others", "overlap"),
    [
        (["src"], ["src"], True),
        (["src"], ["src/orders/index.py"], True),
        (["src/orders/index.py"], ["docs", "src/orders"], True),
        (["src/orders"], ["src/orders.py"], False),
        (["src/a"], ["src/b"], False),
        ([], ["src"], False),
        (["src"], [], False),
    ],
)
def test_paths_overlap_if_one_contains_the_other(some: list[str], others: list[str], overlap: bool) -> None:
    assert paths_overlap(some, others) is overlap


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (ReadPolicy.of(["peer"], [], []), True),
        (ReadPolicy.of(["peer"], ["database"], []), True),
        (ReadPolicy.of(["peer"], ["process"], []), False),
        (ReadPolicy.of(["peer"], ["database"], ["public"]), False),
    ],
)
def test_peers_are_told_of_what_their_policy_lets_them_read(
    database: Database, writer: GroupCommitWriter, policy: ReadPolicy, told: bool
) -> None:
    server = Server(database, writer, policy=policy)
    server.announce(SHARED, "ada")
    assert bool(server.told(PRIVATE, "peer")) is told
    assert bool(server.told(PRIVATE, "peer", reader="")) is told
    assert server.told(PRIVATE, "bob") == [("ada", "c-1")]


def test_content_that_is_not_stored_cannot_be_shared(database: Database, writer: GroupCommitWriter) -> None:
    server = Server(database, writer, stores_content=False)
    with pytest.raises(InvalidArgument) as raised:
        server.announce(SHARED, "ada")
    assert [violation.field for violation in raised.value.violations] == ["visibility"]
    assert server.intents() == ()
    assert server.told(PRIVATE, "ada") == []


def test_a_silent_server_shares_and_tells_nothing(database: Database, writer: GroupCommitWriter) -> None:
    silent = Server(database, writer, responds=False)
    silent.announce(SHARED, "ada")
    assert silent.told(SHARED, "bob") == []
    assert len(Server(database, writer).told(PRIVATE, "eve")) == 2


def test_a_text_is_embedded_once(server: Server) -> None:
    server.announce(SHARED, "ada")
    assert server.inner.embedded == [REBUILD]
    server.announce(replace(SHARED, intent=f"{REBUILD}!", context="It is slow"), "bob")
    assert server.inner.embedded == [REBUILD, f"{REBUILD}!\nIt is slow"]


def test_an_announcement_where_nobody_shares_changes_threads_for_nothing_else(server: Server) -> None:
    server.announce(PRIVATE, "ada")
    assert (server.lane.short, server.lane.blocking) == (["find_precedents"], [])


def test_an_intent_of_which_something_is_not_stored_is_not_told(server: Server) -> None:
    """Intent, audit entry and vector are one transaction."""
    server.sink_error = QueryFailed("no")
    with pytest.raises(QueryFailed):
        server.announce(SHARED, "ada")
    server.sink_error = None
    assert (server.intents(), server.entries()) == ((), ())
    assert server.told(SHARED, "bob") == []
    assert Server(server.database, server.writer).told(PRIVATE, "ada") == [("bob", "c-1")]


def test_an_intent_whose_feedback_failed_is_told_once_it_is_announced_again(server: Server) -> None:
    server.inner.error = QueryFailed("no")
    with pytest.raises(QueryFailed):
        server.announce(SHARED, "ada")
    server.inner.error = None
    assert server.told(PRIVATE, "bob") == []
    server.announce(SHARED, "ada")
    assert server.told(PRIVATE, "bob") == [("ada", "c-1")]


@pytest.mark.both_databases
def test_servers_tell_of_what_was_announced_and_closed_on_others(database: Database, writer: GroupCommitWriter) -> None:
    first, second = (Server(database, writer, follows_others=True) for _ in range(2))
    first.announce(SHARED, "ada")
    (related,) = second.announce(SHARED, "bob").related
    first.close(ClosingRequest("c-1", Outcome.FAILURE, "The disk was full"))
    second.recent.refresh()
    (closed,) = second.announce(PRIVATE, "eve").related[-1:]
    assert (related.intent.agent, related.intent.closing) == ("ada", None)
    assert closed.intent.closing is not None
    assert (closed.intent.closing.outcome, closed.intent.closing.notes) == (Outcome.FAILURE, "The disk was full")


@pytest.mark.both_databases
def test_of_two_agents_that_announce_at_the_same_time_one_is_told(server: Server) -> None:
    async def announce_at_once() -> list[Feedback]:
        return list(
            await asyncio.gather(
                *(server.announcer.announce(SHARED, agent, "r-1", agent) for agent in ("ada", "bob", "eve"))
            )
        )

    for _ in range(5):
        told = sorted(len(feedback.related) for feedback in asyncio.run(announce_at_once()))
        assert told[-1] == 2
        assert sum(told) >= 3


def test_rules_count_open_intents_of_others_that_are_not_blocked(database: Database, writer: GroupCommitWriter) -> None:
    server = Server(database, writer, rules=ALONE)

    def allowed(caller: str) -> bool:
        verdict = server.announce(SHARED, caller).verdict
        assert verdict is not None
        return verdict.allowed

    assert allowed("ada")
    # Blocked, and so in nobody's way.
    assert not allowed("bob")
    assert allowed("ada")
    server.close(ClosingRequest("c-1", Outcome.SUCCESS))
    assert allowed("bob")
    server.now += timedelta(hours=1, seconds=1)
    assert allowed("eve")


def test_checks_count_related_intents_too(database: Database, writer: GroupCommitWriter) -> None:
    server = Server(database, writer, rules=ALONE)
    server.announce(SHARED, "ada")

    def allowed(caller: str, description: str = REBUILD) -> bool:
        action = Action(description)
        result = asyncio.run(server.checker.judge_and_record(action, caller, None, "r-3"))
        return result.verdict.allowed

    assert (allowed("bob"), allowed("ada"), allowed("bob", "Send the newsletter")) == (False, True, True)
    server.inner.error = QueryFailed("the model is gone")
    (violation,) = asyncio.run(
        server.checker.judge_and_record(Action("Something new"), "bob", None, "r-4")
    ).verdict.violations
    assert violation.message == "Cannot be evaluated: intents cannot be read: the model is gone"


def test_an_intent_is_closed_once_and_recorded(server: Server) -> None:
    server.announce(PRIVATE, "ada")
    server.now += timedelta(hours=1)
    request = ClosingRequest("c-1", Outcome.PARTIAL, "One shard\0is left", "dec-1")
    closed = server.close(request)
    server.now += timedelta(hours=1)
    assert server.close(request) == closed == replace(server.intents()[0], visibility=Visibility.PRIVATE)
    assert closed.closing is not None
    assert closed.closing.closed_at == NOON + timedelta(hours=1)
    closings = [entry for entry in server.entries() if entry.event == "intent_closed"]
    assert [(e.requesting_agent, e.action, e.correlation_id, e.intent_revision, e.decision_id) for e in closings] == [
        ("ada", REBUILD, "c-1", 1, "dec-1")
    ]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (ClosingRequest("c-1", Outcome.FAILURE), Conflict),
        (ClosingRequest("c-1", Outcome.SUCCESS, "other notes"), Conflict),
        (ClosingRequest("c-1", Outcome.SUCCESS, decision_id="dec-1"), Conflict),
        (ClosingRequest("c-1", Outcome.SUCCESS, revision=2), NotFound),
        (ClosingRequest("c-2", Outcome.SUCCESS), NotFound),
        (ClosingRequest("c-1", Outcome.SUCCESS, decision_id="dec-2"), NotFound),
    ],
)
def test_what_cannot_be_closed_changes_nothing(
    server: Server, request_: ClosingRequest, error: type[Exception]
) -> None:
    server.announce(SHARED, "ada")
    server.close(ClosingRequest("c-1", Outcome.SUCCESS))
    before = (server.intents(), server.entries())
    with pytest.raises(error):
        server.close(request_)
    assert (server.intents(), server.entries()) == before


def test_agents_close_their_own_intents_only(server: Server) -> None:
    server.announce(SHARED, "ada")
    with pytest.raises(NotFound):
        server.close(ClosingRequest("c-1", Outcome.SUCCESS), "bob")


def test_the_latest_revision_is_closed_unless_another_is_named(server: Server) -> None:
    server.announce(PRIVATE, "ada")
    server.announce(replace(PRIVATE, intent="Do something else"), "ada")
    assert server.close(ClosingRequest("c-1", Outcome.ABANDONED, revision=1)).revision == 1
    assert server.close(ClosingRequest("c-1", Outcome.SUCCESS)).revision == 2
    assert server.announce(replace(PRIVATE, intent="Do something else"), "ada").revision == 2


def test_a_closing_whose_audit_entry_fails_is_not_stored(server: Server) -> None:
    server.announce(SHARED, "ada")
    server.sink_error = QueryFailed("no")
    with pytest.raises(QueryFailed):
        server.close(ClosingRequest("c-1", Outcome.SUCCESS))
    assert [intent.closing for intent in server.intents()] == [None]
    server.sink_error = None
    assert [item.intent.closing for item in server.announce(SHARED, "bob").related] == [None]


@pytest.mark.both_databases
def test_closings_of_the_same_intent_at_once_are_one(server: Server) -> None:
    server.announce(PRIVATE, "ada")
    other = Server(server.database, server.writer)

    async def close_at_once() -> list[Intent]:
        request = ClosingRequest("c-1", Outcome.SUCCESS)
        return list(await asyncio.gather(*(each.closer.close(request, "ada", "r-2") for each in [server, other] * 8)))

    assert len({intent.closing for intent in asyncio.run(close_at_once())}) == 1
    assert len([entry for entry in server.entries() if entry.event == "intent_closed"]) == 1
