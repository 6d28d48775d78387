"""Credentials that are sent twice are refused by every door, whoever they are and whether any are needed."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2, a2a_pb2_grpc

from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc
from tests.harness import TIMEOUT, TOKENS, Peers, peering, running, settings

GOOD, BAD = f"Bearer {TOKENS['alice']}", "Bearer of-somebody-else"
PAIRS = {"good first": (GOOD, BAD), "good last": (BAD, GOOD), "twice the same": (GOOD, GOOD)}


@pytest.fixture(scope="module", params=[True, False], ids=["with tokens", "without"])
def product(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Peers]]:
    wanted = settings(tmp_path_factory.mktemp("doors"), auth={"enabled": request.param})
    with running(wanted) as app, peering(wanted, app.target) as peers:
        yield app.target, peers


def status_of(invoke: Callable[..., Any], message: Any, metadata: list[tuple[str, str]]) -> tuple[Any, str]:
    """Return the status of a call and its text, None for one that succeeds."""
    try:
        invoke(message, metadata=metadata, timeout=TIMEOUT)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return None, ""


def assert_refused_if_repeated(invoke: Callable[..., Any], message: Any, pair: str, *others: tuple[str, str]) -> None:
    assert status_of(invoke, message, [*others, ("authorization", GOOD)]) == (None, "")
    metadata = [*others, *(("authorization", value) for value in PAIRS[pair])]
    code, text = status_of(invoke, message, metadata)
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "more than once" in text


@pytest.mark.parametrize("pair", PAIRS)
def test_over_grpc(product: tuple[str, Peers], pair: str) -> None:
    check = cstp_pb2.CheckGuardrailsRequest(action=cstp_pb2.Action(description="deploy"))
    with grpc.insecure_channel(product[0]) as channel:
        invoke = cstp_pb2_grpc.CstpServiceStub(channel).CheckGuardrails
        assert_refused_if_repeated(invoke, check, pair)


@pytest.mark.parametrize("pair", PAIRS)
def test_over_a2a_on_grpc(product: tuple[str, Peers], pair: str) -> None:
    with grpc.insecure_channel(product[1].grpc_target) as channel:
        invoke = a2a_pb2_grpc.A2AServiceStub(channel).ListTasks  # type: ignore[no-untyped-call]
        assert_refused_if_repeated(invoke, a2a_pb2.ListTasksRequest(), pair, ("a2a-version", "1.0"))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    ("path", "method"), [("/cstp", "cstp.getAccess"), ("/a2a", "ListTasks"), ("/a2a/v1/tasks", None)]
)
def test_over_http(product: tuple[str, Peers], pair: str, path: str, method: str | None) -> None:
    host = product[1].url.removeprefix("http://")

    def status_for(*credentials: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(host, timeout=TIMEOUT)
        try:
            connection.putrequest("POST" if method else "GET", path)
            content = (
                json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}).encode() if method else b""
            )
            headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content)))] if method else []
            for name, value in [*headers, ("A2A-Version", "1.0"), *(("Authorization", each) for each in credentials)]:
                connection.putheader(name, value)
            connection.endheaders(content)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    assert status_for(GOOD)[0] == 200
    status, content = status_for(*PAIRS[pair])
    assert status == 401
    assert b"more than once" in content
