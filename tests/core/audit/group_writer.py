"""A process that adds groups of entries to the trail of a new SQLite file."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.platform.storage.database import open_database
from tests.core.audit.kit import make_entry
from tests.databases import POOL_SIZE, ServerWriter, write_journal

GROUPS, ENTRIES = 40, 64


def main(path: Path) -> None:
    """Add as many groups as make SQLite set more aside than it does in memory by itself."""
    write_journal(path)
    with closing(open_database(f"sqlite:///{path}", POOL_SIZE)) as database, closing(ServerWriter(database)) as writer:
        trail = SqlAuditTrail(database, writer)
        for _ in range(GROUPS):
            trail.submit(*map(make_entry, range(ENTRIES))).result()


main(Path(sys.argv[1]))
