"""The server handles every value of an enum that the contract declares, wherever a request can hold it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from cstp_grpc.contract.json_codec import from_json
from cstp_grpc.contract.methods import RpcMethod, contract_methods
from tests.harness import TIMEOUT, TOKENS, GrpcCaller, running, settings

UNEXPECTED = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
Path = tuple[FieldDescriptor, ...]


def enum_paths(kind: Descriptor, outer: tuple[Descriptor, ...] = ()) -> Iterator[Path]:
    """Yield the fields that lead to each enum of the contract within a message type."""
    for field in kind.fields:
        if field.enum_type is not None and field.enum_type.full_name.startswith("cstp."):
            yield (field,)
        elif field.message_type is not None and field.message_type not in (*outer, kind):
            yield from ((field, *rest) for rest in enum_paths(field.message_type, (*outer, kind)))


def set_enum(message: Any, path: Path, number: int) -> None:
    """Set an enum within a message; of a repeated message the first, which is added if there is none."""
    field, *rest = path
    found = getattr(message, field.name)
    if not rest:
        if field.is_repeated:
            del found[:]
            found.append(number)
        else:
            setattr(message, field.name, number)
        return
    if field.is_repeated:
        found = found[0] if found else found.add()
    found.SetInParent()
    set_enum(found, tuple(rest), number)


def requests_with_enums(method: RpcMethod) -> Iterator[tuple[str, Message]]:
    """Yield each example of a method with each declared value in the place of each enum."""
    for path in enum_paths(cast(Descriptor, method.request.DESCRIPTOR)):
        enum = path[-1].enum_type
        assert enum is not None, "the last field is an enum"
        for value in enum.values:
            for example in method.examples or ("{}",):
                request = from_json(json.loads(example), method.request)
                set_enum(request, path, value.number)
                yield f"{'.'.join(field.name for field in path)} = {value.name}", request


METHODS = {
    name: method
    for name, method in contract_methods().items()
    if not method.streaming and any(enum_paths(cast(Descriptor, method.request.DESCRIPTOR)))
}


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcCaller]:
    with running(settings(tmp_path_factory.mktemp("enums") / "data")) as app, closing(GrpcCaller(app.target)) as found:
        yield found


@pytest.mark.parametrize("name", METHODS)
def test_every_declared_value_of_an_enum_is_handled(caller: GrpcCaller, name: str) -> None:
    method = METHODS[name]
    send: grpc.UnaryUnaryMultiCallable[Message, bytes] = caller.channel.unary_unary(
        method.path, request_serializer=method.request.SerializeToString
    )
    failed = []
    for what, request in requests_with_enums(method):
        try:
            send(request, timeout=TIMEOUT, metadata=(("authorization", f"Bearer {TOKENS['alice']}"),))
        except grpc.RpcError as error:
            if error.code() in UNEXPECTED:
                failed.append(what)
    assert not failed
