"""Rounds of calls that ask peers, and what this agent answers meanwhile."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import quote

import pytest
from google.protobuf.message import Message

from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.contract.errors import InvalidArgument, QueryFailed, RateLimited
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.contract.rpc_errors import STATUS_KEY
from cstp_grpc.modules.federation.fan_out import CallSubject, FanOutLimiter, InboundHop, PeerPolicy, SubjectFilter
from cstp_grpc.modules.federation.late_answers import LateReplyCollector
from cstp_grpc.modules.federation.peer import CancelCall, OnResult, Peer, PeerReply
from cstp_grpc.modules.federation.peer_transport import CallMetadata, result_of_answer
from cstp_grpc.server.interceptors.error_status import to_status
from tests.modules.federation.client.answers import query
from tests.modules.federation.client.servers import REQUEST, SECONDS
from tests.waiting import wait_until

NOWHERE = SubjectFilter(frozenset(), frozenset())
ARRIVED = InboundHop(None, lambda: None)


@dataclass
class WaitingPeer(Peer):
    """A peer that answers once it may."""

    name: str = "peer"
    required: bool = True
    trust: float = 1.0
    timeout: float = SECONDS
    may: threading.Event = field(default_factory=threading.Event)
    answered: bool = False
    cancelled: bool = False

    def speaks_for(self, category: str) -> bool:
        return True

    def ask(
        self, method: RpcMethod, request: Message, timeout: float, metadata: CallMetadata, done: OnResult
    ) -> CancelCall:
        def answer() -> None:
            self.may.wait(SECONDS)
            self.answered = True
            done(result_of_answer(query()))

        threading.Thread(target=answer).start()
        return self.cancel

    def cancel(self) -> None:
        self.cancelled = True

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class LateReplies(LateReplyCollector):
    """Keeps what comes late."""

    seconds: float = SECONDS
    taken: list[PeerReply] = field(default_factory=list)

    def awaits(self, agent: str) -> bool:
        return True

    def take(self, reply: PeerReply) -> None:
        self.taken.append(reply)


def rounds(peer: WaitingPeer) -> FanOutLimiter:
    return FanOutLimiter(
        "me", PeerPolicy([peer], NOWHERE, []), max_hops=1, max_calls=1, seconds=SECONDS, max_bytes=65_536
    )


def test_the_own_answer_and_those_of_peers_are_found_at_the_same_time() -> None:
    peer = WaitingPeer()

    async def own() -> str:
        peer.may.set()
        return "mine"

    with rounds(peer).plan_fan_out("1", CallSubject(None), (), ARRIVED, judging=False) as asked:
        assert asked is not None
        answer, (theirs,) = asyncio.run(asked.ask_peers_while("cstp.queryDecisions", REQUEST, own()))
    assert (answer, theirs.status) == ("mine", PeerStatus.ANSWERED)


def test_a_call_that_fails_here_keeps_its_place_until_the_peers_have_answered() -> None:
    peer = WaitingPeer()
    asking = rounds(peer)

    async def own() -> str:
        with pytest.raises(RateLimited), asking.plan_fan_out("2", CallSubject(None), (), ARRIVED, judging=False):
            pytest.fail("there is no place")
        peer.may.set()
        raise QueryFailed("no")

    with asking.plan_fan_out("1", CallSubject(None), (), ARRIVED, judging=False) as asked:
        assert asked is not None
        with pytest.raises(QueryFailed):
            asyncio.run(asked.ask_peers_while("cstp.queryDecisions", REQUEST, own()))
        assert peer.answered


def test_a_call_that_is_cancelled_asks_nobody_any_more() -> None:
    peer = WaitingPeer()

    async def cancel() -> None:
        with rounds(peer).plan_fan_out("1", CallSubject(None), (), ARRIVED, judging=False) as asked:
            assert asked is not None
            answers = asyncio.ensure_future(asked.ask_peers("cstp.queryDecisions", REQUEST))
            await asyncio.sleep(0)
            answers.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answers

    asyncio.run(cancel())
    assert peer.cancelled
    peer.may.set()


def test_what_comes_late_to_a_call_that_was_cancelled_is_taken() -> None:
    peer, late = WaitingPeer(), LateReplies()

    async def cancel() -> None:
        with rounds(peer).plan_fan_out("1", CallSubject(None), (), ARRIVED, judging=False) as asked:
            assert asked is not None
            answers = asyncio.ensure_future(asked.ask_peers("cstp.queryDecisions", REQUEST, late))
            await asyncio.sleep(0)
            answers.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answers

    asyncio.run(cancel())
    peer.may.set()
    wait_until(lambda: [reply.agent for reply in late.taken] == ["peer"], "the late reply is taken")


def test_where_nobody_has_the_names_of_a_call_its_error_can_be_sent() -> None:
    names = [f"{number:02}{'ä' * 198}" for number in range(32)]
    wanted = rounds(WaitingPeer()).plan_fan_out("1", CallSubject(None), names, ARRIVED, judging=True)
    with pytest.raises(InvalidArgument, match="no peer 00ä") as raised, wanted:
        pytest.fail("nobody is asked")
    assert [each.field for each in raised.value.violations] == [f"agents[{number}]" for number in range(32)]
    status = to_status(raised.value, "req-1")
    # Many clients refuse more than 8 KiB of what errors travel in.
    assert len(quote(status.details)) + len(b64encode(dict(status.trailing_metadata)[STATUS_KEY])) < 8192  # type: ignore[arg-type]
