from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_tools import protoc

from cstp_grpc import gen
from cstp_grpc.contract.methods import RpcMethod, contract_methods
from cstp_grpc.gen.comments import RPC_COMMENTS
from cstp_grpc.gen.cstp.v1 import cstp_pb2, journal_pb2
from tests.client.everything import WELL_KNOWN

PROTO = Path(__file__).parents[2] / "proto"
PROBE = """
syntax = "proto3";
package probe_layer.v1;
import "cstp/v1/options.proto";
message ProbeRequest {}
message ProbeResponse {}
service ProbeService {
  rpc ResolveContext(ProbeRequest) returns (stream ProbeResponse) {
    option (cstp.v1.permission) = PERMISSION_REVIEW;
    option (cstp.v1.example) = '{"depth": 3}';
  }
}
service InnerService {
  option (cstp.v1.internal) = true;
  rpc Keep(ProbeRequest) returns (ProbeResponse);
}
"""


def test_the_protocol_has_its_three_methods_in_their_order() -> None:
    names = [method.name for method in contract_methods().values() if method.service == "cstp.v1.CstpService"]
    assert names == ["cstp.announceIntent", "cstp.queryDecisions", "cstp.checkGuardrails"]


def test_a_method_says_how_it_is_called() -> None:
    announcing = contract_methods()["cstp.announceIntent"]
    assert announcing == RpcMethod(
        name="cstp.announceIntent",
        service="cstp.v1.CstpService",
        rpc="AnnounceIntent",
        path="/cstp.v1.CstpService/AnnounceIntent",
        request=cstp_pb2.AnnounceIntentRequest,
        response=cstp_pb2.AnnounceIntentResponse,
        client_streaming=False,
        server_streaming=False,
        idempotent=True,
        permission="announce",
        public=True,
        description=RPC_COMMENTS["/cstp.v1.CstpService/AnnounceIntent"],
        examples=announcing.examples,
        intent_type="",
    )


def test_a_method_of_an_intent_names_it() -> None:
    named = {name: method.intent_type for name, method in contract_methods().items() if method.intent_type}
    assert named.keys() == {name for name in contract_methods() if name.startswith("liaison.")}
    assert named["liaison.routeToLiaisonAgent"] == "route_to_liaison_agent"
    assert len(set(named.values())) == len(named)


def test_streams_are_told_from_single_messages() -> None:
    importing = contract_methods()["cstp.importDecisions"]
    assert (importing.client_streaming, importing.server_streaming, importing.streaming) == (True, False, True)
    assert importing.request is journal_pb2.ImportDecisionsRequest
    assert not contract_methods()["cstp.getDecision"].streaming


def test_every_method_states_a_permission() -> None:
    assert {method.permission for method in contract_methods().values()} == {
        "query",
        "check",
        "announce",
        "record",
        "review",
        "admin",
        "any",
        "converse",
        "route",
        "erase",
        "approve",
    }


def test_what_is_for_our_own_processes_is_not_public() -> None:
    internal = {name for name, method in contract_methods().items() if not method.public}
    tasks = {"cstp.saveTask", "cstp.findTask", "cstp.getTask", "cstp.listTasks"}
    pushes = {f"cstp.{act}PushConfig" for act in ("create", "get", "delete")}
    assert internal == tasks | pushes | {"cstp.listPushConfigs"}


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Generated code of one more proto beside ours."""
    source = tmp_path / "source" / "probe_layer" / "v1" / "probe.proto"
    source.parent.mkdir(parents=True)
    source.write_text(PROBE)
    generated = tmp_path / "gen"
    generated.mkdir()
    paths = [f"-I{path}" for path in (tmp_path / "source", PROTO, WELL_KNOWN)]
    assert protoc.main(["protoc", *paths, f"--python_out={generated}", str(source)]) == 0
    package = generated / "probe_layer" / "v1"
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    code = package / "probe_pb2.py"
    code.write_text(code.read_text().replace("from cstp.v1", "from cstp_grpc.gen.cstp.v1"))
    monkeypatch.setitem(RPC_COMMENTS, "/probe_layer.v1.ProbeService/ResolveContext", "Resolves a context.")
    monkeypatch.setitem(RPC_COMMENTS, "/probe_layer.v1.InnerService/Keep", "")
    monkeypatch.setattr(gen, "__path__", [*gen.__path__, str(generated)])
    importlib.invalidate_caches()
    contract_methods.cache_clear()
    yield package
    contract_methods.cache_clear()
    for name in [name for name in sys.modules if name.startswith(f"{gen.__name__}.probe_layer")]:
        del sys.modules[name]


def test_a_new_proto_needs_no_edit(probe: Path) -> None:
    found = contract_methods()["probeLayer.resolveContext"]
    assert found.path == "/probe_layer.v1.ProbeService/ResolveContext"
    assert (found.permission, found.idempotent, found.server_streaming, found.public) == ("review", False, True, True)
    assert (found.description, found.examples) == ("Resolves a context.", ('{"depth": 3}',))
    inner = contract_methods()["probeLayer.keep"]
    assert (inner.permission, inner.public) == ("", False)
    assert "cstp.announceIntent" in contract_methods()
