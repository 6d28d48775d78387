"""A node's file as sections, by markdown-it, with the exact place of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from cstp_grpc.intent_layer.model import Section

MAX_NESTING = 100
"""How deep lists and quotations may nest; the parser reads what lies deeper as one piece, to its end."""

BOM = "\ufeff"
LINE_END = re.compile(r"\r\n?|\n")
FRONT_MATTER_START = re.compile(r"---[ \t]*\n[\w\"'.-][^\n:]*:(?=[ \t\n])")
FRONT_MATTER_END = re.compile(r"^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE)
RESET = re.compile(r"[-*+] (?:[^\s*+-]|\*\*\w)|#{1,6}(?:[ \t]|\Z)|`{3,}[^`]*\Z|~{3,}")
"""How a line at the margin begins that ends every paragraph, list and quotation before it."""
PASSIVE = re.compile(r"[ \t]*(?![ \t`~<]|##(?!#)|-+[ \t]*\Z|=+[ \t]*\Z)[^>]*\Z")
"""Lines that neither begin nor end code or HTML at the margin, nor are headings of level 2 or underline them."""
FENCE_END = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*")
HTML = (
    (
        re.compile(r" {0,3}<(script|pre|style|textarea)(?=[\s>]|\Z)", re.IGNORECASE),
        re.compile(r"</(?:script|pre|style|textarea)>", re.IGNORECASE),
        "</{}>",
    ),
    (re.compile(r" {0,3}<!--"), re.compile("-->"), "-->"),
    (re.compile(r" {0,3}<\?"), re.compile(r"\?>"), "?>"),
    (re.compile(r" {0,3}<!\[CDATA\["), re.compile(r"\]\]>"), "]]>"),
    (re.compile(r" {0,3}<![A-Za-z]"), re.compile(">"), ">"),
)
"""How HTML begins that no blank line ends, what ends it, and what to end it with."""


@dataclass(frozen=True, slots=True)
class SectionSpan:
    """Where a section stands in its text.

    Lines count from 1, offsets in characters from 0. The heading is at `start_offset`, what it heads from
    `body_offset` (on `body_line`) up to `end_offset`, excluded, where the next section starts or the text ends.
    """

    name: str
    heading_line: int
    body_line: int
    start_offset: int
    body_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its sections in their order: the preamble and the spans, put together, are the text to the last byte.

    `closing` is the line that would close a fence or a block of HTML that the text leaves open; empty where it does
    not.
    """

    file: str
    text: str
    spans: tuple[SectionSpan, ...]
    closing: str = ""

    @property
    def preamble(self) -> str:
        """What stands before the first section, a byte order mark and front matter included."""
        return self.text[: self.spans[0].start_offset] if self.spans else self.text

    def source(self, span: SectionSpan) -> str:
        """Return a section as it is written, with its heading."""
        return self.text[span.start_offset : span.end_offset]

    def body(self, span: SectionSpan) -> str:
        """Return a section as it is written, without its heading."""
        return self.text[span.body_offset : span.end_offset]

    def find(self, name: str) -> tuple[SectionSpan, ...]:
        """Return the sections of a name in any case and spacing."""
        key = section_key(name)
        return tuple(span for span in self.spans if section_key(span.name) == key)

    def sections(self) -> tuple[Section, ...]:
        """Return the sections to read on their own: line feeds only, no blank lines around, and nothing left open."""
        return tuple(self._section(span) for span in self.spans)

    def _section(self, span: SectionSpan) -> Section:
        text = trimmed(_with_line_feeds(self.body(span)))
        if self.closing and span is self.spans[-1]:
            text = f"{text}\n{self.closing}"
        return Section(span.name, text, self.file, span.heading_line)


def section_key(name: str) -> str:
    """Return what two headings have in common that name the same section."""
    return " ".join(name.split()).casefold()


def trimmed(text: str) -> str:
    """Return a text without the blank lines around it; the first line keeps its indentation."""
    first = len(text) - len(text.lstrip(" \t\n"))
    return text[text.rfind("\n", 0, first) + 1 :].rstrip(" \t\n")


