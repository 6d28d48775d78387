"""The scope of a call: the peers that it asks, and the hop limit that stops agents from asking in a loop."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final
from urllib.parse import quote, unquote

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import FieldViolation, InvalidArgument
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
    if unknown := [number for number, name in enumerate(agents) if name not in peers]:
        violations = [FieldViolation(f"agents[{number}]", "is the name of no peer") for number in unknown]
        # The message names only the first, since trailing metadata is limited to 8 KiB in many clients.
        raise InvalidArgument(f"There is no peer {agents[unknown[0]]}", violations=violations)


def reject_agents(scope: types_pb2.Scope.ValueType, agents: Sequence[str], *, ignored: bool = False) -> None:
    """Raise InvalidArgument for a request that names agents to ask, where there are no peers.

    If the names are `ignored`, only the local scope contradicts them.
    """
    asks_peers(scope, agents)
    if not ignored:
        reject_unknown_agents(agents)


HOP_METADATA_KEY: Final = "x-cstp-federation"
"""The name of the gRPC metadata key and of the HTTP header."""
MAX_HOP_METADATA_CHARACTERS: Final = 1536
"""Maximum length of the value. Chosen: gRPC's default limit for all metadata of a call is 8 KiB."""
MAX_HOPS: Final = 64
"""Maximum number of hops that is accepted. Chosen: far above the 8 of `federation.max_hops`, for other software."""
MAX_PATH_AGENTS: Final = 64
"""Maximum number of agents in a path: one for each hop."""
QUOTED_CHARACTER: Final = r"(?:[A-Za-z0-9_.~-]|%[0-9A-F]{2})"
HOP_METADATA_PATTERN: Final = re.compile(
    rf"id=(?P<id>{QUOTED_CHARACTER}*);hops=(?P<hops>[0-9]{{1,2}});path=(?P<path>(?:{QUOTED_CHARACTER}+(?:,{QUOTED_CHARACTER}+)*)?)"
)


@dataclass(frozen=True, slots=True)
class HopContext:
    """The hop metadata of a call: id, hops left, agents visited.

    Callers supply it, so it is only ever used to stop calls.
    """

    id: str
    """Identifies the original call at every agent."""
    hops: int
    """How many more agents in a row may be asked; at 0 an agent answers by itself."""
    path: tuple[str, ...] = ()
    """The agents visited, in order."""

    def encode(self) -> str:
        return f"id={quote_name(self.id)};hops={self.hops};path={','.join(map(quote_name, self.path))}"

    @classmethod
    def decode(cls, text: str | None) -> HopContext | None:
        """Parse the metadata value of a call; None stays None. Invalid values allow no further hop."""
        if text is None:
            return None
        match = HOP_METADATA_PATTERN.fullmatch(text) if len(text) <= MAX_HOP_METADATA_CHARACTERS else None
        if match is None:
            # Fail closed: None would mean a call without metadata, which has all hops left.
            return NO_HOPS_LEFT
        names = match["path"].split(",") if match["path"] else []
        try:
            path = tuple(unquote_name(name) for name in names)
            found = cls(unquote_name(match["id"]), int(match["hops"]), path)
        except ValueError:
            return NO_HOPS_LEFT
        return found if found.hops <= MAX_HOPS and len(path) <= MAX_PATH_AGENTS else NO_HOPS_LEFT

    def next_hop(self, agent: str) -> HopContext:
        """Return the context for the calls that `agent` makes; without further hops if it would exceed a limit."""
        path = (*self.path, agent)
        further = HopContext(self.id, self.hops - 1, path)
        fits = len(path) <= MAX_PATH_AGENTS and len(further.encode()) <= MAX_HOP_METADATA_CHARACTERS
        # Without this agent in the path, a loop through it could not be recognized; so no hop is left instead.
        return further if self.hops > 0 and fits else HopContext(self.id, 0, self.path)


NO_HOPS_LEFT: Final = HopContext("", 0)
"""The context used for invalid metadata."""


def quote_name(text: str) -> str:
    return quote(text, safe="")


def unquote_name(text: str) -> str:
    """Decode a percent-encoded text. Raises ValueError if it is not printable UTF-8."""
    found = unquote(text, errors="strict")
    # The names are passed on, and may end up in logs of other agents.
    if not found.isprintable():
        raise ValueError("it holds control characters")
    return found
