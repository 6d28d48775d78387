"""Measure: `python -m tests.bench [--quick]`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from cstp_grpc.gen.cstp.v1 import journal_pb2_grpc
from tests.bench import alone, corpus, federation, intent_layer, liaison
from tests.bench.clients import TOKEN, Parameters, a2a_grpc_call, a2a_message, grpc_call, http_call, noop_call
from tests.bench.load import Series, measure
from tests.bench.processes import bridge, server
from tests.bench.report import Group, table

IN_FLIGHT = (1, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and decisions, to see that it works")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of 400 calls each")
    parser.add_argument("--provider", default="minilm", help="minilm or lexical")
    arguments = parser.parse_args()
    sizes = (100, 300) if arguments.quick else (1_000, 10_000)
    rounds, calls = (2, 40) if arguments.quick else (arguments.rounds, 400)
    with tempfile.TemporaryDirectory(prefix="cstp-bench-") as folder:
        groups, starts = run(Path(folder), sizes, rounds, calls, arguments.provider)
    progress("")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; ", end="")
    print(f"medians of {rounds} rounds of {calls} calls\n")
    print(table(groups))
    print()
    for line in starts:
        print(line)


def run(folder: Path, sizes: tuple[int, ...], rounds: int, calls: int, provider: str) -> tuple[list[Group], list[str]]:
    """Measure everything, and return the groups of the table and what there is to say of starting."""
    groups, starts = [], []
    for size in sizes:
        data_dir = folder / f"decisions-{size}"
        flags = ("--provider", provider)
        with server(data_dir, *flags) as served, dialled(served.grpc) as channel:
            fill(channel, size)
        with (
            server(data_dir, *flags) as served,
            dialled(served.grpc) as channel,
            dialled(served.noop) as noop,
            bridge(served.grpc, folder) as ports,
            dialled(ports.a2a) as a2a,
        ):
            starts.append(f"ready to serve with {size} decisions: {served.ready_seconds:.2f} s after the start")
            noops = no_ops(noop)
            series = protocol(channel, ports.http) + conversations(a2a, ports.http)
            parts = alone.parts(folder, data_dir) if size == sizes[0] and provider == "minilm" else []
            measure([*noops.values(), *series, *parts], rounds, calls, progress)
            groups.append(Group(f"{size} decisions", [*noops.values(), *series], noops))
            if parts:
                groups.append(Group("parts, alone", parts, noops))
    with (
        server(data_dir, *flags, "--no-audit") as served,
        dialled(served.grpc) as channel,
        dialled(served.noop) as noop,
    ):
        noops = no_ops(noop)
        checks = [Series("CheckGuardrails, gRPC", n, grpc_call(channel, *CHECK)) for n in IN_FLIGHT]
        measure([*noops.values(), *checks], rounds, calls, progress)
        groups.append(Group("audit off", [*noops.values(), *checks], noops))
    groups.append(routings(folder / "routing", rounds, calls))
    asked, said = federation_checks(folder / "federation", rounds, calls)
    groups.append(asked)
    starts += said
    groups.append(large_project(folder / "project", rounds, calls))
    return groups, starts


def routings(folder: Path, rounds: int, calls: int) -> Group:
    """Measure handing over chat sessions, beside what a call and a durable transaction take at the least."""
    with (
        server(folder, "--provider", "lexical") as served,
        dialled(served.grpc) as channel,
        dialled(served.noop) as noop,
    ):
        noops = no_ops(noop)
        transaction = Series("one durable transaction (sqlite3)", 1, alone.durable_transaction(folder))
        series = [transaction, *liaison.series(channel, IN_FLIGHT)]
        measure([*noops.values(), *series], rounds, calls, progress)
    return Group("chat sessions", [*noops.values(), *series], noops)


def federation_checks(folder: Path, rounds: int, calls: int) -> tuple[Group, list[str]]:
    """Measure checks that ask peers, and return also what there is to say of the aim."""
    with ExitStack() as opened:
        peers = federation.peers(opened, folder)
        flags = [flag for peer in peers for flag in ("--peer", str(peer.grpc))]
        served = opened.enter_context(server(folder / "hub", "--provider", "lexical", *flags))
        channel = opened.enter_context(dialled(served.grpc))
        noops = no_ops(opened.enter_context(dialled(served.noop)))
        alone = Series("CheckGuardrails, gRPC, nobody asked", 1, grpc_call(channel, *CHECK))
        asked = [federation.asking(channel, count) for count in federation.ASKED]
        measure([*noops.values(), alone, *(each.total for each in asked)], rounds, calls, progress)
    for each in asked:
        each.conclude()
    series = [alone, *(series for each in asked for series in (each.total, each.slowest))]
    return Group("federation", [*noops.values(), *series], noops), [each.said for each in asked]


def large_project(folder: Path, rounds: int, calls: int) -> Group:
    """Measure the Intent Layer on a large project, in ratios to reading the files of a chain as they are."""
    base, resolving, judging = intent_layer.series(folder)
    measure([base, *resolving], rounds, calls, progress)
    measure(judging, rounds, 1, progress)
    title = f"{intent_layer.FOLDERS} folders, {intent_layer.NODES} nodes; ratios to reading the files"
    return Group(title, [base, *resolving, *judging], {1: base})


CHECK = ("cstp.checkGuardrails", Parameters().check)


def no_ops(channel: grpc.Channel) -> dict[int, Series]:
    """Return the series of bare gRPC calls."""
    return {n: Series("no-op, gRPC", n, noop_call(channel)) for n in IN_FLIGHT}


def protocol(channel: grpc.Channel, http_port: int) -> list[Series]:
    """Return the series of the protocol's methods over both transports."""
    parameters = Parameters()
    measured: list[tuple[str, str, Callable[[], dict[str, object]]]] = [
        ("CheckGuardrails", *CHECK),
        ("QueryDecisions, cached text", "cstp.queryDecisions", parameters.query_cached),
        ("QueryDecisions, uncached text", "cstp.queryDecisions", parameters.query_uncached),
        ("AnnounceIntent, cached text", "cstp.announceIntent", parameters.announce),
    ]
    series = []
    for name, method, params in measured:
        for n in IN_FLIGHT:
            series.append(Series(f"{name}, gRPC", n, grpc_call(channel, method, params)))
            series.append(Series(f"{name}, bridge", n, http_call(http_port, method, params)))
    return series


def conversations(channel: grpc.Channel, http_port: int) -> list[Series]:
    """Return the series of A2A messages that announce what the protocol's AnnounceIntent does, over both transports."""
    series = []
    for n in IN_FLIGHT:
        series.append(Series("A2A SendMessage, gRPC", n, a2a_grpc_call(channel)))
        series.append(Series("A2A SendMessage, JSON-RPC", n, http_call(http_port, "SendMessage", a2a_message, "/a2a/")))
    return series


@contextmanager
def dialled(port: int) -> Iterator[grpc.Channel]:
    """Yield a channel to a port of this machine."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(30)
        yield channel


def fill(channel: grpc.Channel, size: int) -> None:
    """Import the corpus."""
    progress(f"importing {size} decisions")
    stub = journal_pb2_grpc.JournalServiceStub(channel)
    stub.ImportDecisions(corpus.decisions(size), metadata=(("authorization", f"Bearer {TOKEN}"),), timeout=1200)


def progress(text: str) -> None:
    """Show what is going on, where someone watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
