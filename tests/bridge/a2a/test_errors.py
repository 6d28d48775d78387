"""How failures of CSTP look to A2A clients, whatever their reason."""

from __future__ import annotations

from google.rpc import code_pb2

from bridge.a2a.errors import UpstreamError, grpc_error, jsonrpc_error, rest_error
from cstp_grpc.contract.rpc_errors import REASON_CODES, error_for_reason
from tests.bridge.a2a.bindings import Binding
from tests.garbage import count_remains, no_collection
from tests.named_case import named_case


def test_every_reason_has_its_code_and_status_on_each_transport() -> None:
    for reason in REASON_CODES:
        with named_case(reason):
            refused = UpstreamError(error_for_reason(reason, "In plain words"))
            codes = REASON_CODES[reason]
            assert jsonrpc_error(refused, "r-1", v0_3=False)["code"] == codes.a2a_code
            assert grpc_error(refused, "r-1").code == code_pb2.Code.Value(codes.grpc_code)
            answered, body = rest_error(refused, "r-1")
            assert (answered, body["error"]["status"]) == (codes.a2a_http_status, codes.grpc_code)
            assert body["error"]["details"][0]["reason"] == reason


def test_a_refused_call_is_freed_without_a_garbage_collection(binding: Binding) -> None:
    wanted = "missing" * 1000
    assert binding.get(wanted).refusal
    with no_collection():
        before = count_remains()
        for _ in range(10):
            assert binding.get(wanted).refusal
        # The last call may not have ended in the server yet.
        assert count_remains() - before < 5
