"""The validation of nodes against the protocol and the project's files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.contract.enums import NodeRule
from cstp_grpc.contract.errors import InvalidArgument, Unavailable
from cstp_grpc.modules.intent_layer import path_mentions, validation_rules
from cstp_grpc.modules.intent_layer.context_resolution import REQUIRED_SECTIONS
from cstp_grpc.modules.intent_layer.model import ROOT, Node, NodeFile, ValidationFinding
from cstp_grpc.modules.intent_layer.node_document import LINE_END, NodeDocument, section_key
from cstp_grpc.modules.intent_layer.node_staleness import GitHistory
from cstp_grpc.modules.intent_layer.project_files import iter_ancestors, join_path, name_of, parent_of
from cstp_grpc.modules.intent_layer.project_tree import NODE_FILES, ProjectTree, UnreadableFolder
from cstp_grpc.modules.intent_layer.validation_rules import RuleSeverities, make_finding, quote_text

ENTRY_POINTS = "entry points"
DOWNLINKS = "downlinks"
DEFAULT_SEVERITIES: RuleSeverities = {}
SHOWN_FILES = 3
"""Changed files that a finding names; of further ones it gives the number."""

COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]+\]:.*$", re.MULTILINE)
WORD = re.compile(r"[^\s`()\[\]<>|\"'*,;]+/[^\s`()\[\]<>|\"'*,;]*")


def select_nodes(tree: ProjectTree, paths: Iterable[str] = ()) -> tuple[Node | UnreadableFolder, ...]:
    """Return the nodes that paths select, or all, with unreadable folders in their places.

    A folder selects the nodes in and below it, a node's file its node, any other path the node that covers it. Raises
    InvalidArgument for a path that leaves the project, Unavailable if it cannot be read.
    """
    located = [tree.locate(path, f"paths[{number}]") for number, path in enumerate(paths)]
    if not located:
        return tuple(tree.walk())
    folders = {path for path in located if tree.is_folder(path)}
    # Only for folders: to walk a large project takes long, and a file needs none of it.
    below = [each for each in tree.walk() if not folders.isdisjoint(iter_ancestors(each.folder))] if folders else []
    found = {each.folder: each for each in below}
    for path in located:
        if path not in folders:
            each = (
                _node_or_error(tree, parent_of(path))
                if name_of(path) in NODE_FILES
                else _covering_node(tree, parent_of(path))
            )
            if each:
                found.setdefault(each.folder, each)
    return tuple(found.values())


def validate_selected(
    tree: ProjectTree,
    found: Sequence[Node | UnreadableFolder],
    history: GitHistory | None = None,
    severities: RuleSeverities = DEFAULT_SEVERITIES,
) -> tuple[ValidationFinding, ...]:
    """Return the findings about the selected nodes, sorted by file and line.

    `severities` override those in the project's file, which override the rules' defaults.
    """
    validator = _NodeValidator(tree, found)
    of_project, problems = validation_rules.read_severities(tree)
    # A set: a file that two nodes import is found faulty once.
    findings = {finding for each in found for finding in validator.check_node(each)}
    if history:
        findings.update(validator.check_staleness(history))
    # The findings about the rules file itself cannot be turned off by it.
    findings = {*validation_rules.apply_severities(findings, {**of_project, **severities}), *problems}
    return tuple(sorted(findings, key=lambda each: (each.file, each.line, each.rule, each.message)))


def _node_or_error(tree: ProjectTree, folder: str) -> Node | UnreadableFolder | None:
    try:
        return tree.node(folder)
    except (InvalidArgument, Unavailable) as error:
        return UnreadableFolder(folder, error)


def _covering_node(tree: ProjectTree, folder: str) -> Node | UnreadableFolder | None:
    found = (_node_or_error(tree, above) for above in iter_ancestors(folder))
    return next((each for each in found if each), None)


class _NodeValidator:
    """Validates nodes of a project, and reads the other nodes that the rules need."""

    def __init__(self, tree: ProjectTree, found: Sequence[Node | UnreadableFolder]) -> None:
        self._tree = tree
        self._root = os.path.realpath(tree.root)
        self._existence = path_mentions.PathExistenceCache(tree)
        # Seeded with the nodes to validate, so that none of them is read twice.
        self._nodes: dict[str, Node | UnreadableFolder | None] = {each.folder: each for each in found}
        self._validated = [each for each in found if isinstance(each, Node)]
        self._listed: dict[str, frozenset[str]] = {}

    def check_node(self, found: Node | UnreadableFolder) -> Iterator[ValidationFinding]:
        if isinstance(found, UnreadableFolder):
            yield from self._check_unreadable(found)
            return
        yield from _check_sections(found)
        yield from _check_size(found)
        yield from _check_files(found)
        yield from self._check_parent_downlink(found)
        for each in found.broken_imports:
            yield make_finding(NodeRule.DEAD_IMPORT, each.file, each.line, f"{quote_text(each.text)} {each.reason}")
        for file in found.imported:
            yield from self._check_encoding(file)
        for file in found.files:
            yield from self._check_encoding(file)
            document = self._document(file.path)
            if document:
                yield from _check_duplicate_sections(document)
                yield from self._check_paths(found.folder, document)

    def check_staleness(self, history: GitHistory) -> Iterator[ValidationFinding]:
        files = {node.folder: self._files_of(node) for node in self._validated}
        for folder, stale in history.stale_nodes(files, self._owning_folder).items():
            node = self._node(folder)
            if isinstance(node, Node):
                shown = ", ".join(stale.files[:SHOWN_FILES])
                more = len(stale.files) - SHOWN_FILES
                names = f"{shown} and {more} more" if more > 0 else shown
                message = (
                    f"{count_noun(len(stale.files), 'file')} changed in {count_noun(stale.commits, 'commit')} "
                    f"since {stale.since}, when the node last did: {names}"
                )
                yield make_finding(NodeRule.STALE, node.path, 1, message)

    def _check_unreadable(self, found: UnreadableFolder) -> Iterator[ValidationFinding]:
        """Report the files of the node that cannot be read, or else the folder."""
        files = [join_path(found.folder, name) for name in NODE_FILES]
        unreadable = [(file, error) for file in files if (error := self._error_of(file))]
        for file, error in unreadable:
            yield make_finding(NodeRule.UNREADABLE_FILE, file, 1, error)
        if not unreadable:
            yield make_finding(NodeRule.UNREADABLE_FOLDER, found.folder, 1, found.error.message)

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

    def _document(self, file: str) -> NodeDocument | None:
        """Return a parsed file, or None if it became unreadable since it was read."""
        try:
            return self._tree.document(file)
        except (InvalidArgument, Unavailable):
            return None

    def _check_encoding(self, file: NodeFile) -> Iterator[ValidationFinding]:
        if not file.decoded:
            yield make_finding(
                NodeRule.NOT_UTF8, file.path, self._undecodable_line(file.path), "it contains bytes that are not UTF-8"
            )

    def _undecodable_line(self, file: str) -> int:
        try:
            content = self._tree.read(self._tree.locate(file)) or b""
            content.decode()
        except UnicodeDecodeError as error:
            return len(LINE_END.findall(content[: error.start].decode())) + 1
        except (InvalidArgument, Unavailable):
            return 1
        return 1

    def _check_parent_downlink(self, node: Node) -> Iterator[ValidationFinding]:
        above = self._nearest_node_above(node.folder)
        if above and node.folder not in self._downlinks(above):
            yield make_finding(
                NodeRule.MISSING_DOWNLINK, node.path, 1, f"Downlinks of {above.path} does not name this node"
            )

    def _check_paths(self, folder: str, document: NodeDocument) -> Iterator[ValidationFinding]:
        for key, mentioned in self._mentions_by_section(document):
            for mention in mentioned:
                if path_mentions.is_absolute(mention, self._root):
                    message = f"{quote_text(mention.text)} is a path on one machine"
                    yield make_finding(NodeRule.ABSOLUTE_PATH, document.file, mention.line, message)
                elif key == ENTRY_POINTS:
                    yield from self._check_entry_point(folder, document.file, mention)
                elif key == DOWNLINKS:
                    yield from self._check_downlink(folder, document.file, mention)

    def _mentions_by_section(self, document: NodeDocument) -> Iterator[tuple[str, tuple[path_mentions.Mention, ...]]]:
        """Yield the mentions of each section that the rules need, and of the preamble."""
        definitions = _link_definitions(document)
        # One cheap search decides whether sections without paths of their own must be parsed at all.
        absolute = bool(path_mentions.MAYBE_ABSOLUTE.search(document.text[: path_mentions.MAX_CHARACTERS]))
        if absolute:
            yield "", path_mentions.find_mentions(document.preamble, definitions=definitions)
        for span in document.spans:
            key = section_key(span.name)
            if span.start_offset < path_mentions.MAX_CHARACTERS and (absolute or key in (ENTRY_POINTS, DOWNLINKS)):
                yield key, path_mentions.find_mentions(document.body(span), span.body_line, definitions)

    def _check_entry_point(self, folder: str, file: str, mention: path_mentions.Mention) -> Iterator[ValidationFinding]:
        path = path_mentions.path_of_mention(mention)
        if not path or self._existence.find(folder, path.text):
            return
        # Inline code with a slash in it may be a command or two words; it is taken for a path if its first folder
        # exists.
        if path.certain or self._existence.first_folder_exists(folder, path.text):
            yield make_finding(
                NodeRule.MISSING_ENTRY_POINT, file, mention.line, f"{quote_text(mention.text)} is not there"
            )

    def _check_downlink(self, folder: str, file: str, mention: path_mentions.Mention) -> Iterator[ValidationFinding]:
        """Check a link, or inline code that is clearly a node or folder; other code is a description."""
        path = path_mentions.path_of_mention(mention)
        is_node = bool(path) and name_of(path.text) in NODE_FILES if path else False
        if not path or not (mention.kind is path_mentions.MentionKind.LINK or is_node or path.text.endswith("/")):
            return
        target = self._existence.find(folder, path.text)
        if target is None:
            yield make_finding(NodeRule.DEAD_DOWNLINK, file, mention.line, f"{quote_text(mention.text)} is not there")
        elif self._tree.is_folder(target) and not self._node(target):
            message = f"the folder {quote_text(mention.text)} has no node"
            yield make_finding(NodeRule.DOWNLINK_WITHOUT_NODE, file, mention.line, message)

    def _downlinks(self, node: Node) -> frozenset[str]:
        """Return the folders that a node names in Downlinks: by links, inline code, or paths in the text."""
        if node.folder not in self._listed:
            self._listed[node.folder] = frozenset(self._downlink_targets(node))
        return self._listed[node.folder]

    def _downlink_targets(self, node: Node) -> Iterator[str]:
        for document in filter(None, (self._document(file.path) for file in node.all_files)):
            for span in document.find(DOWNLINKS):
                for written in _possible_paths_in_text(
                    # What is commented out refers to nothing.
                    COMMENT.sub("", document.body(span)),
                    _link_definitions(document),
                ):
                    for path in path_mentions.possible_paths(node.folder, written):
                        yield parent_of(path) if name_of(path) in NODE_FILES else path

    def _nearest_node_above(self, folder: str) -> Node | None:
        """Return the nearest node above a folder, or None if it is missing or unreadable."""
        nodes = (self._node(above) for above in islice(iter_ancestors(folder), 1, None))
        nearest = next(filter(None, nodes), None)
        return nearest if isinstance(nearest, Node) else None

    def _owning_folder(self, folder: str) -> str | None:
        """Return the folder of the node that covers a folder, which may have been deleted."""
        return next((above for above in iter_ancestors(folder) if self._node(above)), None)

    def _node(self, folder: str) -> Node | UnreadableFolder | None:
        if folder not in self._nodes:
            self._nodes[folder] = _node_or_error(self._tree, folder)
        return self._nodes[folder]

    def _files_of(self, node: Node) -> frozenset[str]:
        """Return the files of a node and the targets of those that are symbolic links."""
        files = {file.path for file in node.files}
        for file in node.files:
            try:
                files.add(self._tree.locate(file.path))
            except (InvalidArgument, Unavailable):
                continue
        return frozenset(files)


def _check_sections(node: Node) -> Iterator[ValidationFinding]:
    for name in REQUIRED_SECTIONS:
        found = [section for section in node.sections if section_key(section.name) == section_key(name)]
        if not found:
            yield make_finding(NodeRule.MISSING_SECTION, node.path, 1, f"there is no section {quote_text(name)}")
        elif not any(COMMENT.sub("", section.text).strip() for section in found):
            yield make_finding(
                NodeRule.EMPTY_SECTION, found[0].file, found[0].line, f"the section {quote_text(name)} is empty"
            )


def _check_size(node: Node) -> Iterator[ValidationFinding]:
    has = f"it has {node.tokens} tokens where"
    if node.tokens > validation_rules.MAX_TOKENS:
        yield make_finding(NodeRule.OVER_BUDGET, node.path, 1, f"{has} {validation_rules.MAX_TOKENS} are the limit")
    elif node.tokens > validation_rules.TARGET_TOKENS:
        yield make_finding(NodeRule.OVER_TARGET, node.path, 1, f"{has} {validation_rules.TARGET_TOKENS} are the target")


def _check_files(node: Node) -> Iterator[ValidationFinding]:
    claude = NODE_FILES[0]
    for file in node.files:
        if node.folder != ROOT and name_of(file.path) == claude:
            yield make_finding(
                NodeRule.MISPLACED_CLAUDE_MD, file.path, 1, f"{claude} belongs in the project's root only"
            )
    if len(node.files) > 1 and not node.imports_own:
        yield make_finding(
            NodeRule.DIFFERENT_FILES, node.files[1].path, 1, f"it differs from {name_of(node.path)} in the same folder"
        )


def _check_duplicate_sections(document: NodeDocument) -> Iterator[ValidationFinding]:
    lines: dict[str, int] = {}
    for span in document.spans:
        first = lines.setdefault(section_key(span.name), span.heading_line)
        if first != span.heading_line:
            message = f"there is a section {quote_text(span.name)} in line {first} already"
            yield make_finding(NodeRule.DUPLICATE_SECTION, document.file, span.heading_line, message)


def _possible_paths_in_text(text: str, definitions: str) -> Iterator[str]:
    """Yield possible paths in a text: links, inline code, and words with a slash."""
    for mention in path_mentions.find_mentions(text, definitions=definitions):
        path = (
            path_mentions.path_of_link(mention.text)
            if mention.kind is path_mentions.MentionKind.LINK
            else mention.text.strip()
        )
        if path:
            yield path
    for word in WORD.findall(text):
        yield word.rstrip(".:")


def _link_definitions(document: NodeDocument) -> str:
    return "\n".join(DEFINITION.findall(document.text)) if "]:" in document.text else ""
