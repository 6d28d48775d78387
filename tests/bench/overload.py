"""Section `overload`: how long checks take while ten times as many searches are asked for as the server can answer."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from tests.bench.clients import CHECK, OTHER_TOKEN, Parameters, calling, connections, cstp_method
from tests.bench.load import Series, keep_in_flight
from tests.bench.memory import FEW
from tests.bench.processes import Served, server, stop
from tests.bench.results import Better
from tests.bench.run import Run, ratios

TIMES = 10
"""How many times as many searches are offered as the server answers."""
SATURATING = 8
"""Searches in flight with which a server has all that its two threads for them can do."""
SEARCHES = 400
WARM_UP = 3
"""Seconds of the flood before checks are measured: searches that were admitted before it was noticed are then done."""


def measure_overload(run: Run) -> None:
    """Measure checks in turns with a flood of searches and without."""
    with server(run.decisions(FEW), "--provider", run.provider) as served, ExitStack() as opened:
        check = cstp_method(served.grpc, "cstp.checkGuardrails", lambda: CHECK)
        rate = searches_per_second(served) * TIMES
        idle = Series("CheckGuardrails, idle", 1, opened.enter_context(calling(check, 1)))
        flooded = Series(f"CheckGuardrails, {TIMES} x the searches", 1, opened.enter_context(calling(check, 1)))
        for number in range(run.rounds):
            run.progress(f"round {number + 1}/{run.rounds}: {rate:.0f} searches a second")
            run.sample([idle])
            with flooding(served, rate) as flood:
                before = read_counts(flood)
                run.sample([flooded])
                note_rates(run, before, read_counts(flood))
        run.list_rows([idle, flooded])
        run.add("check-flooded.p99", "x", Better.LOWER, ratios(flooded, idle, lambda s: s.p99_ms))
        run.add("check-flooded.p50", "x", Better.LOWER, ratios(flooded, idle, lambda s: s.p50_ms))


def searches_per_second(served: Served) -> float:
    """Return how many searches of new texts the server answers in a second."""
    method = cstp_method(served.grpc, "cstp.queryDecisions", Parameters().query_uncached, OTHER_TOKEN)
    with ExitStack() as opened:
        made, each = connections(opened, method, SATURATING)
        requests = [method.request() for _ in range(SEARCHES)]
        return SEARCHES / keep_in_flight(iter(requests), made, each).seconds


@contextmanager
def flooding(served: Served, rate: float) -> Iterator[subprocess.Popen[str]]:
    """Offer searches at a rate within the block, from a process of their own."""
    command = [sys.executable, "-m", "tests.bench.flood", str(served.grpc), str(rate)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(WARM_UP):
            read_counts(process)
        yield process
    finally:
        stop(process)


def read_counts(flood: subprocess.Popen[str]) -> Mapping[str, float]:
    """Return the counts of the next second of a flood."""
    assert flood.stdout is not None
    line = flood.stdout.readline()
    if not line:
        raise RuntimeError(f"the flood ended: exit code {flood.wait()}")
    counts: Mapping[str, float] = json.loads(line)
    return counts


def note_rates(run: Run, before: Mapping[str, float], after: Mapping[str, float]) -> None:
    """Say how many searches were offered, answered and refused in a second."""
    seconds = after["seconds"] - before["seconds"]
    rates = (f"{(after[key] - before[key]) / seconds:.0f} {key}" for key in itertools.islice(after, 3))
    run.note(f"searches a second: {', '.join(rates)}")
