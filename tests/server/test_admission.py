"""Which calls are admitted: how many at once, and none whose deadline has passed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cstp_grpc.config import Settings
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.errors import DeadlineExceeded, RateLimited
from cstp_grpc.server.grpc_server import admission_steps
from cstp_grpc.server.interceptors.admission import CallsInProgress, InboundCall

CHECK = "cstp.checkGuardrails"


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


def call(remaining: float | None) -> InboundCall:
    """A call without credentials, with this many seconds left."""
    context = cast("Any", SimpleNamespace(time_remaining=lambda: remaining))
    return InboundCall(contract_methods()[CHECK], context, "request-1", {})
