"""The links that every store of decisions keeps, on each kind of database."""

from __future__ import annotations

from functools import partial

import pytest

from cstp_grpc.core.decisions.model import (
    DecisionLink,
    Links,
    LinkType,
)
from cstp_grpc.core.decisions.store import DeclaredLinks
from cstp_grpc.platform.storage.pagination import PageRequest
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.decisions.shelves import (
    EVERYTHING,
    Shelf,
    entry,
)


@pytest.mark.contract("SqlDecisionStore.declare", "SqlDecisionStore.get_declared_links")
def test_links_are_those_that_any_decision_declares_of_another(shelf: Shelf) -> None:
    first, second = entry(), entry()
    shelf.add(first, second)
    a, b = first.decision.id, second.decision.id
    shelf.declare(
        DeclaredLinks(a, Links(supersedes=("dec-y", "dec-x"), depends_on=(b,), relates_to=("dec-x",))),
        DeclaredLinks(b, Links(), superseded_by=(a,)),
    )
    stored = shelf.store.get(a)
    assert stored is not None
    assert stored.links.depends_on == (b,)
    assert stored.links.relates_to == ("dec-x",)
    assert stored.links.supersedes == tuple(sorted((b, "dec-x", "dec-y")))
    (shown,) = (item for item in shelf.store.page("alice", EVERYTHING, PageRequest()).items if item.id == a)
    assert shown.links == stored.links
    declared = Links(supersedes=("dec-x", "dec-y"), depends_on=(b,), relates_to=("dec-x",))
    assert shelf.store.get_declared_links([a, b, "dec-none"]) == {
        a: DeclaredLinks(a, declared),
        b: DeclaredLinks(b, Links(), superseded_by=(a,)),
        "dec-none": DeclaredLinks("dec-none", Links()),
    }


@pytest.mark.contract("SqlDecisionStore.find_successors")
def test_successors_are_those_that_links_of_the_same_agent_name(shelf: Shelf) -> None:
    old, new, newer, foreign = entry(), entry(), entry(), entry("bob")
    shelf.add(old, new, newer, foreign)
    a, b, c, d = (item.decision.id for item in (old, new, newer, foreign))
    shelf.declare(DeclaredLinks(b, Links(supersedes=(a,))), DeclaredLinks(a, Links(), superseded_by=(b, c)))
    shelf.declare(DeclaredLinks(d, Links(supersedes=(a, b))))
    assert shelf.store.find_successors([a, b, "dec-none"]) == {a: sorted([b, c])}


@pytest.mark.contract("SqlDecisionStore.find_superseded")
def test_declaring_again_replaces_only_what_the_decision_declared(shelf: Shelf) -> None:
    first, second = entry(), entry()
    shelf.add(first, second)
    a, b = first.decision.id, second.decision.id
    assert shelf.declare(DeclaredLinks(a, Links(supersedes=(b,)))) == {b}
    assert shelf.declare(DeclaredLinks(b, Links(), superseded_by=(a,))) == {b}
    assert shelf.declare(DeclaredLinks(a, Links(supersedes=("dec-x",)))) == {b, "dec-x"}
    stored = shelf.store.get(a)
    assert stored is not None
    assert stored.links.supersedes == tuple(sorted((b, "dec-x")))
    assert shelf.superseded([a, b, "dec-x"]) == {b}
    assert shelf.declare(DeclaredLinks(b, Links())) == {b}
    assert shelf.superseded([a, b, "dec-x"]) == set()


def test_nobody_supersedes_the_decision_of_another_agent(shelf: Shelf) -> None:
    mine, theirs = entry("alice"), entry("bob")
    shelf.add(mine, theirs)
    shelf.declare(DeclaredLinks(mine.decision.id, Links(supersedes=(theirs.decision.id,))))
    assert shelf.superseded([theirs.decision.id]) == set()


@pytest.mark.contract("SqlDecisionStore.add_links", "SqlDecisionStore.remove_links", "SqlDecisionStore.touching_links")
def test_links_are_added_removed_and_found_from_both_ends(shelf: Shelf, writer: GroupCommitWriter) -> None:
    one, two, foreign = entry(), entry(), entry("bob")
    shelf.add(one, two, foreign)
    first, second, third = (item.decision.id for item in (one, two, foreign))
    links = sorted(
        [
            DecisionLink(first, LinkType.SUPERSEDES, second),
            DecisionLink(first, LinkType.RELATES_TO, third),
            DecisionLink(third, LinkType.DEPENDS_ON, second),
        ]
    )
    shelf.declare(DeclaredLinks(second, Links(), superseded_by=(first,)))
    for _ in range(2):
        writer.run(partial(shelf.store.add_links, links=links))
    assert shelf.store.touching_links([first, second, third], 10) == links
    assert shelf.store.touching_links([second], 10) == [link for link in links if link.to_id == second]
    assert shelf.store.touching_links([first], 1) == [link for link in links if link.from_id == first][:1]
    writer.run(partial(shelf.store.remove_links, agent="alice", links=links))
    assert shelf.store.touching_links([second], 10) == [DecisionLink(third, LinkType.DEPENDS_ON, second)]
    assert shelf.store.touching_links(["dec-none"], 10) == []


@pytest.mark.contract("SqlDecisionStore.find_summaries")
def test_summaries_of_an_agent_are_found_by_what_they_cite(shelf: Shelf, writer: GroupCommitWriter) -> None:
    summary, other, foreign, cited = entry(), entry(), entry("bob"), entry()
    shelf.add(summary, other, foreign, cited)
    a, b, c, d = (item.decision.id for item in (summary, other, foreign, cited))
    shelf.declare(DeclaredLinks(a, Links(summarizes=(d, "dec-missing"))), DeclaredLinks(b, Links(relates_to=(d,))))
    shelf.declare(DeclaredLinks(c, Links(summarizes=(d,))))
    assert shelf.store.get_declared_links([a])[a].links == Links(summarizes=(d, "dec-missing"))
    for ids, agent, expected in (
        ([d], "alice", [a]),
        (["dec-missing"], "alice", [a]),
        ([d], "bob", [c]),
        ([a], "alice", []),
    ):
        assert writer.run(partial(shelf.store.find_summaries, agent=agent, ids=ids)) == expected
