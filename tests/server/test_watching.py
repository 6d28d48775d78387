"""WatchEvents as those see it who watch a whole server."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.client.grpc_transport import ResponseStream
from cstp_grpc.contract.errors import (
    AuthenticationRequired,
    CstpError,
    InvalidArgument,
    PermissionDenied,
    RateLimited,
    Unavailable,
)
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import journal_pb2
from cstp_grpc.gen.liaison.v1 import liaison_pb2
from cstp_grpc.server.app import App
from tests.harness import TIMEOUT, TOKENS, running, settings
from tests.server.agents import clients
from tests.waiting import wait_until

WATCH = contract_methods()["liaison.watchEvents"]


def watch(client: CstpClient, **conditions: Any) -> ResponseStream:
    """Watch; a watch that is refused raises at the first answer."""
    return client.watch(WATCH, liaison_pb2.WatchEventsRequest(**conditions))


def following(answers: ResponseStream) -> tuple[int, str]:
    """Return sequence and type of the next event."""
    answer = next(answers)
    assert isinstance(answer, liaison_pb2.WatchEventsResponse)
    return answer.event.sequence, answer.event.type


def refused(client: CstpClient) -> CstpError:
    """Return why a watch is refused."""
    with watch(client, after=0) as answers, pytest.raises(CstpError) as caught:
        next(answers)
    return caught.value


def is_let_in(client: CstpClient) -> bool:
    """Whether a watch sees an event that is there."""
    with watch(client, after=0) as answers:
        try:
            return bool(next(answers))
        except RateLimited:
            return False


def test_a_watch_after_an_event_that_never_was_is_refused(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, clients(app, "alice", "carol") as (alice, carol):
        alice.liaison.open_session(user_id="ada", chat_session_id="s-1")
        for client, newest in ((alice, 1), (carol, 0)):
            with watch(client, after=newest + 1) as answers, pytest.raises(InvalidArgument) as caught:
                next(answers)
            assert [(each.field, str(newest) in each.description) for each in caught.value.violations] == [
                ("after", True)
            ]
        with watch(alice, after=1) as answers:
            alice.liaison.close_session("s-1")
            assert following(answers) == (2, "session_closed")


def test_a_watch_sees_what_happens_and_another_goes_on_where_it_ended(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, clients(app, "alice", "bob") as (alice, bob):
        with watch(alice, chat_session_id="s-1") as answers:
            alice.liaison.open_session(user_id="ada", chat_session_id="s-1")
            alice.liaison.open_session(user_id="eve", chat_session_id="s-2")
            bob.liaison.append_message("s-1", "Hello", role="user")
            opened, appended = following(answers), following(answers)
        assert (opened[1], appended[1]) == ("session_opened", "message_appended")
        alice.liaison.close_session("s-1")
        with watch(bob, chat_session_id="s-1", after=appended[0]) as answers:
            assert following(answers)[1] == "session_closed"


def test_no_more_watch_than_may_while_everybody_else_is_served(tmp_path: Path) -> None:
    narrow = settings(tmp_path, liaison={"max_watchers": 2})
    with running(narrow) as app, clients(app, "alice", "bob") as (alice, bob):
        alice.liaison.open_session(user_id="ada")
        with watch(alice, after=0) as first, watch(bob, after=0) as second:
            assert following(first) == following(second)
            for _ in range(20):
                error = refused(bob)
                assert isinstance(error, RateLimited)
                assert "the limit is 2" in error.message
                assert error.request_id
            record = journal_pb2.ImportDecisionsRequest(source="a", decision=journal_pb2.DecisionContent(title="A"))
            assert len(list(alice.import_decisions([record]))) == 1
            assert bob.check_guardrails("deploy").evaluated > 0
        wait_until(lambda: is_let_in(bob), "who left made room")


def test_an_agent_watches_no_more_than_it_may(tmp_path: Path) -> None:
    narrow = settings(tmp_path, liaison={"watchers_per_agent": 1})
    with running(narrow) as app, clients(app, "alice", "bob") as (alice, bob):
        alice.liaison.open_session(user_id="ada")
        with watch(alice, after=0) as answers:
            following(answers)
            error = refused(alice)
            assert isinstance(error, RateLimited)
            assert "the limit of an agent is 1" in error.message
            assert is_let_in(bob)
        wait_until(lambda: is_let_in(alice), "who left made room")


def test_a_caller_that_is_gone_without_a_word_makes_room(tmp_path: Path) -> None:
    with running(settings(tmp_path, liaison={"max_watchers": 1})) as app, clients(app, "alice", "bob") as (alice, bob):
        alice.liaison.open_session(user_id="ada")
        answers = watch(bob, after=0)
        following(answers)
        bob.close()
        wait_until(lambda: is_let_in(alice), "who is gone made room")


def test_a_server_that_stops_ends_all_who_watch_and_says_why(tmp_path: Path) -> None:
    app = App(settings(tmp_path, grpc={"drain_seconds": 100 * TIMEOUT}))
    app.start()
    with clients(app, "alice", "bob") as (alice, bob):
        held = [watch(client) for client in (alice, bob)]
        stopping = threading.Thread(target=app.stop)
        stopping.start()
        for answers in held:
            with pytest.raises(Unavailable, match="the server is stopping") as caught:
                next(answers)
            assert caught.value.request_id
        stopping.join(TIMEOUT)
        assert not stopping.is_alive()


def test_only_those_who_may_converse_watch(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, clients(app, "reader") as (reader,):
        assert isinstance(refused(reader), PermissionDenied)
        with CstpClient(app.target) as stranger:
            assert isinstance(refused(stranger), AuthenticationRequired)


def test_calls_of_watchers_that_are_cut_off_in_a_rush_leave_no_place_taken(tmp_path: Path) -> None:
    with running(settings(tmp_path, liaison={"max_watchers": 3})) as app, clients(app, "alice") as (alice,):
        alice.liaison.open_session(user_id="ada")
        with grpc.insecure_channel(app.target) as channel:
            begin: Any = channel.unary_stream(WATCH.path)
            metadata = (("authorization", f"Bearer {TOKENS['bob']}"),)
            for _ in range(100):
                begin(liaison_pb2.WatchEventsRequest().SerializeToString(), metadata=metadata, timeout=TIMEOUT).cancel()
        held: list[ResponseStream] = []

        def all_let_in() -> bool:
            answers = watch(alice, after=0)
            try:
                next(answers)
            except RateLimited:
                return False
            held.append(answers)
            return len(held) == 3

        wait_until(all_let_in, "all places are free")
        for answers in held:
            answers.close()
