"""What a server tells strangers: its health and its contract."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.harness import TIMEOUT, running, settings
from tests.named_case import named_case
from tests.server.open_calls import ALICE, REFLECTION, reflect


def test_health_is_open_and_serving_for_every_service(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "cstp.v1.CstpService", "cstp.v1.JournalService", "cstp.v1.AuditService"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, service


def test_health_of_a_search_in_memory_is_that_of_the_server(channel: grpc.Channel) -> None:
    request = health_pb2.HealthCheckRequest(service="search")
    with pytest.raises(grpc.RpcError) as caught:
        health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]


def test_reflection_tells_the_contract(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "cstp.v1.CstpService" in database.get_services()
    service = DescriptorPool(database).FindServiceByName("cstp.v1.CstpService")
    assert [method.name for method in service.methods] == ["AnnounceIntent", "QueryDecisions", "CheckGuardrails"]


def test_reflection_finds_services_and_their_members(channel: grpc.Channel) -> None:
    for version in REFLECTION:
        for symbol, file in [
            ("cstp.v1.CstpService", "cstp/v1/cstp.proto"),
            ("cstp.v1.CstpService.CheckGuardrails", "cstp/v1/cstp.proto"),
            ("cstp.v1.CheckGuardrailsRequest.action", "cstp/v1/cstp.proto"),
            ("grpc.reflection.v1.ServerReflection", "grpc_reflection/v1/reflection.proto"),
            ("grpc.reflection.v1.ServerReflection.ServerReflectionInfo", "grpc_reflection/v1/reflection.proto"),
            (
                "grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo",
                "grpc_reflection/v1alpha/reflection.proto",
            ),
        ]:
            with named_case(version, symbol, file):
                shown = reflect(channel, version, symbol).file_descriptor_response.file_descriptor_proto
                found = [descriptor_pb2.FileDescriptorProto.FromString(one).name for one in shown]
                assert file in found


def test_reflection_does_not_find_what_is_missing(channel: grpc.Channel) -> None:
    for version in REFLECTION:
        for symbol in ["cstp.v1.CstpService.NoSuchMethod", "cstp.v1.NoSuchService.Method", "x", "", "."]:
            with named_case(version, symbol):
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
