"""Run the tests contained in rulebooks, and measure which guardrails they try."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.enums import Enforcement
from cstp_grpc.core.guardrails import model
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator


@dataclass(frozen=True, slots=True)
class RulebookTestResult:
    """The result of a test; `failures` is empty if it passed.

    `fired` are the guardrails that fired, and `silent` those in force that did not; one that could not be evaluated is
    in neither.
    """

    __test__: ClassVar[bool] = False

    file: str
    line: int
    rulebook: str
    name: str
    failures: tuple[str, ...]
    fired: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()

    @property
    def passed(self) -> bool:
        return not self.failures


@dataclass(frozen=True, slots=True)
class RuleCoverage:
    """Whether any test fires a guardrail, and whether any test evaluates it without firing it."""

    rulebook: model.ParsedRulebook
    guardrail: model.Guardrail
    is_fired: bool
    is_passed: bool

    @property
    def gaps(self) -> tuple[str, ...]:
        missing = ((self.is_fired, "no test fires it"), (self.is_passed, "no test passes it"))
        return tuple(text for is_covered, text in missing if not is_covered)


def run_rulebook_tests(
    rule_set: model.RuleSet, is_over: Callable[[], bool] = lambda: False
) -> list[RulebookTestResult]:
    """Run all tests, each against the guardrails of its own rulebook and of those that it extends.

    The rest is left out once `is_over`.
    """
    results: list[RulebookTestResult] = []
    for rulebook in rule_set.rulebooks:
        judging = model.RuleSet((*rulebook.extended, rulebook))
        evaluator = GuardrailEvaluator(judging)
        for test in rulebook.tests:
            if is_over():
                return results
            verdict = evaluator.evaluate(test.action)
            found, errors = split_findings(verdict)
            in_force = frozenset(rule.id for rule in judging.guardrails if rule.is_in_force(test.action.now))
            results.append(
                RulebookTestResult(
                    rulebook.file,
                    test.line,
                    rulebook.name,
                    test.name,
                    tuple(find_test_failures(test, verdict)),
                    frozenset(found),
                    in_force - found.keys() - errors.keys(),
                )
            )
    return results


def measure_coverage(rule_set: model.RuleSet, results: Sequence[RulebookTestResult]) -> list[RuleCoverage]:
    fired = frozenset[str]().union(*(result.fired for result in results))
    silent = frozenset[str]().union(*(result.silent for result in results))
    return [
        RuleCoverage(rulebook, rule, rule.id in fired, rule.id in silent)
        for rulebook in rule_set.rulebooks
        for rule in rulebook.guardrails
        if rule.enforcement is not Enforcement.DISABLED
    ]


def split_findings(verdict: model.Verdict) -> tuple[dict[str, model.Violation], dict[str, model.Violation]]:
    """Return the ids of the guardrails that fired, of any severity, and of those that could not be evaluated."""
    found = {each.guardrail_id: each for each in (*verdict.violations, *verdict.warnings, *verdict.dryrun)}
    errors = {name: each for name, each in found.items() if each.code == model.EVALUATION_ERROR}
    return {name: each for name, each in found.items() if name not in errors}, errors


def find_test_failures(test: model.RulebookTest, verdict: model.Verdict) -> Iterator[str]:
    """Yield the differences between a verdict and a test's expectations."""
    fired, errors = split_findings(verdict)
    # Without those that could not be evaluated, which are reported as such.
    for name in sorted(test.expect - fired.keys() - errors.keys()):
        yield f"{name} did not fire"
    for name in sorted(fired.keys() - test.expect):
        yield f"{name} fired: {fired[name].message}"
    for name in sorted(errors.keys() - test.expect_errors):
        yield f"{name}: {errors[name].message}"
    for name in sorted(test.expect_errors - errors.keys()):
        yield f"{name} was expected to fail with an evaluation error, but was evaluated"
    if test.expect_approval is not None and test.expect_approval != verdict.approval_required:
        yield f"approval was {'' if verdict.approval_required else 'not '}required"
    if test.expect_allowed is not None and test.expect_allowed != verdict.allowed:
        yield f"the action was {'allowed' if verdict.allowed else 'blocked'}"
