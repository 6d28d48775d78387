"""The gRPC server behind the bridge: its address, the channel to it, and forwarding of calls to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from bridge.call_errors import DETAIL, unexpected_failure, violation_text, visible_rpc_error
from cstp_grpc.client.tls import channel_credentials
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import CstpError, DeadlineExceeded, InvalidArgument, MethodNotFound
from cstp_grpc.contract.json_codec import CodecError, JsonProfile, contract_json, from_json, json_path, to_json
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.contract.rate_limit_headers import rate_limit_headers
from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY
from cstp_grpc.platform.config import ConfigError, is_loopback

CHANNEL_OPTIONS: Final = [
    # No limit on responses: the server, which is trusted, limits them itself. Error details are in metadata, where
    # gRPC's default of 8 KiB is too little.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", 1_048_576),
    ("grpc.absolute_max_metadata_size", 1_048_576),
    # Chosen: a restarted server is reached again within two seconds; gRPC's default grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name not a pause, but the time limit for a connection, with TLS and over a wide-area network.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # The server is on this machine or in the same network; a proxy from the environment would get the callers' tokens.
    ("grpc.enable_http_proxy", 0),
]

ROUND_ROBIN_OPTIONS: Final = [("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]}))]

PLAIN_SCHEME: Final = "grpc"
SECURE_SCHEME: Final = "grpcs"


@dataclass(frozen=True, slots=True)
class Upstream:
    """The gRPC server behind the bridge, as `host:port` with an optional `grpc://` or `grpcs://`.

    Several IPv4 addresses separated by commas are the workers of one server, among which calls are distributed in turn.
    """

    target: str
    ca_file: Path | None = None
    """The trusted authorities (PEM), in place of the system's."""
    announced: str | None = None
    """The address at which others reach it, in the same form; None if it is that of the bridge."""
    client_certificate: Path | None = None
    """The client certificate, for servers that ask for one."""
    bridge_key: str | None = None
    """Shared secret that identifies the bridge to the server; None without one."""


def open_channel(
    target: str,
    ca_file: Path | None = None,
    client_certificate: Path | None = None,
    interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
) -> grpc.aio.Channel:
    """Open a channel to a server; it connects at the first call and reconnects when needed. Raises ConfigError."""
    address = parse_grpc_target(target)
    if "," in address:
        options = [*CHANNEL_OPTIONS, *ROUND_ROBIN_OPTIONS]
        return grpc.aio.insecure_channel(f"ipv4:{address}", options=options, interceptors=interceptors)
    if not is_secure_target(target):
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS, interceptors=interceptors)
    try:
        credentials = channel_credentials(read_ca_file(ca_file), client_certificate)
    except InvalidArgument as error:
        if error.violations[0].field == "client_certificate":
            problem = error.violations[0].description
            raise ConfigError(f"server.grpc_client_certificate: {client_certificate} {problem}") from error
        raise ConfigError(f"server.grpc_ca_file: {ca_file} holds no certificates in PEM") from error
    return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS, interceptors=interceptors)


def parse_grpc_target(target: str) -> str:
    """Return the `host:port` of a target. Raises ConfigError."""
    scheme, _, address = target.rpartition("://")
    if scheme not in ("", PLAIN_SCHEME, SECURE_SCHEME) or not address or "/" in address:
        raise ConfigError(f"server.grpc_target: {target} is not of the form HOST:PORT or grpcs://HOST:PORT")
    return address


def is_secure_target(target: str) -> bool:
    return target.startswith(f"{SECURE_SCHEME}://")


def require_encrypted_target(target: str) -> None:
    """Raise ConfigError if a target is another machine and calls to it would not be encrypted."""
    address = parse_grpc_target(target)
    if is_secure_target(target):
        return
    for each in address.split(","):
        host = each.rpartition(":")[0].strip("[]")
        if not is_loopback(host):
            raise ConfigError(
                f"server.grpc_target: {host} is not this machine, and callers' tokens would travel there unencrypted; "
                f"write grpcs://{each} where it has a certificate, or start with --insecure"
            )


def read_ca_file(path: Path | None) -> bytes | None:
    """Read the CA certificates in a file, or return None to use the system's. Raises ConfigError."""
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"server.grpc_ca_file: {path} cannot be read: {error.strerror}") from error


Metadata = Sequence[tuple[str, str]]

REQUEST_ID_FIELD: Final = "request_id"
"""The field of requests by which a method recognizes a repetition; the caller chooses its value."""
MALFORMED_MESSAGE: Final = b"\xff"
"""An unfinished varint: the tag of a field that never ends, so that no message type can decode it."""


# The stubs of grpc.aio have no types.
UnaryStub = Callable[..., Any]
"""Calls one method: takes the request, and `timeout` and `metadata` by name. Raises grpc.aio.AioRpcError."""
StreamingStub = Callable[..., Any]
"""Opens a call of one method: takes the request, and `metadata` by name."""


@dataclass(frozen=True, slots=True)
class ForwardedMethod:
    """A method and its stubs: `invoke` for unary methods, `open` for streaming responses.

    `invoke_malformed` sends bytes that are not a message, which the server refuses.
    """

    method: RpcMethod
    invoke: UnaryStub | None = None
    open: StreamingStub | None = None
    invoke_malformed: UnaryStub | None = None
    request_id_name: str | None = None
    """The member of params by which it recognizes a repetition, or None."""


