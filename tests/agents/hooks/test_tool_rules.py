"""The table by which tool calls become questions."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.agents.hooks.claude_code import TOOLS
from cstp_grpc.agents.hooks.tool_rules import OWN_MCP_TOOLS, ToolQuestion, ToolRules, path_in_project
from cstp_grpc.contract.errors import ConfigError

RULES = ToolRules.parse(TOOLS)
RULE = {"tool": "Deploy*", "ask": "announce", "description": "Deploy {service}", "category": "deployment"}


def ask(tool: str, **arguments: Any) -> ToolQuestion:
    return RULES.question_about(tool, arguments, "/project")


def test_a_command_is_checked_in_its_own_words() -> None:
    assert ask("Bash", command="npm test", timeout=1) == ToolQuestion(
        "check", "npm test", invocation={"command": "npm test", "directory": "/project"}
    )
    shell = ask("PowerShell", command="dir").invocation
    assert shell == {"command": "dir", "shell": "powershell", "directory": "/project"}


def test_the_files_that_a_tool_reads_are_named() -> None:
    assert ask("Read", file_path="/project/.env").invocation == {"reads": ["/project/.env"], "directory": "/project"}


@pytest.mark.parametrize(
    ("tool", "argument", "verb"),
    [
        ("Edit", "file_path", "Edit"),
        ("MultiEdit", "file_path", "Edit"),
        ("Write", "file_path", "Write"),
        ("NotebookEdit", "notebook_path", "Edit"),
    ],
)
def test_an_edit_is_announced_with_its_path_and_without_its_content(tool: str, argument: str, verb: str) -> None:
    question = ask(tool, **{argument: "/project/src/a.py", "content": "rm -rf /"})
    written = {"writes": ["/project/src/a.py"], "directory": "/project"}
    assert question == ToolQuestion("announce", f"{verb} src/a.py", ("src/a.py",), invocation=written)


def test_a_path_outside_of_the_project_is_written_and_not_announced() -> None:
    written = {"writes": ["/etc/passwd"], "directory": "/project"}
    assert ask("Write", file_path="/etc/passwd") == ToolQuestion("announce", "Write /etc/passwd", invocation=written)


def test_other_tools_are_checked_by_name_and_arguments() -> None:
    assert ask("mcp__a__b", n=1, t="ä").description == 'Call mcp__a__b with {"n": 1, "t": "ä"}'
    assert ask("Task", prompt="x") == ToolQuestion("check", 'Call Task with {"prompt": "x"}')


def test_a_call_without_any_argument_that_its_rule_names_is_described_in_full() -> None:
    assert ask("Edit", path="a.py").description == 'Call Edit with {"path": "a.py"}'
    assert ask("Bash", command="").description == 'Call Bash with {"command": ""}'


@pytest.mark.parametrize("tool", OWN_MCP_TOOLS)
def test_the_own_tools_are_not_judged_and_others_of_a_server_of_that_name_are(tool: str) -> None:
    assert ask(f"mcp__cstp__{tool}").ask == "nothing"
    assert ask(f"mcp__cstp__{tool}_").ask == "check"
    assert ask(f"mcp__cstp2__{tool}").ask == "check"


def test_the_own_tools_are_those_that_are_served() -> None:
    pytest.importorskip("mcp")
    from cstp_grpc.agents.mcp_server.tools import TOOLS as SERVED

    assert [tool.name for tool in SERVED] == list(OWN_MCP_TOOLS)


def test_all_paths_of_a_call_are_announced() -> None:
    rules = ToolRules.parse({"tools": [{"tool": "*", "ask": "announce", "description": "Edit {f}", "paths": ["f"]}]})
    inside = rules.question_about("x", {"f": ["/project/a", "b/c"]}, "/project")
    assert (inside.description, inside.paths) == ("Edit a, b/c", ("a", "b/c"))
    assert inside.invocation["writes"] == ["/project/a", "b/c"]
    outside = rules.question_about("x", {"f": ["/project/a", "/etc/passwd"]}, "/project")
    assert (outside.description, outside.paths) == ("Edit /project/a, /etc/passwd", ("a",))
    assert outside.invocation["writes"] == ["/project/a", "/etc/passwd"]


def test_rules_of_a_file_replace_the_table() -> None:
    inputs = [
        {"argument": "region", "matches": "^eu-", "set": {"affectsProduction": True}},
        {"argument": "replicas", "matches": "^[1-9]$", "set": {"rolloutPercent": 10}},
    ]
    rules = ToolRules.parse({"tools": [{**RULE, "stakes": "high", "inputs": inputs}]})
    question = rules.question_about("DeployService", {"service": "auth", "region": "eu-1", "replicas": 3}, "/")
    assert question == ToolQuestion(
        "announce", "Deploy auth", (), "deployment", "high", {"affectsProduction": True, "rolloutPercent": 10}
    )
    assert rules.question_about("Bash", {"command": "ls"}, "/").description == 'Call Bash with {"command": "ls"}'


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({}, "tools: must be a list"),
        ({"tools": [], "rules": []}, "rules: is not a known key"),
        ({"tools": ["Bash"]}, "tools.0: must be a mapping"),
        ({"tools": [{}]}, "tools.0.tool: must be given"),
        ({"tools": [{**RULE, "when": "x"}]}, "tools.0.when: is not a known key"),
        ({"tools": [{**RULE, "description": ""}]}, "tools.0.description: must be a text that is not empty"),
        ({"tools": [{**RULE, "ask": "allow"}]}, "tools.0.ask: must be check, announce or nothing"),
        ({"tools": [{**RULE, "stakes": "huge"}]}, "tools.0.stakes: must be"),
        ({"tools": [{**RULE, "paths": [1]}]}, "tools.0.paths: must be names of arguments"),
        ({"tools": [{**RULE, "inputs": [{"set": {}}]}]}, "tools.0.inputs.0.argument: must be given"),
        (
            {"tools": [{**RULE, "inputs": [{"argument": "a", "matches": "(", "set": {}}]}]},
            "tools.0.inputs.0.matches: is not a regular expression",
        ),
    ],
    ids=str,
)
def test_a_mistake_in_a_table_is_named_with_its_place(content: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ToolRules.parse(content, "tools.yaml: ")
    assert f"tools.yaml: {problem}" in str(raised.value)


def test_a_path_is_found_behind_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert path_in_project(str(tmp_path / "real" / "a"), str(tmp_path / "link")) == "a"


@given(st.lists(st.sampled_from(["..", ".", "a", "b", "..c"]), max_size=6))
def test_a_path_in_the_project_never_leaves_it(parts: list[str]) -> None:
    path = path_in_project("/".join(parts), "/project/folder")
    assert path is None or ".." not in path.split("/")
    depths = accumulate({"..": -1, ".": 0}.get(part, 1) for part in parts)
    assert (path is None) == (min(depths, default=0) < 0)
