"""Messages of matches, which are made once as long as the matches are the same objects."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from cstp_grpc.contract.enums import DecisionStatus, Visibility
from cstp_grpc.core.decisions.messages import SIMILAR_DECISION
from cstp_grpc.core.decisions.model import Decision, Match
from cstp_grpc.core.decisions.search.search_results import MatchMessages
from cstp_grpc.gen.cstp.v1 import cstp_pb2

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Converter:
    """Converts matches, and remembers which."""

    def __init__(self) -> None:
        self.converted: list[Match] = []

    def __call__(self, match: Match) -> cstp_pb2.SimilarDecision:
        self.converted.append(match)
        return SIMILAR_DECISION.encode(match)


def match(number: int) -> Match:
    decision = Decision(f"dec-{number}", "queue", DecisionStatus.DECIDED, NOON, "ada", Visibility.SHARED)
    return Match(decision, 0.5)


def test_a_match_is_converted_once() -> None:
    convert, matches = Converter(), [match(1), match(2)]
    messages = MatchMessages(convert)
    first = messages.of(matches)
    assert [message.id for message in first] == ["dec-1", "dec-2"]
    assert messages.of([*matches[1:], match(3)])[0] is first[1]
    assert [each.decision.id for each in convert.converted] == ["dec-1", "dec-2", "dec-3"]


def test_a_match_that_is_only_equal_or_changed_is_converted_for_itself() -> None:
    messages, known = MatchMessages(SIMILAR_DECISION.encode), match(1)
    messages.of([known])
    renamed = replace(known, decision=replace(known.decision, title="cache"))
    assert [message.title for message in messages.of([known, renamed, match(1)])] == ["queue", "cache", "queue"]


def test_no_more_messages_are_kept_than_may_be_and_none_of_another_match_is_given() -> None:
    convert = Converter()
    messages = MatchMessages(convert, max_kept=3)
    for number in range(50):
        # Each match is gone before the next is made, so that they may have the same identity.
        assert [message.id for message in messages.of([match(number)])] == [f"dec-{number}"]
    last = [match(number) for number in range(4)]
    messages.of(last)
    convert.converted.clear()
    messages.of(last)
    assert convert.converted, "what was kept first is not kept any more"
