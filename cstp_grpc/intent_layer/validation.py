"""Whether nodes keep to the protocol, and say what is true of the project as it is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from cstp_grpc.errors import InvalidArgument, Unavailable
from cstp_grpc.intent_layer import rules
from cstp_grpc.intent_layer.git import Behind
from cstp_grpc.intent_layer.markdown import LINE_END, Document, section_key
from cstp_grpc.intent_layer.mentions import MAX_CHARACTERS, Mention, MentionKind, mentions
from cstp_grpc.intent_layer.model import ROOT, Finding, Node, NodeFile
from cstp_grpc.intent_layer.paths import joined, name_of, parent_of
from cstp_grpc.intent_layer.resolution import REQUIRED_SECTIONS
from cstp_grpc.intent_layer.rule_severities import Severities, read_severities, with_severities
from cstp_grpc.intent_layer.rules import quoted
from cstp_grpc.intent_layer.tree import NODE_FILES, Tree, Unreadable
from cstp_grpc.intent_layer.written_paths import MAYBE_ABSOLUTE, Places, as_path, candidates, is_absolute, linked_path

ENTRY_POINTS = "entry points"
DOWNLINKS = "downlinks"
DEFAULT_SEVERITIES: Severities = {}
SHOWN_FILES = 3
"""How many of the files that were changed since are named."""

COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]+\]:.*$", re.MULTILINE)
WORD = re.compile(r"[^\s`()\[\]<>|\"'*,;]+/[^\s`()\[\]<>|\"'*,;]*")


class History(Protocol):
    """What is known of the age of nodes."""

    def behind(self, nodes: Mapping[str, frozenset[str]], owner: Callable[[str], str | None]) -> Mapping[str, Behind]:
        """Return the nodes that are older than what they cover, by their folders.

        `nodes` gives the files of each node by its folder; `owner` the folder of the node that covers a folder.
        """


def validate(tree: Tree, paths: Iterable[str] = (), history: History | None = None) -> tuple[Finding, ...]:
    """Return what is wrong with the nodes that `select` returns, sorted by file and line."""
    return judge(tree, select(tree, paths), history)


def select(tree: Tree, paths: Iterable[str] = ()) -> tuple[Node | Unreadable, ...]:
    """Return the nodes that paths stand for, or all of them, and what cannot be read in their places.

    A folder stands for the nodes in it and below, a node's file for the node, any other path for the node that covers
    it. Raises InvalidArgument for a path that leaves the project, Unavailable where it cannot be read.
    """
    located = [tree.locate(path, f"paths[{number}]") for number, path in enumerate(paths)]
    if not located:
        return tuple(tree.walk())
    folders = {path for path in located if tree.is_folder(path)}
    below = [found for found in tree.walk() if _lies_in(found.folder, folders)] if folders else []
    found = {each.folder: each for each in below}
    for path in located:
        if path not in folders:
            each = _at(tree, parent_of(path)) if name_of(path) in NODE_FILES else _covering(tree, parent_of(path))
            if each:
                found.setdefault(each.folder, each)
    return tuple(found.values())


def judge(
    tree: Tree,
    found: Sequence[Node | Unreadable],
    history: History | None = None,
    severities: Severities = DEFAULT_SEVERITIES,
) -> tuple[Finding, ...]:
    """Return what is wrong with what `select` returned, sorted by file and line.

    The rules are as severe as `severities` say, else as the project's own file does, else as they are by themselves.
    """
    judgement = _Judgement(tree, found)
    of_project, problems = read_severities(tree)
    findings = {finding for each in found for finding in judgement.of(each)}
    if history:
        findings.update(judgement.staleness(history))
    findings = {*with_severities(findings, {**of_project, **severities}), *problems}
    return tuple(sorted(findings, key=lambda each: (each.file, each.line, each.rule, each.message)))


def _lies_in(folder: str, folders: set[str]) -> bool:
    while folder not in folders and folder != ROOT:
        folder = parent_of(folder)
    return folder in folders


def _at(tree: Tree, folder: str) -> Node | Unreadable | None:
    try:
        return tree.node(folder)
    except (InvalidArgument, Unavailable) as error:
        return Unreadable(folder, error)


def _covering(tree: Tree, folder: str) -> Node | Unreadable | None:
    while folder != ROOT and not (found := _at(tree, folder)):
        folder = parent_of(folder)
    return _at(tree, ROOT) if folder == ROOT else found


class _Judgement:
    """The judgement of some nodes of a project, with what it needs to know of the others."""

    def __init__(self, tree: Tree, found: Sequence[Node | Unreadable]) -> None:
        self._tree = tree
        self._root = os.path.realpath(tree.root)
        self._places = Places(tree)
        self._nodes: dict[str, Node | Unreadable | None] = {each.folder: each for each in found}
        self._judged = [each for each in found if isinstance(each, Node)]
        self._listed: dict[str, frozenset[str]] = {}

    def of(self, found: Node | Unreadable) -> Iterator[Finding]:
        if isinstance(found, Unreadable):
            yield from self._unreadable(found)
            return
        yield from _sections(found)
        yield from _budget(found)
        yield from _files(found)
        yield from self._place(found)
        for each in found.broken_imports:
            yield rules.DEAD_IMPORT.finding(each.file, each.line, f"{quoted(each.text)} {each.reason}")
        for file in found.imported:
            yield from self._encoding(file)
        for file in found.files:
            yield from self._encoding(file)
            document = self._document(file.path)
            if document:
                yield from _duplicates(document)
                yield from self._paths(found.folder, document)

    def staleness(self, history: History) -> Iterator[Finding]:
        files = {node.folder: self._files_of(node) for node in self._judged}
        for folder, behind in history.behind(files, self._owner).items():
            node = self._node(folder)
            if isinstance(node, Node):
                shown = ", ".join(behind.files[:SHOWN_FILES])
                more = len(behind.files) - SHOWN_FILES
                names = f"{shown} and {more} more" if more > 0 else shown
                message = (
                    f"{_counted(len(behind.files), 'file')} changed in {_counted(behind.commits, 'commit')} since "
                    f"{behind.since}, when the node last did: {names}"
                )
                yield rules.STALE.finding(node.path, 1, message)

    def _unreadable(self, found: Unreadable) -> Iterator[Finding]:
        """Name the files of the node that cannot be read, or the folder."""
        files = [joined(found.folder, name) for name in NODE_FILES]
        blamed = [(file, error) for file in files if (error := self._error_of(file))]
        for file, error in blamed:
            yield rules.UNREADABLE_FILE.finding(file, 1, error)
        if not blamed:
            yield rules.UNREADABLE_FOLDER.finding(found.folder, 1, found.error.message)

    def _error_of(self, file: str) -> str | None:
        try:
            self._tree.document(file)
        except InvalidArgument as error:
            return error.violations[0].description
        except Unavailable as error:
            return error.message if self._tree_has(file) else None
        return None

    def _tree_has(self, file: str) -> bool:
        try:
            return self._tree.exists(file)
        except Unavailable:
            return False

    def _document(self, file: str) -> Document | None:
        """Return a file with its places; None where it has changed for the worse since it was read."""
        try:
            return self._tree.document(file)
        except (InvalidArgument, Unavailable):
            return None

    def _encoding(self, file: NodeFile) -> Iterator[Finding]:
        if not file.decoded:
            yield rules.NOT_UTF8.finding(file.path, self._undecodable_line(file.path), "it has bytes that are no UTF-8")

    def _undecodable_line(self, file: str) -> int:
        try:
            content = self._tree.read(self._tree.locate(file)) or b""
            content.decode()
        except UnicodeDecodeError as error:
            return len(LINE_END.findall(content[: error.start].decode())) + 1
        except (InvalidArgument, Unavailable):
            return 1
        return 1

    def _place(self, node: Node) -> Iterator[Finding]:
        """Judge whether the nearest node above names a node."""
        above = self._above(node.folder)
        if above and node.folder not in self._downlinks(above):
            yield rules.MISSING_DOWNLINK.finding(node.path, 1, f"Downlinks of {above.path} does not name this node")

    def _paths(self, folder: str, document: Document) -> Iterator[Finding]:
        for key, mentioned in self._mentioned(document):
            for mention in mentioned:
                if is_absolute(mention, self._root):
                    message = f"{quoted(mention.text)} is a path on one machine"
                    yield rules.ABSOLUTE_PATH.finding(document.file, mention.line, message)
                elif key == ENTRY_POINTS:
                    yield from self._entry_point(folder, document.file, mention)
                elif key == DOWNLINKS:
                    yield from self._downlink(folder, document.file, mention)

    def _mentioned(self, document: Document) -> Iterator[tuple[str, tuple[Mention, ...]]]:
        """Yield what the sections mention that have to be looked into, and the preamble."""
        definitions = _definitions(document)
        absolute = bool(MAYBE_ABSOLUTE.search(document.text[:MAX_CHARACTERS]))
        if absolute:
            yield "", mentions(document.preamble, definitions=definitions)
        for span in document.spans:
            key = section_key(span.name)
            if span.start_offset < MAX_CHARACTERS and (absolute or key in (ENTRY_POINTS, DOWNLINKS)):
                yield key, mentions(document.body(span), span.body_line, definitions)

    def _entry_point(self, folder: str, file: str, mention: Mention) -> Iterator[Finding]:
        path = as_path(mention)
        if not path or self._places.find(folder, path.text):
            return
        if path.certain or self._places.begins(folder, path.text):
            yield rules.MISSING_ENTRY_POINT.finding(file, mention.line, f"{quoted(mention.text)} is not there")

    def _downlink(self, folder: str, file: str, mention: Mention) -> Iterator[Finding]:
        """Judge a link, or inline code that is plainly a node or a folder; other code there describes."""
        path = as_path(mention)
        is_node = bool(path) and name_of(path.text) in NODE_FILES if path else False
        if not path or not (mention.kind is MentionKind.LINK or is_node or path.text.endswith("/")):
            return
        place = self._places.find(folder, path.text)
        if place is None:
            yield rules.DEAD_DOWNLINK.finding(file, mention.line, f"{quoted(mention.text)} is not there")
        elif self._tree.is_folder(place) and not self._node(place):
            message = f"the folder {quoted(mention.text)} has no node"
            yield rules.DOWNLINK_WITHOUT_NODE.finding(file, mention.line, message)

    def _downlinks(self, node: Node) -> frozenset[str]:
        """Return the folders that a node names in Downlinks: by links, by inline code, or by paths in the text."""
        if node.folder not in self._listed:
            self._listed[node.folder] = frozenset(self._named(node))
        return self._listed[node.folder]

    def _named(self, node: Node) -> Iterator[str]:
        for document in filter(None, (self._document(file.path) for file in node.all_files)):
            for span in document.find(DOWNLINKS):
                for written in _written(COMMENT.sub("", document.body(span)), _definitions(document)):
                    for path in candidates(node.folder, written):
                        yield parent_of(path) if name_of(path) in NODE_FILES else path

    def _above(self, folder: str) -> Node | None:
        """Return the nearest node above a folder; None also where it cannot be read."""
        while folder != ROOT:
            folder = parent_of(folder)
            node = self._node(folder)
            if node:
                return node if isinstance(node, Node) else None
        return None

    def _owner(self, folder: str) -> str | None:
        """Return the folder of the node that covers a folder, which need no longer exist."""
        while folder != ROOT and not self._node(folder):
            folder = parent_of(folder)
        return folder if self._node(folder) else None

    def _node(self, folder: str) -> Node | Unreadable | None:
        if folder not in self._nodes:
            self._nodes[folder] = _at(self._tree, folder)
        return self._nodes[folder]

    def _files_of(self, node: Node) -> frozenset[str]:
        """Return the files of a node and those that they are links to."""
        files = {file.path for file in node.files}
        for file in node.files:
            try:
                files.add(self._tree.locate(file.path))
            except (InvalidArgument, Unavailable):
                continue
        return frozenset(files)


def _sections(node: Node) -> Iterator[Finding]:
    for name in REQUIRED_SECTIONS:
        found = [section for section in node.sections if section_key(section.name) == section_key(name)]
        if not found:
            yield rules.MISSING_SECTION.finding(node.path, 1, f"there is no section {quoted(name)}")
        elif not any(COMMENT.sub("", section.text).strip() for section in found):
            yield rules.EMPTY_SECTION.finding(found[0].file, found[0].line, f"the section {quoted(name)} is empty")


def _budget(node: Node) -> Iterator[Finding]:
    has = f"it has {node.tokens} tokens where"
    if node.tokens > rules.MAX_TOKENS:
        yield rules.OVER_BUDGET.finding(node.path, 1, f"{has} {rules.MAX_TOKENS} are the limit")
    elif node.tokens > rules.TARGET_TOKENS:
        yield rules.OVER_TARGET.finding(node.path, 1, f"{has} {rules.TARGET_TOKENS} are the target")


def _files(node: Node) -> Iterator[Finding]:
    claude = NODE_FILES[0]
    for file in node.files:
        if node.folder != ROOT and name_of(file.path) == claude:
            yield rules.MISPLACED_CLAUDE_MD.finding(file.path, 1, f"{claude} belongs in the project's root only")
    if len(node.files) > 1 and not node.imports_own:
        yield rules.DIFFERENT_FILES.finding(node.files[1].path, 1, f"it differs from {name_of(node.path)} beside it")


def _duplicates(document: Document) -> Iterator[Finding]:
    lines: dict[str, int] = {}
    for span in document.spans:
        first = lines.setdefault(section_key(span.name), span.heading_line)
        if first != span.heading_line:
            message = f"there is a section {quoted(span.name)} in line {first} already"
            yield rules.DUPLICATE_SECTION.finding(document.file, span.heading_line, message)


def _written(text: str, definitions: str) -> Iterator[str]:
    """Yield what may be meant as a path in a text: links, inline code, and words with a slash."""
    for mention in mentions(text, definitions=definitions):
        path = linked_path(mention.text) if mention.kind is MentionKind.LINK else mention.text.strip()
        if path:
            yield path
    for word in WORD.findall(text):
        yield word.rstrip(".:")


def _definitions(document: Document) -> str:
    """Return the link definitions of a file."""
    return "\n".join(DEFINITION.findall(document.text)) if "]:" in document.text else ""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
