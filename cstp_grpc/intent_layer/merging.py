"""Putting what was learned into a node's text, which stays as it is to the last byte elsewhere."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it.token import Token

from cstp_grpc.errors import InvalidArgument
from cstp_grpc.intent_layer.markdown import LINE_END, Document, SectionSpan, block_tokens, parse, section_key, trimmed
from cstp_grpc.intent_layer.marks import MARK
from cstp_grpc.intent_layer.model import ROOT, Edits, Learning, LearningType, Node
from cstp_grpc.intent_layer.paths import common_folder, joined
from cstp_grpc.intent_layer.pending import folder_of, name_of_report
from cstp_grpc.intent_layer.placement import new_file
from cstp_grpc.intent_layer.resolution import ORDER, PROTOCOL_SECTIONS
from cstp_grpc.intent_layer.tree import NODE_FILES, Tree

SECTIONS = {
    LearningType.PITFALL: "Pitfalls",
    LearningType.CHECK: "Checks",
    LearningType.PATTERN: "Patterns",
    LearningType.INSIGHT: "Context",
}
CHECKLIST = "checks"

BLANK = " \t\r\n"
LEADING_BLANKS = re.compile(r"(?:[ \t]*(?:\r\n?|\n))*")
CHECKBOX = re.compile(r"- \[[ xX]\] ")
CLOSING_HASHES = re.compile(r"(?<=[ \t])#+\Z|\A#+\Z")
INDENTED = re.compile(r"(?:[ \t]*(?:\r\n?|\n))*[ \t]+[^ \t\r\n]")
LIST_END = "<!-- -->"
"""What keeps an indented heading from becoming part of the item before it."""
DIFF_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """What is put into a section: under a heading of level 3, or as an item of a checklist.

    `learning_id` names the report, which the last line of the entry gives.
    """

    section: str
    checkbox: bool
    title: str
    detail: str
    learning_id: str

    @property
    def mark(self) -> str:
        """The line that says where the entry comes from."""
        return mark_of(self.learning_id)

    def lines(self) -> list[str]:
        """Return the entry as it stands in a node; it neither begins a section nor leaves anything open."""
        text = self._text_below_title()
        detail = [*_contained(text).split("\n"), ""] if text else []
        if not self.checkbox:
            return [f"### {_heading(self.title)}", "", *detail, self.mark]
        return [f"- [ ] {self.title}", "", *(f"  {line}" if line else "" for line in detail), f"  {self.mark}"]

    def _text_below_title(self) -> str:
        """Return the detail without its first paragraph if that is the title."""
        text = trimmed(LINE_END.sub("\n", self.detail))
        first, _, rest = text.partition("\n")
        repeats = " ".join(first.split()) == self.title and not rest.partition("\n")[0].strip()
        return trimmed(rest) if repeats else text


def entry_of(learning: Learning, edits: Edits) -> Entry:
    """Return the entry for a learning as a reviewer wants it.

    Raises InvalidArgument for a section that cannot be a heading.
    """
    section = SECTIONS[learning.type] if edits.section is None else _section(edits.section)
    return Entry(
        section=section,
        checkbox=learning.type is LearningType.CHECK or section_key(section) == CHECKLIST,
        title=" ".join((learning.title if edits.title is None else edits.title).split()),
        detail=learning.detail if edits.detail is None else edits.detail,
        learning_id=learning.id,
    )


def mark_of(learning_id: str) -> str:
    """Return the line by which entries name their report."""
    return MARK.format(name_of_report(learning_id))


def covering(tree: Tree, paths: tuple[str, ...]) -> Node | None:
    """Return the nearest node at or above the lowest folder that all located paths have in common.

    Raises as `Tree.chain` does.
    """
    chain = tree.chain(common_folder(folder_of(tree, path) for path in paths))
    return chain[-1] if chain else None


def target_files(tree: Tree, node: Node | None, section: str) -> tuple[str, ...]:
    """Return the files that an entry goes into, the one that names the node first.

    Of two different ones it is the one that has the section, or else the one that belongs in the folder; of two equal
    ones both, which stay equal.
    """
    if node is None:
        return (new_file(ROOT),)
    if len(node.files) > 1:
        having = [file.path for file in node.files if parse(file.text, file.path).find(section)]
        proper = node.files[0] if node.folder == "." else node.files[-1]
        return (having[0] if having else proper.path,)
    names = [joined(node.folder, name) for name in NODE_FILES]
    documents = {name: tree.document(name) for name in names if name != node.path}
    copies = [name for name, document in documents.items() if document and document.text == node.files[0].text]
    return (node.path, *copies)


def merge(document: Document, entry: Entry) -> str:
    """Return a node's text with an entry at the end of its section.

    Of several sections of that name it is the first. A missing one is created where the protocol's order wants it; one
    that the protocol does not know comes last.
    """
    end = _line_end(document.text)
    spans = document.find(entry.section)
    if spans:
        return _insert(document, spans[0], entry.lines(), end, listed=entry.checkbox)
    name = next((known for known in PROTOCOL_SECTIONS if _same(known, entry.section)), entry.section)
    return _insert(document, _predecessor(document, name), [f"## {name}", "", *entry.lines()], end)


def unified_diff(file: str, before: str | None, after: str) -> str:
    """Return the change to a file, which None says is new, in the form that patch and git apply take."""
    lines = difflib.unified_diff(
        DIFF_LINE.findall(before or ""),
        DIFF_LINE.findall(after),
        "/dev/null" if before is None else f"a/{file}",
        f"b/{file}",
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _section(name: str) -> str:
    """Return the heading that a reviewer asks for, on one line."""
    heading = " ".join(name.split())
    spans = parse(f"## {heading}\n", "").spans
    if not heading or len(spans) != 1 or not _same(spans[0].name, heading):
        raise InvalidArgument.field("edits.section", "cannot be a heading")
    return heading


def _same(name: str, other: str) -> bool:
    return section_key(name) == section_key(other)


def _heading(title: str) -> str:
    """Return a title whose last number signs are read as part of it."""
    return CLOSING_HASHES.sub(lambda match: "\\" + match[0], title)


def _contained(text: str) -> str:
    """Return a text as a quotation where it would otherwise begin a section or an entry, or leave something open."""
    if not parse(text, "").closing and not any(_headings(text)):
        return text
    return "\n".join(f"> {line}" if line else ">" for line in text.split("\n"))


def _headings(text: str) -> Iterator[Token]:
    return (token for token in block_tokens(text) if token.type == "heading_open" and token.level == 0)


def _line_end(text: str) -> str:
    first = LINE_END.search(text)
    return first[0] if first else "\n"


def _predecessor(document: Document, name: str) -> SectionSpan | None:
    """Return the section after which a new one comes; None where that is before all."""
    spans = document.spans
    order = ORDER.get(section_key(name))
    known = [(ORDER[key], number) for number, span in enumerate(spans) if (key := section_key(span.name)) in ORDER]
    if order is None or not known:
        return spans[-1] if spans else None
    above = [(rank, number) for rank, number in known if rank < order]
    if above:
        return spans[max(above)[1]]
    following = min(number for _, number in known)
    return spans[following - 1] if following else None


def _insert(document: Document, span: SectionSpan | None, lines: list[str], end: str, *, listed: bool = False) -> str:
    """Return the text with lines after what a section says; after the preamble where it is None."""
    text = document.text
    start, stop = (span.start_offset, span.end_offset) if span else (0, len(document.preamble))
    if document.closing and stop == len(text):
        return _append_closed(text, document.closing, lines, end)
    at = _content_end(text, start, stop)
    before, after = text[:at], text[at:]
    lead = (end if listed and _continues_list(text[start:at]) else end * 2) if before.strip(BLANK + "\ufeff") else ""
    if INDENTED.match(after):
        lines = [*lines, "", LIST_END]
    return before + lead + end.join(lines) + _trail(text, after, end) + after


def _append_closed(text: str, closing: str, lines: list[str], end: str) -> str:
    """Return the text with lines at its end, after what it leaves open has been closed."""
    ended = text.endswith(("\n", "\r"))
    return text + ("" if ended else end) + end.join([closing, "", *lines]) + (end if ended else "")


def _trail(text: str, after: str, end: str) -> str:
    """Return what keeps inserted lines apart from what comes after them; a text without a last line end stays so."""
    if not after.strip(BLANK):
        return "" if text else end
    blanks = LEADING_BLANKS.match(after)
    return end * max(0, 2 - len(LINE_END.findall(blanks[0] if blanks else "")))


def _content_end(text: str, start: int, stop: int) -> int:
    """Return where the last line ends that is not blank, before its line end."""
    reached = start + len(text[start:stop].rstrip(BLANK))
    following = LINE_END.search(text, reached, stop)
    if reached == start:
        return start
    return following.start() if following else stop


def _continues_list(section: str) -> bool:
    """Return whether a section ends with an item of a checklist that the next one may follow at once."""
    lines = LINE_END.split(section)
    block: list[str] = []
    while lines and lines[-1].strip(BLANK):
        block.append(lines.pop())
    # HTML would go on to the next blank line.
    return CHECKBOX.match(block[0]) is not None and "<" not in "".join(block)
