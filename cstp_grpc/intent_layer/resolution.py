"""What governs a path: the nodes from the root down to it, merged, and cut to a budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cstp_grpc.intent_layer.markdown import INTRODUCTION, section_key
from cstp_grpc.intent_layer.model import (
    ContextRequest,
    LeftOut,
    MergedSection,
    Node,
    NodeFile,
    PendingReports,
    Resolution,
    Section,
    SectionPart,
)
from cstp_grpc.intent_layer.rendering import PENDING, Page, render
from cstp_grpc.intent_layer.tokens import count_tokens
from cstp_grpc.intent_layer.tree import Tree

REQUIRED_SECTIONS = ("Purpose", "Entry Points", "Contracts")
"""What every node has."""
PROTOCOL_SECTIONS = (
    *REQUIRED_SECTIONS,
    "Pitfalls",
    "Checks",
    "Patterns",
    "Boundaries",
    "Design Rationale",
    "Code Map",
    "Public API",
    "Downlinks",
    "Context",
)
"""The order in which sections are merged, after the introduction; others come after them."""

ORDER = {section_key(name): number for number, name in enumerate((INTRODUCTION, *PROTOCOL_SECTIONS))}
BINDING = frozenset({"contracts", "pitfalls", "checks"})
LIMITING = frozenset({"boundaries", section_key(INTRODUCTION)})
"""What may forbid something: boundaries, and an introduction such as "Never edit by hand."."""
RANKS = {"purpose": 4, "entry points": 3} | {
    section_key(name): 2 for name in ("Patterns", "Design Rationale", "Code Map", "Public API", "Downlinks", "Context")
}
"""How much a section is worth; one that the protocol does not know is worth 1, what is pending 0."""
UNREADABLE = -1
ANCESTORS_LIMITING = 5
HIERARCHY = 6
ANCESTORS_BINDING = 7
OWN_LIMITING = 8
OWN_BINDING = 9
TITLE = 10
NOTHING_PENDING = PendingReports()


def resolve(tree: Tree, request: ContextRequest, pending: PendingReports = NOTHING_PENDING) -> Resolution:
    """Return what governs a path.

    The pending reports are those that bear on it; they are taken in where the request asks for them. Within a budget,
    whole parts are left out, those worth least first, until the Markdown fits. Raises as `Tree.locate` and `Tree.chain`
    do.
    """
    path = tree.locate(request.path)
    nodes = tree.chain(path)
    reports = pending if request.with_pending else NOTHING_PENDING
    if not nodes:
        return Resolution(path, (), (), "", 0, pending=reports.learnings, unreadable=reports.unreadable)
    files = tuple(file.path for _, file in delivered_files(nodes))
    whole = Page(
        title=None if request.compact else path,
        hierarchy=() if request.compact else files,
        sections=merge(nodes, request.sections, subsections=True),
        pending=reports.learnings,
        origins=not request.compact,
        unreadable=reports.unreadable,
    )
    page, markdown = _fitted(whole, nodes, request.max_tokens)
    return Resolution(
        path=path,
        nodes=nodes,
        sections=page.sections,
        markdown=markdown,
        tokens=count_tokens(markdown),
        left_out=page.left_out,
        pending=page.pending,
        unreadable=reports.unreadable,
    )


def merge(nodes: Iterable[Node], only: Iterable[str] = (), *, subsections: bool = False) -> tuple[MergedSection, ...]:
    """Return the sections of nodes that come root-first: those named in `only`, in its order, or all.

    Each file has one part in a section, where it says anything there: sections that it has twice are put together.
    With `subsections`, headings of level 3 of these names count too, if the section around them is not wanted itself.
    """
    wanted = {key: number for number, key in enumerate(dict.fromkeys(section_key(name) for name in only))}
    merged: dict[str, MergedSection] = {}
    for _, file in delivered_files(nodes):
        for key, name, part in _parts(_chosen(file, wanted, subsections=subsections)):
            known = merged.get(key, MergedSection(name, ()))
            merged[key] = MergedSection(known.name, (*known.parts, part))
    order = wanted or ORDER
    return tuple(merged[key] for key in sorted(merged, key=lambda key: order.get(key, len(order))))


def delivered_files(nodes: Iterable[Node]) -> Iterator[tuple[Node, NodeFile]]:
    """Yield the files of nodes and those that they import, each once, with the node that it comes with.

    A node's own file comes with that node, whoever imports it.
    """
    nodes = tuple(nodes)
    own = {file.path for node in nodes for file in node.files}
    seen: set[str] = set()
    for node in nodes:
        yield from ((node, file) for file in node.files)
        for file in node.imported:
            if file.path not in own and file.path not in seen:
                seen.add(file.path)
                yield node, file


def _chosen(file: NodeFile, wanted: Mapping[str, int], *, subsections: bool) -> Iterator[Section]:
    for section in file.sections:
        if not wanted or section_key(section.name) in wanted:
            yield section
        elif subsections:
            yield from (below for below in section.subsections if section_key(below.name) in wanted)


def _parts(sections: Iterable[Section]) -> list[tuple[str, str, SectionPart]]:
    """Return the key, the name and the text of each section of a file, but for empty ones of the protocol.

    An empty section that the protocol does not know has something to say in its heading.
    """
    found: dict[str, tuple[str, SectionPart]] = {}
    for section in sections:
        key = section_key(section.name)
        if key in found:
            name, part = found[key]
            text = "\n\n".join(text for text in (part.text, section.text) if text)
            found[key] = name, replace(part, text=text)
        else:
            found[key] = section.name, SectionPart(section.file, section.text, section.line)
    return [(key, name, part) for key, (name, part) in found.items() if part.text or key not in ORDER]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Something that a budget can leave out: the hierarchy, the title, a part of a section or a learning."""

    worth: tuple[int, int, int]
    left_out: LeftOut | None = None


