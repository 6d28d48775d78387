"""What calls of the contract are before anybody makes them, and what makes them.

`cstp_grpc.gen.calls` describes every call in these terms, `cstp_grpc.gen.methods` and `cstp_grpc.gen.async_methods`
have them made. Values are plain Python: enums are words, instants are aware datetimes, JSON objects are mappings.
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
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from cstp_grpc.errors import CstpError

T = TypeVar("T")
R = TypeVar("R")

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""A value that JSON can write."""

OnFailure = Callable[[CstpError, float], None]
"""Is told a failure, and the seconds until the next attempt."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A call that gets one answer."""

    method: str
    """Its JSON-RPC name, for instance `cstp.announceIntent`."""
    values: Mapping[str, Any]
    """The fields of the request by name; None leaves one out."""
    answer: str = ""
    """The field of the response that is the answer; empty where it is all of it."""


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Calls that get a page each, made as their items are wanted."""

    method: str
    values: Mapping[str, Any]
    items: str
    """The field of the response that holds the items of a page."""
    numbered: bool = False
    """Whether each page begins `after` the `sequence` of the last item, as long as there are `more`. Pages are else
    named by tokens."""


@dataclass(frozen=True, slots=True)
class Watch(Generic[T]):
    """A call that answers with a stream of items, and can be made again `after` the `sequence` of any of them."""

    method: str
    values: Mapping[str, Any]
    item: str
    """The field of each response that holds the item."""
    listing: str
    """The method whose response says which sequence is the `newest`."""


@dataclass(frozen=True, slots=True)
class Upload(Generic[R, T]):
    """Calls that take a stream of requests each, and answer with an item for each of them."""

    method: str
    items: str
    """The field of the response that holds the items."""


class Caller(Protocol):
    """Makes calls. `timeout` is the seconds that a call may take, repetitions included; each raises CstpError."""

    def make(self, call: Call[T], timeout: float | None = None) -> T:
        """Return the answer of a call."""

    def pages(self, listing: Listing[T], timeout: float | None = None) -> Iterator[T]:
        """Yield items page after page; `timeout` is that of a page."""

    def watch(
        self, watch: Watch[T], *, resume: bool, on_failure: OnFailure | None, timeout: float | None
    ) -> Generator[T, None, None]:
        """Yield items as they come, for `timeout` seconds in all."""

    def upload(self, upload: Upload[R, T], requests: Iterable[R], *, batch: int, timeout: float | None) -> Iterator[T]:
        """Send requests in batches and yield what they are answered with; `timeout` is that of a batch."""


class AsyncCaller(Protocol):
    """Makes calls likewise in an event loop."""

    async def make(self, call: Call[T], timeout: float | None = None) -> T:
        """Return the answer of a call."""

    def pages(self, listing: Listing[T], timeout: float | None = None) -> AsyncIterator[T]:
        """Yield items page after page; `timeout` is that of a page."""

    def watch(
        self, watch: Watch[T], *, resume: bool, on_failure: OnFailure | None, timeout: float | None
    ) -> AsyncGenerator[T, None]:
        """Yield items as they come, for `timeout` seconds in all."""

    def upload(
        self, upload: Upload[R, T], requests: Iterable[R] | AsyncIterable[R], *, batch: int, timeout: float | None
    ) -> AsyncIterator[T]:
        """Send requests in batches and yield what they are answered with; `timeout` is that of a batch."""
