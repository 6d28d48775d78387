"""When a peer is asked and when not: its circuit breaker, its callers and its closing."""

from __future__ import annotations

import queue
from contextlib import ExitStack
from typing import Any

import pytest

from cstp_grpc.contract import errors
from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from cstp_grpc.modules.federation.peer import CircuitBreaker
from cstp_grpc.modules.federation.peer_transport import PeerCallResult
from tests.modules.federation.client.links import TRANSPORTS, Clock, answering, waiting
from tests.modules.federation.client.servers import (
    ANSWER,
    QUERY,
    REQUEST,
    SECONDS,
    SOON,
    ask,
    peer_at,
    silent_server,
)
from tests.waiting import wait_until


@TRANSPORTS
def test_a_stalled_peer_keeps_only_its_own_callers_waiting(scheme: str) -> None:
    got: queue.SimpleQueue[PeerCallResult] = queue.SimpleQueue()
    with waiting(scheme) as (url, go), answering(scheme, ANSWER) as (other_url, _), ExitStack() as peers:
        stalled, other = peers.enter_context(peer_at(url, max_calls=2)), peers.enter_context(peer_at(other_url))
        for _ in range(2):
            stalled.ask(QUERY, REQUEST, SECONDS, (), got.put)
        full = ask(stalled)
        assert full.status is PeerStatus.UNREACHABLE
        assert full.error is not None
        assert full.error.message == "2 calls wait for it already"
        assert ask(other).status is PeerStatus.ANSWERED
        go.set()
        assert [got.get(timeout=SECONDS).status for _ in range(2)] == [PeerStatus.ANSWERED] * 2
        wait_until(lambda: ask(stalled).status is PeerStatus.ANSWERED, "the places are free again")


@TRANSPORTS
def test_who_does_not_wait_any_longer_is_told_so_once(scheme: str) -> None:
    got: list[PeerCallResult] = []
    with waiting(scheme) as (url, go), peer_at(url, max_calls=1) as peer:
        stop = peer.ask(QUERY, REQUEST, SECONDS, (), got.append)
        stop()
        stop()
        assert got == [PeerCallResult(PeerStatus.TIMED_OUT)]
        go.set()
        wait_until(lambda: ask(peer).status is PeerStatus.ANSWERED, "its answer has come")
        assert len(got) == 1


@TRANSPORTS
def test_an_answer_that_came_is_not_taken_back(scheme: str) -> None:
    got: queue.SimpleQueue[PeerCallResult] = queue.SimpleQueue()
    with answering(scheme, ANSWER) as (url, _), peer_at(url) as peer:
        stop = peer.ask(QUERY, REQUEST, SECONDS, (), got.put)
        assert got.get(timeout=SECONDS).status is PeerStatus.ANSWERED
        stop()
        assert got.empty()


@TRANSPORTS
def test_closing_ends_all_waiting(scheme: str) -> None:
    got: queue.SimpleQueue[PeerCallResult] = queue.SimpleQueue()
    with waiting(scheme) as (url, _), peer_at(url) as peer:
        for _ in range(3):
            peer.ask(QUERY, REQUEST, SECONDS, (), got.put)
        peer.close()
        assert {got.get(timeout=SECONDS).status for _ in range(3)} == {PeerStatus.UNREACHABLE}
        assert ask(peer).status is PeerStatus.UNREACHABLE
        assert got.empty()


@TRANSPORTS
def test_who_fails_to_take_a_result_harms_nobody(scheme: str) -> None:
    def take(result: PeerCallResult) -> None:
        raise ValueError(result.status)

    with answering(scheme, ANSWER) as (url, server), peer_at(url, max_calls=1) as peer:
        peer.ask(QUERY, REQUEST, SECONDS, (), take)
        wait_until(lambda: len(server.requests) == 1, "it was asked")
        wait_until(lambda: ask(peer).status is PeerStatus.ANSWERED, "it can be asked again")


@TRANSPORTS
def test_a_peer_whose_answers_make_no_sense_is_one_that_fails(scheme: str) -> None:
    nonsense = cstp_pb2.QueryDecisionsResponse(query="x")
    with answering(scheme, nonsense) as (url, server), peer_at(url, breaker=CircuitBreaker(2, 10.0)) as peer:
        results = [ask(peer) for _ in range(3)]
        assert len(server.requests) == 2
    assert [result.status for result in results] == [PeerStatus.NOT_UNDERSTOOD] * 2 + [PeerStatus.SKIPPED]
    assert {str(result.error) for result in results[:2]} == {"it does not answer this call"}
    assert all(result.answer is None for result in results)


def test_a_peer_that_keeps_failing_is_not_asked_for_a_while() -> None:
    clock = Clock()
    script = [errors.InternalError("no"), errors.InternalError("no"), ANSWER]
    breaker = CircuitBreaker(2, 10.0, clock)
    with answering("grpc", *script) as (url, server), peer_at(url, breaker=breaker) as peer:
        assert [ask(peer).status for _ in range(2)] == [PeerStatus.UNREACHABLE] * 2
        assert [ask(peer).status for _ in range(3)] == [PeerStatus.SKIPPED] * 3
        assert len(server.requests) == 2
        clock.now += 10
        assert ask(peer).status is PeerStatus.ANSWERED
        assert ask(peer).status is PeerStatus.ANSWERED


def test_a_peer_that_refuses_works() -> None:
    with answering("grpc", errors.RateLimited("no")) as (url, _), peer_at(url, breaker=CircuitBreaker(1, 10.0)) as peer:
        assert [ask(peer).status for _ in range(3)] == [PeerStatus.REFUSED] * 3


@TRANSPORTS
def test_a_peer_that_had_its_time_and_was_silent_has_failed(scheme: str) -> None:
    wanted: dict[str, Any] = {"timeout": SOON, "breaker": CircuitBreaker(1, 100.0)}
    with silent_server() as address, peer_at(f"{scheme}://{address}", **wanted) as peer:
        assert [ask(peer, SOON).status for _ in range(2)] == [PeerStatus.TIMED_OUT, PeerStatus.SKIPPED]


@TRANSPORTS
def test_callers_in_a_hurry_say_nothing_of_a_peer(scheme: str) -> None:
    with waiting(scheme) as (url, go), peer_at(url, breaker=CircuitBreaker(1, 100.0)) as peer:
        assert [ask(peer, 0.05).status for _ in range(3)] == [PeerStatus.TIMED_OUT] * 3
        peer.ask(QUERY, REQUEST, SECONDS, (), lambda result: None)()
        go.set()
        assert ask(peer).status is PeerStatus.ANSWERED


@pytest.mark.parametrize("trial", ["hurried", "cancelled", "without a place"])
def test_a_trial_without_an_outcome_is_followed_by_another(trial: str) -> None:
    clock = Clock()
    breaker = CircuitBreaker(1, 10.0, clock)
    with waiting("grpc") as (url, go), peer_at(url, breaker=breaker, max_calls=1) as peer:
        if trial == "without a place":
            peer.ask(QUERY, REQUEST, SECONDS, (), lambda result: None)
        breaker.record_failure()
        clock.now += 10
        if trial == "cancelled":
            peer.ask(QUERY, REQUEST, SECONDS, (), lambda result: None)()
        else:
            assert ask(peer, 0.05).status in (PeerStatus.TIMED_OUT, PeerStatus.UNREACHABLE)
        go.set()
        wait_until(lambda: ask(peer).status is PeerStatus.ANSWERED, "the peer is asked again")
