"""approvals, and what check and announce say of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cstp_grpc.client import CstpClient
from tests.cli.conftest import Invoke, Server
from tests.harness import TOKENS, running, settings
from tests.modules.approvals.serving import RULEBOOK

ROWS = ("--context", "rows=5000")
WHAT = "Update the prices of all orders"


@pytest.fixture
def server(tmp_path: Path, invoke: Invoke) -> Iterator[Server]:
    """A server whose rules ask for approvals."""
    with running(settings(tmp_path / "data", cstp={"guardrails": {"config_path": str(RULEBOOK)}})) as app:
        yield Server(app, invoke)


def request(server: Server, description: str = WHAT) -> str:
    """Request an approval and return its id."""
    result = server("check", description, *ROWS, "--json")
    assert result.exit_code == 4, result.output
    approval_id: str = server.json("approvals", "list", "--status", "pending")["approvals"][0]["id"]
    return approval_id


def test_a_check_says_what_to_do_until_it_is_allowed(server: Server) -> None:
    shown = server("check", WHAT, *ROWS)
    assert shown.exit_code == 4
    approval_id = request(server)
    assert f"Approval {approval_id} is pending" in shown.stdout
    assert "Have another agent, with the permission approve, grant it until 20" in shown.stdout
    assert f"  cstp approvals grant {approval_id} --token TOKEN" in shown.stdout
    granted = server.ok("approvals", "grant", approval_id, "--comment", "The backup is verified", agent="bob")
    assert f"{approval_id} is granted: alice may do it once, until 20" in granted
    assert f"Approval {approval_id} is used: The backup is verified" in server.ok("check", WHAT, *ROWS)
    entries = server.json("audit", "--approval", approval_id, agent="bob")["entries"]
    assert {"approval_requested", "approval_granted", "approval_used"} < {entry["event"] for entry in entries}
    assert server("check", WHAT, *ROWS).exit_code == 4


def test_an_approver_sees_the_command_whatever_its_description_says(invoke: Invoke, tmp_path: Path) -> None:
    with running(settings(tmp_path / "data", cstp={"guardrails": {"preset": "standard"}})) as app:
        server = Server(app, invoke)
        action = {"description": "Tidy up", "command": "rm -rf src", "directory": "/shop"}
        checked = server("call", "cstp.checkGuardrails", json.dumps({"action": action}))
        approval_id = json.loads(checked.stdout)["approval"]["id"]
        assert "Tidy up: rm -rf src" in server.ok("approvals", "list", agent="bob")
        shown = server.ok("approvals", "show", approval_id, agent="bob").split()
        assert "command rm -rf src runs in /shop" in " ".join(shown)


def test_a_check_can_wait_until_people_have_decided(server: Server) -> None:
    with CstpClient(server.app.target, TOKENS["bob"]) as bob, closing(bob.watch_approvals(status=["pending"])) as seen:
        next(seen)

        def grant_the_next() -> None:
            bob.grant_approval(next(seen).approval.id)

        with ThreadPoolExecutor(1) as approver:
            granting = approver.submit(grant_the_next)
            waited = server("check", WHAT, *ROWS, "--wait", "--json")
            granting.result()
    assert waited.exit_code == 0, waited.output
    assert json.loads(waited.stdout)["approval"]["status"] == "used"
    assert waited.stderr.startswith("Waiting for the decision on approval apr-")


def test_an_announcement_that_was_denied_is_blocked_with_the_comment(server: Server) -> None:
    announced = server("announce", WHAT, "--metadata", "rows=5000")
    assert announced.exit_code == 4
    assert "Approval required" in announced.stdout
    (pending,) = server.json("approvals", "list")["approvals"]
    denied = server.ok("approvals", "deny", pending["id"], "--comment", "Not during the sale", agent="bob")
    assert denied == f"{pending['id']} is denied.\n"
    announced = server("announce", WHAT, "--metadata", "rows=5000")
    assert announced.exit_code == 3
    assert "Denied by 1 of 5 guardrails" in announced.stdout
    assert f"Approval {pending['id']} is denied: Not during the sale" in announced.stdout


def test_requests_are_listed_and_shown(server: Server) -> None:
    assert server.ok("approvals", "list") == "No matching approval requests.\n"
    approval_id = request(server)
    listed = server.ok("approvals", "list", "--by", "alice", agent="bob")
    assert WHAT in listed
    assert f"{approval_id}, by alice, asked by many-rows, until 20" in listed
    shown = server.ok("approvals", "show", approval_id, agent="bob")
    assert '"rows": 5000' in shown
    assert "many-rows: A person approves changes of 5000 rows" in shown
    assert f"cstp approvals grant {approval_id}" in shown
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert "any number of times until 20" in server.ok(
        "approvals", "grant", approval_id, "--until", tomorrow, agent="bob"
    )
    server.ok("check", WHAT, *ROWS)
    assert "once, last at" in server.ok("approvals", "show", approval_id, agent="bob")
    assert server.ok("approvals", "revoke", approval_id, agent="bob") == f"{approval_id} is revoked.\n"
    assert server.ok("approvals", "list", "--status", "pending", "--limit", 1) == ("No matching approval requests.\n")


def test_a_part_of_an_approval_says_for_whom_it_waits(server: Server) -> None:
    assert server("check", "Raise prices", "--category", "prices", "--context", "countries=2").exit_code == 4
    (pending,) = server.json("approvals", "list")["approvals"]
    granted = server.ok("approvals", "grant", pending["id"], agent="bob")
    assert granted == f"{pending['id']} is granted for your part; it waits for carol.\n"
    shown = server.ok("approvals", "show", pending["id"], agent="bob")
    assert "granted by bob" in shown
    assert "waits for carol" in shown


def test_nobody_decides_on_their_own_request(server: Server) -> None:
    result = server("approvals", "grant", request(server))
    assert result.exit_code == 1
    assert "you cannot decide on your own request" in result.stderr


def test_a_watch_prints_each_change(server: Server) -> None:
    with CstpClient(server.app.target, TOKENS["bob"]) as bob, closing(bob.watch_approvals()) as changes:
        token = next(changes).resume_token
    approval_id = request(server)
    server.ok("approvals", "deny", approval_id, "--comment", "No", agent="bob")
    printed = server.ok("approvals", "watch", "--after", token, "--limit", 1, agent="bob")
    assert printed == f"denied  {approval_id} alice {WHAT} No\n"
    line = server.json("approvals", "watch", "--after", token, "--limit", 1, "--status", "denied", agent="bob")
    assert line["approval"]["comment"] == "No"
