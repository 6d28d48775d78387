"""Calls made in rounds: how long they took, how many a second there were, and what CPU processes needed for them."""

from __future__ import annotations

import gc
import selectors
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.bench.connections import Connection
from tests.bench.cpu_time import cpu_seconds
from tests.bench.results import Row

BLOCKS = 8
"""Parts of a round. The series take turns by blocks, so that a noisy second hits all of them alike."""

MANY = 4
"""How many times as many calls a round has when more than one is in flight, since they take less time each."""


ROUND_SECONDS = 3.0
"""What a round of one series may take, about; slow calls are made less often."""


@dataclass(frozen=True)
class Finished:
    """Calls that were made: the seconds that each took, and the seconds that all of them took together."""

    latencies: Sequence[float]
    seconds: float


class Caller(Protocol):
    """Makes calls of one kind."""

    def prepare(self, count: int) -> Sequence[Any]:
        """Return the requests of so many calls; this is not measured."""

    def run(self, requests: Sequence[Any]) -> Finished:
        """Make the calls."""


@dataclass(frozen=True)
class OneByOne:
    """Calls one after the other, by an ordinary client."""

    request: Callable[[], Any]
    send: Callable[[Any], object]

    def prepare(self, count: int) -> Sequence[Any]:
        return [self.request() for _ in range(count)]

    def run(self, requests: Sequence[Any]) -> Finished:
        latencies = []
        send, clock = self.send, time.perf_counter
        begun = before = clock()
        for request in requests:
            send(request)
            now = clock()
            latencies.append(now - before)
            before = now
        return Finished(latencies, before - begun)


@dataclass(frozen=True)
class InFlight:
    """Calls over given connections, so many of them in flight on each until all are made."""

    request: Callable[[], bytes]
    connections: Sequence[Connection]
    each: int

    def prepare(self, count: int) -> Sequence[bytes]:
        return [self.request() for _ in range(count)]

    def run(self, requests: Sequence[bytes]) -> Finished:
        return keep_in_flight(iter(requests), self.connections, self.each)


def keep_in_flight(requests: Iterator[bytes], connections: Sequence[Connection], each: int) -> Finished:
    """Make calls until the requests end, `each` of them in flight on each connection."""
    latencies: list[float] = []
    waiting = 0
    begun = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
            for _, request in zip(range(each), requests, strict=False):
                connection.send(request)
                waiting += 1
        # One connection needs no selector: receiving waits, too.
        ready: Iterable[Any] = connections
        while waiting:
            if len(connections) > 1:
                ready = [key.fileobj for key, _ in selector.select()]
            for connection in ready:
                done = connection.receive()
                latencies += done
                waiting -= len(done)
                for _, request in zip(done, requests, strict=False):
                    connection.send(request)
                    waiting += 1
    return Finished(latencies, time.perf_counter() - begun)


@dataclass(frozen=True)
class Sample:
    """What one round of a series came to."""

    p50_ms: float
    p99_ms: float
    calls_per_second: float
    server_cpu_us: float | None
    bridge_cpu_us: float | None


@dataclass
class Series:
    """Calls of one kind, and their samples round by round."""

    name: str
    in_flight: int
    caller: Caller
    server_pids: Sequence[int] = ()
    bridge_pids: Sequence[int] = ()
    samples: list[Sample] = field(default_factory=list)

    def values(self, read: Callable[[Sample], float | None]) -> list[float]:
        """Return one value of each round; none at all if it was not measured."""
        return [value for sample in self.samples if (value := read(sample)) is not None]

    def row(self, section: str) -> Row:
        """Return the line of the table."""
        return Row(
            section,
            self.name,
            self.in_flight,
            self.values(lambda s: s.p50_ms),
            self.values(lambda s: s.p99_ms),
            self.values(lambda s: s.calls_per_second),
            self.values(lambda s: s.server_cpu_us) or None,
            self.values(lambda s: s.bridge_cpu_us) or None,
        )


@dataclass
class Tally:
    """The blocks of one round."""

    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    server_cpu: float | None = 0.0
    bridge_cpu: float | None = 0.0

    def sample(self) -> Sample:
        """Return their summary."""
        count = len(self.latencies)
        return Sample(
            statistics.median(self.latencies) * 1_000,
            percentile(self.latencies, 0.99) * 1_000,
            count / self.seconds,
            None if self.server_cpu is None else self.server_cpu / count * 1e6,
            None if self.bridge_cpu is None else self.bridge_cpu / count * 1e6,
        )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure(all_series: Sequence[Series], rounds: int, calls: int, progress: Callable[[str], None]) -> None:
    """Measure every series in every round, block by block; `calls` is how many a round has with one in flight."""
    counts = [calls_of_block(series, calls) for series in all_series]
    for number in range(rounds):
        tallies = [Tally() for _ in all_series]
        for block in range(BLOCKS):
            for series, tally, count in zip(all_series, tallies, counts, strict=True):
                progress(f"round {number + 1}/{rounds}, part {block + 1}/{BLOCKS}: {series.name}, {series.in_flight}")
                run_block(series, tally, count)
        for series, tally in zip(all_series, tallies, strict=True):
            series.samples.append(tally.sample())


def calls_of_block(series: Series, calls: int) -> int:
    """Make some calls to warm up, and return how many a block of the series shall have: fewer if they are slow."""
    finished = series.caller.run(series.caller.prepare(max(20, 2 * series.in_flight)))
    wanted = calls * (MANY if series.in_flight > 1 else 1)
    affordable = ROUND_SECONDS * len(finished.latencies) / finished.seconds
    return max(2 * series.in_flight, int(min(wanted, affordable)) // BLOCKS)


def run_block(series: Series, tally: Tally, count: int) -> None:
    """Make the calls of one block."""
    requests = series.caller.prepare(count)
    with without_collections():
        server, bridge = cpu_seconds(series.server_pids), cpu_seconds(series.bridge_pids)
        finished = series.caller.run(requests)
        tally.server_cpu = spent(tally.server_cpu, server, cpu_seconds(series.server_pids))
        tally.bridge_cpu = spent(tally.bridge_cpu, bridge, cpu_seconds(series.bridge_pids))
    tally.latencies += finished.latencies
    tally.seconds += finished.seconds


def spent(so_far: float | None, before: float | None, after: float | None) -> float | None:
    """Return the CPU of the blocks so far and of one more; None if it cannot be told."""
    if so_far is None or before is None or after is None:
        return None
    return so_far + after - before


@contextmanager
def without_collections() -> Iterator[None]:
    """Keep this process's garbage collector out of what is measured."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Numbers:
    """Counts over threads."""

    def __init__(self) -> None:
        self._next = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        """Return the next number."""
        with self._lock:
            self._next += 1
            return self._next
