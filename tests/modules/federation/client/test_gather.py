"""Asking several peers at once."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.contract.errors import Conflict
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.modules.federation.fan_out import LateReplyHandler, PendingReplies
from cstp_grpc.modules.federation.peer import Peer, PeerReply
from cstp_grpc.modules.federation.peer_transport import CallMetadata, PeerCallResult, result_of_answer
from tests.client.scripted import scripted_server
from tests.modules.federation.client.servers import (
    ANSWER,
    QUERY,
    REQUEST,
    SECONDS,
    SOON,
    http,
    peer_at,
    saying,
    silent_server,
    tcp_server,
)

Done = Callable[[PeerCallResult], None]


@dataclass
class FakePeer(Peer):
    """A peer that a test plays: it keeps its questions, and answers at once where it has a result."""

    name: str
    result: PeerCallResult | None = None
    required: bool = True
    trust: float = 1.0
    timeout: float = SECONDS
    asked: list[tuple[float, CallMetadata, Done]] = field(default_factory=list)
    cancelled: int = 0

    def speaks_for(self, category: str) -> bool:
        return True

    def ask(
        self, method: RpcMethod, request: Message, timeout: float, metadata: CallMetadata, done: Done
    ) -> Callable[[], None]:
        self.asked.append((timeout, metadata, done))
        if self.result is not None:
            done(self.result)
        return self.cancel

    def cancel(self) -> None:
        self.cancelled += 1
        for _, _, done in self.asked:
            done(PeerCallResult(PeerStatus.TIMED_OUT))

    def close(self) -> None:
        """Nothing is open."""


def summary(replies: list[PeerReply]) -> list[tuple[str, PeerStatus]]:
    return [(reply.agent, reply.status) for reply in replies]


def test_nobody_asked_is_nobody_waited_for() -> None:
    assert PendingReplies([], QUERY, REQUEST, SECONDS).replies() == []


def test_replies_are_in_the_order_of_names() -> None:
    error = Conflict("no")
    peers = [
        FakePeer("c", result_of_answer(ANSWER)),
        FakePeer("a", PeerCallResult(PeerStatus.REFUSED, error=error)),
        FakePeer("b", PeerCallResult(PeerStatus.SKIPPED)),
    ]
    replies = PendingReplies(peers, QUERY, REQUEST, SECONDS).replies()
    assert summary(replies) == [("a", PeerStatus.REFUSED), ("b", PeerStatus.SKIPPED), ("c", PeerStatus.ANSWERED)]
    assert [reply.answer for reply in replies] == [None, None, ANSWER]
    assert [reply.error for reply in replies] == [error, None, None]
    assert all(reply.latency_ms >= 0 for reply in replies)


def test_each_has_its_own_timeout_and_no_more_than_is_left_for_all() -> None:
    peers = [FakePeer("a", result_of_answer(ANSWER), timeout=1.0), FakePeer("b", result_of_answer(ANSWER), timeout=9.0)]
    PendingReplies(peers, QUERY, REQUEST, 5.0, [("key", "value")]).replies()
    assert [peer.asked[0][:2] for peer in peers] == [(1.0, [("key", "value")]), (5.0, [("key", "value")])]


def test_who_does_not_answer_until_the_deadline_timed_out_and_is_waited_for_no_longer() -> None:
    peers = [FakePeer("a"), FakePeer("b", result_of_answer(ANSWER))]
    assert summary(PendingReplies(peers, QUERY, REQUEST, SOON).replies()) == [
        ("a", PeerStatus.TIMED_OUT),
        ("b", PeerStatus.ANSWERED),
    ]
    assert [peer.cancelled for peer in peers] == [1, 0]


def test_a_peer_is_waited_for_no_longer_than_its_own_timeout() -> None:
    peers = [FakePeer("a", timeout=SOON), FakePeer("b", result_of_answer(ANSWER))]
    # Were it the common deadline, this would never end.
    assert summary(PendingReplies(peers, QUERY, REQUEST, 1e6).replies()) == [
        ("a", PeerStatus.TIMED_OUT),
        ("b", PeerStatus.ANSWERED),
    ]


def test_who_answers_meanwhile_is_not_waited_for_in_the_stead_of_others() -> None:
    slow, patient = FakePeer("a", timeout=SOON), FakePeer("b", timeout=1e6)
    asked: list[Done] = []

    def clock() -> float:
        # What waits reads it at last, with the lock that takes answers.
        if not asked and patient.asked:
            asked.append(patient.asked[0][2])
            threading.Thread(target=asked[0], args=(result_of_answer(ANSWER),)).start()
        return time.monotonic()

    replies = PendingReplies([slow, patient], QUERY, REQUEST, 1e6, clock=clock).replies()
    assert summary(replies) == [("a", PeerStatus.TIMED_OUT), ("b", PeerStatus.ANSWERED)]


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_without_time_nobody_answers(seconds: float) -> None:
    peer = FakePeer("a")
    assert summary(PendingReplies([peer], QUERY, REQUEST, seconds).replies()) == [("a", PeerStatus.TIMED_OUT)]
    assert peer.cancelled == 1


def test_all_are_asked_before_any_is_waited_for() -> None:
    """Each of these peers answers only when all of them have been asked."""
    together = threading.Barrier(4)

    class Together(FakePeer):
        def ask(
            self, method: RpcMethod, request: Message, timeout: float, metadata: CallMetadata, done: Done
        ) -> Callable[[], None]:
            def answer() -> None:
                together.wait(SECONDS)
                done(result_of_answer(ANSWER))

            threading.Thread(target=answer).start()
            return self.cancel

    replies = PendingReplies([Together(name) for name in "abcd"], QUERY, REQUEST, SECONDS).replies()
    assert {reply.status for reply in replies} == {PeerStatus.ANSWERED}


def test_a_late_reply_is_handed_on_once_it_comes() -> None:
    late: list[PeerReply] = []
    slow, quick = FakePeer("slow", timeout=SOON), FakePeer("quick", result_of_answer(ANSWER), timeout=SOON)
    replies = PendingReplies([slow, quick], QUERY, REQUEST, SECONDS, late=LateReplyHandler(late.append, 30.0)).replies()
    assert summary(replies) == [("quick", PeerStatus.ANSWERED), ("slow", PeerStatus.TIMED_OUT)]
    ((timeout, _, done),) = slow.asked
    assert (timeout, slow.cancelled, late) == (30.0, 0, [])
    done(result_of_answer(ANSWER))
    assert [(reply.agent, reply.status, reply.answer) for reply in late] == [("slow", PeerStatus.ANSWERED, ANSWER)]


RESULTS = st.sampled_from(
    [result_of_answer(ANSWER), PeerCallResult(PeerStatus.UNREACHABLE), PeerCallResult(PeerStatus.TIMED_OUT), None]
)


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=3), RESULTS, max_size=8), st.booleans())
def test_every_peer_has_one_reply_and_what_is_late_comes_once(
    plays: dict[str, PeerCallResult | None], wants_late: bool
) -> None:
    late: list[PeerReply] = []
    peers = [FakePeer(name, result) for name, result in plays.items()]
    handler = LateReplyHandler(late.append, 60.0) if wants_late else None
    replies = PendingReplies(peers, QUERY, REQUEST, 0.001, late=handler).replies()
    expected = {name: result.status if result else PeerStatus.TIMED_OUT for name, result in plays.items()}
    assert dict(summary(replies)) == expected
    assert [reply.agent for reply in replies] == sorted(plays)
    silent = [peer for peer in peers if peer.result is None]
    assert [peer.cancelled for peer in silent] == [0 if wants_late else 1] * len(silent)
    if wants_late:
        for peer in silent:
            peer.asked[0][2](result_of_answer(ANSWER))
    assert sorted(reply.agent for reply in late) == (sorted(peer.name for peer in silent) if wants_late else [])


def test_each_kind_of_peer_fails_in_its_own_way_and_none_spoils_the_others() -> None:
    with ExitStack() as everything:
        enter = everything.enter_context
        good, garbled = enter(scripted_server(ANSWER)), enter(tcp_server(saying(b"hello, this is no HTTP\r\n" * 9)))
        silent, html = enter(silent_server()), enter(tcp_server(saying(http(b"<html>", "content-type: text/html\r\n"))))
        urls = {
            "answers": good.target,
            "garbled": garbled,
            "garbled-http": f"http://{garbled}",
            "html": f"http://{html}",
            "nobody": "grpc://127.0.0.1:1",
            "nobody-http": "http://127.0.0.1:1",
            "silent": silent,
            "silent-card": f"http://{silent}/card.json",
            "silent-http": f"http://{silent}",
        }
        peers = [
            enter(peer_at(url, name=name, timeout=SOON if name.startswith("silent") else SECONDS))
            for name, url in urls.items()
        ]
        assert summary(PendingReplies(reversed(peers), QUERY, REQUEST, SECONDS).replies()) == [
            ("answers", PeerStatus.ANSWERED),
            ("garbled", PeerStatus.NOT_UNDERSTOOD),
            ("garbled-http", PeerStatus.NOT_UNDERSTOOD),
            ("html", PeerStatus.NOT_UNDERSTOOD),
            ("nobody", PeerStatus.UNREACHABLE),
            ("nobody-http", PeerStatus.UNREACHABLE),
            ("silent", PeerStatus.TIMED_OUT),
            ("silent-card", PeerStatus.TIMED_OUT),
            ("silent-http", PeerStatus.TIMED_OUT),
        ]


def test_a_real_peer_may_answer_late() -> None:
    go = threading.Event()
    late: queue.SimpleQueue[PeerReply] = queue.SimpleQueue()
    with scripted_server(ANSWER) as server, peer_at(server.target, timeout=SOON) as peer:
        answer = server.answer

        def later(request: Message, context: object) -> Message:
            go.wait(SECONDS)
            return answer(request, context)  # type: ignore[arg-type]

        server.answer = later  # type: ignore[method-assign]
        try:
            (reply,) = PendingReplies(
                [peer], QUERY, REQUEST, SECONDS, late=LateReplyHandler(late.put, SECONDS)
            ).replies()
            assert reply.status is PeerStatus.TIMED_OUT
        finally:
            go.set()
        reply = late.get(timeout=SECONDS)
        assert reply.answer == ANSWER
