"""Gives a journal the vectors of another embedder, while the present vectors go on serving searches.

New vectors are prepared apart from the present ones, batch by batch, and replace them in one transaction. After a kill
at any moment, the prepared vectors are kept, and the journal has the vectors of one model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from cstp_grpc.core.decisions.passages import PreparedTexts
from cstp_grpc.core.decisions.sql_change_log import SqlChangeLog
from cstp_grpc.core.decisions.sql_prepared_vectors import SqlPreparedVectorStore
from cstp_grpc.core.decisions.store import PreparedVectors
from cstp_grpc.platform.embedding.embedder import Embedder
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

logger = logging.getLogger(__name__)

PREPARED_BATCH = 64
"""Decisions prepared in one transaction. Chosen: a kill loses a second or two of work, and no writer waits long."""


def prepare_vectors(
    store: SqlPreparedVectorStore,
    embedder: Embedder,
    writer: GroupCommitWriter,
    change_log: SqlChangeLog,
    on_prepared: Callable[[int], object],
) -> int:
    """Embed all decisions that have no vector of the embedder's model, and return how many were embedded.

    `on_prepared` is called with the number of each batch. Decisions that change meanwhile are embedded again. Raises
    QueryFailed and Unavailable; prepared vectors are kept.
    """
    count = 0
    # The query finds only decisions that still lack a vector: that is the whole state of an interrupted run.
    while unprepared := store.unprepared_decisions(embedder.model, PREPARED_BATCH):
        texts = PreparedTexts(embedder)
        texts.prepare(each.decision for each in unprepared)
        prepared = [
            PreparedVectors(each.decision.id, each.revision, texts.vectors_of(each.decision)[1]) for each in unprepared
        ]

        def job(unit_of_work: UnitOfWork, prepared: Sequence[PreparedVectors] = prepared) -> None:
            # So that the compared revisions do not change until the commit.
            change_log.hold(unit_of_work)
            store.put(unit_of_work, embedder.model, prepared)

        writer.run(job)
        count += len(prepared)
        on_prepared(len(prepared))
    return count


def adopt_prepared_vectors(
    store: SqlPreparedVectorStore, model: str, writer: GroupCommitWriter, change_log: SqlChangeLog
) -> int:
    """Make the prepared vectors of a model those that searches use, and return how many.

    Raises QueryFailed and Unavailable.
    """
    if not store.has_prepared(model):
        return 0

    def job(unit_of_work: UnitOfWork) -> int:
        change_log.hold(unit_of_work)
        return store.adopt(unit_of_work, model)

    count = writer.run(job)
    if count:
        logger.info("%d decisions have the prepared vectors of %s now", count, model)
    return count
