"""Calls from a hook to a server: over HTTP with the standard library alone, otherwise with the Python client.

A hook runs before each tool call, so imports are most of its cost: over HTTP, neither gRPC nor Protobuf nor an HTTP
library is loaded, and requests and responses are JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from cstp_grpc.client.http_client import HttpClient, HttpResponse, ResponseTooLarge
from cstp_grpc.client.http_exchange import HttpProtocolError

if TYPE_CHECKING:
    from cstp_grpc.client import CstpClient

JsonObject = Mapping[str, Any]

ENDPOINT_PATH: Final = "/cstp"
"""The path of JSON-RPC on a bridge."""
MAX_RESPONSE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a response. Chosen: a hundred times the largest answer to an announcement."""
CALL_ID: Final = 1
"""The id of the only call of a connection."""


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
    """Calls a bridge over HTTP; all calls share one deadline."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        seconds: float,
        ca_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._token = token
        self._ca_file = ca_file
        self._clock = clock
        self._deadline = clock() + seconds

    def call(self, method: str, params: JsonObject) -> JsonObject:
        """Return the result. Raises ServerCallFailed."""
        body = json.dumps({"jsonrpc": "2.0", "id": CALL_ID, "method": method, "params": params}).encode()
        try:
            response = self._post(body)
        except (OSError, HttpProtocolError, ValueError) as error:
            is_large = isinstance(error, ResponseTooLarge)
            why = f"the answer is larger than {MAX_RESPONSE_BYTES} bytes" if is_large else str(error)
            why = why or type(error).__name__
            raise ServerCallFailed(f"no server answers at {self._url}: {why}", "UNAVAILABLE") from error
        return read_result(response.body, response.status, self._url)

    def _post(self, body: bytes) -> HttpResponse:
        """Return the response. Raises OSError, HttpProtocolError and ValueError."""
        url = urlsplit(self._url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("the address is not of the form http://HOST:PORT")
        path = url.path.rstrip("/")
        headers = {"content-type": "application/json", "accept": "application/json"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        tls = None
        if url.scheme == "https":
            import ssl

            tls = ssl.create_default_context(cafile=None if self._ca_file is None else str(self._ca_file))
        client = HttpClient(tls, max_bytes=MAX_RESPONSE_BYTES, clock=self._clock)
        target = url._replace(path=path if path.endswith(ENDPOINT_PATH) else path + ENDPOINT_PATH)
        return client.fetch("POST", target, headers, body, self._deadline - self._clock())


def read_result(content: bytes, status: int, where: str) -> JsonObject:
    """Return the result in a JSON-RPC response. Raises ServerCallFailed."""
    try:
        response = json.loads(content)
    except (ValueError, RecursionError):
        response = None
    if not isinstance(response, dict) or response.get("jsonrpc") != "2.0":
        raise ServerCallFailed(f"{where} answered HTTP {status} instead of JSON-RPC", "INTERNAL")
    error, result = response.get("error"), response.get("result")
    if isinstance(error, dict):
        raise error_from_jsonrpc(error)
    if response.get("id") != CALL_ID or not isinstance(result, dict):
        raise ServerCallFailed(f"{where} sent an answer that belongs to no call", "INTERNAL")
    return result


def error_from_jsonrpc(error: JsonObject) -> ServerCallFailed:
    """Return the exception for a JSON-RPC error, whose members may be missing or invalid."""
    data = error.get("data")
    details: JsonObject = data if isinstance(data, dict) else {}
    listed = details.get("violations")
    found = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    violations = {str(each["field"]): str(each.get("description", "")) for each in found if "field" in each}
    return ServerCallFailed(str(error.get("message", "")), str(details.get("reason", "")), violations)


class ClientCalls:
    """Calls with the Python client, over gRPC or in this process; slower to start, since it imports gRPC."""

    def __init__(self, client: CstpClient) -> None:
        self._client = client

    def call(self, method: str, params: JsonObject) -> JsonObject:
        """Return the result. Raises ServerCallFailed."""
        from cstp_grpc.client.json_client import MessageJsonClient
        from cstp_grpc.contract.errors import CstpError

        try:
            return MessageJsonClient(self._client).send(method, params)
        except CstpError as error:
            # The client uses the contract's field names; `project` and `paths` have the same names in JSON.
            violations = {violation.field: violation.description for violation in error.violations}
            raise ServerCallFailed(error.message, error.reason, violations) from error
