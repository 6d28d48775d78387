"""What became of asking each peer, read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from cstp_grpc.client.federation.gather import Reply
from cstp_grpc.client.federation.links import Peer
from cstp_grpc.client.federation.model import Judgement, Opinion, Recollection
from cstp_grpc.client.federation.reading import judgement_of, recollection_of, similar_of
from cstp_grpc.client.words import told
from cstp_grpc.errors import DeadlineExceeded, InternalError, PermissionDenied, Unavailable
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from cstp_grpc.vocabulary import PeerStatus

SAID: Final[Mapping[PeerStatus, tuple[str, str]]] = {
    PeerStatus.REFUSED: (PermissionDenied.reason, "It refuses to answer"),
    PeerStatus.UNREACHABLE: (Unavailable.reason, "It cannot be reached or fails"),
    PeerStatus.TIMED_OUT: (DeadlineExceeded.reason, "It did not answer in time"),
    PeerStatus.NOT_UNDERSTOOD: (InternalError.reason, "Its answer was not understood"),
    PeerStatus.SKIPPED: (Unavailable.reason, "It failed so often that it is not asked for a while"),
}
"""What is told of a peer that did not answer: the reason, where its error has none, and words."""
NO_VERDICT: Final = "It answered without a verdict"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a peer gave no answer: a reason of the contract, and words on one line."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a peer says of an intent beside its verdict; `similar` has messages of SimilarDecision as contents."""

    received_at: Timestamp
    similar: Recollection
    suggestions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """What a peer answered, or why it did not: there is a `failure` exactly where the status is not ANSWERED.

    There is a `judgement` where guardrails were asked and judged, a `recollection` where decisions were asked for, with
    messages of DecisionSummary as contents, and `feedback` where an intent was announced.
    """

    agent: str
    required: bool
    status: PeerStatus
    latency_ms: float
    failure: Failure | None = None
    judgement: Judgement | None = None
    recollection: Recollection | None = None
    feedback: Feedback | None = None

    @property
    def opinion(self) -> Opinion:
        """What it says of an action."""
        if self.judgement is not None:
            return Opinion(self.agent, self.required, self.judgement)
        why = self.failure.message if self.failure else NO_VERDICT
        return Opinion(self.agent, self.required, why=f"{why}.")


def understood(replies: Iterable[Reply], peers: Iterable[Peer], required: Collection[str]) -> list[PeerAnswer]:
    """Return what peers replied; those named in `required` are required."""
    trust = {peer.name: peer.trust for peer in peers}
    return [understand(reply, required=reply.agent in required, trust=trust[reply.agent]) for reply in replies]


def understand(reply: Reply, *, required: bool, trust: float) -> PeerAnswer:
    """Return what a peer replied."""
    if reply.status is not PeerStatus.ANSWERED:
        return failed(reply, required)
    message, judgement, recollection, feedback = reply.answer, None, None, None
    match message:
        case cstp_pb2.CheckGuardrailsResponse():
            judgement = judgement_of(message, reply.agent, message.agent)
        case cstp_pb2.QueryDecisionsResponse():
            recollection = recollection_of(message, reply.agent, trust)
        case cstp_pb2.AnnounceIntentResponse():
            if message.HasField("guardrail_status"):
                judgement = judgement_of(message.guardrail_status, reply.agent, message.responding_agent)
            similar = similar_of(message, reply.agent, trust)
            feedback = Feedback(message.received_at, similar, tuple(message.suggestions))
    return PeerAnswer(
        reply.agent,
        required,
        PeerStatus.ANSWERED,
        reply.latency_ms,
        judgement=judgement,
        recollection=recollection,
        feedback=feedback,
    )


def failed(reply: Reply, required: bool) -> PeerAnswer:
    """Return what became of asking a peer that gave no answer."""
    reason, words = SAID[reply.status]
    error = reply.error
    failure = Failure(error.reason, told(words, error.message)) if error else Failure(reason, words)
    return PeerAnswer(reply.agent, required, reply.status, reply.latency_ms, failure)


def not_understood(answer: PeerAnswer, why: str) -> PeerAnswer:
    """Return an answer as one that was not understood."""
    reason, words = SAID[PeerStatus.NOT_UNDERSTOOD]
    failure = Failure(reason, told(words, why))
    return PeerAnswer(answer.agent, answer.required, PeerStatus.NOT_UNDERSTOOD, answer.latency_ms, failure)


def without_memory(peer: PeerAnswer) -> PeerAnswer:
    """Return what a peer said of an intent without its decisions, and without what it suggests because of them."""
    if peer.feedback is None:
        return peer
    return replace(peer, feedback=Feedback(peer.feedback.received_at, Recollection(), ()))
