"""Identifiers and hashes, which must be the same in every release."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.core.decisions.lifecycle import decision_id_for_source, hash_content, new_decision_id, normalize_content
from cstp_grpc.core.decisions.model import DecisionContent, Links, Reason
from tests.named_case import named_case

DATE = datetime(2026, 1, 1, tzinfo=UTC)
CONTENT = DecisionContent(
    title="put jobs on a queue",
    confidence=0.5,
    stakes=Stakes.HIGH,
    date=DATE,
    reasons=(Reason("analysis", "it scales"),),
    tags=("ops",),
)


def test_hashes_and_identifiers_do_not_change_between_releases() -> None:
    assert decision_id_for_source("alice", "docs/0001.md") == "dec-e81ead579209309e6f66"
    assert hash_content(normalize_content(CONTENT), Links(supersedes=("dec-1",))) == (
        "9cbeddc54c1dd7274e418630cb1ffca6ac68bab1f9da4c70f2871385587de29a"
    )


def test_imported_identifiers_tell_agents_and_sources_apart() -> None:
    pairs = [("alice", "a"), ("alice", "b"), ("bob", "a"), ('alice","a', "")]
    assert len({decision_id_for_source(*pair) for pair in pairs}) == len(pairs)


def test_recorded_identifiers_look_like_imported_ones() -> None:
    assert len({new_decision_id() for _ in range(100)}) == 100
    assert len(new_decision_id()) == len(decision_id_for_source("alice", "a"))


def test_every_field_counts() -> None:
    cases: list[dict[str, Any]] = [
        {"title": "another"},
        {"context": "c"},
        {"category": "c"},
        {"stakes": None},
        {"confidence": 0.0},
        {"status": DecisionStatus.PROPOSED},
        {"outcome": Outcome.FAILURE},
        {"date": DATE + timedelta(microseconds=1)},
        {"notes": "n"},
        {"reasons": ()},
        {"reasons": (Reason("analysis", "it scales", 0.0),)},
        {"tags": ("ops", "data")},
        {"project": "p"},
        {"visibility": Visibility.SHARED},
    ]
    for change in cases:
        with named_case(change):
            changed = replace(CONTENT, **change)
            assert hash_content(normalize_content(changed), Links()) != hash_content(
                normalize_content(CONTENT), Links()
            )


def test_every_kind_of_link_counts() -> None:
    kinds = [Links(supersedes=("x",)), Links(depends_on=("x",)), Links(relates_to=("x",)), Links()]
    hashes = {hash_content(CONTENT, links) for links in kinds}
    assert len(hashes | {hash_content(CONTENT, Links(), superseded_by=("x",))}) == 5


@pytest.mark.parametrize(
    "same",
    [
        {"date": DATE.astimezone(timezone(timedelta(hours=5)))},
        {"tags": ("ops", "ops")},
        {"context": ""},
        {"notes": ""},
    ],
)
def test_what_means_the_same_has_the_same_hash(same: dict[str, Any]) -> None:
    assert hash_content(normalize_content(replace(CONTENT, **same)), Links()) == hash_content(
        normalize_content(CONTENT), Links()
    )


def test_a_whole_number_is_the_same_confidence_as_the_fraction() -> None:
    whole, fraction = (normalize_content(replace(CONTENT, confidence=confidence)) for confidence in (1, 1.0))
    assert hash_content(whole, Links()) == hash_content(fraction, Links())
