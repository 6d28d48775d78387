"""Where the bridge listens."""

from __future__ import annotations


class CannotListen(Exception):
    """The bridge cannot listen where it was told to."""

    def __init__(self, address: str, setting: str) -> None:
        super().__init__(f"cannot listen on {address}: is the port taken? Set {setting} to another")
