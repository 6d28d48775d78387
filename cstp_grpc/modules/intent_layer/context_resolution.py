"""The context of a path: the nodes from the root down merged into sections, cut to a token budget, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.token_estimate import count_tokens
from cstp_grpc.common.unicode_text import replace_invisible, to_printable_line
from cstp_grpc.modules.intent_layer import model
from cstp_grpc.modules.intent_layer.node_document import INTRODUCTION, section_key
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree

PENDING_SECTION = "Pending Learnings"
"""The heading of the learnings that were not reviewed yet."""
SHOWN_CHARACTERS = 200
SHOWN_UNREADABLE = 20
"""Unreadable reports that are listed; of further ones only the number is given."""


@dataclass(frozen=True, slots=True)
class ContextPage:
    """The content to render; with `origins` each part names its file."""

    title: str | None
    hierarchy: tuple[str, ...]
    sections: tuple[model.MergedSection, ...]
    pending: tuple[model.Learning, ...]
    origins: bool
    left_out: tuple[model.OmittedSection, ...] = ()
    unreadable: tuple[model.UnreadableReportFile, ...] = ()


def render_page(page: ContextPage) -> str:
    """Render a page as Markdown that ends with a line feed; empty if the page is empty.

    The title comes first, then the files from the root down, the omissions, the sections, and the pending learnings.
    Those are quoted, so that unreviewed text cannot pass for a section.
    """
    text = replace_invisible("\n\n".join(_iter_blocks(page)))
    return f"{text}\n" if text else ""


def _iter_blocks(page: ContextPage) -> Iterator[str]:
    if page.title is not None:
        yield f"# Context for {to_printable_line(page.title)}"
    if page.hierarchy:
        yield "\n".join(f"- `{to_printable_line(file)}`" for file in page.hierarchy)
    # Near the top, so that a reader of a shortened page knows at once that it is one.
    if page.left_out:
        yield _to_html_comment("left out: " + ", ".join(f"{left.section} ({left.file})" for left in page.left_out))
    for section in page.sections:
        yield f"## {section.name}"
        for part in section.parts:
            yield from _render_part(page, part.file, part.text)
    if page.pending or page.unreadable:
        yield f"## {PENDING_SECTION}"
    for learning in page.pending:
        yield f"### {learning.type.upper()}: {' '.join(learning.title.split())}"
        yield from _render_part(page, learning.file, _to_quotation(learning.detail))
        if learning.unplaced_paths:
            yield f"Reported for {_to_inline_code(', '.join(learning.unplaced_paths))}, which is not in this project."
    if page.unreadable:
        yield "Reports that cannot be read:"
        yield "\n".join(_unreadable_lines(page.unreadable))


def _unreadable_lines(reports: Sequence[model.UnreadableReportFile]) -> Iterator[str]:
    for report in reports[:SHOWN_UNREADABLE]:
        yield f"- {_to_inline_code(report.file)}: {to_printable_line(report.reason)}"
    if len(reports) > SHOWN_UNREADABLE:
        yield f"- {len(reports) - SHOWN_UNREADABLE} more"


def _to_inline_code(text: str) -> str:
    shown = to_printable_line(text).replace("`", "'")
    return f"`{shown if len(shown) <= SHOWN_CHARACTERS else f'{shown[:SHOWN_CHARACTERS]}…'}`"


def _render_part(page: ContextPage, file: str, text: str) -> Iterator[str]:
    lines = [_to_html_comment(f"from {file}")] if page.origins else []
    if text:
        lines.append(text)
    if lines:
        yield "\n".join(lines)


def _to_html_comment(text: str) -> str:
    """Return an HTML comment that its text cannot end early."""
    # Without `>` there can be no `-->` in it.
    return f"<!-- {to_printable_line(text).replace('>', '&gt;')} -->"


def _to_quotation(text: str) -> str:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n").split("\n")
    return "\n".join(f"> {line}".rstrip() for line in lines)


REQUIRED_SECTIONS = ("Purpose", "Entry Points", "Contracts")
"""The sections that every node must have."""
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

SECTION_ORDER = {section_key(name): number for number, name in enumerate((INTRODUCTION, *PROTOCOL_SECTIONS))}
BINDING_SECTIONS = frozenset({"contracts", "pitfalls", "checks"})
LIMITING_SECTIONS = frozenset({"boundaries", section_key(INTRODUCTION)})
"""Sections that may forbid something: boundaries, and an introduction such as "Never edit by hand."."""
SECTION_RANKS = {"purpose": 3, "entry points": 2} | {
    section_key(name): 1 for name in ("Patterns", "Design Rationale", "Code Map", "Public API", "Downlinks", "Context")
}
"""The ranks by which parts are dropped to fit a token budget, the lowest first; a pending learning has rank 0. Chosen:
prohibitions and obligations go last, and of these the nearest to the path.
"""
UNKNOWN_RANK = 4
"""The rank of a section unknown to the protocol. Chosen: it may bind, as Invariants do."""
UNREADABLE_RANK = -1
ANCESTORS_LIMITING_RANK = 5
HIERARCHY_RANK = 6
ANCESTORS_BINDING_RANK = 7
OWN_LIMITING_RANK = 8
OWN_BINDING_RANK = 9
TITLE_RANK = 10
NOTHING_PENDING = model.PendingReports()


def resolve_context(
    tree: ProjectTree, request: model.ContextRequest, pending: model.PendingReports = NOTHING_PENDING
) -> model.ResolvedContext:
    """Return the context of a path.

    The pending reports are those that apply to it; they are included if the request asks for them. Within a token
    budget, whole parts are left out, lowest rank first, until the Markdown fits. Raises as `ProjectTree.locate` and
    `ProjectTree.nodes_to_path` do.
    """
    path = tree.locate(request.path)
    nodes = tree.nodes_to_path(path)
    reports = pending if request.with_pending else NOTHING_PENDING
    if not nodes:
        return model.ResolvedContext(path, (), (), "", 0, pending=reports.learnings, unreadable=reports.unreadable)
    files = tuple(file.path for _, file in iter_delivered_files(nodes))
    whole = ContextPage(
        title=None if request.compact else path,
        hierarchy=() if request.compact else files,
        sections=merge_sections(nodes, request.sections, subsections=True),
        pending=reports.learnings,
        origins=not request.compact,
        unreadable=reports.unreadable,
    )
    page, markdown = _fit_to_budget(whole, nodes, request.max_tokens)
    return model.ResolvedContext(
        path=path,
        nodes=nodes,
        sections=page.sections,
        markdown=markdown,
        tokens=count_tokens(markdown),
        left_out=page.left_out,
        pending=page.pending,
        unreadable=reports.unreadable,
    )


def merge_sections(
    nodes: Iterable[model.Node], only: Iterable[str] = (), *, subsections: bool = False
) -> tuple[model.MergedSection, ...]:
    """Return the merged sections of nodes given root-first: those in `only`, in its order, or all.

    Each file has at most one part in a section: repeated sections are joined. With `subsections`, headings of level 3
    of these names match too, unless the section around them matches itself.
    """
    requested = {key: number for number, key in enumerate(dict.fromkeys(section_key(name) for name in only))}
    merged: dict[str, model.MergedSection] = {}
    for _, file in iter_delivered_files(nodes):
        for key, name, part in _merge_parts(_select_sections(file, requested, subsections=subsections)):
            known = merged.get(key, model.MergedSection(name, ()))
            merged[key] = model.MergedSection(known.name, (*known.parts, part))
    order = requested or SECTION_ORDER
    return tuple(merged[key] for key in sorted(merged, key=lambda key: order.get(key, len(order))))


def iter_delivered_files(nodes: Iterable[model.Node]) -> Iterator[tuple[model.Node, model.NodeFile]]:
    """Yield the files of nodes and their imports, each once, with the node it belongs to.

    A node's own file belongs to that node, whichever node imports it.
    """
    nodes = tuple(nodes)
    # Known before the first node is walked: a parent may import the file of a node below it.
    own = {file.path for node in nodes for file in node.files}
    seen: set[str] = set()
    for node in nodes:
        yield from ((node, file) for file in node.files)
        for file in node.imported:
            if file.path not in own and file.path not in seen:
                seen.add(file.path)
                yield node, file


def _select_sections(
    file: model.NodeFile, requested: Mapping[str, int], *, subsections: bool
) -> Iterator[model.NodeSection]:
    for section in file.sections:
        if not requested or section_key(section.name) in requested:
            yield section
        elif subsections:
            yield from (below for below in section.subsections if section_key(below.name) in requested)


def _merge_parts(sections: Iterable[model.NodeSection]) -> list[tuple[str, str, model.SectionPart]]:
    """Return the key, name and text of each section of a file, without empty sections of the protocol.

    An empty section unknown to the protocol is kept for its heading.
    """
    merged: dict[str, tuple[str, model.SectionPart]] = {}
    for section in sections:
        key = section_key(section.name)
        if key in merged:
            name, part = merged[key]
            text = "\n\n".join(text for text in (part.text, section.text) if text)
            merged[key] = name, replace(part, text=text)
        else:
            merged[key] = section.name, model.SectionPart(section.file, section.text, section.line)
    return [(key, name, part) for key, (name, part) in merged.items() if part.text or key not in SECTION_ORDER]


@dataclass(frozen=True, slots=True)
class _DroppablePiece:
    """A part that the budget can drop: hierarchy, title, a part of a section, or a learning."""

    worth: tuple[int, int, int]
    left_out: model.OmittedSection | None = None


def _fit_to_budget(page: ContextPage, nodes: Sequence[model.Node], max_tokens: int | None) -> tuple[ContextPage, str]:
    """Return the part of a page that fits the budget, and its Markdown."""
    markdown = render_page(page)
    if max_tokens is None or count_tokens(markdown) <= max_tokens:
        return page, markdown
    pieces = sorted(_droppable_pieces(page, nodes), key=lambda piece: piece.worth)
    # Dropping more pieces never makes the Markdown longer, so that a binary search finds the fewest.
    low, high = 1, len(pieces)
    while low < high:
        middle = (low + high) // 2
        if count_tokens(render_page(_drop_pieces(page, pieces[:middle]))) <= max_tokens:
            high = middle
        else:
            low = middle + 1
    kept = _drop_pieces(page, pieces[:low])
    named = replace(kept, left_out=tuple(piece.left_out for piece in pieces[:low] if piece.left_out))
    markdown = render_page(named)
    # The comment that lists the omissions may itself exceed the budget; then it is left out of the Markdown.
    return named, markdown if count_tokens(markdown) <= max_tokens else render_page(kept)


def _droppable_pieces(page: ContextPage, nodes: Sequence[model.Node]) -> Iterator[_DroppablePiece]:
    numbers = {node.folder: depth for depth, node in enumerate(nodes)}
    depths = {file.path: numbers[node.folder] for node, file in iter_delivered_files(nodes)}
    yield _DroppablePiece((UNREADABLE_RANK, 0, 0))
    yield _DroppablePiece((TITLE_RANK, 0, 0))
    yield _DroppablePiece((HIERARCHY_RANK, 0, 0))
    for number, section in enumerate(page.sections):
        for part in section.parts:
            depth = depths[part.file]
            rank = _section_rank(section_key(section.name), own=depth == len(nodes) - 1)
            yield _DroppablePiece(
                # Of one rank the shallowest goes first, as it is the farthest from the path; then the last section, as
                # the protocol has the most important ones first.
                (rank, depth, -number),
                model.OmittedSection(part.file, section.name, count_tokens(part.text)),
            )
    for number, learning in enumerate(page.pending):
        yield _DroppablePiece(
            (0, 0, -number), model.OmittedSection(learning.file, PENDING_SECTION, count_tokens(learning.detail))
        )


def _section_rank(key: str, *, own: bool) -> int:
    if key in BINDING_SECTIONS:
        return OWN_BINDING_RANK if own else ANCESTORS_BINDING_RANK
    if key in LIMITING_SECTIONS:
        return OWN_LIMITING_RANK if own else ANCESTORS_LIMITING_RANK
    return SECTION_RANKS.get(key, UNKNOWN_RANK)


def _drop_pieces(page: ContextPage, pieces: Iterable[_DroppablePiece]) -> ContextPage:
    ranks = set()
    dropped = set()
    for piece in pieces:
        ranks.add(piece.worth[0])
        if piece.left_out:
            dropped.add((piece.left_out.file, piece.left_out.section))
    sections = (
        model.MergedSection(
            section.name, tuple(part for part in section.parts if (part.file, section.name) not in dropped)
        )
        for section in page.sections
    )
    return replace(
        page,
        title=None if TITLE_RANK in ranks else page.title,
        hierarchy=() if HIERARCHY_RANK in ranks else page.hierarchy,
        unreadable=() if UNREADABLE_RANK in ranks else page.unreadable,
        sections=tuple(section for section in sections if section.parts),
        pending=tuple(learning for learning in page.pending if (learning.file, PENDING_SECTION) not in dropped),
    )
