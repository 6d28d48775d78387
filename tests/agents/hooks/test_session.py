"""What events of a session come to at a real server, by the hook as a process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.client import CstpClient
from tests.agents.hooks.conftest import RULEBOOK, Shop, run_hook
from tests.agents.hooks.payloads import LEARNED, encode, payload
from tests.harness import TOKENS


def specific(answer: Any) -> Any:
    """Return the part of an answer about its event."""
    return answer["hookSpecificOutput"]


def test_an_approval_may_be_left_to_the_server(shop: Shop) -> None:
    event = payload("bash", shop.folder, tool_input={"command": "rm -rf src"})
    denied = specific(shop.hook(event, "--approvals", "deny"))
    assert denied["permissionDecision"] == "deny"
    approval = denied["permissionDecisionReason"].split("cstp approvals grant ")[1].split("`")[0]
    with CstpClient(shop.app.target, TOKENS["bob"]) as client:
        client.grant_approval(approval)
    allowed = specific(shop.hook(event, "--approvals", "deny"))
    assert "permissionDecision" not in allowed
    assert "The command deletes a folder with all that is in it" in allowed["additionalContext"]


def test_tools_of_mcp_are_judged_by_name_and_arguments(shop: Shop) -> None:
    denied = specific(shop.hook(payload("mcp", shop.folder)))
    assert denied["permissionDecision"] == "deny"
    assert "Entities are made by people" in denied["permissionDecisionReason"]
    own = payload("mcp", shop.folder, tool_name="mcp__cstp__look_before_acting")
    assert shop.hook(own) == {}


def test_a_warning_is_told_to_the_model(shop: Shop) -> None:
    told = specific(shop.hook(payload("write", shop.folder)))
    assert "permissionDecision" not in told
    assert "Notes belong into the wiki" in told["additionalContext"]


def test_a_file_outside_of_the_project_is_judged_by_its_words(shop: Shop, tmp_path: Path) -> None:
    event = payload("write", shop.folder, tool_input={"file_path": str(tmp_path / "other.txt"), "content": ""})
    event["tool_use_id"] = "toolu_outside"
    assert "Money is in cents" not in json.dumps(shop.hook(event))


def test_a_session_in_a_folder_of_a_work_tree_is_one_in_its_root(shop: Shop) -> None:
    (shop.folder / ".git").mkdir()
    try:
        event = payload("edit", shop.folder, tool_use_id="toolu_below", cwd=str(shop.folder / "src"))
        told = specific(shop.hook(event, project_folder=shop.folder / "src"))
    finally:
        (shop.folder / ".git").rmdir()
    assert "Money is in cents. [AGENTS.md:3]" in told["additionalContext"]
    with CstpClient(shop.app.target, TOKENS["alice"]) as client:
        (intent,) = client.list_intents(correlation_id="toolu_below")
        assert list(intent.paths) == ["src/money.py"]


def test_the_same_over_grpc(shop: Shop) -> None:
    event = payload("bash", shop.folder, tool_input={"command": "git push -f origin HEAD:main"})
    over_grpc = specific(shop.hook(event, url=f"grpc://{shop.app.target}"))
    assert over_grpc == specific(shop.hook(event))
    assert over_grpc["permissionDecision"] == "deny"


@pytest.mark.slow
def test_the_same_without_a_server(tmp_path: Path) -> None:
    config = tmp_path / "cstp.yaml"
    config.write_text(
        "data_dir: data\nembedding: {provider: lexical}\nauth: {enabled: false}\n"
        "cstp: {guardrails: {config_path: rules.yaml}}\n"
    )
    (tmp_path / "rules.yaml").write_text(RULEBOOK)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CSTP_")}
    options = ["--local", "--config", str(config), "--timeout", "60"]
    event = payload("bash", tmp_path, tool_input={"command": "git push --force origin main"})
    denied = specific(run_hook(encode(event), *options, environment=environment))
    assert denied["permissionDecision"] == "deny"
    # There is no project, so that nothing governs the file, which is no error.
    assert run_hook(encode(payload("edit", tmp_path)), *options, environment=environment) == {}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (LEARNED.replace("pitfall", "mistake"), "`type` must be one of"),
        (LEARNED.replace("title:", "name:"), "`title` is missing"),
        (LEARNED.replace("src/money.py", "../secret"), "path"),
    ],
)
def test_a_learning_that_cannot_be_filed_keeps_the_agent_going_once(shop: Shop, message: str, problem: str) -> None:
    event = payload("stop", shop.folder, last_assistant_message=message)
    kept = shop.hook(event)
    assert kept["decision"] == "block"
    assert problem in kept["reason"]
    again = shop.hook({**event, "stop_hook_active": True})
    assert list(again) == ["systemMessage"]
    assert problem in again["systemMessage"]
