"""Pillars that are served by the official A2A server, which answers before its executor has run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cstp_grpc.contract.errors import ContextSharingFailed
from tests.client.official_a2a_server import leave_submitted, official_server, reject, work
from tests.server.test_liaison_delivery import DELIVERED, FAILED, PENDING, guide, key_of, share_in, types
from tests.waiting import wait_until

BINDINGS = pytest.mark.parametrize(
    ("binding", "version"), [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3.0")]
)


@BINDINGS
def test_a_session_stays_with_the_guide_if_the_agent_refuses(tmp_path: Path, binding: str, version: str) -> None:
    with (
        official_server(reject, binding, version) as server,
        guide(tmp_path, kind="a2a", url=server.url, delivery="confirm") as client,
    ):
        with pytest.raises(ContextSharingFailed, match="did not accept: rejected"):
            client.liaison.route_to_liaison_agent("files", chat_session_id="s-1")
        assert client.liaison.get_session("s-1").active_agent == "guide"
        assert types(client) == ["session_opened"]


@BINDINGS
def test_a_session_is_handed_over_when_the_agent_begins(tmp_path: Path, binding: str, version: str) -> None:
    with (
        official_server(work, binding, version) as server,
        guide(tmp_path, kind="a2a", url=server.url, delivery="confirm") as client,
    ):
        key = key_of(client.liaison.route_to_liaison_agent("files", chat_session_id="s-1"))
        share = client.liaison.get_share(key)
        assert (share.delivery, share.task_id) == (DELIVERED, server.received[0].task_id)
    assert len(server.received) == 1


def test_an_agent_that_does_not_begin_in_time_gets_no_session(tmp_path: Path) -> None:
    with (
        official_server(leave_submitted) as server,
        guide(tmp_path, delivery_seconds=1.0, kind="a2a", url=server.url, delivery="confirm") as client,
    ):
        with pytest.raises(ContextSharingFailed, match="has neither begun nor refused the task in time"):
            client.liaison.route_to_liaison_agent("files", chat_session_id="s-1")
        assert client.liaison.get_session("s-1").active_agent == "guide"


def test_the_outbox_reports_a_refusal_and_not_a_delivery(tmp_path: Path) -> None:
    with official_server(reject) as server, guide(tmp_path, kind="a2a", url=server.url) as client:
        key = key_of(client.liaison.route_to_liaison_agent("files", chat_session_id="s-1"))
        share_in(client, key, FAILED)
        assert types(client) == ["session_opened", "liaison_agent_activated", "delivery_failed"]


def test_the_outbox_asks_about_a_submitted_task_until_the_agent_begins(tmp_path: Path) -> None:
    with official_server(leave_submitted) as server:
        with guide(tmp_path, delivery_seconds=1.0, kind="a2a", url=server.url) as client:
            key = key_of(client.liaison.route_to_liaison_agent("files", chat_session_id="s-1"))
            wait_until(lambda: client.liaison.get_share(key).attempts > 0, "the delivery was tried")
            share = client.liaison.get_share(key)
            assert (share.delivery, share.task_id) == (PENDING, server.received[0].task_id)
        server.begin()
        with guide(tmp_path, kind="a2a", url=server.url) as client:
            share_in(client, key, DELIVERED)
            assert types(client)[-1] == "context_delivered"
    assert len(server.received) == 1
