"""Section `checks`: CheckGuardrails with rulebooks of several sizes, with durable audit and without."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from tests.bench.clients import CHECK, Method, calling, cstp_method, noop_method
from tests.bench.load import Sample, Series
from tests.bench.parts import durable_transaction
from tests.bench.processes import Served, server
from tests.bench.results import Better
from tests.bench.run import Run

IN_FLIGHT = (1, 16)
WITH_AUDIT = (5, 50, 500)
AIMED_AT = 50
"""The rules with which the aims are stated."""

CONDITIONS = (
    "context.affectsProduction && !context.codeReviewCompleted",
    "context.affectsProduction && !context.ciPassing",
    "context.destroysData && !context.backupVerified",
    "action.stakes >= stakes.high && (!has(action.confidence) || action.confidence < {share})",
    "context.affectsProduction && has(context.rolloutPercent) && context.rolloutPercent > {number}",
)


def measure_checks(run: Run) -> None:
    """Measure checks beside no-ops of the same servers, and calls that need nothing but authentication."""
    for rules in WITH_AUDIT:
        rulebook = write_rulebook(run.folder, rules)
        with server(run.folder / f"checks-{rules}", "--rules", str(rulebook)) as served:
            measure_rulebook(run, served, f"{rules}-rules", f"CheckGuardrails, {rules} rules", audit=True)
    rulebook = write_rulebook(run.folder, AIMED_AT)
    with server(run.folder / "checks-no-audit", "--rules", str(rulebook), "--no-audit") as served:
        name = f"CheckGuardrails, {AIMED_AT} rules, audit off"
        measure_rulebook(run, served, f"{AIMED_AT}-rules-audit-off", name, audit=False)
        measure_empty_calls(run, served)


def measure_empty_calls(run: Run, served: Served) -> None:
    """Measure calls that are authenticated and do nothing else."""
    access = cstp_method(served.grpc, "cstp.getAccess", dict)
    with ExitStack() as opened:
        for n in IN_FLIGHT:
            noop, empty = (
                Series(what, n, opened.enter_context(calling(method, n)), [served.pid])
                for what, method in (("no-op", noop_method(served.noop)), ("GetAccess", access))
            )
            run.measure([noop, empty])
            run.compare("get-access", empty, noop)


def measure_rulebook(run: Run, served: Served, name: str, what: str, *, audit: bool) -> None:
    """Measure the checks of one server; with audit, a durable transaction alone too."""
    check = cstp_method(served.grpc, "cstp.checkGuardrails", lambda: CHECK)
    with ExitStack() as opened:

        def series(what: str, method: Method, in_flight: int) -> Series:
            return Series(what, in_flight, opened.enter_context(calling(method, in_flight)), [served.pid])

        noops = [series("no-op", noop_method(served.noop), n) for n in IN_FLIGHT]
        checks = [series(what, check, n) for n in IN_FLIGHT]
        transaction = Series("one durable transaction (sqlite3)", 1, durable_transaction(run.folder))
        run.measure([noops[0], checks[0], *([transaction] if audit else []), noops[1], checks[1]])
    for noop, check_series in zip(noops, checks, strict=True):
        run.compare(name, check_series, noop)
    if audit:
        parts = [each.values(p50) for each in (checks[0], noops[0], transaction)]
        above = [check - noop - transaction for check, noop, transaction in zip(*parts, strict=True)]
        run.add(f"{name}.above-parts", "ms", Better.LOWER, above)


def p50(sample: Sample) -> float:
    """Return the median latency of a sample."""
    return sample.p50_ms


def write_rulebook(folder: Path, rules: int) -> Path:
    """Write a rulebook of so many rules, all of which pass what is measured, and return its path."""
    types = {"affectsProduction": "bool", "codeReviewCompleted": "bool", "ciPassing": "bool", "destroysData": "bool"}
    inputs = {name: {"type": kind, "default": False} for name, kind in {**types, "backupVerified": "bool"}.items()}
    guardrails = [
        {
            "id": f"rule-{number}",
            "name": f"Rule {number}",
            "when": CONDITIONS[number % len(CONDITIONS)].format(share=number / 1000, number=number % 100),
            "severity": "block",
            "message": f"Rule {number} forbids it",
        }
        for number in range(rules)
    ]
    content = {
        "apiVersion": "cstp.guardrails/v1",
        "metadata": {"name": f"rules-{rules}", "version": "1"},
        "inputs": {**inputs, "rolloutPercent": {"type": "number"}},
        "guardrails": guardrails,
    }
    path = folder / f"rules-{rules}.yaml"
    # JSON is YAML, too.
    path.write_text(json.dumps(content))
    return path
