"""The media types that are spoken here, and which of them a caller wants to hear."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from a2a.utils.errors import ContentTypeNotSupportedError

from cstp_grpc.client.json_forms import shown

TEXT: Final = "text/plain"
JSON: Final = "application/json"
SPOKEN: Final = (TEXT, JSON)
"""The media types of the parts that are understood and answered."""
OLD_NAMES: Final = {"text": TEXT}
"""What clients of A2A before 1.0 may call a media type."""


def plain_type(media_type: str) -> str:
    """Return a media type in lower case and without its parameters."""
    return media_type.partition(";")[0].strip().lower()


def wanted(accepted: Sequence[str]) -> frozenset[str]:
    """Return those of our media types that a caller accepts, all where it says nothing.

    Ranges such as `text/*` are understood. Raises ContentTypeNotSupportedError where there is none.
    """
    if not accepted:
        return frozenset(SPOKEN)
    patterns = {OLD_NAMES.get(name, name) for name in map(plain_type, accepted)}
    found = frozenset(item for item in SPOKEN if patterns & {item, f"{item.partition('/')[0]}/*", "*/*"})
    if not found:
        raise ContentTypeNotSupportedError(
            f"configuration.acceptedOutputModes: answers are {' and '.join(SPOKEN)}, not {listed(accepted)}"
        )
    return found


def listed(media_types: Iterable[str]) -> str:
    """Return some media types of a caller's as they may appear in a sentence."""
    return shown(", ".join(media_types))
