"""Descriptions of calls of the contract, and the Protocols of their executors.

`cstp_grpc.gen.calls` builds these descriptions; `cstp_grpc.gen.methods` and `cstp_grpc.gen.async_methods` pass them to
an executor. Values are plain Python: enums are words, timestamps are aware datetimes, JSON objects are mappings.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Generic, Protocol, TypeVar

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import CstpError

T = TypeVar("T")
R = TypeVar("R")

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""A value that can be written as JSON."""

Fields = Mapping[str, Any]
"""The fields of a message by name, in the place of the message."""

OnFailure = Callable[[CstpError, float], None]
"""Called with a failure and the seconds until the next attempt."""


@dataclass(frozen=True, slots=True)
class UnaryCall(Generic[T]):
    """A call with one response."""

    method: str
    """Its JSON-RPC name, for instance `cstp.announceIntent`."""
    values: Mapping[str, Any]
    """The fields of the request by name; None leaves one out."""
    answer: str = ""
    """The field of the response that is returned; empty to return the whole response."""


@dataclass(frozen=True, slots=True)
class PagedCall(Generic[T]):
    """A listing call, repeated for each page as its items are consumed."""

    method: str
    values: Mapping[str, Any]
    items: str
    """The field of the response that holds the items of a page."""
    numbered: bool = False
    """Whether the next page is requested with `after`, the `sequence` of the last item, while the response says `more`.
    Otherwise pages are requested with page tokens.
    """


@dataclass(frozen=True, slots=True)
class WatchCall(Generic[T]):
    """A call that returns a stream of items and can be resumed `after` the position of any of them."""

    method: str
    values: Mapping[str, Any]
    item: str
    """The field of each response that holds the item; empty if the response is the item."""
    position: str
    """The field of an item that holds its position; empty if the call cannot be resumed."""
    listing: str = ""
    """The method whose response has the `newest` position; empty if the first item has it."""


@dataclass(frozen=True, slots=True)
class UploadCall(Generic[R, T]):
    """A client-streaming call, repeated for each batch of requests; the response has one item for each request."""

    method: str
    items: str
    """The field of the response that holds the items."""


class CallExecutor(Protocol):
    """Executes calls. `timeout` is the seconds a call may take, retries included; every method raises CstpError."""

    def make(self, call: UnaryCall[T], timeout: float | None = None) -> T:
        """Execute a call and return its response."""

    def pages(self, listing: PagedCall[T], timeout: float | None = None) -> Iterator[T]:
        """Yield items page by page; `timeout` applies to each page."""

    def watch(
        self, watch: WatchCall[T], *, resume: bool, on_failure: OnFailure | None, timeout: float | None
    ) -> Generator[T, None, None]:
        """Yield items as they arrive, for `timeout` seconds in total."""

    def upload(
        self, upload: UploadCall[R, T], requests: Iterable[R | Fields], *, batch: int, timeout: float | None
    ) -> Iterator[T]:
        """Send requests in batches and yield the items of the responses; `timeout` applies to each batch."""


class AsyncCallExecutor(Protocol):
    """Executes calls in an event loop, as CallExecutor does with threads."""

    async def make(self, call: UnaryCall[T], timeout: float | None = None) -> T:
        """Execute a call and return its response."""

    def pages(self, listing: PagedCall[T], timeout: float | None = None) -> AsyncIterator[T]:
        """Yield items page by page; `timeout` applies to each page."""

    def watch(
        self, watch: WatchCall[T], *, resume: bool, on_failure: OnFailure | None, timeout: float | None
    ) -> AsyncGenerator[T, None]:
        """Yield items as they arrive, for `timeout` seconds in total."""

    def upload(
        self,
        upload: UploadCall[R, T],
        requests: Iterable[R | Fields] | AsyncIterable[R | Fields],
        *,
        batch: int,
        timeout: float | None,
    ) -> AsyncIterator[T]:
        """Send requests in batches and yield the items of the responses; `timeout` applies to each batch."""
