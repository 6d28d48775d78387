"""Select the guardrails that an action can concern, by equality, before any expression is evaluated.

Guardrails with the same conditions form a group. Each group is a bit; every value that a condition names has the bits
of the groups that accept it, so that selecting takes one look-up per condition, however many groups there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from cstp_grpc.enums import Enforcement
from cstp_grpc.guardrails.model import Action, Guardrail, RuleMatch, RuleScope


@dataclass(frozen=True, slots=True)
class GroupConditions:
    """What the guardrails of a group have in common."""

    match: RuleMatch
    scope: RuleScope
    expires: datetime | None


@dataclass(frozen=True, slots=True)
class GuardrailGroup:
    """Guardrails with the same conditions, each with its position in the rule set."""

    conditions: GroupConditions
    guardrails: Sequence[tuple[int, Guardrail]]


def group_guardrails(guardrails: Sequence[Guardrail]) -> list[GuardrailGroup]:
    """Return the guardrails that are not disabled, in groups."""
    groups: dict[GroupConditions, list[tuple[int, Guardrail]]] = {}
    for position, item in enumerate(guardrails):
        if item.enforcement is not Enforcement.DISABLED:
            conditions = GroupConditions(item.match, item.scope, item.expires)
            groups.setdefault(conditions, []).append((position, item))
    return [GuardrailGroup(conditions, members) for conditions, members in groups.items()]


def find_expired_guardrails(guardrails: Iterable[Guardrail], now: datetime) -> list[Guardrail]:
    """Return the guardrails that do nothing any more."""
    return [item for item in guardrails if item.expires is not None and item.expires <= now]


class RuleSelector:
    """Selects the groups that an action can concern, as bits in the order of the given sequence."""

    def __init__(self, groups: Sequence[GuardrailGroup]) -> None:
        conditions = [group.conditions for group in groups]
        tests = [(ConditionMask([test.accepted(each) for each in conditions]), test) for test in CONDITIONS]
        self._tests = [(mask, test.read, test.accepts_absent) for mask, test in tests if mask.restricts]
        self._agent_masks = [mask for mask, test in tests if mask.restricts and test.is_agent]
        self._expiries = sorted({each.expires for each in conditions if each.expires is not None})
        # The groups in force before the first expiry, between the first and the second, and so on.
        self._in_force = [(1 << len(groups)) - 1] + [
            bits_of(each.expires is None or each.expires > instant for each in conditions) for instant in self._expiries
        ]
        self._sizes = [len(group.guardrails) for group in groups]

    @property
    def expires(self) -> bool:
        """Whether any guardrail expires."""
        return bool(self._expiries)

    def period(self, now: datetime | None) -> int:
        """Return how many of the instants at which guardrails expire have passed; without an instant none has."""
        return bisect_right(self._expiries, now) if now is not None and self._expiries else 0

    def count_in_force(self) -> list[int]:
        """Return the number of guardrails that are not expired, for each period."""
        return [sum(self._sizes[group] for group in positions_of(bits)) for bits in self._in_force]

    def select(self, action: Action, period: int) -> int:
        """Return the bits of the groups that an action can concern."""
        selected = self._in_force[period]
        for mask, read, accepts_absent in self._tests:
            value = read(action)
            if value is not None or not accepts_absent:
                selected &= mask.accepting(value)
        return selected

    def select_for_agent(self, agent: str, period: int) -> int:
        """Return the bits of the groups that are in force for an agent, whatever it says of its action."""
        selected = self._in_force[period]
        for mask in self._agent_masks:
            selected &= mask.accepting(agent)
        return selected


class ConditionMask:
    """For each value that a condition names, the bits of the groups that accept it."""

    def __init__(self, accepted: Sequence[Collection[str]]) -> None:
        # Groups without this condition accept every value.
        self._unrestricted = bits_of(not values for values in accepted)
        self._by_value = {
            value: self._unrestricted | bits_of(value in values for values in accepted)
            for value in {each for values in accepted for each in values}
        }

    @property
    def restricts(self) -> bool:
        """Whether any group has the condition."""
        return bool(self._by_value)

    def accepting(self, value: str | None) -> int:
        """Return the bits of the groups that accept a value; None is accepted only without the condition."""
        return self._unrestricted if value is None else self._by_value.get(value, self._unrestricted)


def fold_name(name: str) -> str:
    """Return a name without its case and the spaces around it."""
    return name.strip().casefold()


ReadText = Callable[[Action], str | None]
GetAccepted = Callable[[GroupConditions], Collection[str]]


class Condition(NamedTuple):
    """The values that a group accepts, and the action's value.

    `accepts_absent` is whether an action without one is accepted, `is_agent` whether it is the authenticated agent,
    which the caller cannot choose.
    """

    accepted: GetAccepted
    read: ReadText
    accepts_absent: bool = False
    is_agent: bool = False


CONDITIONS: Sequence[Condition] = (
    Condition(lambda group: group.match.stakes, lambda action: action.stakes),
    Condition(lambda group: group.match.categories, lambda action: action.category),
    Condition(lambda group: group.match.agents, lambda action: action.agent, is_agent=True),
    Condition(lambda group: group.match.projects, lambda action: action.project),
    Condition(lambda group: group.scope.agents, lambda action: action.agent, is_agent=True),
    # Fail closed: whoever names no project, or spells it otherwise, could leave the scope of every project.
    Condition(
        lambda group: set(map(fold_name, group.scope.projects)),
        lambda action: fold_name(action.project or "") or None,
        accepts_absent=True,
    ),
)


def bits_of(flags: Iterable[bool]) -> int:
    """Return a number whose bits are the flags, the first of them lowest."""
    return sum(1 << position for position, flag in enumerate(flags) if flag)


def positions_of(bits: int) -> Iterator[int]:
    """Yield the positions of the bits that are set, in rising order."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
