"""Questions of rules about past outcomes, such as `history.failures(category, "24h")`, and their answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from itertools import combinations
from typing import Protocol

from cstp_grpc.common.unicode_text import fold_name
from cstp_grpc.contract.enums import Outcome
from cstp_grpc.core.guardrails.inputs import InputValueError, to_duration

MAX_HISTORY_DAYS = 90
"""The longest period of outcomes. Chosen: a quarter; servers keep that much in memory."""


class HistoryMeasure(StrEnum):
    """The number that is computed from the outcomes of a period."""

    COUNT = "count"
    FAILURES = "failures"
    SUCCESSES = "successes"
    SUCCESSES_SINCE_FAILURE = "successes_since_failure"


class HistoryScope(StrEnum):
    """A field that an outcome must have in common with the action to be counted."""

    AGENT = "agent"
    CATEGORY = "category"
    PROJECT = "project"


@dataclass(frozen=True, slots=True, order=True)
class HistoryQuery:
    """A question about the outcomes that have all of `scopes` in common with the action.

    `scopes` are in the order of their enum, each once; `seconds` is how old an outcome may be.
    """

    scopes: tuple[HistoryScope, ...]
    measure: HistoryMeasure
    seconds: int
    variable: str = field(init=False, compare=False)
    """The variable that holds the answers for these scopes, by their keys."""
    key: str = field(init=False, compare=False)
    """The key of the answer in its variable."""
    name: str = field(init=False, compare=False)
    """Both, by which the answer is found; comparing texts is cheaper."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "variable", history_variable(self.scopes))
        object.__setattr__(self, "key", f"{self.measure} {self.seconds}")
        object.__setattr__(self, "name", f"{self.variable} {self.key}")


def history_variable(scopes: Collection[HistoryScope]) -> str:
    """Return the variable that holds answers for these scopes."""
    return f"history.{'_'.join(scopes) or 'all'}"


def describe_history(scopes: Collection[HistoryScope]) -> str:
    """Return a description of the outcomes that a rule counts."""
    return f"history of this {' and '.join(scopes)}" if scopes else "history"


HISTORY_SCOPES: Mapping[str, tuple[HistoryScope, ...]] = {
    history_variable(scopes): scopes
    for count in range(len(HistoryScope) + 1)
    for scopes in combinations(HistoryScope, count)
}
"""The scopes of each variable."""


def parse_history_seconds(text: str) -> int:
    """Return the seconds of a time such as `90m`, `24h` or `7d`. Raises ValueError with the required format."""
    try:
        time = to_duration(text)
    except InputValueError:
        # Refused below, with the text that names every condition.
        time = timedelta()
    if not timedelta() < time <= timedelta(days=MAX_HISTORY_DAYS) or time.microseconds:
        raise ValueError(f'must be of whole seconds, like "90m", "24h" or "7d", and at most "{MAX_HISTORY_DAYS}d"')
    return int(time.total_seconds())


@dataclass(frozen=True, slots=True)
class HistorySubject:
    """The action whose past is asked for; `agent` is the authenticated one."""

    agent: str
    category: str | None = None
    project: str | None = None

    def find_missing(self, scopes: Iterable[HistoryScope]) -> HistoryScope | None:
        """Return the first of the scopes for which the action has no value, or only a blank one."""
        named = (scope for scope in scopes if scope is not HistoryScope.AGENT)
        return next((scope for scope in named if not (getattr(self, scope) or "").strip()), None)


class HistoryFacts(Protocol):
    """The answers about the past of one action."""

    @property
    def unreadable(self) -> str | None:
        """Why there are no answers; None if there are."""

    def count(self, query: HistoryQuery) -> int:
        """Return the answer to a query whose scopes the action has. Raises InputValueError without an answer."""


@dataclass(frozen=True, slots=True)
class UnreadHistory:
    """No answers, for the reason `unreadable`; fails closed."""

    unreadable: str

    def count(self, query: HistoryQuery) -> int:  # noqa: ARG002
        raise InputValueError(f"cannot be read: {self.unreadable}")


UNREAD_HISTORY = UnreadHistory("it was not looked up")
"""For actions whose history was not looked up."""


@dataclass(frozen=True, slots=True)
class CountedHistory:
    """Answers that were counted beforehand, by the names of queries."""

    counts: Mapping[str, int]
    unreadable: None = field(default=None, init=False)

    def count(self, query: HistoryQuery) -> int:
        """Return the answer to a query. Raises InputValueError if it was not counted."""
        found = self.counts.get(query.name)
        if found is None:
            raise InputValueError(f"was not asked for {query.key}")
        return found


@dataclass(frozen=True, slots=True)
class PastOutcome:
    """How something turned out, `age` seconds ago."""

    outcome: Outcome
    age: float
    agent: str
    category: str | None = None
    project: str | None = None


@dataclass(frozen=True, slots=True)
class StatedHistory:
    """Answers from a list of outcomes, as tests of rulebooks state them."""

    subject: HistorySubject
    outcomes: Sequence[PastOutcome] = ()
    unreadable: None = field(default=None, init=False)

    def count(self, query: HistoryQuery) -> int:
        recent = [each for each in self.outcomes if each.age <= query.seconds]
        found = [each for each in recent if all(self._matches(each, scope) for scope in query.scopes)]
        failures = [each.age for each in found if each.outcome is Outcome.FAILURE]
        successes = [each.age for each in found if each.outcome is Outcome.SUCCESS]
        match query.measure:
            case HistoryMeasure.COUNT:
                return len(found)
            case HistoryMeasure.FAILURES:
                return len(failures)
            case HistoryMeasure.SUCCESSES:
                return len(successes)
            case HistoryMeasure.SUCCESSES_SINCE_FAILURE:
                # Ages: the youngest failure. A success at the same instant does not come after it.
                last = min(failures, default=float("inf"))
                return sum(age < last for age in successes)

    def _matches(self, outcome: PastOutcome, scope: HistoryScope) -> bool:
        stated, wanted = getattr(outcome, scope), getattr(self.subject, scope)
        if scope is HistoryScope.AGENT:
            # Never folded: an authenticated name has one spelling.
            return bool(stated == wanted)
        return stated is not None and wanted is not None and fold_name(stated) == fold_name(wanted)


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """The questions about the past of an action.

    Only outcomes that `reader` may read are counted; a query whose scopes the subject lacks has no answer.
    """

    subject: HistorySubject
    reader: str
    queries: tuple[HistoryQuery, ...]


class HistoryReader(Protocol):
    """Counts outcomes. Facts that cannot be read say why."""

    async def read(self, requests: Sequence[HistoryRequest]) -> Sequence[HistoryFacts]:
        """Return the facts for each request, from one state of the journal."""

    def read_blocking(self, requests: Sequence[HistoryRequest]) -> Sequence[HistoryFacts]:
        """Return the same for a caller that may block."""
