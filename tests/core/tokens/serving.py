"""A server as a process: `python -m tests.core.tokens.serving FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.harness import running, settings


def main(folder: str) -> None:
    """Serve until standard input ends, and say on which port."""
    with running(settings(Path(folder))) as app:
        print(app.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
