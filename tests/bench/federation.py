"""Section `federation`: checks that ask peers, each a server of its own, beside what the slowest of them took."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from cstp_grpc.gen.cstp.v1 import cstp_pb2
from tests.bench.clients import CHECK, GrpcMethod, calling, cstp_method, dialled, noop_method
from tests.bench.load import OneByOne, Series
from tests.bench.processes import Served, server
from tests.bench.results import Better
from tests.bench.run import Run

PEERS = 8
ASKED = (1, 3, 8)


@dataclass
class Asking:
    """A check of so many peers, and the milliseconds that the slowest of them took in each call."""

    peers: int
    series: Series
    slowest_ms: list[float] = field(default_factory=list)


def measure_federation(run: Run) -> None:
    """Measure checks that ask peers beside one that asks none."""
    with ExitStack() as opened:
        peers = run_peers(opened, run.folder)
        flags = [flag for peer in peers for flag in ("--peer", str(peer.grpc))]
        served = opened.enter_context(server(run.folder / "federation", *flags))
        channel = opened.enter_context(dialled(served.grpc))
        check = cstp_method(served.grpc, "cstp.checkGuardrails", lambda: CHECK)
        noop = Series("no-op", 1, opened.enter_context(calling(noop_method(served.noop), 1)), [served.pid])
        alone = Series("CheckGuardrails, no peer asked", 1, opened.enter_context(calling(check, 1)), [served.pid])
        asked = [ask(channel, served, count) for count in ASKED]
        run.measure([noop, alone, *(each.series for each in asked)])
    for each in asked:
        run.compare(f"{each.peers}-peers", each.series, noop)
        added = each.series.values(lambda s: s.p50_ms)
        slowest = statistics.median(each.slowest_ms)
        run.add(f"{each.peers}-peers.above-slowest", "ms", Better.LOWER, [p50 - slowest for p50 in added])


def ask(channel: grpc.Channel, served: Served, peers: int) -> Asking:
    """Return the measurement of a check that asks so many peers."""
    params = {**CHECK, "scope": "federated", "agents": [name_of(at) for at in range(peers)]}
    method: GrpcMethod = cstp_method(served.grpc, "cstp.checkGuardrails", lambda: params)
    invoke: grpc.UnaryUnaryMultiCallable[bytes, cstp_pb2.CheckGuardrailsResponse] = channel.unary_unary(
        method.path, None, cstp_pb2.CheckGuardrailsResponse.FromString
    )
    slowest_ms: list[float] = []

    def send(request: bytes) -> object:
        answer = invoke(request, metadata=method.metadata, timeout=60)
        if len(answer.responses) != peers or any(peer.HasField("error") for peer in answer.responses):
            raise RuntimeError(f"not every peer answered: {answer}")
        slowest_ms.append(max(peer.latency_ms for peer in answer.responses))
        return answer

    series = Series(f"federated check, {peers} peers", 1, OneByOne(method.request, send), [served.pid])
    return Asking(peers, series, slowest_ms)


def name_of(at: int) -> str:
    """Return the name of a peer."""
    return f"p{at}"


def run_peers(opened: ExitStack, folder: Path) -> Sequence[Served]:
    """Run the peers until `opened` ends."""
    return [opened.enter_context(server(folder / name_of(at))) for at in range(PEERS)]
