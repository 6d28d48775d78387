"""Clients of a server with the rules of the scenario, beside these tests or in the process that started them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cstp_grpc.client import CstpClient
from tests.agents.frameworks.scenario import TARGET_VARIABLE, TOKEN_VARIABLE


@pytest.fixture(scope="session")
def target() -> Iterator[str]:
    """Where the server is."""
    if given := os.environ.get(TARGET_VARIABLE):
        yield given
        return
    # Not where a framework is installed: there is no server.
    from tests.agents.frameworks.__main__ import serving

    with serving() as own:
        yield own


@pytest.fixture(scope="session")
def token() -> str:
    """The token of an agent that may do everything."""
    if given := os.environ.get(TOKEN_VARIABLE):
        return given
    from tests.harness import TOKENS

    return TOKENS["alice"]


@pytest.fixture(scope="session")
def client(target: str, token: str) -> Iterator[CstpClient]:
    """A client of the server."""
    with CstpClient(target, token) as client:
        yield client
