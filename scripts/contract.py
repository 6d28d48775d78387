"""The contract as the generators read it: messages and rpcs with their comments and annotations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    EnumValueDescriptor,
    FieldDescriptor,
    MethodDescriptor,
    ServiceDescriptor,
)
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

MESSAGES, ENUMS, SERVICES = 4, 5, 6
"""The fields of a file that hold its messages, enums and services: the beginning of a path to a comment."""


class Contract:
    """Reads a descriptor set, which must have its imports and comments in it.

    Nothing of `cstp_grpc.gen` is imported, so that it can be made anew from nothing.
    """

    def __init__(self, files: FileDescriptorSet) -> None:
        self._pool = DescriptorPool()
        self._names = [file.name for file in files.file]
        self._comments: dict[str, str] = {}
        for file in files.file:
            self._pool.Add(file)  # type: ignore[no-untyped-call]
            self._comments |= comments(file)

    def services(self) -> Iterator[ServiceDescriptor]:
        """Yield the services that are for everyone, in the order of the files."""
        for name in self._names:
            for service in self._pool.FindFileByName(name).services_by_name.values():
                if not self.option(service, "google.protobuf.ServiceOptions", "cstp.v1.internal"):
                    yield service

    def enum(self, name: str) -> EnumDescriptor:
        """Return the enum of a full name."""
        return self._pool.FindEnumTypeByName(name)

    def comment(self, described: FieldDescriptor | MethodDescriptor) -> str:
        """Return the comment before a field or an rpc, on one line."""
        return self._comments[described.full_name]

    def value_comment(self, value: EnumValueDescriptor) -> str:
        """Return the comment before a value of an enum, on one line."""
        # Not full_name: protoc puts values beside their enum, and the descriptor has no full name of its own.
        return self._comments[f"{value.type.full_name}.{value.name}"]

    def rules(self, field: FieldDescriptor) -> Any:
        """Return the validation rules of a field."""
        return self.option(field, "google.protobuf.FieldOptions", "buf.validate.field")

    def option(self, described: Any, kind: str, name: str) -> Any:
        """Return an option of the contract's own, which the library does not know."""
        options = GetMessageClass(self._pool.FindMessageTypeByName(kind))
        found = options.FromString(described.GetOptions().SerializeToString())
        return found.Extensions[self._pool.FindExtensionByName(name)]  # type: ignore[index]


def comments(file: FileDescriptorProto) -> dict[str, str]:
    """Return the comments before fields and rpcs by full name, and those before values of enums by enum and name."""
    texts = {tuple(at.path): " ".join(at.leading_comments.split()) for at in file.source_code_info.location}
    found = {}
    for place, message in enumerate(file.message_type):
        for number, field in enumerate(message.field):
            found[f"{file.package}.{message.name}.{field.name}"] = texts.get((MESSAGES, place, 2, number), "")
    for place, enum in enumerate(file.enum_type):
        for number, value in enumerate(enum.value):
            found[f"{file.package}.{enum.name}.{value.name}"] = texts.get((ENUMS, place, 2, number), "")
    for place, service in enumerate(file.service):
        for number, rpc in enumerate(service.method):
            found[f"{file.package}.{service.name}.{rpc.name}"] = texts.get((SERVICES, place, 2, number), "")
    return found


def module_of(described: Descriptor) -> tuple[str, str]:
    """Return the package and the module that hold the generated class of a message."""
    folder, _, name = described.file.name.removesuffix(".proto").rpartition("/")
    return f"cstp_grpc.gen.{folder.replace('/', '.')}", f"{name}_pb2"
