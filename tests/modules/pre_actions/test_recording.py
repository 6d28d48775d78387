"""A decision that is recorded with its announcement: both or neither, once, and found by searches."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Stakes
from cstp_grpc.contract.errors import Conflict, InternalError, InvalidArgument, QueryFailed
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.decisions.model import DecisionContent, DecisionFilter
from cstp_grpc.core.guardrails.checker import GuardrailChecker
from cstp_grpc.core.intents.announcer import (
    AnnouncementRecords,
    AnnouncementSources,
    Announcer,
    Feedback,
    FeedbackSettings,
)
from cstp_grpc.core.intents.model import Announcement, IntentFilter, SuggestionBars
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.modules.pre_actions.recording import (
    MAX_TITLE_CHARACTERS,
    AnnouncedDecision,
    PlannedDecision,
    UninterruptedCalls,
    complete_content,
    recording_key,
)
from cstp_grpc.platform.embedding.embedder import Vectors
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.journals import CountingEmbedder, JournalKit
from tests.core.intents.background import KnownBackground
from tests.core.intents.related import build_related
from tests.core.intents.test_announcer import NOW, Code, Memory, Rules
from tests.lanes import ObservedLane

pytestmark = pytest.mark.above_stores

PLAN = Announcement("Rebuild the index", "c-1", category="search", confidence=0.9)


class FailingTrail(SqlAuditTrail):
    """A trail that fails at the last statement of an announcement's transaction."""

    def append(self, unit_of_work: UnitOfWork, entry: AuditEntry) -> None:
        if entry.event is AuditEvent.INTENT_ANNOUNCED:
            raise InternalError("no")
        super().append(unit_of_work, entry)


class FailingEmbedder(CountingEmbedder):
    """An embedder whose endpoint does not answer."""

    def embed(self, texts: object) -> Vectors:
        raise QueryFailed("no")


class Kit(JournalKit):
    """An announcer and a journal on one database."""

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        super().__init__(database, writer)
        self.database = database
        self.intents = SqlIntentStore(database)
        self.lane = ObservedLane()

    def announcer(self, trail: SqlAuditTrail | None = None) -> Announcer:
        return Announcer(
            Memory(),
            cast("GuardrailChecker", Rules()),
            AnnouncementSources(Code(), build_related(self.database, lambda: NOW, self.lane), KnownBackground()),
            AnnouncementRecords(self.intents, trail or SqlAuditTrail(self.database, self.writer), self.writer),
            lambda: NOW,
            self.lane,
            FeedbackSettings(SuggestionBars(0.3, 0.3, 0.5), min_score=0.3),
        )

    def plan(self, announcement: Announcement = PLAN, title: str | None = None) -> AnnouncedDecision:
        planned = PlannedDecision(None if title is None else DecisionContent(title))
        return AnnouncedDecision(self.journal, self.lane, announcement, planned, "alice", "r-1", stores_content=True)

    async def act(self, announcer: Announcer, announcement: Announcement = PLAN, title: str | None = None) -> Feedback:
        """Announce and record, and let searches find it."""
        decision = self.plan(announcement, title)
        feedback = await announcer.announce(announcement, "alice", "r-1", recording=decision)
        assert feedback.written is not None
        await decision.publish(feedback.written)
        return feedback

    def recorded(self) -> list[str]:
        """Return the titles of all decisions, latest first."""
        return [item.title for item in self.journal.page("alice", DecisionFilter(), PageRequest()).items]

    def announced(self) -> list[str | None]:
        """Return the texts of all revisions of intents, latest first."""
        return [item.intent for item in self.intents.page(IntentFilter(), PageRequest()).items]


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> Kit:
    return Kit(database, writer)


def test_both_are_on_record_and_searches_hear_of_the_decision(kit: Kit) -> None:
    feedback = asyncio.run(kit.act(kit.announcer()))
    assert feedback.written is not None
    assert (kit.recorded(), kit.announced()) == (["Rebuild the index"], ["Rebuild the index"])
    assert list(kit.heard.rows) == [feedback.written.result.id]


def test_what_fails_in_the_transaction_leaves_neither(kit: Kit) -> None:
    with pytest.raises(InternalError):
        asyncio.run(kit.act(kit.announcer(FailingTrail(kit.database, kit.writer))))
    assert (kit.recorded(), kit.announced(), kit.heard.rows) == ([], [], {})


