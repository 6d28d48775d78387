"""Section `contention`: how long checks take while another agent's queries keep the server busy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.bench.clients import CHECK, calling, cstp_method
from tests.bench.load import Series
from tests.bench.memory import FEW
from tests.bench.processes import Served, server, stop
from tests.bench.results import Better
from tests.bench.run import Run, ratios

QUERIES = 64
IN_FLIGHT = (1, 16)
"""How many checks are in flight, idle and beside the queries."""


def measure_contention(run: Run) -> None:
    """Measure checks in turns with queries and without."""
    with server(run.decisions(FEW), "--provider", run.provider) as served, ExitStack() as opened:
        check = cstp_method(served.grpc, "cstp.checkGuardrails", lambda: CHECK)

        def series(what: str, n: int) -> Series:
            return Series(what, n, opened.enter_context(calling(check, n)))

        for n in IN_FLIGHT:
            idle = series("CheckGuardrails, idle", n)
            beside = series(f"CheckGuardrails, {QUERIES} queries in flight", n)
            for number in range(run.rounds):
                run.progress(f"round {number + 1}/{run.rounds}: {n} checks in flight")
                run.sample([idle])
                with queries_in_flight(served):
                    run.sample([beside])
            run.list_rows([idle, beside])
            name = f"check-beside-queries-{n}"
            run.add(f"{name}.p99", "x", Better.LOWER, ratios(beside, idle, lambda s: s.p99_ms))
            run.add(f"{name}.p50", "x", Better.LOWER, ratios(beside, idle, lambda s: s.p50_ms))


@contextmanager
def queries_in_flight(served: Served) -> Iterator[None]:
    """Keep queries in flight, from a process of their own so that they do not slow the measuring client."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.queries", str(served.grpc), str(QUERIES)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the queries did not begin: exit code {process.wait()}")
        yield
        if process.poll() is not None:
            raise RuntimeError(f"the queries ended: exit code {process.returncode}")
    finally:
        stop(process)
