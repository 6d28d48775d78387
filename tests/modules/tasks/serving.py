"""A server that notifies this machine, as a process: `python -m tests.modules.tasks.serving FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.harness import running, settings


def main(folder: str) -> None:
    """Serve until standard input ends, and say on which port."""
    with running(settings(Path(folder), a2a={"push": {"allow_loopback": True}})) as app:
        print(app.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
