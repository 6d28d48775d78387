"""Evaluate recorded actions with another rule set, and summarise which verdicts would change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.enums import Enforcement, Severity
from cstp_grpc.core.audit.model import AuditEntry, JudgedAction
from cstp_grpc.core.guardrails.cel_variables import INTENTS_VARIABLE
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator, UnknownInputPolicy
from cstp_grpc.core.guardrails.fact_readers import CODE_READERS
from cstp_grpc.core.guardrails.history import HISTORY_SCOPES
from cstp_grpc.core.guardrails.inputs import CONFIRMED_CHECKS_KEY
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, NO_CODE, Action, CodeFacts, RuleSet, Verdict, Violation

UNRECORDED_CODE: Final = frozenset(CODE_READERS) - {"code.paths"}
"""The variables whose values the server looked up, and did not record, for actions that named paths."""
MAX_EXAMPLES: Final = 3
"""Examples of each change, unless more or fewer are wanted."""


class VerdictKind(StrEnum):
    """The kind of a verdict; unknown if it depends on facts that are not recorded."""

    ALLOWED = "allowed"
    APPROVAL_REQUIRED = "approval_required"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


STOPPED: Final = frozenset({VerdictKind.APPROVAL_REQUIRED, VerdictKind.BLOCKED})


@dataclass(frozen=True, slots=True)
class RecordedAction:
    """An action that was checked, and the verdict at the time.

    `entry_id` and `request_id` are those of its audit entry; `action` is None if its content is not kept, and has the
    instant of the verdict as its `now`. `fired` are the guardrails that blocked, asked for approval or warned, in a dry
    run too.
    """

    entry_id: str
    request_id: str
    judged_at: datetime
    agent: str
    description: str | None
    action: Action | None
    kind: VerdictKind
    fired: frozenset[str]
    rule_set_version: str


def read_recorded_action(entry: AuditEntry) -> RecordedAction:
    """Convert the audit entry of a check or an announcement, read with its action."""
    otherwise = VerdictKind.ALLOWED if entry.allowed else VerdictKind.BLOCKED
    judged = entry.judged
    return RecordedAction(
        entry_id=str(entry.id),
        request_id=entry.request_id,
        judged_at=entry.timestamp,
        agent=entry.requesting_agent,
        description=entry.action,
        action=None if judged is None or entry.action is None else read_judged_action(entry, judged, entry.action),
        # Also where people have approved it: the rules asked for that.
        kind=VerdictKind.APPROVAL_REQUIRED if judged is not None and judged.approval_required else otherwise,
        fired=frozenset((*entry.violations, *entry.warnings, *entry.dryrun)),
        rule_set_version=entry.rule_set_version or "",
    )


def read_judged_action(entry: AuditEntry, judged: JudgedAction, description: str) -> Action:
    """Return a recorded action for guardrails, as of its instant and without the facts that are not recorded."""
    return Action(
        description=description,
        category=judged.category,
        stakes=judged.stakes,
        confidence=judged.confidence,
        context=judged.context,
        code=CodeFacts(judged.paths, unreadable="facts about it are not recorded") if judged.paths else NO_CODE,
        project=judged.project,
        agent=entry.requesting_agent,
        permissions=judged.permissions,
        now=entry.timestamp,
        announced_context=judged.announced_context,
        invocation=judged.invocation,
    )


@dataclass(frozen=True, slots=True)
class ReplayedAction:
    """A recorded action under other rules; `unknown` are the guardrails that read unrecorded facts."""

    recorded: RecordedAction
    kind: VerdictKind
    fired: tuple[str, ...] = ()
    stopped_by: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def resembles(self, other: ReplayedAction) -> bool:
        """Return whether another one is the same agent's, in the same words, and fires the same guardrails."""
        mine, theirs = self.recorded, other.recorded
        return (mine.agent, mine.description, self.fired) == (theirs.agent, theirs.description, other.fired)


class RulebookReplay:
    """Evaluates recorded actions by a rule set, each as of its own instant, without recording anything.

    `policy` is the reaction to undeclared keys and to actions that state no declared input.
    """

    def __init__(self, rule_set: RuleSet, policy: UnknownInputPolicy) -> None:
        self._evaluator = GuardrailEvaluator(rule_set, policy, server_keys=frozenset({CONFIRMED_CHECKS_KEY}))
        # Not those of messages, which fire whether or not their texts can be evaluated.
        self._read = {rule.id: rule.when.values for rule in rule_set.guardrails}

    def judge(self, recorded: RecordedAction) -> ReplayedAction:
        action = recorded.action
        if action is None:
            return ReplayedAction(recorded, VerdictKind.UNKNOWN)
        verdict = self._evaluator.evaluate(action)
        found = (*verdict.violations, *verdict.warnings, *verdict.dryrun)
        unknown = {each.guardrail_id for each in found if self._is_unknown(each, action)}
        return ReplayedAction(
            recorded,
            classify_verdict(verdict, unknown),
            tuple(each.guardrail_id for each in found if each.guardrail_id not in unknown),
            tuple(each.guardrail_id for each in verdict.violations if each.guardrail_id not in unknown),
            tuple(sorted(unknown)),
        )

    def _is_unknown(self, violation: Violation, action: Action) -> bool:
        """Return whether a guardrail could not be evaluated because it reads unrecorded facts.

        One whose other parts settle the answer is evaluated.
        """
        read = self._read.get(violation.guardrail_id, frozenset())
        return violation.code == EVALUATION_ERROR and not read.isdisjoint(unrecorded_variables(action))


