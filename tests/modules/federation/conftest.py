"""Agents with peers, and one without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.harness import GrpcCaller, JsonRpcCaller, bridging, running
from tests.modules.federation.agents import agent_settings, peer
from tests.modules.federation.house import OWN, PRODUCTION, RISK, Caller, House, record


@pytest.fixture(scope="module", params=["grpc", "jsonrpc"])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    with ExitStack() as opened:
        b = opened.enter_context(running(agent_settings(folder / "b", "b", PRODUCTION)))
        c = opened.enter_context(running(agent_settings(folder / "c", "c", RISK)))
        peers = [
            peer("b", f"grpc://{b.target}", role="required"),
            peer("c", f"grpc://{c.target}", trust=0.5, categories=["architecture", "deployment"]),
        ]
        wanted = agent_settings(
            folder / "a",
            "a",
            OWN,
            peers=peers,
            default_for={"stakes": ["critical"], "categories": ["deployment"]},
        )
        a = opened.enter_context(running(wanted))
        front: Caller
        if request.param == "grpc":
            front = GrpcCaller(a.target)
        else:
            front = JsonRpcCaller(opened.enter_context(bridging(wanted, a.target)))
        made = House(front, GrpcCaller(b.target), GrpcCaller(c.target), (b.target, c.target))
        for caller, title in ((made.a, "Keep the queue small"), (made.b, "Use a queue"), (made.c, "Use a queue")):
            opened.callback(caller.close)
            record(caller, title)
        yield made


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcCaller]:
    """Serve an agent without peers, whose calls of high stakes would ask some, and which shares a part with peers."""
    wanted = agent_settings(
        tmp_path_factory.mktemp("lone"), "a", OWN, default_for={"stakes": ["critical"]}, share={"tags": ["api"]}
    )
    with running(wanted) as app:
        caller = GrpcCaller(app.target)
        yield caller
        caller.close()
