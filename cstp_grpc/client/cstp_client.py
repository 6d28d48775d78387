"""The client: a typed method for each rpc of the contract, and `call` for methods known only at run time."""

from __future__ import annotations

import functools
import itertools
import random as system_random
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Self, TypeVar, Unpack, cast

from google.protobuf.message import Message

from cstp_grpc.client import call_steps as steps
from cstp_grpc.client.grpc_transport import GrpcTransport, ResponseStream, Transport
from cstp_grpc.client.retry import DEFAULT_RETRIES, Retrier, RetryPolicy
from cstp_grpc.client.targets import check_identity, is_folder_target, load_folder_transport, require_tls, target_scheme
from cstp_grpc.contract.calls import Fields, OnFailure, PagedCall, UnaryCall, UploadCall, WatchCall
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.gen.methods import Cstp, IntentLayer, Liaison

T = TypeVar("T")
R = TypeVar("R")


class TransportCallExecutor:
    """Executes calls over a transport and retries transient failures. Thread-safe.

    `timeout` is the default limit of a call in seconds; None means that of the service config.
    """

    def __init__(self, transport: Transport, retrier: Retrier, timeout: float | None) -> None:
        self._transport = transport
        self._retrier = retrier
        self._timeout = timeout

    def call(self, method: RpcMethod, request: Message, timeout: float | None = None) -> Message:
        """Return the response of a unary method. Raises CstpError."""
        steps.require_unary(method)
        attempt = functools.partial(self._transport.call, method, steps.with_idempotency_key(request))
        limit = steps.call_timeout(method, timeout, self._timeout)
        return self._retrier.run(attempt, limit, repeatable=steps.is_retry_safe(method))

    def stream(self, method: RpcMethod, request: Message, timeout: float | None = None) -> ResponseStream:
        """Return the response stream of a server-streaming method. Raises CstpError."""
        steps.require_server_stream(method)
        return self._transport.watch(method, request, timeout)

    def make(self, call: UnaryCall[T], timeout: float | None = None) -> T:
        response = self.call(steps.method_of_call(call), steps.build_request(call), timeout)
        return cast(T, steps.response_field(response, call.answer))

    def pages(self, listing: PagedCall[T], timeout: float | None = None) -> Iterator[T]:
        request = steps.build_request(listing)
        while True:
            page = self.call(steps.method_of_call(listing), request, timeout)
            yield from steps.response_field(page, listing.items)
            if not steps.advance_page(listing, request, page):
                return

    def watch(
        self, watch: WatchCall[T], *, resume: bool, on_failure: OnFailure | None, timeout: float | None
    ) -> Generator[T, None, None]:
        """Yield items as they come, for `timeout` seconds in all."""
        progress = steps.WatchCursor(watch, self._retrier)
        left = self._retrier.countdown(timeout)
        while True:
            try:
                if not progress.is_positioned:
                    progress.start_after(self.make(progress.newest_call, left()))
                # The request has the position after the last item, so that a new stream repeats and misses nothing.
                with self.stream(steps.method_of_call(watch), progress.request, left()) as answers:
                    for answer in answers:
                        yield progress.take_item(answer)
                return
            except CstpError as error:
                pause = progress.retry_delay(error) if resume else None
                if pause is None:
                    raise
                if on_failure:
                    on_failure(error, pause)
            self._retrier.sleep(pause, left())

    def upload(
        self, upload: UploadCall[R, T], requests: Iterable[R | Fields], *, batch: int, timeout: float | None
    ) -> Iterator[T]:
        steps.require_batch_size(batch)
        method = steps.method_of_call(upload)
        limit = steps.call_timeout(method, timeout, self._timeout)
        remaining = (steps.build_upload_request(method, each, position) for position, each in enumerate(requests))
        # A list and no generator: a retry sends the same batch again.
        while sent := list(itertools.islice(remaining, batch)):
            attempt = functools.partial(self._transport.send, method, sent)
            answer = self._retrier.run(attempt, limit, repeatable=method.idempotent)
            yield from steps.response_field(answer, upload.items)


