"""Links between decisions, and the graph that an agent may read of them, on each kind of database."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.enums import DecisionStatus, Visibility
from cstp_grpc.contract.errors import InvalidArgument, NotFound, PermissionDenied
from cstp_grpc.core.decisions.model import DecisionContent, DecisionGraph, DecisionLink, Links, LinkType
from tests.core.decisions.journals import JournalKit
from tests.example_counts import examples

pytestmark = pytest.mark.above_stores


def record(kit: JournalKit, caller: str = "alice", links: Links | None = None, *, shared: bool = False) -> str:
    visibility = Visibility.SHARED if shared else Visibility.PRIVATE
    content = DecisionContent("use a queue", visibility=visibility)
    return kit.journal.record(content, links or Links(), caller, "request-1").id


def link(kit: JournalKit, key: str, added: Links | None = None, removed: Links | None = None) -> Links:
    return kit.journal.link(key, added or Links(), removed or Links(), "alice", "request-2").links


def test_links_are_added_and_removed(kit: JournalKit) -> None:
    old, new, other = record(kit), record(kit), record(kit, "bob", shared=True)
    assert link(kit, new, Links((old,), (other,), (other,))) == Links((old,), (other,), (other,))
    assert kit.journal.get(old, "alice").status is DecisionStatus.SUPERSEDED
    assert kit.journal.get(other, "bob").status is DecisionStatus.DECIDED
    assert link(kit, new, removed=Links((old,), (), (other,))) == Links(depends_on=(other,))
    assert kit.journal.get(old, "alice").status is DecisionStatus.DECIDED
    assert kit.heard.rows[old].status is DecisionStatus.DECIDED
    assert [entry.event for entry in kit.trail.entries[-2:]] == ["decision_linked"] * 2


def test_linking_again_changes_nothing(kit: JournalKit) -> None:
    old, new = record(kit), record(kit)
    link(kit, new, Links(depends_on=(old,)))
    count, newest = len(kit.trail.entries), kit.store.newest_revision()
    assert link(kit, new, Links(depends_on=(old,)), Links(depends_on=(old,), relates_to=(old,))) == Links((), (old,))
    assert (len(kit.trail.entries), kit.store.newest_revision()) == (count, newest)


def test_a_link_that_another_decision_of_the_agent_declares_can_be_removed(kit: JournalKit) -> None:
    mine, theirs = record(kit, shared=True), record(kit, "bob", shared=True)
    assert link(kit, mine, Links(relates_to=(theirs,))) == Links(relates_to=(theirs,))
    with pytest.raises(PermissionDenied):
        kit.journal.link(mine, Links(), Links(relates_to=(theirs,)), "bob", "request-3")
    assert link(kit, mine, removed=Links(relates_to=(theirs,))) == Links()


def test_what_may_not_be_read_or_is_too_much_is_refused(kit: JournalKit) -> None:
    own, hidden = record(kit), record(kit, "bob")
    for target in (hidden, "dec-none"):
        with pytest.raises(NotFound, match=target):
            link(kit, own, Links(relates_to=(target,)))
    with pytest.raises(InvalidArgument):
        link(kit, own, Links(depends_on=(own,)))
    full = record(kit, links=Links(relates_to=tuple(f"dec-{number}" for number in range(100))))
    with pytest.raises(InvalidArgument):
        link(kit, full, Links(relates_to=(own,)))
    assert link(kit, full, Links(depends_on=(own,))).depends_on == (own,)


def expected_graph(
    root: str, readable: Sequence[str], links: Sequence[DecisionLink], newest: int, most: int
) -> tuple[dict[str, int], bool]:
    """The distances of what is found, and whether anything is left out, by looking at all links again and again."""
    distances = {root: 0}
    for distance in range(1, newest + 2):
        near = {key for key, found in distances.items() if found == distance - 1}
        ends = {one for link in links for one in (link.from_id, link.to_id) if {link.from_id, link.to_id} & near}
        new = [key for key in readable if key in ends and key not in distances]
        if distance > newest:
            return distances, bool(new)
        if len(distances) + len(new) > most:
            return {**distances, **dict.fromkeys(new, distance)}, True
        distances.update(dict.fromkeys(new, distance))
    raise AssertionError


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_graph_is_what_a_look_at_all_links_finds(kit: JournalKit, data: st.DataObject) -> None:
    alice, bob = f"alice-{uuid.uuid4().hex}", f"bob-{uuid.uuid4().hex}"
    owners = data.draw(st.lists(st.tuples(st.sampled_from([alice, bob]), st.booleans()), min_size=1, max_size=7))
    keys = [record(kit, owner, shared=shared) for owner, shared in owners]
    numbers = st.integers(0, len(keys) - 1)
    drawn = data.draw(st.sets(st.tuples(numbers, st.sampled_from(LinkType), numbers), max_size=14))
    links = []
    for start, kind, end in sorted(drawn):
        owner = owners[start][0]
        # A later one replaces an earlier one: circles of successors are refused.
        if kind is LinkType.SUPERSEDES and start < end:
            continue
        if start != end and (owners[end][0] == owner or owners[end][1]):
            kit.journal.link(keys[start], Links(**{kind.value: (keys[end],)}), Links(), owner, "request-2")
            links.append(DecisionLink(keys[start], kind, keys[end]))
    readable = [key for key, (owner, shared) in zip(keys, owners, strict=True) if owner == alice or shared]
    newest, most = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 8))
    if keys[0] not in readable:
        with pytest.raises(NotFound):
            kit.journal.read_graph(keys[0], alice, newest, most)
        return
    graph = kit.journal.read_graph(keys[0], alice, newest, most)
    reached = [link for link in links if link.from_id in readable and link.to_id in readable]
    distances, truncated = expected_graph(keys[0], readable, reached, newest, most)
    assert graph.truncated == truncated
    check_nodes(graph, distances, most)
    found = {item.id for item, _ in graph.nodes}
    assert sorted(graph.links) == sorted(link for link in links if {link.from_id, link.to_id} <= found)


def check_nodes(graph: DecisionGraph, distances: dict[str, int], most: int) -> None:
    """Compare the decisions of a graph with the distances of those that there are."""
    found = {item.id: distance for item, distance in graph.nodes}
    assert found.items() <= distances.items()
    assert len(found) == min(len(distances), most)
    assert [distance for _, distance in graph.nodes] == sorted(found.values())
