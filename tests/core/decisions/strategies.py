"""Decisions and filters for property tests, from few values so that they meet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.core.decisions.model import DecisionContent, DecisionFilter, Reason
from cstp_grpc.core.decisions.read_policy import ReadPolicy

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

Fields = dict[str, st.SearchStrategy[Any]]
"""The values of each field of a class."""

any_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
words = st.sampled_from(
    ["use queues", "drop the cache", "split the service", "größer — 大きい", "a 'quoted' \"%_\\ name"]
)
categories = st.sampled_from(["architecture", "process", "Architecture"])
projects = st.sampled_from(["atlas", "borealis"])
tags = st.lists(st.sampled_from(["api", "data", "ops", "Api"]), unique=True, max_size=3).map(tuple)
fractions = st.sampled_from([0.0, 0.25, 0.5, 1.0])
dates = st.sampled_from([EPOCH, EPOCH + timedelta(microseconds=1), EPOCH + timedelta(days=400)]) | st.datetimes(
    timezones=st.just(UTC)
)

reasons = st.builds(
    Reason, type=st.sampled_from(["analysis", "precedent"]), text=any_text, strength=st.none() | fractions
)

CONTENT_FIELDS: Fields = {
    "title": words | any_text,
    "context": st.none() | any_text,
    "category": st.none() | categories,
    "stakes": st.none() | st.sampled_from(Stakes),
    "confidence": st.none() | fractions,
    "status": st.none() | st.sampled_from(DecisionStatus),
    "outcome": st.none() | st.sampled_from(Outcome),
    "date": st.none() | dates,
    "notes": st.none() | any_text,
    "reasons": st.lists(reasons, max_size=3).map(tuple),
    "tags": tags,
    "project": st.none() | projects,
    "visibility": st.sampled_from(Visibility),
    "review_by": st.none() | dates,
}
contents = st.builds(DecisionContent, **CONTENT_FIELDS)


def sharings(*peers: str) -> st.SearchStrategy[ReadPolicy]:
    """What is shared with peers: all, or a part that decisions often belong to."""
    return st.builds(
        ReadPolicy.of,
        st.just(peers),
        st.just([]) | st.lists(categories | st.just("unknown"), min_size=1, max_size=2),
        st.just([]) | st.lists(st.sampled_from(["api", "data", "unknown"]), min_size=1, max_size=2),
    )


def some_of(words: type[Stakes] | type[DecisionStatus] | type[Outcome]) -> st.SearchStrategy[tuple[str, ...]]:
    """Some of the words of an enum."""
    return st.lists(st.sampled_from(words), unique=True, max_size=3).map(tuple)


def filter_fields(agents: st.SearchStrategy[str]) -> Fields:
    """The values of each condition of a filter."""
    return {
        "category": categories,
        "min_confidence": fractions,
        "max_confidence": fractions,
        "date_after": dates,
        "date_before": dates,
        "stakes": some_of(Stakes),
        "status": some_of(DecisionStatus),
        "outcome": some_of(Outcome),
        "tags": tags,
        "project": projects,
        "agent": agents,
        "without_agent": agents,
    }


def filters(agents: st.SearchStrategy[str]) -> st.SearchStrategy[DecisionFilter]:
    """Filters with at most two conditions: with more, hardly any decision passes, and no leak is visible."""
    values = filter_fields(agents)
    chosen = st.lists(st.sampled_from(sorted(values)), unique=True, max_size=2)
    return chosen.flatmap(lambda names: st.builds(DecisionFilter, **{name: values[name] for name in names}))
