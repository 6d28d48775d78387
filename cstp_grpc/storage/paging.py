"""Pages of a listing (AIP-158)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

DEFAULT_SIZE = 50
MAX_SIZE = 1000


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
