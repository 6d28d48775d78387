"""Markdown as front matter and sections, by markdown-it, which ignores headings in code blocks."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from cstp_grpc.common.lazy_dataclass import dataclass, field, replace
from cstp_grpc.common.yaml_with_lines import PlainValue, YamlError, YamlReader
from cstp_grpc.modules.importing.model import RecordError, storage_problem

SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The YAML at the beginning of a file; names of `fields` are in lower case, with `_` for `-` and spaces.

    `end` is its number of lines, with fences; 0 if it is missing.
    """

    fields: Mapping[str, PlainValue] = field(default_factory=dict)
    end: int = 0

    def text(self, *names: str) -> str | None:
        """Return the first text of the named fields, or None."""
        return next(iter(self.texts(*names)), None)

    def texts(self, *names: str) -> list[str]:
        """Return the texts of the first named field that has any: the items of a list, or the one value."""
        for name in names:
            value = self.fields.get(name)
            if texts := [text for item in (value if isinstance(value, list) else [value]) if (text := _text_of(item))]:
                return texts
        return []

    def structured(self, *names: str) -> list[str]:
        """Return the named fields that are objects, or lists with objects or lists, which `texts` leaves out."""
        values = {name: self.fields.get(name) for name in names}
        items = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
        return [name for name in names if any(isinstance(item, (dict, list)) for item in items[name])]


def parse_front_matter(lines: list[str]) -> FrontMatter:
    """Return the front matter of a file by its lines. Raises RecordError if its YAML is broken."""
    if not lines or lines[0].rstrip() != "---":
        return FrontMatter()
    # YAML ends a document with `...`, too. Without an end, the first line is a horizontal rule.
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), None)
    if end is None:
        return FrontMatter()
    try:
        # Lines in errors are those of the file; its first one is the fence.
        documents = YamlReader(first_line=2).read("\n".join(lines[1:end]))
    except YamlError as error:
        raise RecordError(f"front matter: {error.reason}", error.line) from None
    values = documents[0].plain if documents else {}
    if not isinstance(values, dict):
        return FrontMatter()
    names = {key: key.strip().lower().replace("-", "_").replace(" ", "_") for key in values}
    return FrontMatter({names[key]: value for key, value in values.items()}, end + 1)


def _text_of(value: PlainValue) -> str | None:
    if value is None or isinstance(value, (list, dict)):
        return None
    text = str(value).strip()
    if problem := storage_problem(text):
        raise RecordError(f"front matter: {problem}")
    return text


@dataclass(frozen=True, slots=True)
class MarkdownLink:
    """A link, and the range of its text in its line."""

    href: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MarkdownLine:
    """A line without markup; `item` is true at the start of a list item, and `cells` are those of a table's row."""

    text: str
    links: tuple[MarkdownLink, ...] = ()
    item: bool = False
    cells: tuple[MarkdownLine, ...] = ()

    def truncate(self, length: int) -> MarkdownLine:
        if len(self.text) <= length:
            return self
        return MarkdownLine(self.text[:length], tuple(link for link in self.links if link.end <= length), self.item)


@dataclass(frozen=True, slots=True)
class MarkdownBlock:
    """A block at the top level, such as a heading, a paragraph, a list or a table.

    `kind` is the name that markdown-it gives it; `start` and `end` number its source lines from 0, end excluded.
    `paragraphs` includes those within lists and quotations; a table's row is one line, with colons between its cells.
    """

    kind: str
    start: int
    end: int
    paragraphs: tuple[tuple[MarkdownLine, ...], ...]


@dataclass(frozen=True, slots=True)
class MarkdownSection:
    """A heading and what follows up to the next heading of any level.

    What comes before the first heading has no heading and the level 0. `start` and `end` number its source lines from
    0, end excluded, and `body` is the first line after the heading.
    """

    heading: MarkdownLine | None
    level: int
    start: int
    body: int
    end: int
    blocks: tuple[MarkdownBlock, ...]

    def lines(self) -> list[MarkdownLine]:
        return [line for block in self.blocks for paragraph in block.paragraphs for line in paragraph]


