"""What making a call takes beside the waiting, which is all that differs between threads and an event loop."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import Message

from cstp_grpc.calling import Call, Listing, Upload, Watch
from cstp_grpc.client.contract import Method, method_named
from cstp_grpc.client.messages import message_of
from cstp_grpc.client.retry import Pace, is_passing
from cstp_grpc.client.service_config import service_config
from cstp_grpc.errors import CstpError, InvalidArgument, MethodNotFound, QueryFailed

KEYS: Mapping[str, str] = {
    "cstp.v1.AnnounceIntentRequest": "correlation_id",
    "cstp.v1.RecordDecisionRequest": "request_id",
    "liaison.v1.AppendMessageRequest": "message_id",
}
"""The fields by which the server recognises a repetition, by the name of the message."""
LONGEST: Final = 7 * 86_400.0
"""Seconds that a call may take, whoever gives it more: sockets cannot wait for ever and still be told to."""


def method_of(described: Call[Any] | Listing[Any] | Watch[Any] | Upload[Any, Any]) -> Method:
    """Return the method that is called."""
    return method_named(described.method)


def request_of(described: Call[Any] | Listing[Any] | Watch[Any]) -> Any:
    """Return what is sent. Raises InvalidArgument."""
    return message_of(method_of(described).request, described.values)


def picked(answer: Message, field: str) -> Any:
    """Return a field of an answer; all of it where none is named."""
    return getattr(answer, field) if field else answer


def seconds_for(method: Method, timeout: float | None, default: float | None) -> float:
    """Return the seconds that a call may take: its own, the client's, or those of the service config.

    Raises InvalidArgument.
    """
    chosen = default if timeout is None else timeout
    if chosen is None:
        return service_config().timeouts[method.path]
    if math.isnan(chosen):
        raise InvalidArgument.field("timeout", "is no number of seconds")
    return min(chosen, LONGEST)


def may_repeat(method: Method, request: Message) -> bool:
    """Whether a call may be made again without doing anything twice."""
    return method.idempotent or request.DESCRIPTOR.full_name in KEYS


def check_unary(method: Method) -> None:
    """Raise MethodNotFound for a method that streams."""
    if method.streaming:
        streams = "takes" if method.client_streaming else "answers with"
        raise MethodNotFound(f"{method.name} {streams} a stream and is no single call")


def check_watched(method: Method) -> None:
    """Raise MethodNotFound for a method that does not answer with a stream."""
    if not method.server_streaming:
        raise MethodNotFound(f"{method.name} does not answer with a stream")


def check_batch(size: int) -> None:
    """Raise InvalidArgument for batches in which nothing travels."""
    if size < 1:
        raise InvalidArgument.field("batch", "must be at least 1")


def with_key(request: Message) -> Message:
    """Return the request with the identifier that makes its repetition safe, where its type has one."""
    field = KEYS.get(request.DESCRIPTOR.full_name)
    if field is None or request.HasField(field):
        return request
    identified = type(request)()
    identified.CopyFrom(request)
    setattr(identified, field, str(uuid.uuid4()))
    return identified


def turn_page(listing: Listing[Any], request: Any, page: Any) -> bool:
    """Make the request one for the page after this one, and return whether there is one."""
    if listing.numbered:
        if page.more:
            request.after = picked(page, listing.items)[-1].sequence
        return bool(page.more)
    request.page_token = page.next_page_token
    return bool(page.next_page_token)


class Progress:
    """How far a watch has come, and how it goes on after a failure."""

    def __init__(self, watch: Watch[Any], pace: Pace) -> None:
        self._watch = watch
        self._pace = pace
        self._failures = 0
        self.request = request_of(watch)

    @property
    def begun(self) -> bool:
        """Whether it is known where to go on."""
        return bool(self.request.HasField("after"))

    @property
    def newest(self) -> Call[int]:
        """The call that tells where to begin.

        It is made before anything is missed, so that a watch which fails early goes on from there too.
        """
        return Call(self._watch.listing, {"page_size": 1}, "newest")

    def begin(self, newest: int) -> None:
        """Begin with what comes after this sequence."""
        self.request.after = newest

    def item(self, answer: Message) -> Any:
        """Return the item of an answer, behind which the watch goes on."""
        item = picked(answer, self._watch.item)
        self.request.after = item.sequence
        self._failures = 0
        return item

    def pause(self, error: CstpError) -> float | None:
        """Return the seconds to wait after a failure; None after one that does not pass.

        Calls are not repeated where the database is away, but a watch has time.
        """
        if not (is_passing(error) or isinstance(error, QueryFailed)):
            return None
        self._failures += 1
        return self._pace.pause(error, self._failures)
