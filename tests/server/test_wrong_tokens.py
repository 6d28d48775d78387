"""Wrong tokens are slowed down by address, and keep nobody out whose token cannot be guessed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.platform.config import ConfigError, Settings
from cstp_grpc.platform.config.trusted_networks import TrustedNetworks
from cstp_grpc.server.app import App
from cstp_grpc.server.identity import wrong_tokens
from cstp_grpc.server.identity.wrong_tokens import WrongTokenThrottle
from tests.harness import TOKENS, GrpcCaller, running, settings
from tests.named_case import named_case

LONG = "a-token-of-at-least-24-characters"
KEY = "bridge-key-of-at-least-24-characters"
MOST = 3


def limited(folder: Path, **overrides: Any) -> Settings:
    """Return settings with a low limit of wrong tokens, of which alice's short token is not exempt."""
    tokens = [
        {"name": "alice", "token": TOKENS["alice"]},
        {"name": "bob", "token": LONG},
    ]
    return settings(
        folder,
        rate_limits={"enabled": True, "wrong_tokens": f"{MOST}/hour"},
        auth={"tokens": tokens, "bridge_key": KEY},
        **overrides,
    )


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with running(limited(tmp_path)) as app:
        yield app


def call(app: App, token: str | None, **metadata: str) -> str:
    """Return the status of a call with a token and further metadata."""
    sent = [(name.replace("_", "-"), value) for name, value in metadata.items()]
    if token is not None:
        sent.append(("authorization", f"Bearer {token}"))
    with grpc.insecure_channel(app.target) as channel:
        get_access: Any = channel.unary_unary("/cstp.v1.AccessService/GetAccess")
        try:
            get_access(b"", timeout=10, metadata=sent)
        except grpc.RpcError as error:
            return str(error.code().name)  # type: ignore[attr-defined]
    return "OK"


def exhaust(app: App, **metadata: str) -> None:
    """Send as many wrong tokens as are judged."""
    for number in range(MOST):
        assert call(app, f"wrong-{number}", **metadata) == "UNAUTHENTICATED"


def test_a_token_that_could_be_guessed_is_answered_as_a_wrong_one_and_a_long_one_is_let_in(app: App) -> None:
    assert call(app, TOKENS["alice"]) == "OK"
    exhaust(app)
    assert call(app, "wrong") == "RESOURCE_EXHAUSTED"
    assert call(app, TOKENS["alice"]) == "RESOURCE_EXHAUSTED"
    assert call(app, LONG) == "OK"
    # Without a token nothing is tried.
    assert call(app, None) == "UNAUTHENTICATED"


def test_calls_without_a_token_count_nothing(app: App) -> None:
    for _ in range(MOST + 1):
        assert call(app, None) == "UNAUTHENTICATED"
    assert call(app, "wrong") == "UNAUTHENTICATED"


def test_a_bridge_with_the_key_says_whose_tokens_are_wrong(app: App) -> None:
    exhaust(app, x_cstp_bridge_key=KEY, x_forwarded_for="192.0.2.1")
    assert call(app, TOKENS["alice"], x_cstp_bridge_key=KEY, x_forwarded_for="192.0.2.1") == "RESOURCE_EXHAUSTED"
    assert call(app, TOKENS["alice"], x_cstp_bridge_key=KEY, x_forwarded_for="192.0.2.2") == "OK"
    assert call(app, TOKENS["alice"]) == "OK"


@pytest.mark.parametrize("key", [None, "wrong", f"{KEY}x"])
def test_nobody_else_is_believed(app: App, key: str | None) -> None:
    sent = {} if key is None else {"x_cstp_bridge_key": key}
    for number in range(MOST):
        assert call(app, "wrong", x_forwarded_for=f"192.0.2.{number}", **sent) == "UNAUTHENTICATED"
    assert call(app, "wrong", x_forwarded_for="192.0.2.77", **sent) == "RESOURCE_EXHAUSTED"


def test_addresses_of_ipv6_count_by_network(app: App) -> None:
    for number in range(MOST):
        assert call(app, "wrong", x_cstp_bridge_key=KEY, x_forwarded_for=f"2001:db8::{number}") == "UNAUTHENTICATED"
    assert call(app, "wrong", x_cstp_bridge_key=KEY, x_forwarded_for="2001:db8::9") == "RESOURCE_EXHAUSTED"
    assert call(app, "wrong", x_cstp_bridge_key=KEY, x_forwarded_for="2001:db8:0:1::9") == "UNAUTHENTICATED"


