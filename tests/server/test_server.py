"""A whole server on its gRPC port: messages, limits, starting and stopping."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cstp_grpc.contract.errors import CannotListen
from cstp_grpc.core.guardrails.rulebook import RulebookError
from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc, journal_pb2, journal_pb2_grpc
from cstp_grpc.platform.config import ConfigError, Settings
from cstp_grpc.platform.storage.locks import AlreadyRunning
from cstp_grpc.server.app import App
from cstp_grpc.server.call_handlers import LARGE_BYTES
from tests.harness import TIMEOUT, GrpcCaller, decoded, running, settings
from tests.server.open_calls import ALICE, CHECK
from tests.waiting import wait_until


def test_searches_fail_while_their_engine_cannot_be_reached(tmp_path: Path) -> None:
    """They do not find nothing, and all else goes on."""
    lost = {"engine": "chroma", "url": "http://127.0.0.1:1"}
    with running(settings(tmp_path, search=lost)) as app, grpc.insecure_channel(app.target) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="search"), timeout=TIMEOUT
        )
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        caller = GrpcCaller(app.target)
        recorded = caller.call("cstp.recordDecision", {"decision": {"title": "Use Redis for sessions"}})
        found = caller.call("cstp.queryDecisions", {"query": "redis sessions", "minScore": 0.1})
        checked = caller.call("cstp.checkGuardrails", {"action": {"description": "Use Redis"}})
        status = caller.call("cstp.getServerStatus", {})
        caller.close()
    assert recorded.reason is None
    assert checked.reason is None
    assert found.reason == "QUERY_FAILED"
    assert status.result is not None
    assert status.result["search"] == {
        "model": "lexical-v1",
        "decisionsInMemory": 0,
        "index": "chroma",
        "indexReady": False,
        "indexLag": 0,
    }
    assert [each["subject"] for each in status.result["warnings"]].count("search") == 1


def test_bytes_that_are_no_message_are_an_invalid_argument(channel: grpc.Channel) -> None:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/cstp.v1.CstpService/CheckGuardrails")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff\xff\xff", metadata=ALICE, timeout=TIMEOUT)
    assert decoded(caught.value).reason == "INVALID_ARGUMENT"


def test_a_stranger_learns_nothing_of_what_is_wrong_with_the_request(channel: grpc.Channel) -> None:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/cstp.v1.CstpService/CheckGuardrails")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff\xff\xff", timeout=TIMEOUT)
    assert decoded(caught.value).reason == "AUTHENTICATION_REQUIRED"


def test_the_request_id_of_the_caller_comes_back(channel: grpc.Channel) -> None:
    stub = cstp_pb2_grpc.CstpServiceStub(channel)
    _, call = stub.CheckGuardrails.with_call(CHECK, metadata=(*ALICE, ("x-request-id", "r-1")), timeout=TIMEOUT)
    assert ("x-request-id", "r-1") in call.trailing_metadata()


def test_a_request_id_that_is_not_well_formed_is_replaced(channel: grpc.Channel) -> None:
    stub = cstp_pb2_grpc.CstpServiceStub(channel)
    _, call = stub.CheckGuardrails.with_call(CHECK, metadata=(*ALICE, ("x-request-id", "a b<c>")), timeout=TIMEOUT)
    (request_id,) = (value for key, value in call.trailing_metadata() if key == "x-request-id")
    assert request_id != "a b<c>"
    assert len(request_id) == 32


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/cstp.v1.CstpService/Nothing")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", metadata=ALICE, timeout=TIMEOUT)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def test_a_message_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    with running(settings(tmp_path, grpc={"max_message_bytes": 65_536})) as app:
        with grpc.insecure_channel(app.target) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                "/cstp.v1.CstpService/CheckGuardrails"
            )
            with pytest.raises(grpc.RpcError) as caught:
                call(b"x" * 70_000, metadata=ALICE, timeout=TIMEOUT)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]


@pytest.mark.parametrize("nanos", [-1, 1_000_000_000])
def test_an_instant_that_is_none_is_named(channel: grpc.Channel, nanos: int) -> None:
    request = cstp_pb2.QueryDecisionsRequest(query="x")
    request.filters.date_after.nanos = nanos
    with pytest.raises(grpc.RpcError) as caught:
        cstp_pb2_grpc.CstpServiceStub(channel).QueryDecisions(request, metadata=ALICE, timeout=TIMEOUT)
    assert decoded(caught.value).fields == ("filters.date_after",)


def nested(levels: int) -> cstp_pb2.CheckGuardrailsRequest:
    """Return a check whose context has that many levels."""
    request = cstp_pb2.CheckGuardrailsRequest(action=cstp_pb2.Action(description="deploy"))
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    request.action.context.update(value)
    return request


def test_structured_data_may_have_24_levels_and_no_more(channel: grpc.Channel) -> None:
    stub = cstp_pb2_grpc.CstpServiceStub(channel)
    assert stub.CheckGuardrails(nested(24), metadata=ALICE, timeout=TIMEOUT).allowed
    with pytest.raises(grpc.RpcError) as caught:
        stub.CheckGuardrails(nested(25), metadata=ALICE, timeout=TIMEOUT)
    assert decoded(caught.value).fields == ("action.context",)


def test_a_check_that_could_not_be_judged_is_in_the_trail(app: App) -> None:
    caller = GrpcCaller(app.target)
    action = {"description": "deploy", "context": {"log": "y" * 300_000}}
    refused = caller.call("cstp.checkGuardrails", {"action": action, "agent": {"id": "emerson"}})
    listed = caller.call("cstp.listAuditEntries", {"event": "guardrail_check"})
    caller.close()
    assert (refused.reason, refused.fields) == ("INVALID_ARGUMENT", ("action.context",))
    assert listed.result is not None
    (entry,) = listed.result["entries"]
    assert (entry["requestingAgent"], entry["claimedAgent"], entry["action"]) == ("alice", "emerson", "deploy")
    assert entry["error"] == "INVALID_ARGUMENT"
    assert not {"allowed", "ruleSetVersion"} & entry.keys()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_refused_by_name(channel: grpc.Channel, number: float) -> None:
    request = cstp_pb2.AnnounceIntentRequest(intent="deploy")
    request.metadata.update({"a": [number]})
    with pytest.raises(grpc.RpcError) as caught:
        cstp_pb2_grpc.CstpServiceStub(channel).AnnounceIntent(request, metadata=ALICE, timeout=TIMEOUT)
    assert decoded(caught.value).fields == ("metadata",)


def test_a_bad_message_in_a_stream_is_named_and_what_came_before_a_batch_ago_stays(app: App) -> None:
    good = [
        journal_pb2.ImportDecisionsRequest(source=f"s{n}", decision=journal_pb2.DecisionContent(title=f"T{n}"))
        for n in range(200)
    ]
    bad = journal_pb2.ImportDecisionsRequest(source="bad", decision=journal_pb2.DecisionContent(title=""))
    with grpc.insecure_channel(app.target) as channel:
        stub = journal_pb2_grpc.JournalServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ImportDecisions(iter([*good, bad]), metadata=ALICE, timeout=TIMEOUT)
        assert decoded(caught.value).fields == ("[200].decision.title",)
        listed = stub.ListDecisions(journal_pb2.ListDecisionsRequest(page_size=1000), metadata=ALICE, timeout=TIMEOUT)
        assert 0 < len(listed.decisions) < 200
        again = stub.ImportDecisions(iter(good), metadata=ALICE, timeout=TIMEOUT)
        unchanged = [r for r in again.results if r.action == journal_pb2.IMPORT_ACTION_UNCHANGED]
        assert len(unchanged) == len(listed.decisions)
        assert len(again.results) == 200


def test_more_values_than_a_message_may_hold_are_refused_by_name(tmp_path: Path) -> None:
    request = cstp_pb2.CheckGuardrailsRequest(action=cstp_pb2.Action(description="deploy"))
    request.action.context["list"] = [None] * 1000
    with (
        running(settings(tmp_path, grpc={"max_values": 1000})) as app,
        grpc.insecure_channel(app.target) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails(request, metadata=ALICE, timeout=TIMEOUT)
    answered = decoded(caught.value)
    assert (answered.fields, answered.message) == (
        ("action.context",),
        "action.context: contains more than 1000 values",
    )


def test_a_large_message_is_judged_like_any_other(channel: grpc.Channel) -> None:
    check = cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails
    large = cstp_pb2.CheckGuardrailsRequest(action=cstp_pb2.Action(description="deploy"))
    large.action.context["text"] = "x" * (2 * LARGE_BYTES)
    assert check(large, metadata=ALICE, timeout=TIMEOUT).evaluated > 0
    large.action.context["number"] = float("nan")
    with pytest.raises(grpc.RpcError) as caught:
        check(large, metadata=ALICE, timeout=TIMEOUT)
    assert decoded(caught.value).fields == ("action.context",)


@pytest.mark.parametrize("key", ["workers", "stream_workers"])
def test_a_setting_that_lost_its_meaning_is_refused_with_the_reason(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: .* remove the key"):
        settings(tmp_path, grpc={key: 1})


@pytest.mark.parametrize("path", ["/cstp.v1.AccessService/GetAccess", "/grpc.health.v1.Health/Check"])
def test_a_unary_call_without_a_message_is_an_invalid_argument(channel: grpc.Channel, path: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.stream_unary(path)(iter(()), metadata=ALICE, timeout=TIMEOUT)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]


def test_stopping_lets_a_call_in_progress_end(tmp_path: Path) -> None:
    app = App(settings(tmp_path, grpc={"drain_seconds": 20}))
    app.start()
    entered, release = threading.Event(), threading.Event()

    def one() -> Iterator[journal_pb2.ImportDecisionsRequest]:
        yield journal_pb2.ImportDecisionsRequest(source="a", decision=journal_pb2.DecisionContent(title="A"))
        entered.set()
        release.wait(TIMEOUT)

    with grpc.insecure_channel(app.target) as channel:
        stub = journal_pb2_grpc.JournalServiceStub(channel)
        stream = stub.ImportDecisions.future(one(), metadata=ALICE, timeout=TIMEOUT)
        assert entered.wait(TIMEOUT)
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        stopping = threading.Thread(target=app.stop)
        stopping.start()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        release.set()
        assert len(stream.result(TIMEOUT).results) == 1
        watch.cancel()
        stopping.join(TIMEOUT)
        assert not stopping.is_alive()


def test_two_servers_do_not_share_a_folder(app: App, tmp_path: Path) -> None:
    with pytest.raises(AlreadyRunning, match=str(tmp_path)):
        App(settings(tmp_path))


def test_two_servers_do_not_share_a_port(app: App, tmp_path: Path) -> None:
    second = App(settings(tmp_path / "second", grpc={"port": app.port}))
    with pytest.raises(CannotListen, match=r"grpc\.port"):
        second.start()
    second.stop()


def test_a_broken_rulebook_stops_the_start_before_anything_is_written(tmp_path: Path) -> None:
    rulebook = tmp_path / "rules.yaml"
    rulebook.write_text("apiVersion: cstp.guardrails/v1\n")
    data = tmp_path / "data"
    with pytest.raises(RulebookError, match=r"rules\.yaml"):
        App(settings(data, cstp={"guardrails": {"config_path": str(rulebook)}}))
    assert not data.exists()


def test_what_was_recorded_is_there_after_a_restart(tmp_path: Path) -> None:
    wanted: Settings = settings(tmp_path)
    with running(wanted) as app:
        caller = GrpcCaller(app.target)
        recorded = caller.call("cstp.recordDecision", {"decision": {"title": "Use Redis for sessions"}})
        caller.close()
    assert recorded.result is not None
    with running(wanted) as app:
        caller = GrpcCaller(app.target)
        found = caller.call("cstp.queryDecisions", {"query": "redis sessions", "minScore": 0.1})
        caller.close()
    assert found.result is not None
    assert [d["id"] for d in found.result["decisions"]] == [recorded.result["decision"]["id"]]


def test_a_new_model_embeds_what_is_there_anew(tmp_path: Path) -> None:
    from sqlalchemy import create_engine, text

    with running(settings(tmp_path)) as app:
        caller = GrpcCaller(app.target)
        caller.call("cstp.recordDecision", {"decision": {"title": "Use Redis for sessions"}})
        caller.close()
    engine = create_engine(f"sqlite:///{tmp_path / 'journal.db'}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE decision_vectors SET model = 'an older one'"))
    engine.dispose()
    with running(settings(tmp_path)) as app:
        caller = GrpcCaller(app.target)
        found = caller.call("cstp.queryDecisions", {"query": "redis sessions", "minScore": 0.1})
        caller.close()
    assert found.result is not None
    assert found.result["total"] == 1


def test_a_caller_that_leaves_a_stream_is_no_failure_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cstp_grpc")
    release = threading.Event()

    def records(source: str, count: int) -> Iterator[journal_pb2.ImportDecisionsRequest]:
        for n in range(count):
            content = journal_pb2.DecisionContent(title=source)
            yield journal_pb2.ImportDecisionsRequest(source=f"{source}-{n}", decision=content)

    def unfinished() -> Iterator[journal_pb2.ImportDecisionsRequest]:
        yield from records("left", 150)
        release.wait(TIMEOUT)

    with running(settings(tmp_path)) as app, grpc.insecure_channel(app.target) as channel:
        stub = journal_pb2_grpc.JournalServiceStub(channel)
        listing = journal_pb2.ListDecisionsRequest(page_size=1)
        stream = stub.ImportDecisions.future(unfinished(), metadata=ALICE, timeout=TIMEOUT)
        # A call that is cancelled before the server takes it up never gets there.
        wait_until(
            lambda: bool(stub.ListDecisions(listing, metadata=ALICE, timeout=TIMEOUT).decisions),
            "the server reads the stream",
        )
        stream.cancel()
        # To gRPC a stream whose caller left may look like one that is complete, so that there need not be a line in
        # the log.
        assert len(stub.ImportDecisions(records("next", 1), metadata=ALICE, timeout=TIMEOUT).results) == 1
        release.set()
    assert {record.levelname for record in caplog.records if "importDecisions" in record.getMessage()} <= {"INFO"}


def test_the_unforeseen_tells_the_caller_nothing_but_the_request_id(
    channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr("cstp_grpc.core.guardrails.checker.GuardrailChecker.judge_and_record", fail)
    with pytest.raises(grpc.RpcError) as caught:
        cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails(
            CHECK, metadata=(*ALICE, ("x-request-id", "r-1")), timeout=TIMEOUT
        )
    answered = decoded(caught.value)
    assert (answered.reason, answered.data) == ("INTERNAL", {"requestId": "r-1"})
    assert "hunter2" not in str(caught.value)
    assert any("r-1" in record.getMessage() and record.exc_info for record in caplog.records)
