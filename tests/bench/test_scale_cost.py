"""The needs of a shared search engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.scale_cost import MILLION, RATES, Assumed, Measured, Rate, estimate, simulate, write_table

PAGE = Path(__file__).parents[2] / "docs/deployment/scaling.md"


def test_the_page_has_the_table_that_is_computed() -> None:
    assert write_table(RATES, Measured(), Assumed()) in PAGE.read_text()


def test_long_records_need_more_shards() -> None:
    rate = Rate(100 * MILLION, 500, 50)
    short, long = (estimate(rate, Measured(), Assumed(passages=passages)) for passages in (1.5, 6))
    assert long.shards == pytest.approx(4 * short.shards, abs=3)


def test_more_searches_than_the_cores_of_two_copies_need_more_copies() -> None:
    few, many = (estimate(Rate(MILLION, searches, 2), Measured(), Assumed()) for searches in (20, 3_000))
    assert (few.copies, many.copies) == (2, 5)


def test_a_search_waits_for_free_cores() -> None:
    alone, queued = simulate(1, 1, 20, 2), simulate(90, 1, 20, 2)
    assert queued[len(queued) // 2] > 2 * alone[len(alone) // 2]


def test_a_search_lasts_as_its_slowest_partition() -> None:
    assumed = replace(Assumed(), tenant_share=0.2)
    narrow, wide = (estimate(RATES[2], Measured(), each) for each in (Assumed(), assumed))
    assert (narrow.fan_out, wide.fan_out) == (2, 20)
    assert wide.p50_ms > narrow.p50_ms
