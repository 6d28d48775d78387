"""What searches leave out of decisions, for tests without a journal."""

from __future__ import annotations

from dataclasses import dataclass, field

from cstp_grpc.core.decisions.sql_background import SqlBackgroundReader
from cstp_grpc.core.decisions.store import NO_BACKGROUND, DecisionBackground, NeededBackground


@dataclass
class KnownBackground(SqlBackgroundReader):
    """Knows a background, and remembers what it was asked for."""

    known: DecisionBackground = NO_BACKGROUND
    asked: list[NeededBackground] = field(default_factory=list)
    is_local: bool = True

    def read(self, needed: NeededBackground, caller: str) -> DecisionBackground:
        self.asked.append(needed)
        return self.known
