"""Modules that the settings leave out: they cost nothing, and their methods are unknown."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.places import SERVICE_MODULES
from tests.harness import GrpcCaller, JsonRpcCaller, bridging, peering, running, settings
from tests.named_case import named_case

LEFT_OUT: dict[str, Any] = {
    "liaison": {"enabled": False},
    "intent_layer": {"enabled": False, "projects": [{"name": "shop", "root": "/missing"}]},
    "a2a": {"enabled": False},
    "approvals": {"enabled": False},
    "auth": {"managed_tokens": {"enabled": False}},
}
SERVICES = {
    "liaison.v1.LiaisonService",
    "intent_layer.v1.IntentLayerService",
    "cstp.v1.TaskService",
    "cstp.v1.ApprovalService",
    "cstp.v1.AdminService",
}
TELEMETRY = ("prometheus_client", "opentelemetry", "cstp_grpc.platform.telemetry", "cstp_grpc.server.call_log")
METHODS = [name for name, method in contract_methods().items() if method.service in SERVICES]
PUBLIC = [name for name in METHODS if contract_methods()[name].public and not contract_methods()[name].streaming]

PROGRAM = """
import sys
import threading
from pathlib import Path
from cstp_grpc.platform.config import build_settings
from cstp_grpc.server.app import App
app = App(
    build_settings(
        data_dir=Path(sys.argv[1]),
        grpc={"port": 0},
        embedding={"provider": "lexical"},
        auth={
            "tokens": [{"name": "alice", "token": "alice-secret-token"}],
            "managed_tokens": {"enabled": sys.argv[2] == "on"},
        },
        liaison={"enabled": sys.argv[2] == "on"},
        intent_layer={"enabled": sys.argv[2] == "on"},
        a2a={"enabled": sys.argv[2] == "on"},
        approvals={"enabled": sys.argv[2] == "on"},
    )
)
app.start()
print(*sys.modules)
print(*sorted(thread.name for thread in threading.enumerate()), sep=",")
app.stop()
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server without the modules that can be left out."""
    with running(settings(tmp_path_factory.mktemp("data"), **LEFT_OUT)) as app:
        yield app.target


@pytest.fixture(scope="module")
def bridge_url(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a bridge to that server, with the same settings."""
    with bridging(settings(tmp_path_factory.mktemp("bridge"), **LEFT_OUT), target) as url:
        yield url


def started(folder: Path, switch: str) -> tuple[set[str], set[str]]:
    """Return the modules and the threads of a server that has just started."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), switch],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    modules, threads = result.stdout.splitlines()
    return set(modules.split()), set(threads.split(","))


@pytest.mark.slow
def test_what_is_left_out_is_neither_imported_nor_has_threads(tmp_path: Path) -> None:
    unused = ("cstp_grpc.modules.federation", "cstp_grpc.modules.callbacks")
    left_out = (
        "cstp_grpc.modules.liaison",
        "cstp_grpc.modules.intent_layer",
        "cstp_grpc.modules.tasks",
        "cstp_grpc.modules.webhooks",
        "cstp_grpc.modules.approvals",
    )
    described = tuple(SERVICE_MODULES[service] for service in sorted(SERVICES))
    modules, threads = started(tmp_path / "off", "off")
    assert not {name for name in modules if name.startswith(left_out + described + unused)}
    # Nor has anybody asked for metrics, lines of calls or traces.
    assert not {name for name in modules if name.startswith(TELEMETRY)}
    more, with_all = started(tmp_path / "on", "on")
    assert {name for name in left_out if name in more} == set(left_out)
    # There are no peers and no addresses for callbacks.
    assert not {name for name in more if name.startswith(unused)}
    # The thread that compiles validation rules ends by itself.
    assert with_all - threads - {"validation"} == {
        "approval-expiry",
        "approval-retention",
        "delivery",
        "liaison-supervision",
        "push",
        "task-removal",
        "token-retention",
        "token-uses",
    }


def assert_unimplemented(target: str, names: Sequence[str]) -> None:
    with grpc.insecure_channel(target) as channel:
        for name in names:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(contract_methods()[name].path)
            with named_case(name), pytest.raises(grpc.RpcError) as raised:
                call(b"", timeout=10)
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED, name  # type: ignore[attr-defined]


def test_methods_of_what_is_left_out_are_unimplemented(target: str) -> None:
    assert_unimplemented(target, METHODS)


def test_a_method_of_what_is_left_out_is_not_found_over_json_rpc(bridge_url: str) -> None:
    for name in PUBLIC:
        with named_case(name):
            assert JsonRpcCaller(bridge_url).call(name, {}).reason == "METHOD_NOT_FOUND"


@pytest.mark.parametrize(
    "path",
    ["/a2a/", "/", "/a2a/v1/tasks", "/.well-known/agent-card.json", "/.well-known/agent.json", "/liaison/events"],
)
def test_the_bridge_has_no_routes_of_what_is_left_out(bridge_url: str, path: str) -> None:
    for method in ("GET", "POST"):
        request = urllib.request.Request(bridge_url + path, b"{}" if method == "POST" else None, method=method)
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, timeout=10)
        with raised.value as answer:
            assert (answer.code, answer.read()) == (404, b"404: Not Found")


def test_the_bridge_does_not_listen_for_a2a_over_grpc(target: str, tmp_path: Path) -> None:
    with peering(settings(tmp_path, **LEFT_OUT), target) as peers:
        assert peers.grpc_target == ""


def test_the_card_shows_no_skills_of_what_is_left_out(target: str, tmp_path: Path) -> None:
    wanted = settings(tmp_path, liaison={"enabled": False}, intent_layer={"enabled": False})
    with bridging(wanted, target) as url, urllib.request.urlopen(f"{url}/.well-known/agent-card.json") as answer:
        packages = {skill["id"].partition(".")[0] for skill in json.load(answer)["skills"]}
    assert packages == {"cstp"}


def test_the_health_service_does_not_know_what_is_left_out(target: str) -> None:
    with grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest(service="cstp.v1.CstpService"), timeout=10).status == 1
        for service in SERVICES:
            with pytest.raises(grpc.RpcError) as raised:
                stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_does_not_list_what_is_left_out(target: str) -> None:
    with grpc.insecure_channel(target) as channel:
        shown = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert "cstp.v1.CstpService" in shown
    assert not SERVICES & set(shown)


def test_the_core_serves_as_before(target: str, bridge_url: str) -> None:
    announced = {"intent": "Deploy", "stakes": "low"}
    for caller in (GrpcCaller(target), JsonRpcCaller(bridge_url)):
        assert (caller.call("cstp.announceIntent", announced).result or {})["received"]
        assert caller.call("cstp.announceIntent", announced | {"project": "shop"}).reason == "NOT_FOUND"
        missing = caller.call("cstp.announceIntent", announced | {"paths": ["src/api.py"]})
        assert (missing.reason, missing.fields) == ("INVALID_ARGUMENT", ("project",))


def test_nobody_makes_tokens_where_everyone_is_let_in(tmp_path: Path) -> None:
    wanted = settings(tmp_path, auth={"enabled": False})
    assert wanted.disabled_services == {"cstp.v1.AdminService"}
    with running(wanted) as app:
        assert_unimplemented(app.target, ["cstp.createToken"])


def test_a_limit_on_a_method_of_what_is_left_out_is_no_mistake(tmp_path: Path) -> None:
    limits = {"enabled": True, "methods": {"liaison.openSession": "5/minute"}}
    with running(settings(tmp_path, **LEFT_OUT, rate_limits=limits)) as app:
        assert GrpcCaller(app.target).call("cstp.getAccess", {}).result
