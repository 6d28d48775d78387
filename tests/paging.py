"""Walking through listings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from cstp_grpc.platform.storage.pagination import Page, PageRequest

T = TypeVar("T")


def walk(page: Callable[[PageRequest], Page[T]], sizes: Sequence[int]) -> list[T]:
    """Return all items of a listing, its pages taking turns to have the given sizes.

    No page is larger, and only the last may be empty; a page of large items may hold fewer.
    """
    items: list[T] = []
    token = ""
    for turn in range(10_000):
        size = sizes[turn % len(sizes)]
        answer = page(PageRequest(size, token))
        assert len(answer.items) <= size
        items.extend(answer.items)
        token = answer.next_token
        if not token:
            return items
        assert answer.items, "only the last page may be empty"
    raise AssertionError("the listing does not end")
