"""Tasks on every database compared with plain Python, whatever happens to them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import delete

from cstp_grpc.contract.enums import TaskState
from cstp_grpc.contract.errors import Conflict, NotFound
from cstp_grpc.modules.tasks.model import Task, TaskFilter, TaskPage
from cstp_grpc.modules.tasks.sql_store import tasks
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import Page, PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.example_counts import examples
from tests.modules.tasks.keeping import KEPT, NOON, KeeperKit, Shelf
from tests.paging import walk

AGENTS = st.sampled_from(["ada", "bob"])
IDS = st.sampled_from(["t-1", "t-2", "T-3", "~"])
CONTEXTS = st.sampled_from(["c-1", "c-2", "ä"])
STATES = st.sampled_from([TaskState.WORKING, TaskState.WORKING, *sorted(set(TaskState) - {TaskState.REJECTED})])
VERSIONS = st.sampled_from([0, 0, 1, 1, 2, 3])
LEFT = st.sampled_from([timedelta(milliseconds=1), timedelta(minutes=1), timedelta(minutes=30), timedelta(hours=1)])
STEPS = st.sampled_from([timedelta(), timedelta(milliseconds=1), timedelta(minutes=1), timedelta(hours=1), KEPT])
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=3)


def filters(now: datetime) -> st.SearchStrategy[TaskFilter]:
    return st.builds(
        TaskFilter,
        agent=AGENTS,
        context_id=st.none() | CONTEXTS,
        states=st.lists(st.sampled_from(TaskState), max_size=2).map(tuple),
        updated_after=st.none() | STEPS.map(lambda step: now - step),
    )


class Keeping(RuleBasedStateMachine):
    """Saves, reads, lists and removes in any order while time goes by."""

    kit: KeeperKit

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        self.kit.clock.now = NOON

    @property
    def now(self) -> datetime:
        return self.kit.clock.now

    @rule(
        agent=AGENTS, task_id=IDS, context_id=CONTEXTS, state=STATES, version=VERSIONS, left=LEFT, content=st.binary()
    )
    def save(
        self,
        agent: str,
        task_id: str,
        context_id: str,
        state: TaskState,
        version: int,
        left: timedelta,
        content: bytes,
    ) -> None:
        expected = Task(task_id, context_id, state, content, version + 1, self.now)
        taken = self.shelf.takes(agent, task_id, state, version, self.now)
        try:
            saved = self.kit.save(
                task_id, state, version, agent=agent, context_id=context_id, content=content, time_left=left
            )
        except Conflict:
            assert not taken
        else:
            assert taken
            assert saved == expected
            self.shelf.put(agent, saved, left)

    @rule(step=STEPS)
    def wait(self, step: timedelta) -> None:
        self.kit.clock.now += step

    @rule()
    def remove_expired(self) -> None:
        self.kit.keeper.remove_expired()

    @rule(data=st.data(), sizes=SIZES)
    def list(self, data: st.DataObject, sizes: list[int]) -> None:
        conditions = data.draw(filters(self.now))
        expected = self.shelf.listed(conditions, self.now)

        def page(request: PageRequest) -> Page[Task]:
            answer: TaskPage = self.kit.keeper.page(conditions, request)
            assert answer.total == len(expected)
            return answer

        assert walk(page, sizes) == expected

    @invariant()
    def every_task_is_read_as_it_stands(self) -> None:
        seen = self.shelf.at(self.now)
        for agent in ("ada", "bob"):
            for task_id in ("t-1", "t-2", "T-3", "~"):
                assert self.read(agent, task_id) == seen.get((agent, task_id))

    def read(self, agent: str, task_id: str) -> Task | None:
        try:
            return self.kit.keeper.get(agent, task_id)
        except NotFound:
            return None


@pytest.mark.hypothesis
def test_tasks_are_what_the_model_says(kit: KeeperKit, database: Database) -> None:
    class OnThisDatabase(Keeping):
        def __init__(self) -> None:
            with database.engine.begin() as connection:
                connection.execute(delete(tasks))
            self.kit = kit
            super().__init__()

    run_state_machine_as_test(
        OnThisDatabase, settings=settings(max_examples=examples(25), stateful_step_count=20, deadline=None)
    )


@pytest.mark.hypothesis
def test_pages_hold_every_task_that_meets_the_conditions_once_and_in_order(
    kit: KeeperKit, writer: GroupCommitWriter
) -> None:
    """With many tasks at the same instants, of which some lapse and some expire."""
    shelf = Shelf()
    states = [TaskState.WORKING, TaskState.COMPLETED, TaskState.SUBMITTED, TaskState.REJECTED, TaskState.FAILED]
    for number in range(150):
        kit.clock.now = NOON + timedelta(minutes=number // 10 * 10)
        agent, left = ("ada", "bob")[number % 2], timedelta(minutes=10 * (number % 6 + 1))
        saved = kit.save(
            f"t-{number * 7 % 150}",
            states[number % 5],
            agent=agent,
            context_id=("c-1", "c-2", "ä")[number % 3],
            time_left=left,
        )
        shelf.put(agent, saved, left)

    @settings(max_examples=examples(40))
    @given(st.data(), st.integers(0, 40), SIZES)
    def check(data: st.DataObject, tens: int, sizes: list[int]) -> None:
        kit.clock.now = now = NOON + timedelta(minutes=10 * tens)
        conditions = data.draw(filters(now))
        expected = shelf.listed(conditions, now)
        assert walk(lambda request: kit.keeper.page(conditions, request), sizes) == expected
        assert kit.keeper.page(conditions, PageRequest(1)).total == len(expected)

    check()
