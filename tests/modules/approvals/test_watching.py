"""Watching approval requests, over gRPC and as events of a bridge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.contract.errors import InvalidArgument, RateLimited
from cstp_grpc.gen.cstp.v1 import approvals_pb2, types_pb2
from cstp_grpc.platform.config import Settings
from tests.harness import TIMEOUT, TOKENS, bridging, running, running_workers, settings
from tests.modules.approvals.serving import RULEBOOK
from tests.server.agents import clients

PENDING, GRANTED, USED = (
    types_pb2.APPROVAL_STATUS_PENDING,
    types_pb2.APPROVAL_STATUS_GRANTED,
    types_pb2.APPROVAL_STATUS_USED,
)


def asking_settings(folder: Path, **overrides: Any) -> Settings:
    """Return settings with rules that ask for approvals."""
    return settings(folder, cstp={"guardrails": {"config_path": str(RULEBOOK)}}, **overrides)


@contextmanager
def watching(client: CstpClient, **conditions: Any) -> Iterator[Iterator[approvals_pb2.WatchApprovalsResponse]]:
    """Watch, and leave."""
    with closing(client.watch_approvals(resume=False, timeout=TIMEOUT, **conditions)) as changes:
        yield changes


def request(client: CstpClient, description: str = "Update prices") -> str:
    """Request an approval and return its id."""
    return client.check_guardrails(description, context={"rows": 5000}).approval.id


def test_an_approver_sees_each_request_as_it_changes(tmp_path: Path) -> None:
    with (
        running(asking_settings(tmp_path)) as app,
        clients(app, "alice", "bob") as (alice, bob),
        watching(bob) as changes,
    ):
        assert not next(changes).HasField("approval")
        approval_id = request(alice)
        pending = next(changes)
        assert (pending.approval.id, pending.approval.status) == (approval_id, PENDING)
        assert pending.approval.subject.description == "Update prices"
        # What it may do only is in the answer to GetApproval.
        assert not pending.approval.subject.HasField("context")
        bob.grant_approval(approval_id, comment="Go")
        assert (next(changes).approval.status, next_status(alice, pending.resume_token)) == (GRANTED, GRANTED)
        assert request(alice) == approval_id
        assert next(changes).approval.status == USED


def next_status(client: CstpClient, token: str) -> types_pb2.ApprovalStatus.ValueType:
    """Return the status of the first change after a token."""
    with watching(client, after=token) as changes:
        assert not next(changes).HasField("approval")
        return next(changes).approval.status


def test_an_agent_sees_its_own_requests_only(tmp_path: Path) -> None:
    with (
        running(asking_settings(tmp_path)) as app,
        clients(app, "alice", "reader") as (alice, reader),
        watching(reader) as own,
        watching(reader, agent="alice") as others,
    ):
        next(own)
        next(others)
        request(alice)
        approval_id = request(reader)
        assert next(own).approval.id == approval_id
        with watching(alice, agent="reader", status=["granted"]) as none:
            next(none)
            alice.grant_approval(approval_id)
            assert next(none).approval.id == approval_id
        assert next(own).approval.status == GRANTED


def test_a_watch_goes_on_behind_a_token_with_the_last_states(tmp_path: Path) -> None:
    with running(asking_settings(tmp_path)) as app, clients(app, "alice", "bob") as (alice, bob):
        with watching(bob) as changes:
            begun = next(changes).resume_token
        first, second = request(alice, "First"), request(alice, "Second")
        bob.deny_approval(first)
        with watching(bob, after=begun) as changes:
            found = [next(changes) for _ in range(3)]
        assert [item.approval.id for item in found[1:]] == [second, first]
        _, _, identity = begun.partition("-")
        for token in ("nonsense", "1-abcdef", f"1000-{identity}"):
            with watching(bob, after=token) as changes, pytest.raises(InvalidArgument):
                next(changes)


def test_a_watch_sees_what_other_servers_decide(tmp_path: Path) -> None:
    wanted = asking_settings(tmp_path)
    with running_workers(wanted, 2) as (one, two), clients(one, "alice") as (alice,), clients(two, "bob") as (bob,):
        approval_id = request(alice)
        with watching(alice) as changes:
            next(changes)
            bob.grant_approval(approval_id)
            assert (next(changes).approval.id, request(alice)) == (approval_id, approval_id)


def test_watches_are_bounded_for_each_agent(tmp_path: Path) -> None:
    narrow = asking_settings(tmp_path, storage={"watchers_per_agent": 1})
    with running(narrow) as app, clients(app, "bob") as (bob,), watching(bob) as first:
        next(first)
        with watching(bob) as refused, pytest.raises(RateLimited, match="limit of an agent is 1"):
            next(refused)


def test_a_bridge_streams_approvals_as_events(tmp_path: Path) -> None:
    wanted = asking_settings(tmp_path)
    with running(wanted) as app, bridging(wanted, app.target) as url, clients(app, "alice", "bob") as (alice, bob):
        headers = {"Authorization": f"Bearer {TOKENS['bob']}"}
        with (
            httpx.Client(headers=headers, timeout=TIMEOUT, trust_env=False) as browser,
            browser.stream("GET", f"{url}/approvals/events", params={"status": "granted,denied"}) as response,
        ):
            lines = response.iter_lines()
            assert next(line for line in lines if line.startswith("id: "))
            bob.grant_approval(request(alice))
            assert '"granted"' in next(line for line in lines if line.startswith("data: "))
