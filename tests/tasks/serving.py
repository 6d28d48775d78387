"""A server that notifies this machine, as a process: `python -m tests.tasks.serving FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from cstp_grpc.server.app import App
from tests.harness import settings


def main(folder: str) -> None:
    """Serve until standard input ends, and say on which port."""
    app = App(settings(Path(folder), a2a={"push": {"allow_loopback": True}}))
    app.start()
    print(app.port, flush=True)
    sys.stdin.read()
    app.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
