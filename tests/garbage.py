"""Objects that stay in memory until a garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from google.protobuf.message import Message

from bridge.jsonrpc import JsonRpcRequest
from cstp_grpc.contract.errors import CstpError


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect the garbage there is, and none within the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def count_remains() -> int:
    """Return the number of requests in memory, those of the bridge included, and of errors that hold frames."""
    found = [each for each in gc.get_objects() if isinstance(each, CstpError | JsonRpcRequest | Message)]
    return sum(map(is_request_or_raised, found))


def is_request_or_raised(found: CstpError | JsonRpcRequest | Message) -> bool:
    """Return whether an object is a request, or an error with a traceback."""
    if isinstance(found, CstpError):
        return found.__traceback__ is not None
    return isinstance(found, JsonRpcRequest) or type(found).__name__.endswith("Request")
