"""Pages of a listing (AIP-158)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

DEFAULT_SIZE = 50
MAX_SIZE = 1000
MAX_BYTES = 640 * 1024
"""How large the items of a page may be by estimate.

gRPC takes messages of 4 MiB unless told otherwise, at both ends. The rest is for what the estimate leaves out: framing,
and structured data, of which `1,` takes 5.5 times as much in a message as in JSON.
"""
ITEM_BYTES = 256
"""What an item takes besides its texts: instants, numbers, and the framing of its fields."""
TEXT_BYTES = 4
"""What a text takes besides its characters."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which page is wanted; a `size` of 0 means 50, and more than 1000 counts as 1000."""

    size: int = 0
    token: str = ""

    @property
    def limit(self) -> int:
        """How many items the page holds at the most."""
        return min(self.size or DEFAULT_SIZE, MAX_SIZE)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Items in their order; `next_token` is empty on the last page."""

    items: tuple[T, ...]
    next_token: str = ""


def fitting(items: Sequence[T], size_of: Callable[[T], int], budget: int = MAX_BYTES) -> int:
    """Return how many of the first items fit into a budget of bytes; the first always counts, whatever its size."""
    left = budget
    for count, item in enumerate(items):
        left -= size_of(item)
        if left < 0:
            return max(count, 1)
    return len(items)


def estimated_size(texts: Iterable[str | None]) -> int:
    """Return about how many bytes an item with these texts takes in a message."""
    return ITEM_BYTES + sum(TEXT_BYTES + len(text.encode()) for text in texts if text)