def test_another_decision_for_the_same_announcement_leaves_what_was_there(kit: Kit) -> None:
    asyncio.run(kit.act(kit.announcer(), title="At night"))
    with pytest.raises(Conflict, match="the same announcement was used"):
        asyncio.run(kit.act(kit.announcer(), title="At noon"))
    assert (kit.recorded(), kit.announced()) == (["At night"], ["Rebuild the index"])


def test_an_intent_whose_decision_cannot_be_embedded_is_kept_as_one_that_failed(kit: Kit) -> None:
    kit.embedder = FailingEmbedder()
    kit.journal = kit.build_journal(kit.store)
    with pytest.raises(QueryFailed):
        asyncio.run(kit.act(kit.announcer()))
    assert (kit.recorded(), kit.announced()) == ([], ["Rebuild the index"])


@pytest.mark.both_databases
def test_callers_that_repeat_at_the_same_time_get_the_same_decision(kit: Kit) -> None:
    async def act_together() -> list[Feedback]:
        announcer = kit.announcer()
        return await asyncio.gather(*(kit.act(announcer) for _ in range(8)))

    answers = asyncio.run(act_together())
    assert len({answer.written.result.id for answer in answers if answer.written}) == 1
    assert {answer.revision for answer in answers} == {1}
    assert (kit.recorded(), kit.announced()) == (["Rebuild the index"], ["Rebuild the index"])


def test_a_decision_of_its_own_transaction_has_the_same_key(kit: Kit) -> None:
    asyncio.run(kit.announcer().announce(PLAN, "alice", "r-1"))
    alone = asyncio.run(kit.plan().record())
    feedback = asyncio.run(kit.act(kit.announcer()))
    assert feedback.written is not None
    assert feedback.written.result.id == alone.id


def test_an_announcement_without_a_decision_takes_no_thread_for_one(kit: Kit) -> None:
    asyncio.run(kit.announcer().announce(PLAN, "alice", "r-1"))
    assert kit.lane.blocking == []


def test_what_is_committed_is_published_even_if_the_caller_is_gone() -> None:
    published: list[str] = []

    async def use() -> None:
        committed, calls = asyncio.Event(), UninterruptedCalls()

        async def act() -> None:
            committed.set()
            await asyncio.sleep(0)
            published.append("published")

        caller = asyncio.create_task(calls.run(act()))
        await committed.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        while not published:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(use(), 10))
    assert published == ["published"]


def test_a_decision_is_completed_from_its_announcement() -> None:
    announcement = Announcement("Do it", "c-1", "why", "search", Stakes.HIGH, 0.9, project="shop")
    completed = complete_content(DecisionContent("At night", confidence=0.0), announcement, with_context=True)
    assert completed == DecisionContent("At night", "why", "search", Stakes.HIGH, 0.0, project="shop")
    own = DecisionContent("At night", "because", "ops", Stakes.LOW, 0.1, project="mail")
    assert complete_content(own, announcement, with_context=True) == own
    assert complete_content(None, announcement, with_context=False).context is None


@given(st.text(min_size=1, max_size=3 * MAX_TITLE_CHARACTERS), st.none() | st.text(min_size=1))
def test_an_intent_of_any_length_becomes_a_title_and_loses_nothing(intent: str, context: str | None) -> None:
    completed = complete_content(None, Announcement(intent, "c-1", context), with_context=True)
    assert len(completed.title) <= MAX_TITLE_CHARACTERS
    if len(intent) <= MAX_TITLE_CHARACTERS:
        assert (completed.title, completed.context) == (intent, context)
    else:
        assert completed.context == (intent if context is None else f"{intent}\n{context}")


def test_without_stored_contents_the_decision_must_be_given(kit: Kit) -> None:
    with pytest.raises(InvalidArgument):
        AnnouncedDecision(kit.journal, kit.lane, PLAN, PlannedDecision(), "alice", "r-1", stores_content=False)


@given(st.text(), st.text(), st.text(), st.text())
def test_announcements_have_the_same_key_only_if_they_are_the_same(one: str, two: str, other: str, id_two: str) -> None:
    first, second = Announcement(one, two or "c"), Announcement(other, id_two or "c")
    assert (recording_key(first) == recording_key(second)) == (first == second)
    assert " " in recording_key(first)
