"""Runs the vector index: starts its server, feeds it from the journal, and checks that it is sound."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from itertools import islice

from cstp_grpc.contract.errors import CstpError
from cstp_grpc.core.decisions.passages import MAX_PASSAGES
from cstp_grpc.core.decisions.search.ann_index import IndexCorrupted, IndexUnavailable, decision_of_passage, passage_id
from cstp_grpc.core.decisions.search.chroma_index import ChromaIndex
from cstp_grpc.core.decisions.search.chroma_process import ChromaServer, backoff_seconds
from cstp_grpc.core.decisions.search.vector_matrix import VectorMatrix
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import Vector
from cstp_grpc.platform.child_process import GRACE_SECONDS

SAMPLES = 20
"""Vectors searched by a check. Chosen: 20 queries of a few milliseconds, once a minute."""
NEIGHBOURS = 10
"""Proposals requested for each; the sample itself should be the first."""
TOLERATED_UNKNOWN = 0.1
"""The share of proposals that may be unknown, because another server recorded them since the matrix was refreshed."""

TOLERATED_MISSES = 2
"""Samples that may be missing. Measured: HNSW does not reach one in some hundred vectors of a small collection."""

ROUNDING = 1e-3
"""Tolerated difference of two cosine similarities. Chosen: far above float32 rounding, far below a wrong neighbour."""


def check_soundness(index: ChromaIndex, matrix: VectorMatrix, at_least: int) -> None:
    """Check that an index contains the decisions that were fed to it. Raises IndexCorrupted, or IndexUnavailable.

    `at_least` is how many decisions it must contain. Chroma's count includes lost vectors; so vectors of the matrix are
    searched, and each should find itself, or another that is equal.
    """
    count = index.count()
    if count < at_least:
        raise IndexCorrupted(f"the index holds {count} of {at_least} decisions")
    samples = matrix.sample(SAMPLES)
    missing = proposed = unknown = 0
    for vector in samples:
        proposals = map(decision_of_passage, index.propose(vector, NEIGHBOURS))
        scores = [matrix.similarity(decision_id, vector) for decision_id in proposals]
        known = [score for score in scores if score is not None]
        proposed += len(scores)
        unknown += len(scores) - len(known)
        missing += max(known, default=-1.0) < float(vector @ vector) - ROUNDING
    if missing > TOLERATED_MISSES:
        raise IndexCorrupted(f"the index does not find {missing} of {len(samples)} decisions")
    if unknown > TOLERATED_UNKNOWN * proposed:
        raise IndexCorrupted(f"the index proposes decisions that are not in the journal: {unknown} of {proposed}")


BATCH = 1000
"""Decisions indexed at a time, about half a second of Chroma's work (measured): a stop waits for one batch."""


class IndexBehind(Exception):
    """Another process writes the index and has not indexed enough yet."""


class IndexFeeder:
    """Writes missing changes to an index, and removes them from the change log.

    The index stores its own revision, so each replica's index gets every change, an empty one gets the whole journal,
    and an interrupted feeding continues where it stopped.
    """

    builds = True
    """Whether this process writes the index, so that it is complete after a feeding and may be emptied."""

    def __init__(self, store: SqlDecisionStore, outbox: SqlChangeLog, model: str) -> None:
        self._store = store
        self._outbox = outbox
        self._model = model

    def feed(self, index: ChromaIndex, stopping: Callable[[], bool]) -> int:
        """Index missing decisions, until `stopping`, and return the number of decisions.

        Raises IndexUnavailable; QueryFailed and Unavailable if the journal does not respond.
        """
        count = 0
        # Each batch is a query of its own, since a transaction open for the whole feeding would keep the database from
        # cleaning up. Usually nothing has changed, which the newest revision shows faster than an empty batch.
        while not stopping() and (newest := self._store.newest_revision()) > index.revision:
            rows = list(islice(self._store.index_rows(self._model, index.revision), BATCH))
            # Up to here `rows` has every change. Revisions are committed in their order, so that every deletion up to
            # here is found by a later read; one after it may precede a change that `rows` does not have.
            complete = rows[-1].revision if len(rows) == BATCH else max([newest, *(row.revision for row in rows[-1:])])
            erased = [row for row in self._store.erased_rows(index.revision) if row.revision <= complete]
            if not rows and not erased:
                break
            # Also the passages that a decision no longer has, which would take places among the proposals; an empty
            # index has none of them.
            first_places = [(row.decision_id, 0) for row in erased]
            first_places += [(row.decision_id, len(row.passages.vectors)) for row in rows if index.revision >= 0]
            if gone := [passage_id(key, place) for key, first in first_places for place in range(first, MAX_PASSAGES)]:
                index.remove(gone)
            reached = max(*(row.revision for row in rows[-1:]), *(row.revision for row in erased[-1:]), index.revision)
            passages = [
                (passage_id(row.decision_id, place), vector)
                for row in rows
                for place, vector in enumerate(row.passages.vectors)
            ]
            index.upsert([key for key, _ in passages], [vector for _, vector in passages], reached)
            count += len(rows)
        # After the index has stored its revision. Killed before this, the next feeding acknowledges the same changes.
        self._acknowledge(index.revision)
        return count

    def skip(self) -> None:
        """Forget the changes that an index which is not needed yet would get; it is fed from the journal later.

        Raises QueryFailed and Unavailable.
        """
        while taken := self._outbox.peek(BATCH):
            self._outbox.acknowledge([row.seq for row in taken])

    def _acknowledge(self, revision: int) -> None:
        # The number of a change is the revision that the decision got with it, so both can be compared.
        while taken := [row.seq for row in self._outbox.peek(BATCH) if row.seq <= revision]:
            self._outbox.acknowledge(taken)


