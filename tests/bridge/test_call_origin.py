"""The bridge tells the server for whom it calls, so that wrong tokens count for callers and not for the bridge."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2, a2a_pb2_grpc
from aiohttp.test_utils import make_mocked_request

from bridge.http_request import CallOriginReporter
from cstp_grpc.contract.call_origin import BRIDGE_KEY_METADATA_KEY, FORWARDED_FOR_METADATA_KEY
from tests.harness import TOKENS, Peers, peering, running, settings

MOST = 4


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    """A bridge that trusts a proxy on this machine, in front of a server with a low limit of wrong tokens."""
    wanted = settings(
        tmp_path,
        rate_limits={"enabled": True, "wrong_tokens": f"{MOST}/hour"},
        auth={"bridge_key": "bridge-key-of-at-least-24-characters"},
        server={"trusted_proxies": ["127.0.0.1", "10.0.0.0/8"]},
    )
    with running(wanted) as app, peering(wanted, app.target) as peers:
        yield peers


def post(peers: Peers, token: str, headers: dict[str, str]) -> int:
    """Return the HTTP status of a call with a token and further headers."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "cstp.getAccess", "params": {}}).encode()
    sent = {"Content-Type": "application/json", "Authorization": f"Bearer {token}", **headers}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{peers.url}/cstp", body, sent), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"X-Forwarded-For": "198.51.100.9, 192.0.2.1, 10.0.0.3"}, {"X-Forwarded-For": "192.0.2.2"}),
        ({"Forwarded": "for=192.0.2.1;proto=https"}, {"Forwarded": 'for="[2001:db8::1]:443"'}),
    ],
)
def test_wrong_tokens_count_for_the_caller_over_http(peers: Peers, one: dict[str, str], other: dict[str, str]) -> None:
    assert [post(peers, "wrong", one) for _ in range(MOST)] == [401] * MOST
    assert post(peers, "wrong", one) == 429
    assert post(peers, TOKENS["alice"], one) == 429
    assert post(peers, TOKENS["alice"], other) == 200
    assert post(peers, TOKENS["alice"], {}) == 200
    # What a caller says of itself as a bridge is not passed on.
    assert post(peers, "wrong", {**one, "X-Cstp-Bridge-Key": "bridge-key-of-at-least-24-characters"}) == 429


def test_a_caller_without_an_address_is_told_from_the_bridge(tmp_path: Path) -> None:
    # As one who broke the connection off before it was accepted.
    nowhere = make_mocked_request("POST", "/cstp", transport=asyncio.Transport())
    for key, before in ((None, []), ("k" * 24, [(BRIDGE_KEY_METADATA_KEY, "k" * 24)])):
        reporter = CallOriginReporter(settings(tmp_path), key)
        assert nowhere.remote is None
        expected = [*before, (FORWARDED_FOR_METADATA_KEY, "unknown")]
        assert list(reporter.metadata_of_request(nowhere)) == expected
        assert list(reporter.metadata_of_call("unknown", [])) == expected


def get_card(peers: Peers, token: str, address: str) -> str:
    """Return the status of a call of A2A over gRPC for an address."""
    metadata = (("authorization", f"Bearer {token}"), ("x-forwarded-for", address), ("a2a-version", "1.0"))
    with grpc.insecure_channel(peers.grpc_target) as channel:
        call: Any = a2a_pb2_grpc.A2AServiceStub(channel).GetExtendedAgentCard
        try:
            call(a2a_pb2.GetExtendedAgentCardRequest(), metadata=metadata, timeout=10)
        except grpc.RpcError as error:
            return str(error.code().name)  # type: ignore[attr-defined]
    return "OK"


def test_wrong_tokens_count_for_the_caller_over_grpc(peers: Peers) -> None:
    statuses = [get_card(peers, "wrong", "192.0.2.1") for _ in range(MOST + 1)]
    assert statuses[0] == "UNAUTHENTICATED"
    assert statuses[-1] == "RESOURCE_EXHAUSTED"
    assert get_card(peers, TOKENS["alice"], "192.0.2.1") == "RESOURCE_EXHAUSTED"
    assert get_card(peers, TOKENS["alice"], "192.0.2.2") == "OK"