class Forwarder:
    """Forwards calls to every method of the contract on a channel.

    `timeout` is in seconds, for each call; no context of a check may have more than `max_context_values`.
    """

    def __init__(
        self, channel: grpc.aio.Channel, methods: Mapping[str, RpcMethod], timeout: float, max_context_values: int
    ) -> None:
        self._timeout = timeout
        self._profile = contract_json(max_context_values)
        self._routes = {
            name: build_forwarded_method(channel, method) for name, method in methods.items() if method.public
        }
        self.event_paths: dict[str, str] = {}
        """The paths at which the answers of streaming methods are events, by their names."""

    @property
    def names(self) -> Collection[str]:
        return self._routes.keys()

    def is_repeatable(self, name: str, params: Mapping[str, object]) -> bool:
        """Return whether a repeated call has no further effect; an unknown method has no effect.

        A method that recognizes repetitions by a request id is repeatable only with such an id.
        """
        route = self._routes.get(name)
        if route is None:
            return True
        id_name = route.request_id_name
        return route.method.idempotent and (id_name is None or params.get(id_name) is not None)

    def intent_type(self, name: str) -> str:
        """Return the intent type that failures of a method carry; empty if none."""
        route = self._routes.get(name)
        return route.method.intent_type if route else ""

    async def call(
        self,
        name: str,
        params: dict[str, object] | list[object],
        metadata: Metadata,
        limits: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Call a method and return its JSON result, and put the headers of its rate limit in `limits`.

        Raises CstpError.
        """
        route = self._routes.get(name)
        if route is None:
            raise MethodNotFound("Method not found")
        if route.invoke is None:
            where = f"at GET {path} and over gRPC" if (path := self.event_paths.get(name)) else "over gRPC"
            detail = f"{name} takes or answers a stream, which works {where} only"
            raise MethodNotFound("Method not found", metadata={DETAIL: detail})
        request = await self._read(route, params, metadata)
        try:
            call = route.invoke(request, timeout=self._timeout, metadata=metadata)
            answer = await call
            if limits is not None:
                limits.update(rate_limit_headers(await call.trailing_metadata()))
        except grpc.aio.AioRpcError as error:
            if limits is not None:
                limits.update(rate_limit_headers(error.trailing_metadata()))
            raise visible_rpc_error(error, route.method.request) from error
        return to_json(answer)

    async def open_stream(
        self, name: str, params: dict[str, object], metadata: Metadata
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Open a streaming call and return its JSON results, once the server has admitted the call.

        Closing the generator cancels the call. Raises CstpError, and so does the generator.
        """
        route = self._routes[name]
        assert route.open is not None, f"{name} does not answer with a stream"
        request = await self._read(route, params, metadata)
        call = route.open(request, metadata=metadata)
        results = stream_results(call, route.method)
        try:
            async with asyncio.timeout(self._timeout):
                admitted = dict(await call.initial_metadata())
                if REQUEST_ID_KEY not in admitted:
                    # The request id is sent only after admission. A refused call has no messages, and reading one
                    # raises the server's error.
                    await anext(results, None)
        except TimeoutError as error:
            call.cancel()
            raise DeadlineExceeded("The server did not answer in time") from error
        except BaseException:
            call.cancel()
            raise
        return results

    async def _read(
        self, route: ForwardedMethod, params: dict[str, object] | list[object], metadata: Metadata
    ) -> Message:
        """Parse the request of a call. Raises CstpError; the server's refusal of the caller takes precedence."""
        try:
            return parse_params(params, route.method.request, self._profile)
        except CstpError as failure:
            raise failure from await self._refusal(route, metadata)

    async def _refusal(self, route: ForwardedMethod, metadata: Metadata) -> grpc.aio.AioRpcError:
        """Return the server's error for a call whose params are not a message of its method.

        The caller is thus authenticated first, and the refusal counts for limits and in the audit trail as over gRPC.
        Raises CstpError if the server refuses the call for another reason.
        """
        assert route.invoke_malformed is not None, "methods that take a stream have no params"
        try:
            await route.invoke_malformed(MALFORMED_MESSAGE, timeout=self._timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise visible_rpc_error(error, route.method.request) from error
            return error
        raise unexpected_failure()


def build_forwarded_method(channel: grpc.aio.Channel, method: RpcMethod) -> ForwardedMethod:
    """Build the stubs of a method; a method that takes a stream has no stubs."""
    if method.client_streaming:
        return ForwardedMethod(method)
    # An error needs no message of the answer, so a method that answers with a stream can be called like a unary one.
    malformed: UnaryStub = channel.unary_unary(method.path, response_deserializer=method.response.FromString)
    if method.server_streaming:
        stream = channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return ForwardedMethod(method, open=stream, invoke_malformed=malformed)
    unary = channel.unary_unary(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
    has_id = REQUEST_ID_FIELD in method.request.DESCRIPTOR.fields_by_name
    id_name = json_path(method.request, REQUEST_ID_FIELD) if has_id else None
    return ForwardedMethod(method, invoke=unary, invoke_malformed=malformed, request_id_name=id_name)


async def stream_results(call: Any, method: RpcMethod) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the JSON results of a call. Raises CstpError."""
    try:
        async for answer in call:
            yield to_json(answer)
    except grpc.aio.AioRpcError as error:
        raise visible_rpc_error(error, method.request) from error
    finally:
        call.cancel()


def parse_params(params: dict[str, object] | list[object], request: type[Message], profile: JsonProfile) -> Message:
    """Parse the params of a call into its request message. Raises CstpError."""
    if isinstance(params, list):
        raise InvalidArgument("params must be an object: the methods take their parameters by name")
    try:
        return from_json(params, request, profile)
    except CodecError as error:
        raise InvalidArgument(violation_text(error.violations), violations=error.violations) from error
