"""Trials of rulebooks that a caller sends: on its actions, and on recorded ones. Nothing is stored."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.errors import FieldViolation, InvalidArgument
from cstp_grpc.core.audit.model import AuditEntry, AuditFilter
from cstp_grpc.core.guardrails import model, rulebook_tests
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator, UnknownInputPolicy
from cstp_grpc.core.guardrails.explanation import GuardrailExplainer, GuardrailExplanation
from cstp_grpc.core.guardrails.local_rulebook import complete_action
from cstp_grpc.core.guardrails.parsing import RulebookProblem
from cstp_grpc.core.guardrails.replay import MAX_EXAMPLES, ReplaySummary, RulebookReplay, read_recorded_action
from cstp_grpc.core.guardrails.rulebook import RulebookError, RulebookLoader, add_packaged_rulebooks
from cstp_grpc.core.guardrails.rulebook_files import RulebookFile
from cstp_grpc.platform.storage.pagination import Page, PageRequest

ROOT: Final = Path()
"""The folder that the files would be in; only packaged rulebooks are read from disk."""
DEFAULT_NAME: Final = "rulebook.yaml"
MAX_BYTES: Final = 262_144
"""Maximum size of all rulebooks of a trial. Measured: 1600 guardrails of this size compile in 1.4 s of a processor."""
TRIAL_SECONDS: Final = 5.0
"""After this time no further action or test is evaluated. One may take about a second (`cel_cost.MAX_TOTAL_STEPS`)."""
MAX_REPLAYED: Final = 100_000
"""Maximum number of recorded actions in a replay."""
REPLAY_SECONDS: Final = 300.0
"""After this time a replay evaluates no further action. Measured: 100 000 actions take 12 s with the
default rulebook."""
PROGRESS_SECONDS: Final = 1.0
"""Maximum time between two reports of progress, at which a caller that has left stops the replay."""


class SentRulebook(NamedTuple):
    """A rulebook that a caller sends: its name, empty for the usual one, and its content."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class TriedAction:
    """The verdict on an action, and the explained guardrails: all, unless the time was over."""

    verdict: model.Verdict
    guardrails: tuple[GuardrailExplanation, ...]


@dataclass(frozen=True, slots=True)
class TrialReport:
    """The results of a trial; with `problems` there are no others."""

    problems: Sequence[RulebookProblem] = ()
    rule_set: model.RuleSet = field(default_factory=lambda: model.RuleSet(()))
    actions: Sequence[TriedAction] = ()
    tests: Sequence[rulebook_tests.RulebookTestResult] = ()
    coverage: Sequence[rulebook_tests.RuleCoverage] = ()
    actions_fired: Counter[str] = field(default_factory=Counter)
    is_truncated: bool = False


def load_sent_rulebooks(sent: Sequence[SentRulebook]) -> model.RuleSet:
    """Load rulebooks that a caller sends. Raises RulebookError, and InvalidArgument if they are too large."""
    files = [RulebookFile(ROOT / (each.name or DEFAULT_NAME), each.text.encode()) for each in sent]
    if sum(len(file.content) for file in files) > MAX_BYTES:
        raise InvalidArgument.field("rulebooks", f"must have at most {MAX_BYTES} bytes together")
    if len({file.path for file in files}) < len(files):
        raise InvalidArgument.field("rulebooks", "must have different names")
    return model.RuleSet(tuple(RulebookLoader(ROOT, add_packaged_rulebooks(files, ROOT), ()).load()))


def try_rulebooks(
    sent: Sequence[SentRulebook],
    actions: Sequence[model.Action],
    policy: UnknownInputPolicy,
    clock: Callable[[], float] = time.monotonic,
) -> TrialReport:
    """Evaluate actions by rulebooks, and run the tests in them, until the time is over.

    Raises InvalidArgument for rulebooks that are too large, and for a context out of bounds.
    """
    try:
        rule_set = load_sent_rulebooks(sent)
    except RulebookError as error:
        return TrialReport(error.problems)
    ends_at = clock() + TRIAL_SECONDS

    def is_over() -> bool:
        return clock() >= ends_at

    tried = list(try_actions(rule_set, actions, policy, is_over))
    named = {str(ROOT / (each.name or DEFAULT_NAME)) for each in sent}
    own = model.RuleSet(tuple(each for each in rule_set.rulebooks if each.file in named))
    tests = rulebook_tests.run_rulebook_tests(own, is_over)
    fired: Counter[str] = Counter()
    for each in tried:
        verdict = each.verdict
        fired.update({one.guardrail_id for one in (*verdict.violations, *verdict.warnings, *verdict.dryrun)})
    is_whole = len(tests) == sum(len(each.tests) for each in own.rulebooks) and len(tried) == len(actions)
    is_whole = is_whole and not is_over()
    coverage = rulebook_tests.measure_coverage(rule_set, tests)
    return TrialReport((), rule_set, tried, tests, coverage, fired, is_truncated=not is_whole)


def try_actions(
    rule_set: model.RuleSet, actions: Sequence[model.Action], policy: UnknownInputPolicy, is_over: Callable[[], bool]
) -> Iterator[TriedAction]:
    evaluator = GuardrailEvaluator(rule_set, policy)
    for action in map(complete_action, actions):
        if is_over():
            return
        explainer = GuardrailExplainer(evaluator, rule_set.inputs, action)
        explained = (explainer.explain(rule) for rule in rule_set.guardrails if not is_over())
        yield TriedAction(evaluator.evaluate(action), tuple(explained))


class ReplayProgress(NamedTuple):
    """How far a replay has come; `version` names the rules."""

    version: str
    summary: ReplaySummary
    is_truncated: bool
    is_done: bool


def replay_rulebooks(
    sent: Sequence[SentRulebook],
    conditions: AuditFilter,
    read_page: Callable[[AuditFilter, PageRequest], Page[AuditEntry]],
    policy: UnknownInputPolicy,
    examples: int | None,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[ReplayProgress, None, None]:
    """Evaluate recorded actions by rulebooks until the time is over, and yield the progress, at least after each page.

    Raises InvalidArgument for invalid rulebooks, with their problems, and QueryFailed.
    """
    try:
        rule_set = load_sent_rulebooks(sent)
    except RulebookError as error:
        problems = [FieldViolation("rulebooks", str(problem)[:500]) for problem in error.problems[:10]]
        raise InvalidArgument("\n".join(each.description for each in problems), violations=problems) from error
    replay = RulebookReplay(rule_set, policy)
    summary = ReplaySummary.of_rules(rule_set, MAX_EXAMPLES if examples is None else examples)
    token: str | None = ""
    reported_at = clock()
    ends_at, is_over = reported_at + REPLAY_SECONDS, False
    while token is not None and not is_over:
        page = read_page(conditions, PageRequest(MAX_REPLAYED, token))
        for entry in page.items:
            if (now := clock()) >= ends_at:
                is_over = True
                break
            summary.add(replay.judge(read_recorded_action(entry)))
            if now - reported_at >= PROGRESS_SECONDS:
                reported_at = now
                yield ReplayProgress(rule_set.version, summary, is_truncated=True, is_done=False)
        else:
            token = page.next_token or None
            is_over = summary.recorded >= MAX_REPLAYED
        yield ReplayProgress(rule_set.version, summary, token is not None, is_done=False)
    yield ReplayProgress(rule_set.version, summary, token is not None, is_done=True)
