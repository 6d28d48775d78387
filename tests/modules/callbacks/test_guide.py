"""What the guide shows is what is sent."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.contract.enums import ApprovalStatus, Stakes
from cstp_grpc.contract.json_codec import from_json, to_json
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from cstp_grpc.modules.approvals.model import Approval, ApprovalSubject
from cstp_grpc.platform import config
from tests.modules.callbacks.kit import Kit, allow
from tests.waiting import wait_until

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "callbacks.md").read_text()
LATE, FAILED, DECIDED = (json.loads(text) for text in re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL))


def test_the_configuration_is_accepted(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    path = tmp_path / "cstp.yaml"
    path.write_text(snippet)
    settings = config.load_settings(path).federation.callbacks
    assert allow(*settings.allow).address("https://agents.example.com/cstp/hooks/7")
    assert settings == config.CallbackSettings(allow=settings.allow)


def test_the_answer_of_a_peer_is_one_of_the_contract() -> None:
    response = LATE["params"]["response"]
    assert to_json(from_json(response, cstp_pb2.AgentResponse)) == response


@pytest.mark.parametrize("shown", [LATE, FAILED, DECIDED], ids=["late", "failed", "decided"])
def test_the_notifications_look_like_that(kit: Kit, shown: dict[str, Any]) -> None:
    if shown is LATE:
        kit.callbacks.queue_late_answer(
            "alice", "deploy-42", 1, "https://agents.example.com/cstp/", shown["params"]["response"]
        )
    elif shown is DECIDED:
        approval = decided_approval(shown["params"]["approval"], kit.clock())
        kit.writer.run(lambda unit_of_work: kit.callbacks.queue_decision(unit_of_work, approval))
    else:
        decision = kit.decision()
        kit.cite(decision, correlation_id="deploy-42")
        kit.clock.pass_by(hours=1)
        kit.review(decision)
        shown["params"]["decision"]["id"] = decision.id
    with kit.sending():
        wait_until(lambda: kit.waiting() == 0, "it is sent")
    ((_, sent),) = kit.courier.posted
    shown["params"]["notificationId"] = sent["params"]["notificationId"]
    assert sent == shown
    assert list(sent["params"]) == list(shown["params"])


def decided_approval(shown: dict[str, Any], at: datetime) -> Approval:
    """Return a granted approval for which the shown announcement waits."""
    return Approval(
        id=shown["id"],
        digest=shown["digest"],
        agent="alice",
        subject=ApprovalSubject(Stakes.HIGH),
        guardrails=(),
        created_at=at,
        expires_at=at + timedelta(days=1),
        check_id="r-1",
        rule_set_version="rules@1+abc",
        correlation_id="deploy-42",
        callback_url="https://agents.example.com/cstp/",
        status=ApprovalStatus.GRANTED,
        decided_by=shown["decidedBy"],
        decided_at=at,
        comment=shown["comment"],
    )
