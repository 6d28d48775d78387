"""The vector index, which proposes candidates where an exact search would take too long.

It holds identifiers and vectors only, and the journal can always rebuild it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cstp_grpc.decisions.store import Vector


class IndexUnavailable(Exception):
    """The index does not answer now; searching goes on without it."""


class IndexBroken(IndexUnavailable):
    """The index answers, but wrongly; starting it again, or building it anew, may help."""


class Proposals(Protocol):
    """Proposes which decisions may be similar to a vector. Safe for many threads."""

    @property
    def revision(self) -> int:
        """The revision up to which the index has taken all changes of decisions; -1 for none.

        Whatever it was before a call of `propose`, that call has considered. Raises IndexUnavailable.
        """

    def propose(self, vector: Vector, count: int) -> list[str]:
        """Return the ids of the decisions that seem most similar, at most `count`, the most similar first.

        Raises IndexUnavailable.
        """


class ProposalIndex(Proposals, Protocol):
    """An index that can also be fed."""

    def upsert(self, ids: Sequence[str], vectors: Sequence[Vector], revision: int) -> None:
        """Add or replace vectors, after which everything up to `revision` has been taken. Raises IndexUnavailable."""

    def count(self) -> int:
        """Return how many decisions the index holds. Raises IndexUnavailable."""

    def reset(self) -> None:
        """Remove everything, so that `revision` is -1. Raises IndexUnavailable."""
