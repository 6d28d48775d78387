"""What the server tells clients that repeat calls by themselves, as gRPC's own retries do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import grpc
import pytest

from cstp_grpc.contract.errors import CstpError, LiaisonAgentUnavailable, QueryFailed, RateLimited, Unavailable
from cstp_grpc.contract.rpc_errors import PUSHBACK_KEY
from cstp_grpc.core.audit.refused_calls import RefusalCounter
from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc
from cstp_grpc.server.app import utc_now
from cstp_grpc.server.execution import CallPools
from cstp_grpc.server.grpc_server import GrpcServer, build_call_policy
from tests.harness import TIMEOUT, TOKENS, decoded, settings

ALICE = (("authorization", f"Bearer {TOKENS['alice']}"),)
CHECK = cstp_pb2.CheckGuardrailsRequest(action=cstp_pb2.Action(description="deploy"))
SERVICE_CONFIG = resources.files("cstp_grpc.gen").joinpath("service_config.json").read_text()


class Failing(cstp_pb2_grpc.CstpServiceServicer):
    """Fails with the next error each time, and answers when there is none left."""

    def __init__(self, *failures: CstpError) -> None:
        self.failures = list(failures)
        self.calls = 0

    def CheckGuardrails(  # noqa: N802 - the generated name
        self, request: Any, context: grpc.ServicerContext
    ) -> cstp_pb2.CheckGuardrailsResponse:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return cstp_pb2.CheckGuardrailsResponse(allowed=True)


def failing(*failures: CstpError) -> Failing:
    # The generated base class answers other methods with UNIMPLEMENTED; only its stub calls it abstract.
    return Failing(*failures)  # type: ignore[abstract]


@contextmanager
def calling(tmp_path: Path, servicer: Failing) -> Iterator[Any]:
    """Serve with the server's own interceptors, and yield the call of a channel that repeats it by itself."""
    wanted = settings(tmp_path)
    servicers = [(cstp_pb2_grpc.add_CstpServiceServicer_to_server, servicer)]
    server = GrpcServer(wanted.grpc, build_call_policy(wanted, RefusalCounter(utc_now)), servicers, {}, CallPools())
    port = server.start().port
    try:
        options = [("grpc.service_config", SERVICE_CONFIG)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            yield cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails
    finally:
        server.stop(0)


def test_a_passing_failure_is_repeated(tmp_path: Path) -> None:
    servicer = failing(Unavailable("starting"), RateLimited("slower", retry_after=0.01))
    with calling(tmp_path, servicer) as check:
        assert check(CHECK, timeout=TIMEOUT, metadata=ALICE).allowed
    assert servicer.calls == 3


@pytest.mark.parametrize(
    "failure",
    [
        RateLimited("slower", retry_after=TIMEOUT + 1),
        RateLimited("no"),
        QueryFailed("no database"),
        LiaisonAgentUnavailable("away", retry_after=0.01),
        Unavailable("restarting", retry_after=TIMEOUT + 1),
    ],
    ids=lambda failure: f"{failure.reason}-{failure.retry_after}",
)
def test_a_failure_that_waiting_does_not_mend_in_time_is_not_repeated(tmp_path: Path, failure: CstpError) -> None:
    servicer = failing(failure)
    with calling(tmp_path, servicer) as check, pytest.raises(grpc.RpcError) as caught:
        check(CHECK, timeout=TIMEOUT, metadata=ALICE)
    assert servicer.calls == 1
    assert decoded(caught.value).reason == failure.reason
    trailing: Any = caught.value.trailing_metadata()  # type: ignore[attr-defined]
    assert (PUSHBACK_KEY, "-1") in trailing


def test_a_caller_without_a_deadline_waits_as_long_as_it_is_told(tmp_path: Path) -> None:
    servicer = failing(RateLimited("slower", retry_after=0.0001))
    with calling(tmp_path, servicer) as check:
        assert check(CHECK, metadata=ALICE).allowed
    assert servicer.calls == 2
