"""Calls from a hook to a server, whose requests and responses are JSON.

A hook runs before each tool call, so imports are most of its cost: over HTTP, neither gRPC nor Protobuf is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from cstp_grpc.client.json_rpc import JsonRpcConnection
from cstp_grpc.contract.errors import CstpError, InternalError, Unavailable

if TYPE_CHECKING:
    from cstp_grpc.client import CstpClient

JsonObject = Mapping[str, Any]

MAX_RESPONSE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a response. Chosen: a hundred times the largest answer to an announcement."""


class ServerCallFailed(Exception):
    """A call has no result; `reason` is a value of ErrorReason, `violations` describe the invalid fields."""

    def __init__(self, message: str, reason: str = "", violations: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.violations = violations


class ServerCalls(Protocol):
    """Calls the methods of a server by their JSON-RPC names."""

    def call(self, method: str, params: JsonObject) -> JsonObject:
        """Return the result. Raises ServerCallFailed."""


class BridgeCalls:
    """Calls a bridge over HTTP, each method once; all calls share one deadline."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        seconds: float,
        ca_file: Path | None = None,
        client_certificate: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._token = token
        self._ca_file = ca_file
        self._client_certificate = client_certificate
        self._clock = clock
        self._deadline = clock() + seconds

    def call(self, method: str, params: JsonObject) -> JsonObject:
        """Return the result. Raises ServerCallFailed."""
        with failures_of_calls():
            authorities = None if self._ca_file is None else self._ca_file.read_bytes()
            bridge = JsonRpcConnection(
                self._url,
                self._token,
                root_certificates=authorities,
                client_certificate=self._client_certificate,
                clock=self._clock,
                max_bytes=MAX_RESPONSE_BYTES,
            )
            return bridge.call(method, params, self._deadline - self._clock())


@contextmanager
def failures_of_calls() -> Iterator[None]:
    """Raise ServerCallFailed for a failed call."""
    try:
        yield
    except CstpError as error:
        # The client uses the contract's field names; `project` and `paths` have the same names in JSON.
        violations = {violation.field: violation.description for violation in error.violations}
        # A proxy may say that the server is away as well: only the server's own word, or no connection, counts.
        reason = InternalError.reason if error.inferred and isinstance(error, Unavailable) else error.reason
        raise ServerCallFailed(error.message, reason, violations) from error
    except OSError as error:
        # A certificate that cannot be read: an agent could have removed it.
        raise ServerCallFailed(str(error), InternalError.reason) from error


class ClientCalls:
    """Calls with the Python client, over gRPC or in this process; slower to start, since it imports gRPC."""

    def __init__(self, client: CstpClient) -> None:
        self._client = client

    def call(self, method: str, params: JsonObject) -> JsonObject:
        """Return the result. Raises ServerCallFailed."""
        from cstp_grpc.client.json_client import MessageJsonClient

        with failures_of_calls():
            return MessageJsonClient(self._client).send(method, params)
