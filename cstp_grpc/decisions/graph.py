"""The graph of linked decisions, as far as an agent may read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cstp_grpc.decisions.model import Decision, DecisionFilter, DecisionGraph, DecisionLink, LinkType
from cstp_grpc.decisions.store import DecisionStore

MAX_LINKS = 5000
"""Links read for each step away from the first decision. Chosen: ten for each of as many nodes as may be asked for."""


def read_graph(store: DecisionStore, root: Decision, caller: str, depth: int, max_nodes: int) -> DecisionGraph:
    """Return the decisions that links of either direction connect to a readable one, at most `depth` links away.

    Decisions that the caller may not read are left out, and links through them are not followed. Raises QueryFailed.
    """
    nodes: dict[str, tuple[Decision, int]] = {root.id: (root, 0)}
    links: set[DecisionLink] = set()
    frontier: Sequence[str] = [root.id]
    truncated = False
    # One step more than the depth: it adds no decisions, and tells whether there are any.
    for distance in range(1, depth + 2):
        found = store.touching_links(frontier, MAX_LINKS)
        truncated |= len(found) == MAX_LINKS
        links.update(found)
        ends = {key for link in found for key in (link.from_id, link.to_id)} - nodes.keys()
        readable = sorted(store.get_readable(sorted(ends), caller, DecisionFilter()).values(), key=graph_order)
        room = max_nodes - len(nodes) if distance <= depth else 0
        truncated |= len(readable) > room
        added = readable[:room]
        nodes.update((item.id, (item, distance)) for item in added)
        frontier = [item.id for item in added]
        if not frontier:
            break
    return DecisionGraph(tuple(nodes.values()), links_between(nodes.keys(), links), truncated)


def links_between(ids: Iterable[str], links: Iterable[DecisionLink]) -> tuple[DecisionLink, ...]:
    """Return the links whose ends are both among `ids`, in the order of these."""
    place = {key: position for position, key in enumerate(ids)}
    kinds = list(LinkType)
    inside = [link for link in links if link.from_id in place and link.to_id in place]
    return tuple(sorted(inside, key=lambda link: (place[link.from_id], kinds.index(link.type), place[link.to_id])))


def graph_order(decision: Decision) -> tuple[float, str]:
    """Return the key by which decisions at the same distance are ordered: the latest first, then by id."""
    return -decision.date.timestamp(), decision.id
