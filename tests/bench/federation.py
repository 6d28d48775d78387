"""Checks that ask peers, each a server of its own, beside what the slowest of the asked took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from cstp_grpc.client.codec import from_json
from cstp_grpc.client.contract import methods
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from tests.bench.clients import CHECK, TOKEN
from tests.bench.load import Call, Series
from tests.bench.processes import Served, server

PEERS = 8
ASKED = (1, 3, 8)
SLACK = 1.3
EACH = 0.3
"""The aim in milliseconds: 1.3 x the slowest peer, and 0.3 for each peer."""


@dataclass
class Asking:
    """A check of so many peers, and what the slowest took each time."""

    peers: int
    total: Series
    slowest: Series
    latencies: list[float] = field(default_factory=list)

    def conclude(self) -> None:
        """Take over what the slowest took."""
        self.slowest.rounds.append(self.latencies)

    @property
    def said(self) -> str:
        """The figure beside what is aimed at."""
        aim = SLACK * self.slowest.p50 + EACH * self.peers
        return f"federated check, {self.peers} peers: p50 {self.total.p50:.2f} ms, the aim is {aim:.2f}"


def asking(channel: grpc.Channel, peers: int) -> Asking:
    """Return the measurement of a check that asks so many peers."""
    params = {**CHECK, "scope": "federated", "agents": [name_of(at) for at in range(peers)]}
    made = Asking(
        peers,
        Series(f"federated check, {peers} peers", 1, lambda: call),
        Series(f"the slowest of {peers} peers", 1, lambda: call),
    )
    call = recording(channel, params, made.latencies.append)
    return made


def recording(channel: grpc.Channel, params: dict[str, Any], note: Callable[[float], None]) -> Call:
    """Return a check that notes what the slowest peer took."""
    rpc = methods()["cstp.checkGuardrails"]
    invoke = channel.unary_unary(rpc.path, rpc.request.SerializeToString, rpc.response.FromString)
    metadata = (("authorization", f"Bearer {TOKEN}"),)
    request = from_json(params, rpc.request)

    def send(prepared: Any) -> object:
        answer: cstp_pb2.CheckGuardrailsResponse = invoke(prepared, metadata=metadata, timeout=60)
        if len(answer.responses) != len(params["agents"]) or any(peer.HasField("error") for peer in answer.responses):
            raise RuntimeError(f"not every peer answered: {answer}")
        note(max(peer.latency_ms for peer in answer.responses))
        return answer

    return Call(lambda: request, send)


def name_of(at: int) -> str:
    """Return the name of a peer."""
    return f"p{at}"


def peers(opened: ExitStack, folder: Path) -> Sequence[Served]:
    """Run the peers until `opened` ends."""
    return [opened.enter_context(server(folder / name_of(at), "--provider", "lexical")) for at in range(PEERS)]
