"""What needs an approval at a peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.federation.agents import agent_settings, peer
from tests.federation.house import given, result_of
from tests.harness import GrpcCaller, running

ASKING = {"id": "ask-first", "when": "context.risky", "severity": "approve"}
ACTION = {"description": "Ship it", "context": {"risky": True}}


def test_the_request_stays_with_the_peer_and_is_named(tmp_path: Path) -> None:
    with running(agent_settings(tmp_path / "b", "b", ASKING)) as b:
        peers = [peer("b", f"grpc://{b.target}", role="required")]
        with running(agent_settings(tmp_path / "a", "a", peers=peers)) as a:
            caller, approver = GrpcCaller(a.target), GrpcCaller(b.target)

            def check() -> dict[str, Any]:
                params = {"action": ACTION, "agent": {"id": "emerson"}, **given("federated")}
                return result_of(caller, "cstp.checkGuardrails", params)

            asked = check()
            assert (asked["allowed"], asked["approvalRequired"]) == (False, True)
            assert [(each["agent"], each["severity"]) for each in asked["violations"]] == [("b", "approve")]
            # This agent needs none itself.
            assert "approval" not in asked
            (response,) = asked["responses"]
            requested = response["guardrailStatus"]["approval"]
            assert requested["status"] == "pending"
            found = result_of(approver, "cstp.getApproval", {"id": requested["id"]})["approval"]
            assert (found["agent"], found["onBehalfOf"]) == ("friend", "emerson")
            result_of(approver, "cstp.grantApproval", {"id": requested["id"], "comment": "Go"})
            allowed = check()
            assert (allowed["allowed"], allowed["approvalRequired"]) == (True, False)
            used = allowed["responses"][0]["guardrailStatus"]["approval"]
            assert used == {**requested, "status": "used", "comment": "Go", "expiresAt": used["expiresAt"]}
            denied = check()["responses"][0]["guardrailStatus"]["approval"]
            result_of(approver, "cstp.denyApproval", {"id": denied["id"]})
            refused = check()
            assert (refused["allowed"], refused["approvalRequired"]) == (False, False)
            caller.close()
            approver.close()


def test_an_approval_for_one_caller_of_a_peer_is_not_for_another(tmp_path: Path) -> None:
    with running(agent_settings(tmp_path / "b", "b", ASKING)) as b:
        peers = [peer("b", f"grpc://{b.target}", role="required")]
        with running(agent_settings(tmp_path / "a", "a", peers=peers)) as a:
            caller, approver = GrpcCaller(a.target), GrpcCaller(b.target)

            def check(name: str) -> dict[str, Any]:
                params = {"action": ACTION, "agent": {"id": name}, **given("federated")}
                return result_of(caller, "cstp.checkGuardrails", params)

            requested = approval_of(check("emerson"))
            result_of(approver, "cstp.grantApproval", {"id": requested["id"]})
            other = check("ada")
            assert (other["allowed"], approval_of(other)["id"] == requested["id"]) == (False, False)
            assert check("emerson")["allowed"]
            caller.close()
            approver.close()


def approval_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the approval request of the one peer."""
    (response,) = answer["responses"]
    approval: dict[str, Any] = response["guardrailStatus"]["approval"]
    return approval
