"""What a shared search engine needs for many decisions: `python -m tests.bench.scale_cost` prints a table.

It extrapolates from figures of one machine (docs/deployment/scaling.md, docs/adr/0039), and simulates the queues.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

MILLION = 1_000_000
GB = 1e9


@dataclass(frozen=True)
class Measured:
    """Measured with PostgreSQL 18 and pgvector 0.8.5 at 1 000 000 decisions of one passage, 384 dimensions."""

    row_bytes: float = 1_030
    """Vector in float16, filters and terms of a passage."""
    graph_bytes: float = 1_170
    """HNSW with m=16."""
    other_index_bytes: float = 190
    """Terms, filter keys, dates and ids."""
    graph_ms: float = 5.5
    """CPU of an unfiltered search with hnsw.ef_search=400."""
    filtered_ms: float = 20
    """CPU of a search with a filter, by the graph or by comparing each row that passes."""
    words_ms: float = 2.7
    """CPU of finding words, at most 2 000 rows."""
    server_ms: float = 10
    """CPU of the CSTP server for a search, with the exact scores."""
    insert_ms: float = 2.5
    """CPU of adding a row with its graph, one by one."""


@dataclass(frozen=True)
class Assumed:
    """What was not measured; change it here."""

    journal_bytes: float = 6_000
    """Tables of a decision in the journal, with its texts, history and vectors (3 000 without texts, measured)."""
    passages: float = 1.5
    """Vectors of a decision: 1 for a short one, 6 or more for a long record."""
    partition: int = MILLION
    """Decisions of a partition (tenant, then time)."""
    tenant_share: float = 0.02
    """Share of all decisions that a search reads the partitions of: those of its tenant."""
    filtered: float = 0.5
    """Share of searches with a filter."""
    hot_rows: float = 0.5
    """Share of the rows that must be in memory; graphs and other indexes must be as a whole."""
    cores: int = 16
    memory_gb: float = 64
    server_cores: int = 4
    usable: float = 0.75
    """Share of the memory for data."""
    load: float = 0.6
    """Utilisation that a machine is planned for."""
    copies: int = 2
    """A primary and a standby, which answers searches too."""
    network_ms: float = 2
    core_month: float = 25
    """Price of a core, a gigabyte of memory and one of disk for a month, in any currency."""
    memory_month: float = 3.5
    disk_month: float = 0.1


@dataclass(frozen=True)
class Rate:
    """Calls a second for a number of decisions."""

    decisions: int
    searches: float
    writes: float


@dataclass(frozen=True)
class Need:
    """Machines and time; memory and disk are those of all copies."""

    shards: int
    copies: int
    servers: int
    fan_out: int
    memory_gb: float
    disk_gb: float
    p50_ms: float
    p99_ms: float
    month: float


RATES = (Rate(MILLION, 20, 2), Rate(10 * MILLION, 100, 10), Rate(100 * MILLION, 500, 50))


def estimate(rate: Rate, measured: Measured, assumed: Assumed) -> Need:
    """Return the machines that a rate needs."""
    passages = rate.decisions * assumed.passages
    indexes = passages * (measured.graph_bytes + measured.other_index_bytes)
    rows = passages * measured.row_bytes
    memory = (indexes + assumed.hot_rows * rows) / GB
    shards = math.ceil(memory / (assumed.memory_gb * assumed.usable))
    fan_out = max(1, math.ceil(rate.decisions * assumed.tenant_share / assumed.partition))
    part_ms = partition_ms(min(rate.decisions, assumed.partition) * assumed.passages, measured, assumed)
    # Every copy carries out all writes.
    write_cores = rate.writes * assumed.passages * measured.insert_ms / 1_000
    read_cores = rate.searches * fan_out * part_ms / 1_000
    per_machine = assumed.cores * assumed.load - write_cores / shards
    copies = max(assumed.copies, math.ceil(read_cores / (shards * per_machine)))
    server_cores = rate.searches * measured.server_ms / 1_000
    servers = max(2, math.ceil(server_cores / (assumed.server_cores * assumed.load)))
    waiting = simulate(rate.searches, fan_out, part_ms, shards * copies * assumed.cores)
    fixed = measured.server_ms + assumed.network_ms
    disk = copies * (rate.decisions * assumed.journal_bytes + indexes + rows) / GB
    machines = shards * copies
    month = (
        (machines * assumed.cores + servers * assumed.server_cores) * assumed.core_month
        + (machines * assumed.memory_gb + servers * 2 * assumed.server_cores) * assumed.memory_month
        + disk * assumed.disk_month
    )
    p50, p99 = (fixed + waiting[int(len(waiting) * share)] for share in (0.5, 0.99))
    return Need(shards, copies, servers, fan_out, memory * copies, disk, p50, p99, month)


def partition_ms(passages: float, measured: Measured, assumed: Assumed) -> float:
    """Return the CPU of a search in one partition. The way through a graph grows with the logarithm of its size."""
    graph = measured.graph_ms * math.log(passages) / math.log(MILLION)
    return (1 - assumed.filtered) * graph + assumed.filtered * measured.filtered_ms + measured.words_ms


def simulate(searches: float, fan_out: int, part_ms: float, cores: int, calls: int = 20_000) -> Sequence[float]:
    """Return the sorted times of searches in ms, whose parts wait for a free core; a search lasts as its last part.

    Calls arrive at random (Poisson), and the times of parts are log-normal with a mean of `part_ms`.
    """
    generator = random.Random(7)
    spread = 0.5
    mean = math.log(part_ms) - spread**2 / 2
    free = [0.0] * cores
    now, times = 0.0, []
    for _ in range(calls):
        now += generator.expovariate(searches) * 1_000
        end = now
        for _ in range(fan_out):
            done = max(now, free[0]) + generator.lognormvariate(mean, spread)
            heapq.heapreplace(free, done)
            end = max(end, done)
        times.append(end - now)
    return sorted(times)


def write_table(rates: Sequence[Rate], measured: Measured, assumed: Assumed) -> str:
    """Return the needs as a Markdown table."""
    lines = [
        "| decisions | searches/s | writes/s | shards | servers | partitions read | memory | disk | p50 | p99 "
        "| price |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for rate in rates:
        need = estimate(rate, measured, assumed)
        lines.append(
            f"| {rate.decisions // MILLION} million | {rate.searches:g} | {rate.writes:g} "
            f"| {need.shards} x {need.copies} | {need.servers} | {need.fan_out} | {need.memory_gb:.0f} GB "
            f"| {need.disk_gb:,.0f} GB | {need.p50_ms:.0f} ms | {need.p99_ms:.0f} ms | {need.month:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, help="in millions; with the other two, instead of the usual rates")
    parser.add_argument("--searches", type=float, default=500, help="a second")
    parser.add_argument("--writes", type=float, default=50, help="a second")
    parser.add_argument("--passages", type=float, default=Assumed.passages, help="of a decision")
    options = parser.parse_args()
    asked = (Rate(options.decisions * MILLION, options.searches, options.writes),) if options.decisions else RATES
    print(write_table(asked, Measured(), Assumed(passages=options.passages)))


if __name__ == "__main__":
    main()
