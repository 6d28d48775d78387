"""The placement of facts and learnings in nodes, and the text edit that merges a learning.

The edit leaves all bytes outside the entry unchanged.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.modules.intent_layer.context_resolution import PROTOCOL_SECTIONS, SECTION_ORDER
from cstp_grpc.modules.intent_layer.learning_store import containing_folder, report_file_name
from cstp_grpc.modules.intent_layer.model import ROOT, FactPlacement, Learning, LearningEdits, LearningType, Node
from cstp_grpc.modules.intent_layer.node_document import (
    LINE_END,
    SOURCE_LINE,
    NodeDocument,
    SectionSpan,
    parse_blocks,
    parse_node,
    section_key,
    strip_blank_lines,
)
from cstp_grpc.modules.intent_layer.project_files import common_folder, join_path, names_in, parent_of
from cstp_grpc.modules.intent_layer.project_tree import NODE_FILES, ProjectTree

WILDCARDS = frozenset("*?")
ROOT_FILE, CHILD_FILE = NODE_FILES
"""The name of a new node file in the root of a project, and below it."""


def place_fact(tree: ProjectTree, paths: Iterable[str]) -> FactPlacement:
    """Return the placement of a fact about paths, which need not exist yet.

    A missing path counts as a file, unless it ends with a slash. A pattern counts as the folder above its first
    wildcard. Raises InvalidArgument without paths, and as `ProjectTree.locate` and `ProjectTree.nodes_to_path` do.
    """
    folders = [_folder_of_path(tree, path, f"paths[{number}]") for number, path in enumerate(paths)]
    if not folders:
        raise InvalidArgument.field("paths", "must not be empty")
    folder = common_folder(folders)
    node = tree.node(folder)
    chain = tree.nodes_to_path(folder)
    file = node.path if node else new_node_file(folder)
    return FactPlacement(folder, file, node is not None, chain[-1].path if chain else None)


def new_node_file(folder: str) -> str:
    return join_path(folder, ROOT_FILE if folder == ROOT else CHILD_FILE)


def _folder_of_path(tree: ProjectTree, path: str, field: str) -> str:
    located = tree.locate(path, field)
    if tree.is_folder(located):
        return located
    # A file may really be called `a*`: what exists is no pattern.
    if not tree.exists(located) and not WILDCARDS.isdisjoint(path):
        return _folder_of_path(tree, _before_wildcard(path), field)
    folder = located if path.endswith("/") else parent_of(located)
    return _nearest_possible_folder(tree, folder)


def _before_wildcard(pattern: str) -> str:
    """Return the folder above the first wildcard of a pattern, with a slash at its end."""
    names = pattern.split("/")
    first = next(number for number, name in enumerate(names) if not WILDCARDS.isdisjoint(name))
    return "/".join([*names[:first], ""]) or ROOT


def _nearest_possible_folder(tree: ProjectTree, folder: str) -> str:
    """Return a folder that may be missing, or the parent of a file that is in its way."""
    reached = tree.nearest_folder(folder)
    if reached == folder:
        return folder
    depth = len(names_in(reached))
    return reached if tree.exists("/".join(names_in(folder)[: depth + 1])) else folder


SECTION_FOR_TYPE = {
    LearningType.PITFALL: "Pitfalls",
    LearningType.CHECK: "Checks",
    LearningType.PATTERN: "Patterns",
    LearningType.INSIGHT: "Context",
}
CHECKLIST_SECTION = "checks"

BLANK = " \t\r\n"
LEADING_BLANKS = re.compile(r"(?:[ \t]*(?:\r\n?|\n))*")
CHECKBOX = re.compile(r"- \[[ xX]\] ")
CLOSING_HASHES = re.compile(r"(?<=[ \t])#+\Z|\A#+\Z")
INDENTED = re.compile(r"(?:[ \t]*(?:\r\n?|\n))*[ \t]+[^ \t\r\n]")
LIST_END = "<!-- -->"
"""A comment at the margin ends a list; without it an indented heading would become part of the item before it."""
DIFF_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A learning as it is put into a section: under a heading of level 3, or as a checklist item.

    `learning_id` names the report, which the last line of the entry gives.
    """

    section: str
    checkbox: bool
    title: str
    detail: str
    learning_id: str

    @property
    def mark(self) -> str:
        """The last line of the entry, which names its report."""
        return source_line_for(self.learning_id)

    def lines(self) -> list[str]:
        """Return the lines of the entry in a node; they begin no section and leave no block open."""
        text = self._text_below_title()
        detail = [*_quote_if_unsafe(text).split("\n"), ""] if text else []
        if not self.checkbox:
            # A heading may end with number signs, which do not belong to its text.
            title = CLOSING_HASHES.sub(lambda match: "\\" + match[0], self.title)
            return [f"### {title}", "", *detail, self.mark]
        # Two spaces make the lines a part of the item (CommonMark, list items); blank ones get none, which editors
        # would strip.
        return [f"- [ ] {self.title}", "", *(f"  {line}" if line else "" for line in detail), f"  {self.mark}"]

    def _text_below_title(self) -> str:
        """Return the detail without its first paragraph if that is the title."""
        text = strip_blank_lines(LINE_END.sub("\n", self.detail))
        first, _, rest = text.partition("\n")
        repeats = " ".join(first.split()) == self.title and not rest.partition("\n")[0].strip()
        return strip_blank_lines(rest) if repeats else text


