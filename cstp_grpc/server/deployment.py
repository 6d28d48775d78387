"""Which other processes use what a server uses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from cstp_grpc.storage.turns import WriteTurn


@dataclass(frozen=True, slots=True)
class Deployment:
    """How a server process stands to the other processes that serve the same data."""

    supervised: bool = False
    """Whether a supervisor holds the lock on the data folder and runs several such processes on it."""

    def shares_database(self, engine: Engine) -> bool:
        """Whether other processes may write to the database: workers of this host, or other hosts on PostgreSQL."""
        return self.supervised or engine.dialect.name == "postgresql"

    def write_turn(self, engine: Engine) -> WriteTurn | None:
        """Return what orders the writes of the processes on one SQLite file; None if nothing need do that."""
        if self.supervised and engine.dialect.name == "sqlite":
            return WriteTurn(Path(str(engine.url.database)))
        return None


ALONE: Final = Deployment()
"""One process, which holds the lock on its data folder itself."""
