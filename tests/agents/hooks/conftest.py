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

from cstp_grpc.agents.hooks.hosts import load_host
from cstp_grpc.server.app import App
from tests.agents.hooks.payloads import RECORDINGS, encode
from tests.guarded_project import record_failure, write_project
from tests.harness import TIMEOUT, TOKENS, Peers, peering, running

NODE = """# Shop

## Contracts

- Money is in cents.

## Invariants

- An order is never deleted.
"""
RULEBOOK = """
apiVersion: cstp.guardrails/v1
metadata: {name: shop, version: "1"}
extends: [agent-safety]
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
        self,
        event: Mapping[str, Any],
        *options: str,
        agent: str = "claude-code",
        url: str | None = None,
        project_folder: Path | None = None,
    ) -> Any:
        """Return the answer of the hook, as a process, to an event of an agent."""
        chosen = ["--agent", url or self.bridge.url, "--project", "shop", *options]
        session = {"CSTP_TOKEN": TOKENS["alice"], "CLAUDE_PROJECT_DIR": str(project_folder or self.folder)}
        return run_hook(encode(event), *chosen, agent=RECORDINGS[agent], environment={**os.environ, **session})


def run_hook(text: str, *options: str, agent: str = "claude-code", environment: Mapping[str, str]) -> Any:
    """Return the answer of the hook, as a process, to a text on standard input."""
    done = subprocess.run(
        [sys.executable, "-m", "cstp_grpc", "hook", agent, *options],
        input=text,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT,
    )
    answer = json.loads(done.stdout)
    if load_host(agent).shows_notices:
        assert done.stderr == ""
        return answer
    return {**answer, "printed": done.stderr} if done.stderr else answer


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    project, wanted = write_project(tmp_path_factory.mktemp("hooks"), RULEBOOK, NODE)
    with running(wanted) as app, peering(wanted, app.target) as bridge:
        record_failure(app, "Take a backup first.")
        yield Shop(app, bridge, project)