class MarkdownReader:
    """Splits Markdown into sections; not for several threads at once."""

    def __init__(self) -> None:
        # CommonMark itself has no tables, in which many records have their status or compare options.
        self._parser = MarkdownIt("commonmark").enable("table")

    def read_sections(self, text: str) -> list[MarkdownSection]:
        nodes = SyntaxTreeNode(self._parser.parse(text)).children
        blocks = [MarkdownBlock(node.type, *(node.map or (0, 0)), tuple(_read_paragraphs(node))) for node in nodes]
        heads = [number for number, node in enumerate(nodes) if node.type == "heading"]
        starts = [*(blocks[head].start for head in heads), text.count("\n") + 1]
        bounds = [*heads, len(blocks)]
        sections = [MarkdownSection(None, 0, 0, 0, starts[0], tuple(blocks[: bounds[0]]))]
        for number, head in enumerate(heads):
            heading, level = blocks[head], int(nodes[head].tag.removeprefix("h"))
            body = tuple(blocks[head + 1 : bounds[number + 1]])
            (lines,) = heading.paragraphs
            line = _join_lines(lines, " ")
            sections.append(MarkdownSection(line, level, heading.start, heading.end, starts[number + 1], body))
        return sections


def turn_columns(lines: Sequence[MarkdownLine], keys: Container[str]) -> Iterator[MarkdownLine]:
    """Yield lines; of a table with several known keys in its first row, a line such as `status: Accepted` a cell."""
    heads: tuple[MarkdownLine, ...] = ()
    begun = False
    for line in lines:
        if line.cells and not begun:
            known = [cell.text.strip().lower() in keys for cell in line.cells]
            heads = line.cells if sum(known) > 1 else ()
        begun = bool(line.cells)
        if not heads or not begun:
            yield line
        elif line.cells is not heads:
            yield from (_join_lines(pair, ": ") for pair in zip(heads, line.cells, strict=False))


def _read_paragraphs(block: SyntaxTreeNode) -> Iterator[tuple[MarkdownLine, ...]]:
    starts_item = False
    for node in block.walk():
        if node.type == "list_item":
            starts_item = True
        elif node.type == "tr":
            cells = [_join_lines(_inline_lines(cell.children[0]), " ") for cell in node.children]
            yield (replace(_join_lines(cells, ": "), cells=tuple(cells)),)
        elif node.type == "inline" and node.parent and node.parent.type not in ("th", "td"):
            first, *others = _inline_lines(node)
            yield replace(first, item=starts_item), *others
            starts_item = False


def _inline_lines(inline: SyntaxTreeNode) -> list[MarkdownLine]:
    # Tokens instead of tree nodes, because a link may span the end of a line.
    tokens = (inline.token.children if inline.token else None) or ()
    lines: list[MarkdownLine] = []
    text = ""
    links: list[MarkdownLink] = []
    opened: tuple[str, int] | None = None
    for token in tokens:
        if _ends_line(token):
            lines.append(MarkdownLine(text, tuple(links)))
            text, links = "", []
            # A link that is open at the end of a line goes on at the beginning of the next one.
            opened = opened and (opened[0], 0)
        elif token.type == "link_open":
            opened = (str(token.attrs.get("href", "")), len(text))
        elif token.type == "link_close" and opened:
            links.append(MarkdownLink(opened[0], opened[1], len(text)))
            opened = None
        elif token.type in ("text", "code_inline", "image"):
            text += SPACES.sub(" ", token.content)
    return [*lines, MarkdownLine(text, tuple(links))]


def _ends_line(token: Token) -> bool:
    return token.type in ("softbreak", "hardbreak") or (
        # Within a table's cell there is no other way to begin a line.
        token.type == "html_inline" and token.content.lower().startswith("<br")
    )


def _join_lines(lines: Sequence[MarkdownLine], separator: str) -> MarkdownLine:
    text = ""
    links: list[MarkdownLink] = []
    for line in lines:
        text += separator if text else ""
        links += [MarkdownLink(link.href, link.start + len(text), link.end + len(text)) for link in line.links]
        text += line.text
    return MarkdownLine(text, tuple(links))
