"""What searches leave out of a decision, and the port that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cstp_grpc.decisions.model import Decision


@dataclass(frozen=True, slots=True)
class DecisionBackground:
    """The context of a decision, None if the reader may not read it, and the latest decision that superseded it."""

    context: str | None = None
    successor: Decision | None = None


class BackgroundReader(Protocol):
    """Reads the background of decisions."""

    @property
    def is_local(self) -> bool:
        """Whether reading a few decisions only reads a file of this machine."""

    def read(self, ids: Sequence[str], caller: str) -> Mapping[str, DecisionBackground]:
        """Return the background of decisions as an agent may read it, by id: contexts of its own, readable successors.

        Raises QueryFailed.
        """
