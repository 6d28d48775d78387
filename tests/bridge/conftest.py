from __future__ import annotations

from collections.abc import Iterator

import pytest

from cstp_grpc.platform.config import ServerSettings
from tests.bridge.a2a.raw import Core
from tests.bridge.support import Client, Scripted, bridging, serving


@pytest.fixture(scope="package")
def shared() -> Iterator[tuple[Scripted, str]]:
    scripted = Scripted()
    with serving(scripted) as target:
        yield scripted, target


@pytest.fixture
def server(shared: tuple[Scripted, str]) -> Scripted:
    """The gRPC server behind the bridge, answering as at first."""
    shared[0].reset()
    return shared[0]


@pytest.fixture
def target(shared: tuple[Scripted, str]) -> str:
    return shared[1]


@pytest.fixture(scope="package")
def shared_bridge(shared: tuple[Scripted, str]) -> Iterator[Client]:
    settings = ServerSettings(max_batch=5, max_body_bytes=20_000, timeout_seconds=15)
    with bridging(shared[1], settings) as client:
        yield client


@pytest.fixture
def bridge(shared_bridge: Client, server: Scripted) -> Client:
    """A bridge that takes batches of 5 and bodies of 20 000 bytes."""
    return shared_bridge


@pytest.fixture
def script(server: Scripted) -> Iterator[Core]:
    """The scripted server, which keeps the last task and is at announcements until it is told to go on."""
    found = Core(server)
    found.play()
    yield found
    found.go_on.set()
