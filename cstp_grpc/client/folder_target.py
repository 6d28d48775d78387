"""Targets that name a data folder to use in this process, in place of a server to call."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

TRANSPORTS: Final = "cstp_grpc.transports"
"""The group of entry points with the transports that the client does not import."""
FOLDER_SCHEME: Final = "local:"
"""The beginning of such a target; the path of the folder follows."""


def is_folder_target(target: str) -> bool:
    """Return whether a target names a data folder; a number after `local:` is the port of a host with that name."""
    return target.startswith(FOLDER_SCHEME) and not target.removeprefix(FOLDER_SCHEME).isdigit()


def folder_of_target(target: str) -> Path | None:
    """Return the folder that a target names; None for `local:` alone, which means the configured one."""
    path = target.removeprefix(FOLDER_SCHEME)
    return Path(path).expanduser() if path else None


def load_folder_transport(kind: str) -> Any:
    """Return the function that opens a transport for a data folder: an entry point of the group `cstp_grpc.transports`.

    `kind` is `local` or `local-async`. The client does not import the server, which such a transport runs in this
    process. Raises MissingExtra.
    """
    # Imported here: it takes as long as a small command.
    from importlib.metadata import distribution

    from cstp_grpc.common.extras import DISTRIBUTION, require_extra

    require_extra("local")
    return distribution(DISTRIBUTION).entry_points.select(group=TRANSPORTS, name=kind)[kind].load()
