"""A server whose rules ask for approvals, as a process: `python -m tests.modules.approvals.serving FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.harness import running, settings

RULEBOOK = Path(__file__).resolve().parents[2] / "cases" / "rulebooks" / "approvals.yaml"


def main(folder: str) -> None:
    """Serve until standard input ends, and say on which port."""
    wanted = settings(
        Path(folder),
        cstp={"guardrails": {"config_path": str(RULEBOOK)}},
        approvals={"max_pending_per_agent": 10_000},
    )
    with running(wanted) as app:
        print(app.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
