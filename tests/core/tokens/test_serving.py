"""Tokens that are made while servers run, over the wire."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.contract.errors import AuthenticationRequired
from cstp_grpc.gen.cstp.v1 import admin_pb2, journal_pb2, journal_pb2_grpc
from cstp_grpc.server.app import App
from tests.harness import TOKENS, running, running_workers, settings
from tests.waiting import wait_until


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """A server with limits, which hold for agents that the settings do not name, too."""
    limits = {"enabled": True, "methods": {"cstp.getAccess": "3/hour"}}
    with running(settings(tmp_path, rate_limits=limits)) as app:
        yield app


def make(app: App, agent: str = "deployer", permissions: tuple[str, ...] = ("query", "record")) -> Any:
    """Make a token as alice and return the response."""
    with CstpClient(app.target, TOKENS["alice"]) as client:
        return client.create_token(f"r-{agent}", agent, permissions)


def revoke(app: App, token: admin_pb2.AgentToken) -> None:
    with CstpClient(app.target, TOKENS["alice"]) as client:
        client.revoke_token(token.id)


def is_used(app: App, agent: str) -> bool:
    """Return whether the latest token of an agent was used."""
    with CstpClient(app.target, TOKENS["alice"]) as client:
        return next(client.list_tokens(agent=agent)).HasField("last_used_at")


def accepts(app: App, secret: str) -> bool:
    """Return whether a server accepts a token, without retries."""
    with CstpClient(app.target, secret) as client:
        try:
            client.get_access()
        except AuthenticationRequired:
            return False
    return True


def test_a_new_token_identifies_its_agent_within_the_limits_of_the_server(app: App) -> None:
    made, other = make(app), make(app, "builder")
    for secret, name in ((made.secret, "deployer"), (other.secret, "builder")):
        with CstpClient(app.target, secret) as client:
            for _ in range(3):
                access = client.get_access()
                assert access.requesting_agent == name
                assert access.tenant == "default"
    with grpc.insecure_channel(app.target) as channel:
        call: Any = channel.unary_unary("/cstp.v1.AccessService/GetAccess")
        for secret in (made.secret, other.secret):
            with pytest.raises(grpc.RpcError) as raised:
                call(b"", timeout=10, metadata=(("authorization", f"Bearer {secret}"),))
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]


def test_tokens_survive_a_restart_and_revoked_ones_stay_so(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    with running(wanted) as app:
        kept, revoked = make(app), make(app, "builder")
        assert accepts(app, kept.secret)
        revoke(app, revoked.token)
    with running(wanted) as app:
        assert accepts(app, kept.secret)
        assert not accepts(app, revoked.secret)
        with CstpClient(app.target, TOKENS["alice"]) as client:
            (listed,) = client.list_tokens()
        # Stored when the first server stopped.
        assert listed.HasField("last_used_at")


def test_a_stream_ends_when_its_token_is_revoked(app: App) -> None:
    made = make(app)
    with grpc.insecure_channel(app.target) as channel, CstpClient(app.target, TOKENS["alice"]) as alice:
        watch = journal_pb2_grpc.JournalServiceStub(channel).WatchDecisions(
            journal_pb2.WatchDecisionsRequest(), metadata=(("authorization", f"Bearer {made.secret}"),), timeout=20
        )
        next(watch)
        alice.revoke_token(made.token.id)
        alice.record_decision("Use a queue", visibility="shared")
        with pytest.raises(grpc.RpcError) as raised:
            next(watch)
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]


def test_a_call_that_waits_for_messages_ends_when_its_token_is_revoked(app: App) -> None:
    made = make(app)
    for method, sent in (("ImportDecisions", 1), ("RecordDecision", 0)):
        revoked = threading.Event()
        with grpc.insecure_channel(app.target) as channel:
            call: Any = channel.stream_unary(f"/cstp.v1.JournalService/{method}")
            record = journal_pb2.ImportDecisionsRequest(
                source="adr/1", decision=journal_pb2.DecisionContent(title="Use a queue")
            ).SerializeToString()

            def messages(
                sent: int = sent, revoked: threading.Event = revoked, record: bytes = record
            ) -> Iterator[bytes]:
                yield from [record] * sent
                revoked.wait(10)
                yield record

            metadata = (("authorization", f"Bearer {made.secret}"),)
            answer = call.future(messages(), metadata=metadata, timeout=20)
            wait_until(partial(is_used, app, made.token.agent), "the call was admitted")
            revoke(app, made.token)
            revoked.set()
            assert answer.code() is grpc.StatusCode.UNAUTHENTICATED
        made = make(app, method.lower())


def test_all_workers_follow_within_a_second(tmp_path: Path) -> None:
    with running_workers(settings(tmp_path), 2) as (first, second):
        made = make(first)
        assert accepts(first, made.secret)
        wait_until(lambda: accepts(second, made.secret), "the other worker accepts the token")
        revoke(second, made.token)
        assert not accepts(second, made.secret)
        wait_until(lambda: not accepts(first, made.secret), "the first worker refuses the token")
