"""Chat sessions of a whole server that many call at once, over gRPC and JSON-RPC."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from cstp_grpc.client import AsyncCstpClient, CstpClient, RetryPolicy
from cstp_grpc.contract.errors import RateLimited
from cstp_grpc.contract.json_codec import from_json
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.liaison.v1 import liaison_pb2
from cstp_grpc.modules.liaison.model import Event, EventType
from cstp_grpc.modules.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.storage.database import open_database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.harness import TIMEOUT, TOKENS, GrpcCaller, JsonRpcCaller, Outcome, bridging, decoded, running, settings
from tests.waiting import wait_until

ROUTE = "liaison.routeToLiaisonAgent"
WATCH = contract_methods()["liaison.watchEvents"]
CALLS = 200
CALLERS = 24
PILLARS = ("content", "insights", "journey", "solution")
CONTEXT = {"shared_intent": "migrate the reports", "steps": [1, {"b": 2.5, "a": None}], "ü": "🚀"}

T = TypeVar("T")


@dataclass(frozen=True)
class Wire:
    """A served CSTP over both transports."""

    target: str
    over_grpc: GrpcCaller
    over_jsonrpc: JsonRpcCaller

    def call(self, method: str, agent: str = "alice", /, **params: Any) -> dict[str, Any]:
        """Return the answer to a call."""
        outcome = self.over_grpc.call(f"liaison.{method}", params, TOKENS[agent])
        assert outcome.result is not None, outcome
        return outcome.result

    def reason(self, method: str, agent: str = "alice", /, **params: Any) -> str | None:
        """Return why a call fails, the same over both transports."""
        first, second = (caller.call(f"liaison.{method}", params, TOKENS[agent]) for caller in self.callers)
        assert first.reason == second.reason
        return first.reason

    @property
    def callers(self) -> tuple[GrpcCaller, JsonRpcCaller]:
        """Both ways in."""
        return self.over_grpc, self.over_jsonrpc

    def events(self, agent: str = "alice", /, **params: Any) -> list[dict[str, Any]]:
        """Return all events of an agent's tenant."""
        found: list[dict[str, Any]] = []
        more = True
        while more:
            after = found[-1]["sequence"] if found else 0
            page = self.call("listEvents", agent, after=after, page_size=100, **params)
            found += page["events"]
            more = page["more"]
        return found

    def answer(self, params: Mapping[str, Any]) -> bytes:
        """Return the bytes of a routing's answer over gRPC, or why it failed."""
        rpc = contract_methods()[ROUTE]
        invoke: Any = self.over_grpc.channel.unary_unary(rpc.path, rpc.request.SerializeToString)
        metadata = (("authorization", f"Bearer {TOKENS['alice']}"),)
        try:
            content: bytes = invoke(from_json(params, rpc.request), timeout=TIMEOUT, metadata=metadata)
        except grpc.RpcError as error:
            raise AssertionError(decoded(error)) from error
        return content

    def body(self, params: Mapping[str, Any]) -> bytes:
        """Return the body of a routing's answer over JSON-RPC."""
        request = {"jsonrpc": "2.0", "id": 1, "method": ROUTE, "params": params}
        answer = self.over_jsonrpc.post(json.dumps(request).encode())
        assert answer.status == 200, answer
        return answer.content


@contextmanager
def wired(wanted: Settings) -> Iterator[Wire]:
    """Serve for the length of a block."""
    with running(wanted) as app, bridging(wanted, app.target) as url:
        wire = Wire(app.target, GrpcCaller(app.target), JsonRpcCaller(url))
        try:
            yield wire
        finally:
            wire.over_grpc.close()


