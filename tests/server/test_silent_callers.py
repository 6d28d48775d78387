"""Callers that begin calls and send nothing, or never end: they keep nobody else waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import cstp_pb2_grpc, journal_pb2, journal_pb2_grpc
from cstp_grpc.server.app import App
from cstp_grpc.server.open_services import MAX_WAITING_CALLS
from tests.harness import TIMEOUT, decoded, running, settings
from tests.server.open_calls import ALICE, BOB, CHECK, REFLECTION, reflect, silent_calls
from tests.waiting import wait_until


def test_open_streams_keep_nobody_from_calling(tmp_path: Path) -> None:
    release = threading.Event()

    def slow() -> Iterator[journal_pb2.ImportDecisionsRequest]:
        release.wait(TIMEOUT)
        yield from ()

    with running(settings(tmp_path)) as app, grpc.insecure_channel(app.target) as channel:
        stub = journal_pb2_grpc.JournalServiceStub(channel)
        streams = [stub.ImportDecisions.future(slow(), metadata=ALICE, timeout=TIMEOUT) for _ in range(100)]
        answer = cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails(CHECK, metadata=ALICE, timeout=TIMEOUT)
        release.set()
        assert answer.evaluated > 0
        assert {len(stream.result().results) for stream in streams} == {0}


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer of-somebody-else"),)], ids=["none", "unknown"])
@pytest.mark.parametrize("method", ["cstp.getAccess", "cstp.checkGuardrails", "cstp.importDecisions"])
def test_strangers_are_refused_before_they_send_anything(
    app: App, channel: grpc.Channel, method: str, metadata: Sequence[tuple[str, str]]
) -> None:
    with silent_calls(app.target, contract_methods()[method].path, (*metadata, ("x-request-id", "r-1"))) as calls:
        answers = [decoded(call.exception(TIMEOUT)) for call in calls]
        assert cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails(CHECK, metadata=ALICE, timeout=TIMEOUT).allowed
    assert {answer.reason for answer in answers} == {"AUTHENTICATION_REQUIRED"}
    assert all(answer.data == {"requestId": "r-1"} for answer in answers)


@pytest.mark.parametrize("method", ["cstp.getAccess", "cstp.importDecisions"])
def test_a_message_that_does_not_come_in_time_ends_its_call(tmp_path: Path, method: str) -> None:
    hurried = settings(tmp_path, grpc={"message_seconds": 0.2})
    with running(hurried) as app, silent_calls(app.target, contract_methods()[method].path, ALICE, 3) as calls:
        ended = [decoded(call.exception(TIMEOUT)) for call in calls]
    assert {(each.reason, each.message) for each in ended} == {("DEADLINE_EXCEEDED", "No message arrived within 0.2 s")}


@pytest.mark.parametrize(
    "method", ["cstp.checkGuardrails", "cstp.importDecisions", pytest.param("cstp.getAccess", marks=pytest.mark.slow)]
)
def test_callers_that_send_nothing_keep_nobody_else_waiting(tmp_path: Path, method: str) -> None:
    patient = settings(tmp_path, grpc={"message_seconds": 10 * TIMEOUT, "max_calls_per_agent": 100})
    record = journal_pb2.ImportDecisionsRequest(source="a", decision=journal_pb2.DecisionContent(title="A"))
    with running(patient) as app, silent_calls(app.target, contract_methods()[method].path, BOB, 300) as calls:
        wait_until(lambda: sum(call.done() for call in calls) == 200, "those beyond the limit are refused")
        refused = [decoded(call.exception()) for call in calls if call.done()]
        assert {(each.reason, "the limit is 100" in each.message) for each in refused} == {("RATE_LIMITED", True)}
        with grpc.insecure_channel(app.target) as channel:
            assert (
                cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails(CHECK, metadata=ALICE, timeout=TIMEOUT).allowed
            )
            stub = journal_pb2_grpc.JournalServiceStub(channel)
            assert len(stub.ImportDecisions(iter([record]), metadata=ALICE, timeout=TIMEOUT).results) == 1
        assert sum(call.done() for call in calls) == 200


def test_calls_that_ended_make_room(tmp_path: Path) -> None:
    narrow = settings(tmp_path, grpc={"message_seconds": 10 * TIMEOUT, "max_calls": 2})
    path = contract_methods()["cstp.getAccess"].path
    with running(narrow) as app, grpc.insecure_channel(app.target) as channel:
        check = cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails

        def is_let_in() -> bool:
            error = check.future(CHECK, metadata=ALICE, timeout=TIMEOUT).exception()
            return error is None or decoded(error).reason != "RATE_LIMITED"

        with silent_calls(app.target, path, BOB, 3) as calls:
            wait_until(lambda: any(call.done() for call in calls), "there is no room")
            assert not is_let_in()
        wait_until(is_let_in, "there is room")


@pytest.mark.parametrize("rpc", ["Check", "Watch"])
def test_strangers_that_ask_for_health_and_send_nothing_keep_nobody_from_it(tmp_path: Path, rpc: str) -> None:
    patient = settings(tmp_path, grpc={"message_seconds": 10 * TIMEOUT})
    with (
        running(patient) as app,
        silent_calls(app.target, f"/grpc.health.v1.Health/{rpc}", count=MAX_WAITING_CALLS + 44) as calls,
        grpc.insecure_channel(app.target) as channel,
    ):
        wait_until(lambda: sum(call.done() for call in calls) >= 44, "those who waited longest are ended")
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert {call.exception().code() for call in calls if call.done()} == {grpc.StatusCode.DEADLINE_EXCEEDED}


def test_strangers_that_ask_for_reflection_and_send_nothing_keep_nobody_from_it(app: App) -> None:
    with (
        silent_calls(app.target, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", count=80),
        grpc.insecure_channel(app.target) as channel,
    ):
        shown = reflect(channel, REFLECTION[0], "cstp.v1.CstpService").file_descriptor_response
        assert shown.file_descriptor_proto
