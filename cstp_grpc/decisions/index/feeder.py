"""From the journal into the index."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Protocol

from cstp_grpc.decisions.index import ProposalIndex
from cstp_grpc.decisions.index.chroma import ChromaIndex
from cstp_grpc.decisions.store import DecisionStore
from cstp_grpc.storage.outbox import Outbox

BATCH = 1000
"""How many decisions the index takes at once; Chroma needs about half a second for so many."""


class IndexBehind(Exception):
    """Another process feeds the index and has not come far enough."""


class IndexFeeding(Protocol):
    """Sees to it that an index holds what the journal does."""

    @property
    def builds(self) -> bool:
        """Whether this process builds the index, which makes it complete after a feeding and may empty it."""

    def feed(self, index: ChromaIndex, stopping: Callable[[], bool]) -> int:
        """Have an index take what it lacks, until `stopping`, and return how many decisions that was.

        Raises IndexBehind and IndexUnavailable; QueryFailed, Unavailable and SQLAlchemyError where the journal does not
        answer.
        """


class Feeder:
    """Gives an index every change that it has not taken yet, and strikes off the outbox what it took.

    The index itself knows up to which revision it was fed, so each replica's own index gets everything, an empty one
    gets the whole journal, and one that was interrupted goes on where it was.
    """

    builds = True

    def __init__(self, store: DecisionStore, outbox: Outbox, model: str) -> None:
        self._store = store
        self._outbox = outbox
        self._model = model

    def feed(self, index: ProposalIndex, stopping: Callable[[], bool]) -> int:
        """Feed an index until nothing is left, or `stopping` between two batches, and return how many decisions it got.

        Raises IndexUnavailable; QueryFailed, Unavailable and SQLAlchemyError where the journal does not answer.
        """
        count = 0
        # Each batch is a query of its own, lest a long feeding hold one transaction open. Most of the time nothing has
        # changed, which the newest revision tells sooner than an empty batch.
        behind = self._store.newest_revision() > index.revision
        while (
            behind
            and not stopping()
            and (rows := list(islice(self._store.index_rows(self._model, index.revision), BATCH)))
        ):
            index.upsert([row.decision_id for row in rows], [row.vector for row in rows], rows[-1].revision)
            count += len(rows)
        self._acknowledge(index.revision)
        return count

    def _acknowledge(self, revision: int) -> None:
        # A place in the outbox is the revision that the decision got with it.
        while taken := [row.seq for row in self._outbox.peek(BATCH) if row.seq <= revision]:
            self._outbox.acknowledge(taken)


class Follower:
    """Follows what another process of this host feeds to the index that they share."""

    builds = False

    def __init__(self, store: DecisionStore, model: str) -> None:
        self._store = store
        self._model = model

    def feed(self, index: ChromaIndex, stopping: Callable[[], bool]) -> int:  # noqa: ARG002 - it takes no time
        """Learn up to which revision the index was fed. Raises as `IndexFeeding.feed` says."""
        index.refresh()
        # What an index lacks is searched exactly; it is of use if that is not much.
        if index.revision < 0 or len(list(islice(self._store.index_rows(self._model, index.revision), BATCH))) == BATCH:
            raise IndexBehind
        return 0
