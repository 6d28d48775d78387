"""The policy that says which decisions an agent may read."""

from __future__ import annotations

from collections.abc import Iterable

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.caller import OVERSEER, RELAYED_READER
from cstp_grpc.contract.enums import Visibility
from cstp_grpc.core.decisions.model import SUMMARY_TAG, Decision


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """The read policy: an agent reads its own decisions and shared ones; peers read fewer of the latter.

    The shared decisions that `peers` read are in one of the categories and have one of the tags; an empty set does not
    restrict.
    """

    peers: frozenset[str] = frozenset()
    categories: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()

    @classmethod
    def of(cls, peers: Iterable[str], categories: Iterable[str], tags: Iterable[str]) -> ReadPolicy:
        """Return the policy for these settings, with unstorable characters replaced as in the journal."""
        return cls(
            frozenset({RELAYED_READER, *peers}),
            frozenset(map(replace_unstorable, categories)),
            # Security: that the server itself sets a tag must not share what has it.
            frozenset("" if tag == SUMMARY_TAG else replace_unstorable(tag) for tag in tags),
        )

    def is_restricted_peer(self, caller: str) -> bool:
        """Return True if an agent is a peer that may not read all shared decisions."""
        return caller in self.peers and bool(self.categories or self.tags)

    def may_read(self, decision: Decision, caller: str) -> bool:
        if caller in (decision.agent, OVERSEER):
            return True
        return decision.visibility is Visibility.SHARED and (
            not self.is_restricted_peer(caller) or self.shares_with_peers(decision.category, decision.tags)
        )

    def may_read_intent(self, category: str | None, caller: str) -> bool:
        """Return True if an agent may read a shared intent of another one; intents have no tags."""
        return not self.is_restricted_peer(caller) or (
            not self.tags and (not self.categories or category in self.categories)
        )

    def shares_with_peers(self, category: str | None, tags: Iterable[str]) -> bool:
        """Return True if peers may read a shared decision of this category with these tags."""
        return (not self.categories or category in self.categories) and (
            not self.tags or not self.tags.isdisjoint(tags)
        )


SHARE_WITH_ALL = ReadPolicy()
"""Every agent reads all shared decisions."""
