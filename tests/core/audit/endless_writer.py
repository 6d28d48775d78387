"""A process that adds entries to the trail of a database, prints how many are on disk, and is killed."""

from __future__ import annotations

import itertools
import sys
from datetime import UTC, datetime

from cstp_grpc.core.audit.checkpointer import Checkpointer
from cstp_grpc.core.audit.sql_chain import AuditChain
from cstp_grpc.core.audit.sql_checkpoints import SqlCheckpointStore
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.platform.storage.database import open_database
from tests.core.audit.kit import KEY, make_entry
from tests.databases import POOL_SIZE, ServerWriter


def main(url: str) -> None:
    """Add entries until the process is killed."""
    database = open_database(url, POOL_SIZE)
    writer = ServerWriter(database)
    checkpointer = Checkpointer(SqlCheckpointStore(database), writer, lambda: KEY, lambda: datetime.now(UTC), 3600.0)
    chain = AuditChain(database.dialect, due_after=7, on_due=checkpointer.wake)
    trail = SqlAuditTrail(database, writer, chain=chain)
    checkpointer.start()
    for written in itertools.count(5, 5):
        trail.submit(*map(make_entry, range(5))).result()
        print(written, flush=True)


main(sys.argv[1])
