"""Calls made in rounds, and how long they took."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """One kind of call on one connection: `prepare` makes a request outside the measured time, `send` answers it."""

    prepare: Callable[[], Any]
    send: Callable[[Any], object]


@dataclass
class Series:
    """The latencies of one kind of call, in milliseconds, round by round."""

    name: str
    in_flight: int
    make: Callable[[], Call]
    """Returns the call for one thread, with a connection of its own where it needs one."""
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def p50(self) -> float:
        """The median of the rounds' medians."""
        return statistics.median(statistics.median(latencies) for latencies in self.rounds)

    @property
    def p99(self) -> float:
        """The median of the rounds' 99th percentiles."""
        return statistics.median(percentile(latencies, 0.99) for latencies in self.rounds)


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def timed(call: Call, count: int, into: list[float]) -> None:
    """Make `count` calls one after the other."""
    for _ in range(count):
        request = call.prepare()
        started = time.perf_counter()
        call.send(request)
        into.append((time.perf_counter() - started) * 1000)


def run_round(series: Series, calls: int) -> None:
    """Make one round of calls, spread over as many threads as are to be in flight."""
    latencies: list[float] = []
    made = [series.make() for _ in range(series.in_flight)]
    for call in made:
        call.send(call.prepare())
    each = max(1, calls // series.in_flight)
    threads = [threading.Thread(target=timed, args=(call, each, latencies)) for call in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    series.rounds.append(latencies)


def measure(all_series: list[Series], rounds: int, calls: int, progress: Callable[[str], None]) -> None:
    """Measure every series in every round, so that a noisy minute hits all alike."""
    for number in range(rounds):
        for series in all_series:
            progress(f"round {number + 1}/{rounds}: {series.name}, {series.in_flight} in flight")
            run_round(series, calls)
