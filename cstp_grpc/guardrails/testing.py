"""Running the tests that rulebooks carry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cstp_grpc.guardrails.evaluator import Evaluator
from cstp_grpc.guardrails.model import EVALUATION_ERROR, Verdict
from cstp_grpc.guardrails.ruleset import RulebookTest, RuleSet


@dataclass(frozen=True, slots=True)
class TestResult:
    """What came of a test; `failures` says in words what was not as expected, and is empty where all was."""

    __test__: ClassVar[bool] = False

    file: str
    line: int
    rulebook: str
    name: str
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether everything was as expected."""
        return not self.failures


def run_tests(rule_set: RuleSet) -> list[TestResult]:
    """Return the results of all tests, each run against the guardrails of its own rulebook only."""
    results = []
    for rulebook in rule_set.rulebooks:
        evaluator = Evaluator(RuleSet((rulebook,)))
        for test in rulebook.tests:
            failures = tuple(compare(test, evaluator.evaluate(test.action)))
            results.append(TestResult(rulebook.file, test.line, rulebook.name, test.name, failures))
    return results


def compare(test: RulebookTest, verdict: Verdict) -> Iterator[str]:
    """Return what differs between a verdict and what a test expects."""
    found = {violation.guardrail_id: violation for violation in (*verdict.violations, *verdict.warnings)}
    errors = {name for name, violation in found.items() if violation.code == EVALUATION_ERROR}
    fired = found.keys() - errors
    for name in sorted(test.expect - fired - errors):
        yield f"{name} did not fire"
    for name in sorted(fired - test.expect):
        yield f"{name} fired: {found[name].message}"
    for name in sorted(errors - test.expect_errors):
        yield f"{name}: {found[name].message}"
    for name in sorted(test.expect_errors - errors):
        yield f"{name} was expected to be impossible to evaluate, but was evaluated"
    if test.expect_allowed is not None and test.expect_allowed != verdict.allowed:
        yield f"the action was {'allowed' if verdict.allowed else 'blocked'}"
