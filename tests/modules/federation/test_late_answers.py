"""What becomes of answers to announcements that come too late."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pytest

from cstp_grpc.contract.caller import Caller, current_caller
from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.contract.errors import PermissionDenied
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2
from cstp_grpc.modules.callbacks.outbox import CallbackOutbox
from cstp_grpc.modules.federation.fan_out import LateReplyHandler, PendingReplies
from cstp_grpc.modules.federation.late_answers import MAX_LATE_ANSWERS, LateAnswerForwarder, LateReplyCollector
from cstp_grpc.modules.federation.peer_transport import PeerCallResult, result_of_answer, unreadable_result
from tests.modules.federation.client.answers import announcement, replied, similar, violation
from tests.modules.federation.client.test_gather import FakePeer

HOOK = "https://agents.example.com/hook"
VERDICT = cstp_pb2.GuardrailStatus(allowed=False, violations=[violation("no")], evaluated=2)
ANSWER = announcement(similar("dec-1"), verdict=VERDICT, suggestions=("Wait",))
SLOW = 0.001


class Told:
    """Keeps what agents are told at one address."""

    def __init__(self) -> None:
        self.late_ones: list[tuple[str, str, int, str, Mapping[str, Any]]] = []

    def is_allowed(self, url: str | None) -> bool:
        return url == HOOK

    def queue_late_answer(
        self, agent: str, correlation_id: str, revision: int, url: str, response: Mapping[str, Any]
    ) -> None:
        self.late_ones.append((agent, correlation_id, revision, url, response))

    @property
    def peers(self) -> list[str]:
        return [response["agent"] for *_, response in self.late_ones]


@pytest.fixture(autouse=True)
def alice() -> Iterator[None]:
    token = current_caller.set(Caller("alice", "alice"))
    yield
    current_caller.reset(token)


def request(url: str | None = HOOK) -> cstp_pb2.AnnounceIntentRequest:
    agent = types_pb2.AgentInfo(id="claimed", url=url)
    return cstp_pb2.AnnounceIntentRequest(intent="Ship it", correlation_id="c-1", agent=agent)


def forwarder(told: Told, most: int = MAX_LATE_ANSWERS) -> LateAnswerForwarder:
    return LateAnswerForwarder(cast("CallbackOutbox", told), 30.0, most)


def late_replies(
    told: Told, peers: Sequence[FakePeer], most: int = MAX_LATE_ANSWERS, *, narrowed: bool = False
) -> LateReplyCollector:
    found = forwarder(told, most).collector_for(request(), 2, peers, narrowed=narrowed)
    assert found is not None
    return found


def announced(late: LateReplyCollector, peers: Sequence[FakePeer]) -> None:
    """Announce to peers, and do not wait for them for long."""
    PendingReplies(
        peers,
        contract_methods()["cstp.announceIntent"],
        request(),
        SLOW,
        late=LateReplyHandler(late.take, late.seconds, late.awaits),
    ).replies()


def answer(peer: FakePeer, result: PeerCallResult | None = None) -> None:
    peer.asked[-1][2](result or result_of_answer(ANSWER))


@pytest.mark.parametrize("url", [None, "", "https://other.example.com/hook"])
def test_without_an_address_on_the_list_nobody_is_waited_for(url: str | None) -> None:
    assert forwarder(Told()).collector_for(request(url), 1, [FakePeer("b")], narrowed=False) is None


def test_a_late_answer_is_told_as_the_answer_of_its_peer() -> None:
    told, peers = Told(), [FakePeer("b"), FakePeer("c", result_of_answer(ANSWER))]
    announced(late_replies(told, peers), peers)
    assert told.late_ones == []
    answer(peers[0])
    ((agent, correlation_id, revision, url, response),) = told.late_ones
    assert (agent, correlation_id, revision, url) == ("alice", "c-1", 2, HOOK)
    assert (response["agent"], response["status"]) == ("b", "answered")
    assert response["guardrailStatus"]["allowed"] is False
    assert [each["guardrailId"] for each in response["guardrailStatus"]["violations"]] == ["no"]
    assert [each["id"] for each in response["feedback"]["similarDecisions"]] == ["dec-1"]
    assert response["feedback"]["suggestions"] == ["Wait"]


def test_who_finds_only_a_part_is_told_the_verdict_alone() -> None:
    told, peers = Told(), [FakePeer("b")]
    announced(late_replies(told, peers, narrowed=True), peers)
    answer(peers[0])
    ((*_, response),) = told.late_ones
    assert response["guardrailStatus"]["allowed"] is False
    assert response["feedback"]["similarDecisions"] == []
    assert response["feedback"]["suggestions"] == []


@pytest.mark.parametrize(
    "result",
    [
        PeerCallResult(PeerStatus.UNREACHABLE),
        PeerCallResult(PeerStatus.TIMED_OUT),
        PeerCallResult(PeerStatus.REFUSED, error=PermissionDenied("no")),
        unreadable_result("it does not answer this call"),
    ],
)
def test_what_is_no_answer_is_not_told(result: PeerCallResult) -> None:
    told, peers = Told(), [FakePeer("b"), FakePeer("c")]
    announced(late_replies(told, peers), peers)
    for peer in peers:
        answer(peer, result if peer.name == "b" else None)
    assert told.peers == ["c"]


def test_no_more_are_waited_for_than_there_are_places() -> None:
    told = Told()
    peers = [FakePeer(name) for name in "bcde"]
    answers = forwarder(told, 3)
    for round_number in range(2):
        late = answers.collector_for(request(), 1, peers, narrowed=False)
        assert late is not None
        announced(late, peers)
        assert [peer.cancelled for peer in peers] == [0, 0, 0, round_number + 1]
        for peer in peers[:3]:
            answer(peer)
    assert told.peers == ["b", "c", "d", "b", "c", "d"]


def test_a_reply_between_the_end_and_the_question_whether_it_is_awaited_takes_no_place() -> None:
    told, places = Told(), threading.Semaphore(1)
    late = LateReplyCollector(
        [FakePeer("b")], places, lambda answer: told.queue_late_answer("", "", 1, "", {"agent": answer.agent}), 30.0
    )
    late.take(replied("b", ANSWER))
    assert late.awaits("b")
    assert told.peers == ["b"]
    assert places.acquire(blocking=False)


def test_a_place_is_free_again_when_telling_fails() -> None:
    def failing(_: object) -> None:
        raise ValueError("no JSON")

    places = threading.Semaphore(1)
    late = LateReplyCollector([FakePeer("b")], places, failing, 30.0)
    assert late.awaits("b")
    with pytest.raises(ValueError, match="no JSON"):
        late.take(replied("b", ANSWER))
    assert places.acquire(blocking=False)
