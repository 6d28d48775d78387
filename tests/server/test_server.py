from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from cstp_grpc.config import ConfigError, Settings
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.errors import CannotListen
from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc, journal_pb2, journal_pb2_grpc
from cstp_grpc.guardrails.rulebook import RulebookError
from cstp_grpc.server.app import App
from cstp_grpc.server.call_handlers import LARGE_BYTES
from cstp_grpc.server.open_services import MAX_WAITING_CALLS
from cstp_grpc.storage.locks import AlreadyRunning
from tests.harness import TIMEOUT, TOKENS, GrpcCaller, decoded, running, settings
from tests.waiting import wait_until

ALICE = (("authorization", f"Bearer {TOKENS['alice']}"),)
BOB = (("authorization", f"Bearer {TOKENS['bob']}"),)
CHECK = cstp_pb2.CheckGuardrailsRequest(action=cstp_pb2.Action(description="deploy"))


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with running(settings(tmp_path)) as app:
        yield app


@pytest.fixture
def channel(app: App) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(app.target) as channel:
        yield channel


def test_health_is_open_and_serving_for_every_service(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "cstp.v1.CstpService", "cstp.v1.JournalService", "cstp.v1.AuditService"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, service


def test_health_tells_when_the_index_is_ready(tmp_path: Path) -> None:
    request = health_pb2.HealthCheckRequest(service="index")
    with running(settings(tmp_path, index={"mode": "embedded"})) as app, grpc.insecure_channel(app.target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        serving = health_pb2.HealthCheckResponse.SERVING
        wait_until(lambda: stub.Check(request, timeout=TIMEOUT).status == serving, "the index is ready")


def test_search_answers_while_the_index_cannot_be_reached(tmp_path: Path) -> None:
    lost = {"mode": "http", "url": "http://127.0.0.1:1", "exact_limit": 0}
    with running(settings(tmp_path, index=lost)) as app, grpc.insecure_channel(app.target) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="index"), timeout=TIMEOUT
        )
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        caller = GrpcCaller(app.target)
        caller.call("cstp.recordDecision", {"decision": {"title": "Use Redis for sessions"}})
        found = caller.call("cstp.queryDecisions", {"query": "redis sessions", "minScore": 0.1})
        caller.close()
    assert found.result is not None
    assert found.result["total"] == 1


def test_reflection_tells_the_contract(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "cstp.v1.CstpService" in database.get_services()
    service = DescriptorPool(database).FindServiceByName("cstp.v1.CstpService")
    assert [method.name for method in service.methods] == ["AnnounceIntent", "QueryDecisions", "CheckGuardrails"]


REFLECTION = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"]


def reflect(channel: grpc.Channel, version: str, symbol: str) -> reflection_pb2.ServerReflectionResponse:
    call = channel.stream_stream(
        f"/{version}/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
    (answer,) = call(iter([asked]), timeout=TIMEOUT)
    return answer


@pytest.mark.parametrize("version", REFLECTION)
@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("cstp.v1.CstpService", "cstp/v1/cstp.proto"),
        ("cstp.v1.CstpService.CheckGuardrails", "cstp/v1/cstp.proto"),
        ("cstp.v1.CheckGuardrailsRequest.action", "cstp/v1/cstp.proto"),
        ("grpc.reflection.v1.ServerReflection", "grpc_reflection/v1/reflection.proto"),
        ("grpc.reflection.v1.ServerReflection.ServerReflectionInfo", "grpc_reflection/v1/reflection.proto"),
        ("grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo", "grpc_reflection/v1alpha/reflection.proto"),
    ],
)
def test_reflection_finds_services_and_their_members(
    channel: grpc.Channel, version: str, symbol: str, file: str
) -> None:
    shown = reflect(channel, version, symbol).file_descriptor_response.file_descriptor_proto
    found = [descriptor_pb2.FileDescriptorProto.FromString(one).name for one in shown]
    assert file in found