class IndexFollower:
    """Follows an index that another process of this host writes."""

    builds = False

    def __init__(self, store: SqlDecisionStore, model: str) -> None:
        self._store = store
        self._model = model

    def feed(self, index: ChromaIndex, stopping: Callable[[], bool]) -> int:  # noqa: ARG002 - it takes no time
        """Read the indexed revision. Raises as `IndexFeeder.feed` does, and IndexBehind."""
        index.refresh()
        # Decisions that the index lacks are scored exactly. With a full batch of them it is not worth using yet.
        if index.revision < 0 or len(list(islice(self._store.index_rows(self._model, index.revision), BATCH))) == BATCH:
            raise IndexBehind
        return 0

    def skip(self) -> None:
        """Do nothing: the process that writes the index forgets the changes."""


logger = logging.getLogger(__name__)

FEED_INTERVAL = 1.0
"""Seconds between two feedings. Chosen: until then changes are scored exactly, which costs little for a second."""

CHECK_INTERVAL = 60.0
"""Seconds between two checks of a ready index. Chosen: a corruption without an error is rare, and a check costs 20
queries."""


STOP_SECONDS = GRACE_SECONDS
"""Maximum seconds for the thread to end: it finishes a request, and then stops the server."""

KILLED_SECONDS = 2.0
"""Maximum seconds until the thread notices that its server was killed: its request fails as the connection breaks."""


