"""How many links a decision may declare."""

from __future__ import annotations

import pytest

from cstp_grpc.contract.enums import DecisionStatus, Visibility
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.decisions.lifecycle import MAX_LINKS_OF_KIND, check_linkable
from cstp_grpc.core.decisions.model import Decision, DecisionLink, Links, LinkType
from tests.core.decisions.strategies import EPOCH


def related(*targets: str) -> list[DecisionLink]:
    return [DecisionLink("dec-1", LinkType.RELATES_TO, target) for target in targets]


def decision_with_links(count: int) -> Decision:
    links = Links(relates_to=tuple(f"dec-other-{number}" for number in range(count)))
    return Decision("dec-1", "Title", DecisionStatus.DECIDED, EPOCH, "alice", Visibility.PRIVATE, links=links)


def test_one_more_than_the_most_is_refused() -> None:
    check_linkable(decision_with_links(MAX_LINKS_OF_KIND - 1), related("dec-new"), [])
    with pytest.raises(InvalidArgument, match="more than"):
        check_linkable(decision_with_links(MAX_LINKS_OF_KIND), related("dec-new"), [])


def test_a_link_can_be_exchanged_for_another_at_the_bound() -> None:
    check_linkable(decision_with_links(MAX_LINKS_OF_KIND), related("dec-new"), related("dec-other-0"))


def test_a_link_that_is_there_can_be_added_again_beyond_the_bound() -> None:
    check_linkable(decision_with_links(MAX_LINKS_OF_KIND + 5), related("dec-other-0"), [])
