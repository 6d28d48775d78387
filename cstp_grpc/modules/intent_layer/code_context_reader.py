"""Reads the rules and notes for the code that announcements name, from the projects of the Intent Layer.

Of sections it takes list items: checks to confirm, boundaries by permission, and titles of pitfalls. An item is the
first paragraph of a list item, joined to one line and otherwise unchanged. Code is not an item. Sections have up to
`MAX_CHARACTERS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache

from markdown_it.tree import SyntaxTreeNode

from cstp_grpc.contract.errors import InvalidArgument, NotFound, Unavailable
from cstp_grpc.core.guardrails.model import CodeFacts
from cstp_grpc.core.intents.model import CodeContext, CodeNote, PendingLearning
from cstp_grpc.modules.intent_layer import node_document
from cstp_grpc.modules.intent_layer.context_resolution import SECTION_ORDER, iter_delivered_files, merge_sections
from cstp_grpc.modules.intent_layer.learning_store import LearningStore, ProjectSources
from cstp_grpc.modules.intent_layer.model import Learning, MergedSection, Node
from cstp_grpc.modules.intent_layer.project_files import iter_ancestors, names_in
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from cstp_grpc.platform.storage.pagination import MAX_BYTES, count_within_budget, estimate_message_bytes

OPEN_BOX = re.compile(r"\[ \][ \t]+(?=\S)")
TRAILING_SOURCE = re.compile(rf"(?:<!--[^<>]{{0,300}}-->|{node_document.SOURCE_LINE_PATTERN})\s*\Z")
"""The last line of a merged learning, which names its report and does not belong to the item."""
MAX_CHARACTERS = 65_536
"""Maximum characters of a section that is split into items. Measured: the parser takes some 20 µs a line."""
CACHED_TEXTS = 256
"""Sections of each kind whose items are cached. Chosen: a large project has fewer nodes, and most texts are short."""
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


@lru_cache(CACHED_TEXTS)
def check_items(text: str) -> Sequence[str]:
    """Return the open items of a section of checks: `- [ ] Run the tests` gives `Run the tests`."""
    contents = (content for content, _ in _iter_list_items(node_document.parse_block_tree(text)))
    return [_to_single_line(content[box.end() :]) for content in contents if (box := OPEN_BOX.match(content))]


@lru_cache(CACHED_TEXTS)
def boundary_items(text: str) -> Mapping[BoundaryPermission, Sequence[str]]:
    """Return the items of a section of boundaries by their permission.

    The permission is that of the heading, paragraph or item above, or the one the item itself begins with. Items
    without one are left out.
    """
    found: dict[BoundaryPermission, list[str]] = {permission: [] for permission in BoundaryPermission}
    for permission, content in _iter_boundaries(node_document.parse_block_tree(text).children, None):
        found[permission].append(_to_single_line(content))
    return found


@lru_cache(CACHED_TEXTS)
def pitfall_titles(text: str) -> Sequence[str]:
    """Return the titles of a section's pitfalls: headings, and before the first one items and first lines."""
    titles: list[str] = []
    headed = False
    for block in node_document.parse_block_tree(text).children:
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
        # The item is only a label; its permission applies to the items nested in it.
        yield from _iter_boundaries(item.children[1:], _parse_permission(label[1]))
    elif labelled := LABELLED.fullmatch(content):
        yield _parse_permission(labelled["bold"] or labelled["plain"]), labelled["text"]
    elif permission and content:
        yield permission, content


def _parse_permission(label: str) -> BoundaryPermission:
    return BoundaryPermission(label.lower().replace("-", " "))


def _leading_text(block: SyntaxTreeNode) -> str:
    first = block.children[0] if block.children else None
    if first is None:
        return ""
    return _leading_text(first) if block.type == "list_item" and first.type == "paragraph" else _inline_text(first)


def _inline_text(node: SyntaxTreeNode) -> str:
    return node.content if node.type == "inline" else ""


def _to_single_line(text: str) -> str:
    return " ".join(TRAILING_SOURCE.sub("", text.rstrip()).split())


