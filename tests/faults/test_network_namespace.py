"""A network namespace whose link is taken down: packets vanish, and TCP sends them again.

In it is a PostgreSQL, or somebody who reads events.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc
from tests.cli.serving import Process
from tests.databases import PostgresMissing, postgres_server
from tests.faults.load import forbidden_action
from tests.faults.postgres_load import loaded
from tests.faults.serving import serving, write_settings
from tests.platform.telemetry.scraping import scrape
from tests.test_kill import METADATA, TOKEN
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DATABASE = "journal"
NEAR, FAR = "198.51.100.1", "198.51.100.2"
"""Both ends of the link, of a range that RFC 5737 keeps for examples."""
PREFIX = "30"
WRITE_SECONDS = 2
CALL_SECONDS = 10.0
ENDED_SECONDS = 60.0
"""Until the system gives up connections whose packets nobody acknowledges, which takes it 25 seconds."""
VANISHED_SECONDS = 200.0
"""Until a reader of events that vanished is given up: 120 seconds after the first ping that nobody acknowledges."""
ESTABLISHED = "01"
READER = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": f"Bearer {sys.argv[2]}"})
with urllib.request.urlopen(request) as events:
    for line in events:
        print(line.decode(), end="", flush=True)
"""
"""Prints the events of a URL, for a token."""


def run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@dataclass(frozen=True)
class Link:
    """A pair of virtual interfaces, one end of which is in a namespace of its own."""

    name: str

    @contextmanager
    def being_down(self) -> Iterator[None]:
        """Have packets in both directions vanish for the length of a block."""
        run_ip("-n", self.name, "link", "set", "far", "down")
        try:
            yield
        finally:
            run_ip("-n", self.name, "link", "set", "far", "up")

    @contextmanager
    def answering_nothing(self) -> Iterator[None]:
        """Have packets from the namespace vanish for the length of a block, while the link is up at the other end."""
        route = ("blackhole", f"{NEAR}/32")
        run_ip("-n", self.name, "route", "add", *route)
        try:
            yield
        finally:
            run_ip("-n", self.name, "route", "delete", *route)


@pytest.fixture
def link() -> Iterator[Link]:
    if shutil.which("ip") is None:
        pytest.skip("network namespaces are made with ip, which is not installed")
    name, near = f"cstp{os.getpid()}", f"cstp{os.getpid()}"
    try:
        run_ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.strip()}")
    try:
        run_ip("link", "add", near, "type", "veth", "peer", "name", "far", "netns", name)
        run_ip("address", "add", f"{NEAR}/{PREFIX}", "dev", near)
        run_ip("link", "set", near, "up")
        run_ip("-n", name, "address", "add", f"{FAR}/{PREFIX}", "dev", "far")
        run_ip("-n", name, "link", "set", "far", "up")
        yield Link(name)
    finally:
        run_ip("netns", "delete", name)


@pytest.fixture
def settings(tmp_path: Path, link: Link) -> Iterator[Path]:
    try:
        within = ("ip", "netns", "exec", link.name)
        with postgres_server(f"listen_addresses={FAR}", trusted=f"{NEAR}/32", wrapper=within) as server:
            server.create(DATABASE, migrated=True)
            url = f"postgresql://postgres@{FAR}/{DATABASE}"
            yield write_settings(tmp_path, storage={"url": url, "write_timeout_seconds": WRITE_SECONDS})
    except PostgresMissing as missing:
        pytest.skip(str(missing))


def test_a_database_behind_a_dead_link_loses_nothing_and_is_found_again(settings: Path, link: Link) -> None:
    with loaded(settings) as (process, load):
        with link.being_down():
            load.wait_for_failures()
            with grpc.insecure_channel(process.value("gRPC"), [("grpc.use_local_subchannel_pool", 1)]) as channel:
                assert_refused_in_time(channel)
                answer = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS
                )
                assert answer.status != health_pb2.HealthCheckResponse.UNKNOWN
        load.wait_for_progress()
        before = connections_to(process.popen.pid)
        with link.being_down():
            wait_until(lambda: not before & connections_to(process.popen.pid), "the connections end", ENDED_SECONDS)
        load.wait_for_progress()


def test_a_reader_of_events_that_vanished_watches_no_more(tmp_path: Path, link: Link) -> None:
    settings = write_settings(tmp_path, metrics={"port": 0}, server={"host": NEAR})
    with serving(settings, "--bridge", "--insecure") as process:
        events = process.value("JSON-RPC").replace("/cstp", "/decisions/events")
        within = ("ip", "netns", "exec", link.name, sys.executable, "-c", READER, events, TOKEN)
        with subprocess.Popen(within, stdout=subprocess.PIPE) as reader:
            try:
                assert reader.stdout is not None
                assert reader.stdout.readline().startswith(b"id: ")
                assert watchers_of(process) == 1
                with link.answering_nothing():
                    wait_until(lambda: watchers_of(process) == 0, "nobody watches", VANISHED_SECONDS)
            finally:
                reader.kill()


def watchers_of(process: Process) -> float:
    """Return how many streams of changes are open."""
    return scrape(process.value("metrics")).value("cstp_watchers")


def assert_refused_in_time(channel: grpc.Channel) -> None:
    """Assert that a check that cannot be recorded is refused by the server, before the caller's deadline ends it."""
    request = cstp_pb2.CheckGuardrailsRequest(action=forbidden_action())
    with pytest.raises(grpc.RpcError) as caught:
        cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails(request, metadata=(METADATA,), timeout=CALL_SECONDS)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


def connections_to(pid: int) -> set[str]:
    """Return the local addresses of the connections to the database, as a process's namespace lists them."""
    address = struct.pack("<I", struct.unpack(">I", socket.inet_aton(FAR))[0]).hex().upper()
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[2].startswith(f"{address}:") and row[3] == ESTABLISHED}
