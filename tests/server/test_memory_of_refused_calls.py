"""A refused call leaves nothing in memory that only a garbage collection frees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.struct_pb2 import NULL_VALUE, ListValue, Struct, Value

from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc
from tests.bench.proc import memory_of
from tests.faults.serving import serving, write_settings
from tests.garbage import count_remains, no_collection
from tests.harness import TOKENS, GrpcCaller, JsonRpcCaller, bridging, running, settings
from tests.test_kill import METADATA

CALLS = 10
LARGE_CALLS = 60
NULLS = 900_000
"""Values of a message that has 3.6 MB, which is below the default limit of bytes."""
MAX_GROWTH_MB = 200
LARGE_TEXT = "x" * 300_000
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "validation": ("cstp.checkGuardrails", {"action": {"description": "  "}}, "INVALID_ARGUMENT"),
    "validation-on-a-thread": (
        "cstp.checkGuardrails",
        {"action": {"description": " ", "context": {"text": LARGE_TEXT}}},
        "INVALID_ARGUMENT",
    ),
    "servicer-on-the-loop": (
        "cstp.checkGuardrails",
        {"action": {"description": "Deploy", "context": {"text": LARGE_TEXT}}},
        "INVALID_ARGUMENT",
    ),
    "servicer-on-a-thread": ("cstp.getDecision", {"id": "missing"}, "NOT_FOUND"),
    "page-token": ("cstp.listDecisions", {"pageToken": "invalid"}, "INVALID_ARGUMENT"),
    "async-servicer": ("cstp.announceIntent", {"intent": "x", "metadata": {"a": LARGE_TEXT}}, "INVALID_ARGUMENT"),
    "permission": ("cstp.listAuditEntries", {}, "PERMISSION_DENIED"),
}


BRIDGED = {"validation", "servicer-on-a-thread"}
"""Calls that are quick to repeat over JSON-RPC: the bridge treats all refusals alike."""


@pytest.fixture(scope="module")
def caller(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    wanted = settings(tmp_path_factory.mktemp("refused") / "data")
    with (
        running(wanted) as app,
        bridging(wanted, app.target) as url,
        closing(GrpcCaller(app.target) if request.param == "grpc" else JsonRpcCaller(url)) as found,
    ):
        yield found


@pytest.mark.parametrize(
    ("caller", "name"),
    [
        *(("grpc", name) for name in REFUSED),
        *(pytest.param("jsonrpc", name, marks=() if name in BRIDGED else pytest.mark.slow) for name in REFUSED),
    ],
    indirect=["caller"],
)
def test_a_refused_call_is_freed_without_a_garbage_collection(caller: GrpcCaller | JsonRpcCaller, name: str) -> None:
    method, params, reason = REFUSED[name]
    token = TOKENS["reader" if name == "permission" else "alice"]
    assert caller.call(method, params, token).reason == reason
    with no_collection():
        before = count_remains()
        for _ in range(CALLS):
            assert caller.call(method, params, token).reason == reason
        # The last call may not have ended in the server yet.
        assert count_remains() - before < CALLS // 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_refused_large_checks_do_not_fill_the_memory(tmp_path: Path) -> None:
    context = Struct(fields={"values": Value(list_value=ListValue(values=[Value(null_value=NULL_VALUE)] * NULLS))})
    request = cstp_pb2.CheckGuardrailsRequest(action=cstp_pb2.Action(description="Deploy", context=context))
    with serving(write_settings(tmp_path)) as process, grpc.insecure_channel(process.value("gRPC")) as channel:
        check = cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails
        before = memory_of(process.popen.pid)
        for _ in range(LARGE_CALLS):
            with pytest.raises(grpc.RpcError) as refused:
                check(request, metadata=(METADATA,), timeout=60)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        after = memory_of(process.popen.pid)
        if before is None or after is None:
            pytest.skip("the system does not report the memory of processes")
        assert after.resident - before.resident < MAX_GROWTH_MB
