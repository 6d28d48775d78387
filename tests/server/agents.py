"""Clients of the harness's agents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cstp_grpc.client import CstpClient, RetryPolicy
from cstp_grpc.server.app import App
from tests.harness import TIMEOUT, TOKENS

ONCE = RetryPolicy(attempts=1)


@contextmanager
def clients(app: App, *agents: str) -> Iterator[list[CstpClient]]:
    """Give clients of agents, none of which repeats anything."""
    opened = [CstpClient(app.target, TOKENS[agent], timeout=TIMEOUT, retries=ONCE) for agent in agents]
    try:
        yield opened
    finally:
        for client in opened:
            client.close()
