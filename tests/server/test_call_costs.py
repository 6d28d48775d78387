"""A large call uses up more of a rate limit than a small one, and the values of a check are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness import GrpcCaller, JsonRpcCaller, bridging, running, settings
from tests.server.test_shared_rate_limits import REDIS, limits, redis_server, two_servers

CHECK = "cstp.checkGuardrails"
LIMIT = 10
LIMITS = {"rate_limits": {"enabled": True, "methods": {CHECK: f"{LIMIT}/hour"}}}
MAX_VALUES = 100
LARGE = "contains more than 100 values"
Caller = GrpcCaller | JsonRpcCaller


def check(**context: Any) -> dict[str, Any]:
    return {"action": {"description": "Deploy", "context": context}}


def count_admitted(caller: Caller, params: dict[str, Any]) -> int:
    """Return how many calls are admitted before one exceeds the limit."""
    for admitted in range(LIMIT + 1):
        outcome = caller.call(CHECK, params)
        if outcome.reason == "RATE_LIMITED":
            return admitted
        assert outcome.reason is None, outcome
    pytest.fail("no call exceeded the limit")


@pytest.fixture(params=["grpc", "jsonrpc"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def calling(folder: Path, transport: str, **overrides: Any) -> Iterator[Caller]:
    wanted = settings(folder, **overrides)
    with (
        running(wanted) as app,
        bridging(wanted, app.target) as url,
        closing(GrpcCaller(app.target) if transport == "grpc" else JsonRpcCaller(url)) as caller,
    ):
        yield caller


@pytest.fixture
def limited(tmp_path: Path, transport: str) -> Iterator[Caller]:
    yield from calling(tmp_path / "data", transport, **LIMITS)


@pytest.fixture
def bounded(tmp_path: Path, transport: str) -> Iterator[Caller]:
    yield from calling(tmp_path / "data", transport, cstp={"guardrails": {"max_values": MAX_VALUES}})


@pytest.mark.parametrize(
    ("context", "admitted"),
    [
        ({"rows": 1}, LIMIT),
        ({"list": [{}] * 200}, LIMIT),
        # The first is admitted with 5 of 10, the second with the rest.
        ({"list": [{}] * 1000}, 2),
        ({"text": "x" * 66_000}, 2),
    ],
)
def test_a_call_counts_by_its_values_and_bytes(limited: Caller, context: dict[str, Any], admitted: int) -> None:
    assert count_admitted(limited, check(**context)) == admitted


def test_a_call_that_costs_more_than_the_limit_is_admitted_only_with_an_unused_limit(limited: Caller) -> None:
    costly = check(text="x" * 190_000)
    assert limited.call(CHECK, costly).reason is None
    refused = limited.call(CHECK, check())
    assert refused.reason == "RATE_LIMITED"


def test_the_refusal_of_a_costly_call_says_how_much_it_counts(limited: Caller) -> None:
    assert limited.call(CHECK, check(list=[{}] * 1500)).reason is None
    refused = limited.call(CHECK, check(list=[{}] * 1500))
    assert "this one counts as 7 because of its size" in refused.message


@pytest.mark.skipif(REDIS is None, reason="redis-server is not installed")
def test_servers_that_share_limits_count_costs_together(tmp_path: Path, free_port: int) -> None:
    shared: Any = limits(free_port)
    shared["rate_limits"]["methods"] = {CHECK: f"{LIMIT}/hour"}
    costly = check(list=[{}] * 1000)
    with redis_server(tmp_path / "redis", free_port), two_servers(tmp_path, shared) as (first, second):
        assert first.call(CHECK, costly).reason is None
        assert second.call(CHECK, costly).reason is None
        assert first.call(CHECK, check()).reason == "RATE_LIMITED"


@pytest.mark.parametrize(
    ("method", "params", "fields"),
    [
        (CHECK, check(list=[None] * MAX_VALUES), ("action.context",)),
        (CHECK, check(**{f"key{number}": number for number in range(MAX_VALUES + 1)}), ("action.context",)),
        ("cstp.explainGuardrails", check(deep={"list": [{}] * MAX_VALUES}), ("action.context",)),
        (
            "cstp.batchCheckGuardrails",
            {"actions": [{"description": "Deploy"}, check(list=[{}] * MAX_VALUES)["action"]]},
            ("actions[1].context",),
        ),
        ("cstp.announceIntent", {"intent": "Deploy", "metadata": {"list": [{}] * MAX_VALUES}}, ("metadata",)),
    ],
)
def test_a_context_with_too_many_values_is_refused_by_name(
    bounded: Caller, method: str, params: dict[str, Any], fields: tuple[str, ...]
) -> None:
    refused = bounded.call(method, params)
    assert (refused.reason, refused.fields, refused.message) == ("INVALID_ARGUMENT", fields, f"{fields[0]}: {LARGE}")


def test_a_context_with_as_many_values_as_allowed_is_checked(bounded: Caller) -> None:
    assert bounded.call(CHECK, check(list=[None] * (MAX_VALUES - 1))).reason is None


def test_a_check_may_hold_2000_values_by_default(tmp_path: Path, transport: str) -> None:
    for caller in calling(tmp_path / "data", transport):
        assert caller.call(CHECK, check(list=[{}] * 1999)).reason is None
        assert caller.call(CHECK, check(list=[{}] * 2000)).reason == "INVALID_ARGUMENT"
