"""The plugin for Claude Code: what its manifests say is there, in the form that Claude Code documents."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cstp_grpc.agents.hooks.claude_code import TOOLS
from cstp_grpc.agents.hooks.claude_format import MOMENTS
from cstp_grpc.agents.hooks.settings_text import runs_command
from cstp_grpc.agents.hooks.tool_rules import OWN_MCP_TOOLS, ToolRules
from cstp_grpc.common.version import VERSION

ROOT = Path(__file__).resolve().parents[3]
MARKETPLACE = ROOT / ".claude-plugin" / "marketplace.json"
PLUGIN = ROOT / "plugins" / "claude-code"

# By https://code.claude.com/docs/en/plugins-reference and plugin-marketplaces, and the schemas of SchemaStore that are
# made of Claude Code's own (claude-code-plugin-manifest.json, claude-code-marketplace.json), as far as they are used.
TEXT: Any = {"type": "string", "minLength": 1}
PERSON = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": TEXT, "email": TEXT, "url": TEXT},
    "additionalProperties": False,
}
NAME = {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"}
MANIFEST = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": NAME,
        "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+"},
        "description": TEXT,
        "author": PERSON,
        "license": TEXT,
        "keywords": {"type": "array", "items": TEXT},
    },
    "additionalProperties": False,
}
LISTING = {
    "type": "object",
    "required": ["name", "owner", "plugins"],
    "properties": {
        "name": NAME,
        "description": TEXT,
        "owner": PERSON,
        "plugins": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "source"],
                "properties": {"name": NAME, "source": {"type": "string", "pattern": r"^\./"}, "description": TEXT},
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}
HOOKS = {
    "type": "object",
    "required": ["hooks"],
    "properties": {
        "description": TEXT,
        "hooks": {
            "type": "object",
            "propertyNames": {"enum": list(MOMENTS)},
            "additionalProperties": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["hooks"],
                    "properties": {
                        "matcher": {"type": "string"},
                        "hooks": {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "object",
                                "required": ["type", "command"],
                                "properties": {
                                    "type": {"const": "command"},
                                    "command": TEXT,
                                    "timeout": {"type": "number", "exclusiveMinimum": 0},
                                    "async": {"type": "boolean"},
                                    "onFailure": {"enum": ["block"]},
                                },
                                "additionalProperties": False,
                            },
                        },
                    },
                    "additionalProperties": False,
                },
            },
        },
    },
    "additionalProperties": False,
}
SERVERS = {
    "type": "object",
    "required": ["mcpServers"],
    "properties": {
        "mcpServers": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["command"],
                "properties": {"command": TEXT, "args": {"type": "array", "items": TEXT}},
                "additionalProperties": False,
            },
        }
    },
    "additionalProperties": False,
}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        (MARKETPLACE, LISTING),
        (PLUGIN / ".claude-plugin" / "plugin.json", MANIFEST),
        (PLUGIN / "hooks" / "hooks.json", HOOKS),
        (PLUGIN / ".mcp.json", SERVERS),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_a_file_has_the_form_that_is_documented(path: Path, schema: Any) -> None:
    jsonschema.validate(read_json(path), schema, cls=jsonschema.Draft7Validator)


def test_the_marketplace_lists_the_plugin_under_its_own_name() -> None:
    ((listed),) = read_json(MARKETPLACE)["plugins"]
    manifest = ROOT / listed["source"] / ".claude-plugin" / "plugin.json"
    assert read_json(manifest)["name"] == listed["name"]
    assert read_json(manifest)["version"] == VERSION


def test_only_its_manifest_is_in_the_folder_of_manifests() -> None:
    assert [path.name for path in (PLUGIN / ".claude-plugin").iterdir()] == ["plugin.json"]


def test_every_hook_and_the_server_are_commands_of_this_package() -> None:
    groups = read_json(PLUGIN / "hooks" / "hooks.json")["hooks"]
    hooks = [hook for event in groups.values() for group in event for hook in group["hooks"]]
    assert hooks
    assert all(runs_command(hook, ("hook", "claude-code")) for hook in hooks)
    (server,) = read_json(PLUGIN / ".mcp.json")["mcpServers"].values()
    assert (server["command"], server["args"]) == ("cstp", ["mcp"])


def test_the_tools_of_its_server_are_left_alone() -> None:
    # The server of a plugin has the plugin's name before its own.
    rules = ToolRules.parse(TOOLS)
    for tool in OWN_MCP_TOOLS:
        assert rules.question_about(f"mcp__plugin_cstp_cstp__{tool}", {}, "/").ask == "nothing"
    assert rules.question_about("mcp__plugin_cstp_cstp__other", {}, "/").ask == "check"


@pytest.mark.parametrize("path", sorted((PLUGIN / "skills").glob("*/SKILL.md")), ids=lambda path: path.parent.name)
def test_a_skill_says_when_to_use_it_and_names_tools_that_there_are(path: Path) -> None:
    _, front, body = path.read_text().split("---\n", 2)
    said = yaml.safe_load(front)
    assert said["name"] == path.parent.name
    assert re.fullmatch("[a-z0-9-]{1,64}", said["name"])
    assert 0 < len(said["description"]) <= 1024
    named = set(re.findall(r"`([a-z]+_[a-z_]+)`", body))
    assert named
    assert named <= set(OWN_MCP_TOOLS)


def test_the_plugin_is_made_of_the_sources() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "scripts" / "claude_plugin.py", "--check"], capture_output=True, text=True, check=False
    )
    assert checked.stderr == ""
    assert checked.returncode == 0
