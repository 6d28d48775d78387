"""A server that notifies this machine, as a process: `python -m tests.tasks.serving FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from cstp_grpc.server.app import App
from tests.harness import provide_journal, settings


def main(folder: str) -> None:
    """Serve until standard input ends, and say on which port."""
    wanted = settings(Path(folder), a2a={"push": {"allow_loopback": True}})
    provide_journal(wanted)
    app = App(wanted)
    app.start()
    print(app.port, flush=True)
    sys.stdin.read()
    app.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
