"""The shared intents of the last day in memory, and finding those that resemble the next action of an agent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import PurePosixPath

import numpy as np

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.guardrails.cel_variables import MAX_WINDOW_SECONDS
from cstp_grpc.core.guardrails.model import IntentFacts
from cstp_grpc.core.intents.model import (
    Announcement,
    Intent,
    IntentClosing,
    IntentId,
    IntentKey,
    IntentVector,
    SharedIntent,
)
from cstp_grpc.core.intents.sql_shared_intents import SqlSharedIntentStore
from cstp_grpc.platform.embedding.embedder import Embedder
from cstp_grpc.platform.storage.background_work import WorkPool
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

RECENT_TIME = timedelta(seconds=MAX_WINDOW_SECONDS)
"""How long other agents can find an intent."""
MAX_RECENT = 1000
"""Maximum number of intents to find, the latest ones. Chosen: an announcement is compared with them in 0.1 ms."""

REMOVAL_BATCH = 500
"""Rows of a table that one transaction removes at most. Chosen: announcements wait for it only briefly."""


class RecentIntents:
    """Holds the latest shared intents, of each its latest revision. Safe for many threads.

    Intents of this process are added once they are committed; `refresh` takes over those of other processes. Vectors
    are of the embedder's `model` and have `dimensions` numbers.
    """

    def __init__(
        self,
        store: SqlSharedIntentStore,
        model: str,
        dimensions: int,
        clock: Callable[[], datetime],
        limit: int = MAX_RECENT,
    ) -> None:
        self._store = store
        self._model = model
        self._clock = clock
        self._limit = limit
        # Lets one thread at a time refresh, which reads the database. Taken before `_lock`, never the other way round.
        self._refreshing = threading.Lock()
        # Guards all that follows; held for memory only, because the event loop waits for it.
        self._lock = threading.Lock()
        self._rows: dict[IntentId, int] = {}
        """The row of each intent in the next three, whose first `len(self._rows)` rows are used."""
        self._shared: list[SharedIntent] = []
        self._times = np.empty(limit, np.float64)
        self._vectors = np.empty((limit, dimensions), np.float32)
        # The next two belong to the thread that holds `_refreshing`.
        self._position: int | None = None
        """The number of a change up to which all were read; None before the first refresh."""
        self._read: set[int] = set()
        """The numbers of changes beyond it that were read."""
        self._missed: list[Callable[[], None]] | None = None
        """Changes since a refresh began, whose snapshot may lack them; None if there is no refresh."""

    def __len__(self) -> int:
        """Return the number of stored intents, including expired ones that are not removed yet."""
        return len(self._rows)

    def store(self, unit_of_work: UnitOfWork, shared: SharedIntent) -> None:
        """Store a shared revision within the transaction that stores the intent; `add` it after the commit."""
        self._store.put(unit_of_work, self._model, shared, self._clock())

    def note_change(self, unit_of_work: UnitOfWork, key: IntentKey) -> None:
        """Record, in the transaction that closes or withdraws an intent, that others have to read it again.

        `close` or `withdraw` it after the commit.
        """
        self._store.note_change(unit_of_work, (key.agent, key.correlation_id), self._clock())

    def add(self, shared: SharedIntent) -> None:
        """Add a committed revision, which replaces an earlier one of its intent."""
        self._change(partial(self._put, shared))

    def withdraw(self, key: IntentKey) -> None:
        """Remove the revisions of an intent before a committed one, which is not shared."""
        self._change(partial(self._remove, key))

    def close(self, key: IntentKey, closing: IntentClosing) -> None:
        """Store the closing of a revision."""
        self._change(partial(self._close, key, closing))

    def find_similar(self, vector: IntentVector, min_similarity: float) -> list[tuple[SharedIntent, float]]:
        """Return the intents of the last day whose cosine similarity to a vector is at least `min_similarity`."""
        oldest = (self._clock() - RECENT_TIME).timestamp()
        with self._lock:
            count = len(self._shared)
            similarities = self._vectors[:count] @ vector
            found = np.flatnonzero((self._times[:count] >= oldest) & (similarities >= min_similarity))
            return [(self._shared[row], float(similarities[row])) for row in found]

    def list_recent(self) -> list[SharedIntent]:
        """Return the intents of the last day, in no order."""
        oldest = self._clock() - RECENT_TIME
        with self._lock:
            return [shared for shared in self._shared if shared.intent.received_at >= oldest]

    def refresh(self) -> None:
        """Read the changes in the database. Raises QueryFailed."""
        with self._refreshing:
            try:
                with self._lock:
                    self._missed = []
                # Before the changes: those that are settled by then are among them.
                settled = self._store.settled_change()
                if self._position is None or not self._read_changes(self._position):
                    self._read_all()
                    self._read = set()
                self._position = max(settled, self._position or 0)
                self._read = {number for number in self._read if number > self._position}
            finally:
                with self._lock:
                    self._missed = None

    def remove_expired(self, writer: GroupCommitWriter) -> bool:
        """Remove expired intents, and return whether more may be stored. Raises Unavailable."""
        oldest = self._clock() - RECENT_TIME
        with self._lock:
            for row in np.flatnonzero(self._times[: len(self._shared)] < oldest.timestamp())[::-1].tolist():
                self._remove_row(row)
        return writer.run(lambda unit_of_work: self._store.remove_before(unit_of_work, oldest, REMOVAL_BATCH))

    def _read_all(self) -> None:
        latest_first = self._store.load_recent(self._model, self._clock() - RECENT_TIME, self._limit)
        with self._lock:
            self._rows.clear()
            self._shared.clear()
            for shared in latest_first:
                self._put(shared)
            self._apply_missed()

    def _read_changes(self, position: int) -> bool:
        """Apply the changes after a position, or return False if there are so many that reading all is faster."""
        # Changes that were read already are no reason to read all again.
        limit = self._limit + len(self._read)
        changes = self._store.changes_after(position, limit)
        if len(changes) == limit:
            return False
        changed = {change.intent_id for change in changes if change.number not in self._read}
        if not changed:
            return True
        found = {intent_id(shared): shared for shared in self._store.load_latest(self._model, sorted(changed))}
        oldest = self._clock() - RECENT_TIME
        with self._lock:
            for key in changed:
                shared = found.get(key)
                if shared is None:
                    self._forget(key)
                elif shared.intent.received_at >= oldest:
                    self._put(shared)
            self._apply_missed()
        self._read |= {change.number for change in changes}
        return True

    def _apply_missed(self) -> None:
        for change in self._missed or ():
            change()

    def _change(self, change: Callable[[], None]) -> None:
        with self._lock:
            change()
            if self._missed is not None:
                self._missed.append(change)

    def _put(self, shared: SharedIntent) -> None:
        intent = shared.intent
        row = self._rows.get((intent.agent, intent.correlation_id))
        if row is None:
            if len(self._shared) == self._limit:
                # The one received first makes room, unless that is this one: a change of one that has made room.
                first = int(np.argmin(self._times))
                if intent.received_at < self._shared[first].intent.received_at:
                    return
                self._remove_row(first)
            row = len(self._shared)
            self._shared.append(shared)
            self._rows[intent.agent, intent.correlation_id] = row
        elif self._shared[row].intent.revision > intent.revision:
            return
        self._shared[row] = shared
        self._times[row] = intent.received_at.timestamp()
        self._vectors[row] = shared.vector

    def _remove(self, key: IntentKey) -> None:
        row = self._rows.get((key.agent, key.correlation_id))
        if row is not None and self._shared[row].intent.revision < key.revision:
            self._remove_row(row)

    def _forget(self, key: IntentId) -> None:
        row = self._rows.get(key)
        if row is not None:
            self._remove_row(row)

    def _close(self, key: IntentKey, closing: IntentClosing) -> None:
        row = self._rows.get((key.agent, key.correlation_id))
        if row is not None and (shared := self._shared[row]).intent.key == key:
            self._shared[row] = replace(shared, intent=replace(shared.intent, closing=closing))

    def _remove_row(self, row: int) -> None:
        """Remove a row; the last one takes its place."""
        gone, last = self._shared[row].intent, self._shared.pop()
        del self._rows[gone.agent, gone.correlation_id]
        if row < len(self._shared):
            self._shared[row] = last
            self._rows[last.intent.agent, last.intent.correlation_id] = row
            self._times[row] = self._times[len(self._shared)]
            self._vectors[row] = self._vectors[len(self._shared)]


def intent_id(shared: SharedIntent) -> IntentId:
    return shared.intent.agent, shared.intent.correlation_id


MAX_RELATED = 5
"""Maximum number of related intents in an answer. Chosen: an agent reads them before it acts."""
MAX_AGES = 100
"""Maximum number of related intents that guardrails count."""
SAME_PATH = 0.2
"""Added to the similarity of intents about a common path. Chosen: with common files half the similarity suffices."""
SAME_PROJECT = 0.05
"""Added to the similarity of intents about the same project without a common path."""


@dataclass(frozen=True, slots=True)
class RelatedIntent:
    """A recent intent of another agent; `score` is 0 to 1."""

    shared: SharedIntent
    score: float

    @property
    def intent(self) -> Intent:
        """The intent, without its context and metadata."""
        return self.shared.intent


@dataclass(frozen=True, slots=True, eq=False)
class IntentSubject:
    """The parts of an intent to compare with the intents of others: the vector of its text, its project and paths.

    Found are intents of other agents than `caller` that `reader` may read.
    """

    vector: IntentVector
    caller: str
    reader: str
    project: str | None = None
    paths: tuple[str, ...] = ()


class RelatedIntents:
    """Finds related intents, which score at least `min_score`.

    `pool` embeds texts. If `follows_others`, other processes announce intents too, which `catch_up` takes over.
    """

    def __init__(
        self,
        recent: RecentIntents,
        embedder: Embedder,
        read_policy: ReadPolicy,
        clock: Callable[[], datetime],
        pool: WorkPool,
        *,
        min_score: float,
        follows_others: bool,
    ) -> None:
        self._recent = recent
        self._embedder = embedder
        self._read_policy = read_policy
        self._clock = clock
        self._pool = pool
        self._min_score = min_score
        self._follows_others = follows_others

    @property
    def may_exist(self) -> bool:
        """Whether anybody shares recent intents, as far as this process knows."""
        return len(self._recent) > 0

    def store(self, unit_of_work: UnitOfWork, shared: SharedIntent) -> None:
        """Store a shared revision within the transaction that stores the intent; `add` it after the commit."""
        self._recent.store(unit_of_work, shared)

    def note_withdrawal(self, unit_of_work: UnitOfWork, key: IntentKey) -> None:
        """Withdraw earlier revisions, in the transaction that stores a private revision."""
        self._recent.note_change(unit_of_work, key)

    def add(self, shared: SharedIntent) -> None:
        """Let others find a committed revision, without its context and metadata."""
        self._recent.add(shared)

    def withdraw(self, key: IntentKey) -> None:
        """Hide the revisions of an intent before a committed one, which is not shared."""
        if len(self._recent):
            self._recent.withdraw(key)

    async def embed(self, text: str) -> IntentVector:
        """Return the vector of a text. Raises QueryFailed.

        It is cached if decisions were searched by the text before, unless the embedder has other prompts for queries.
        """
        run = self._pool.run_short if self._embedder.is_cached(text) else self._pool.run
        vector: IntentVector = (await run(self._embedder.embed, [text]))[0]
        return vector

    async def embed_all(self, texts: Sequence[str]) -> list[IntentVector]:
        """Return the vectors of texts; those that are not cached are computed at once. Raises QueryFailed."""
        return await self._pool.run(self._embed_together, texts)

    def _embed_together(self, texts: Sequence[str]) -> list[IntentVector]:
        self._embedder.embed_together(texts)
        return [self._embedder.embed([text])[0] for text in texts]

    async def catch_up(self) -> None:
        """Read the commits of other processes until now. Raises QueryFailed.

        An agent that shares its intent calls this after the commit. So of two agents that announce at the same time to
        two servers, at least one finds the intent of the other.
        """
        if self._follows_others:
            await self._pool.run(self._recent.refresh)

    def find(self, subject: IntentSubject) -> list[RelatedIntent]:
        """Return the related intents: open ones first, then by falling score, the later first."""
        found = sorted(self._related(subject), key=rank_key, reverse=True)
        return found[:MAX_RELATED]

    def list_recent(self, caller: str, reader: str, project: str | None, paths: Sequence[str]) -> list[RelatedIntent]:
        """Return the intents of other agents of the last day: open ones first, then those about the same place.

        The score is the bonus of a common place.
        """
        found = [
            RelatedIntent(shared, common_place_bonus(shared.intent, project, paths))
            for shared in self._recent.list_recent()
            if shared.intent.agent != caller and self._read_policy.may_read_intent(shared.intent.category, reader)
        ]
        return sorted(found, key=rank_key, reverse=True)

    def read_subject_facts(self, subject: IntentSubject) -> IntentFacts:
        """Return the facts that guardrails read of related intents: the ages of those that are open and not blocked."""
        now = self._clock()
        open_ones = (
            item.intent
            for item in self._related(subject)
            # A blocked intent is not carried out. If it counted, two agents could keep each other from acting.
            if item.intent.closing is None and item.shared.allowed is not False
        )
        ages = sorted(max(0.0, (now - intent.received_at).total_seconds()) for intent in open_ones)
        return IntentFacts(tuple(ages[:MAX_AGES]))

    async def read_facts(self, text: str, caller: str, reader: str) -> IntentFacts:
        """Return the facts for an action in words; see `IntentFactsReader`."""
        try:
            return self.read_subject_facts(IntentSubject(await self.embed(text), caller, reader))
        except CstpError as error:
            return IntentFacts(unreadable=error.message)

    def _related(self, subject: IntentSubject) -> Iterable[RelatedIntent]:
        # Lower by the greatest bonus, which is known only for found intents.
        for shared, similarity in self._recent.find_similar(subject.vector, self._min_score - SAME_PATH):
            intent = shared.intent
            if intent.agent == subject.caller or not self._read_policy.may_read_intent(intent.category, subject.reader):
                continue
            score = similarity + common_place_bonus(intent, subject.project, subject.paths)
            if score >= self._min_score:
                yield RelatedIntent(shared, min(max(score, 0.0), 1.0))


def rank_key(related: RelatedIntent) -> tuple[bool, float, datetime]:
    """Return the key by which related intents are ordered, the first greatest."""
    return related.intent.closing is None, related.score, related.intent.received_at


def common_place_bonus(intent: Intent, project: str | None, paths: Sequence[str]) -> float:
    """Return the amount that a common project, or a common path in it, adds to the similarity."""
    if intent.project is None or intent.project != project:
        return 0.0
    return SAME_PATH if paths_overlap(intent.paths, paths) else SAME_PROJECT


def paths_overlap(some: Iterable[str], others: Iterable[str]) -> bool:
    """Return True if a path of the first ones is one of the others, contains one or lies within one."""
    parts = [PurePosixPath(path).parts for path in others]
    return any(
        own[: len(other)] == other[: len(own)]
        for own in (PurePosixPath(path).parts for path in some)
        for other in parts
    )


def subject_of_announcement(
    announcement: Announcement, caller: str, reader: str, vector: IntentVector
) -> IntentSubject:
    """Return the subject of an announcement, which is compared with the intents of others."""
    return IntentSubject(vector, caller, reader, announcement.project, announcement.paths)