INTRODUCTION_KEY = node_document.section_key(node_document.INTRODUCTION)
CONTRACTS, PITFALLS, CHECKS, BOUNDARIES = BINDING_SECTIONS = ("contracts", "pitfalls", "checks", "boundaries")
OTHERS = ""
"""Stands for all other sections."""
SECTIONS = (*BINDING_SECTIONS, INTRODUCTION_KEY, OTHERS)
"""In the order in which they are dropped, the last first."""
ITEM_SECTIONS = (PITFALLS, CHECKS, BOUNDARIES)
MAX_SECTION_BYTES = 1024 * 1024
"""Maximum bytes of section texts in a response, all sections together: 1 MiB. Chosen: a quarter of a gRPC message."""
MAX_LISTED_BYTES = MAX_BYTES // 4
"""Limit of the check items in a response, and of the pending learnings."""


class ProjectCodeReader:
    """Reads the code context of projects by name; implements `intents.code.CodeReader`.

    Reads for an announcement have no audit entry of their own.
    """

    def __init__(self, projects: Mapping[str, ProjectSources]) -> None:
        self._projects = dict(projects)

    def read_context(self, project: str | None, paths: Sequence[str]) -> CodeContext | None:
        """Return the rules and notes for paths, without duplicates; see `CodeContextReader`."""
        if project is None and not paths:
            return None
        name = self._only_project() if project is None else project
        if name not in self._projects:
            raise NotFound(f"there is no project {name}")
        return read_context(name, self._projects[name], paths) if paths else None

    def _only_project(self) -> str:
        if len(self._projects) > 1:
            raise InvalidArgument.field("project", "must be given, because there are several")
        if not self._projects:
            raise InvalidArgument.field("project", "must be given, because there is not just one")
        return next(iter(self._projects))


def read_context(project: str, sources: ProjectSources, paths: Sequence[str]) -> CodeContext:
    """Return the rules and notes for paths of a project. Raises InvalidArgument for a path outside it."""
    missing: list[str] = []
    tree = sources.tree
    try:
        # Outside the try below it would refuse the announcement: a path that leaves the project is the caller's
        # mistake, an unreadable project is not.
        located = [tree.locate(path, f"paths[{number}]") for number, path in enumerate(paths)]
    except Unavailable as error:
        located = []
        missing.append(error.message)
    nodes = list(_read_governing_nodes(tree, located, missing.append))
    merged = {node_document.section_key(section.name): section for section in merge_sections(nodes)}
    itemised = {key: list(_parsable_texts(merged[key], missing.append)) for key in ITEM_SECTIONS if key in merged}
    # What could not be read is passed to the rules, which must not take its absence for permission.
    rules = _parse_rules(paths, itemised, "; ".join(missing) or None)
    notes = _notes_by_section(merged, nodes, missing.append)
    return CodeContext(
        project=project,
        paths=tuple(paths),
        nodes=tuple(file.path for _, file in iter_delivered_files(nodes)),
        contracts=notes[CONTRACTS],
        pitfalls=notes[PITFALLS],
        checks=notes[CHECKS],
        boundaries=notes[BOUNDARIES],
        introduction=notes[INTRODUCTION_KEY],
        others=notes[OTHERS],
        pending=_pending_learnings(sources.learnings, located, missing.append),
        check_items=rules.checks[
            : count_within_budget(rules.checks, lambda text: estimate_message_bytes([text]), MAX_LISTED_BYTES)
        ],
        rules=rules,
        missing=tuple(missing),
    )


def _read_governing_nodes(tree: ProjectTree, located: Iterable[str], report: Callable[[str], None]) -> Iterator[Node]:
    """Yield the nodes that govern paths, parents first; unreadable ones are reported."""
    folders: set[str] = set()
    for path in located:
        try:
            folders |= set(iter_ancestors(tree.nearest_folder(path)))
        except Unavailable as error:
            report(error.message)
    # By segments, so that a folder stands before its contents: as plain texts, `a-b` would stand between `a` and
    # `a/c`.
    for folder in sorted(folders, key=names_in):
        try:
            node = tree.node(folder)
        except (InvalidArgument, Unavailable) as error:
            report(_error_text(error))
        else:
            yield from [node] if node else []


