"""Whenever the server is killed, no token is live that could not be revoked, and no revoked one comes back."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from cstp_grpc.gen.cstp.v1 import access_pb2, access_pb2_grpc, admin_pb2, admin_pb2_grpc, options_pb2
from tests.harness import TOKENS
from tests.killing import killed_at_work, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 10
GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
WORKERS = 3


@dataclass
class Acknowledged:
    """What the server answered: secrets by the ids of tokens, those of them that were revoked, and what was asked."""

    made: dict[str, str] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    unanswered: dict[str, str] = field(default_factory=dict)
    """The agents of requests that may have made a token, by request id."""
    lock: threading.Lock = field(default_factory=threading.Lock)


def given(token: str) -> dict[str, Any]:
    """Return the options of a call with a token."""
    return {"metadata": (("authorization", f"Bearer {token}"),), "timeout": 30}


def make(channel: grpc.Channel, request_id: str, agent: str) -> admin_pb2.CreateTokenResponse:
    """Make a token as alice."""
    return admin_pb2_grpc.AdminServiceStub(channel).CreateToken(
        admin_pb2.CreateTokenRequest(request_id=request_id, agent=agent, permissions=[options_pb2.PERMISSION_QUERY]),
        **given(TOKENS["alice"]),
    )


def revoke(channel: grpc.Channel, token_id: str) -> None:
    """Revoke a token as alice."""
    admin_pb2_grpc.AdminServiceStub(channel).RevokeToken(
        admin_pb2.RevokeTokenRequest(id=token_id), **given(TOKENS["alice"])
    )


def is_accepted(channel: grpc.Channel, secret: str) -> bool:
    """Return whether a token is accepted."""
    try:
        access_pb2_grpc.AccessServiceStub(channel).GetAccess(access_pb2.GetAccessRequest(), **given(secret))
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:  # type: ignore[attr-defined]
            return False
        raise
    return True


def is_gone(error: Any) -> bool:
    """Return whether a call failed because the server was killed."""
    return error.code() in GONE


def work(channel: grpc.Channel, done: Acknowledged) -> None:
    """Make tokens, and revoke every other one, until the server is gone."""
    try:
        while True:
            request_id = uuid.uuid4().hex
            agent = f"agent-{request_id}"
            with done.lock:
                done.unanswered[request_id] = agent
            made = make(channel, request_id, agent)
            with done.lock:
                del done.unanswered[request_id]
                done.made[made.token.id] = made.secret
            if int(request_id[0], 16) % 2:
                revoke(channel, made.token.id)
                with done.lock:
                    done.revoked.add(made.token.id)
    except grpc.RpcError as error:
        if not is_gone(error):
            raise


def listed_ids(channel: grpc.Channel, agent: str) -> list[str]:
    """Return the ids of an agent's tokens, also of those that have ended."""
    answer = admin_pb2_grpc.AdminServiceStub(channel).ListTokens(
        admin_pb2.ListTokensRequest(agent=agent, with_ended=True), **given(TOKENS["alice"])
    )
    return [token.id for token in answer.tokens]


def test_every_token_that_may_be_live_is_known_or_can_be_had_by_its_request(tmp_path: Path) -> None:
    done = Acknowledged()
    for _ in range(KILLS):
        with server_process("tests.core.tokens.serving", str(tmp_path)) as (process, channel):
            killed_at_work(lambda channel=channel: work(channel, done), WORKERS, process.kill)  # type: ignore[misc]
    with server_process("tests.core.tokens.serving", str(tmp_path)) as (_, channel):
        # What was revoked right before a kill may have been acknowledged or not.
        for token_id, secret in done.made.items():
            if token_id in done.revoked:
                assert not is_accepted(channel, secret)
        assert any(is_accepted(channel, secret) for secret in done.made.values())
        assert done.unanswered
        for request_id, agent in done.unanswered.items():
            before = listed_ids(channel, agent)
            assert len(before) <= 1
            again = make(channel, request_id, agent)
            # The same token, if the killed server had stored it: there is never a second one.
            assert listed_ids(channel, agent) == [again.token.id]
            assert before in ([], [again.token.id])
            assert is_accepted(channel, again.secret)
            revoke(channel, again.token.id)
            assert not is_accepted(channel, again.secret)
