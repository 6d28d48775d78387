"""Putting changes on disk together with their events and their audit entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from cstp_grpc.liaison.acts import Act, ActTrail
from cstp_grpc.liaison.model import Event
from cstp_grpc.storage.writer import Writer

T = TypeVar("T")


class EventStore(Protocol):
    """Keeps events."""

    def add_event(self, connection: Connection, event: Event) -> Event:
        """Add an event and return it with its sequence."""


class Recorder:
    """Runs jobs that change something, and says afterwards that there may be new events."""

    def __init__(self, writer: Writer, events: EventStore, trail: ActTrail, notify: Callable[[], None]) -> None:
        self._writer = writer
        self._events = events
        self._trail = trail
        self._notify = notify

    async def write(self, job: Callable[[Connection], T]) -> T:
        """Return what a job returned, once it is on disk, without holding the event loop. Raises as `run` does."""
        result = await self._writer.write(job)
        self._notify()
        return result

    def run(self, job: Callable[[Connection], T]) -> T:
        """Return what a job returned, once it is on disk; for threads.

        Raises what the job raised, and Unavailable.
        """
        result = self._writer.run(job)
        self._notify()
        return result

    def event(self, connection: Connection, event: Event) -> Event:
        """Add an event within a job and return it with its sequence."""
        return self._events.add_event(connection, event)

    def act(self, connection: Connection, act: Act) -> None:
        """Take an act down within a job."""
        self._trail.append(connection, act)

    async def write_refusal(self, act: Act) -> None:
        """Take down an act that was refused and return when that is on disk, without holding the event loop."""
        await self._trail.write(act)

    def refusal(self, act: Act) -> None:
        """Take down an act that was refused, and return when that is on disk; for threads."""
        self._trail.record(act)
