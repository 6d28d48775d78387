"""The Chroma child server: `python -m cstp_grpc.core.decisions.search.chroma_main FOLDER PORT`.

Exits with 0 if the port is taken.
"""

from __future__ import annotations

import os
import sys

import chromadb_rust_bindings

HOST = "127.0.0.1"
"""Loopback only: the server has no authentication."""


def main() -> None:
    """Serve the index in a folder on loopback until a signal ends it."""
    folder, port = sys.argv[1:]
    # Its log would otherwise have several lines for each query.
    os.putenv("RUST_LOG", "warn")
    os.putenv("NO_COLOR", "1")
    chromadb_rust_bindings.cli(["chroma", "run", "--path", folder, "--port", port, "--host", HOST])


if __name__ == "__main__":
    main()
