"""A project with a rulebook and a decision that failed, for tests of what agents see while they work on it."""

from __future__ import annotations

from pathlib import Path

from cstp_grpc.client import CstpClient
from cstp_grpc.platform.config.settings import Settings
from cstp_grpc.server.app import App
from tests.harness import TOKENS, settings


def write_project(folder: Path, rulebook: str, node: str) -> tuple[Path, Settings]:
    """Return the folder of a project named shop whose root has a node, and the settings of a server that judges it."""
    rules, project = folder / "rules.yaml", folder / "shop"
    rules.write_text(rulebook)
    (project / "src").mkdir(parents=True)
    (project / "AGENTS.md").write_text(node)
    (project / "src" / "money.py").write_text("TAX = 19\n")
    return project, settings(
        folder / "data",
        cstp={"guardrails": {"config_path": str(rules)}},
        intent_layer={"enabled": True, "projects": [{"name": "shop", "root": str(project)}]},
    )


def record_failure(app: App, notes: str) -> None:
    """Record a decision of bob that failed, which everybody may read."""
    with CstpClient(app.target, TOKENS["bob"]) as client:
        client.record_decision(
            "Drop the orders table in place",
            category="database",
            outcome="failure",
            status="reviewed",
            notes=notes,
            visibility="shared",
        )
