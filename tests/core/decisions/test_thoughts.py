"""Thoughts: who may read them, how many there may be, and how long, on each kind of database."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from cstp_grpc.contract.caller import OVERSEER
from cstp_grpc.contract.enums import Outcome, Visibility
from cstp_grpc.contract.errors import Conflict, CstpError, InvalidArgument, NotFound, RateLimited
from cstp_grpc.core.decisions import thoughts as thoughts_module
from cstp_grpc.core.decisions.model import DecisionContent, Links, Thought, ThoughtContent
from cstp_grpc.core.decisions.sql_tables import thoughts
from cstp_grpc.core.decisions.sql_thoughts import SqlThoughtStore
from cstp_grpc.core.decisions.thoughts import ThoughtLimits, Thoughts
from cstp_grpc.core.intents.model import IntentClosing
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.journals import JournalKit
from tests.core.intents.test_sql_store import INTENT, remember_on
from tests.databases import ServerWriter
from tests.example_counts import examples

LIMITS = ThoughtLimits(max_characters=100, per_target=3, per_agent=5, kept=timedelta(days=30))
SHARED, PRIVATE = Visibility.SHARED, Visibility.PRIVATE
ALL = PageRequest(1000)


class ThoughtKit(JournalKit):
    """A journal, intents and thoughts on their database."""

    def __init__(self, database: Database, writer: GroupCommitWriter, limits: ThoughtLimits = LIMITS) -> None:
        super().__init__(database, writer)
        self.database = database
        self.intents = SqlIntentStore(database)
        self.thought_store = SqlThoughtStore(database)
        self.thoughts = Thoughts(self.thought_store, self.store, writer, self.clock, limits)

    def decide(self, agent: str = "alice", visibility: Visibility = PRIVATE) -> str:
        return self.journal.record(DecisionContent("use a queue", visibility=visibility), Links(), agent, "r").id

    def announce(self, agent: str, correlation_id: str, **changes: Any) -> None:
        intent = replace(INTENT, agent=agent, correlation_id=correlation_id, **changes)
        remember_on(self.intents, self.writer)(intent)

    def close(self, agent: str, correlation_id: str, decision_id: str, revision: int = 1) -> None:
        key = replace(INTENT, agent=agent, correlation_id=correlation_id, revision=revision).key
        closing = IntentClosing(self.clock(), Outcome.SUCCESS, None, decision_id)
        self.writer.run(lambda unit_of_work: self.intents.close(unit_of_work, key, closing))

    def think(self, agent: str, text: str, decision_id: str | None = None, **fields: Any) -> Thought:
        return self.thoughts.record(ThoughtContent(text, decision_id, **fields), agent)

    def listed(self, reader: str, decision_id: str | None = None, correlation_id: str | None = None) -> list[str]:
        return texts(self.thoughts.page(reader, decision_id, correlation_id, ALL).items)

    def shown(self, decision_id: str, reader: str) -> list[str]:
        return texts(self.thoughts.show(decision_id, reader)[0])

    def count_rows(self) -> int:
        with self.database.read_snapshot() as unit_of_work:
            found: int = unit_of_work.execute(select(func.count()).select_from(thoughts)).scalar_one()
        return found


@pytest.fixture
def kit(database: Database, writer: GroupCommitWriter) -> ThoughtKit:
    return ThoughtKit(database, writer)


def texts(found: Any) -> list[str]:
    return [item.content.text for item in found]


def refusal(kind: type[CstpError], act: Any) -> str:
    with pytest.raises(kind) as caught:
        act()
    return caught.value.message


@pytest.mark.contract("SqlThoughtStore.insert", "SqlThoughtStore.page")
def test_a_thought_is_listed_with_its_expiry_and_the_latest_first(kit: ThoughtKit) -> None:
    key = kit.decide()
    first = kit.think("alice", "a queue\0 decouples", key)
    kit.think("alice", "but it may grow", key, visibility=SHARED)
    assert first.content == ThoughtContent("a queue\ufffd decouples", key)
    assert first.expires_at == first.recorded_at + timedelta(days=30)
    assert kit.thoughts.page("alice", key, None, ALL).items[1] == first
    assert kit.listed("alice") == kit.listed("alice", key) == ["but it may grow", "a queue\ufffd decouples"]
    assert kit.shown(key, "alice") == kit.listed("alice")[::-1]


def test_pages_have_each_thought_once(kit: ThoughtKit, monkeypatch: pytest.MonkeyPatch) -> None:
    instant = kit.clock()
    monkeypatch.setattr(kit.thoughts, "_clock", lambda: instant)
    key = kit.decide()
    for text in "abc":
        kit.think("alice", text, key)
    found, token = [], ""
    for _ in range(3):
        page = kit.thoughts.page("alice", None, None, PageRequest(1, token))
        found += texts(page.items)
        token = page.next_token
    assert (found, token) == (["c", "b", "a"], "")
    foreign = kit.thoughts.page("alice", None, None, PageRequest(1)).next_token
    assert "page_token" in refusal(
        InvalidArgument, lambda: kit.thoughts.page("bob", None, None, PageRequest(1, foreign))
    )


@pytest.mark.contract("SqlThoughtStore.find_recorded")
def test_the_same_request_records_one_thought_and_another_one_conflicts(kit: ThoughtKit) -> None:
    key = kit.decide("alice", SHARED)
    first = kit.think("alice", "once", key, request_id="t-1")
    assert kit.think("alice", "once", key, request_id="t-1") == first
    assert "requestId" in refusal(Conflict, lambda: kit.think("alice", "twice", key, request_id="t-1"))
    assert kit.think("bob", "twice", key, request_id="t-1").id != first.id
    assert kit.count_rows() == 2
    kit.clock.now += timedelta(days=30)
    assert kit.think("alice", "later", key, request_id="t-1").content.text == "later"
    assert kit.count_rows() == 2


@pytest.mark.both_databases
def test_requests_at_once_record_one_thought_and_keep_the_limit(kit: ThoughtKit, database: Database) -> None:
    """Also if they reach different servers."""
    other, key = ServerWriter(database), kit.decide()
    servers = [kit.thoughts, Thoughts(kit.thought_store, kit.store, other, kit.clock, LIMITS)]

    def think(number: int, request_id: str | None = None) -> str | None:
        content = ThoughtContent("x", key, request_id=request_id)
        try:
            return servers[number % 2].record(content, "alice").id
        except RateLimited:
            return None

    with ThreadPoolExecutor(8) as callers, closing(other):
        assert len(set(callers.map(partial(think, request_id="t-1"), range(8)))) == 1
        recorded = list(callers.map(think, range(8)))
    assert sum(found is not None for found in recorded) == LIMITS.per_target - 1
    assert kit.count_rows() == LIMITS.per_target


@pytest.mark.contract("SqlThoughtStore.has_intent")
def test_a_thought_is_about_something_that_its_agent_may_read(kit: ThoughtKit) -> None:
    hidden = kit.decide("bob")
    kit.announce("bob", "c-1")
    missing = refusal(NotFound, lambda: kit.think("alice", "x", "dec-none"))
    assert refusal(NotFound, lambda: kit.think("alice", "x", hidden)) == missing.replace("dec-none", hidden)
    assert refusal(NotFound, lambda: kit.listed("alice", hidden)) == missing.replace("dec-none", hidden)
    assert refusal(NotFound, lambda: kit.think("alice", "x", correlation_id="c-1")) == "you announced no intent c-1"
    assert kit.count_rows() == 0


@pytest.mark.contract("SqlThoughtStore.count_about")
def test_thoughts_about_an_intent_belong_to_the_decision_that_it_resulted_in(kit: ThoughtKit) -> None:
    key, other = kit.decide("alice", SHARED), kit.decide()
    kit.announce("alice", "c-1")
    kit.announce("alice", "c-1", content_hash="changed")
    kit.think("alice", "before it", correlation_id="c-1")
    kit.think("alice", "for all", correlation_id="c-1", visibility=SHARED)
    # Another agent's intent of the same id led to nothing.
    kit.announce("bob", "c-1")
    kit.think("bob", "about another one", correlation_id="c-1", visibility=SHARED)
    assert kit.thoughts.show(key, "alice") == ((), 0)
    assert kit.listed("alice", correlation_id="c-1") == ["for all", "before it"]
    kit.close("alice", "c-1", key)
    kit.close("alice", "c-1", key, revision=2)
    kit.think("alice", "after it", key)
    assert kit.shown(key, "alice") == ["before it", "for all", "after it"]
    assert kit.shown(key, "bob") == ["for all"]
    assert kit.thoughts.count([key, other], "alice") == {key: 3}
    assert kit.thoughts.count([key, other], "bob") == {key: 1}
    assert kit.listed("bob", correlation_id="c-1") == ["about another one"]


@pytest.mark.contract("SqlThoughtStore.count_own")
def test_limits_name_the_field_and_the_setting_and_count_no_others(kit: ThoughtKit) -> None:
    key, other = kit.decide("alice", SHARED), kit.decide("alice", SHARED)
    kit.announce("alice", "c-1")
    too_long = refusal(InvalidArgument, lambda: kit.think("alice", "x" * 101, key))
    assert too_long == "text: must have at most 100 characters (thoughts.max_characters)"
    for number in range(3):
        kit.think("bob", f"of bob {number}", key, visibility=SHARED)
        kit.think("alice", "x" * 100, key, request_id=f"{number}")
    full = "decisionId: you have 3 thoughts about it, and the limit is 3 (thoughts.per_target); "
    assert refusal(RateLimited, lambda: kit.think("alice", "x", key)).startswith(full)
    assert kit.think("alice", "x" * 100, key, request_id="0").content.request_id == "0"
    kit.think("alice", "x", other)
    last = kit.think("alice", "x", correlation_id="c-1")
    full = "you have 5 thoughts, and the limit is 5 (thoughts.per_agent); "
    assert refusal(RateLimited, lambda: kit.think("alice", "x", correlation_id="c-1")).startswith(full)
    assert kit.thoughts.delete(last.id, "alice")
    kit.think("alice", "x", correlation_id="c-1")
    kit.clock.now += timedelta(days=31)
    kit.think("alice", "x", key)


@pytest.mark.contract("SqlThoughtStore.remove_expired")
def test_an_expired_thought_is_returned_by_nothing_and_then_deleted(
    kit: ThoughtKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thoughts_module, "REMOVAL_BATCH", 2)
    key = kit.decide()
    recorded = [kit.think("alice", text, key) for text in "abc"]
    last = recorded[-1].expires_at
    assert last is not None
    # The clock is a second later at each reading.
    kit.clock.now = last - timedelta(seconds=3)
    assert kit.thoughts.count([key], "alice") == {key: 1}
    assert kit.listed("alice", key) == ["c"]
    assert kit.listed("alice") == kit.shown(key, "alice") == []
    assert kit.thoughts.count([key], "alice") == {}
    assert kit.count_rows() == 3
    assert [kit.thoughts.remove_expired(), kit.thoughts.remove_expired()] == [True, False]
    assert kit.count_rows() == 0


def test_without_retention_a_thought_stays(database: Database, writer: GroupCommitWriter) -> None:
    kit = ThoughtKit(database, writer, replace(LIMITS, kept=None))
    key = kit.decide()
    assert kit.think("alice", "for ever", key).expires_at is None
    kit.clock.now = datetime.max.replace(tzinfo=kit.clock.now.tzinfo) - timedelta(days=1)
    assert not kit.thoughts.remove_expired()
    assert kit.shown(key, "alice") == ["for ever"]


@pytest.mark.contract("SqlThoughtStore.delete")
def test_an_agent_deletes_its_own_thoughts_only(kit: ThoughtKit) -> None:
    key = kit.decide("alice", SHARED)
    thought = kit.think("alice", "the password is swordfish", key, visibility=SHARED)
    assert not kit.thoughts.delete(thought.id, "bob")
    assert kit.shown(key, "bob") == ["the password is swordfish"]
    assert kit.thoughts.delete(thought.id, "alice")
    assert not kit.thoughts.delete(thought.id, "alice")
    assert kit.count_rows() == 0


def test_a_decision_takes_the_thoughts_of_all_agents_with_it(kit: ThoughtKit) -> None:
    key, other = kit.decide("alice", SHARED), kit.decide("bob")
    kit.think("alice", "a", key)
    kit.think("bob", "b", key)
    kit.think("bob", "c", other)
    kit.journal.delete(key, "alice", "r")
    assert kit.listed("alice") == []
    assert kit.listed("bob") == ["c"]
    assert kit.count_rows() == 1


def test_a_decision_shows_its_latest_thoughts_and_counts_all(database: Database, writer: GroupCommitWriter) -> None:
    kit = ThoughtKit(database, writer, ThoughtLimits(20_000, 100, 100, None))
    key = kit.decide()
    for number in range(25):
        kit.think("alice", f"{number}", key)
    found, count = kit.thoughts.show(key, "alice")
    assert (texts(found), count) == ([f"{number}" for number in range(5, 25)], 25)


def test_an_overseer_reads_that_there_are_private_thoughts_and_not_their_texts(kit: ThoughtKit) -> None:
    key = kit.decide()
    kit.announce("bob", "c-1")
    kit.think("alice", "private", key)
    kit.think("alice", "shared", key, visibility=SHARED)
    kit.think("bob", "private", correlation_id="c-1")
    assert kit.listed(OVERSEER) == ["", "shared", ""]
    assert kit.listed(OVERSEER, correlation_id="c-1") == [""]
    assert kit.shown(key, OVERSEER) == ["", "shared"]
    assert kit.thoughts.count([key], OVERSEER) == {key: 2}


@dataclass(frozen=True)
class Said:
    """A thought, and the place of the decision that it is about, itself or by way of an intent."""

    agent: str
    about: int
    visibility: Visibility
    by_intent: bool


AGENTS = st.sampled_from(["alice", "bob", "carol"])
VISIBILITIES = st.sampled_from(list(Visibility))
DECISIONS = st.lists(st.tuples(AGENTS, VISIBILITIES), min_size=1, max_size=3)
SAYINGS = st.lists(st.builds(Said, AGENTS, st.integers(0, 2), VISIBILITIES, st.booleans()), max_size=8)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DECISIONS, SAYINGS)
def test_nobody_reads_a_private_thought_of_another_or_any_about_what_it_may_not_read(
    kit: ThoughtKit, decisions: list[tuple[str, Visibility]], sayings: list[Said]
) -> None:
    run = uuid.uuid4().hex
    thinking = Thoughts(kit.thought_store, kit.store, kit.writer, kit.clock, ThoughtLimits(100, 100, 10_000, None))
    ids = [kit.decide(f"{agent}-{run}", visibility) for agent, visibility in decisions]

    def may_read(agent: str, place: int) -> bool:
        return decisions[place][0] == agent or decisions[place][1] is SHARED

    expected: dict[tuple[str, int], list[str]] = {}
    own: dict[str, list[str]] = {}
    for number, said in enumerate(sayings):
        about, author, text = said.about % len(ids), f"{said.agent}-{run}", f"{run} {number}"
        content = ThoughtContent(text, ids[about], None, said.visibility)
        if said.by_intent:
            kit.announce(author, text.replace(" ", "-"))
            content = replace(content, decision_id=None, correlation_id=text.replace(" ", "-"))
        if not may_read(said.agent, about):
            if not said.by_intent:
                refusal(NotFound, partial(thinking.record, content, author))
                continue
        elif said.by_intent:
            kit.close(author, text.replace(" ", "-"), ids[about])
        thinking.record(content, author)
        own.setdefault(said.agent, []).append(text)
        if may_read(said.agent, about):
            for reader in ("alice", "bob", "carol"):
                if may_read(reader, about) and (reader == said.agent or said.visibility is SHARED):
                    expected.setdefault((reader, about), []).append(text)
    for reader in ("alice", "bob", "carol"):
        name = f"{reader}-{run}"
        assert texts(thinking.page(name, None, None, ALL).items)[::-1] == own.get(reader, [])
        for place, key in enumerate(ids):
            if not may_read(reader, place):
                refusal(NotFound, partial(thinking.page, name, key, None, ALL))
                continue
            wanted = expected.get((reader, place), [])
            assert texts(thinking.show(key, name)[0]) == wanted
            assert thinking.count([key], name) == ({key: len(wanted)} if wanted else {})
            assert texts(thinking.page(name, key, None, ALL).items) == wanted[::-1]
