"""What needs an approval at a peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness import TOKENS, GrpcCaller, running
from tests.modules.federation.agents import PEER_TOKEN, agent_settings, peer
from tests.modules.federation.house import given, result_of

ASKING = {"id": "ask-first", "when": "context.risky", "severity": "approve"}
ACTION = {"description": "Ship it", "context": {"risky": True}}


def test_the_request_stays_with_the_peer_and_is_named(tmp_path: Path) -> None:
    with running(agent_settings(tmp_path / "b", "b", ASKING)) as b:
        peers = [peer("b", f"grpc://{b.target}", role="required")]
        with running(agent_settings(tmp_path / "a", "a", peers=peers)) as a:
            caller, approver = GrpcCaller(a.target), GrpcCaller(b.target)

            def check() -> dict[str, Any]:
                return result_of(caller, "cstp.checkGuardrails", {"action": ACTION, **given("federated")})

            asked = check()
            assert (asked["allowed"], asked["approvalRequired"]) == (False, True)
            assert [(each["agent"], each["severity"]) for each in asked["violations"]] == [("b", "approve")]
            # This agent needs none itself.
            assert "approval" not in asked
            (response,) = asked["responses"]
            requested = response["guardrailStatus"]["approval"]
            assert requested["status"] == "pending"
            found = result_of(approver, "cstp.getApproval", {"id": requested["id"]})["approval"]
            assert (found["agent"], found["onBehalfOf"]) == ("friend", "alice")
            own = approver.call("cstp.grantApproval", {"id": requested["id"]})
            assert own.reason == "PERMISSION_DENIED"
            decide(approver, "grant", requested["id"], comment="Go")
            allowed = check()
            assert (allowed["allowed"], allowed["approvalRequired"]) == (True, False)
            used = allowed["responses"][0]["guardrailStatus"]["approval"]
            assert used == {**requested, "status": "used", "comment": "Go", "expiresAt": used["expiresAt"]}
            denied = check()["responses"][0]["guardrailStatus"]["approval"]
            decide(approver, "deny", denied["id"])
            refused = check()
            assert (refused["allowed"], refused["approvalRequired"]) == (False, False)
            caller.close()
            approver.close()


def test_an_approval_for_one_caller_of_a_peer_is_not_for_another(tmp_path: Path) -> None:
    with running(agent_settings(tmp_path / "b", "b", ASKING)) as b:
        peers = [peer("b", f"grpc://{b.target}", role="required")]
        with running(agent_settings(tmp_path / "a", "a", peers=peers)) as a:
            caller, approver = GrpcCaller(a.target), GrpcCaller(b.target)

            def check(agent: str, claimed: str) -> dict[str, Any]:
                params = {"action": ACTION, "agent": {"id": claimed}, **given("federated")}
                outcome = caller.call("cstp.checkGuardrails", params, TOKENS[agent])
                assert outcome.result is not None, outcome
                return outcome.result

            requested = approval_of(check("alice", "emerson"))
            decide(approver, "grant", requested["id"])
            # Whatever it calls itself.
            for claimed in ("alice", "emerson"):
                other = check("bob", claimed)
                assert (other["allowed"], approval_of(other)["id"] == requested["id"]) == (False, False)
            assert check("alice", "ada")["allowed"]
            caller.close()
            approver.close()


def test_whom_a_peer_asks_for_is_told_with_its_name(tmp_path: Path) -> None:
    with running(agent_settings(tmp_path / "b", "b", ASKING)) as b:
        peers = [peer("b", f"grpc://{b.target}", role="required")]
        with running(agent_settings(tmp_path / "a", "a", peers=peers)) as a:
            caller, approver = GrpcCaller(a.target), GrpcCaller(b.target)
            for claimed, told in (("emerson", "friend/emerson"), ("e" * 200, None), (f"{'e' * 199}d", None)):
                params = {"action": ACTION, "agent": {"id": claimed}, **given("federated")}
                outcome = caller.call("cstp.checkGuardrails", params, PEER_TOKEN)
                assert outcome.result is not None, outcome
                found = result_of(approver, "cstp.getApproval", {"id": approval_of(outcome.result)["id"]})["approval"]
                assert told in (None, found["onBehalfOf"])
            listed = result_of(approver, "cstp.listApprovals", {})["approvals"]
            assert len({each["onBehalfOf"] for each in listed}) == 3
            caller.close()
            approver.close()


def decide(approver: GrpcCaller, decision: str, approval_id: str, **more: str) -> None:
    """Grant or deny an approval as Bob."""
    outcome = approver.call(f"cstp.{decision}Approval", {"id": approval_id, **more}, TOKENS["bob"])
    assert outcome.reason is None, outcome


def approval_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the approval request of the one peer."""
    (response,) = answer["responses"]
    approval: dict[str, Any] = response["guardrailStatus"]["approval"]
    return approval
