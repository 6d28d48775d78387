"""The graph of linked decisions as a tree of text, as Mermaid and as SVG."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final
from xml.etree import ElementTree

from cstp_grpc.cli.answer_fields import enum_word, format_date
from cstp_grpc.cli.output import to_printable
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.gen.cstp.v1 import journal_pb2, types_pb2

Graph = journal_pb2.GetDecisionGraphResponse

PHRASES: Final[Mapping[int, tuple[str, str]]] = {
    journal_pb2.LINK_TYPE_SUPERSEDES: ("supersedes", "superseded by"),
    journal_pb2.LINK_TYPE_DEPENDS_ON: ("depends on", "needed by"),
    journal_pb2.LINK_TYPE_RELATES_TO: ("relates to", "related to by"),
    journal_pb2.LINK_TYPE_SUMMARIZES: ("summarizes", "summarized by"),
}
"""How a link reads from its beginning, and from its end."""

TRUNCATED: Final = "More decisions are linked; --depth and --max-nodes show more."


def graph_text(graph: Graph) -> str:
    """Return the graph as a tree that begins with the first decision.

    Each decision stands below one that is a link nearer to the first; its other links name what stands above.
    """
    nodes = {node.id: node for node in graph.nodes}
    neighbours = neighbours_of(graph)
    shown: set[str] = set()

    def subtree(key: str, parent: str | None, indent: str) -> Iterator[str]:
        shown.add(key)
        # A link to a decision that is not shown yet, and not one step farther away, is shown from its other end.
        links = [
            (phrase, other)
            for phrase, other in neighbours[key]
            if other != parent and (other in shown or nodes[other].distance > nodes[key].distance)
        ]
        for position, (phrase, other) in enumerate(links):
            last = position == len(links) - 1
            above = " (see above)" if other in shown else ""
            yield f"{indent}{'└─' if last else '├─'} {phrase} {node_label(nodes[other])}{above}"
            if not above:
                yield from subtree(other, key, indent + ("   " if last else "│  "))

    root = graph.nodes[0]
    lines = [node_label(root), *subtree(root.id, None, "")]
    return "\n".join([*lines, *([TRUNCATED] if graph.truncated else [])])


def neighbours_of(graph: Graph) -> Mapping[str, Sequence[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for link in graph.links:
        forward, backward = PHRASES[link.type]
        found[link.from_id].append((forward, link.to_id))
        found[link.to_id].append((backward, link.from_id))
    return found


def node_label(node: journal_pb2.GraphNode) -> str:
    return to_printable(f"{node.title} ({', '.join([node.id, *node_details(node)])})")


def node_details(node: journal_pb2.GraphNode) -> list[str]:
    state = enum_word(types_pb2.Outcome, node.outcome) or enum_word(types_pb2.DecisionStatus, node.status)
    if node.outcome and node.status == types_pb2.DECISION_STATUS_SUPERSEDED:
        state += ", superseded"
    thoughts = [count_noun(node.thought_count, "thought")] if node.thought_count else []
    return [state, format_date(node.date), *thoughts]


MERMAID_ARROWS: Final[Mapping[int, str]] = {
    journal_pb2.LINK_TYPE_SUPERSEDES: "==>",
    journal_pb2.LINK_TYPE_DEPENDS_ON: "-->",
    journal_pb2.LINK_TYPE_RELATES_TO: "-.->",
    journal_pb2.LINK_TYPE_SUMMARIZES: "--o",
}
OUTCOME_COLOURS: Final[Mapping[int, str]] = {
    types_pb2.OUTCOME_SUCCESS: "#2e7d32",
    types_pb2.OUTCOME_FAILURE: "#c62828",
    types_pb2.OUTCOME_PARTIAL: "#b26a00",
    types_pb2.OUTCOME_ABANDONED: "#757575",
}
PLAIN_COLOUR: Final = "#455a64"


def graph_mermaid(graph: Graph) -> str:
    names = {node.id: f"d{position}" for position, node in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    for node in graph.nodes:
        title = mermaid_text(f"{node.title} ({', '.join(node_details(node))})")
        lines.append(f'    {names[node.id]}["{title}"]')
    for link in graph.links:
        phrase = PHRASES[link.type][0]
        lines.append(f"    {names[link.from_id]} {MERMAID_ARROWS[link.type]}|{phrase}| {names[link.to_id]}")
    colours = (OUTCOME_COLOURS.get(node.outcome, PLAIN_COLOUR) for node in graph.nodes)
    styles = [f"    style {name} stroke:{colour}" for name, colour in zip(names.values(), colours, strict=True)]
    return "\n".join([*lines, *styles])


def mermaid_text(text: str) -> str:
    """Return a text that Mermaid shows as it is: everything but letters, digits and spaces as character codes."""
    return "".join(mark if mark.isalnum() or mark == " " else f"#{ord(mark)};" for mark in to_printable(text))


BOX_WIDTH: Final = 240
BOX_HEIGHT: Final = 58
COLUMN_GAP: Final = 110
ROW_GAP: Final = 22
MARGIN: Final = 20
TITLE_CHARACTERS: Final = 34
"""Characters of a title on one of its two lines; more do not fit into a box."""
TITLE_LINES: Final = 2

LINK_STYLES: Final[Mapping[int, Mapping[str, str]]] = {
    journal_pb2.LINK_TYPE_SUPERSEDES: {"stroke": "#6a1b9a", "stroke-width": "2"},
    journal_pb2.LINK_TYPE_DEPENDS_ON: {"stroke": "#1565c0"},
    journal_pb2.LINK_TYPE_RELATES_TO: {"stroke": "#757575", "stroke-dasharray": "5 4"},
    journal_pb2.LINK_TYPE_SUMMARIZES: {"stroke": "#00838f", "stroke-dasharray": "1 3"},
}

OUTCOME_WORDS: Final[Mapping[int, str]] = {
    **{
        number: name.removeprefix("OUTCOME_").lower()
        for name, number in types_pb2.Outcome.items()
        if number in OUTCOME_COLOURS
    },
    types_pb2.OUTCOME_UNSPECIFIED: "no outcome yet",
}
LEGEND_ROW: Final = 20
LEGEND_OUTCOMES: Final = MARGIN + 140
"""Where the outcomes begin, to the right of the kinds of links; both fit below one box."""


def graph_svg(graph: Graph) -> str:
    """Return the graph as an SVG document: a column of boxes for each distance from the first decision."""
    columns: dict[int, list[journal_pb2.GraphNode]] = defaultdict(list)
    for node in graph.nodes:
        columns[node.distance].append(node)
    places = {
        node.id: (MARGIN + distance * (BOX_WIDTH + COLUMN_GAP), MARGIN + row * (BOX_HEIGHT + ROW_GAP))
        for distance, column in columns.items()
        for row, node in enumerate(column)
    }
    width = 2 * MARGIN + (max(columns) + 1) * (BOX_WIDTH + COLUMN_GAP) - COLUMN_GAP
    bottom = 2 * MARGIN + max(map(len, columns.values())) * (BOX_HEIGHT + ROW_GAP) - ROW_GAP
    kinds = [kind for kind in LINK_STYLES if any(link.type == kind for link in graph.links)]
    outcomes = [outcome for outcome in OUTCOME_WORDS if any(node.outcome == outcome for node in graph.nodes)]
    height = bottom + LEGEND_ROW * max(len(kinds), len(outcomes)) + MARGIN
    size = {"viewBox": f"0 0 {width} {height}", "width": str(width), "height": str(height)}
    font = {"font-family": "sans-serif", "font-size": "12"}
    svg = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, **font})
    add_shape(svg, "title", to_printable(f"Decisions linked with {graph.nodes[0].title}"))
    add_shape(svg, "rect", width="100%", height="100%", fill="#ffffff")
    add_arrow_heads(svg)
    for link in graph.links:
        add_link(svg, link, places[link.from_id], places[link.to_id])
    for node in graph.nodes:
        add_box(svg, node, *places[node.id])
    add_legend(svg, bottom, kinds, outcomes)
    return ElementTree.tostring(svg, encoding="unicode")


def add_shape(
    parent: ElementTree.Element, kind: str, text: str | None = None, **attributes: object
) -> ElementTree.Element:
    """Add an element; an underscore in the name of an attribute stands for a hyphen."""
    named = {name.replace("_", "-"): str(value) for name, value in attributes.items()}
    made = ElementTree.SubElement(parent, kind, named)
    made.text = text
    return made


def add_legend(svg: ElementTree.Element, top: int, kinds: Sequence[int], outcomes: Sequence[int]) -> None:
    for row, kind in enumerate(kinds):
        y = top + LEGEND_ROW * row
        line = f"M {MARGIN} {y} L {MARGIN + 36} {y}"
        add_shape(svg, "path", d=line, fill="none", marker_end=f"url(#head{kind})", **LINK_STYLES[kind])
        add_shape(svg, "text", PHRASES[kind][0], x=MARGIN + 44, y=y + 4, fill="#212121")
    for row, outcome in enumerate(outcomes):
        y = top + LEGEND_ROW * row
        style = {"fill": "#fafafa", "stroke": OUTCOME_COLOURS.get(outcome, PLAIN_COLOUR), "stroke-width": "2"}
        add_shape(svg, "rect", x=LEGEND_OUTCOMES, y=y - 6, width=20, height=12, rx=3, **style)
        add_shape(svg, "text", OUTCOME_WORDS[outcome], x=LEGEND_OUTCOMES + 28, y=y + 4, fill="#212121")


def add_arrow_heads(svg: ElementTree.Element) -> None:
    """Add the head of an arrow of each kind of link."""
    definitions = add_shape(svg, "defs")
    size = {"viewBox": "0 0 10 10", "refX": "10", "refY": "5", "markerWidth": "9", "markerHeight": "9"}
    form = {**size, "markerUnits": "userSpaceOnUse", "orient": "auto-start-reverse"}
    for kind, style in LINK_STYLES.items():
        marker = add_shape(definitions, "marker", id=f"head{kind}", **form)
        add_shape(marker, "path", d="M 0 0 L 10 5 L 0 10 z", fill=style["stroke"])


def add_link(
    svg: ElementTree.Element, link: journal_pb2.GraphLink, start: tuple[int, int], end: tuple[int, int]
) -> None:
    """Add a link as a curve with an arrow, and what it means as its tooltip."""
    (x1, y1), (x2, y2) = start, end
    y1, y2 = y1 + BOX_HEIGHT // 2, y2 + BOX_HEIGHT // 2
    if x1 == x2:
        # Boxes of one column: around their right sides.
        x1, x2 = x1 + BOX_WIDTH, x2 + BOX_WIDTH
        middle, end_middle = x1 + COLUMN_GAP // 2, x2 + COLUMN_GAP // 2
    else:
        x1, x2 = (x1 + BOX_WIDTH, x2) if x1 < x2 else (x1, x2 + BOX_WIDTH)
        middle = end_middle = (x1 + x2) // 2
    curve = f"M {x1} {y1} C {middle} {y1} {end_middle} {y2} {x2} {y2}"
    style = LINK_STYLES[link.type]
    path = add_shape(svg, "path", d=curve, fill="none", marker_end=f"url(#head{link.type})", **style)
    add_shape(path, "title", PHRASES[link.type][0])


def add_box(svg: ElementTree.Element, node: journal_pb2.GraphNode, x: int, y: int) -> None:
    """Add a decision as a box with its title, its state and its id as the tooltip."""
    group = add_shape(svg, "g")
    add_shape(group, "title", to_printable(f"{node.title} ({node.id}, {node.agent})"))
    colour = OUTCOME_COLOURS.get(node.outcome, PLAIN_COLOUR)
    style = {"fill": "#fafafa", "stroke": colour, "stroke-width": "2.5" if node.distance == 0 else "1.2"}
    add_shape(group, "rect", x=x, y=y, width=BOX_WIDTH, height=BOX_HEIGHT, rx=6, **style)
    lines = textwrap.wrap(to_printable(node.title), TITLE_CHARACTERS, max_lines=TITLE_LINES, placeholder=" …")
    for row, line in enumerate(lines):
        add_shape(group, "text", line, x=x + 10, y=y + 18 + 15 * row, fill="#212121")
    details = ", ".join(node_details(node))
    add_shape(group, "text", details, x=x + 10, y=y + BOX_HEIGHT - 8, fill=colour, font_size=10)


RENDERERS: Final[Mapping[str, Callable[[Graph], str]]] = {
    "text": graph_text,
    "mermaid": graph_mermaid,
    "svg": graph_svg,
}
"""The forms in which `cstp graph` prints a graph."""
