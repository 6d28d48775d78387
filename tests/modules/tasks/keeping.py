"""A keeper of tasks on a real database, and what it should do in plain Python."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from cstp_grpc.contract.enums import TaskState
from cstp_grpc.modules.tasks.model import Task, TaskFilter
from cstp_grpc.modules.tasks.repository import TaskContent, TaskRepository
from cstp_grpc.modules.tasks.sql_store import SqlTaskStore
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.writer import GroupCommitWriter

WAITING = (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)
OPEN = (TaskState.SUBMITTED, TaskState.WORKING, *WAITING)
"""The states of tasks that have not ended."""
NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
KEPT = timedelta(hours=2)


class Clock:
    """Tells the instant that it was set to."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


class KeeperKit:
    """A keeper and its clock."""

    def __init__(self, database: Database, writer: GroupCommitWriter) -> None:
        self.clock = Clock()
        self.store = SqlTaskStore(database)
        self.keeper = TaskRepository(self.store, writer, self.clock, KEPT)

    def save(
        self,
        task_id: str = "t-1",
        state: TaskState = TaskState.COMPLETED,
        version: int = 0,
        *,
        agent: str = "ada",
        context_id: str = "c-1",
        content: bytes = b"content",
        time_left: timedelta | None = None,
    ) -> Task:
        return asyncio.run(
            self.keeper.write(agent, TaskContent(task_id, context_id, state, content), version, time_left)
        )


class Shelf:
    """The tasks that should be there, as plain values."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[Task, datetime | None]] = {}

    def at(self, now: datetime) -> dict[tuple[str, str], Task]:
        """Return the tasks as they stand, by agent and id."""
        seen = {}
        for key, (task, lapses_at) in self._kept.items():
            if lapses_at is not None and lapses_at <= now:
                lapsed = TaskState.REJECTED if task.state in WAITING else TaskState.FAILED
                task = Task(task.id, task.context_id, lapsed, task.content, task.version, lapses_at)
            if task.state in OPEN or task.updated_at + KEPT > now:
                seen[key] = task
        return seen

    def takes(self, agent: str, task_id: str, state: TaskState, version: int, now: datetime) -> bool:
        """Return whether a task may be saved in a state."""
        task = self.at(now).get((agent, task_id))
        if task is None:
            return version == 0
        return task.version == version and (
            task.state in (TaskState.SUBMITTED, *WAITING)
            or (task.state is TaskState.WORKING and state is not TaskState.CANCELED)
        )

    def put(self, agent: str, task: Task, time_left: timedelta) -> None:
        """Keep a task."""
        self._kept[agent, task.id] = (task, task.updated_at + time_left if task.state in OPEN else None)

    def listed(self, conditions: TaskFilter, now: datetime) -> list[Task]:
        """Return the tasks that meet conditions, last changed first."""
        found = [
            task
            for (agent, _), task in self.at(now).items()
            if agent == conditions.agent
            and conditions.context_id in (None, task.context_id)
            and (not conditions.states or task.state in conditions.states)
            and (conditions.updated_after is None or task.updated_at >= conditions.updated_after)
        ]
        return sorted(found, key=lambda task: (task.updated_at, task.id), reverse=True)
