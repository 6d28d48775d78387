"""Keeping a port for several processes that listen on it together."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

from cstp_grpc.config import join


class CannotReserve(Exception):
    """The port cannot be had; the message names the setting."""


class PortReservation:
    """A port on which several processes of this user can listen, and no other program.

    It is bound and never listened on, so that the kernel gives it no connections; `port` 0 chooses a free one.
    `setting` names it in errors. Raises CannotReserve.
    """

    def __init__(self, host: str, port: int, setting: str) -> None:
        self._sockets = ExitStack()
        self.port = port
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            with ExitStack() as opened:
                for family, kind, protocol, _, address in dict.fromkeys(addresses):
                    self._bind(opened, (family, kind, protocol), address)
                self._sockets = opened.pop_all()
        except OSError as error:
            where = join(host, port)
            raise CannotReserve(
                f"cannot listen on {where}: {error.strerror}; is the port taken? Set {setting} to another"
            ) from error

    def release(self) -> None:
        """Give the port up."""
        self._sockets.close()

    def _bind(self, opened: ExitStack, kind: tuple[int, int, int], address: tuple[Any, ...]) -> None:
        wanted = (address[0], self.port, *address[2:])
        # Another server of this user may share its port too: only a port on which nobody listens is ours to share.
        with new_socket(kind) as probe:
            probe.bind(wanted)
        reserved = opened.enter_context(new_socket(kind))
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(wanted)
        self.port = reserved.getsockname()[1]


def new_socket(kind: tuple[int, int, int]) -> socket.socket:
    """Return a socket that connections which ended of late do not keep from a port; one of IPv6 is for that alone."""
    found = socket.socket(*kind)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if found.family == socket.AF_INET6:
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return found
