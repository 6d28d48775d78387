"""Outcomes that count for rules over the past, and the port through which they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from cstp_grpc.enums import Outcome, Visibility


@dataclass(frozen=True, slots=True)
class KnownOutcome:
    """How a decision or a closed intent turned out, as it stands now.

    `source` identifies it. `at` is aware: when the outcome became known. `outcome` is None for a decision that has
    none, or none any more. `decision_source` is the source of the decision that came of an intent, and `is_counted` is
    False if that decision has an outcome of its own, which then counts instead.
    """

    source: str
    agent: str
    category: str | None
    project: str | None
    visibility: Visibility
    outcome: Outcome | None
    at: datetime
    tags: tuple[str, ...] = ()
    decision_source: str | None = None
    is_counted: bool = True


def decision_source(decision_id: str) -> str:
    """Return the source of the outcome of a decision."""
    return f"decision {decision_id}"


def intent_source(number: int) -> str:
    """Return the source of the outcome of an intent, whose number the store gave to it."""
    return f"intent {number}"


class OutcomeState(NamedTuple):
    """How far changes are known: the revision of the journal, and the number of the last closing of an intent."""

    revision: int
    closing_number: int

    def is_beyond(self, other: OutcomeState) -> bool:
        """Return whether this state has any change that another one has not."""
        return any(own > its for own, its in zip(self, other, strict=True))

    def count_from(self, earlier: OutcomeState) -> int:
        """Return about how many changes there were since an earlier state."""
        return sum(new - old for new, old in zip(self, earlier, strict=True))


@dataclass(frozen=True, slots=True)
class OutcomeChanges:
    """Changes up to a state: outcomes as they are now, and the sources of those that are gone."""

    state: OutcomeState
    outcomes: Sequence[KnownOutcome]
    deleted: Sequence[str] = ()


class OutcomeStore(Protocol):
    """Reads the outcomes of decisions and of closed intents."""

    @property
    def is_local(self) -> bool:
        """Whether reads take microseconds, because the database is a file of this machine."""

    def read_state(self) -> OutcomeState:
        """Return up to where changes are committed. Raises QueryFailed."""

    def load_since(self, instant: datetime) -> OutcomeChanges:
        """Return all outcomes known since an instant, and the state that they are of. Raises QueryFailed."""

    def changes_after(self, state: OutcomeState) -> OutcomeChanges:
        """Return the decisions and closings that changed after a state, and the new state. Raises QueryFailed.

        A decision that changed for another reason is among them, as it is.
        """