def _fitted(page: Page, nodes: Sequence[Node], max_tokens: int | None) -> tuple[Page, str]:
    """Return as much of a page as fits, and its Markdown."""
    markdown = render(page)
    if max_tokens is None or count_tokens(markdown) <= max_tokens:
        return page, markdown
    pieces = sorted(_pieces(page, nodes), key=lambda piece: piece.worth)
    # Leaving out more never makes the Markdown longer, so that the fewest to leave out are found by halving.
    low, high = 1, len(pieces)
    while low < high:
        middle = (low + high) // 2
        if count_tokens(render(_without(page, pieces[:middle]))) <= max_tokens:
            high = middle
        else:
            low = middle + 1
    kept = _without(page, pieces[:low])
    named = replace(kept, left_out=tuple(piece.left_out for piece in pieces[:low] if piece.left_out))
    markdown = render(named)
    return named, markdown if count_tokens(markdown) <= max_tokens else render(kept)


def _pieces(page: Page, nodes: Sequence[Node]) -> Iterator[_Piece]:
    numbers = {node.folder: depth for depth, node in enumerate(nodes)}
    depths = {file.path: numbers[node.folder] for node, file in delivered_files(nodes)}
    yield _Piece((UNREADABLE, 0, 0))
    yield _Piece((TITLE, 0, 0))
    yield _Piece((HIERARCHY, 0, 0))
    for number, section in enumerate(page.sections):
        for part in section.parts:
            depth = depths[part.file]
            rank = _rank(section_key(section.name), own=depth == len(nodes) - 1)
            yield _Piece((rank, depth, -number), LeftOut(part.file, section.name, count_tokens(part.text)))
    for number, learning in enumerate(page.pending):
        yield _Piece((0, 0, -number), LeftOut(learning.file, PENDING, count_tokens(learning.detail)))


def _rank(key: str, *, own: bool) -> int:
    if key in BINDING:
        return OWN_BINDING if own else ANCESTORS_BINDING
    if key in LIMITING:
        return OWN_LIMITING if own else ANCESTORS_LIMITING
    return RANKS.get(key, 1)


def _without(page: Page, pieces: Iterable[_Piece]) -> Page:
    ranks = set()
    dropped = set()
    for piece in pieces:
        ranks.add(piece.worth[0])
        if piece.left_out:
            dropped.add((piece.left_out.file, piece.left_out.section))
    sections = (
        MergedSection(section.name, tuple(part for part in section.parts if (part.file, section.name) not in dropped))
        for section in page.sections
    )
    return replace(
        page,
        title=None if TITLE in ranks else page.title,
        hierarchy=() if HIERARCHY in ranks else page.hierarchy,
        unreadable=() if UNREADABLE in ranks else page.unreadable,
        sections=tuple(section for section in sections if section.parts),
        pending=tuple(learning for learning in page.pending if (learning.file, PENDING) not in dropped),
    )