@pytest.mark.parametrize("version", REFLECTION)
@pytest.mark.parametrize("symbol", ["cstp.v1.CstpService.NoSuchMethod", "cstp.v1.NoSuchService.Method", "x", "", "."])
def test_reflection_does_not_find_what_is_missing(channel: grpc.Channel, version: str, symbol: str) -> None:
    assert reflect(channel, version, symbol).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_buf_calls_methods_by_reflection(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app:
        command = [shutil.which("buf", path=Path(sys.executable).parent) or "buf", "curl", "--protocol", "grpc"]
        command += ["--http2-prior-knowledge", "--header", f"authorization: {dict(ALICE)['authorization']}"]
        command += ["--data", '{"action": {"description": "Rename a variable"}}']
        url = f"http://{app.target}/cstp.v1.CstpService/CheckGuardrails"
        answers = [
            json.loads(subprocess.check_output([*command, "--reflect-protocol", protocol, url], timeout=TIMEOUT))
            for protocol in ("grpc-v1", "grpc-v1alpha")
        ]
    assert [answer["allowed"] for answer in answers] == [True, True]


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


def test_a_bad_message_in_a_stream_is_named_and_what_came_before_a_batch_ago_stays(channel: grpc.Channel) -> None:
    good = [
        journal_pb2.ImportDecisionsRequest(source=f"s{n}", decision=journal_pb2.DecisionContent(title=f"T{n}"))
        for n in range(200)
    ]
    bad = journal_pb2.ImportDecisionsRequest(source="bad", decision=journal_pb2.DecisionContent(title=""))
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


def test_open_streams_keep_nobody_from_calling(tmp_path: Path) -> None:
    release = threading.Event()

    def slow() -> Iterator[journal_pb2.ImportDecisionsRequest]:
        release.wait(TIMEOUT)
        yield from ()

    with running(settings(tmp_path)) as app, grpc.insecure_channel(app.target) as channel:
        stub = journal_pb2_grpc.JournalServiceStub(channel)
        streams = [stub.ImportDecisions.future(slow(), metadata=ALICE, timeout=TIMEOUT) for _ in range(100)]
        answer = cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails(CHECK, metadata=ALICE, timeout=TIMEOUT)
        release.set()
        assert answer.evaluated > 0
        assert {len(stream.result().results) for stream in streams} == {0}


@contextmanager
def silent_calls(
    target: str, path: str, metadata: tuple[tuple[str, str], ...] = (), count: int = 20
) -> Iterator[list[Any]]:
    """Keep calls open, as long as the block lasts, that never send their message; each is a call and a future."""
    release = threading.Event()

    def nothing() -> Iterator[bytes]:
        release.wait(TIMEOUT)
        yield from ()

    with grpc.insecure_channel(target) as channel:
        begin: grpc.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(path)
        calls = [begin.future(nothing(), metadata=metadata, timeout=10 * TIMEOUT) for _ in range(count)]
        yield calls
        release.set()
        for call in calls:
            call.cancel()


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer of-somebody-else"),)], ids=["none", "unknown"])
@pytest.mark.parametrize("method", ["cstp.getAccess", "cstp.checkGuardrails", "cstp.importDecisions"])
def test_strangers_are_refused_before_they_send_anything(
    app: App, channel: grpc.Channel, method: str, metadata: Sequence[tuple[str, str]]
) -> None:
    with silent_calls(app.target, contract_methods()[method].path, (*metadata, ("x-request-id", "r-1"))) as calls:
        answers = [decoded(call.exception(TIMEOUT)) for call in calls]
        assert cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails(CHECK, metadata=ALICE, timeout=TIMEOUT).allowed
    assert {answer.reason for answer in answers} == {"AUTHENTICATION_REQUIRED"}
    assert all(answer.data == {"requestId": "r-1"} for answer in answers)


@pytest.mark.parametrize("method", ["cstp.getAccess", "cstp.importDecisions"])
def test_a_message_that_does_not_come_in_time_ends_its_call(tmp_path: Path, method: str) -> None:
    hurried = settings(tmp_path, grpc={"message_seconds": 0.2})
    with running(hurried) as app, silent_calls(app.target, contract_methods()[method].path, ALICE, 3) as calls:
        ended = [decoded(call.exception(TIMEOUT)) for call in calls]
    assert {(each.reason, each.message) for each in ended} == {("DEADLINE_EXCEEDED", "No message arrived within 0.2 s")}


@pytest.mark.parametrize("method", ["cstp.getAccess", "cstp.checkGuardrails", "cstp.importDecisions"])
def test_callers_that_send_nothing_keep_nobody_else_waiting(tmp_path: Path, method: str) -> None:
    patient = settings(tmp_path, grpc={"message_seconds": 10 * TIMEOUT, "max_calls_per_agent": 100})
    record = journal_pb2.ImportDecisionsRequest(source="a", decision=journal_pb2.DecisionContent(title="A"))
    with running(patient) as app, silent_calls(app.target, contract_methods()[method].path, BOB, 300) as calls:
        wait_until(lambda: sum(call.done() for call in calls) == 200, "those beyond the limit are refused")
        refused = [decoded(call.exception()) for call in calls if call.done()]
        assert {(each.reason, "the limit is 100" in each.message) for each in refused} == {("RATE_LIMITED", True)}
        with grpc.insecure_channel(app.target) as channel:
            assert (
                cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails(CHECK, metadata=ALICE, timeout=TIMEOUT).allowed
            )
            stub = journal_pb2_grpc.JournalServiceStub(channel)
            assert len(stub.ImportDecisions(iter([record]), metadata=ALICE, timeout=TIMEOUT).results) == 1
        assert sum(call.done() for call in calls) == 200


def test_calls_that_ended_make_room(tmp_path: Path) -> None:
    narrow = settings(tmp_path, grpc={"message_seconds": 10 * TIMEOUT, "max_calls": 2})
    path = contract_methods()["cstp.getAccess"].path
    with running(narrow) as app, grpc.insecure_channel(app.target) as channel:
        check = cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails

        def is_let_in() -> bool:
            error = check.future(CHECK, metadata=ALICE, timeout=TIMEOUT).exception()
            return error is None or decoded(error).reason != "RATE_LIMITED"

        with silent_calls(app.target, path, BOB, 3) as calls:
            wait_until(lambda: any(call.done() for call in calls), "there is no room")
            assert not is_let_in()
        wait_until(is_let_in, "there is room")


@pytest.mark.parametrize("rpc", ["Check", "Watch"])
def test_strangers_that_ask_for_health_and_send_nothing_keep_nobody_from_it(tmp_path: Path, rpc: str) -> None:
    patient = settings(tmp_path, grpc={"message_seconds": 10 * TIMEOUT})
    with (
        running(patient) as app,
        silent_calls(app.target, f"/grpc.health.v1.Health/{rpc}", count=MAX_WAITING_CALLS + 44) as calls,
        grpc.insecure_channel(app.target) as channel,
    ):
        wait_until(lambda: sum(call.done() for call in calls) >= 44, "those who waited longest are ended")
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert {call.exception().code() for call in calls if call.done()} == {grpc.StatusCode.DEADLINE_EXCEEDED}


def test_strangers_that_ask_for_reflection_and_send_nothing_keep_nobody_from_it(app: App) -> None:
    with (
        silent_calls(app.target, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", count=80),
        grpc.insecure_channel(app.target) as channel,
    ):
        shown = reflect(channel, REFLECTION[0], "cstp.v1.CstpService").file_descriptor_response
        assert shown.file_descriptor_proto


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
        "action.context: holds more than 1000 values",
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
    app: App, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr("cstp_grpc.guardrails.checker.GuardrailChecker.judge_and_record", fail)
    with pytest.raises(grpc.RpcError) as caught:
        cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails(
            CHECK, metadata=(*ALICE, ("x-request-id", "r-1")), timeout=TIMEOUT
        )
    answered = decoded(caught.value)
    assert (answered.reason, answered.data) == ("INTERNAL", {"requestId": "r-1"})
    assert "hunter2" not in str(caught.value)
    assert any("r-1" in record.getMessage() and record.exc_info for record in caplog.records)
