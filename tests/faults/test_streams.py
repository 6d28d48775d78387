"""Streams whose callers send nothing, half-close, leave, vanish or do not read: others are answered meanwhile."""

from __future__ import annotations

import json
import logging
import socket
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2
from google.protobuf import json_format

from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import journal_pb2, journal_pb2_grpc
from tests.bench.connections import (
    ACK,
    DATA,
    END_STREAM,
    FRAME_HEADER,
    GREETING,
    SETTINGS,
    beginning_of_call,
    frame,
)
from tests.bridge.a2a.bindings import sending
from tests.bridge.a2a.tasks import INTENT
from tests.cli.serving import BOUND, Process
from tests.faults.grpc_inputs import A2A_METADATA, Metadata, create_tasks
from tests.faults.serving import serving, write_settings
from tests.faults.usage import (
    RELEASED_SECONDS,
    Address,
    Usage,
    a2a_target,
    address_of,
    assert_answers,
    grpc_address,
    has_no_streams,
    http_address,
)
from tests.platform.telemetry.scraping import scrape
from tests.test_kill import METADATA, TOKEN
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

logger = logging.getLogger(__name__)

CALLERS = 5
"""How many begin each call in each way."""
VANISHING_CALLERS = 15
"""How many begin each call that lasts: more descriptors than may be open for other reasons, on the bridge too."""
WATCHES = ("cstp.watchDecisions", "cstp.watchIntents", "cstp.watchApprovals", "liaison.watchEvents")
METHODS = (*WATCHES, "cstp.exportDecisions", "cstp.importDecisions", "cstp.checkGuardrails")
EVENT_PATHS = ("/decisions/events", "/intents/events", "/approvals/events")
WATCHERS = {"max_watchers": 256, "watchers_per_agent": 256}
MISSING_INPUTS = {"affectsProduction": True}
"""With them alone a task waits for input, and may be subscribed to for a day."""
EXPORTS = 200
"""Exports that one agent opens and does not read, which is more than it may have."""
MOST_MEGABYTES = 100.0
DECISIONS = 48
CONTEXT = "why " * 40_000


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    settings = write_settings(
        tmp_path_factory.mktemp("streams"),
        metrics={"port": 0},
        storage=WATCHERS,
        liaison={**WATCHERS, "pillars": {"content": {"agent": "tester"}}},
    )
    with serving(settings, "--bridge") as process:
        assert_answers(process)
        yield process
        assert process.end() == 0, process.rest()


@pytest.fixture(scope="module")
def waiting_task(process: Process) -> str:
    """The id of a task that waits for input."""
    (task_id,) = create_tasks(a2a_target(process), 1, MISSING_INPUTS)
    return task_id


@pytest.fixture
def usage(process: Process, waiting_task: str) -> Usage:
    return Usage(process)


@dataclass(frozen=True)
class BegunCall:
    """What a caller sends of a call over gRPC, behind the greeting of its connection."""

    address: Address
    content: bytes
    lasts: bool
    """Whether it is complete and is answered until its caller ends it."""


def beginnings(address: Address, path: str, message: bytes, metadata: Metadata, *, lasts: bool) -> Iterator[BegunCall]:
    """Yield ways to begin a call: its message is missing, incomplete or complete, and the call half-closed or not."""
    framed = b"\0" + len(message).to_bytes(4, "big") + message
    begun, ended = (
        beginning_of_call(address[1], path, metadata, ended=ended).removeprefix(GREETING) for ended in (False, True)
    )
    yield BegunCall(address, begun, lasts=False)
    yield BegunCall(address, ended, lasts=False)
    for flags in (0, END_STREAM):
        yield BegunCall(address, begun + frame(DATA, flags, 1, framed[:3]), lasts=False)
        yield BegunCall(address, begun + frame(DATA, flags, 1, framed), lasts)


def begin_grpc(call: BegunCall) -> socket.socket:
    """Begin a call on a connection of its own, whose caller answers nothing after the first settings."""
    connection = socket.create_connection(call.address, BOUND)
    connection.sendall(GREETING)
    assert connection.recv(FRAME_HEADER)[3] == SETTINGS
    connection.sendall(frame(SETTINGS, ACK, 0, b"") + call.content)
    return connection


def begin_http(address: Address, method: str, path: str, body: bytes = b"") -> socket.socket:
    """Begin to read events over HTTP."""
    connection = socket.create_connection(address, BOUND)
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nA2A-Version: 1.0\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
    return connection