def test_a_trusted_proxy_is_believed_as_far_as_proxies_are_trusted(tmp_path: Path) -> None:
    with running(limited(tmp_path, grpc={"trusted_proxies": ["127.0.0.1", "10.0.0.0/8"]})) as app:
        # What stands before the nearest address that is not trusted was made up by that one.
        for number in range(MOST):
            assert call(app, "wrong", x_forwarded_for=f"203.0.113.{number}, 192.0.2.1, 10.1.2.3") == "UNAUTHENTICATED"
        assert call(app, "wrong", x_forwarded_for="192.0.2.1") == "RESOURCE_EXHAUSTED"
        assert call(app, TOKENS["alice"], x_forwarded_for="192.0.2.2") == "OK"
        assert call(app, TOKENS["alice"]) == "OK"


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from("ab")), max_size=60))
def test_no_window_has_more_than_twice_the_limit(tries: list[tuple[float, str]]) -> None:
    now = [0.0]
    throttle = WrongTokenThrottle(4, 60.0, lambda: now[0])
    judged: dict[str, list[float]] = {"a": [], "b": []}
    for pause, address in tries:
        now[0] += pause
        wait = throttle.find_wait(address)
        if wait is None:
            throttle.count(address)
            judged[address].append(now[0])
        else:
            assert 0 < wait <= 60
            assert throttle.is_blocking
            now[0] += wait
            assert throttle.find_wait(address) is None
            now[0] -= wait
    for times in judged.values():
        assert all(len([each for each in times if start <= each < start + 60]) <= 8 for start in times)


def test_an_address_waits_for_its_turn_only() -> None:
    now = [0.0]
    throttle = WrongTokenThrottle(4, 60.0, lambda: now[0])
    for _ in range(4):
        assert throttle.find_wait("a") is None
        throttle.count("a")
    assert throttle.find_wait("a") == pytest.approx(15)
    assert throttle.find_wait("b") is None
    now[0] = 15.1
    assert throttle.find_wait("a") is None
    throttle.count("a")
    assert throttle.find_wait("a") is not None
    now[0] = 100
    assert not throttle.is_blocking


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrong_tokens, "MAX_ADDRESSES", 100)
    throttle = WrongTokenThrottle(1, 60.0, lambda: 0.0)
    for number in range(1000):
        throttle.count(str(number))
    assert [number for number in range(1000) if throttle.find_wait(str(number)) is not None] == list(range(900, 1000))


def test_the_client_is_the_outermost_that_trusted_proxies_vouch_for() -> None:
    for peer, forwarded, client in [
        ("192.0.2.1", ["203.0.113.1"], "192.0.2.1"),
        ("10.0.0.1", ["203.0.113.1"], "203.0.113.1"),
        ("10.0.0.1", ["198.51.100.1", "203.0.113.1:4711", "10.0.0.2"], "203.0.113.1"),
        ("10.0.0.1", ["[2001:db8::1]:443"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["203.0.113.1"], "203.0.113.1"),
        ("10.0.0.1", ["unknown"], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("", ["203.0.113.1"], ""),
    ]:
        with named_case(peer, forwarded, client):
            assert TrustedNetworks.parse(["10.0.0.0/8"], "x").find_client(peer, forwarded) == client


@pytest.mark.parametrize(
    "networks",
    [
        ["0.0.0.0/0"],
        ["::/0"],
        ["10.0.0.0/8", "0.0.0.0/1", "128.0.0.0/1"],
        ["8.0.0.0/7"],
        ["2000::/3"],
        [f"{first}.0.0.0/8" for first in range(256)],
        ["10.0.0.1/0"],
    ],
)
def test_networks_that_hold_much_of_the_internet_are_refused(networks: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"x\.trusted_proxies: \S+ would believe anyone"):
        TrustedNetworks.parse(networks, "x.trusted_proxies")


@pytest.mark.parametrize("network", ["10.0.0.0/8", "fc00::/7", "192.168.0.0/16", "8.0.0.0/8", "2001:db8::/32", "::1"])
def test_networks_of_an_organisation_are_taken(network: str) -> None:
    assert TrustedNetworks.parse([network], "x").contains(network.partition("/")[0])


def test_an_outcome_has_the_time_to_wait(app: App) -> None:

    exhaust(app)
    caller = GrpcCaller(app.target)
    outcome = caller.call("cstp.getAccess", {}, "wrong")
    caller.close()
    assert outcome.reason == "RATE_LIMITED"
    assert outcome.data is not None
    assert 0 < outcome.data["retryAfterMs"] <= 3_600_000
