"""The port of the approximate nearest-neighbour index, which proposes candidates.

It holds identifiers of passages and vectors only, and can always be rebuilt from the journal.
"""

from __future__ import annotations

from typing import Protocol

from cstp_grpc.core.decisions.store import Vector


class IndexUnavailable(Exception):
    """The index does not respond; searches continue without it."""


class IndexCorrupted(IndexUnavailable):
    """The index responds incorrectly; restarting or rebuilding it may help."""


class AnnIndex(Protocol):
    """Proposes passages that may be similar to a vector. Safe for many threads."""

    @property
    def revision(self) -> int:
        """The revision up to which all changes are indexed; -1 for none.

        A later call of `propose` covers at least this revision. Raises IndexUnavailable.
        """

    def propose(self, vector: Vector, count: int) -> list[str]:
        """Return the ids of approximately the most similar passages, best first, at most `count`.

        Some may be of passages that their decision no longer has.

        Raises IndexUnavailable.
        """


def passage_id(decision_id: str, place: int) -> str:
    """Return the id of a passage in the index; the first one has the id of its decision."""
    return f"{decision_id}#{place}" if place else decision_id


def decision_of_passage(passage: str) -> str:
    return passage.partition("#")[0]
