"""Thousands of connections, half-closed ones, bodies that trickle, and calls whose callers do not wait."""

from __future__ import annotations

import logging
import random
import resource
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import grpc
import pytest

from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc
from tests.bench.connections import GREETING, SETTINGS, frame
from tests.cli.serving import BOUND, Process
from tests.faults.load import forbidden_action
from tests.faults.serving import serving, write_settings
from tests.faults.usage import (
    CALL,
    RELEASED_SECONDS,
    Usage,
    a2a_target,
    address_of,
    assert_answers,
    grpc_address,
    http_address,
    http_request,
)
from tests.test_kill import METADATA
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

logger = logging.getLogger(__name__)

CONNECTIONS = 10_000
"""Half of them to the server, half to the bridge."""
RESERVED_DESCRIPTORS = 500
STORM = 8_000
"""Fewer than the server keeps until it takes them, so that none is cancelled for want of room."""
CALLERS = 8
HALF_CLOSED = 500


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    settings = write_settings(tmp_path_factory.mktemp("connections"))
    with serving(settings, "--bridge") as process:
        assert_answers(process)
        yield process
        assert process.end() == 0, process.rest()


@pytest.fixture
def usage(process: Process) -> Usage:
    return Usage(process)


def test_thousands_of_connections_keep_nobody_out(process: Process, usage: Usage) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = min(CONNECTIONS, limit - RESERVED_DESCRIPTORS)
    with ExitStack() as opened:
        for each in range(number):
            address = grpc_address(process) if each % 2 else http_address(process)
            connection = opened.enter_context(socket.create_connection(address, BOUND))
            # The bridge makes room for a new connection by ending the one that has waited longest.
            with suppress(ConnectionError):
                connection.sendall(GREETING if each % 2 else b"POST /cstp HTTP/1.1\r\nHost: x\r\n")
        assert_answers(process)
        usage.report(f"{number} connections")
    wait_until(usage.is_as_before, "the connections are released", RELEASED_SECONDS)
    usage.report("after they ended")
    assert_answers(process)


def test_connections_that_are_half_closed_are_released(process: Process, usage: Usage) -> None:
    beginnings = {
        http_address(process): (http_request(CALL), http_request(CALL, len(CALL) + 9), b"POST /cs", b""),
        **dict.fromkeys(
            (grpc_address(process), address_of(a2a_target(process))),
            (GREETING, GREETING + frame(SETTINGS, 1, 0, b""), GREETING[:9], b""),
        ),
    }
    with ExitStack() as opened:
        for each in range(HALF_CLOSED):
            for address, parts in beginnings.items():
                connection = opened.enter_context(socket.create_connection(address, BOUND))
                with suppress(ConnectionError):
                    connection.sendall(parts[each % len(parts)])
                    connection.shutdown(socket.SHUT_WR)
        assert_answers(process)
        # While the other half is still open at this end.
        wait_until(usage.is_as_before, "the connections are released", RELEASED_SECONDS)
    assert_answers(process)


def test_bodies_that_trickle_keep_nobody_waiting(process: Process, usage: Usage) -> None:
    with ExitStack() as opened:
        request = http_request(CALL, len(CALL) + HALF_CLOSED)
        trickling = []
        for _ in range(HALF_CLOSED):
            connection = opened.enter_context(socket.create_connection(http_address(process), BOUND))
            connection.sendall(request)
            trickling.append(connection)
        for _ in range(5):
            for connection in trickling:
                connection.sendall(b" ")
            assert_answers(process)
    wait_until(usage.is_as_before, "the connections are released", RELEASED_SECONDS)


def test_callers_that_do_not_wait_leave_nothing_behind(process: Process, usage: Usage) -> None:
    def storm(seed: int) -> Counter[str]:
        chance, outcomes = random.Random(seed), Counter[str]()
        request = cstp_pb2.CheckGuardrailsRequest(action=forbidden_action())
        with grpc.insecure_channel(process.value("gRPC"), [("grpc.use_local_subchannel_pool", 1)]) as channel:
            checks = cstp_pb2_grpc.CstpServiceStub(channel)
            for _ in range(STORM // CALLERS // 20):
                deadlines = [chance.uniform(0.0005, 0.02) for _ in range(20)]
                calls = [checks.CheckGuardrails.future(request, metadata=(METADATA,), timeout=at) for at in deadlines]
                abandoned = [call for call in calls if chance.random() < 0.1]
                for call in abandoned:
                    call.cancel()
                for call in calls:
                    outcomes["abandoned" if call in abandoned else outcome_of(call)] += 1
        return outcomes

    with ThreadPoolExecutor(CALLERS + 1) as threads:
        storming = [threads.submit(storm, seed) for seed in range(CALLERS)]
        answered = 0
        while not all(each.done() for each in storming):
            assert_answers(process)
            answered += 1
        outcomes = sum((each.result() for each in storming), Counter[str]())
    logger.info("%d calls with time were answered meanwhile", answered)
    logger.info("%d calls with deadlines of 0.5 to 20 ms: %s", STORM, dict(outcomes))
    usage.report("after the storm")
    assert outcomes["allowed"] == 0
    assert set(outcomes) <= {"abandoned", "blocked", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
    assert_answers(process)
    wait_until(usage.is_as_before, "the connections are released", RELEASED_SECONDS)


def outcome_of(call: Any) -> str:
    """Return the verdict of a call, or the code with which it failed."""
    try:
        return "allowed" if call.result().allowed else "blocked"
    except grpc.RpcError as error:
        return str(error.code().name)  # type: ignore[attr-defined]
    except grpc.FutureCancelledError:
        return "CANCELLED"
