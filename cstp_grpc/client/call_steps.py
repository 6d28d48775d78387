"""The steps of a call that the sync and async executors share: request, timeout, retry rule, paging, watch cursor."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from google.protobuf.message import Message

from cstp_grpc.client.retry import RetryTimer, bound_timeout, is_transient_failure
from cstp_grpc.contract.calls import Fields, PagedCall, UnaryCall, UploadCall, WatchCall
from cstp_grpc.contract.errors import CstpError, InvalidArgument, MethodNotFound, QueryFailed
from cstp_grpc.contract.methods import RpcMethod, method_by_name
from cstp_grpc.contract.proto_values import build_message
from cstp_grpc.contract.service_config import service_config

IDEMPOTENCY_FIELDS: Mapping[str, str] = {
    "cstp.v1.AnnounceIntentRequest": "correlation_id",
    "cstp.v1.PreActionRequest": "announcement.correlation_id",
    "cstp.v1.RecordDecisionRequest": "request_id",
    "cstp.v1.RecordThoughtRequest": "request_id",
    "cstp.v1.ReviewDecisionRequest": "request_id",
    "liaison.v1.AppendMessageRequest": "message_id",
}
"""The path of the idempotency key of each request message that has one, by full message name."""


class ConnectionOptions(TypedDict, total=False):
    """How a client reaches its target."""

    root_certificates: bytes | None
    """The certificate authorities (PEM) to trust in place of the system's."""
    agent: str | None
    """The agent as which a data folder is used."""
    config: str | Path | None
    """The configuration file of a data folder, in place of CSTP_CONFIG."""
    client_certificate: str | Path | None
    """A PEM file with a certificate and its key, for servers that ask for one."""


def method_of_call(described: UnaryCall[Any] | PagedCall[Any] | WatchCall[Any] | UploadCall[Any, Any]) -> RpcMethod:
    return method_by_name(described.method)


def build_request(described: UnaryCall[Any] | PagedCall[Any] | WatchCall[Any]) -> Any:
    """Build the request of a described call. Raises InvalidArgument."""
    return build_message(method_of_call(described).request, described.values)


def build_upload_request(method: RpcMethod, request: object, position: int) -> Message:
    """Return a request of an upload, built from a mapping unless it is a message. Raises InvalidArgument."""
    if isinstance(request, method.request):
        return request
    return build_message(method.request, cast(Fields, request), f"requests[{position}]")


def response_field(answer: Message, field: str) -> Any:
    """Return a field of a response, or the whole response if `field` is empty."""
    return getattr(answer, field) if field else answer


def call_timeout(method: RpcMethod, timeout: float | None, default: float | None) -> float:
    """Return the timeout of a call: its own, the client's, or that of the service config. Raises InvalidArgument."""
    chosen = default if timeout is None else timeout
    if chosen is None:
        return service_config().timeouts[method.path]
    return bound_timeout(chosen)


def is_retry_safe(method: RpcMethod) -> bool:
    """Return True if a call can be retried without being executed twice."""
    return method.idempotent or method.request.DESCRIPTOR.full_name in IDEMPOTENCY_FIELDS


def require_unary(method: RpcMethod) -> None:
    """Raise MethodNotFound for a streaming method."""
    if method.streaming:
        streams = "takes" if method.client_streaming else "answers with"
        raise MethodNotFound(f"{method.name} {streams} a stream and is no single call")


def require_server_stream(method: RpcMethod) -> None:
    """Raise MethodNotFound for a method that is not server-streaming."""
    if not method.server_streaming:
        raise MethodNotFound(f"{method.name} does not answer with a stream")


def require_batch_size(size: int) -> None:
    """Raise InvalidArgument for a batch size below 1."""
    if size < 1:
        raise InvalidArgument.field("batch", "must be at least 1")


def with_idempotency_key(request: Message) -> Message:
    """Return the request with an idempotency key, if its type has one and none is set."""
    path = IDEMPOTENCY_FIELDS.get(request.DESCRIPTOR.full_name)
    if path is None:
        return request
    *outer, field = path.split(".")
    if functools.reduce(getattr, outer, request).HasField(field):
        return request
    # A copy, because the request belongs to the caller, who may send it again as another call.
    identified = type(request)()
    identified.CopyFrom(request)
    setattr(functools.reduce(getattr, outer, identified), field, str(uuid.uuid4()))
    return identified


def advance_page(listing: PagedCall[Any], request: Any, page: Any) -> bool:
    """Change the request to the one for the next page; return False after the last page."""
    if listing.numbered:
        if page.more:
            request.after = response_field(page, listing.items)[-1].sequence
        return bool(page.more)
    request.page_token = page.next_page_token
    return bool(page.next_page_token)


class WatchCursor:
    """The position of a watch, and its retry state."""

    def __init__(self, watch: WatchCall[Any], timer: RetryTimer) -> None:
        self._watch = watch
        self._timer = timer
        self._failures = 0
        self.request = build_request(watch)

    @property
    def is_positioned(self) -> bool:
        return not self._watch.listing or bool(self.request.HasField("after"))

    @property
    def newest_call(self) -> UnaryCall[int]:
        """The call that returns the start position.

        It is made before the stream opens, so that a watch that fails early resumes there and misses nothing.
        """
        return UnaryCall(self._watch.listing, {"page_size": 1}, "newest")

    def start_after(self, newest: int) -> None:
        self.request.after = newest

    def take_item(self, answer: Message) -> Any:
        item = response_field(answer, self._watch.item)
        if self._watch.position:
            # Moved before the caller gets the item: a failure afterwards resumes behind it.
            self.request.after = getattr(item, self._watch.position)
        # An item shows that the server works: the next failure begins with short delays again.
        self._failures = 0
        return item

    def retry_delay(self, error: CstpError) -> float | None:
        """Return the delay in seconds after a failure, or None if it is permanent.

        Unlike single calls, a watch also retries QueryFailed, since it can wait for the database.
        """
        if not self._watch.position or not (is_transient_failure(error) or isinstance(error, QueryFailed)):
            return None
        self._failures += 1
        return self._timer.retry_delay(error, self._failures)
