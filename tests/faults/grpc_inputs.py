"""Generated inputs over gRPC: the methods of the contract and of A2A, and what became of a call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from a2a.types import a2a_pb2
from google.protobuf import json_format, message_factory
from google.protobuf.message import Message

from cstp_grpc.contract.methods import contract_methods
from tests.bridge.a2a.bindings import Grpc, OldGrpc, sending
from tests.bridge.a2a.operation_params import PARAMS
from tests.bridge.a2a.raw import URI
from tests.bridge.a2a.tasks import INTENT
from tests.bridge.a2a.v0_3_shapes import to_grpc_params
from tests.cli.serving import BOUND
from tests.faults.contract_inputs import InputGenerator, serialized_examples
from tests.faults.load import reveals_internals
from tests.test_kill import METADATA

Metadata = tuple[tuple[str, str], ...]

STREAM_SECONDS = 0.05
"""The deadline of a call that is answered with a stream, which may never end."""
A2A_METADATA: Metadata = (METADATA, ("a2a-version", "1.0"))
ANSWERS = (0, 1, 2, 20)
"""How many answers of a stream are read at most before its call is cancelled."""
MESSAGES = (0, 1, 3, 150)
"""How many messages are sent to a method that takes a stream; of imports, 100 are stored together."""
OWN_ERRORS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
VERSIONS = ("0.3", "1.0", "1", "9.9", "1.0, 0.3", "x" * 200)
UNREACHABLE_URL = "http://127.0.0.1:9/a2a"
"""Where notifications of tasks are sent: to this machine, on a port that nobody listens on."""


@dataclass(frozen=True)
class GrpcMethod:
    """A method over gRPC, with examples of its requests."""

    path: str
    request: type[Message]
    examples: tuple[bytes, ...]
    client_streaming: bool = False
    server_streaming: bool = False
    metadata: tuple[Metadata, ...] = ((METADATA,),)
    """What calls are sent with, one of these each."""

    @property
    def is_streaming(self) -> bool:
        """Whether the caller or the server sends a stream."""
        return self.client_streaming or self.server_streaming


def contract_grpc_methods() -> list[GrpcMethod]:
    """Return the public methods of the contract."""
    return [
        GrpcMethod(
            method.path,
            method.request,
            serialized_examples(method),
            method.client_streaming,
            method.server_streaming,
        )
        for method in contract_methods().values()
        if method.public
    ]


def a2a_grpc_methods(task_ids: Sequence[str]) -> list[GrpcMethod]:
    """Return the operations of A2A in both versions, with examples that name existing tasks and one that is none."""
    return [
        GrpcMethod(
            f"/{binding.service.full_name}/{rpc.name}",
            message_factory.GetMessageClass(rpc.input_type),
            tuple(a2a_examples(binding, operation, task_ids)),
            server_streaming=rpc.server_streaming,
            metadata=a2a_metadata(binding),
        )
        for binding in (Grpc, OldGrpc)
        for operation in binding.operations
        for rpc in (binding.service.methods_by_name[binding.rpcs[operation]],)
    ]


def a2a_metadata(binding: type[Grpc]) -> tuple[Metadata, ...]:
    """Return what calls of A2A are sent with: in most cases what is right for the version."""
    right = (METADATA, ("a2a-version", binding.named_version)) if binding.named_version else (METADATA,)
    wrong = [(METADATA, ("a2a-version", version)) for version in VERSIONS]
    return (*(right,) * 8 * len(VERSIONS), (*right, ("a2a-extensions", URI)), *wrong)


def a2a_examples(binding: type[Grpc], operation: str, task_ids: Sequence[str]) -> Iterator[bytes]:
    """Yield serialized requests of an operation."""
    request = message_factory.GetMessageClass(binding.service.methods_by_name[binding.rpcs[operation]].input_type)
    for params in PARAMS[operation]:
        text = json.dumps(params).replace("https://x.example", UNREACHABLE_URL)
        for task_id in ("none", *task_ids):
            named = json.loads(text.replace('"none"', json.dumps(task_id)))
            if not named:
                yield b""
                continue
            shaped = to_grpc_params(operation, named) if binding is OldGrpc else named
            yield json_format.ParseDict(shaped, request()).SerializeToString()


def create_tasks(target: str, count: int, *parts: Any) -> list[str]:
    """Have tasks made by A2A over gRPC and return their ids; `parts` are further ones of their messages."""
    rpc = Grpc.service.methods_by_name["SendMessage"]
    with grpc.insecure_channel(target) as channel:
        send: Any = channel.unary_unary(
            f"/{Grpc.service.full_name}/{rpc.name}",
            a2a_pb2.SendMessageRequest.SerializeToString,
            a2a_pb2.SendMessageResponse.FromString,
        )
        messages = (sending(INTENT, *parts) for _ in range(count))
        requests = [json_format.ParseDict(message, a2a_pb2.SendMessageRequest()) for message in messages]
        return [send(request, metadata=A2A_METADATA, timeout=BOUND).task.id for request in requests]


def call_generated(channel: grpc.Channel, method: GrpcMethod, generator: InputGenerator) -> str:
    """Call a method with a generated request and return the code of the answer, marked WRONG if it must not be."""
    count = generator.random.choice(MESSAGES) if method.client_streaming else 1
    contents = [generator.serialized(method.request, method.examples) for _ in range(count)]
    metadata, most = generator.random.choice(method.metadata), generator.random.choice(ANSWERS)
    try:
        return call_with_bytes(channel, method, metadata, contents, most)
    except grpc.RpcError as failed:
        error: Any = failed
        code, details = error.code(), error.details() or ""
        if code in OWN_ERRORS or reveals_internals(details):
            return f"WRONG {method.path} {code.name} {details} {contents!r}"
        return str(code.name)


def call_with_bytes(
    channel: grpc.Channel, method: GrpcMethod, metadata: Metadata, contents: Sequence[bytes], most: int
) -> str:
    """Call a method with messages; read `most` answers of a stream, and cancel the call. Raises grpc.RpcError."""
    if method.server_streaming:
        streams: Any = channel.unary_stream(method.path)
        answers = streams(contents[0], metadata=metadata, timeout=STREAM_SECONDS)
        read = sum(1 for _ in zip(range(most), answers, strict=False))
        answers.cancel()
        return f"READ {read}"
    if method.client_streaming:
        takes_stream: Any = channel.stream_unary(method.path)
        call = takes_stream.future(iter(contents), metadata=metadata, timeout=BOUND)
        if not most:
            call.cancel()
            return "GIVEN UP"
        call.result()
    else:
        takes_one: Any = channel.unary_unary(method.path)
        takes_one(contents[0], metadata=metadata, timeout=BOUND)
    return "OK"
