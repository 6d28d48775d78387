"""A message that asks for what its sender may not do is refused, and no task is kept of it, over every binding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from cstp_grpc.gen.cstp.v1 import tasks_pb2
from cstp_grpc.gen.cstp.v1.tasks_pb2_grpc import TaskServiceStub
from tests.bridge.a2a.bindings import BINDINGS, Binding
from tests.bridge.a2a.raw import Raw, call, saying, saying_in_0_3
from tests.bridge.a2a.talking import calling
from tests.bridge.support import Client
from tests.harness import TIMEOUT, TOKENS, Peers, peering, running, settings

MESSAGES: dict[str, Any] = {
    "intent": "Deploy",
    "record": calling("cstp.recordDecision", decision={"title": "Use it"}),
    "list": calling("cstp.listIntents"),
}
READER = (("authorization", f"Bearer {TOKENS['reader']}"),)


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Peers]]:
    wanted = settings(tmp_path_factory.mktemp("permissions"))
    with running(wanted) as app, peering(wanted, app.target) as peers:
        yield app.target, peers


def kept_tasks(target: str) -> int:
    """Return how many tasks the reader has."""
    with grpc.insecure_channel(target) as channel:
        request = tasks_pb2.ListTasksRequest()
        return TaskServiceStub(channel).ListTasks(request, metadata=READER, timeout=TIMEOUT).total


@pytest.mark.parametrize("kind", BINDINGS)
@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_missing_permission_is_an_error(
    product: tuple[str, Peers], kind: type[Binding], message: str, at_once: bool
) -> None:
    target, peers = product
    assert kind(peers).send(MESSAGES[message], at_once=at_once, who="reader").reason == "PERMISSION_DENIED"
    assert kept_tasks(target) == 0


@pytest.mark.parametrize("message", MESSAGES)
def test_a_missing_permission_is_an_error_before_any_stream(product: tuple[str, Peers], message: str) -> None:
    target, peers = product
    host, _, port = peers.url.removeprefix("http://").rpartition(":")
    raw = Raw(Client(host, int(port)))
    body = saying(MESSAGES[message])
    current = raw.post(call("SendStreamingMessage", body), who="reader")
    old = raw.post(call("message/stream", saying_in_0_3(MESSAGES[message])), who="reader", version="0.3")
    rest = raw.send("POST", "/a2a/v1/message:stream", body, who="reader")
    for answer in (current, old, rest):
        assert answer.status == 403
        assert answer.headers.get_content_subtype() != "event-stream"
    assert current.json["error"]["code"] == old.json["error"]["code"] == -31010
    assert rest.json["error"]["status"] == "PERMISSION_DENIED"
    needed = rest.json["error"]["details"][0]["metadata"]["permission"]
    assert needed in rest.json["error"]["message"]
    assert kept_tasks(target) == 0


def test_a_task_that_a_permission_is_missing_for_is_not_kept(product: tuple[str, Peers]) -> None:
    """The server decides it, so that no bridge can forget to ask."""
    target, _ = product
    task = tasks_pb2.Task(id="t", context_id="c", state=tasks_pb2.TASK_STATE_SUBMITTED, content=b"x")
    with grpc.insecure_channel(target) as channel:
        request = tasks_pb2.SaveTaskRequest(task=task, method="cstp.recordDecision")
        with pytest.raises(grpc.RpcError) as caught:
            TaskServiceStub(channel).SaveTask(request, metadata=READER, timeout=TIMEOUT)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert kept_tasks(target) == 0
