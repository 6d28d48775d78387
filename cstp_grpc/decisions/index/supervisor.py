"""Keeping the index running, fed and sound."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing

from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.decisions.index import IndexBroken, IndexUnavailable
from cstp_grpc.decisions.index.chroma import ChromaIndex
from cstp_grpc.decisions.index.feeder import IndexBehind, IndexFeeding
from cstp_grpc.decisions.index.servers import ChromaServer, pause_after
from cstp_grpc.decisions.index.soundness import check_soundness
from cstp_grpc.decisions.matrix import VectorMatrix
from cstp_grpc.decisions.store import Vector
from cstp_grpc.errors import CstpError
from cstp_grpc.process import GRACE_SECONDS

logger = logging.getLogger(__name__)

FEED_INTERVAL = 1.0
"""Seconds between two looks for changes; what the index has not taken yet is searched exactly meanwhile."""

CHECK_INTERVAL = 60.0
"""Seconds between two checks of an index that seems well."""


STOP_SECONDS = GRACE_SECONDS
"""How long the thread may take to end: a request, and the server's own end."""

KILLED_SECONDS = 2.0
"""How long it may take to notice that its server was killed."""


class IndexSupervisor:
    """Runs an index in a thread and proposes from it while it is ready; fulfils `Proposals`.

    An index that fails is started again; one that fails before it was ready, or fails twice in a row, is removed and
    built anew from the journal, by the process that feeds it. Until it is ready, `propose` raises IndexUnavailable at
    once.
    """

    def __init__(
        self,
        server: ChromaServer,
        feeder: IndexFeeding,
        matrix: VectorMatrix,
        model: str,
        dimensions: int,
        feed_interval: float = FEED_INTERVAL,
    ) -> None:
        """Prepare; `matrix` must hold what the journal held when `start` is called."""
        self._server = server
        self._feeder = feeder
        self._matrix = matrix
        self._model = model
        self._dimensions = dimensions
        self._feed_interval = feed_interval
        self._index: ChromaIndex | None = None
        """The index while it is ready."""
        self._state = "starting"
        self._was_ready = False
        """Whether the present start has come as far as that."""
        self._failures = 0
        """How often it has failed since it was last found sound after a while."""
        self._anew = False
        """Whether the next start begins with an empty index."""
        self._journal_fails = False
        self._stopping = threading.Event()
        self._stop_by: float | None = None
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)

    def start(self) -> None:
        """Begin, without waiting for the index to be ready."""
        self._thread.start()

    def begin_stop(self) -> None:
        """Have the thread and the server end, without waiting for that."""
        self._stopping.set()
        self._wake.set()
        if self._stop_by is None:
            self._stop_by = time.monotonic() + STOP_SECONDS

    def stop(self) -> None:
        """End the thread and the server; a batch that is being fed has `STOP_SECONDS` to be finished first."""
        self.begin_stop()
        if not self._thread.is_alive():
            return
        assert self._stop_by is not None
        self._thread.join(max(self._stop_by - time.monotonic(), 0))
        if self._thread.is_alive():
            # It waits for a server that hangs. The index can be fed again from the journal, whatever is lost.
            self._server.kill()
            self._thread.join(KILLED_SECONDS)
        if self._thread.is_alive():
            logger.warning("the index was left to itself, because its server does not answer")

    def state(self) -> str:
        """Return how the index is: `ready`, `starting`, `rebuilding`, or `unavailable: ` and why."""
        return self._state

    @property
    def revision(self) -> int:
        """The revision up to which the index was fed. Raises IndexUnavailable."""
        return self._ready_index().revision

    def propose(self, vector: Vector, count: int) -> list[str]:
        """Return the ids of the decisions that seem most similar, the most similar first. Raises IndexUnavailable."""
        index = self._ready_index()
        try:
            return index.propose(vector, count)
        except IndexUnavailable as error:
            self._doubt(index, error)
            raise

    def _ready_index(self) -> ChromaIndex:
        index = self._index
        if index is None:
            raise IndexUnavailable(f"the index is {self._state}")
        return index

    def _doubt(self, index: ChromaIndex, error: IndexUnavailable) -> None:
        """Let other searches go on without the index at once, until the thread has looked at it."""
        if self._index is index:
            self._index = None
            self._state = f"unavailable: {error}"
            self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._live()
            except IndexUnavailable as error:
                self._note_failure(error, crashed=self._server.stop())
            except Exception:
                logger.exception("the index failed for an unforeseen reason")
                self._note_failure(IndexUnavailable("it failed; the log says why"), crashed=self._server.stop())
            self._stopping.wait(pause_after(self._failures))
        self._index = None
        self._server.stop()

    def _live(self) -> None:
        """Run the index until it fails, which raises IndexUnavailable, or until the end."""
        self._was_ready = False
        self._state = "rebuilding" if self._anew else "starting"
        if self._anew:
            self._server.wipe()
        url = self._server.start(self._stopping)
        with closing(ChromaIndex.open(url, self._model, self._dimensions)) as index:
            try:
                self._clear(index)
                self._tend(index)
            finally:
                self._index = None

    def _clear(self, index: ChromaIndex) -> None:
        """Empty the index where it is to be built anew, and never keep those of other models in a folder of our own."""
        if not self._feeder.builds:
            return
        if self._anew:
            index.reset()
            self._anew = False
        if index.revision < 0:
            if self._server.private and index.others():
                raise IndexBroken("the index is of another model")
            self._state = "rebuilding"
            logger.info("building the index of %d decisions from the journal", self._matrix.size)

    def _tend(self, index: ChromaIndex) -> None:
        """Feed and check the index until the end."""
        next_check = 0.0
        while not self._stopping.is_set():
            self._wake.clear()
            self._server.check()
            size = self._matrix.size
            if self._feed(index) and (self._index is None or time.monotonic() >= next_check):
                self._admit(index, size)
                next_check = time.monotonic() + CHECK_INTERVAL
            self._wake.wait(self._feed_interval)

    def _admit(self, index: ChromaIndex, size: int) -> None:
        """Check the index and let searches use it."""
        check_soundness(index, self._matrix, size if self._feeder.builds else 0)
        if self._index is index:
            self._failures = 0
            return
        self._was_ready = True
        self._index, self._state = index, "ready"
        logger.info("the index is ready with %d decisions", size)

    def _feed(self, index: ChromaIndex) -> bool:
        """Feed the index; False where the journal did not answer or the end has come."""
        try:
            self._feeder.feed(index, self._stopping.is_set)
        except IndexBehind:
            if self._index is None:
                self._state = "rebuilding"
            return False
        except (CstpError, SQLAlchemyError) as error:
            if not self._journal_fails:
                logger.warning("the index is not fed, because the journal does not answer: %s", error)
            self._journal_fails = True
            return False
        self._journal_fails = False
        return not self._stopping.is_set()

    def _note_failure(self, error: IndexUnavailable, *, crashed: bool) -> None:
        self._failures += 1
        self._state = f"unavailable: {error}"
        broken = self._feeder.builds and (crashed or isinstance(error, IndexBroken))
        self._anew = self._anew or (broken and (not self._was_ready or self._failures > 1))
        if not self._stopping.is_set():
            logger.warning("the index failed: %s; it is %s", error, "built anew" if self._anew else "started again")