def unrecorded_variables(action: Action) -> Iterator[str]:
    """Yield the variables that the server looked up for an action and did not record."""
    yield INTENTS_VARIABLE
    for name, scopes in HISTORY_SCOPES.items():
        # Without a category, the failures of its category cannot be counted: that is certain to be an error.
        if action.history_subject.find_missing(scopes) is None:
            yield name
    if action.code.paths:
        yield from UNRECORDED_CODE


def classify_verdict(verdict: Verdict, unknown: set[str]) -> VerdictKind:
    """Return the kind of a verdict; unknown if it depends on whether the `unknown` guardrails fire."""
    at_least = strictest_kind(each for each in verdict.violations if each.guardrail_id not in unknown)
    at_most = strictest_kind(verdict.violations)
    return at_least if at_least is at_most else VerdictKind.UNKNOWN


def strictest_kind(violations: Iterable[Violation]) -> VerdictKind:
    severities = {each.severity for each in violations}
    if not severities:
        return VerdictKind.ALLOWED
    return VerdictKind.APPROVAL_REQUIRED if severities == {Severity.APPROVE} else VerdictKind.BLOCKED


@dataclass(slots=True)
class GuardrailCounts:
    """For how many recorded actions a guardrail fires, and for how many of these it did, or did not, before.

    `stopped` counts actions that were allowed and are not, by this guardrail among others; `unknown` actions for which
    it reads unrecorded facts. A guardrail that the rule set lacks has neither severity nor enforcement.
    """

    severity: Severity | None = None
    enforcement: Enforcement | None = None
    fired: int = 0
    newly_fired: int = 0
    no_longer_fired: int = 0
    stopped: int = 0
    unknown: int = 0


VerdictChange: TypeAlias = tuple[VerdictKind, VerdictKind]
"""The verdict at the time, and the verdict now."""


@dataclass(slots=True)
class ReplaySummary:
    """Results of a replay. `examples` are the first actions of each change, without actions that resemble one."""

    counts: dict[str, GuardrailCounts]
    max_examples: int = MAX_EXAMPLES
    recorded: int = 0
    without_content: int = 0
    earliest: datetime | None = None
    latest: datetime | None = None
    kinds: Counter[VerdictChange] = field(default_factory=Counter)
    examples: dict[VerdictChange, list[ReplayedAction]] = field(default_factory=dict)
    versions: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of_rules(cls, rule_set: RuleSet, max_examples: int = MAX_EXAMPLES) -> ReplaySummary:
        """Return a summary of nothing yet, with a row for each guardrail that is not disabled."""
        rules = (rule for rule in rule_set.guardrails if rule.enforcement is not Enforcement.DISABLED)
        return cls({rule.id: GuardrailCounts(rule.severity, rule.enforcement) for rule in rules}, max_examples)

    @property
    def judged(self) -> int:
        return self.recorded - self.without_content

    @property
    def changes(self) -> Mapping[VerdictChange, int]:
        """Number of verdicts that change, by verdict before and now; without unknown verdicts."""
        return {
            change: count
            for change, count in self.kinds.items()
            if change[0] is not change[1] and change[1] is not VerdictKind.UNKNOWN
        }

    @property
    def unknown(self) -> int:
        return sum(count for (_, kind), count in self.kinds.items() if kind is VerdictKind.UNKNOWN)

    @property
    def newly_stopped(self) -> int:
        """How many actions were allowed and would not be."""
        return sum(self.kinds[VerdictKind.ALLOWED, kind] for kind in STOPPED)

    def add(self, replayed: ReplayedAction) -> None:
        recorded = replayed.recorded
        self.recorded += 1
        self.versions[recorded.rule_set_version] += 1
        self.earliest = min(self.earliest or recorded.judged_at, recorded.judged_at)
        self.latest = max(self.latest or recorded.judged_at, recorded.judged_at)
        if recorded.action is None:
            self.without_content += 1
            return
        change = recorded.kind, replayed.kind
        self.kinds[change] += 1
        if change in self.changes:
            self._keep_example(change, replayed)
        self._count_guardrails(replayed)

    def _keep_example(self, change: VerdictChange, replayed: ReplayedAction) -> None:
        """Keep an action as an example, unless there are enough or one that says the same."""
        examples = self.examples.setdefault(change, [])
        if len(examples) < self.max_examples and not any(map(replayed.resembles, examples)):
            examples.append(replayed)

    def _count_guardrails(self, replayed: ReplayedAction) -> None:
        before, fired, unknown = replayed.recorded.fired, set(replayed.fired), set(replayed.unknown)
        for name in before | fired | unknown:
            counts = self.counts.setdefault(name, GuardrailCounts())
            counts.fired += name in fired
            counts.unknown += name in unknown
            counts.newly_fired += name in fired - before
            counts.no_longer_fired += name in before - fired - unknown
        if replayed.recorded.kind is VerdictKind.ALLOWED and replayed.kind in STOPPED:
            for name in replayed.stopped_by:
                self.counts[name].stopped += 1
