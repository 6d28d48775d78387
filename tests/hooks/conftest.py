"""A server with the rules for agents, a project and a decision, and hooks that are run as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.server.app import App
from tests.harness import TIMEOUT, TOKENS, Peers, peering, running, settings
from tests.hooks.payloads import encode

NODE = """# Shop

## Contracts

- Money is in cents.
"""
RULEBOOK = """
apiVersion: cstp.guardrails/v1
metadata: {name: shop, version: "1"}
extends: [{rulebook: agent-safety}]
guardrails:
  - id: notes-elsewhere
    name: Notes are kept elsewhere
    when: action.mentions(["notes.txt"])
    severity: warn
    message: Notes belong into the wiki
  - id: no-entities
    name: No Entities
    when: action.mentions(["create_entities"])
    severity: block
    message: Entities are made by people
"""


@dataclass(frozen=True)
class Shop:
    """A project, and the server that judges work on it."""

    app: App
    bridge: Peers
    folder: Path

    def hook(
        self, event: Mapping[str, Any], *options: str, url: str | None = None, project_folder: Path | None = None
    ) -> Any:
        """Return what the hook answers to an event of Claude Code, as a process."""
        chosen = ["--agent", url or self.bridge.url, "--project", "shop", *options]
        session = {"CSTP_TOKEN": TOKENS["alice"], "CLAUDE_PROJECT_DIR": str(project_folder or self.folder)}
        return run_hook(encode(event), *chosen, environment={**os.environ, **session})


def run_hook(text: str, *options: str, environment: Mapping[str, str]) -> Any:
    """Return what the hook answers to a text on standard input, as a process."""
    done = subprocess.run(
        [sys.executable, "-m", "cstp_grpc", "hook", "claude-code", *options],
        input=text,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("hooks")
    (folder / "rules.yaml").write_text(RULEBOOK)
    project = folder / "shop"
    (project / "src").mkdir(parents=True)
    (project / "AGENTS.md").write_text(NODE)
    (project / "src" / "money.py").write_text("TAX = 19\n")
    wanted = settings(
        folder / "data",
        cstp={"guardrails": {"config_path": str(folder / "rules.yaml")}},
        intent_layer={"enabled": True, "projects": [{"name": "shop", "root": str(project)}]},
    )
    with running(wanted) as app, peering(wanted, app.target) as bridge:
        with CstpClient(app.target, TOKENS["bob"]) as client:
            client.record_decision(
                "Drop the orders table in place",
                category="database",
                outcome="failure",
                status="reviewed",
                notes="Take a backup first.",
                visibility="shared",
            )
        yield Shop(app, bridge, project)
