"""How many items a page holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.platform.storage.pagination import count_within_budget

SIZES = st.lists(st.integers(0, 50), max_size=20)


def itself(size: int) -> int:
    return size


@given(SIZES, st.integers(0, 200))
def test_a_page_holds_as_many_items_as_fit_and_at_least_one(sizes: list[int], budget: int) -> None:
    count = count_within_budget(sizes, itself, budget)
    assert min(1, len(sizes)) <= count <= len(sizes)
    assert count <= 1 or sum(sizes[:count]) <= budget
    assert count == len(sizes) or sum(sizes[: count + 1]) > budget
