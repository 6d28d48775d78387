"""A server that may call this machine, as a process: `python -m tests.modules.callbacks.serving FOLDER PREFIX`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.harness import running
from tests.modules.federation.agents import agent_settings


def main(folder: str, prefix: str) -> None:
    """Serve until standard input ends, and say on which port."""
    wanted = agent_settings(Path(folder), "house", callbacks={"allow": [prefix]})
    with running(wanted, permitted=lambda address: address == "127.0.0.1") as app:
        print(app.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
