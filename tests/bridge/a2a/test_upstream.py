"""What bridges forward to the server behind them, and what they tell of its failures, over every binding."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2
from google.rpc import error_details_pb2

from cstp_grpc.gen.cstp.v1 import tasks_pb2
from tests.bridge.a2a.bindings import BINDINGS, Binding, BrokenStream, connected, sending, state_of
from tests.bridge.a2a.operation_params import PARAMS
from tests.bridge.a2a.raw import Core
from tests.bridge.a2a.refusals import assert_refused
from tests.bridge.a2a.tasks import INTENT
from tests.bridge.support import TIMEOUT, bare, fail
from tests.harness import Peers
from tests.waiting import wait_until

READS = {"GetTask": "cstp.getTask", "ListTasks": "cstp.listTasks", "GetExtendedAgentCard": "cstp.getAccess"}
"""Operations, and what they ask the server."""
TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1,b=2"}


def asked(binding: Binding, operation: str, **caller: Any) -> Any:
    """Call an operation rightly."""
    return binding.perform(operation, PARAMS[operation][0], **caller)


def reads_of(binding: Binding) -> dict[str, str]:
    return {operation: method for operation, method in READS.items() if operation in binding.operations}


# What is forwarded


def test_the_server_gets_what_identifies_and_traces_a_call(scripted: Binding, script: Core) -> None:
    script.go_on.set()
    told = {**TRACE, "x-request-id": "trace-1:a.b_c"}
    reply = scripted.send(INTENT, who="a", headers={**told, "x-other": "x"})
    assert reply.headers["x-request-id"] == "trace-1:a.b_c"
    assert {seen.method for seen in script.server.seen} == {"cstp.findTask", "cstp.announceIntent", "cstp.saveTask"}
    for seen in script.server.seen:
        found = {key: value for key, value in seen.metadata.items() if key in (*told, "authorization", "x-other")}
        assert found == {**told, "authorization": "Bearer a"}


def test_what_is_too_long_to_be_a_trace_stays_here(scripted: Binding, script: Core) -> None:
    script.go_on.set()
    assert scripted.send(INTENT, headers={"tracestate": "x" * 1025}).state == "completed"
    assert script.server.seen
    assert not [seen for seen in script.server.seen if "tracestate" in seen.metadata]


@pytest.mark.parametrize(("given", "kept"), [("r-1", True), ("no good", False), ("x" * 129, False)])
def test_a_request_id_is_kept_where_it_is_well_formed(scripted: Binding, script: Core, given: str, kept: bool) -> None:
    script.go_on.set()
    script.server.plays["cstp.getTask"] = fail(grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    for operation in ("SendMessage", "SendStreamingMessage", "GetTask"):
        found = asked(scripted, operation, headers={"x-request-id": given}).headers["x-request-id"]
        assert (found == given) is kept
        assert kept or len(found) == 32


# What is told of failures


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.INTERNAL, "INTERNAL"),
        (grpc.StatusCode.UNKNOWN, "INTERNAL"),
        (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    ],
)
def test_what_fails_inside_stays_inside(scripted: Binding, script: Core, code: grpc.StatusCode, reason: str) -> None:
    for operation, method in reads_of(scripted).items():
        script.server.plays[method] = bare(code)
        reply = asked(scripted, operation)
        assert_refused(scripted, reply, reason)
        assert "secret" not in repr(reply)
        assert "Traceback" not in repr(reply)


def test_the_limits_are_those_of_the_server(scripted: Binding, script: Core) -> None:
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    for operation, method in reads_of(scripted).items():
        script.server.plays[method] = fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED", "Too many calls", retry)
        assert assert_refused(scripted, asked(scripted, operation), "RATE_LIMITED").retry_delay == "1.500s"


def test_what_nobody_foresaw_goes_to_the_log_and_not_to_the_caller(
    scripted: Binding, script: Core, caplog: pytest.LogCaptureFixture
) -> None:
    content = a2a_pb2.Task(id="t", context_id="secret").SerializeToString()
    broken = tasks_pb2.Task(id="t", context_id="secret", state=tasks_pb2.TASK_STATE_UNSPECIFIED, content=content)
    script.server.plays["cstp.getTask"] = lambda request, context: tasks_pb2.GetTaskResponse(task=broken)
    for operation in ("GetTask", "SubscribeToTask"):
        caplog.clear()
        reply = scripted.perform(operation, {"id": "t"}, headers={"x-request-id": "a-mystery"})
        refusal = assert_refused(scripted, reply, "INTERNAL_ERROR")
        assert refusal.message.endswith(
            "Something unforeseen happened; the server's log tells more under the request id"
        )
        assert "secret" not in repr(reply)
        (record,) = [record for record in caplog.records if record.name.startswith("bridge")]
        assert record.getMessage().startswith("a-mystery ")
        assert record.exc_info


# What is told while the server works


def test_the_first_event_comes_before_the_work_is_done(scripted: Binding, script: Core) -> None:
    with scripted.open_stream("SendStreamingMessage", sending(INTENT)) as stream:
        assert state_of(stream.next()["task"]) == "working"
        assert script.begun.wait(TIMEOUT)
        script.go_on.set()
        assert [next(iter(event)) for event in stream] == ["artifactUpdate", "statusUpdate"]


def test_work_is_followed_to_its_end(scripted: Binding, script: Core) -> None:
    task_id = scripted.send(INTENT, at_once=True).task["id"]
    assert script.begun.wait(TIMEOUT)
    with scripted.open_stream("SubscribeToTask", {"id": task_id}) as stream:
        assert stream.next()["task"]["id"] == task_id
        script.go_on.set()
        assert [state_of(event["statusUpdate"]) for event in stream if "statusUpdate" in event] == ["completed"]


def test_work_is_not_canceled(scripted_peers: Peers, script: Core) -> None:
    """Over all bindings at once, since each waits for the work to end."""
    with ExitStack() as opened, ThreadPoolExecutor(len(BINDINGS)) as threads:
        bindings = [opened.enter_context(connected(kind, scripted_peers)) for kind in BINDINGS]
        task_id = bindings[0].send(INTENT, at_once=True).task["id"]
        assert script.begun.wait(TIMEOUT)
        for binding, reply in zip(bindings, threads.map(lambda each: each.cancel(task_id), bindings), strict=True):
            assert "cannot be prevented" in assert_refused(binding, reply, "TASK_NOT_CANCELABLE").message
            assert binding.get(task_id).state == "working"
        script.go_on.set()
        wait_until(lambda: bindings[0].get(task_id).state == "completed", "the task is completed")


def test_an_error_before_the_first_event_stands_alone(scripted: Binding, script: Core) -> None:
    script.server.plays["cstp.saveTask"] = bare(grpc.StatusCode.UNAVAILABLE)
    assert_refused(scripted, asked(scripted, "SendStreamingMessage"), "UNAVAILABLE")


def test_an_error_after_the_first_event_ends_the_stream(scripted: Binding, script: Core) -> None:
    with scripted.open_stream("SendStreamingMessage", sending(INTENT)) as stream:
        assert "task" in stream.next()
        assert script.begun.wait(TIMEOUT)
        script.server.plays["cstp.saveTask"] = bare(grpc.StatusCode.INTERNAL)
        script.go_on.set()
        with pytest.raises(BrokenStream, match="INTERNAL"):
            stream.next()


def test_the_work_goes_on_without_its_reader(scripted: Binding, script: Core) -> None:
    with scripted.open_stream("SendStreamingMessage", sending(INTENT)) as stream:
        stream.next()
        assert script.begun.wait(TIMEOUT)
    script.go_on.set()
    wait_until(lambda: script.kept[0].version == 2, "the task has ended")