def grpc_calls(process: Process, task_id: str) -> Iterator[BegunCall]:
    """Yield each call in each way: of the contract, and of A2A on the bridge."""
    for name in METHODS:
        method = contract_methods()[name]
        lasts = name in WATCHES
        yield from beginnings(grpc_address(process), method.path, b"", (METADATA,), lasts=lasts)
    a2a = {
        "SubscribeToTask": a2a_pb2.SubscribeToTaskRequest(id=task_id),
        "SendStreamingMessage": json_format.ParseDict(sending(INTENT), a2a_pb2.SendMessageRequest()),
    }
    for operation, request in a2a.items():
        path, lasts = f"/lf.a2a.v1.A2AService/{operation}", operation == "SubscribeToTask"
        address = address_of(a2a_target(process))
        yield from beginnings(address, path, request.SerializeToString(), A2A_METADATA, lasts=lasts)


@contextmanager
def opened_calls(process: Process, calls: Iterable[BegunCall], callers: int) -> Iterator[Sequence[socket.socket]]:
    """Begin calls, wait until all who may watch do, and keep their connections open for the length of a block."""
    with ExitStack() as opened:
        connections = [opened.enter_context(begin_grpc(call)) for call in calls for _ in range(callers)]
        watching = 2 * callers * len(WATCHES)
        wait_until(lambda: scrape(process.value("metrics")).value("cstp_watchers") >= watching, "all watch")
        yield connections


def wait_until_free(process: Process, usage: Usage) -> None:
    """Wait until nothing is left of the streams: neither calls, watchers nor descriptors."""
    wait_until(lambda: has_no_streams(process), "no stream is open", RELEASED_SECONDS)
    wait_until(usage.is_as_before, "the connections are released", RELEASED_SECONDS)


def close(connection: socket.socket) -> None:
    """End a connection."""
    connection.close()


def reset(connection: socket.socket) -> None:
    """End a connection by a reset, as the system does for a caller that was killed and had not read all."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def half_close(connection: socket.socket) -> None:
    """End what is sent, and keep reading open."""
    connection.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("leave", [close, reset, half_close])
def test_callers_that_leave_end_their_streams(process: Process, usage: Usage, waiting_task: str, leave: Any) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": waiting_task}}
    with ExitStack() as opened, opened_calls(process, grpc_calls(process, waiting_task), CALLERS) as connections:
        events = [begin_http(http_address(process), "GET", path) for path in EVENT_PATHS for _ in range(CALLERS)]
        events += [begin_http(http_address(process), "POST", "/a2a", json.dumps(body).encode()) for _ in range(CALLERS)]
        for connection in events:
            opened.enter_context(connection)
        assert_answers(process)
        usage.report(f"{len(connections)} calls and {len(events)} streams of events")
        for connection in (*connections, *events):
            leave(connection)
        wait_until_free(process, usage)
    assert_answers(process)


def test_callers_that_vanish_are_noticed(process: Process, usage: Usage, waiting_task: str) -> None:
    lasting = (call for call in grpc_calls(process, waiting_task) if call.lasts)
    # The connections stay open at this end, and nothing answers the pings that arrive.
    with opened_calls(process, lasting, VANISHING_CALLERS) as connections:
        assert_answers(process)
        usage.report(f"{len(connections)} streams whose callers vanished")
        wait_until_free(process, usage)
    assert_answers(process)


def test_exports_that_nobody_reads_keep_nobody_waiting(process: Process, usage: Usage) -> None:
    with grpc.insecure_channel(process.value("gRPC"), [("grpc.use_local_subchannel_pool", 1)]) as channel:
        journal = journal_pb2_grpc.JournalServiceStub(channel)
        records = [
            journal_pb2.ImportDecisionsRequest(
                source=f"unread-{number}", decision=journal_pb2.DecisionContent(title=str(number), context=CONTEXT)
            )
            for number in range(DECISIONS)
        ]
        journal.ImportDecisions(iter(records), metadata=(METADATA,), timeout=BOUND)
        before = Usage(process)
        request = journal_pb2.ExportDecisionsRequest()
        exports = [journal.ExportDecisions(request, metadata=(METADATA,)) for _ in range(EXPORTS)]
        outcomes = Counter(outcome_of_first(export) for export in exports)
        assert_answers(process)
        before.report(f"{EXPORTS} exports that nobody reads: {dict(outcomes)}")
        assert outcomes.keys() == {"OK", "RESOURCE_EXHAUSTED"}
        assert before.growth()["server"] < MOST_MEGABYTES
        for export in exports:
            export.cancel()
        wait_until_free(process, usage)
    assert_answers(process)


def outcome_of_first(answers: Any) -> str:
    """Read the first answer of a stream and return OK, or the code with which the call failed."""
    try:
        next(answers)
    except grpc.RpcError as error:
        return str(error.code().name)  # type: ignore[attr-defined]
    return "OK"
