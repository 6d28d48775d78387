"""What a server and its bridge use, and whether they answer others meanwhile."""

from __future__ import annotations

import json
import logging
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc
from tests.bench.proc import memory_of
from tests.cli.serving import BOUND, Process, bridge_of
from tests.faults.load import forbidden_action
from tests.platform.telemetry.scraping import scrape
from tests.test_kill import METADATA, TOKEN

logger = logging.getLogger(__name__)

RELEASED_SECONDS = 120.0
"""Until descriptors are released: the bridge keeps a connection that waits for 75 seconds, which is its setting."""
CHECK = {"action": {"description": "Deploy to production", "context": {"affectsProduction": True}}}
CALL = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "cstp.checkGuardrails", "params": CHECK}).encode()


Address = tuple[str, int]


def address_of(target: str) -> Address:
    """Return the address of a target, which is a host and a port."""
    host, _, port = target.rpartition(":")
    return host, int(port)


def grpc_address(process: Process) -> Address:
    return address_of(process.value("gRPC"))


def http_address(process: Process) -> Address:
    parts = urlsplit(process.value("JSON-RPC"))
    return parts.hostname or "", parts.port or 0


def a2a_target(process: Process) -> str:
    """Return the host and port of A2A over gRPC."""
    return process.value("A2A").rsplit(maxsplit=1)[-1]


def http_request(body: bytes, length: int | None = None) -> bytes:
    """Return a check over JSON-RPC as bytes."""
    head = (
        f"POST /cstp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return head.encode() + body


def assert_answers(process: Process) -> None:
    """Assert that what is forbidden is blocked, over gRPC and over HTTP."""
    with grpc.insecure_channel(process.value("gRPC"), [("grpc.use_local_subchannel_pool", 1)]) as channel:
        request = cstp_pb2.CheckGuardrailsRequest(action=forbidden_action())
        stub = cstp_pb2_grpc.CstpServiceStub(channel)
        assert not stub.CheckGuardrails(request, metadata=(METADATA,), timeout=BOUND).allowed
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    posted = urllib.request.Request(process.value("JSON-RPC"), CALL, headers)
    with urllib.request.urlopen(posted, timeout=BOUND) as answer:
        assert json.load(answer)["result"]["allowed"] is False


def has_no_streams(process: Process) -> bool:
    """Return True if no call is in progress, no stream of answers is open, and nobody is counted as watching."""
    scraped = scrape(process.value("metrics"))
    open_now = ("cstp_calls_in_progress", "cstp_response_streams_open", "cstp_watchers")
    return not any(scraped.value(name) for name in open_now)


class Usage:
    """Descriptors and memory of the server and its bridge."""

    def __init__(self, process: Process) -> None:
        self._pids = {"server": process.popen.pid, "bridge": bridge_of(process.popen.pid)}
        self.descriptors = self._count()
        self.memory = self._memory()

    def report(self, what: str) -> None:
        """Log what is in use more than at first."""
        now, grown = self._count(), self.growth()
        more = {name: (now[name] - self.descriptors[name], round(grown[name])) for name in now}
        logger.info("%s: descriptors and MB more than before: %s", what, more)

    def growth(self) -> dict[str, float]:
        """Return the MB that each process has more than at first."""
        return {name: now - self.memory[name] for name, now in self._memory().items()}

    def is_as_before(self) -> bool:
        """Return True if no more than a few descriptors are open that were not at first."""
        return all(count <= self.descriptors[name] + 20 for name, count in self._count().items())

    def _count(self) -> dict[str, int]:
        return {name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in self._pids.items()}

    def _memory(self) -> dict[str, float]:
        found = {name: memory_of(pid) for name, pid in self._pids.items()}
        return {name: memory.resident for name, memory in found.items() if memory is not None}
