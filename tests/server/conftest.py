from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from cstp_grpc.server.app import App
from tests.harness import running, settings


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """A server of the test's own."""
    with running(settings(tmp_path)) as app:
        yield app


@pytest.fixture(scope="package")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A channel to a server that tests share, in whose journal and trail they do not look."""
    with running(settings(tmp_path_factory.mktemp("shared"))) as app, grpc.insecure_channel(app.target) as channel:
        yield channel
