"""What is peculiar to gRPC: bytes, versions, resource names, and errors within what clients take."""

from __future__ import annotations

import itertools
import uuid
from base64 import b64encode
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb2
from a2a.types import a2a_pb2
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from bridge.a2a.errors import grpc_error, invalid_params
from bridge.a2a.grpc_server import truncate_status
from cstp_grpc.contract.errors import FieldViolation
from tests.bridge.a2a.bindings import Grpc, OldGrpc, Refusal, metadata_of, refusal_of
from tests.bridge.a2a.products import MAX_BODY_BYTES, Product
from tests.bridge.a2a.tasks import INTENT
from tests.harness import TIMEOUT, TOKENS
from tests.named_case import named_case

ALICE = ("authorization", f"Bearer {TOKENS['alice']}")
V1 = ("a2a-version", "1.0")
VERSIONS: tuple[list[tuple[str, str]], ...] = ([], [V1], [("a2a-version", "7.0")])
RPCS = [pytest.param(rpc, id=rpc.full_name) for service in (Grpc.service, OldGrpc.service) for rpc in service.methods]
NO_MESSAGE = b"\xff\xff"


@pytest.fixture
def channel(product: Product) -> grpc.Channel:
    """A channel to the first bridge."""
    binding = product.binding(Grpc)
    assert isinstance(binding, Grpc)
    return binding.channel


def called(channel: grpc.Channel, rpc: MethodDescriptor, request: bytes | Message, *metadata: tuple[str, str]) -> None:
    """Call an rpc with a message, or with bytes of any kind, and wait for its end."""
    path = f"/{rpc.containing_service.full_name}/{rpc.name}"
    content = request if isinstance(request, bytes) else request.SerializeToString()
    if rpc.server_streaming:
        stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(path)
        list(stream(content, metadata=metadata, timeout=TIMEOUT))
    else:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
        call(content, metadata=metadata, timeout=TIMEOUT)


def failed(
    channel: grpc.Channel, rpc: MethodDescriptor, request: bytes | Message, *metadata: tuple[str, str]
) -> Refusal:
    """Return how an rpc fails, which has to tell its request id in both places."""
    with pytest.raises(grpc.RpcError) as caught:
        called(channel, rpc, request, *metadata)
    refusal = refusal_of(caught.value)
    assert refusal.metadata["requestId"] == metadata_of(caught.value)["x-request-id"]
    return refusal


def of_0_3(channel: grpc.Channel, rpc: str, request: Message) -> Refusal:
    """Return how an rpc of 0.3 fails for alice."""
    return failed(channel, OldGrpc.service.methods_by_name[rpc], request, ALICE)


def message_of_0_3(*parts: old_pb2.Part) -> old_pb2.SendMessageRequest:
    """Return an intent in A2A 0.3, followed by other parts."""
    content = [old_pb2.Part(text=INTENT), *parts]
    return old_pb2.SendMessageRequest(
        request=old_pb2.Message(message_id=str(uuid.uuid4()), role=old_pb2.ROLE_USER, content=content)
    )


@pytest.mark.parametrize("rpc", RPCS)
def test_strangers_learn_only_that_they_are_strangers(channel: grpc.Channel, rpc: MethodDescriptor) -> None:
    for body, version in itertools.product((b"", NO_MESSAGE), VERSIONS):
        found = failed(channel, rpc, body, *version)
        assert (found.code, found.domain, found.reason) == ("UNAUTHENTICATED", "cstp", "AUTHENTICATION_REQUIRED")
        assert not found.fields


@pytest.mark.parametrize("rpc", RPCS)
def test_bytes_that_are_no_message_are_invalid(channel: grpc.Channel, rpc: MethodDescriptor) -> None:
    version = [V1] if rpc.containing_service is Grpc.service else []
    found = failed(channel, rpc, NO_MESSAGE, ALICE, *version)
    assert (found.code, found.domain, found.reason) == ("INVALID_ARGUMENT", "a2a-protocol.org", "INVALID_PARAMS")


