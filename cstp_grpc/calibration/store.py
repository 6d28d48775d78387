"""The ports through which reviewed decisions are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cstp_grpc.calibration.model import ReviewedDecision
from cstp_grpc.decisions.model import DecisionFilter
from cstp_grpc.decisions.store import Vector
from cstp_grpc.enums import Outcome


@dataclass(frozen=True, slots=True)
class StatedConfidence:
    """The confidence of a decision with a known outcome, and its category."""

    confidence: float
    outcome: Outcome
    category: str | None


class ReviewStore(Protocol):
    """Reads decisions whose outcome is known. Its methods raise QueryFailed if the database does not respond.

    The latest review says how a decision turned out; its confidence is that at the first review, since one that is
    changed when the outcome is known is no forecast.
    """

    def read_latest(self, caller: str, filters: DecisionFilter, limit: int) -> Sequence[ReviewedDecision]:
        """Return the latest decisions that the caller may read and that pass the filters, by falling date, then id."""

    def read_confidences(self, agent: str, limit: int) -> Sequence[StatedConfidence]:
        """Return the confidences of the latest decisions of an agent."""

    def find_changed_agents(self, after_revision: int) -> tuple[frozenset[str], int]:
        """Return the agents whose decisions changed after a revision, and the newest revision."""

    def newest_revision(self) -> int:
        """Return the revision of the latest change; -1 if there is none."""


class FailureVectors(Protocol):
    """Reads the vectors of decisions."""

    def read_vectors(self, ids: Sequence[str]) -> Mapping[str, Vector]:
        """Return the unit vector of each decision that has one, by id. Raises QueryFailed."""
