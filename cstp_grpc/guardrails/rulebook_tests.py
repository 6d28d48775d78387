"""Run the tests contained in rulebooks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cstp_grpc.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.guardrails.model import EVALUATION_ERROR, RulebookTest, RuleSet, Verdict


@dataclass(frozen=True, slots=True)
class RulebookTestResult:
    """The result of a test; `failures` is empty if it passed."""

    __test__: ClassVar[bool] = False

    file: str
    line: int
    rulebook: str
    name: str
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the test passed."""
        return not self.failures


def run_rulebook_tests(rule_set: RuleSet) -> list[RulebookTestResult]:
    """Run all tests, each against the guardrails of its own rulebook and of those that it extends."""
    results = []
    for rulebook in rule_set.rulebooks:
        evaluator = GuardrailEvaluator(RuleSet((*rulebook.extended, rulebook)))
        for test in rulebook.tests:
            failures = tuple(find_test_failures(test, evaluator.evaluate(test.action)))
            results.append(RulebookTestResult(rulebook.file, test.line, rulebook.name, test.name, failures))
    return results


def find_test_failures(test: RulebookTest, verdict: Verdict) -> Iterator[str]:
    """Yield the differences between a verdict and a test's expectations."""
    found = {
        violation.guardrail_id: violation for violation in (*verdict.violations, *verdict.warnings, *verdict.dryrun)
    }
    errors = {name for name, violation in found.items() if violation.code == EVALUATION_ERROR}
    fired = found.keys() - errors
    # Without those that could not be evaluated, which are reported as such.
    for name in sorted(test.expect - fired - errors):
        yield f"{name} did not fire"
    for name in sorted(fired - test.expect):
        yield f"{name} fired: {found[name].message}"
    for name in sorted(errors - test.expect_errors):
        yield f"{name}: {found[name].message}"
    for name in sorted(test.expect_errors - errors):
        yield f"{name} was expected to be impossible to evaluate, but was evaluated"
    if test.expect_approval is not None and test.expect_approval != verdict.approval_required:
        yield f"approval was {'' if verdict.approval_required else 'not '}required"
    if test.expect_allowed is not None and test.expect_allowed != verdict.allowed:
        yield f"the action was {'allowed' if verdict.allowed else 'blocked'}"
