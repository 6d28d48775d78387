"""Prepares what a case says comes before its own exchange.

`settings` change those of tests/harness.py, `rulebook` is a file under cases/rulebooks or `default`, `project` are the
files of a project called shop, by their paths (`{link: TARGET}` is a link), `decisions` are recorded by `by` (alice
unless stated; `<name>` in `before`, `params` and `expect` is the id of the one that is recorded `as: name`), and
`before` are earlier exchanges, each with the `reason` that it fails for, and with texts of its answer to `keep`, by
their paths, as `<name>` for what follows. tests/case_servers.py says which cases share a server, and what `alone` is
for.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from cstp_grpc.core.guardrails.rulebook_files import packaged_rulebook_path
from cstp_grpc.platform import config
from cstp_grpc.platform.config.settings import ProjectSettings
from tests.harness import TOKENS, Outcome, settings

CASES = Path(__file__).parent / "cases"
PROJECT = "shop"


def settings_of(case: Mapping[str, Any], data_dir: Path) -> config.Settings:
    """Return the settings of a case without those of its project."""
    overrides = case.get("settings", {})
    rulebook = case.get("rulebook", "default")
    if "config_path" not in overrides.get("cstp", {}).get("guardrails", {}):
        path = packaged_rulebook_path("default") if rulebook == "default" else CASES / "rulebooks" / rulebook
        guardrails = {**overrides.get("cstp", {}).get("guardrails", {}), "config_path": str(path)}
        overrides = config.deep_merge(overrides, {"cstp": {**overrides.get("cstp", {}), "guardrails": guardrails}})
    return settings(data_dir, **overrides)


def write_project(case: Mapping[str, Any], folder: Path, ending: str = "") -> list[ProjectSettings]:
    """Write the files of a case's project, and return its settings."""
    if "project" not in case:
        return []
    name = f"{PROJECT}{ending}"
    write_files(folder / name, case["project"])
    return [ProjectSettings(name=name, root=folder / name)]


def write_files(root: Path, files: Mapping[str, str | Mapping[str, str]]) -> None:
    """Write the files of a project."""
    root.mkdir(parents=True)
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            path.symlink_to(content["link"])


class Caller(Protocol):
    """Calls methods with JSON, over whichever transport."""

    def call(self, method: str, params: Mapping[str, Any], token: str | None = ...) -> Outcome:
        """Return the result of a call."""


def prepare(case: Mapping[str, Any], caller: Caller) -> dict[str, str]:
    """Record the decisions of a case, make its earlier calls, and return the ids of named decisions."""
    ids: dict[str, str] = {}
    for decision in case.get("decisions", []):
        content = plain({key: value for key, value in decision.items() if key not in ("by", "as")})
        earlier = caller.call("cstp.recordDecision", {"decision": content}, TOKENS[decision.get("by", "alice")])
        assert earlier.reason is None, earlier
        assert earlier.result is not None
        if "as" in decision:
            ids[f"<{decision['as']}>"] = earlier.result["decision"]["id"]
    for exchange in case.get("before", []):
        earlier = caller.call(exchange["call"], plain(insert_ids(exchange["params"], ids)), token_of(exchange))
        assert earlier.reason == exchange.get("reason"), earlier
        for name, path in exchange.get("keep", {}).items():
            kept: Any = earlier.result
            for key in path.split("."):
                kept = kept[int(key) if isinstance(kept, list) else key]
            ids[f"<{name}>"] = kept
    return ids


def insert_ids(value: Any, ids: Mapping[str, str]) -> Any:
    """Return a value of a case with the ids of named decisions in place of their names."""
    if isinstance(value, dict):
        return {key: insert_ids(item, ids) for key, item in value.items()}
    if isinstance(value, list):
        return [insert_ids(item, ids) for item in value]
    return ids.get(value, value) if isinstance(value, str) else value


def token_of(exchange: Mapping[str, Any]) -> str | None:
    """Return the token of the exchange's `caller`: an agent's name, a token as it is, or null for none."""
    caller = exchange.get("caller", "alice")
    return TOKENS.get(caller, caller) if caller else None


def plain(value: Any) -> Any:
    """YAML reads instants; JSON has them as text."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else value
