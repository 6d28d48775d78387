"""Page tokens: where a listing goes on, bound to what is listed.

A token is opaque to callers but no secret: base64url of the JSON list [fingerprint of the conditions, key of the last
item…]. A key is made of texts and whole numbers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cstp_grpc.errors import InvalidArgument
from cstp_grpc.storage.text import is_storable

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
INT64 = 2**63


def write_token(conditions: object, key: Sequence[str | int]) -> str:
    """Return the token of the page after the item with this key.

    `conditions` says what is listed, with its type: a frozen dataclass of plain values, or a tuple of such.
    """
    content = json.dumps([fingerprint(conditions), *key], separators=(",", ":"))
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def read_token(token: str, conditions: object, types: Sequence[type[str] | type[int]]) -> list[str | int]:
    """Return the key in a token; `types` are those of its parts.

    Raises InvalidArgument where the token is not one that `write_token` made for the same conditions.
    """
    try:
        content = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        raise not_ours() from None
    if not isinstance(content, list) or [type(part) for part in content] != [str, *types]:
        raise not_ours()
    if not all(is_storable(part) if isinstance(part, str) else -INT64 <= part < INT64 for part in content):
        raise not_ours()
    if content[0] != fingerprint(conditions):
        raise InvalidArgument.field("page_token", "belongs to other conditions; they must stay the same on every page")
    return content[1:]


def to_microseconds(instant: datetime) -> int:
    """Return an aware instant as whole microseconds since 1970, for a key."""
    return (instant - EPOCH) // MICROSECOND


def from_microseconds(count: int) -> datetime:
    """Return the instant that `to_microseconds` was given, in UTC.

    Raises InvalidArgument where it is not in the years 1 to 9999, so that the token is none of ours.
    """
    try:
        return EPOCH + timedelta(microseconds=count)
    except OverflowError:
        raise not_ours() from None


def not_ours() -> InvalidArgument:
    """Return the error for a token that nobody was given."""
    return InvalidArgument.field("page_token", "is not a token that this listing gave out")


def fingerprint(conditions: object) -> str:
    """Return a short hash of what is listed."""
    return hashlib.sha256(repr(conditions).encode()).hexdigest()[:16]
