"""One of several server processes on one data folder: `python -m tests.worker SETTINGS.json DESCRIPTOR`.

It prints its port, and stops when its standard input ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cstp_grpc.platform import config
from cstp_grpc.server.app import App
from cstp_grpc.server.deployment import Deployment


def main() -> None:
    """Serve until standard input ends."""
    wanted = config.load_settings(None, **json.loads(Path(sys.argv[1]).read_text()))
    app = App(wanted, deployment=Deployment(supervised=True, vectors_memory=int(sys.argv[2])))
    app.start()
    print(app.port, flush=True)
    sys.stdin.read()
    app.stop()


if __name__ == "__main__":
    main()