def parse(text: str, file: str) -> Document:
    """Return a text with the places of its sections.

    Sections begin at headings of level 2 that lie in no list, quotation, code or HTML; front matter is skipped.
    """
    normal = _with_line_feeds(text).replace("\0", "\ufffd")
    front = _front(normal)
    skipped = normal.count("\n", 0, front)
    lines = normal[front:].split("\n")
    telling = _telling(lines)
    source = [lines[number] for number in telling]
    tokens = block_tokens("\n".join(source))
    starts = _line_starts(text)
    places = [
        (" ".join(tokens[number + 1].content.split()), skipped + telling[first], skipped + telling[end - 1] + 1)
        for number, first, end in _headings(tokens)
    ]
    ends = [*(_offset(text, starts, line) for _, line, _ in places[1:]), len(text)]
    spans = (
        SectionSpan(name, line + 1, body + 1, _offset(text, starts, line), _offset(text, starts, body), end)
        for (name, line, body), end in zip(places, ends, strict=False)
    )
    return Document(file, text, tuple(spans), _closing(tokens, source))


def _headings(tokens: list[Token]) -> Iterator[tuple[int, int, int]]:
    """Yield the headings of level 2 that lie in nothing: the number of the token and the lines, the end excluded."""
    for number, token in enumerate(tokens):
        if token.type == "heading_open" and token.level == 0 and token.tag == "h2" and token.map:
            yield number, token.map[0], token.map[1]


def _telling(lines: list[str]) -> list[int]:
    """Return the numbers of the lines that decide what is a heading of level 2.

    The parser takes some 20 µs a line, and most lines of a node decide nothing: where a line at the margin ends all
    paragraphs, lists and quotations, passive lines before it can be left out, save for a blank one, which ends some
    HTML. What code and HTML take in is the same without them.
    """
    telling: list[int] = []
    held: list[int] = []
    blank: int | None = None
    for number, line in enumerate(lines):
        if not line.strip(" \t"):
            held.append(number)
            blank = number if blank is None else blank
            continue
        after_blank = bool(held) and not lines[held[-1]].strip(" \t")
        if line[0] not in " \t" and (after_blank or RESET.match(line)):
            held = [] if blank is None else [blank]
        if PASSIVE.match(line):
            held.append(number)
        else:
            telling += [*held, number]
            held, blank = [], None
    return telling if blank is None else [*telling, blank]


def _block_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": MAX_NESTING})
    # The rulers compile their chains at first use, which two threads must not do at once.
    parser.parse("text")
    return parser


BLOCKS = _block_parser()


def block_tokens(text: str) -> list[Token]:
    """Return the blocks of a text, with what is in their lines left as it is."""
    tokens: list[Token] = []
    BLOCKS.block.parse(text, BLOCKS, {}, tokens)
    return tokens


def block_tree(text: str) -> SyntaxTreeNode:
    """Return the blocks of a text as a tree."""
    return SyntaxTreeNode(block_tokens(text))


def _with_line_feeds(text: str) -> str:
    return LINE_END.sub("\n", text) if "\r" in text else text


def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in LINE_END.finditer(text))]


def _offset(text: str, starts: list[int], line: int) -> int:
    """Return the offset of a line, counted from 0; the one after the last is at the end."""
    if line == 0:
        return 1 if text.startswith(BOM) else 0
    return starts[line] if line < len(starts) else len(text)


def _front(text: str) -> int:
    """Return where Markdown begins: after a byte order mark and front matter.

    Without this the end of front matter would make a heading of its last entry.
    """
    begin = len(BOM) if text.startswith(BOM) else 0
    start = FRONT_MATTER_START.match(text, begin)
    end = start and FRONT_MATTER_END.search(text, start.end())
    return end.end() if end else begin


def _closing(tokens: list[Token], lines: list[str]) -> str:
    """Return what closes the last block of a text, where nothing does."""
    last = tokens[-1] if tokens else None
    if last is None or last.level or last.type not in ("fence", "html_block") or not last.map:
        return ""
    if last.type == "html_block":
        return _html_closing(last.content)
    start, end = last.map
    closed = end - start > 1 and FENCE_END.fullmatch(lines[end - 1])
    return "" if closed and closed[1].startswith(last.markup) else last.markup


def _html_closing(content: str) -> str:
    for start, end, closing in HTML:
        if match := start.match(content):
            return "" if end.search(content) else closing.format(*match.groups())
    return ""
