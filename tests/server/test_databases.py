"""The whole server on either database, and several servers on one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.gen.cstp.v1 import journal_pb2, journal_pb2_grpc
from cstp_grpc.server.deployment import SINGLE_PROCESS, Deployment
from tests.databases import unique_name
from tests.harness import TIMEOUT, TOKENS, GrpcCaller, Outcome, running, settings
from tests.waiting import wait_until

NUL = "\x00"


@contextmanager
def serving(folder: Path, url: str, deployment: Deployment = SINGLE_PROCESS, **storage: Any) -> Iterator[GrpcCaller]:
    wanted = settings(folder, storage={"url": url, "refresh_seconds": 3600, **storage})
    with running(wanted, deployment) as app:
        caller = GrpcCaller(app.target)
        try:
            yield caller
        finally:
            caller.close()


@dataclass(frozen=True)
class Cluster:
    """Several servers on one database: hosts on PostgreSQL, or processes of one host on a SQLite file."""

    url: str
    folder: Path

    @contextmanager
    def server(self, **storage: Any) -> Iterator[GrpcCaller]:
        """Run one more server; processes of one host share the data folder."""
        processes = self.url.startswith("sqlite")
        folder = self.folder / ("data" if processes else unique_name())
        with serving(folder, self.url, Deployment(supervised=processes), **storage) as caller:
            yield caller


@pytest.fixture
def caller(database_url: str, tmp_path: Path) -> Iterator[GrpcCaller]:
    with serving(tmp_path / "data", database_url) as caller:
        yield caller


@pytest.fixture
def cluster(database_url: str, tmp_path: Path) -> Cluster:
    return Cluster(database_url, tmp_path)


def result(outcome: Outcome) -> dict[str, Any]:
    assert outcome.result is not None, outcome
    return outcome.result


def test_an_announcement_finds_what_was_recorded_and_is_kept(caller: GrpcCaller) -> None:
    decision = {"title": "Keep sessions in Redis", "outcome": "failure", "notes": "set a memory limit"}
    recorded = result(caller.call("cstp.recordDecision", {"decision": decision}))["decision"]
    announced = result(caller.call("cstp.announceIntent", {"intent": "Keep sessions in Redis", "correlationId": "c-1"}))
    assert [d["id"] for d in announced["similarDecisions"]] == [recorded["id"]]
    assert any("set a memory limit" in text for text in announced["suggestions"])
    again = result(caller.call("cstp.announceIntent", {"intent": "Keep sessions in Redis", "correlationId": "c-1"}))
    assert again["receivedAt"] == announced["receivedAt"]
    intents = result(caller.call("cstp.listIntents", {}))["intents"]
    assert [intent["correlationId"] for intent in intents] == ["c-1"]
    entries = result(caller.call("cstp.listAuditEntries", {"correlationId": "c-1"}))["entries"]
    assert len(entries) == 2


def test_sharing_and_unsharing_decide_what_others_find(caller: GrpcCaller) -> None:
    recorded = result(caller.call("cstp.recordDecision", {"decision": {"title": "Keep sessions in Redis"}}))["decision"]

    def found_by_bob() -> bool:
        return result(caller.call("cstp.queryDecisions", {"query": "sessions in redis"}, TOKENS["bob"]))["total"] == 1

    assert not found_by_bob()
    assert caller.call("cstp.shareDecision", {"id": recorded["id"]}, TOKENS["bob"]).reason == "NOT_FOUND"
    result(caller.call("cstp.shareDecision", {"id": recorded["id"]}))
    assert found_by_bob()
    assert caller.call("cstp.unshareDecision", {"id": recorded["id"]}, TOKENS["bob"]).reason == "PERMISSION_DENIED"
    result(caller.call("cstp.unshareDecision", {"id": recorded["id"]}))
    assert not found_by_bob()


def test_a_character_that_the_database_cannot_keep_harms_nothing(caller: GrpcCaller) -> None:
    announced = caller.call(
        "cstp.announceIntent", {"intent": f"a{NUL}b", "context": NUL, "metadata": {f"k{NUL}": f"v{NUL}"}}
    )
    assert announced.reason == "INVALID_ARGUMENT", announced
    checked = caller.call("cstp.checkGuardrails", {"action": {"description": f"a{NUL}b"}})
    assert checked.reason == "INVALID_ARGUMENT", checked
    assert result(caller.call("cstp.checkGuardrails", {"action": {"description": "fine"}}))["evaluated"] > 0


def test_a_server_finds_what_another_one_recorded(cluster: Cluster) -> None:
    with cluster.server() as first, cluster.server() as second:
        recorded = result(first.call("cstp.recordDecision", {"decision": {"title": "Keep sessions in Redis"}}))

        def found() -> bool:
            answer = result(second.call("cstp.queryDecisions", {"query": "sessions in redis"}))
            return [d["id"] for d in answer["decisions"]] == [recorded["decision"]["id"]]

        wait_until(found, "the second server finds it")


def test_a_query_that_carries_a_revision_finds_what_was_written_elsewhere(cluster: Cluster) -> None:
    with cluster.server(watch_seconds=3600) as first, cluster.server(watch_seconds=3600) as second:
        for count in range(1, 4):
            decision = {"title": f"Keep sessions in Redis {count}"}
            written = result(first.call("cstp.recordDecision", {"decision": decision}))
            asked = {"query": "sessions in redis", "minJournalRevision": written["decision"]["journalRevision"]}
            assert result(second.call("cstp.queryDecisions", asked))["total"] == count
        unseen = written["decision"]["id"]
        for method in ("shareDecision", "unshareDecision"):
            written = result(first.call(f"cstp.{method}", {"id": unseen}))
            announced = {"intent": "sessions in redis", "minJournalRevision": written["decision"]["journalRevision"]}
            similar = result(second.call("cstp.announceIntent", announced, TOKENS["bob"]))["similarDecisions"]
            assert [item["id"] for item in similar] == ([unseen] if method == "shareDecision" else [])
        reviewed = result(first.call("cstp.reviewDecision", {"id": unseen, "outcome": "failure"}))
        asked = {"query": "sessions", "filters": {"outcome": ["failure"]}}
        asked["minJournalRevision"] = reviewed["decision"]["journalRevision"]
        assert [item["id"] for item in result(second.call("cstp.queryDecisions", asked))["decisions"]] == [unseen]


def test_a_revision_that_the_journal_has_not_come_to_is_waited_for_by_the_caller(cluster: Cluster) -> None:
    with cluster.server() as server:
        written = result(server.call("cstp.recordDecision", {"decision": {"title": "Keep sessions in Redis"}}))
        number, _, journal = written["decision"]["journalRevision"].partition("-")
        ahead = f"{int(number) + 1}-{journal}"
        assert server.call("cstp.queryDecisions", {"query": "x", "minJournalRevision": ahead}).reason == "UNAVAILABLE"
        announced = {"intent": "x", "correlationId": "c-1", "minJournalRevision": ahead}
        assert server.call("cstp.announceIntent", announced).reason == "UNAVAILABLE"
        assert result(server.call("cstp.listIntents", {}))["intents"] == []
        result(server.call("cstp.recordDecision", {"decision": {"title": "Keep sessions in Valkey"}}))
        assert result(server.call("cstp.announceIntent", announced))["revision"] == 1


def test_a_repetition_and_an_import_tell_a_revision_that_has_what_they_wrote(cluster: Cluster) -> None:
    recording = {"requestId": "r-1", "decision": {"title": "Keep sessions in Redis"}}
    with cluster.server(watch_seconds=3600) as second:
        with cluster.server() as first:
            result(first.call("cstp.recordDecision", recording))
        with cluster.server() as first:
            again = result(first.call("cstp.recordDecision", recording))["decision"]["journalRevision"]
            asked = {"query": "sessions in redis", "minJournalRevision": again}
            assert result(second.call("cstp.queryDecisions", asked))["total"] == 1
            record = journal_pb2.ImportDecisionsRequest(source="adr/1")
            record.decision.title = "Sessions in Valkey"
            imported = journal_pb2_grpc.JournalServiceStub(first.channel).ImportDecisions(
                iter([record]), metadata=(("authorization", f"Bearer {TOKENS['alice']}"),), timeout=TIMEOUT
            )
            asked = {"query": "sessions in valkey", "minJournalRevision": imported.journal_revision}
            assert result(second.call("cstp.queryDecisions", asked))["total"] == 2


def test_an_announcement_is_judged_by_reviews_on_another_server(cluster: Cluster) -> None:
    params = {"intent": "Rotate signing keys", "confidence": 0.9}
    failed = {"decision": {"title": "Ship version 2", "confidence": 0.9, "outcome": "failure"}}
    with cluster.server() as one, cluster.server() as other:
        assert result(other.call("cstp.announceIntent", params))["suggestions"] == []
        for _ in range(20):
            result(one.call("cstp.recordDecision", failed))

        def is_warned() -> bool:
            suggestions = result(other.call("cstp.announceIntent", params))["suggestions"]
            return any("has meant 0 in 20 reviewed decisions" in text for text in suggestions)

        wait_until(is_warned, "the second server knows of the failures")


def test_who_watches_a_server_sees_events_of_another_one(cluster: Cluster) -> None:
    with (
        cluster.server() as first,
        cluster.server() as second,
        CstpClient(second.target, TOKENS["alice"]) as client,
        closing(client.liaison.watch_events(after=0, timeout=TIMEOUT)) as events,
    ):
        for number in range(1, 4):
            result(first.call("liaison.openSession", {"user_id": f"u-{number}"}))
            assert next(events).sequence == number


def test_one_correlation_id_on_two_servers_is_one_intent_with_one_chain_of_revisions(cluster: Cluster) -> None:
    with cluster.server() as first, cluster.server() as second:
        announced = [
            result(caller.call("cstp.announceIntent", {"intent": "Deploy", "correlationId": "c-1"}))["receivedAt"]
            for caller in (first, second)
        ]
        assert announced[0] == announced[1]
        revised = [
            result(caller.call("cstp.announceIntent", {"intent": intent, "correlationId": "c-1"}))["revision"]
            for caller, intent in ((second, "Roll back"), (first, "Roll back"), (first, "Deploy"), (second, "Deploy"))
        ]
        assert revised == [2, 2, 3, 3]


def test_contents_announced_at_once_to_two_servers_get_numbers_without_a_gap(cluster: Cluster) -> None:
    def announce(caller: GrpcCaller, number: int) -> tuple[str, int]:
        params = {"intent": f"Deploy part {number}", "correlationId": f"c-{number % 3}"}
        return params["correlationId"], result(caller.call("cstp.announceIntent", params))["revision"]

    with (
        cluster.server() as first,
        cluster.server() as second,
        ThreadPoolExecutor(8) as agents,
    ):
        announced = list(agents.map(announce, [first, second] * 30, range(60)))
        listed = result(first.call("cstp.listIntents", {"pageSize": 100}))["intents"]
    assert sorted(announced) == [(f"c-{key}", revision) for key in range(3) for revision in range(1, 21)]
    assert sorted((intent["correlationId"], intent["revision"]) for intent in listed) == sorted(announced)
