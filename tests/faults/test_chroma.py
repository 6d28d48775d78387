"""A Chroma server that is silent, slow, cut off, frozen or talks nonsense: searches answer, and it catches up."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import pytest

from cstp_grpc.core.decisions.search.chroma_process import ChildChromaServer
from tests.faults.load import MixedLoad
from tests.faults.proxy import FaultyProxy, Network, proxy_to
from tests.faults.serving import serving, write_settings
from tests.test_kill import verify
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = 3
FOUND_AGAIN = 150.0
"""Seconds until the index is used again: feeding it waits up to 60 for the end of a nonsensical answer."""


@pytest.fixture
def chroma(tmp_path: Path) -> Iterator[ChildChromaServer]:
    server = ChildChromaServer(tmp_path / "chroma")
    server.start(threading.Event())
    yield server
    server.stop()


@pytest.fixture
def proxy(chroma: ChildChromaServer) -> Iterator[FaultyProxy]:
    def connect() -> socket.socket:
        address = urlsplit(chroma.url or "")
        return socket.create_connection((address.hostname or "", address.port or 0))

    with proxy_to(connect) as proxy:
        yield proxy


@pytest.fixture
def settings(tmp_path: Path, proxy: FaultyProxy) -> Path:
    index = {"mode": "http", "url": f"http://127.0.0.1:{proxy.port}", "exact_limit": 5}
    return write_settings(tmp_path, index=index)


@pytest.mark.parametrize("network", [Network.SILENT, Network.CUT, Network.GARBAGE, Network.SLOW])
def test_an_index_that_cannot_be_reached_fails_no_call(settings: Path, proxy: FaultyProxy, network: Network) -> None:
    with serving(settings, environment={"CSTP_INDEX__MODE": "http"}) as process:
        load = MixedLoad(lambda: process.value("gRPC"))
        with load.running():
            for _ in range(ROUNDS):
                used = proxy.answered_chunks + 5
                wait_until(lambda used=used: proxy.answered_chunks >= used, "it is asked", FOUND_AGAIN)  # type: ignore[misc]
                with proxy.being(network):
                    load.wait_for_progress()
        assert load.failed.counts == {}
        with grpc.insecure_channel(process.value("gRPC")) as channel:
            verify(channel, load.done)
        assert process.end() == 0, process.rest()
    load.assert_safe()


def test_an_index_that_is_frozen_fails_no_call(settings: Path, chroma: ChildChromaServer) -> None:
    assert chroma.pid is not None
    with serving(settings, environment={"CSTP_INDEX__MODE": "http"}) as process:
        load = MixedLoad(lambda: process.value("gRPC"))
        with load.running():
            for _ in range(ROUNDS):
                load.wait_for_progress()
                os.kill(chroma.pid, signal.SIGSTOP)
                try:
                    load.wait_for_progress()
                finally:
                    os.kill(chroma.pid, signal.SIGCONT)
        assert load.failed.counts == {}
        assert process.end() == 0, process.rest()
    load.assert_safe()
