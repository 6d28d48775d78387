"""What governs the code that announcements are about, as the projects of the Intent Layer tell it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cachetools import LRUCache

from cstp_grpc.errors import InvalidArgument, NotFound, Unavailable
from cstp_grpc.guardrails.model import CodeRules
from cstp_grpc.intent_layer.items import MAX_CHARACTERS, Permission, boundary_items, check_items, pitfall_titles
from cstp_grpc.intent_layer.markdown import INTRODUCTION, section_key
from cstp_grpc.intent_layer.model import Learning, MergedSection, Node
from cstp_grpc.intent_layer.paths import names_in, upwards
from cstp_grpc.intent_layer.pending import Learnings
from cstp_grpc.intent_layer.resolution import delivered_files, merge
from cstp_grpc.intent_layer.tree import Tree
from cstp_grpc.intents.code import CodeContext, CodeNote, PendingLearning
from cstp_grpc.storage.paging import MAX_BYTES, estimated_size, fitting

INTRODUCTION_KEY = section_key(INTRODUCTION)
CONTRACTS, PITFALLS, CHECKS, BOUNDARIES = BINDING = ("contracts", "pitfalls", "checks", "boundaries")
SECTIONS = (*BINDING, INTRODUCTION_KEY)
ITEMISED = (PITFALLS, CHECKS, BOUNDARIES)
MAX_SECTION_BYTES = 1024 * 1024
"""How much of what nodes say is told, all sections together: texts, which take no more in a message than here."""
MAX_LISTED_BYTES = MAX_BYTES // 4
"""How much the items of checks may take in an answer, and the pending learnings."""
REMEMBERED_CHARACTERS = 16_777_216
REMEMBERED_OVERHEAD = 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProjectSources:
    """Where what governs a project's code is read."""

    tree: Tree
    learnings: Learnings


class Memo:
    """Remembers what functions make of texts; may be used by several threads."""

    def __init__(self, characters: int = REMEMBERED_CHARACTERS) -> None:
        self._lock = threading.Lock()
        self._known: LRUCache[tuple[Callable[[str], Any], str], tuple[str, Any]] = LRUCache(
            characters, lambda known: len(known[0]) + REMEMBERED_OVERHEAD
        )

    def __call__(self, function: Callable[[str], T], text: str) -> T:
        """Return what a function makes of a text; nobody may change it."""
        with self._lock:
            known = self._known.get((function, text))
        if known:
            made: T = known[1]
            return made
        made = function(text)
        with self._lock:
            self._known[function, text] = text, made
        return made


class ProjectCode:
    """Reads what governs the code of projects, given by their names; fulfils `intents.code.CodeReader`.

    Reading for an announcement is part of that in the audit trail, and no act of its own.
    """

    def __init__(self, projects: Mapping[str, ProjectSources]) -> None:
        self._projects = dict(projects)
        self._memo = Memo()

    def look(self, project: str | None, paths: Sequence[str]) -> CodeContext | None:
        """Return what governs paths, each thing once; see `CodeReader.look`."""
        if project is None and not paths:
            return None
        name = self._only() if project is None else project
        if name not in self._projects:
            raise NotFound(f"there is no project {name}")
        return read_context(name, self._projects[name], paths, self._memo) if paths else None

    def _only(self) -> str:
        if len(self._projects) != 1:
            raise InvalidArgument.field("project", "must be given, because there is not just one")
        return next(iter(self._projects))


def read_context(project: str, sources: ProjectSources, paths: Sequence[str], memo: Memo) -> CodeContext:
    """Return what governs paths of a project. Raises InvalidArgument for a path that leaves it."""
    missing: list[str] = []
    tree = sources.tree
    try:
        located = [tree.locate(path, f"paths[{number}]") for number, path in enumerate(paths)]
    except Unavailable as error:
        located = []
        missing.append(error.message)
    nodes = list(_nodes(tree, located, missing.append))
    merged = {section_key(section.name): section for section in merge(nodes, SECTIONS)}
    itemised = {key: list(_itemised(merged[key], missing.append)) for key in ITEMISED if key in merged}
    rules = _rules(paths, itemised, "; ".join(missing) or None, memo)
    notes = _notes(merged, nodes, missing.append)
    return CodeContext(
        project=project,
        paths=tuple(paths),
        nodes=tuple(file.path for _, file in delivered_files(nodes)),
        contracts=notes[CONTRACTS],
        pitfalls=notes[PITFALLS],
        checks=notes[CHECKS],
        boundaries=notes[BOUNDARIES],
        introduction=notes[INTRODUCTION_KEY],
        pending=_pending(sources.learnings, located, missing.append),
        check_items=rules.checks[: fitting(rules.checks, lambda text: estimated_size([text]), MAX_LISTED_BYTES)],
        rules=rules,
        missing=tuple(missing),
    )


