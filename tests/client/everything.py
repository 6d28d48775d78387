"""The messages of everything.proto, compiled when this module is imported."""

from __future__ import annotations

import tempfile
from pathlib import Path

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from grpc_tools import protoc

WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


def compiled(proto: Path, *includes: Path) -> descriptor_pb2.FileDescriptorSet:
    """Return the descriptor of a proto file, without those that it imports."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        paths = [f"-I{path}" for path in (proto.parent, *includes, WELL_KNOWN)]
        assert protoc.main(["protoc", *paths, f"--descriptor_set_out={out}", str(proto)]) == 0, "protoc failed"
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def message_class(name: str) -> type[Message]:
    """Return the class of one of the messages."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"cstp.everything.v1.{name}"))


POOL = descriptor_pool.Default()
POOL.AddSerializedFile(compiled(Path(__file__).with_name("everything.proto")).file[0].SerializeToString())
Everything = message_class("Everything")
