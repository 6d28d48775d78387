"""Every failure is told when the server is killed, whatever it was doing."""

from __future__ import annotations

import uuid
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc, journal_pb2, journal_pb2_grpc, types_pb2
from tests.harness import TOKENS
from tests.killing import count_kills, killed_at_work, server_process
from tests.modules.webhooks.receiver import Receiver, receiving
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 5
GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
AGENTS = 3
TELLING_SECONDS = 200.0
"""What was being sent when a server was killed is sent again when its lease is over."""


def announce_and_review(channel: grpc.Channel, url: str, reviewed: dict[str, str]) -> None:
    """Record decisions, announce what is like them, and review them as failed, until the server is gone."""
    journal, cstp = journal_pb2_grpc.JournalServiceStub(channel), cstp_pb2_grpc.CstpServiceStub(channel)
    given: dict[str, Any] = {"metadata": (("authorization", f"Bearer {TOKENS['alice']}"),), "timeout": 30}
    try:
        while True:
            key = uuid.uuid4().hex
            content = journal_pb2.DecisionContent(title=f"Decide on {key}", visibility=types_pb2.VISIBILITY_SHARED)
            recorded = journal.RecordDecision(journal_pb2.RecordDecisionRequest(decision=content), **given)
            agent = types_pb2.AgentInfo(url=url)
            intent = cstp_pb2.AnnounceIntentRequest(intent=f"Decide on {key}", correlation_id=key, agent=agent)
            announced = cstp.AnnounceIntent(intent, **given)
            assert recorded.decision.id in [each.id for each in announced.similar_decisions]
            failed = journal_pb2.ReviewDecisionRequest(id=recorded.decision.id, outcome=types_pb2.OUTCOME_FAILURE)
            journal.ReviewDecision(failed, **given)
            reviewed[key] = recorded.decision.id
    except grpc.RpcError as error:
        if error.code() not in GONE:  # type: ignore[attr-defined]
            raise


def told(receiver: Receiver) -> dict[tuple[str, str], set[str]]:
    """Return the identifiers of the notifications, by announcement and decision."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for received in list(receiver.received):
        params = received.params
        found[params["correlationId"], params["decision"]["id"]].add(params["notificationId"])
    return found


def test_failures_are_told(tmp_path: Path) -> None:
    reviewed: dict[str, str] = {}
    with receiving() as receiver:
        url = f"{receiver.url}/hooks/"
        for _ in count_kills(KILLS, reviewed):
            with server_process("tests.modules.callbacks.serving", str(tmp_path), url) as (process, channel):
                killed_at_work(partial(announce_and_review, channel, url, reviewed), AGENTS, process.kill)
        with server_process("tests.modules.callbacks.serving", str(tmp_path), url):
            wait_until(lambda: set(reviewed.items()) <= set(told(receiver)), "every failure is told", TELLING_SECONDS)
    assert all(len(identifiers) == 1 for identifiers in told(receiver).values())
