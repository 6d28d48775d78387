"""Pages of a listing (AIP-158) and their tokens.

A token is opaque to callers but no secret: base64url of the JSON list [hash of the conditions, key of the last
item...]. A key consists of texts and whole numbers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import is_storable
from cstp_grpc.contract.errors import InvalidArgument

T = TypeVar("T")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
INT64 = 2**63


def encode_page_token(conditions: object, key: Sequence[str | int]) -> str:
    """Return the token of the page after the item with this key.

    `conditions` is the filter of the listing: a frozen dataclass of plain values, or a tuple of such.
    """
    content = json.dumps([hash_conditions(conditions), *key], separators=(",", ":"))
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def decode_page_token(token: str, conditions: object, types: Sequence[type[str] | type[int]]) -> list[str | int]:
    """Return the key in a token; `types` are those of its parts.

    Raises InvalidArgument if the token was not made by `encode_page_token` for the same conditions.
    """
    try:
        # The padding is left off in tokens, because URLs would escape it.
        content = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        raise invalid_token_error() from None
    if not isinstance(content, list) or [type(part) for part in content] != [str, *types]:
        raise invalid_token_error()
    # A forged token must not reach the database with values that it refuses: NUL in a text, a number beyond 64 bits.
    if not all(is_storable(part) if isinstance(part, str) else -INT64 <= part < INT64 for part in content):
        raise invalid_token_error()
    if content[0] != hash_conditions(conditions):
        raise InvalidArgument.field("page_token", "belongs to other conditions; they must stay the same on every page")
    return content[1:]


def to_microseconds(instant: datetime) -> int:
    """Return an aware instant as whole microseconds since 1970, for a key."""
    return (instant - EPOCH) // MICROSECOND


def from_microseconds(count: int) -> datetime:
    """Return the UTC instant for a count of `to_microseconds`.

    Raises InvalidArgument if it is outside the years 1 to 9999, so that the token is invalid.
    """
    try:
        return EPOCH + timedelta(microseconds=count)
    except OverflowError:
        raise invalid_token_error() from None


def invalid_token_error() -> InvalidArgument:
    """Return the error for a token that this listing did not issue."""
    return InvalidArgument.field("page_token", "is not a token that this listing gave out")


def hash_conditions(conditions: object) -> str:
    return hashlib.sha256(repr(conditions).encode()).hexdigest()[:16]


DEFAULT_SIZE = 50
MAX_SIZE = 1000
MAX_BYTES = 640 * 1024
"""Maximum estimated size of the items of a page.

gRPC accepts messages of 4 MiB by default, at both ends. The rest is for framing, which the estimate leaves out, and for
structured data, of which `1,` takes 5.5 times as much in a message as in JSON.
"""
ITEM_BYTES = 256
"""Bytes of an item without its texts: instants, numbers, and the framing of its fields."""
TEXT_BYTES = 4
"""Bytes of a text in addition to its characters."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The requested page; a `size` of 0 means 50, and more than 1000 counts as 1000."""

    size: int = 0
    token: str = ""

    @property
    def limit(self) -> int:
        """The maximum number of items on the page."""
        return min(self.size or DEFAULT_SIZE, MAX_SIZE)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Items in their order; `next_token` is empty on the last page."""

    items: tuple[T, ...]
    next_token: str = ""


def count_within_budget(items: Sequence[T], size_of: Callable[[T], int], budget: int = MAX_BYTES) -> int:
    """Return how many of the first items fit into a budget of bytes; at least one, whatever its size."""
    left = budget
    for count, item in enumerate(items):
        left -= size_of(item)
        if left < 0:
            return max(count, 1)
    return len(items)


def estimate_message_bytes(texts: Iterable[str | None]) -> int:
    """Return the estimated number of bytes that an item with these texts takes in a message."""
    return ITEM_BYTES + sum(TEXT_BYTES + len(text.encode()) for text in texts if text)
