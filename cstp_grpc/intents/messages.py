"""Messages of search results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from cstp_grpc.contract import proto_values
from cstp_grpc.decisions import messages
from cstp_grpc.decisions.model import Match
from cstp_grpc.gen.cstp.v1 import cstp_pb2

MessageT = TypeVar("MessageT", bound=Message)

MAX_KEPT: Final = 1000
"""Maximum number of matches whose messages are kept. Chosen: the results of some hundred searches, about 2 MB."""


class MatchMessages(Generic[MessageT]):
    """Converts matches to messages, and keeps these: a search that is repeated finds the same objects again.

    A message is not to be changed. For one thread.
    """

    def __init__(self, convert: Callable[[Match], MessageT], max_kept: int = MAX_KEPT) -> None:
        self._convert = convert
        self._max_kept = max_kept
        # By identity, because hashing a match takes longer than converting it. The match is kept beside its message,
        # so that no other object can have its identity.
        self._kept: dict[int, tuple[Match, MessageT]] = {}

    def of(self, matches: Sequence[Match]) -> list[MessageT]:
        """Return the messages of matches."""
        return [self._message(match) for match in matches]

    def _message(self, match: Match) -> MessageT:
        kept = self._kept.get(id(match))
        if kept is not None:
            return kept[1]
        message = self._convert(match)
        if len(self._kept) >= self._max_kept:
            self._kept.clear()
        self._kept[id(match)] = match, message
        return message


def similar_decision_message(match: Match) -> cstp_pb2.SimilarDecision:
    """Convert a match to a similar decision of an announcement's response."""
    return cstp_pb2.SimilarDecision(
        id=match.decision.id,
        title=match.decision.title,
        outcome=proto_values.OUTCOME.number(match.decision.outcome),
        date=proto_values.timestamp_message(match.decision.date),
        distance=match.distance,
        score=match.score,
        notes=match.decision.notes,
        matched_by=map(messages.MATCH_REASON.number, match.matched_by),
        similar_count=match.similar_count,
        similar_outcomes=map(proto_values.OUTCOME.number, match.similar_outcomes),
        status=proto_values.STATUS.number(match.decision.status),
        superseded_by=match.superseded_by,
    )


def decision_summary(match: Match, include_reasons: bool) -> cstp_pb2.DecisionSummary:
    """Convert a match to a decision summary of a query's response."""
    item = match.decision
    return cstp_pb2.DecisionSummary(
        id=item.id,
        title=item.title,
        category=item.category,
        confidence=item.confidence,
        stakes=proto_values.STAKES.number(item.stakes),
        status=proto_values.STATUS.number(item.status),
        outcome=proto_values.OUTCOME.number(item.outcome),
        date=proto_values.timestamp_message(item.date),
        distance=match.distance,
        notes=item.notes,
        # None for an empty list, which takes as long to be set as the other fields together.
        reasons=[reason.type for reason in item.reasons] or None if include_reasons else None,
        tags=item.tags or None,
        project=item.project,
        agent=item.agent,
        score=match.score,
        matched_by=map(messages.MATCH_REASON.number, match.matched_by),
        similar_count=match.similar_count,
        similar_outcomes=map(proto_values.OUTCOME.number, match.similar_outcomes) if match.similar_outcomes else None,
        superseded_by=match.superseded_by,
    )
