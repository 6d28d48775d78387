"""Finds the recent intents of other agents that resemble what an agent is about to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

from cstp_grpc.decisions.read_policy import ReadPolicy
from cstp_grpc.embedding.embedder import Embedder
from cstp_grpc.errors import CstpError
from cstp_grpc.guardrails.model import IntentFacts
from cstp_grpc.intents.model import Intent, IntentKey, IntentVector, SharedIntent
from cstp_grpc.intents.recent_intents import RecentIntents
from cstp_grpc.storage.background_work import WorkPool
from cstp_grpc.storage.unit_of_work import UnitOfWork

MAX_RELATED = 5
"""Maximum number of related intents in an answer. Chosen: an agent reads them before it acts."""
MAX_AGES = 100
"""Maximum number of related intents that guardrails count."""
SAME_PATH = 0.2
"""Added to the similarity of intents about a common path. Chosen: what touches the same files need be half as alike."""
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
    """What is compared with the intents of others: the vector of its text, its project and paths.

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
        """Note within the transaction that stores a private revision that earlier ones are not told any more."""
        self._recent.note_change(unit_of_work, key)

    def add(self, shared: SharedIntent) -> None:
        """Let others find a committed revision, without its context and metadata."""
        self._recent.add(shared)

    def withdraw(self, key: IntentKey) -> None:
        """Let nobody find the revisions of an intent before a committed one, which is not shared."""
        if len(self._recent):
            self._recent.withdraw(key)

    async def embed(self, text: str) -> IntentVector:
        """Return the vector of a text, which is cached if decisions were searched by it before. Raises QueryFailed."""
        run = self._pool.run_short if self._embedder.is_cached(text) else self._pool.run
        vector: IntentVector = (await run(self._embedder.embed, [text]))[0]
        return vector

    async def catch_up(self) -> None:
        """Take over what other processes have committed until now. Raises QueryFailed.

        An agent that shares its intent calls this after the commit. So of two agents that announce at the same time to
        two servers, at least one finds the intent of the other.
        """
        if self._follows_others:
            await self._pool.run(self._recent.refresh)

    def find(self, subject: IntentSubject) -> list[RelatedIntent]:
        """Return the related intents: open ones first, then by falling score, the later first."""
        found = sorted(self._related(subject), key=rank_key, reverse=True)
        return found[:MAX_RELATED]

    def read_subject_facts(self, subject: IntentSubject) -> IntentFacts:
        """Return what guardrails read of the related intents: the ages of those that are open and not blocked."""
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
        for shared, similarity in self._recent.find_similar(subject.vector, self._min_score - SAME_PATH):
            intent = shared.intent
            if intent.agent == subject.caller or not self._read_policy.may_read_intent(intent.category, subject.reader):
                continue
            score = similarity + common_place_bonus(intent, subject)
            if score >= self._min_score:
                yield RelatedIntent(shared, min(max(score, 0.0), 1.0))


def rank_key(related: RelatedIntent) -> tuple[bool, float, datetime]:
    """Return what related intents are ordered by, the first greatest."""
    return related.intent.closing is None, related.score, related.intent.received_at


def common_place_bonus(intent: Intent, subject: IntentSubject) -> float:
    """Return what a common project, or a common path in it, adds to the similarity."""
    if intent.project is None or intent.project != subject.project:
        return 0.0
    return SAME_PATH if paths_overlap(intent.paths, subject.paths) else SAME_PROJECT


def paths_overlap(some: Iterable[str], others: Iterable[str]) -> bool:
    """Return True if a path of the first ones is one of the others, contains one or lies within one."""
    parts = [PurePosixPath(path).parts for path in others]
    return any(
        own[: len(other)] == other[: len(own)]
        for own in (PurePosixPath(path).parts for path in some)
        for other in parts
    )
