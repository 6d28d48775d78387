"""What searches leave out of decisions, for tests without a journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cstp_grpc.decisions.background import DecisionBackground


@dataclass
class KnownBackground:
    """Knows the background of some decisions, and remembers what it was asked for."""

    known: Mapping[str, DecisionBackground] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    is_local: bool = True

    def read(self, ids: Sequence[str], caller: str) -> Mapping[str, DecisionBackground]:
        self.asked += ids
        return {key: self.known[key] for key in ids if key in self.known}
