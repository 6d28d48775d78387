"""What searches leave out of a decision, and the port that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cstp_grpc.decisions.model import Decision


@dataclass(frozen=True, slots=True)
class NeededBackground:
    """The ids of decisions of which more is needed: their contexts, or the decisions that superseded them."""

    contexts: tuple[str, ...] = ()
    successors: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is needed."""
        return bool(self.contexts or self.successors)


@dataclass(frozen=True, slots=True)
class DecisionBackground:
    """Contexts of decisions and the decisions that superseded them, by id, as far as a reader may know them."""

    contexts: Mapping[str, str] = field(default_factory=dict)
    successors: Mapping[str, Decision] = field(default_factory=dict)


NO_BACKGROUND = DecisionBackground()
"""Nothing is known, or needed."""


class BackgroundReader(Protocol):
    """Reads the background of decisions."""

    @property
    def is_local(self) -> bool:
        """Whether reading a few decisions only reads a file of this machine."""

    def read(self, needed: NeededBackground, caller: str) -> DecisionBackground:
        """Return the background of at most `MAX_BACKGROUND` decisions of each kind.

        An agent reads contexts of its own decisions, and of successors the latest that it may read. Raises QueryFailed.
        """


MAX_BACKGROUND = 8
"""How many decisions are read at once. Chosen: more than an announcement is answered with."""