def _nodes(tree: Tree, located: Iterable[str], report: Callable[[str], None]) -> Iterator[Node]:
    """Yield the nodes that govern paths, a parent before its children; those that cannot be read are reported."""
    folders: set[str] = set()
    for path in located:
        try:
            folders |= set(upwards(tree.folder_of(path)))
        except Unavailable as error:
            report(error.message)
    for folder in sorted(folders, key=names_in):
        try:
            node = tree.node(folder)
        except (InvalidArgument, Unavailable) as error:
            report(_reason(error))
        else:
            yield from [node] if node else []


def _reason(error: InvalidArgument | Unavailable) -> str:
    return error.violations[0].description if error.violations else error.message


def _itemised(section: MergedSection, report: Callable[[str], None]) -> Iterator[str]:
    """Yield the texts that can be read item by item; others are reported."""
    for part in section.parts:
        if len(part.text) <= MAX_CHARACTERS:
            yield part.text
        else:
            report(f"{section.name} of {part.file} has more than {MAX_CHARACTERS} characters")


def _rules(paths: Iterable[str], texts: Mapping[str, Sequence[str]], unreadable: str | None, memo: Memo) -> CodeRules:
    boundaries = [memo(boundary_items, text) for text in texts.get(BOUNDARIES, ())]
    return CodeRules(
        paths=tuple(paths),
        never=_distinct(items[Permission.NEVER] for items in boundaries),
        ask_first=_distinct(items[Permission.ASK_FIRST] for items in boundaries),
        always=_distinct(items[Permission.ALWAYS] for items in boundaries),
        checks=_distinct(memo(check_items, text) for text in reversed(texts.get(CHECKS, ()))),
        pitfalls=_distinct(memo(pitfall_titles, text) for text in texts.get(PITFALLS, ())),
        unreadable=unreadable,
    )


def _distinct(lists: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for texts in lists for text in texts))


def _notes(
    merged: Mapping[str, MergedSection], nodes: Sequence[Node], report: Callable[[str], None]
) -> Mapping[str, tuple[CodeNote, ...]]:
    """Return what each section says, as much as fits into an answer.

    What is nearest to the paths goes in first, introductions last.
    """
    numbers = {node.folder: depth for depth, node in enumerate(nodes)}
    depths = {file.path: numbers[node.folder] for node, file in delivered_files(nodes)}
    notes = [(key, CodeNote(part.file, part.text, part.line)) for key in merged for part in merged[key].parts]
    nearest = sorted(notes, key=lambda keyed: (keyed[0] != INTRODUCTION_KEY, depths[keyed[1].file]), reverse=True)
    count = fitting(nearest, lambda keyed: estimated_size([keyed[1].file, keyed[1].text]), MAX_SECTION_BYTES)
    if count < len(nearest):
        report(f"{len(nearest) - count} sections are too large together with the others; announce fewer paths at once")
    kept = set(nearest[:count])
    return {key: tuple(note for at, note in notes if at == key and (at, note) in kept) for key in SECTIONS}


def _pending(
    learnings: Learnings, located: Sequence[str], report: Callable[[str], None]
) -> tuple[PendingLearning, ...]:
    """Return the pending learnings that bear on paths, latest first, as many as fit into an answer."""
    latest: Sequence[Learning] = ()
    try:
        latest = learnings.governing(*located).learnings if located else ()
    except (InvalidArgument, Unavailable) as error:
        report(_reason(error))
    listed = [PendingLearning(each.id, each.type.value, each.title, each.paths) for each in latest]
    return tuple(listed[: fitting(listed, lambda each: estimated_size([each.title, *each.paths]), MAX_LISTED_BYTES)])
