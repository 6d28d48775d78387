"""Exporting decisions, and watching decisions and intents, as those see it who call a whole server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cstp_grpc.client import CstpClient, decision_filters
from cstp_grpc.contract.enums import Visibility
from cstp_grpc.contract.errors import InvalidArgument, PermissionDenied, RateLimited, Unavailable
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import journal_pb2
from tests.bench.connections import DATA, EMPTY_MESSAGE, END_STREAM, FIRST_WINDOW, beginning_of_call, frame
from tests.harness import TIMEOUT, TOKENS, bridging, running, running_workers, settings
from tests.server.agents import clients
from tests.waiting import wait_until


@contextmanager
def watching(client: CstpClient, **conditions: Any) -> Iterator[Iterator[journal_pb2.WatchDecisionsResponse]]:
    """Watch, and leave."""
    with closing(client.watch_decisions(resume=False, timeout=TIMEOUT, **conditions)) as changes:
        yield changes


def test_an_export_has_own_decisions_whole_and_shared_ones_without_private_parts(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, clients(app, "alice", "bob") as (alice, bob):
        hidden = alice.record_decision("Private", context="secret", project="shop")
        shared = alice.record_decision("Shared", context="secret", visibility="shared", project="shop")
        own = [bob.record_decision(f"Own {number}", context="mine", project="shop") for number in range(40)]
        bob.record_decision("Elsewhere", project="other")
        found = {item.id: item for item in bob.export_decisions(filters=decision_filters(project="shop"))}
        assert found.keys() == {shared.id, *(item.id for item in own)}
        assert {item.context for item in found.values() if item.agent == "bob"} == {"mine"}
        assert not found[shared.id].HasField("context")
        assert {item.id for item in alice.export_decisions()} == {hidden.id, shared.id}


def test_exports_of_an_agent_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        running(settings(tmp_path, storage={"exports_per_agent": 1})) as app,
        clients(app, "alice", "bob") as (alice, bob),
    ):
        long = alice.record_decision("Long", context="why " * 40_000, visibility="shared")
        with unread_export(app.port, TOKENS["alice"]):
            with pytest.raises(RateLimited, match="the limit of a caller is 1") as caught:
                list(alice.export_decisions())
            assert caught.value.metadata["limit"] == "1"
            assert [decision.id for decision in bob.export_decisions()] == [long.id]
        wait_until(lambda: can_export(alice), "the export that was left made room")
        # One that has ended makes room, too.
        assert [decision.id for decision in alice.export_decisions()] == [long.id]
    assert not [record for record in caplog.records if record.levelname == "ERROR"], "a caller that leaves is no error"


@contextmanager
def unread_export(port: int, token: str) -> Iterator[None]:
    """Export decisions of which only the first bytes are read, until the block ends."""
    path, metadata = contract_methods()["cstp.exportDecisions"].path, [("authorization", f"Bearer {token}")]
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        connection.sendall(beginning_of_call(port, path, metadata) + frame(DATA, END_STREAM, 1, EMPTY_MESSAGE))
        received = 0
        # Without more being granted, all that comes is FIRST_WINDOW and a few frames more.
        while received < FIRST_WINDOW:
            received += len(connection.recv(FIRST_WINDOW))
        yield


def can_export(client: CstpClient) -> bool:
    """Whether an export begins."""
    try:
        return bool(list(client.export_decisions()))
    except RateLimited:
        return False


def test_a_watch_sees_changes_and_another_goes_on_behind_any_of_them(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, clients(app, "alice", "bob") as (alice, bob):
        alice.record_decision("Before", visibility="shared")
        with watching(bob, filters=decision_filters(project="shop")) as changes:
            begun = next(changes)
            assert not begun.HasField("decision")
            alice.record_decision("Private", project="shop")
            alice.record_decision("Elsewhere", visibility="shared")
            first = alice.record_decision("Shared", project="shop", visibility="shared", context="secret")
            seen = next(changes)
            assert (seen.decision.id, seen.decision.HasField("context")) == (first.id, False)
            assert seen.journal_revision == first.journal_revision
        second = bob.record_decision("Own", project="shop")
        alice.review_decision(first.id, "failure")
        bob.delete_decision(second.id)
        with watching(bob, after=seen.journal_revision) as changes:
            later = [next(changes) for _ in range(3)]
            assert later[0].journal_revision == seen.journal_revision
            assert [item.decision.outcome for item in later[1:2]] == [2]
            assert later[2].deleted_id == second.id
        with watching(alice, after=begun.journal_revision) as changes:
            assert [next(changes).deleted_id for _ in range(4)] == [""] * 4


def test_a_watch_tells_no_link_to_a_private_decision(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, clients(app, "alice", "bob") as (alice, bob):
        hidden = alice.record_decision("Private")
        shared = alice.record_decision("Shared", visibility="shared", links=journal_pb2.Links(relates_to=[hidden.id]))
        for client, targets in ((bob, []), (alice, [hidden.id])):
            with watching(client, after=hidden.journal_revision) as changes:
                seen = next(item for item in changes if item.decision.id == shared.id)
            assert list(seen.decision.links.relates_to) == targets


def test_a_revision_that_never_was_is_refused(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, clients(app, "alice") as (alice,):
        with watching(alice) as changes:
            begun = next(changes).journal_revision
        with watching(alice, after=begun) as changes:
            assert next(changes).journal_revision == begun
        _, _, identity = begun.partition("-")
        for wrong in ("nonsense", "1-abcdef", f"1000-{identity}"):
            with watching(alice, after=wrong) as changes, pytest.raises(InvalidArgument) as caught:
                next(changes)
            assert [violation.field for violation in caught.value.violations] == ["after"]


def test_watches_are_bounded_for_all_and_for_each_agent(tmp_path: Path) -> None:
    narrow = settings(tmp_path, storage={"max_watchers": 2, "watchers_per_agent": 1})
    with running(narrow) as app, clients(app, "alice", "bob", "carol") as (alice, bob, carol):
        with watching(alice) as first, watching(bob) as second:
            assert next(first) == next(second)
            for client, limit in ((alice, "limit is 2"), (carol, "limit is 2")):
                with watching(client) as refused, pytest.raises(RateLimited, match=limit):
                    next(refused)
        wait_until(lambda: is_let_in(alice), "who left made room")
        with watching(alice) as first:
            next(first)
            with watching(alice) as refused, pytest.raises(RateLimited, match="limit of an agent is 1"):
                next(refused)


def is_let_in(client: CstpClient) -> bool:
    """Whether a watch begins."""
    with watching(client) as changes:
        try:
            return bool(next(changes))
        except RateLimited:
            return False


def test_a_watch_ends_when_the_server_stops(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, clients(app, "alice") as (alice,), watching(alice) as changes:
        next(changes)
        app.stop()
        with pytest.raises(Unavailable):
            next(changes)


def test_a_watch_sees_what_other_workers_write(tmp_path: Path) -> None:
    with (
        running_workers(settings(tmp_path), 2) as (one, two),
        clients(one, "alice") as (alice,),
        clients(two, "alice") as (elsewhere,),
        watching(alice) as changes,
    ):
        next(changes)
        recorded = elsewhere.record_decision("Use a queue")
        assert next(changes).decision.id == recorded.id
        with watching(elsewhere, after=recorded.journal_revision) as others:
            assert next(others).journal_revision == recorded.journal_revision


def test_a_bridge_streams_changes_as_events(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    with running(wanted) as app, bridging(wanted, app.target) as url, clients(app, "alice") as (alice,):
        headers = {"Authorization": f"Bearer {TOKENS['alice']}"}
        events = f"{url}/decisions/events"
        with httpx.Client(headers=headers, timeout=TIMEOUT, trust_env=False) as browser:
            with browser.stream("GET", events, params={"tags": "a,b", "minConfidence": "0.5"}) as response:
                assert response.status_code == 200
                lines = response.iter_lines()
                begun = next(line for line in lines if line.startswith("id: ")).removeprefix("id: ")
                alice.record_decision("Untold", tags=["a"])
                told = alice.record_decision("Told", tags=["a", "b"], confidence=0.7, visibility=Visibility.SHARED)
                data = next(line for line in lines if line.startswith("data: "))
                assert told.id in data
            resumed = {"Last-Event-ID": begun}
            with browser.stream("GET", events, params={"after": "nonsense"}, headers=resumed) as response:
                assert "Untold" in next(line for line in response.iter_lines() if line.startswith("data: "))
            for name, value in (("after", "nonsense"), ("minConfidence", "much"), ("nonsense", "1"), ("project", "")):
                refused = browser.get(events, params={name: value})
                assert refused.status_code == 400
                assert refused.json()["error"]["message"].startswith(f"{name}: ")
            body = {"jsonrpc": "2.0", "id": 1, "method": "cstp.watchDecisions"}
            error = browser.post(f"{url}/cstp", json=body).json()["error"]
            assert "GET /decisions/events" in error["data"]["detail"]
            assert browser.get(events, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_a_watch_sees_own_and_shared_intents_as_they_are_announced(tmp_path: Path) -> None:
    with (
        running(settings(tmp_path)) as app,
        clients(app, "alice", "bob") as (alice, bob),
        closing(alice.watch_intents(resume=False, timeout=TIMEOUT, category="operations")) as intents,
    ):
        begun = next(intents)
        assert not begun.HasField("intent")
        bob.announce_intent("Deploy in secret", category="operations")
        bob.announce_intent("Paint the shed", category="other", visibility="shared")
        bob.announce_intent("Deploy the shop", category="operations", visibility="shared", context="secret")
        seen = next(intents).intent
        assert (seen.agent, seen.intent, seen.revision) == ("bob", "Deploy the shop", 1)
        alice.announce_intent("Deploy the blog", category="operations")
        own = next(intents)
        assert own.intent.agent == "alice"
        with closing(alice.watch_intents(resume=False, timeout=TIMEOUT, after=own.resume_token)) as again:
            assert not next(again).HasField("intent")
        _, _, identity = own.resume_token.partition("-")
        for token in ("nonsense", "1-abcdef", f"1000-{identity}"):
            again = alice.watch_intents(resume=False, after=token)
            with closing(again), pytest.raises(InvalidArgument) as caught:
                next(again)
            assert "journalRevision" not in caught.value.message


def test_a_bridge_streams_intents_as_events(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    with running(wanted) as app, bridging(wanted, app.target) as url, clients(app, "alice") as (alice,):
        headers = {"Authorization": f"Bearer {TOKENS['alice']}"}
        with (
            httpx.Client(headers=headers, timeout=TIMEOUT, trust_env=False) as browser,
            browser.stream("GET", f"{url}/intents/events", params={"stakes": "high,critical"}) as response,
        ):
            lines = response.iter_lines()
            assert next(line for line in lines if line.startswith("id: "))
            alice.announce_intent("Paint the shed", stakes="low")
            alice.announce_intent("Deploy the shop", stakes="high")
            assert "Deploy the shop" in next(line for line in lines if line.startswith("data: "))


def test_a_bridge_streams_audit_entries_as_events(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    with running(wanted) as app, bridging(wanted, app.target) as url, clients(app, "alice") as (alice,):
        headers = {"Authorization": f"Bearer {TOKENS['alice']}"}
        with httpx.Client(headers=headers, timeout=TIMEOUT, trust_env=False) as browser:
            conditions = {"words": "deploy,shop", "allowed": "true"}
            with browser.stream("GET", f"{url}/audit/events", params=conditions) as response:
                lines = response.iter_lines()
                token = next(line for line in lines if line.startswith("id: ")).removeprefix("id: ")
                alice.check_guardrails("Deploy the blog")
                alice.check_guardrails("Deploy the shop")
                assert "Deploy the shop" in next(line for line in lines if line.startswith("data: "))
            with browser.stream("GET", f"{url}/audit/events", params={"after": token}) as response:
                assert "Deploy the blog" in next(line for line in response.iter_lines() if line.startswith("data: "))
            for name, value in (("allowed", "perhaps"), ("stakes", "some"), ("after", "nonsense")):
                refused = browser.get(f"{url}/audit/events", params={name: value})
                assert (refused.status_code, name in refused.text) == (400, True), refused.text


def test_private_changes_are_watched_with_the_permission_oversee(tmp_path: Path) -> None:
    tokens = [
        {"name": "alice", "token": TOKENS["alice"], "permissions": ["record", "announce", "query", "admin"]},
        {"name": "bob", "token": TOKENS["bob"], "permissions": ["query", "oversee"]},
    ]
    with (
        running(settings(tmp_path, auth={"tokens": tokens})) as app,
        clients(app, "alice", "bob") as (alice, bob),
        closing(bob.watch_decisions(resume=False, timeout=TIMEOUT, oversee=True)) as decisions,
        closing(bob.watch_intents(resume=False, timeout=TIMEOUT, oversee=True)) as intents,
    ):
        assert not next(decisions).HasField("decision")
        assert not next(intents).HasField("intent")
        alice.record_decision("Use a queue", context="A private context")
        alice.announce_intent("Deploy the shop", context="A private context")
        seen = next(decisions).decision
        assert (seen.agent, seen.title, seen.context) == ("alice", "Use a queue", "")
        assert next(intents).intent.intent == "Deploy the shop"
        overseen = alice.list_audit_entries(event="records_overseen")
        assert {entry.action for entry in overseen} == {"cstp.watchDecisions", "cstp.watchIntents"}
        with closing(alice.watch_intents(resume=False, oversee=True)) as watch, pytest.raises(PermissionDenied):
            next(watch)