def _error_text(error: InvalidArgument | Unavailable) -> str:
    return error.violations[0].description if error.violations else error.message


def _parsable_texts(section: MergedSection, report: Callable[[str], None]) -> Iterator[str]:
    """Yield the texts that are small enough to parse into items; others are reported."""
    for part in section.parts:
        if len(part.text) <= MAX_CHARACTERS:
            yield part.text
        else:
            report(f"{section.name} of {part.file} has more than {MAX_CHARACTERS} characters")


def _parse_rules(paths: Iterable[str], texts: Mapping[str, Sequence[str]], unreadable: str | None) -> CodeFacts:
    boundaries = [boundary_items(text) for text in texts.get(BOUNDARIES, ())]
    return CodeFacts(
        paths=tuple(paths),
        never=_unique_texts(items[BoundaryPermission.NEVER] for items in boundaries),
        ask_first=_unique_texts(items[BoundaryPermission.ASK_FIRST] for items in boundaries),
        always=_unique_texts(items[BoundaryPermission.ALWAYS] for items in boundaries),
        # Reversed: the checks of the node nearest to the paths come first.
        checks=_unique_texts(check_items(text) for text in reversed(texts.get(CHECKS, ()))),
        pitfalls=_unique_texts(pitfall_titles(text) for text in texts.get(PITFALLS, ())),
        unreadable=unreadable,
    )


def _unique_texts(lists: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for texts in lists for text in texts))


def _notes_by_section(
    merged: Mapping[str, MergedSection], nodes: Sequence[Node], report: Callable[[str], None]
) -> Mapping[str, tuple[CodeNote, ...]]:
    """Return the notes of each section, as many as fit into a response.

    The nearest to the paths come first, then introductions, then other sections.
    """
    numbers = {node.folder: depth for depth, node in enumerate(nodes)}
    depths = {file.path: numbers[node.folder] for node, file in iter_delivered_files(nodes)}
    notes = [
        (key, CodeNote(part.file, part.text, part.line, section.name if key == OTHERS else None))
        # Headings that the protocol does not know may bind, so they come before Purpose and the like.
        for name, section in sorted(merged.items(), key=lambda named: named[0] in SECTION_ORDER)
        for key in [name if name in SECTIONS else OTHERS]
        for part in section.parts
        if part.text
    ]
    # Reversed as a whole: notes before introductions, deeper ones before shallower.
    ranks = {INTRODUCTION_KEY: 1, OTHERS: 0}
    nearest = sorted(notes, key=lambda keyed: (ranks.get(keyed[0], 2), depths[keyed[1].file]), reverse=True)
    count = count_within_budget(
        nearest, lambda keyed: estimate_message_bytes([keyed[1].file, keyed[1].text]), MAX_SECTION_BYTES
    )
    if count < len(nearest):
        report(f"{len(nearest) - count} sections are too large together with the others; announce fewer paths at once")
    kept = set(nearest[:count])
    return {key: tuple(note for at, note in notes if at == key and (at, note) in kept) for key in SECTIONS}


def _pending_learnings(
    learnings: LearningStore, located: Sequence[str], report: Callable[[str], None]
) -> tuple[PendingLearning, ...]:
    """Return the pending learnings about paths, latest first, as many as fit into a response."""
    latest: Sequence[Learning] = ()
    try:
        latest = learnings.pending_for_paths(*located).learnings if located else ()
    except (InvalidArgument, Unavailable) as error:
        report(_error_text(error))
    listed = [PendingLearning(each.id, each.type.value, each.title, each.paths) for each in latest]
    return tuple(
        listed[
            : count_within_budget(
                listed, lambda each: estimate_message_bytes([each.title, *each.paths]), MAX_LISTED_BYTES
            )
        ]
    )