def test_a_message_beyond_the_limit_is_refused(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        called(channel, Grpc.service.methods_by_name["SendMessage"], b"x" * (MAX_BODY_BYTES + 1), V1, ALICE)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_each_service_takes_its_own_version(channel: grpc.Channel) -> None:
    for own in ["1.0", "0.3"]:
        for given, meant in [
            ([], "0.3"),
            ([""], "0.3"),
            (["0.3"], "0.3"),
            (["0.3.0"], "0.3"),
            (["1.0"], "1.0"),
            (["1.0.5"], "1.0"),
            (["0.2"], None),
            (["2.0"], None),
            (["one"], None),
            (["1.0", "0.3"], None),
        ]:
            with named_case(own, given, meant):
                service, request = (
                    (Grpc.service, a2a_pb2.GetTaskRequest(id="t"))
                    if own == "1.0"
                    else (OldGrpc.service, old_pb2.GetTaskRequest(name="tasks/t"))
                )
                versions = [("a2a-version", version) for version in given]
                found = failed(channel, service.methods_by_name["GetTask"], request, ALICE, *versions)
                if own == meant:
                    assert (found.code, found.reason) == ("NOT_FOUND", "TASK_NOT_FOUND")
                else:
                    assert (found.code, found.reason) == ("FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED")
                    assert "A2A-Version" in found.message
                    assert own in found.message


def test_clients_of_0_3_know_an_error_by_its_message(channel: grpc.Channel) -> None:
    for rpc, request in (
        ("GetTask", old_pb2.GetTaskRequest(name="tasks/none")),
        ("TaskSubscription", old_pb2.TaskSubscriptionRequest(name="tasks/none")),
    ):
        assert of_0_3(channel, rpc, request).message.startswith("TaskNotFoundError: ")


@pytest.mark.parametrize("name", ["", "t", "tasks/", "tasks/x/y", "tasks/x/", "/tasks/x"])
def test_a_name_that_is_none_of_a_task_is_invalid(channel: grpc.Channel, name: str) -> None:
    for rpc, request, field in (
        ("GetTask", old_pb2.GetTaskRequest(name=name), "name"),
        ("CancelTask", old_pb2.CancelTaskRequest(name=name), "name"),
        ("TaskSubscription", old_pb2.TaskSubscriptionRequest(name=name), "name"),
        ("CreateTaskPushNotificationConfig", old_pb2.CreateTaskPushNotificationConfigRequest(parent=name), "parent"),
        ("ListTaskPushNotificationConfig", old_pb2.ListTaskPushNotificationConfigRequest(parent=name), "parent"),
        ("GetTaskPushNotificationConfig", old_pb2.GetTaskPushNotificationConfigRequest(name=name), "name"),
        ("DeleteTaskPushNotificationConfig", old_pb2.DeleteTaskPushNotificationConfigRequest(name=name), "name"),
    ):
        found = of_0_3(channel, rpc, request)
        assert (found.code, found.reason) == ("INVALID_ARGUMENT", "INVALID_PARAMS"), rpc
        assert found.fields == (field,)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({}, "INVALID_PARAMS"),
        ({"file": {"fileWithBytes": "/w=="}}, "CONTENT_TYPE_NOT_SUPPORTED"),
        ({"file": {"fileWithUri": "http://localhost/x"}}, "CONTENT_TYPE_NOT_SUPPORTED"),
        ({"data": {"data": {}}, "metadata": {"data_part_compat": True}}, "INVALID_PARAMS"),
    ],
)
def test_a_part_that_cannot_be_understood_is_invalid(channel: grpc.Channel, part: dict[str, Any], reason: str) -> None:
    request = message_of_0_3(json_format.ParseDict(part, old_pb2.Part()))
    for rpc in ("SendMessage", "SendStreamingMessage"):
        found = of_0_3(channel, rpc, request)
        assert (found.code, found.reason) == ("INVALID_ARGUMENT", reason)


def test_a_number_that_json_lacks_is_invalid_in_0_3(channel: grpc.Channel) -> None:
    request = message_of_0_3()
    request.metadata.fields["x"].number_value = float("nan")
    found = of_0_3(channel, "SendMessage", request)
    assert (found.code, found.reason) == ("INVALID_ARGUMENT", "INVALID_PARAMS")


def test_errors_are_cut_to_what_clients_take() -> None:
    long = invalid_params("ä" * 50_000, *(FieldViolation(f"field{number}", "is wrong") for number in range(5000)))
    status = truncate_status(grpc_error(long, "r-1"))
    assert len(quote(status.message)) + len(b64encode(status.SerializeToString())) < 8192
    assert status.message.startswith("ää")
    assert status.message.endswith("…")
    (only,) = status.details
    info = error_details_pb2.ErrorInfo()
    assert only.Unpack(info)
    assert info.metadata["requestId"] == "r-1"
    short = grpc_error(invalid_params("x", FieldViolation("field", "is wrong")), "r-1")
    assert truncate_status(grpc_error(invalid_params("x", FieldViolation("field", "is wrong")), "r-1")) == short
