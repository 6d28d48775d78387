"""Write the plugin for Claude Code and its marketplace, or check with `--check` that they are fresh.

The hooks are those that `cstp install claude-code` writes. The skill is written by hand, and only listed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from cstp_grpc.agents.hooks.claude_code import wanted_hooks
from cstp_grpc.agents.hooks.mcp_servers import OWN_NAME
from cstp_grpc.cli.resident_client import DEFAULT_SECONDS
from cstp_grpc.common.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = "plugins/claude-code"
DESCRIPTION = "Guardrails, precedents and contracts of your code before each tool call, from a CSTP server"
OWNER = {"name": "CSTP"}


def build_files() -> dict[str, Any]:
    """Return the content of each file by its path in the repository."""
    hooks = wanted_hooks("cstp hook claude-code", seconds=DEFAULT_SECONDS)
    return {
        ".claude-plugin/marketplace.json": {
            "name": OWN_NAME,
            "description": "Plugins of CSTP, the Cognition State Transfer Protocol",
            "owner": OWNER,
            "plugins": [{"name": OWN_NAME, "source": f"./{PLUGIN}", "description": DESCRIPTION}],
        },
        f"{PLUGIN}/.claude-plugin/plugin.json": {
            "name": OWN_NAME,
            "version": VERSION,
            "description": DESCRIPTION,
            "author": OWNER,
            "license": "Apache-2.0",
            "keywords": ["guardrails", "decisions", "audit", "hooks", "mcp"],
        },
        f"{PLUGIN}/hooks/hooks.json": {
            "description": "Judge tool calls, tell what governs a file, file what was learned",
            "hooks": {event: [group] for event, group in hooks.items()},
        },
        f"{PLUGIN}/.mcp.json": {"mcpServers": {OWN_NAME: {"command": "cstp", "args": ["mcp"]}}},
    }


def main() -> None:
    """Write the files, or exit with 1 if one of them is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    check = parser.parse_args().check
    for name, content in build_files().items():
        path = ROOT / name
        text = json.dumps(content, indent=2) + "\n"
        if path.exists() and path.read_text() == text:
            continue
        if check:
            sys.exit(f"{name} is not fresh: run `make docs`")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
