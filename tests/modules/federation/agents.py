"""Agents that ask each other: servers with rulebooks and decisions of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from cstp_grpc.contract.enums import Permission
from cstp_grpc.platform.config import Settings
from tests.harness import TOKENS, settings

PEER_TOKEN = "peer-secret-token"
SECONDS = 20.0
"""How long a peer may take, and all of them together, that is expected to answer."""
NOTHING = {"id": "nothing", "when": "false"}
"""A rule that matches nothing: a rulebook has one at the least."""


def rulebook(*rules: dict[str, Any]) -> dict[str, Any]:
    """Return a rulebook with rules, of which each is given by its `id`, `when`, and perhaps more."""
    given = {"severity": "block", "message": "No"}
    return {
        "apiVersion": "cstp.guardrails/v1",
        "metadata": {"name": "test", "version": "1"},
        "inputs": {name: {"type": "bool", "default": False} for name in ("production", "reviewed", "risky")},
        "guardrails": [{"name": rule["id"], **given, **rule} for rule in rules or [NOTHING]],
    }


def agent_settings(
    folder: Path, name: str, *rules: dict[str, Any], peers: Sequence[dict[str, Any]] = (), **federation: Any
) -> Settings:
    """Return the settings of an agent: rules, peers, and whom it answers: alice, bob, and peers by one token."""
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "rules.yaml"
    written.write_text(yaml.safe_dump(rulebook(*rules)), encoding="utf-8")
    tokens = [
        {"name": "alice", "token": TOKENS["alice"], "permissions": sorted(Permission)},
        {"name": "bob", "token": TOKENS["bob"], "permissions": sorted(Permission)},
        {"name": "friend", "token": PEER_TOKEN, "permissions": ["query", "check", "announce"], "peer": True},
    ]
    return settings(
        folder,
        agent={"name": name},
        auth={"tokens": tokens},
        cstp={"guardrails": {"config_path": str(written), "unknown_action": "allow"}, "query": {"min_score": 0}},
        federation={"peers": list(peers), "timeout_seconds": SECONDS, **federation},
    )


def peer(name: str, url: str, **more: Any) -> dict[str, Any]:
    """Return the settings of a peer."""
    return {"name": name, "url": url, "token": PEER_TOKEN, "timeout_seconds": SECONDS, **more}
