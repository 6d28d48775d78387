"""What sections say item by item: checks to confirm, boundaries by what they permit, and what pitfalls are called.

An item is the first paragraph of an item of a list, on one line and as it is written otherwise. Code is no item. All
take sections of up to `MAX_CHARACTERS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from markdown_it.tree import SyntaxTreeNode

from cstp_grpc.intent_layer.markdown import block_tree
from cstp_grpc.intent_layer.marks import MARK_PATTERN

OPEN_BOX = re.compile(r"\[ \][ \t]+(?=\S)")
ORIGIN = re.compile(rf"(?:<!--[^<>]{{0,300}}-->|{MARK_PATTERN})\s*\Z")
"""What a merged learning ends with, which says only where it is from."""
MAX_CHARACTERS = 65_536
"""How long a section may be to be read item by item, which takes the parser some 20 µs a line."""
LABEL = re.compile(r"\W*(always|ask[ -]first|never)\b\W*(?:\([^()]*\)\W*)?", re.IGNORECASE)
"""A heading or a paragraph that says only which permission what follows is under."""
LABELLED = re.compile(
    r"(?:(\*\*|__)(?P<bold>always|ask[ -]first|never):?\1[:\s–—-]+|(?P<plain>always|ask[ -]first|never):\s*)"
    r"(?P<text>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
"""An item that says itself which permission it is under: `**Never** edit it`, `Never: edit it`."""


class Permission(StrEnum):
    """What a boundary permits."""

    ALWAYS = "always"
    ASK_FIRST = "ask first"
    NEVER = "never"


def check_items(text: str) -> list[str]:
    """Return the open items of a section of checks: `- [ ] Run the tests` is `Run the tests`."""
    contents = (content for content, _ in _items(block_tree(text)))
    return [_one_line(content[box.end() :]) for content in contents if (box := OPEN_BOX.match(content))]


def boundary_items(text: str) -> Mapping[Permission, list[str]]:
    """Return the items of a section of boundaries, by the permission that they are under.

    It is that of the heading, the paragraph or the item above, or the one that the item itself begins with. Items under
    none are in none.
    """
    found: dict[Permission, list[str]] = {permission: [] for permission in Permission}
    for permission, content in _permitted(block_tree(text).children, None):
        found[permission].append(_one_line(content))
    return found


def pitfall_titles(text: str) -> list[str]:
    """Return what the pitfalls of a section are called: headings, and before the first one items and first lines."""
    titles: list[str] = []
    headed = False
    for block in block_tree(text).children:
        if block.type == "heading":
            headed = True
            titles.append(_one_line(_content(block)))
        elif not headed and block.type in ("bullet_list", "ordered_list"):
            titles += [_one_line(content) for item in block.children if (content := _content(item))]
        elif not headed and block.type == "paragraph":
            titles.append(_one_line(_content(block).partition("\n")[0]))
    return [title for title in titles if title]


def _items(block: SyntaxTreeNode) -> Iterator[tuple[str, SyntaxTreeNode]]:
    """Yield the items of all lists below a block, nested ones after the one that they are in."""
    for child in block.children:
        if child.type == "list_item":
            yield _content(child), child
        yield from _items(child)


def _permitted(blocks: Iterable[SyntaxTreeNode], permission: Permission | None) -> Iterator[tuple[Permission, str]]:
    for block in blocks:
        if block.type in ("heading", "paragraph"):
            label = LABEL.fullmatch(_content(block))
            if label:
                permission = _permission(label[1])
            elif block.type == "heading":
                permission = None
        elif block.type in ("bullet_list", "ordered_list"):
            for item in block.children:
                yield from _permitted_item(item, permission)


def _permitted_item(item: SyntaxTreeNode, permission: Permission | None) -> Iterator[tuple[Permission, str]]:
    content = _content(item)
    if label := LABEL.fullmatch(content):
        yield from _permitted(item.children[1:], _permission(label[1]))
    elif labelled := LABELLED.fullmatch(content):
        yield _permission(labelled["bold"] or labelled["plain"]), labelled["text"]
    elif permission and content:
        yield permission, content


def _permission(label: str) -> Permission:
    return Permission(label.lower().replace("-", " "))


def _content(block: SyntaxTreeNode) -> str:
    """Return the text of a heading or paragraph, or of the paragraph that a list's item begins with."""
    first = block.children[0] if block.children else None
    if first is None:
        return ""
    return _content(first) if block.type == "list_item" and first.type == "paragraph" else _inline(first)


def _inline(node: SyntaxTreeNode) -> str:
    return node.content if node.type == "inline" else ""


def _one_line(text: str) -> str:
    return " ".join(ORIGIN.sub("", text.rstrip()).split())