class CstpClient(Cstp):
    """Calls a CSTP server, and closes its connection at the end of a `with` block. Thread-safe.

    `target` is `grpc://host:port` (or just `host:port`), `grpcs://host:port` with TLS, the `http://` or `https://`
    address of a bridge, or `local:PATH`, a data folder that is used in this process without a server: as `agent` and by
    the configuration file `config`, in place of CSTP_CONFIG. `root_certificates` (PEM) replaces the system's
    certificate authorities; `client_certificate` is a PEM file with a certificate and its key, which a server that asks
    for one is shown. `timeout` limits each call in seconds, retries included, instead of the service config; every
    method takes its own. Calls that failed for a transient reason are retried as `retries` says, if the contract
    declares them idempotent. `sleep`, `random` and `clock` are for tests. Every method raises a CstpError whose class
    names the reason.
    """

    def __init__(
        self,
        target: str,
        token: str | None = None,
        *,
        timeout: float | None = None,
        retries: RetryPolicy = DEFAULT_RETRIES,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = system_random.random,
        clock: Callable[[], float] = time.monotonic,
        **connection: Unpack[steps.ConnectionOptions],
    ) -> None:
        self._transport = open_transport(target, token, **connection)
        self._calls = TransportCallExecutor(self._transport, Retrier(retries, sleep, random, clock), timeout)
        super().__init__(self._calls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the client cannot be used any more."""
        self._transport.close()

    @functools.cached_property
    def liaison(self) -> Liaison:
        """The methods of chat sessions and of their routing to liaison agents."""
        return Liaison(self._calls)

    @functools.cached_property
    def intent_layer(self) -> IntentLayer:
        """The methods that read the rules governing code, and that report and review learnings."""
        return IntentLayer(self._calls)

    def make(self, call: UnaryCall[T], timeout: float | None = None) -> T:
        """Execute a call described by `cstp_grpc.gen.calls`, and return its answer."""
        return self._calls.make(call, timeout)

    def call(self, method: RpcMethod, request: Message, timeout: float | None = None) -> Message:
        """Call a unary method of the contract and return its response.

        An announcement, a record or a chat message without an idempotency key gets one, so that it can be retried.
        """
        return self._calls.call(method, request, timeout)

    def watch(self, method: RpcMethod, request: Message, timeout: float | None = None) -> ResponseStream:
        """Call a server-streaming method of the contract and return its response stream; gRPC only.

        The stream ends with its `with` block, with its `close`, or after `timeout` seconds with DeadlineExceeded; the
        client's own timeout does not apply. It is not restarted after a failure: only the caller knows where to resume.
        """
        return self._calls.stream(method, request, timeout)


def open_transport(
    target: str,
    token: str | None,
    *,
    root_certificates: bytes | None = None,
    agent: str | None = None,
    config: str | Path | None = None,
    client_certificate: str | Path | None = None,
) -> Transport:
    """Return the transport for a target. Raises InvalidArgument, and ConfigError for a data folder."""
    check_identity(target, token, agent)
    if is_folder_target(target):
        opened: Transport = load_folder_transport("local")(target, agent, config)
        return opened
    scheme, shown = target_scheme(target), None if client_certificate is None else Path(client_certificate)
    require_tls(scheme, shown)
    if scheme in {"http", "https"}:
        # Not loaded before it is needed: HTTP takes a while, and most clients speak gRPC.
        from cstp_grpc.client.json_rpc import JsonRpcConnection
        from cstp_grpc.client.jsonrpc_transport import JsonRpcTransport

        return JsonRpcTransport(
            JsonRpcConnection(target, token, root_certificates=root_certificates, client_certificate=shown)
        )
    return GrpcTransport(
        target, token, secure=scheme == "grpcs", root_certificates=root_certificates, client_certificate=shown
    )
