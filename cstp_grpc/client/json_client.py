"""Calls of methods by their JSON-RPC names, whose params and results are JSON.

Over HTTP, neither gRPC nor Protobuf is loaded, which takes several times as long as the call.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from cstp_grpc.client.json_rpc import JsonRpcConnection
from cstp_grpc.client.retry import Retrier, RetryPolicy, bound_timeout, is_transient_failure
from cstp_grpc.client.targets import check_identity, target_scheme
from cstp_grpc.contract.errors import CstpError

if TYPE_CHECKING:
    from cstp_grpc.client import CstpClient
    from cstp_grpc.client.call_steps import ConnectionOptions

FREE_FORM_FIELDS: Final = frozenset({"context", "context_to_share", "metadata", "shared_context"})
"""The names of fields with JSON objects of the caller, whose members keep their names."""


class JsonClient(ABC):
    """Calls a server until the end of its `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 - calls over HTTP leave nothing open
        """Close the connection, if there is one."""

    def call(self, method: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a unary method, called with fields by their names in the contract. Raises CstpError.

        Values are as `cstp_grpc.contract.calls` describes them; None leaves a field out.
        """
        return self.send(method, params_of_fields(fields))

    @abstractmethod
    def send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a unary method, called with JSON. Raises CstpError."""


def open_json_client(
    target: str, token: str | None, *, timeout: float, retries: RetryPolicy, **connection: Unpack[ConnectionOptions]
) -> JsonClient:
    """Return a client for a target, with options as CstpClient has them. Raises InvalidArgument and ConfigError."""
    if target_scheme(target) in {"http", "https"}:
        return HttpJsonClient(target, token, bound_timeout(timeout), retries, connection)
    from cstp_grpc.client.cstp_client import CstpClient

    return MessageJsonClient(CstpClient(target, token, timeout=timeout, retries=retries, **connection))


class HttpJsonClient(JsonClient):
    """Calls a bridge, and retries transient failures."""

    def __init__(
        self, target: str, token: str | None, timeout: float, retries: RetryPolicy, options: ConnectionOptions
    ) -> None:
        check_identity(target, token, options.get("agent"))
        shown = options.get("client_certificate")
        certificate = None if shown is None else Path(shown)
        authorities = options.get("root_certificates")
        self._connection = JsonRpcConnection(
            target, token, root_certificates=authorities, client_certificate=certificate
        )
        # Not by the module random, which takes longer to load than the rest of this one.
        self._retrier = Retrier(retries, time.sleep, lambda: os.urandom(1)[0] / 256, time.monotonic)
        self._timeout = timeout

    def send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        def attempt(left: float) -> dict[str, Any]:
            try:
                return self._connection.call(method, params, left)
            except CstpError as error:
                if is_transient_failure(error):
                    # Imported here: only failures need them, and they load Protobuf.
                    from cstp_grpc.client.call_steps import is_retry_safe
                    from cstp_grpc.contract.methods import method_by_name

                    error.final = not is_retry_safe(method_by_name(method))
                raise

        return self._retrier.run(attempt, self._timeout, repeatable=True)


class MessageJsonClient(JsonClient):
    """Calls with the Python client, over gRPC or in this process."""

    def __init__(self, client: CstpClient) -> None:
        self._client = client

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def send(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        from cstp_grpc.contract import json_codec
        from cstp_grpc.contract.errors import InvalidArgument
        from cstp_grpc.contract.methods import method_by_name

        described = method_by_name(method)
        try:
            request = json_codec.from_json(params, described.request)
        except json_codec.CodecError as error:
            raise InvalidArgument(str(error), violations=error.violations) from error
        return json_codec.to_json(self._client.call(described, request))


def params_of_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a request by their names in the contract as JSON."""
    return {
        to_camel_case(name): value if name in FREE_FORM_FIELDS else param_of_value(value)
        for name, value in fields.items()
        if value is not None
    }


def param_of_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return params_of_fields(value)
    return [param_of_value(each) for each in value] if isinstance(value, (list, tuple)) else value


def to_camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
