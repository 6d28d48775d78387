"""A server process that tests of faults start again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.cli.serving import ENVIRONMENT, READY, Process, started
from tests.test_kill import TOKENS


def write_settings(folder: Path, **sections: Any) -> Path:
    """Write settings with the agents of the load, a liaison agent and no limits; `sections` are further ones."""
    path = folder / "cstp.yaml"
    wanted = {
        "data_dir": str(folder / "var"),
        "auth": {"tokens": TOKENS},
        # Loads sooner than all packs, at each of many starts.
        "cstp": {"guardrails": {"preset": "default"}},
        "rate_limits": {"enabled": False},
        "liaison": {"pillars": {"content": {"agent": "tester"}}},
        **sections,
    }
    path.write_text(yaml.safe_dump(wanted))
    return path


@contextmanager
def serving(settings: Path, *flags: str, environment: Mapping[str, str] | None = None) -> Iterator[Process]:
    """Run `cstp serve` without a bridge for the length of a block."""
    command = ("serve", "--config", str(settings), *(flags or ("--no-bridge",)))
    with started(*command, environment={**ENVIRONMENT, **(environment or {})}) as process:
        process.wait_for(READY)
        yield process