def at_once(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of jobs that begin together, as far as there are callers for them."""
    together = threading.Barrier(min(CALLERS, len(jobs)))

    def begin(job: Callable[[], T], first: bool) -> T:
        if first:
            together.wait(TIMEOUT)
        return job()

    with ThreadPoolExecutor(CALLERS) as pool:
        waiting = [pool.submit(begin, job, index < together.parties) for index, job in enumerate(jobs)]
        return [future.result(3 * TIMEOUT) for future in waiting]


def opened(wire: Wire, *pillars: str) -> None:
    """Open the session s-1 of user u-17, with a message, and let agents of pillars be there."""
    wire.call("openSession", user_id="u-17", chat_session_id="s-1", context=CONTEXT)
    wire.call("appendMessage", chat_session_id="s-1", role="user", content="Hello", metadata={"tone": "warm"})
    for pillar in pillars:
        wire.call("heartbeat", target_pillar=pillar)


@pytest.mark.parametrize(
    "shared",
    [
        pytest.param({"context_to_share": CONTEXT}, id="given_context", marks=pytest.mark.slow),
        pytest.param({}, id="whole_context"),
    ],
)
def test_many_identical_routings_are_one_activation_with_one_answer(shared: dict[str, Any], tmp_path: Path) -> None:
    params = {"target_pillar": "content", "chat_session_id": "s-1", "routing_reason": "Uploads", **shared}
    wanted = settings(tmp_path)
    with wired(wanted) as wire:
        opened(wire, "content")
        ways = [wire.answer, wire.body]
        answers = at_once([partial(ways[number % 2], params) for number in range(CALLS)])
        binary, text = set(answers[::2]), set(answers[1::2])
        assert (len(binary), len(text)) == (1, 1)
        events = wire.events()
    assert Counter(event["type"] for event in events)["liaison_agent_activated"] == 1
    routed = liaison_pb2.RouteToLiaisonAgentResponse.FromString(*binary)
    result = json.loads(*text)["result"]
    assert result["events"] == [event for event in events if event["type"] == "liaison_agent_activated"]
    assert result["execution_id"] == routed.execution_id
    with wired(wanted) as wire:
        assert {wire.answer(params), wire.answer(params)} == binary
        assert {wire.body(params), wire.body(params)} == text
        assert wire.events() == events


def test_many_identical_shares_are_one(tmp_path: Path) -> None:
    params = {"source_agent": "guide", "target_agent": "liaison_content", "shared_context": CONTEXT}
    with wired(settings(tmp_path)) as wire:
        wire.call("heartbeat", target_pillar="content")
        shares = at_once([lambda: wire.call("shareContextToAgent", **params)["share"] for _ in range(CALLS // 4)])
        assert all(share == shares[0] for share in shares)
        assert [event["data"]["share_id"] for event in wire.events(types=["context_shared"])] == [shares[0]["share_id"]]


@pytest.mark.parametrize("round_", range(5))
def test_of_routings_to_several_pillars_at_once_one_wins(round_: int, tmp_path: Path) -> None:
    with wired(settings(tmp_path)) as wire:
        opened(wire, *PILLARS)

        def route(number: int) -> Outcome:
            params = {"target_pillar": PILLARS[(number + round_) % len(PILLARS)], "chat_session_id": "s-1"}
            return wire.callers[number % 2].call(ROUTE, params)

        outcomes = at_once([partial(route, number) for number in range(CALLERS)])
        active = wire.call("getSession", chat_session_id="s-1")["chat_session"]
        activated = wire.events(types=["liaison_agent_activated"])
    won = [outcome.result for outcome in outcomes if outcome.result]
    assert won
    assert all(result == won[0] for result in won)
    lost = {outcome.reason for outcome in outcomes if not outcome.result}
    assert lost <= {"SESSION_WITH_ANOTHER_AGENT", "SESSION_UPDATE_FAILED"}
    assert (active["active_agent"], active["version"]) == (won[0]["chat_session"]["active_agent"], 2)
    assert activated == won[0]["events"]


def test_messages_and_routings_of_the_whole_context_lose_nothing(tmp_path: Path) -> None:
    with wired(settings(tmp_path)) as wire:
        opened(wire, "content")
        params = {"target_pillar": "content", "chat_session_id": "s-1"}

        def say(number: int) -> Outcome:
            said = {"chat_session_id": "s-1", "role": "user", "content": f"No. {number}", "message_id": f"m-{number}"}
            return wire.callers[number % 2].call("liaison.appendMessage", said)

        jobs = [partial(say, number) for number in range(CALLERS)]
        jobs[CALLERS // 2 : CALLERS // 2] = [partial(wire.over_grpc.call, ROUTE, params)] * 4
        outcomes = at_once(jobs)
        routings, sayings = outcomes[CALLERS // 2 :][:4], outcomes[: CALLERS // 2] + outcomes[CALLERS // 2 + 4 :]
        messages = wire.call("listMessages", chat_session_id="s-1", page_size=100)["messages"]
    assert [outcome.reason for outcome in sayings] == [None] * CALLERS
    assert [message["sequence"] for message in messages] == list(range(1, CALLERS + 2))
    assert {message.get("message_id") for message in messages} == {None, *(f"m-{n}" for n in range(CALLERS))}
    assert {outcome.reason for outcome in routings} <= {None, "SESSION_WITH_ANOTHER_AGENT", "SESSION_UPDATE_FAILED"}
    for result in (outcome.result for outcome in routings if outcome.result):
        shared = result["artifacts"]["liaison_agent_activation"]["semantic_payload"]["shared_context"]
        count = result["chat_session"]["message_count"]
        assert [entry["sequence"] for entry in shared["conversation_history"]] == list(range(1, count + 1))
        assert {message["active_agent"] for message in messages[:count]} == {"guide"}
        assert {message["active_agent"] for message in messages[count:]} <= {"liaison_content"}


TENANTS = {"alice": "content", "carol": "insights"}
"""Agents of two tenants, and the pillar that each serves."""


def test_tenants_with_equal_identifiers_see_nothing_of_each_other(tmp_path: Path) -> None:
    pillars = {"content": {"agent": "alice"}, "insights": {"agent": "carol"}}
    with wired(settings(tmp_path, liaison={"pillars": pillars})) as wire:
        for agent, pillar in TENANTS.items():
            tell_all(wire, agent, pillar)
        for agent, pillar in TENANTS.items():
            assert seen(wire, agent) == {"texts": {f"said by {agent}"}, "agents": {"guide", f"liaison_{pillar}"}}
        events = {agent: wire.events(agent) for agent in TENANTS}
        assert [event["type"] for event in events["alice"]] == [event["type"] for event in events["carol"]]
        # Nobody can tell from the numbers how much happens elsewhere.
        for found in events.values():
            assert [event["sequence"] for event in found] == list(range(1, len(found) + 1))
        keys = {agent: routing_key(found) for agent, found in events.items()}
        for agent, other in (("alice", "carol"), ("carol", "alice")):
            assert wire.call("getShare", agent, share_id=keys[agent])["share"]["source_agent"] == "guide"
            assert wire.reason("getShare", agent, share_id=keys[other]) == "NOT_FOUND"
            assert wire.reason("getShare", agent, share_id=f"only-{other}") == "NOT_FOUND"
            only = f"only-{other}"
            for method in ("getSession", "listMessages", "closeSession", "returnToGuide", "claimSession"):
                assert wire.reason(method, agent, chat_session_id=only) == "SESSION_NOT_FOUND"
            assert wire.call("listEvents", agent, chat_session_id=only)["events"] == []


def tell_all(wire: Wire, agent: str, pillar: str) -> None:
    """Do everything that an agent can, with identifiers that another tenant has too, and some that it has not."""
    wire.call("heartbeat", agent, target_pillar=pillar)
    wire.call("openSession", agent, user_id="u-17", chat_session_id="s-1", context={"told": f"said by {agent}"})
    wire.call("openSession", agent, user_id="u-18", chat_session_id=f"only-{agent}")
    said = {"role": "user", "content": f"said by {agent}", "message_id": "m-1"}
    wire.call("appendMessage", agent, chat_session_id="s-1", **said)
    wire.call("routeToLiaisonAgent", agent, chat_session_id="s-1", target_pillar=pillar)
    wire.call("claimSession", agent, chat_session_id="s-1")
    shared = {
        "source_agent": "guide",
        "target_agent": f"liaison_{pillar}",
        "shared_context": {"told": f"said by {agent}"},
    }
    for key in ("k-1", f"only-{agent}"):
        wire.call("shareContextToAgent", agent, idempotency_key=key, **shared)


def seen(wire: Wire, agent: str) -> dict[str, set[str]]:
    """Return an agent's view: the texts told to anybody, and the agents concerned."""
    session = wire.call("getSession", agent, user_id="u-17")["chat_session"]
    listed = wire.call("listSessions", agent)["chat_sessions"]
    messages = wire.call("listMessages", agent, chat_session_id="s-1")["messages"]
    share = wire.call("getShare", agent, share_id="k-1")["share"]
    claimed = wire.call("claimSession", agent, chat_session_id="s-1")["liaison_agent_activation"]["semantic_payload"]
    assert {each["id"] for each in listed} == {"s-1", f"only-{agent}"}
    return {
        "texts": {
            session["context"]["told"],
            share["shared_context"]["told"],
            claimed["shared_context"]["told"],
            *(message["content"] for message in messages),
        },
        "agents": {session["active_agent"], "guide"} | {event["agent"] for event in wire.events(agent)},
    }


def routing_key(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the key of the only routing among events."""
    [key] = [event["data"]["share_id"] for event in events if event["type"] == "liaison_agent_activated"]
    return str(key)


class Watcher:
    """Watches until it has seen a session's end, and begins its stream anew after every few events."""

    def __init__(self, target: str, agent: str, at_a_time: int, **conditions: Any) -> None:
        self.seen: list[tuple[int, str]] = []
        self._target = target
        self._agent = agent
        self._at_a_time = at_a_time
        self._conditions = conditions

    def run(self) -> list[tuple[int, str]]:
        """Return sequence and type of every event."""
        with CstpClient(self._target, TOKENS[self._agent], timeout=TIMEOUT, retries=RetryPolicy(attempts=1)) as client:
            while not self.seen or self.seen[-1][1] != "session_closed":
                after = self.seen[-1][0] if self.seen else 0
                request = liaison_pb2.WatchEventsRequest(after=after, **self._conditions)
                with client.watch(WATCH, request, timeout=3 * TIMEOUT) as answers:
                    self._take(answers)
        return self.seen

    def _take(self, answers: Iterator[Any]) -> None:
        for _, answer in zip(range(self._at_a_time), answers, strict=False):
            self.seen.append((answer.event.sequence, answer.event.type))
            if answer.event.type == "session_closed":
                return


def test_watchers_see_every_event_once_and_in_order_while_many_write(tmp_path: Path) -> None:
    with wired(settings(tmp_path)) as wire, ThreadPoolExecutor() as pool:
        opened(wire, "content")
        wire.call("openSession", user_id="u-18", chat_session_id="s-2")
        wire.call("openSession", "carol", user_id="u-17", chat_session_id="s-1")
        everything = [Watcher(wire.target, "bob", size) for size in (1, 7, 1000)]
        of_session = [Watcher(wire.target, "alice", size, chat_session_id="s-1") for size in (2, 1000)]
        of_types = Watcher(wire.target, "alice", 3, types=["returned_to_guide", "session_closed"])
        watching = [pool.submit(watcher.run) for watcher in (*everything, *of_session, of_types)]

        def write(number: int) -> None:
            say = {"role": "user", "content": f"No. {number}"}
            wire.callers[number % 2].call("liaison.appendMessage", {"chat_session_id": "s-1", **say})
            wire.callers[number % 2].call("liaison.appendMessage", {"chat_session_id": "s-2", **say})
            wire.callers[number % 2].call("liaison.appendMessage", {"chat_session_id": "s-1", **say}, TOKENS["carol"])
            routing = {"target_pillar": "content", "chat_session_id": "s-1", "context_to_share": {"number": number}}
            wire.callers[number % 2].call(ROUTE, routing)
            wire.callers[number % 2].call("liaison.returnToGuide", {"chat_session_id": "s-1"})

        at_once([partial(write, number) for number in range(CALLERS)])
        wire.call("closeSession", chat_session_id="s-1")
        found = [future.result(3 * TIMEOUT) for future in watching]
        listed = wire.events()
    total = [(event["sequence"], event["type"]) for event in listed]
    concerning = [(event["sequence"], event["type"]) for event in listed if event.get("chat_session_id") == "s-1"]
    ends = [each for each in total if each[1] in ("returned_to_guide", "session_closed")]
    assert total == sorted(total)
    assert Counter(kind for _, kind in total)["message_appended"] == 2 * CALLERS + 1
    assert found == [total] * 3 + [concerning] * 2 + [ends]


def test_a_watcher_sees_even_what_nobody_told_of(tmp_path: Path) -> None:
    wanted = settings(tmp_path, storage={"refresh_seconds": 0.05})
    with wired(wanted) as wire, ThreadPoolExecutor() as pool:
        opened(wire)
        watcher = Watcher(wire.target, "alice", 1000)
        watching = pool.submit(watcher.run)
        wait_until(lambda: len(watcher.seen) == 2, "the watcher has caught up")
        database = open_database(wanted.storage_url, 1)
        writer = GroupCommitWriter(database, TIMEOUT)
        closed = Event("default", EventType.SESSION_CLOSED, "guide", datetime(2026, 1, 1, tzinfo=UTC), "s-1")
        writer.run(lambda unit_of_work: SqlRoutingStore(database).add_event(unit_of_work, closed))
        writer.close()
        database.close()
        assert [kind for _, kind in watching.result(3 * TIMEOUT)][2:] == ["session_closed"]


def test_a_page_token_is_of_one_listing(tmp_path: Path) -> None:
    with wired(settings(tmp_path)) as wire:
        opened(wire)
        for number in range(3):
            wire.call("openSession", user_id=f"u-{number}", chat_session_id=f"t-{number}")
            for session in ("s-1", "t-0"):
                wire.call("appendMessage", chat_session_id=session, role="user", content=f"No. {number}")
        sessions = wire.call("listSessions", page_size=3)
        messages = wire.call("listMessages", chat_session_id="s-1", page_size=3)
        of_sessions, of_messages = sessions["next_page_token"], messages["next_page_token"]
        rest = wire.call("listSessions", page_size=3, page_token=of_sessions)
        assert [session["id"] for session in rest["chat_sessions"]] == ["s-1"]
        last = wire.call("listMessages", chat_session_id="s-1", page_size=3, page_token=of_messages)
        assert [message["content"] for message in last["messages"]] == ["No. 2"]
        assert not rest["next_page_token"] + last["next_page_token"]
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("listSessions", {"page_token": of_messages}),
            ("listSessions", {"page_token": of_sessions, "user_id": "u-17"}),
            ("listSessions", {"page_token": of_sessions, "status": "active"}),
            ("listMessages", {"page_token": of_sessions, "chat_session_id": "s-1"}),
            ("listMessages", {"page_token": of_messages, "chat_session_id": "t-0"}),
        ]
        assert [wire.reason(method, **params) for method, params in wrong] == ["INVALID_ARGUMENT"] * len(wrong)
        assert wire.reason("listSessions", "carol", page_token=of_sessions) == "INVALID_ARGUMENT"


def test_an_answer_names_the_request_that_did_it(tmp_path: Path) -> None:
    with wired(settings(tmp_path)) as wire:
        opened(wire, "content")
        routing = {"target_pillar": "content", "chat_session_id": "s-1"}
        first, again = (wire.call("routeToLiaisonAgent", **routing)["execution_id"] for _ in range(2))
        entries = wire.over_grpc.call("cstp.listAuditEntries", {"requestId": first}).result
        assert again == first
        assert entries is not None
        assert [entry["event"] for entry in entries["entries"]] == ["session_routed"]


@pytest.mark.parametrize("setting", ["max_watchers", "watchers_per_agent"])
def test_a_watch_beyond_the_limit_is_refused_and_says_how_many_there_may_be(setting: str, tmp_path: Path) -> None:
    with (
        wired(settings(tmp_path, liaison={setting: 1})) as wire,
        CstpClient(wire.target, TOKENS["alice"]) as client,
        client.watch(WATCH, liaison_pb2.WatchEventsRequest(after=0), timeout=TIMEOUT),
    ):
        with pytest.raises(RateLimited, match=f"liaison.{setting}") as refused:
            next(client.liaison.watch_events(timeout=TIMEOUT))
        assert refused.value.metadata["limit"] == "1"
        with pytest.raises(RateLimited, match=f"liaison.{setting}"):
            asyncio.run(first_event(wire.target))


async def first_event(target: str) -> liaison_pb2.Event:
    """Return the first event that a client in an event loop sees."""
    async with AsyncCstpClient(target, TOKENS["alice"]) as client:
        return await anext(client.liaison.watch_events(timeout=TIMEOUT))


def test_a_server_that_was_stopped_goes_on_with_what_its_agents_left(tmp_path: Path) -> None:
    pillars = {"content": {"agent": "alice", "fallback": "guide"}}
    wanted = settings(tmp_path, liaison={"pillars": pillars, "absent_seconds": 0, "heartbeat_seconds": 1})
    with wired(wanted) as wire:
        opened(wire, "content")
        wire.call("routeToLiaisonAgent", target_pillar="content", chat_session_id="s-1")
    with wired(wanted) as wire:
        wait_until(lambda: wire.events()[-1]["type"] == "returned_to_guide", "the session is with the guide")
        types = [event["type"] for event in wire.events()]
        assert types[-3:] == ["agent_absent", "session_agent_absent", "returned_to_guide"]
        (agent,) = wire.call("listLiaisonAgents", target_pillar="content")["liaison_agents"]
        assert (agent["present"], agent["chat_sessions"]) == (False, 0)
