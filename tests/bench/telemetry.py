"""Section `telemetry`: what metrics cost checks, beside a server without them."""

from __future__ import annotations

from contextlib import ExitStack

from tests.bench.checks import AIMED_AT, IN_FLIGHT, write_rulebook
from tests.bench.clients import CHECK, calling, cstp_method
from tests.bench.load import Series
from tests.bench.processes import server
from tests.bench.run import Run

VARIANTS = {"metrics": ("--metrics",)}
"""The flags of servers that are compared with one that tells nothing, by the name of the figure."""


def measure_telemetry(run: Run) -> None:
    """Measure checks of servers that are alike but for what they tell of themselves."""
    rulebook = write_rulebook(run.folder, AIMED_AT)
    for number in IN_FLIGHT:
        with ExitStack() as opened:

            def series(name: str, *flags: str, number: int = number, opened: ExitStack = opened) -> Series:
                folder = run.folder / f"telemetry-{name}-{number}"
                served = opened.enter_context(server(folder, "--rules", str(rulebook), *flags))
                check = cstp_method(served.grpc, "cstp.checkGuardrails", lambda: CHECK)
                what = f"CheckGuardrails, {AIMED_AT} rules, {name}"
                return Series(what, number, opened.enter_context(calling(check, number)), [served.pid])

            plain = series("telemetry off")
            observed = {name: series(name, *flags) for name, flags in VARIANTS.items()}
            run.measure([plain, *observed.values()])
        for name, each in observed.items():
            run.compare(name, each, plain)
