"""What the `scope` and the `agents` of a request say: whether peers are asked, and which."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cstp_grpc.errors import FieldViolation, InvalidArgument
from cstp_grpc.gen.cstp.v1 import types_pb2


def asks_peers(scope: types_pb2.Scope.ValueType, agents: Sequence[str]) -> bool | None:
    """Return whether a request asks peers, or None if it does not say. Raises InvalidArgument.

    Naming agents asks them; it contradicts the local scope.
    """
    if scope == types_pb2.SCOPE_LOCAL and agents:
        raise InvalidArgument.field("agents", "are asked where the scope is federated, and it is local")
    # SCOPE_UNSPECIFIED is 0: without agents it leaves the choice to the settings.
    return scope != types_pb2.SCOPE_LOCAL if scope or agents else None


def reject_unknown_agents(agents: Sequence[str], peers: Collection[str] = ()) -> None:
    """Raise InvalidArgument if a request names agents that are no peers."""
    if unknown := [number for number, name in enumerate(agents) if name not in peers]:
        violations = [FieldViolation(f"agents[{number}]", "is the name of no peer") for number in unknown]
        # The message names only the first, since trailing metadata is limited to 8 KiB in many clients.
        raise InvalidArgument(f"There is no peer {agents[unknown[0]]}", violations=violations)
