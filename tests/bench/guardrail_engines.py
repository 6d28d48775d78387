"""Section `guardrails`: the engine alone by the number of rules, batches, reloads, and other engines where installed.

The others are in no list of dependencies: `pip install cel-python regopy cedarpy` brings them. One that is missing is
left out, with the reason.
"""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.rulebook import load_rule_set
from tests.bench.guardrail_batches import measure_batches, measure_reload
from tests.bench.guardrail_rules import ACTION, PortableRule, mixed_rules, portable_rules, varied_actions, write_rules
from tests.bench.load import OneByOne, Sample, Series
from tests.bench.parts import without_request
from tests.bench.results import Better
from tests.bench.run import Run, ratios

SIZES = (5, 50, 500)
ACTIONS = 300
"""Different actions, which take turns."""
COMPARED = 50
"""The number of rules with which engines are compared."""

Evaluate = Callable[[], Sequence[str]]
"""Returns the rules that deny the measured action."""


def measure_engines(run: Run) -> None:
    """Measure evaluations one after another in this process; other engines judge one and the same action."""
    mixed = {size: Series(f"a realistic mix, {size} rules", 1, engine_with(run, size)) for size in SIZES}
    run.measure(list(mixed.values()))
    for size, series in mixed.items():
        run.add(f"engine-{size}", "us", Better.LOWER, series.values(microseconds))
    run.add("engine-500-to-50", "x", Better.LOWER, ratios(mixed[500], mixed[50], microseconds))
    measure_reload(run, SIZES[-1])
    for size in SIZES:
        measure_batches(run, size)
    compare_engines(run)


def microseconds(sample: Sample) -> float:
    """Return the median latency of a sample."""
    return sample.p50_ms * 1_000


def engine_with(run: Run, size: int) -> OneByOne:
    """Return evaluations of varied actions by our engine."""
    path = write_rules(run.folder / f"mixed-{size}.yaml", mixed_rules(size))
    evaluator = GuardrailEvaluator(load_rule_set(path))
    actions = itertools.cycle(varied_actions(ACTIONS))
    return repeating(lambda: evaluator.evaluate(next(actions)))


def compare_engines(run: Run) -> None:
    """Measure engines beside each other, with rules that all of them can express."""
    rules = portable_rules(COMPARED)
    ours = Series(f"cstp, {COMPARED} portable rules", 1, repeating(our_engine(run, rules)))
    others = []
    for name, build in OTHER_ENGINES.items():
        try:
            evaluate = build(rules)
        except ImportError as error:
            run.skip(name, f"{error.name} is not installed: pip install cel-python regopy cedarpy")
            continue
        denied = list(evaluate())
        # What does not decide alike is not the same work.
        assert denied == [], f"{name} denies {denied}"
        others.append((name, Series(f"{name}, {COMPARED} portable rules", 1, repeating(evaluate))))
    run.measure([ours, *(series for _, series in others)])
    run.add(f"portable-{COMPARED}", "us", Better.LOWER, ours.values(microseconds))
    for name, series in others:
        run.add(f"{name}-to-ours", "x", Better.HIGHER, ratios(series, ours, microseconds))


def repeating(act: Callable[[], object]) -> OneByOne:
    """Return calls of a function without arguments."""
    return without_request(lambda _: act())


def our_engine(run: Run, rules: Sequence[PortableRule]) -> Callable[[], object]:
    """Return evaluations by our engine."""
    content = [
        {"id": f"rule-{number}", "name": "Rule", "severity": "block", "message": "no", "when": rule.cel}
        for number, rule in enumerate(rules)
    ]
    evaluator = GuardrailEvaluator(load_rule_set(write_rules(run.folder / "portable.yaml", content)))
    assert evaluator.evaluate(ACTION).allowed
    return lambda: evaluator.evaluate(ACTION)


def cel_python(rules: Sequence[PortableRule]) -> Evaluate:
    """Return evaluations by CEL in Python. Raises ImportError."""
    celpy: Any = importlib.import_module("celpy")
    environment = celpy.Environment()
    programs = [environment.program(environment.compile(rule.cel)) for rule in rules]

    def evaluate() -> Sequence[str]:
        bound = {"context": celpy.json_to_cel(dict(ACTION.context))}
        return [str(number) for number, program in enumerate(programs) if program.evaluate(bound)]

    return evaluate


def rego(rules: Sequence[PortableRule]) -> Evaluate:
    """Return evaluations by Rego in C++, compiled to a bundle. Raises ImportError."""
    regopy: Any = importlib.import_module("regopy")
    interpreter = regopy.Interpreter()
    module = [f'deny contains "{number}" if {{ {rule.rego} }}' for number, rule in enumerate(rules)]
    interpreter.add_module("rules", "\n".join(["package rules", *module]))
    bundle = interpreter.build("data.rules.deny", [])

    def evaluate() -> Sequence[str]:
        interpreter.set_input(dict(ACTION.context))
        (denied,) = json.loads(str(interpreter.query_bundle(bundle)))["expressions"]
        return list(denied)

    return evaluate


def cedar(rules: Sequence[PortableRule]) -> Evaluate:
    """Return evaluations by Cedar in Rust, whose policies are parsed beforehand. Raises ImportError."""
    cedarpy: Any = importlib.import_module("cedarpy")
    policies = ["permit(principal, action, resource);"]
    policies += [f"forbid(principal, action, resource) when {{ {rule.cedar} }};" for rule in rules]
    policy_set, entities = cedarpy.PolicySet.from_str("\n".join(policies)), cedarpy.Entities.from_json_str("[]")
    request = {
        "principal": 'Agent::"ci"',
        "action": 'Action::"act"',
        "resource": 'Thing::"any"',
        "context": dict(ACTION.context),
    }

    def evaluate() -> Sequence[str]:
        result = cedarpy.is_authorized(request, policy_set, entities)
        return [] if result.allowed else list(result.diagnostics.reasons)

    return evaluate


OTHER_ENGINES: Mapping[str, Callable[[Sequence[PortableRule]], Evaluate]] = {
    "cel-python": cel_python,
    "regopy": rego,
    "cedarpy": cedar,
}
