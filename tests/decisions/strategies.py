"""Decisions and filters for property tests, from few values so that they meet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from cstp_grpc.decisions.model import DecisionContent, DecisionFilter, Reason
from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.enums import DecisionStatus, Outcome, Stakes, Visibility

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

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

contents = st.builds(
    DecisionContent,
    title=words | any_text,
    context=st.none() | any_text,
    category=st.none() | categories,
    stakes=st.none() | st.sampled_from(Stakes),
    confidence=st.none() | fractions,
    status=st.none() | st.sampled_from(DecisionStatus),
    outcome=st.none() | st.sampled_from(Outcome),
    date=st.none() | dates,
    notes=st.none() | any_text,
    reasons=st.lists(reasons, max_size=3).map(tuple),
    tags=tags,
    project=st.none() | projects,
    visibility=st.sampled_from(Visibility),
    review_by=st.none() | dates,
)


def sharings(*peers: str) -> st.SearchStrategy[ReadPolicy]:
    """What is shared with peers: all, or a part that decisions often belong to."""
    return st.builds(
        ReadPolicy.of,
        st.just(peers),
        st.lists(categories | st.just("unknown"), max_size=2),
        st.lists(st.sampled_from(["api", "data", "unknown"]), max_size=2),
    )


def some_of(words: type[Stakes] | type[DecisionStatus] | type[Outcome]) -> st.SearchStrategy[tuple[str, ...]]:
    """Any of the words of an enum, mostly none."""
    return st.just(()) | st.lists(st.sampled_from(words), unique=True, max_size=3).map(tuple)


def filters(agents: st.SearchStrategy[str]) -> st.SearchStrategy[DecisionFilter]:
    """Filters that often let something pass."""
    return st.builds(
        DecisionFilter,
        category=st.none() | categories,
        min_confidence=st.none() | fractions,
        max_confidence=st.none() | fractions,
        date_after=st.none() | dates,
        date_before=st.none() | dates,
        stakes=some_of(Stakes),
        status=some_of(DecisionStatus),
        outcome=some_of(Outcome),
        tags=st.just(()) | tags,
        project=st.none() | projects,
        agent=st.none() | agents,
        without_agent=st.none() | agents,
    )
