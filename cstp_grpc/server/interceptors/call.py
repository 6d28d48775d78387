"""One call of the contract, on its way to its servicer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import grpc

from cstp_grpc.client.contract import Method

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(slots=True)
class Call:
    """A call as its metadata tells it; `agent` is set once it is known who calls."""

    method: Method
    context: Context
    request_id: str
    metadata: Mapping[str, str | bytes]
    repeated_keys: frozenset[str] = frozenset()
    """The keys that were sent more than once; `metadata` has the last value of each."""
    agent: str | None = None


class AdmissionStep(Protocol):
    """Judges a call by its metadata, before its message is read."""

    def __call__(self, call: Call) -> None:
        """Return if the call may go on. Raises CstpError."""


def find_repeated_keys(metadata: Sequence[tuple[str, str | bytes]]) -> frozenset[str]:
    """Return the keys that metadata holds more than once."""
    keys = [key for key, _ in metadata]
    if len(set(keys)) == len(keys):
        return frozenset()
    return frozenset(key for key in keys if keys.count(key) > 1)
