"""Which calls are admitted: how many at once, none whose deadline has passed, and whose word on a caller counts."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import SecretStr

from cstp_grpc.contract.call_origin import BRIDGE_KEY_METADATA_KEY as BRIDGE_KEY
from cstp_grpc.contract.call_origin import FORWARDED_FOR_METADATA_KEY as FORWARDED_FOR
from cstp_grpc.contract.errors import AuthenticationRequired, DeadlineExceeded, RateLimited
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.platform.config import Settings, TokenSettings
from cstp_grpc.platform.config.trusted_networks import TrustedNetworks
from cstp_grpc.server.grpc_server import admission_steps
from cstp_grpc.server.identity.authentication import Authenticator
from cstp_grpc.server.identity.call_origin import CallOrigins
from cstp_grpc.server.interceptors.admission import CallsInProgress, InboundCall, WaitingCalls
from tests.harness import TIMEOUT

CHECK = "cstp.checkGuardrails"
PEER = "203.0.113.7"


def test_as_many_calls_of_an_agent_and_of_all_are_in_progress_as_the_limits_say() -> None:
    calls = CallsInProgress(per_agent=2, overall=3)
    for agent in ("alice", "alice", "bob"):
        calls.enter(agent, CHECK)
    for agent, setting in (("alice", "max_calls_per_agent"), ("bob", "max_calls")):
        with pytest.raises(RateLimited, match=rf"grpc\.{setting}\)") as refused:
            calls.enter(agent, CHECK)
        assert refused.value.retry_after
    calls.leave("alice", CHECK)
    calls.enter("carol", CHECK)
    calls.leave("bob", CHECK)
    calls.enter("alice", CHECK)
    assert calls.total == 3


@pytest.mark.parametrize("remaining", [0.0, -1.0])
def test_a_call_whose_deadline_has_passed_is_refused_before_anything_else(remaining: float) -> None:
    methods = contract_methods()
    first, *_ = admission_steps(Settings(), methods, None, None)
    with pytest.raises(DeadlineExceeded):
        first(call(remaining))
    for left in (None, 0.001):
        first(call(left))


def test_the_call_that_has_waited_longest_gives_way() -> None:
    """Otherwise idle connections of strangers would keep everybody else out."""

    async def wait(waiting: WaitingCalls, ended: list[int], number: int) -> None:
        try:
            async with asyncio.timeout(None) as limit:
                with waiting.add(limit):
                    await asyncio.Event().wait()
        except TimeoutError:
            ended.append(number)

    async def main() -> list[int]:
        waiting, ended = WaitingCalls(2), list[int]()
        calls = [asyncio.create_task(wait(waiting, ended, number)) for number in range(4)]
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*calls[:2])
        for each in calls[2:]:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return ended

    assert asyncio.run(main()) == [0, 1]


@pytest.mark.parametrize(
    ("key", "repeated", "is_believed"), [("key", (), True), ("other", (), False), ("key", (BRIDGE_KEY,), False)]
)
def test_a_bridge_is_believed_by_its_key_sent_once(key: str, repeated: tuple[str, ...], is_believed: bool) -> None:
    origins = CallOrigins("key", TrustedNetworks.parse([], "grpc.trusted_proxies"))
    sent = replace(call(None), metadata={BRIDGE_KEY: key}, repeated_keys=frozenset(repeated))
    assert origins.is_from_bridge(sent) is is_believed
    # What it says last of the caller, not what a caller may have said before it.
    sent = replace(sent, metadata={**sent.metadata, FORWARDED_FOR: "192.0.2.1, 192.0.2.2"})
    assert origins.find_address(sent) == ("192.0.2.2" if is_believed else PEER)


@pytest.mark.parametrize(("scheme", "is_accepted"), [("Bearer", True), ("bearer", True), ("Basic", False), ("", False)])
def test_a_token_counts_as_a_bearer_token_only(scheme: str, is_accepted: bool) -> None:
    token = TokenSettings(name="alice", token=SecretStr("a-token-of-alice"))
    authenticate = Authenticator([token], contract_methods().values())
    sent = replace(call(None), metadata={"authorization": f"{scheme} a-token-of-alice".strip()})
    # In a context of its own, as each call is: it sets the caller.
    with nullcontext() if is_accepted else pytest.raises(AuthenticationRequired):
        copy_context().run(authenticate, sent)
    assert sent.agent == ("alice" if is_accepted else None)


def call(remaining: float | None) -> InboundCall:
    """A call without credentials, with this many seconds left."""
    context = cast("Any", SimpleNamespace(time_remaining=lambda: remaining, peer=lambda: f"ipv4:{PEER}:4711"))
    return InboundCall(contract_methods()[CHECK], context, "request-1", {})
