"""The methods of the contract, read from the generated code: permissions that they require, timeouts and retries."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from cstp_grpc import gen
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.errors import PermissionDenied
from cstp_grpc.gen.comments import RPC_COMMENTS
from cstp_grpc.gen.cstp.v1 import options_pb2
from cstp_grpc.gen.places import METHOD_MODULES, SERVICE_MODULES

REPEATABLE_LEVELS = frozenset({descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS, descriptor_pb2.MethodOptions.IDEMPOTENT})


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """An rpc of the contract and its names over gRPC and JSON-RPC."""

    name: str
    """Its JSON-RPC name, for instance `cstp.announceIntent`."""
    service: str
    """The full name of its service, for instance `cstp.v1.CstpService`."""
    rpc: str
    """Its name within the service, for instance `AnnounceIntent`."""
    path: str
    """Its gRPC path, for instance `/cstp.v1.CstpService/AnnounceIntent`."""
    request: type[Message]
    """The request's message class."""
    response: type[Message]
    """The response's message class."""
    client_streaming: bool
    """True if the client sends a stream."""
    server_streaming: bool
    """True if the server responds with a stream."""
    idempotent: bool
    """True if the call may be retried safely."""
    permission: str
    """The permission that a caller needs, for instance `query`; `any` if a valid token is enough, empty if the contract
    states none.
    """
    public: bool
    """Whether its service is exposed to all callers, over JSON-RPC too, or only to our own processes."""
    description: str
    """The comment in the contract."""
    examples: tuple[str, ...]
    """Example params as JSON texts."""
    intent_type: str
    """The intent type named in its JSON-RPC errors, for instance `open_session`; may be empty."""
    secret_response: bool = False
    """Whether its response contains a secret, which must not be stored."""
    alternative_permission: str = ""
    """Another permission that suffices; empty without one."""

    @property
    def permissions(self) -> tuple[str, ...]:
        """The permissions of which a caller needs one."""
        return (self.permission, self.alternative_permission) if self.alternative_permission else (self.permission,)

    @property
    def streaming(self) -> bool:
        return self.client_streaming or self.server_streaming


@functools.cache
def contract_methods(without: frozenset[str] = frozenset()) -> Mapping[str, RpcMethod]:
    """Return every rpc of the contract by its JSON-RPC name, in contract order.

    The services in `without`, by full name, are left out, and modules that only describe such services are not
    imported. Raises ValueError if two rpcs of a package have the same name.
    """
    found: dict[str, RpcMethod] = {}
    served = {module for service, module in SERVICE_MODULES.items() if service not in without}
    for file in _generated_files({*SERVICE_MODULES.values()} - served):
        for service in file.services_by_name.values():
            if service.full_name in without:
                continue
            for rpc in service.methods:
                method = _describe_rpc(service, rpc)
                if method.name in found:
                    raise ValueError(f"{method.name} names both {found[method.name].path} and {method.path}")
                found[method.name] = method
    return MappingProxyType(found)


@functools.cache
def method_by_name(name: str) -> RpcMethod:
    """Return an rpc by its JSON-RPC name, importing only the messages of its service. Raises KeyError."""
    module = METHOD_MODULES.get(name)
    if module is None:
        # Code of further services may have been generated into the package.
        return contract_methods()[name]
    file: FileDescriptor = importlib.import_module(module).DESCRIPTOR
    described = (_describe_rpc(service, rpc) for service in file.services_by_name.values() for rpc in service.methods)
    return next(method for method in described if method.name == name)


def is_contract_method(name: str) -> bool:
    """Return whether the contract has a method of this JSON-RPC name, served or not; imports no messages."""
    return name in METHOD_MODULES


def _generated_files(without: Collection[str]) -> Iterator[FileDescriptor]:
    """Yield the descriptor of every generated file but those of some modules."""
    for module in pkgutil.walk_packages(gen.__path__, f"{gen.__name__}."):
        if module.name.endswith("_pb2") and module.name not in without:
            yield importlib.import_module(module.name).DESCRIPTOR


def _describe_rpc(service: ServiceDescriptor, rpc: MethodDescriptor) -> RpcMethod:
    """Read the options of an rpc."""
    options = rpc.GetOptions()
    package = service.file.package.split(".")[0]
    path = f"/{service.full_name}/{rpc.name}"
    return RpcMethod(
        name=f"{_to_lower_camel(package)}.{_to_lower_camel(rpc.name)}",
        service=service.full_name,
        rpc=rpc.name,
        path=path,
        request=message_factory.GetMessageClass(rpc.input_type),
        response=message_factory.GetMessageClass(rpc.output_type),
        client_streaming=rpc.client_streaming,
        server_streaming=rpc.server_streaming,
        idempotent=options.idempotency_level in REPEATABLE_LEVELS,
        permission=_permission_word(options.Extensions[options_pb2.permission]),
        public=not service.GetOptions().Extensions[options_pb2.internal],
        description=RPC_COMMENTS[path],
        examples=tuple(options.Extensions[options_pb2.example]),
        intent_type=options.Extensions[options_pb2.intent_type],
        secret_response=options.Extensions[options_pb2.secret_response],
        alternative_permission=_permission_word(options.Extensions[options_pb2.alternative_permission]),
    )


def _permission_word(number: options_pb2.Permission.ValueType) -> str:
    """Return the plain word of a permission, or an empty string if it is unspecified."""
    if number == options_pb2.PERMISSION_UNSPECIFIED:
        return ""
    return options_pb2.Permission.Name(number).removeprefix("PERMISSION_").lower()


def _to_lower_camel(name: str) -> str:
    """Return `intent_layer` as `intentLayer` and `AnnounceIntent` as `announceIntent`."""
    first, *others = name.split("_")
    return first[:1].lower() + first[1:] + "".join(part.capitalize() for part in others)


ANY_TOKEN: Final = "any"  # noqa: S105
"""The contract's value for methods that any valid token may call."""


def required_permissions(methods: Iterable[RpcMethod]) -> Mapping[str, tuple[Permission, ...]]:
    """Return the permissions of which each method requires one, by name; () if a valid token is enough.

    The first one gives full access. Raises ValueError for a method without a permission in the contract.
    """
    return {
        method.name: () if method.permission == ANY_TOKEN else tuple(map(Permission, method.permissions))
        for method in methods
    }


def missing_permission_error(method: str, agent: str, *needed: Permission) -> PermissionDenied:
    """Return the error for a call whose agent lacks the permissions of which its method requires one."""
    return PermissionDenied(
        f"{method} needs the permission {' or '.join(needed)}, which {agent} does not have",
        metadata={"permission": needed[0]},
    )
