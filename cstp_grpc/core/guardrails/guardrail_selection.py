"""Select the guardrails that an action can concern, before any expression is evaluated.

They are selected by equality. Guardrails with the same conditions form a group. Each group is a bit; every value that a
condition names has the bits of the groups that accept it, so that selecting takes one look-up per condition, however
many groups there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple, TypeAlias

from cstp_grpc.common.unicode_text import fold_name
from cstp_grpc.core.guardrails.guardrail_compiler import GroupConditions, GuardrailGroup
from cstp_grpc.core.guardrails.model import Action


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
        folded = fold_name(agent)
        for mask in self._agent_masks:
            selected &= mask.accepting(folded)
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
        return bool(self._by_value)

    def accepting(self, value: str | None) -> int:
        """Return the bits of the groups that accept a value; None is accepted only without the condition."""
        return self._unrestricted if value is None else self._by_value.get(value, self._unrestricted)


def fold_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(fold_name, names))


def fold_optional(name: str | None) -> str | None:
    return fold_name(name or "") or None


ReadText = Callable[[Action], str | None]


GetAccepted: TypeAlias = Callable[[GroupConditions], Collection[str]]


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
    Condition(lambda group: fold_names(group.match.categories), lambda action: fold_optional(action.category)),
    Condition(lambda group: fold_names(group.match.agents), lambda action: fold_name(action.agent), is_agent=True),
    Condition(lambda group: fold_names(group.match.projects), lambda action: fold_optional(action.project)),
    Condition(lambda group: fold_names(group.scope.agents), lambda action: fold_name(action.agent), is_agent=True),
    # Fail closed: an action that names no project would leave the scope of every project.
    Condition(
        lambda group: fold_names(group.scope.projects),
        lambda action: fold_optional(action.project),
        accepts_absent=True,
    ),
)


def bits_of(flags: Iterable[bool]) -> int:
    """Return a number whose bits are the flags, the first of them lowest."""
    return sum(1 << position for position, flag in enumerate(flags) if flag)


def positions_of(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
