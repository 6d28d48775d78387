"""Holding callers to the permissions that the contract states for its methods."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from cstp_grpc.client.contract import Method
from cstp_grpc.errors import PermissionDenied
from cstp_grpc.vocabulary import Permission

ANY: Final = "any"
"""What the contract says where a valid token is enough."""


class Permissions:
    """The permissions that methods need.

    Building them raises ValueError for a method whose permission the contract does not state.
    """

    def __init__(self, methods: Iterable[Method]) -> None:
        self._needed = {
            method.name: None if method.permission == ANY else Permission(method.permission) for method in methods
        }

    def require(self, method: str, agent: str, granted: Collection[Permission]) -> None:
        """Let a call of a method pass if its agent was granted what the method needs. Raises PermissionDenied.

        A method that does not exist needs nothing.
        """
        needed = self._needed.get(method)
        if needed is not None and needed not in granted:
            raise PermissionDenied(
                f"{method} needs the permission {needed}, which {agent} does not have", metadata={"permission": needed}
            )