def entry_for_learning(learning: Learning, edits: LearningEdits) -> NodeEntry:
    """Return the entry for a learning with the reviewer's edits.

    Raises InvalidArgument for a section name that cannot be a heading.
    """
    section = SECTION_FOR_TYPE[learning.type] if edits.section is None else _parse_section_name(edits.section)
    return NodeEntry(
        section=section,
        checkbox=learning.type is LearningType.CHECK or section_key(section) == CHECKLIST_SECTION,
        title=" ".join((learning.title if edits.title is None else edits.title).split()),
        detail=learning.detail if edits.detail is None else edits.detail,
        learning_id=learning.id,
    )


def source_line_for(learning_id: str) -> str:
    return SOURCE_LINE.format(report_file_name(learning_id))


def covering_node(tree: ProjectTree, paths: tuple[str, ...]) -> Node | None:
    """Return the nearest node at or above the lowest common folder of located paths.

    Raises as `ProjectTree.nodes_to_path` does.
    """
    chain = tree.nodes_to_path(common_folder(containing_folder(tree, path) for path in paths))
    return chain[-1] if chain else None


def target_files(tree: ProjectTree, node: Node | None, section: str) -> tuple[str, ...]:
    """Return the files that an entry is merged into, the one that names the node first.

    Of two different files it is the one that has the section, or else the one that belongs in the folder; of two equal
    files both, so that they stay equal.
    """
    if node is None:
        return (new_node_file(ROOT),)
    if len(node.files) > 1:
        with_section = [file.path for file in node.files if parse_node(file.text, file.path).find(section)]
        # NODE_FILES have CLAUDE.md first, which belongs in the root; below it AGENTS.md does.
        proper = node.files[0] if node.folder == "." else node.files[-1]
        return (with_section[0] if with_section else proper.path,)
    names = [join_path(node.folder, name) for name in NODE_FILES]
    documents = {name: tree.document(name) for name in names if name != node.path}
    copies = [name for name, document in documents.items() if document and document.text == node.files[0].text]
    return (node.path, *copies)


def insert_entry(document: NodeDocument, entry: NodeEntry) -> str:
    """Return a node's text with an entry at the end of its section.

    Of several sections of that name it is the first. A missing section is created at its place in the protocol's order;
    a section unknown to the protocol comes last.
    """
    # The file keeps its own line ends; a mixed one gets those of its first line.
    first = LINE_END.search(document.text)
    end = first[0] if first else "\n"
    spans = document.find(entry.section)
    if spans:
        return _insert_lines(document, spans[0], entry.lines(), end, listed=entry.checkbox)
    name = next((known for known in PROTOCOL_SECTIONS if _is_same_section(known, entry.section)), entry.section)
    return _insert_lines(document, _preceding_section(document, name), [f"## {name}", "", *entry.lines()], end)


