"""The list items of sections: checks to confirm, boundaries by permission, and titles of pitfalls.

An item is the first paragraph of a list item, joined to one line and otherwise unchanged. Code is no item. Every
function takes sections of up to `MAX_CHARACTERS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from markdown_it.tree import SyntaxTreeNode

from cstp_grpc.intent_layer.node_document import SOURCE_LINE_PATTERN, parse_block_tree

OPEN_BOX = re.compile(r"\[ \][ \t]+(?=\S)")
TRAILING_SOURCE = re.compile(rf"(?:<!--[^<>]{{0,300}}-->|{SOURCE_LINE_PATTERN})\s*\Z")
"""The last line of a merged learning, which names its report and is no part of the item."""
MAX_CHARACTERS = 65_536
"""Maximum characters of a section that is split into items. Measured: the parser takes some 20 µs a line."""
LABEL = re.compile(r"\W*(always|ask[ -]first|never)\b\W*(?:\([^()]*\)\W*)?", re.IGNORECASE)
"""A heading or paragraph that consists of a permission, which applies to the items below it."""
LABELLED = re.compile(
    r"(?:(\*\*|__)(?P<bold>always|ask[ -]first|never):?\1[:\s–—-]+|(?P<plain>always|ask[ -]first|never):\s*)"
    r"(?P<text>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
"""An item that begins with its permission: `**Never** edit it`, `Never: edit it`."""


class BoundaryPermission(StrEnum):
    """The permission of a boundary."""

    ALWAYS = "always"
    ASK_FIRST = "ask first"
    NEVER = "never"


def check_items(text: str) -> list[str]:
    """Return the open items of a section of checks: `- [ ] Run the tests` gives `Run the tests`."""
    contents = (content for content, _ in _iter_list_items(parse_block_tree(text)))
    return [_to_single_line(content[box.end() :]) for content in contents if (box := OPEN_BOX.match(content))]


def boundary_items(text: str) -> Mapping[BoundaryPermission, list[str]]:
    """Return the items of a section of boundaries by their permission.

    The permission is that of the heading, paragraph or item above, or the one the item itself begins with. Items
    without one are left out.
    """
    found: dict[BoundaryPermission, list[str]] = {permission: [] for permission in BoundaryPermission}
    for permission, content in _iter_boundaries(parse_block_tree(text).children, None):
        found[permission].append(_to_single_line(content))
    return found


def pitfall_titles(text: str) -> list[str]:
    """Return the titles of a section's pitfalls: headings, and before the first one items and first lines."""
    titles: list[str] = []
    headed = False
    for block in parse_block_tree(text).children:
        if block.type == "heading":
            headed = True
            titles.append(_to_single_line(_leading_text(block)))
        elif not headed and block.type in ("bullet_list", "ordered_list"):
            titles += [_to_single_line(content) for item in block.children if (content := _leading_text(item))]
        elif not headed and block.type == "paragraph":
            titles.append(_to_single_line(_leading_text(block).partition("\n")[0]))
    return [title for title in titles if title]


def _iter_list_items(block: SyntaxTreeNode) -> Iterator[tuple[str, SyntaxTreeNode]]:
    """Yield the items of all lists below a block, a nested one after its parent."""
    for child in block.children:
        if child.type == "list_item":
            yield _leading_text(child), child
        yield from _iter_list_items(child)


def _iter_boundaries(
    blocks: Iterable[SyntaxTreeNode], permission: BoundaryPermission | None
) -> Iterator[tuple[BoundaryPermission, str]]:
    for block in blocks:
        if block.type in ("heading", "paragraph"):
            label = LABEL.fullmatch(_leading_text(block))
            if label:
                permission = _parse_permission(label[1])
            # Another heading ends the permission of the one before it.
            elif block.type == "heading":
                permission = None
        elif block.type in ("bullet_list", "ordered_list"):
            for item in block.children:
                yield from _boundaries_of_item(item, permission)


def _boundaries_of_item(
    item: SyntaxTreeNode, permission: BoundaryPermission | None
) -> Iterator[tuple[BoundaryPermission, str]]:
    content = _leading_text(item)
    if label := LABEL.fullmatch(content):
        # The item is only a label; what it permits are the items nested in it.
        yield from _iter_boundaries(item.children[1:], _parse_permission(label[1]))
    elif labelled := LABELLED.fullmatch(content):
        yield _parse_permission(labelled["bold"] or labelled["plain"]), labelled["text"]
    elif permission and content:
        yield permission, content


def _parse_permission(label: str) -> BoundaryPermission:
    return BoundaryPermission(label.lower().replace("-", " "))


def _leading_text(block: SyntaxTreeNode) -> str:
    """Return the text of a heading or paragraph, or of the first paragraph of a list item."""
    first = block.children[0] if block.children else None
    if first is None:
        return ""
    return _leading_text(first) if block.type == "list_item" and first.type == "paragraph" else _inline_text(first)


def _inline_text(node: SyntaxTreeNode) -> str:
    return node.content if node.type == "inline" else ""


def _to_single_line(text: str) -> str:
    return " ".join(TRAILING_SOURCE.sub("", text.rstrip()).split())
