"""Which decisions an agent may read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cstp_grpc.decisions.model import Decision
from cstp_grpc.storage.text import storable
from cstp_grpc.vocabulary import Visibility

RELAYED: Final = ""
"""Who reads where a peer asks on behalf of its own callers: a peer without decisions. No agent is called so."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Who reads what: every agent its own decisions and others' shared ones, peers fewer of the latter.

    Those that `peers` read are of one of the categories and have one of the tags; where either is empty, it does not
    restrict.
    """

    peers: frozenset[str] = frozenset()
    categories: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()

    @classmethod
    def of(cls, peers: Iterable[str], categories: Iterable[str], tags: Iterable[str]) -> Sharing:
        """Return the sharing of these, with texts as the journal keeps them."""
        return cls(frozenset({RELAYED, *peers}), frozenset(map(storable, categories)), frozenset(map(storable, tags)))

    def narrows(self, caller: str) -> bool:
        """Whether an agent reads fewer of others' shared decisions than all."""
        return caller in self.peers and bool(self.categories or self.tags)

    def may_read(self, decision: Decision, caller: str) -> bool:
        """Whether an agent may read a decision at all."""
        if decision.agent == caller:
            return True
        return decision.visibility is Visibility.SHARED and (not self.narrows(caller) or self.covers(decision))

    def covers(self, decision: Decision) -> bool:
        """Whether peers may read a decision of another agent, if it is shared."""
        return (not self.categories or decision.category in self.categories) and (
            not self.tags or not self.tags.isdisjoint(decision.tags)
        )


WITH_ALL = Sharing()
"""Every agent reads what is shared."""
