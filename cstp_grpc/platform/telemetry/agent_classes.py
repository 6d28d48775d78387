"""Classes of agents, by which metrics distinguish callers: the number of agents is not bounded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from cstp_grpc.contract.caller import ANONYMOUS

AGENT_CLASS: Final = "agent"
PEER_CLASS: Final = "peer"
ANONYMOUS_CLASS: Final = "anonymous"
UNAUTHENTICATED_CLASS: Final = "unauthenticated"
BUILT_IN_CLASSES: Final = frozenset({AGENT_CLASS, PEER_CLASS, ANONYMOUS_CLASS, UNAUTHENTICATED_CLASS})

MAX_KEPT: Final = 4096
"""Agents whose class is kept. Chosen: more agents than call one server; the class of others is looked up each time."""


class AgentClasses:
    """Names the class of each agent: a configured one, whose patterns it matches first, or a built-in one."""

    def __init__(self, configured: Mapping[str, Sequence[str]], peers: Collection[str]) -> None:
        """Prepare classes; `configured` has patterns like those of file names by class."""
        self._configured = configured
        self._peers = frozenset(peers)
        # Without a lock: two calls that miss at the same time store the same.
        self._kept: dict[str, str] = {}

    def class_of(self, agent: str | None) -> str:
        """Return the class of an agent; None is a caller that was not authenticated."""
        if agent is None:
            return UNAUTHENTICATED_CLASS
        known = self._kept.get(agent)
        if known is None:
            known = self._find_class(agent)
            if len(self._kept) < MAX_KEPT:
                self._kept[agent] = known
        return known

    def _find_class(self, agent: str) -> str:
        for name, patterns in self._configured.items():
            if any(fnmatchcase(agent, pattern) for pattern in patterns):
                return name
        if agent == ANONYMOUS:
            return ANONYMOUS_CLASS
        return PEER_CLASS if agent in self._peers else AGENT_CLASS
