"""Which other processes use what a server uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cstp_grpc.guardrails.rulebook_files import RulebookFile, default_rulebook
from cstp_grpc.storage.turns import WriteTurn

if TYPE_CHECKING:
    # A supervisor needs no database.
    from sqlalchemy import Engine

    from cstp_grpc.config import Settings

INDEX_FOLDER: Final = "chroma"
"""The folder of the embedded index within the data folder."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """How a server process stands to the other processes that serve the same data."""

    supervised: bool = False
    """Whether a supervisor holds the lock on the data folder and runs several such processes on it."""
    private_port: int | None = None
    """The loopback port on which this one alone serves too, always without TLS, to the bridges of its supervisor."""

    limits_memory: int | None = None
    """The descriptor of the memory in which all of them count calls; None if limits are this one's alone."""
    vectors_memory: int | None = None
    """The descriptor of the memory in which all of them have the vectors once; None if this one keeps its own."""
    index_url: str | None = None
    """Where the supervisor keeps a Chroma server alive, in mode `embedded`; None if this one does so itself."""
    feeds_index: bool = True
    """Whether this one feeds the index; of several processes that share one, one does."""
    rulebooks: Sequence[RulebookFile] | None = None
    """The rulebooks of all of them, so that one which is started later has the same; None to read the files."""

    def shares_database(self, engine: Engine) -> bool:
        """Whether other processes may write to the database: workers of this host, or other hosts on PostgreSQL."""
        return self.supervised or engine.dialect.name == "postgresql"

    def write_turn(self, engine: Engine) -> WriteTurn | None:
        """Return what orders the writes of the processes on one SQLite file; None if nothing need do that."""
        if self.supervised and engine.dialect.name == "sqlite":
            return WriteTurn(Path(str(engine.url.database)))
        return None


def rulebook_path(settings: Settings) -> Path:
    """Return the configured rulebook or folder of them, or the default one."""
    return settings.cstp.guardrails.config_path or default_rulebook()


ALONE: Final = Deployment()
"""One process, which holds the lock on its data folder itself."""
