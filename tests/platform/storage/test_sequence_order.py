"""The keys of locks, by which numbers that are not committed yet are known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.platform.storage.sequence_order import KEYS, nearest_number

NUMBERS = st.integers(1, 2**62)
DISTANCES = st.integers(-KEYS // 2, KEYS // 2 - 1)


@given(NUMBERS, DISTANCES)
def test_a_number_is_known_by_its_key_and_any_number_near_it(number: int, distance: int) -> None:
    assert nearest_number((number + distance) % KEYS, number) == number + distance
