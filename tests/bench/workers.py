"""Section `workers`: one worker and four, each held to a quarter of a core, so that two cores can show what four do."""

from __future__ import annotations

from contextlib import ExitStack

from tests.bench.checks import AIMED_AT, write_rulebook
from tests.bench.clients import CHECK, GrpcMethod, cstp_method
from tests.bench.connections import Connection, GrpcConnection
from tests.bench.cpu_quota import NoQuota, held_to
from tests.bench.load import InFlight, Sample, Series
from tests.bench.proc import connected_process, listeners
from tests.bench.processes import START_TIMEOUT
from tests.bench.results import Better
from tests.bench.run import Run, ratios
from tests.bench.stack import Stack, configure, serving
from tests.waiting import wait_until

WORKERS = (1, 4)
CONNECTIONS = 8
SHARE = 0.25
"""The part of a core that each worker gets."""
ATTEMPTS = 200
"""Connections that are opened until each worker has its part of them; the kernel spreads them at random."""


def measure_workers(run: Run) -> None:
    """Measure checks with durable audit by one worker in turns with checks by four."""
    try:
        with ExitStack() as opened:
            one, four = (start_workers(run, opened, count) for count in WORKERS)
            run.measure([one, four])
    except NoQuota as reason:
        run.skip("", str(reason))
        return
    run.add("four.throughput", "x", Better.HIGHER, ratios(four, one, lambda s: s.calls_per_second))
    run.add("four.cpu", "x", Better.LOWER, ratios(four, one, lambda s: s.server_cpu_us))
    for name, series in (("one", one), ("four", four)):
        run.add(f"{name}.cores", "cores", Better.LOWER, series.values(cores))


def start_workers(run: Run, opened: ExitStack, count: int) -> Series:
    """Start a server with so many workers, and return the series of checks that it answers."""
    rules = {"guardrails": {"config_path": str(write_rulebook(run.folder, AIMED_AT))}}
    stack = configure(
        run.folder,
        run.folder / f"workers-{count}",
        embedding={"provider": "lexical"},
        cstp=rules,
    )
    server = opened.enter_context(serving(stack, "--workers", str(count)))
    wait_until(lambda: len(listeners(stack.grpc)) == count, f"{count} workers listen", START_TIMEOUT)
    pids = listeners(stack.grpc)
    opened.enter_context(held_to(SHARE, pids))
    method = cstp_method(stack.grpc, "cstp.checkGuardrails", lambda: CHECK)
    caller = InFlight(method.request, connect(opened, stack, method, pids), 1)
    name = f"CheckGuardrails, {count} worker{'s' if count > 1 else ''} of a quarter of a core"
    return Series(name, CONNECTIONS, caller, sorted({server.pid, *pids}))


def connect(opened: ExitStack, stack: Stack, method: GrpcMethod, pids: list[int]) -> list[Connection]:
    """Return connections of which each worker has as many; what the kernel gives to some beyond that is closed."""
    found: dict[int, list[Connection]] = {pid: [] for pid in pids}
    each = CONNECTIONS // len(pids)
    for _ in range(ATTEMPTS):
        connection = GrpcConnection(method.port, method.path, method.metadata)
        opened.callback(connection.close)
        connection.wait_for_settings()
        worker = connected_process(stack.grpc, connection.local_port, pids)
        if len(found[worker]) < each:
            found[worker].append(connection)
        else:
            connection.close()
        if all(len(connections) == each for connections in found.values()):
            return [connection for connections in found.values() for connection in connections]
    raise RuntimeError(f"after {ATTEMPTS} connections, workers have {[len(each) for each in found.values()]}")


def cores(sample: Sample) -> float | None:
    """Return how much of a core was used, by all workers together."""
    return None if sample.server_cpu_us is None else sample.server_cpu_us * sample.calls_per_second / 1e6
