"""What a node says, as records for the journal, so that a search finds it beside decisions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from markdown_it.tree import SyntaxTreeNode

from cstp_grpc.decisions.model import DecisionContent, ImportRecord
from cstp_grpc.intent_layer.markdown import block_tree, section_key
from cstp_grpc.intent_layer.marks import MARK_PATTERN
from cstp_grpc.intent_layer.model import ROOT, Node
from cstp_grpc.intent_layer.paths import name_of
from cstp_grpc.intent_layer.tree import NODE_FILES
from cstp_grpc.vocabulary import INTENT_LAYER_AGENT, Visibility

ENTRIES = {
    "contracts": "contract",
    "pitfalls": "pitfall",
    "checks": "check",
    "patterns": "pattern",
    "context": "insight",
}
"""The sections that are found entry by entry, and what their entries are; others are found whole."""
WHOLE = {"boundaries": "boundary"}
LEFT_OUT = frozenset({"downlinks"})
"""Sections that only lead on."""
MAX_TITLE = 200
MAX_CONTEXT = 20_000
MAX_CATEGORY = 100
MAX_SLUG = 80
BREAKS = re.compile(r"[\W_]+")
MARK_AT_END = re.compile(rf"{MARK_PATTERN}\s*\Z")
"""What a merged learning ends with, which says only where it is from."""
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
BOX = re.compile(r"\[[ xX]\][ \t]+")
LISTS = frozenset({"bullet_list", "ordered_list"})


def source_prefix(project: str) -> str:
    """Return what the sources of a project's records begin with."""
    return f"{INTENT_LAYER_AGENT}:{project}:"


def file_of(source: str, project: str) -> str:
    """Return the node's file that a record of a project is from."""
    return source.removeprefix(source_prefix(project)).rpartition("#")[0]


def records(project: str, node: Node) -> Iterator[ImportRecord]:
    """Yield a record for each entry of a node, or for each section that has none.

    Its source names the project, the file, the section and the title; it stays the same where only the rest changes.
    """
    used: dict[str, int] = {}
    # What is imported from another node is found as what that node says.
    imported = [file for file in node.imported if name_of(file.path) not in NODE_FILES]
    for section in (section for file in (*node.files, *imported) for section in file.sections):
        key = section_key(section.name)
        if key in LEFT_OUT or not COMMENT.sub("", section.text).strip():
            continue
        place = project if node.folder == ROOT else node.folder
        whole = [(f"{section.name} of {place}", section.text)]
        for title, text in (entries(section.text) or whole) if key in ENTRIES else whole:
            source = _unused(f"{source_prefix(project)}{section.file}#{_slug(section.name)}/{_slug(title)}", used)
            content = DecisionContent(
                title=shortened(title, MAX_TITLE),
                context=shortened(text, MAX_CONTEXT),
                category=ENTRIES.get(key) or WHOLE.get(key) or _slug(section.name)[:MAX_CATEGORY],
                notes=f"See {section.name} in {section.file}",
                tags=(INTENT_LAYER_AGENT,),
                project=project,
                visibility=Visibility.SHARED,
            )
            yield ImportRecord(source, content)


def entries(text: str) -> list[tuple[str, str]]:
    """Return what a section says entry by entry: what each is called, and its text.

    A heading begins one, and before the first heading so do items and paragraphs.
    """
    starts: list[tuple[int, str]] = []
    headed = False
    for block in block_tree(text).children:
        headed = headed or block.type == "heading"
        for begin in block.children if block.type in LISTS else [block]:
            title = _title(begin)
            if title and (block.type == "heading" or not headed):
                starts.append((begin.map[0] if begin.map else 0, title))
    lines = text.split("\n")
    bounds = [*(start for start, _ in starts), len(lines)]
    return [
        (title, MARK_AT_END.sub("", "\n".join(lines[start:end])).strip())
        for (start, title), end in zip(starts, bounds[1:], strict=True)
    ]


def shortened(text: str, length: int) -> str:
    """Return a text of at most a length."""
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def _title(block: SyntaxTreeNode) -> str:
    """Return what an entry that begins with a block is called; empty where the block says nothing by itself."""
    while block.type == "list_item" and block.children:
        block = block.children[0]
    if block.type not in ("heading", "paragraph"):
        return ""
    content = BOX.sub("", block.children[0].content, count=1)
    first = content if block.type == "heading" else content.partition("\n")[0]
    # To this parser a table is a paragraph.
    return "" if first.startswith("|") else " ".join(first.split())


def _slug(text: str) -> str:
    return BREAKS.sub("-", text.casefold()).strip("-")[:MAX_SLUG] or "-"


def _unused(source: str, used: dict[str, int]) -> str:
    """Return a source, numbered where it is used; `used` has the last number of each."""
    number = used.get(source, 0) + 1
    while (unused := source if number == 1 else f"{source}-{number}") in used:
        number += 1
    used[source] = number
    used.setdefault(unused, 1)
    return unused
