"""Markdown as sections, lines and links, by markdown-it: what looks like a heading in a code block is none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markdown_it import MarkdownIt
from markdown_it.token import Token

SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Link:
    """A link, and where its text stands in its line."""

    href: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Line:
    """A line as a reader sees it, without markup; `item` tells that it begins an item of a list."""

    text: str
    links: tuple[Link, ...] = ()
    item: bool = False

    def head(self, length: int) -> Line:
        """Return the line, cut where it is longer."""
        if len(self.text) <= length:
            return self
        return Line(self.text[:length], tuple(link for link in self.links if link.end <= length), self.item)


@dataclass(frozen=True, slots=True)
class Block:
    """A heading, a paragraph, a list, a table or the like that lies in no other.

    `kind` is what markdown-it calls its beginning; `start` and `end` number its source lines from 0, end excluded.
    `paragraphs` are those within lists and quotations, too; a row of a table is one line, with a colon between its
    cells.
    """

    kind: str
    tag: str
    start: int
    end: int
    paragraphs: tuple[tuple[Line, ...], ...]

    def lines(self) -> list[Line]:
        """Return the lines of its paragraphs."""
        return [line for paragraph in self.paragraphs for line in paragraph]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what follows up to the next heading of any level.

    What stands before the first heading has no heading and the level 0. `start` and `end` number its source lines
    from 0, end excluded, and `body` is the first line after the heading.
    """

    heading: Line | None
    level: int
    start: int
    body: int
    end: int
    blocks: tuple[Block, ...]

    def lines(self) -> list[Line]:
        """Return the lines of all its blocks."""
        return [line for block in self.blocks for line in block.lines()]


class MarkdownReader:
    """Splits Markdown into sections; not for several threads at once."""

    def __init__(self) -> None:
        self._parser = MarkdownIt("commonmark").enable("table")

    def sections(self, text: str) -> list[Section]:
        """Return the sections of a text with line feeds only, the one before the first heading first of all."""
        blocks = [_block(tokens) for tokens in _groups(self._parser.parse(text))]
        heads = [number for number, block in enumerate(blocks) if block.kind == "heading_open"]
        starts = [*(blocks[head].start for head in heads), text.count("\n") + 1]
        bounds = [*heads, len(blocks)]
        sections = [Section(None, 0, 0, 0, starts[0], tuple(blocks[: bounds[0]]))]
        for number, head in enumerate(heads):
            body = tuple(blocks[head + 1 : bounds[number + 1]])
            sections.append(_section(blocks[head], starts[number + 1], body))
        return sections


def _section(head: Block, end: int, body: tuple[Block, ...]) -> Section:
    return Section(_joined(head.lines(), " "), int(head.tag[1:]), head.start, head.end, end, body)


def _groups(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each block that lies in no other."""
    group: list[Token] = []
    for token in tokens:
        group.append(token)
        if token.level == 0 and token.nesting <= 0:
            yield group
            group = []


def _block(tokens: Sequence[Token]) -> Block:
    start, end = tokens[0].map or (0, 0)
    return Block(tokens[0].type, tokens[0].tag, start, end, tuple(_paragraphs(tokens)))


def _paragraphs(tokens: Sequence[Token]) -> Iterator[tuple[Line, ...]]:
    item = False
    row: list[Line] | None = None
    for token in tokens:
        if token.type == "list_item_open":
            item = True
        elif token.type == "tr_open":
            row = []
        elif token.type == "tr_close" and row is not None:
            yield (_joined(row, ": "),)
            row = None
        elif token.type == "inline" and row is not None:
            row.append(_joined(_inline_lines(token), " "))
        elif token.type == "inline":
            first, *others = _inline_lines(token)
            yield replace(first, item=item), *others
            item = False


def _inline_lines(inline: Token) -> list[Line]:
    lines: list[Line] = []
    text = ""
    links: list[Link] = []
    opened: tuple[str, int] | None = None
    for token in inline.children or ():
        if _breaks(token):
            lines.append(Line(text, tuple(links)))
            text, links = "", []
            opened = opened and (opened[0], 0)
        elif token.type == "link_open":
            opened = (str(token.attrs.get("href", "")), len(text))
        elif token.type == "link_close" and opened:
            links.append(Link(opened[0], opened[1], len(text)))
            opened = None
        elif token.type in ("text", "code_inline", "image"):
            text += SPACES.sub(" ", token.content)
    return [*lines, Line(text, tuple(links))]


def _breaks(token: Token) -> bool:
    return token.type in ("softbreak", "hardbreak") or (
        token.type == "html_inline" and token.content.lower().startswith("<br")
    )


def _joined(lines: Sequence[Line], separator: str) -> Line:
    text = ""
    links: list[Link] = []
    for line in lines:
        text += separator if text else ""
        links += [Link(link.href, link.start + len(text), link.end + len(text)) for link in line.links]
        text += line.text
    return Line(text, tuple(links))
