"""gRPC server reflection, v1 and v1alpha, which differ in their names only."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1ALPHA: Final[str] = reflection.SERVICE_NAME
V1: Final = "grpc.reflection.v1.ServerReflection"
SERVICE_NAMES: Final = (V1, V1ALPHA)


class SymbolPool:
    """Descriptors for reflection: the part of the DescriptorPool interface that the library's servicer uses.

    Beyond the default pool it has the descriptors of reflection v1, and it finds methods and fields, which clients such
    as load generators look up: the pool itself finds only top-level symbols of a file.
    """

    def __init__(self) -> None:
        self._default = descriptor_pool.Default()
        # Not in the default pool, where it would clash with the original file if another library registers that.
        self._reflection = descriptor_pool.DescriptorPool()
        self._reflection.AddSerializedFile(serialize_v1_descriptor())

    def FindFileByName(self, file_name: str) -> FileDescriptor:  # noqa: N802
        try:
            return self._default.FindFileByName(file_name)
        except KeyError:
            return self._reflection.FindFileByName(file_name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802
        """Return the file that defines a symbol, which may be a method or a field. Raises KeyError."""
        for pool in (self._default, self._reflection):
            try:
                return pool.FindFileContainingSymbol(symbol)
            except KeyError:
                if found := find_file_of_member(pool, symbol):
                    return found
        raise KeyError(symbol)

    def FindMessageTypeByName(self, full_name: str) -> Descriptor:  # noqa: N802
        return self._default.FindMessageTypeByName(full_name)

    def FindExtensionByNumber(self, message: Descriptor, number: int) -> FieldDescriptor:  # noqa: N802
        return self._default.FindExtensionByNumber(message, number)

    def FindAllExtensions(self, message: Descriptor) -> list[FieldDescriptor]:  # noqa: N802
        return self._default.FindAllExtensions(message)


def find_file_of_member(pool: descriptor_pool.DescriptorPool, symbol: str) -> FileDescriptor | None:
    parent, _, name = symbol.rpartition(".")
    with suppress(KeyError):
        # A parent that is no service may be a message.
        service = pool.FindServiceByName(parent)
        return service.file if name in service.methods_by_name else None
    try:
        message = pool.FindMessageTypeByName(parent)
    except KeyError:
        return None
    return message.file if name in message.fields_by_name or name in message.oneofs_by_name else None


@functools.cache
def serialize_v1_descriptor() -> bytes:
    """Build the file descriptor of reflection v1 from that of v1alpha, and return it as bytes."""
    alpha = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
    text = text_format.MessageToString(alpha)
    return text_format.Parse(text.replace("v1alpha", "v1"), descriptor_pb2.FileDescriptorProto()).SerializeToString()


def build_reflection_handlers(servicer: Any) -> list[grpc.GenericRpcHandler]:
    """Return the handlers of v1 and v1alpha with the library's servicer, synchronous or not, which has no types."""
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler}) for name in SERVICE_NAMES]
