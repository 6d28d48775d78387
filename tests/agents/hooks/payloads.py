"""Events as agents send them, for tests to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

from cstp_grpc.agents.hooks.hosts import HOSTS, load_host
from cstp_grpc.agents.hooks.model import HookHost

LEARNED = """All is done.

```cstp-learning
type: pitfall
path: src/money.py
title: Rates are percentages
detail: TAX is in percent.
Divide by 100 before you multiply.
```
"""


RECORDINGS: Final = {**{host: host for host in HOSTS}, "copilot-cli": "copilot"}
"""The hosts by the programs whose events are recorded; Copilot is several."""


def host_of(agent: str) -> HookHost:
    """Return the host of an agent whose events are recorded."""
    return load_host(RECORDINGS[agent])


def payload(name: str, folder: Path | str = "/project", *, agent: str = "claude-code", **changes: Any) -> Any:
    """Return a recorded event of an agent in a folder; `changes` replace members."""
    return {**recorded(agent, folder)[name], **changes}


def names(agent: str = "claude-code") -> list[str]:
    """Return the names of the recorded events of an agent."""
    return list(recorded(agent))


def recorded(agent: str, folder: Path | str = "/project") -> dict[str, Any]:
    """Return the recorded events of an agent by their names."""
    file = Path(__file__).with_name(f"{agent.replace('-', '_')}_payloads.yaml")
    assert file.exists(), f"tests/agents/hooks/{file.name}: record the events of {agent}, see CONTRIBUTING.md"
    events: dict[str, Any] = yaml.safe_load(file.read_text().replace("FOLDER", str(folder)))
    return events


def encode(event: Any) -> str:
    """Return an event as the agent writes it."""
    return json.dumps(event)
