"""The methods of the contract, read from the generated code."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from cstp_grpc import gen
from cstp_grpc.gen.comments import RPC_COMMENTS
from cstp_grpc.gen.cstp.v1 import options_pb2
from cstp_grpc.gen.places import METHOD_MODULES

REPEATABLE = frozenset({descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS, descriptor_pb2.MethodOptions.IDEMPOTENT})


@dataclass(frozen=True, slots=True)
class Method:
    """One rpc and how it is called over either transport."""

    name: str
    """Its JSON-RPC name, for instance `cstp.announceIntent`."""
    service: str
    """The full name of its service, for instance `cstp.v1.CstpService`."""
    rpc: str
    """Its name within the service, for instance `AnnounceIntent`."""
    path: str
    """Its gRPC path, for instance `/cstp.v1.CstpService/AnnounceIntent`."""
    request: type[Message]
    """The class of what is sent."""
    response: type[Message]
    """The class of what is answered."""
    client_streaming: bool
    """Whether the caller sends a stream."""
    server_streaming: bool
    """Whether the server answers with a stream."""
    idempotent: bool
    """Whether it may be repeated safely."""
    permission: str
    """The permission that a caller needs, for instance `query`; `any` where a token is enough, empty where the contract
    states none."""
    public: bool
    """Whether its service is for everyone, over JSON-RPC too, and not for our own processes only."""
    description: str
    """What the contract says of it."""
    examples: tuple[str, ...]
    """Params as JSON texts that show what it is good for."""
    intent_type: str
    """The intent that its failures name over JSON-RPC, for instance `open_session`; empty where they name none."""

    @property
    def streaming(self) -> bool:
        """Whether either side streams."""
        return self.client_streaming or self.server_streaming


@functools.cache
def methods() -> Mapping[str, Method]:
    """Return every rpc of the contract by its JSON-RPC name, in the order of the contract.

    Raises ValueError where two rpcs of a package have the same name.
    """
    found: dict[str, Method] = {}
    for file in _files():
        for service in file.services_by_name.values():
            for rpc in service.methods:
                method = _describe(service, rpc)
                if method.name in found:
                    raise ValueError(f"{method.name} names both {found[method.name].path} and {method.path}")
                found[method.name] = method
    return MappingProxyType(found)


@functools.cache
def method_named(name: str) -> Method:
    """Return an rpc by its JSON-RPC name, which loads no messages but those of its service. Raises KeyError."""
    module = METHOD_MODULES.get(name)
    if module is None:
        # Code that was generated elsewhere may be beside ours.
        return methods()[name]
    file: FileDescriptor = importlib.import_module(module).DESCRIPTOR
    described = (_describe(service, rpc) for service in file.services_by_name.values() for rpc in service.methods)
    return next(method for method in described if method.name == name)


def _files() -> Iterator[FileDescriptor]:
    """Yield the descriptor of every generated file."""
    for module in pkgutil.walk_packages(gen.__path__, f"{gen.__name__}."):
        if module.name.endswith("_pb2"):
            yield importlib.import_module(module.name).DESCRIPTOR


def _describe(service: ServiceDescriptor, rpc: MethodDescriptor) -> Method:
    """Return what the contract says of one rpc."""
    options = rpc.GetOptions()
    package = service.file.package.split(".")[0]
    path = f"/{service.full_name}/{rpc.name}"
    return Method(
        name=f"{_lower_camel(package)}.{_lower_camel(rpc.name)}",
        service=service.full_name,
        rpc=rpc.name,
        path=path,
        request=message_factory.GetMessageClass(rpc.input_type),
        response=message_factory.GetMessageClass(rpc.output_type),
        client_streaming=rpc.client_streaming,
        server_streaming=rpc.server_streaming,
        idempotent=options.idempotency_level in REPEATABLE,
        permission=_permission(options.Extensions[options_pb2.permission]),
        public=not service.GetOptions().Extensions[options_pb2.internal],
        description=RPC_COMMENTS[path],
        examples=tuple(options.Extensions[options_pb2.example]),
        intent_type=options.Extensions[options_pb2.intent_type],
    )


def _permission(number: options_pb2.Permission.ValueType) -> str:
    """Return the plain word for a permission of the contract, empty for unspecified."""
    if number == options_pb2.PERMISSION_UNSPECIFIED:
        return ""
    return options_pb2.Permission.Name(number).removeprefix("PERMISSION_").lower()


def _lower_camel(name: str) -> str:
    """Return `intent_layer` as `intentLayer` and `AnnounceIntent` as `announceIntent`."""
    first, *others = name.split("_")
    return first[:1].lower() + first[1:] + "".join(part.capitalize() for part in others)
