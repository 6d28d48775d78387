"""Section `commands`: parsing the labelled commands one after another, and checking them with the standard rules."""

from __future__ import annotations

import itertools

from cstp_grpc.contract.enums import Shell
from cstp_grpc.core.commands.model import Invocation
from cstp_grpc.core.commands.parsing import parse_invocation
from cstp_grpc.core.guardrails import Action
from tests.bench.guardrail_engines import repeating
from tests.bench.load import Series
from tests.bench.results import Better
from tests.bench.run import Run
from tests.core.commands.test_labelled_commands import SETS, read_set, rules


def measure_commands(run: Run) -> None:
    """Measure every command of all sets, which take turns."""
    invocations = [
        Invocation(command, Shell(shell), "/home/dev/shop")
        for path in SETS
        for label in ("dangerous", "harmless")
        for command, shell in read_set(path, label)
    ]
    parsed = itertools.cycle(invocations)
    checked = itertools.cycle([Action("Run a command", invocation=each) for each in invocations])
    steps = {
        "parse": Series("parse a command", 1, repeating(lambda: parse_invocation(next(parsed)))),
        "check": Series("check a command", 1, repeating(lambda: rules().check(next(checked)))),
    }
    run.measure(list(steps.values()))
    for name, series in steps.items():
        run.add(f"command-{name}", "us", Better.LOWER, series.values(lambda sample: sample.p50_ms * 1_000))
        run.add(f"command-{name}-p99", "us", Better.LOWER, series.values(lambda sample: sample.p99_ms * 1_000))