class IndexSupervisor:
    """Runs an index in a thread and serves proposals from it while it is ready; fulfils `AnnIndex`.

    An index that fails is restarted; one that fails before it was ready, or twice in a row, is removed and rebuilt from
    the journal by the process that feeds it. Until it is ready, `propose` raises IndexUnavailable at once.
    """

    def __init__(
        self,
        server: ChromaServer,
        feeder: IndexFeeder | IndexFollower,
        matrix: VectorMatrix,
        model: str,
        dimensions: int,
        feed_interval: float = FEED_INTERVAL,
        start_size: int = 0,
    ) -> None:
        """Create the supervisor; `matrix` must contain the journal by the time `start` is called.

        The server is started once there are `start_size` decisions: searches of fewer do not ask the index.
        """
        self._server = server
        self._feeder = feeder
        self._matrix = matrix
        self._model = model
        self._dimensions = dimensions
        self._feed_interval = feed_interval
        self._start_size = start_size
        # `_index` and `_state` are written by the thread, and by searches that fail; each assignment is atomic, and a
        # search that still uses an index closed meanwhile gets IndexUnavailable. All else belongs to the thread.
        self._index: ChromaIndex | None = None
        """The index while it is ready."""
        self._state = "starting"
        self._was_ready = False
        """True if the index has been ready since the last start."""
        self._failures = 0
        """Failures in a row: reset when a check finds a ready index sound again."""
        self._rebuild_first = False
        """True if the next start begins with an empty index."""
        self._journal_fails = False
        self._stopping = threading.Event()
        self._stop_by: float | None = None
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)

    def start(self) -> None:
        """Start the thread, without waiting for the index to be ready."""
        self._thread.start()

    def begin_stop(self) -> None:
        """Make the thread and the server stop, without waiting for them."""
        self._stopping.set()
        self._wake.set()
        if self._stop_by is None:
            self._stop_by = time.monotonic() + STOP_SECONDS

    def stop(self) -> None:
        """Stop the thread and the server; a batch in progress has `STOP_SECONDS` to finish first."""
        self.begin_stop()
        if not self._thread.is_alive():
            return
        assert self._stop_by is not None
        self._thread.join(max(self._stop_by - time.monotonic(), 0))
        if self._thread.is_alive():
            # It waits for a server that hangs. The index can be fed again from the journal if anything is lost.
            self._server.kill()
            self._thread.join(KILLED_SECONDS)
        if self._thread.is_alive():
            logger.warning("the index was left to itself, because its server does not answer")

    def state(self) -> str:
        """Return the state: `idle`, `starting`, `rebuilding`, `ready`, or `unavailable: ` and the reason."""
        return self._state

    @property
    def is_healthy(self) -> bool:
        return self._state in ("ready", "idle")

    @property
    def revision(self) -> int:
        return self._ready_index().revision

    @property
    def ready_revision(self) -> int | None:
        index = self._index
        return None if index is None else index.revision

    def propose(self, vector: Vector, count: int) -> list[str]:
        """Return the ids of the most similar decisions, the most similar first. Raises IndexUnavailable."""
        index = self._ready_index()
        try:
            return index.propose(vector, count)
        except IndexUnavailable as error:
            self._mark_unavailable(index, error)
            raise

    def _ready_index(self) -> ChromaIndex:
        index = self._index
        if index is None:
            raise IndexUnavailable(f"the index is {self._state}")
        return index

    def _mark_unavailable(self, index: ChromaIndex, error: IndexUnavailable) -> None:
        """Make searches continue without the index until the thread has checked it."""
        # Compared, so that a late failure of an earlier index does not take away the one that replaced it.
        if self._index is index:
            self._index = None
            self._state = f"unavailable: {error}"
            self._wake.set()

    def _run(self) -> None:
        self._wait_until_needed()
        while not self._stopping.is_set():
            try:
                self._run_until_failure()
            except IndexUnavailable as error:
                self._note_failure(error, crashed=self._server.stop())
            except Exception:
                logger.exception("the index failed for an unforeseen reason")
                self._note_failure(IndexUnavailable("it failed; the log says why"), crashed=self._server.stop())
            self._stopping.wait(backoff_seconds(self._failures))
        self._index = None
        self._server.stop()

    def _wait_until_needed(self) -> None:
        while self._matrix.size < self._start_size and not self._stopping.is_set():
            self._state = "idle"
            try:
                self._feeder.skip()
            except CstpError as error:
                logger.debug("the changes for the index are not forgotten yet: %s", error)
            self._stopping.wait(self._feed_interval)

    def _run_until_failure(self) -> None:
        """Run the index until it fails, which raises IndexUnavailable, or until stopped."""
        self._was_ready = False
        self._state = "rebuilding" if self._rebuild_first else "starting"
        if self._rebuild_first:
            self._server.wipe()
        url = self._server.start(self._stopping)
        with closing(ChromaIndex.open(url, self._model, self._dimensions)) as index:
            try:
                self._reset_if_needed(index)
                self._feed_and_check(index)
            finally:
                # Before the client is closed, so that no further search takes it.
                self._index = None

    def _reset_if_needed(self, index: ChromaIndex) -> None:
        """Empty the index if it must be rebuilt; reject a private server that has collections of other models."""
        if not self._feeder.builds:
            return
        if self._rebuild_first:
            # Also after `wipe`, which does nothing on an external server. If the process is killed before this, its
            # successor finds the old index, and its own check decides.
            index.reset()
            self._rebuild_first = False
        if index.revision < 0:
            if self._server.is_private and index.other_collections():
                raise IndexCorrupted("the index is of another model")
            self._state = "rebuilding"
            logger.info("building the index of %d decisions from the journal", self._matrix.size)

    def _feed_and_check(self, index: ChromaIndex) -> None:
        next_check = 0.0
        while not self._stopping.is_set():
            # Cleared before the work: a wake-up during it makes the wait below return at once.
            self._wake.clear()
            self._server.check()
            # Before the feeding: decisions that arrive later need not be in the index yet.
            size = self._matrix.size
            if self._feed(index) and (self._index is None or time.monotonic() >= next_check):
                self._publish_if_sound(index, size)
                next_check = time.monotonic() + CHECK_INTERVAL
            self._wake.wait(self._feed_interval)

    def _publish_if_sound(self, index: ChromaIndex, size: int) -> None:
        check_soundness(index, self._matrix, size if self._feeder.builds else 0)
        if self._index is index:
            self._failures = 0
            return
        self._was_ready = True
        self._index, self._state = index, "ready"
        logger.info("the index is ready with %d decisions", size)

    def _feed(self, index: ChromaIndex) -> bool:
        """Feed the index; return False if the journal did not respond or the thread is stopping."""
        try:
            self._feeder.feed(index, self._stopping.is_set)
        except IndexBehind:
            if self._index is None:
                self._state = "rebuilding"
            return False
        except CstpError as error:
            if not self._journal_fails:
                logger.warning(
                    "the index is not fed, because the journal does not answer: %s", error.__cause__ or error
                )
            self._journal_fails = True
            return False
        self._journal_fails = False
        return not self._stopping.is_set()

    def _note_failure(self, error: IndexUnavailable, *, crashed: bool) -> None:
        self._failures += 1
        self._state = f"unavailable: {error}"
        broken = self._feeder.builds and (crashed or isinstance(error, IndexCorrupted))
        self._rebuild_first = self._rebuild_first or (broken and (not self._was_ready or self._failures > 1))
        if not self._stopping.is_set():
            logger.warning(
                "the index failed: %s; it is %s", error, "rebuilt" if self._rebuild_first else "started again"
            )
