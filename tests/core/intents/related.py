"""Related intents for tests without a server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL, ReadPolicy
from cstp_grpc.core.intents.related_intents import RecentIntents, RelatedIntents
from cstp_grpc.core.intents.sql_shared_intents import SqlSharedIntentStore
from cstp_grpc.platform.embedding.embedder import CachedEmbedder, Embedder
from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder
from cstp_grpc.platform.storage.background_work import WorkPool
from cstp_grpc.platform.storage.database import Database
from tests.lanes import ObservedLane


def build_recent(database: Database, clock: Callable[[], datetime], embedder: Embedder) -> RecentIntents:
    """Return the shared intents of a database, as a server that starts reads them."""
    recent = RecentIntents(SqlSharedIntentStore(database), embedder.model, embedder.dimensions, clock)
    recent.refresh()
    return recent


def build_related(
    database: Database,
    clock: Callable[[], datetime],
    pool: WorkPool | None = None,
    embedder: Embedder | None = None,
    read_policy: ReadPolicy = SHARE_WITH_ALL,
    *,
    follows_others: bool = False,
) -> RelatedIntents:
    """Return the related intents of a server on a database."""
    embedder = embedder or CachedEmbedder(LexicalEmbedder(), 100)
    return RelatedIntents(
        build_recent(database, clock, embedder),
        embedder,
        read_policy,
        clock,
        pool or ObservedLane(),
        min_score=0.5,
        follows_others=follows_others,
    )
