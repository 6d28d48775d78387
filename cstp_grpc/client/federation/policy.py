"""Which calls ask which peers, and how they decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cstp_grpc.errors import FieldViolation, InvalidArgument
from cstp_grpc.vocabulary import Stakes


class Asked(Protocol):
    """A peer as far as it matters here."""

    @property
    def name(self) -> str:
        """The name that it is configured with."""

    @property
    def required(self) -> bool:
        """Whether nothing is allowed that it does not allow."""

    def speaks_for(self, category: str) -> bool:
        """Whether it is asked about what is of a category."""


PeerT = TypeVar("PeerT", bound=Asked)


@dataclass(frozen=True, slots=True)
class Matter:
    """What a call is about; None where it does not say."""

    category: str | None
    stakes: Stakes | None = None


@dataclass(frozen=True, slots=True)
class Matters:
    """Some of all matters; where no categories are named, those of all, and likewise with stakes."""

    categories: frozenset[str]
    stakes: frozenset[Stakes]

    def hold(self, matter: Matter) -> bool:
        """Whether a matter is one of them."""
        of_category = not self.categories or matter.category in self.categories
        return of_category and (not self.stakes or matter.stakes in self.stakes)

    def touch(self, matter: Matter) -> bool:
        """Whether a matter is of one of the categories, or of one of the stakes."""
        return matter.category in self.categories or matter.stakes in self.stakes


@dataclass(frozen=True, slots=True)
class Policy(Generic[PeerT]):
    """The peers, the matters that are federated where a call states no scope, and those on which peers vote."""

    peers: Sequence[PeerT]
    by_default: Matters
    quorums: Sequence[tuple[Matters, int]]

    def is_federated_by_default(self, matter: Matter) -> bool:
        """Whether a call that states no scope asks peers."""
        return self.by_default.touch(matter)

    def chosen(self, matter: Matter, names: Sequence[str], *, judging: bool) -> list[PeerT]:
        """Return the peers that a call asks: those that it names, else those that speak for its category.

        Where they are to judge, the required ones that speak for the category are among them in any case. Raises
        InvalidArgument for a name that no peer has.
        """
        known = {peer.name for peer in self.peers}
        if unknown := [number for number, name in enumerate(names) if name not in known]:
            violations = [FieldViolation(f"agents[{number}]", "is the name of no peer") for number in unknown]
            # Only the first is named: errors have little room.
            raise InvalidArgument(f"There is no peer {names[unknown[0]]}", violations=violations)
        return [peer for peer in self.peers if wanted(peer, matter, names, judging=judging)]

    def deciding(self, matter: Matter, asked: Sequence[PeerT]) -> frozenset[str]:
        """Return the names of those of the peers that are asked without whom nothing is allowed, or who vote.

        In votes that is who speaks for the category: whoever calls names other peers, and must not add to the votes.
        """
        votes = self.quorum(matter) is not None
        return frozenset(peer.name for peer in asked if peer.required and (not votes or must_judge(peer, matter)))

    def quorum(self, matter: Matter) -> int | None:
        """Return how many required peers must allow an action; None where each has a veto."""
        return next((allow for matters, allow in self.quorums if matters.hold(matter)), None)


def wanted(peer: Asked, matter: Matter, names: Sequence[str], *, judging: bool) -> bool:
    """Whether a call asks a peer."""
    if judging and peer.required and must_judge(peer, matter):
        return True
    return peer.name in names if names else peer.speaks_for(matter.category or "")


def must_judge(peer: Asked, matter: Matter) -> bool:
    """Whether a required peer judges a matter: not naming a category is no way around those that speak for some."""
    return matter.category is None or peer.speaks_for(matter.category)
