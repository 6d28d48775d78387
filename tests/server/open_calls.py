"""Calls of a server by its stubs: reflection, and calls that never send their message."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection_pb2

from cstp_grpc.gen.cstp.v1 import cstp_pb2
from tests.harness import TIMEOUT, TOKENS

ALICE = (("authorization", f"Bearer {TOKENS['alice']}"),)
BOB = (("authorization", f"Bearer {TOKENS['bob']}"),)
CHECK = cstp_pb2.CheckGuardrailsRequest(action=cstp_pb2.Action(description="deploy"))
REFLECTION = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"]


def reflect(channel: grpc.Channel, version: str, symbol: str) -> reflection_pb2.ServerReflectionResponse:
    call = channel.stream_stream(
        f"/{version}/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
    (answer,) = call(iter([asked]), timeout=TIMEOUT)
    return answer


@contextmanager
def silent_calls(
    target: str, path: str, metadata: tuple[tuple[str, str], ...] = (), count: int = 20
) -> Iterator[list[Any]]:
    """Keep calls open, as long as the block lasts, that never send their message; each is a call and a future."""
    release = threading.Event()

    def nothing() -> Iterator[bytes]:
        release.wait(TIMEOUT)
        yield from ()

    with grpc.insecure_channel(target) as channel:
        begin: grpc.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(path)
        calls = [begin.future(nothing(), metadata=metadata, timeout=10 * TIMEOUT) for _ in range(count)]
        yield calls
        release.set()
        for call in calls:
            call.cancel()