def unified_diff(file: str, before: str | None, after: str) -> str:
    """Return the change to a file as a unified diff for patch and git apply. `before` None means a new file."""
    lines = difflib.unified_diff(
        DIFF_LINE.findall(before or ""),
        DIFF_LINE.findall(after),
        "/dev/null" if before is None else f"a/{file}",
        f"b/{file}",
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _parse_section_name(name: str) -> str:
    """Return the section name that a reviewer gives, on one line. Raises InvalidArgument if it cannot be a heading."""
    heading = " ".join(name.split())
    # Parsed and compared rather than matched: what Markdown makes of the name is what counts.
    spans = parse_node(f"## {heading}\n", "").spans
    if not heading or len(spans) != 1 or not _is_same_section(spans[0].name, heading):
        raise InvalidArgument.field("edits.section", "cannot be a heading")
    return heading


def _is_same_section(name: str, other: str) -> bool:
    return section_key(name) == section_key(other)


def _quote_if_unsafe(text: str) -> str:
    """Return a text, as a quotation if it would begin a section or an entry, or leave a block open."""
    begins_section = any(token.type == "heading_open" and token.level == 0 for token in parse_blocks(text))
    if not begins_section and not parse_node(text, "").closing:
        return text
    return "\n".join(f"> {line}" if line else ">" for line in text.split("\n"))


def _preceding_section(document: NodeDocument, name: str) -> SectionSpan | None:
    """Return the section after which a new one is inserted, or None to insert before all."""
    spans = document.spans
    order = SECTION_ORDER.get(section_key(name))
    known = [
        (SECTION_ORDER[key], number)
        for number, span in enumerate(spans)
        if (key := section_key(span.name)) in SECTION_ORDER
    ]
    if order is None or not known:
        return spans[-1] if spans else None
    above = [(rank, number) for rank, number in known if rank < order]
    if above:
        # After the last section that the protocol has before this one, wherever others stand.
        return spans[max(above)[1]]
    following = min(number for _, number in known)
    return spans[following - 1] if following else None


def _insert_lines(
    document: NodeDocument, span: SectionSpan | None, lines: list[str], end: str, *, listed: bool = False
) -> str:
    """Return the text with lines inserted after a section, or after the preamble if `span` is None."""
    text = document.text
    start, stop = (span.start_offset, span.end_offset) if span else (0, len(document.preamble))
    if document.closing and stop == len(text):
        # An open fence or HTML block would swallow the entry, so that it is closed first.
        ended = text.endswith(("\n", "\r"))
        return text + ("" if ended else end) + end.join([document.closing, "", *lines]) + (end if ended else "")
    at = _content_end(text, start, stop)
    before, after = text[:at], text[at:]
    # A blank line between checklist items would make a tight list a loose one.
    lead = (end if listed and _continues_list(text[start:at]) else end * 2) if before.strip(BLANK + "\ufeff") else ""
    if INDENTED.match(after):
        lines = [*lines, "", LIST_END]
    return before + lead + end.join(lines) + _separator_after(text, after, end) + after


def _separator_after(text: str, after: str, end: str) -> str:
    """Return the line ends between the inserted lines and the text after them.

    A text without a final line end stays so.
    """
    if not after.strip(BLANK):
        return "" if text else end
    blanks = LEADING_BLANKS.match(after)
    return end * max(0, 2 - len(LINE_END.findall(blanks[0] if blanks else "")))


def _content_end(text: str, start: int, stop: int) -> int:
    """Return the offset of the end of the last line that is not blank, before its line end."""
    reached = start + len(text[start:stop].rstrip(BLANK))
    following = LINE_END.search(text, reached, stop)
    if reached == start:
        return start
    return following.start() if following else stop


def _continues_list(section: str) -> bool:
    """Return whether a section ends with a checklist item that another may follow directly."""
    lines = LINE_END.split(section)
    block: list[str] = []
    while lines and lines[-1].strip(BLANK):
        block.append(lines.pop())
    # An HTML block in the item would continue to the next blank line and contain the new item.
    return CHECKBOX.match(block[0]) is not None and "<" not in "".join(block)
