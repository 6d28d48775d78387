"""A node's file parsed into sections with exact offsets, and the source line of merged learnings."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.modules.intent_layer.model import NodeSection

SOURCE_LINE = "_Source: {}_"
"""The last line of a merged learning, with the file name of its report."""
SOURCE_LINE_PATTERN = SOURCE_LINE.format(r"[^\n]{0,300}")
"""Matches source lines. Bounded, so that a search in a text with many underscores stays linear."""


MAX_NESTING = 100
"""Levels of lists and quotations that are parsed; deeper ones are one block. It bounds the parser's recursion."""

BOM = "\ufeff"
LINE_END = re.compile(r"\r\n?|\n")
FRONT_MATTER_START = re.compile(r"---[ \t]*\n[\w\"'.-][^\n:]*:(?=[ \t\n])")
FRONT_MATTER_END = re.compile(r"^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE)
CONTAINER_BREAK = re.compile(r"[-*+] (?:[^\s*+-]|\*\*\w)|#{1,6}(?:[ \t]|\Z)|`{3,}[^`]*\Z|~{3,}")
"""Lines at the margin that end every paragraph, list and quotation before them."""
INERT_LINE = re.compile(r"[ \t]*(?![ \t`~<]|#{1,3}(?!#)|-+[ \t]*\Z|=+[ \t]*\Z)[^>]*\Z")
"""Lines that neither begin nor end code or HTML at the margin, nor are headings of levels 1 to 3 or underline them."""
FENCE_END = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*")
HTML_BLOCKS = (
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
"""HTML blocks of the kinds 1 to 5, CommonMark 0.31 section 4.6, which no blank line ends: start, end, and the text that
closes one.
"""
LEVELS = {"h1": 1, "h2": 2, "h3": 3}
SECTION_LEVEL = 2
SUBSECTION_LEVEL = 3
INTRODUCTION = "Introduction"
"""The name of the section that holds the text before the first heading of level 2."""
THEMATIC_BREAK = re.compile(r" {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*\Z")
COMMENT_START = re.compile(r" {0,3}<!--")
COMMENT_ON_LINE = re.compile(r"<!--.*?-->")
TITLE = re.compile(r" {0,3}#(?:[ \t]|\Z)")
UNDERLINE = re.compile(r" {0,3}=+[ \t]*\Z")
TITLE_LINES = 20
"""Lines of a title at most; only an underlined (setext) title has several."""
DEFINITION = re.compile(r" {0,3}\[[^\]]+\]:")
DEFINITION_LINES = 200
"""Lines that are parsed to see whether they are link definitions; more are taken for text."""
SECTION_KEY_CACHE_SIZE = 4096
"""Names of sections in the cache of `section_key`, which every context calls for all sections of its nodes."""


@dataclass(frozen=True, slots=True)
class SectionSpan:
    """The offsets of a section in its text.

    Lines count from 1, offsets in characters from 0. The heading is at `start_offset`; the body runs from `body_offset`
    (on `body_line`) to `end_offset` (excluded), where the next section starts or the text ends. `subsections` begin at
    headings of level 3 and end at the next heading of level 1 to 3.
    """

    name: str
    heading_line: int
    body_line: int
    start_offset: int
    body_offset: int
    end_offset: int
    subsections: tuple[SectionSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeDocument:
    """A node's text and its sections in order; preamble and sections together are the text, byte for byte.

    `introduction` is the readable part of the preamble, without the title; it has no heading. `closing` is the line
    that would close a fence or HTML block that the text leaves open, or empty.
    """

    file: str
    text: str
    spans: tuple[SectionSpan, ...]
    introduction: SectionSpan | None = None
    closing: str = ""

    @property
    def preamble(self) -> str:
        """The text before the first section, with byte order mark and front matter."""
        return self.text[: self.spans[0].start_offset] if self.spans else self.text

    def source(self, span: SectionSpan) -> str:
        """Return a section as it is written, with its heading."""
        return self.text[span.start_offset : span.end_offset]

    def body(self, span: SectionSpan) -> str:
        """Return a section as it is written, without its heading."""
        return self.text[span.body_offset : span.end_offset]

    def find(self, name: str) -> tuple[SectionSpan, ...]:
        """Return the sections of a name, ignoring case and spacing."""
        key = section_key(name)
        return tuple(span for span in self.spans if section_key(span.name) == key)

    def section_at(self, line: int, introduction: str = INTRODUCTION) -> str:
        names = [span.name for span in self.spans if span.heading_line <= line]
        return names[-1] if names else introduction

    def sections(self, without: Collection[int] = (), introduction: str = INTRODUCTION) -> tuple[NodeSection, ...]:
        """Return the sections as separate texts, each with line feeds only and nothing left open.

        Blank lines around them are removed. The introduction comes first, under the given name, with the number of its
        first line. Lines whose numbers are in `without` are left out.
        """
        sections = [self._section(span, without) for span in self.spans]
        if self.introduction:
            first = replace(self._section(self.introduction, without), name=introduction)
            sections = [first, *sections] if first.text.strip() or not without else sections
        return tuple(sections)

    def _section(self, span: SectionSpan, without: Collection[int]) -> NodeSection:
        body = _normalize_line_ends(self.body(span))
        if without:
            lines = enumerate(body.split("\n"), span.body_line)
            body = "\n".join(line for number, line in lines if number not in without)
        text = strip_blank_lines(body)
        if self.closing and span.end_offset == len(self.text):
            text = f"{text}\n{self.closing}"
        subsections = tuple(self._section(below, without) for below in span.subsections)
        return NodeSection(span.name, text, self.file, span.heading_line, subsections)


@lru_cache(SECTION_KEY_CACHE_SIZE)
def section_key(name: str) -> str:
    """Return the key by which headings are compared: case and spacing are ignored."""
    return " ".join(name.split()).casefold()


def strip_blank_lines(text: str) -> str:
    """Return a text without surrounding blank lines; the first line keeps its indentation."""
    first = len(text) - len(text.lstrip(" \t\n"))
    return text[text.rfind("\n", 0, first) + 1 :].rstrip(" \t\n")


def parse_node(text: str, file: str) -> NodeDocument:
    """Parse a text into sections.

    Sections begin at headings of level 2 outside lists, quotations, code and HTML; front matter is skipped.
    """
    skipped, body = split_front_matter(text)
    # Not splitlines, which also splits at form feeds and Unicode separators, where Markdown has no line end.
    lines = body.split("\n")
    relevant = _relevant_lines(lines)
    source = [lines[number] for number in relevant]
    tokens = parse_blocks("\n".join(source))
    headings = [
        _Heading(level, name, skipped + relevant[first], skipped + relevant[end - 1] + 1)
        for level, name, first, end in _iter_headings(tokens)
    ]
    # Offsets are those of the original text: the parser saw line feeds only, so that its lines agree, and its offsets
    # would not.
    starts = [0, *(match.end() for match in LINE_END.finditer(text))]
    spans = tuple(_iter_sections(headings, text, starts))
    closing = _unclosed_block_end(tokens, source)
    ending = next((heading.line for heading in headings if heading.level == SECTION_LEVEL), skipped + len(lines))
    whole = bool(closing) and not spans
    first, end = _introduction_lines(lines, ending - skipped, whole=whole)
    introduction = None
    if first < end:
        begin = skipped + first
        end_offset = len(text) if whole else _line_offset(text, starts, skipped + end)
        start = _line_offset(text, starts, begin)
        below = tuple(_iter_subsections(headings, begin, skipped + end, end_offset, text, starts))
        introduction = SectionSpan(INTRODUCTION, begin + 1, begin + 1, start, start, end_offset, below)
    return NodeDocument(file, text, spans, introduction, closing)


def split_front_matter(text: str) -> tuple[int, str]:
    """Return the number of lines before the Markdown, and the Markdown with line feeds only."""
    normal = _normalize_line_ends(text).replace("\0", "\ufffd")
    front = _front_matter_end(normal)
    return normal.count("\n", 0, front), normal[front:]


@dataclass(frozen=True, slots=True)
class _Heading:
    """A top-level heading: its lines, counted from 0, the end excluded."""

    level: int
    name: str
    line: int
    end: int


def _iter_headings(tokens: list[Token]) -> Iterator[tuple[int, str, int, int]]:
    """Yield the top-level headings of levels 1 to 3: level, name and lines, the end excluded."""
    for number, token in enumerate(tokens):
        if token.type == "heading_open" and token.level == 0 and token.tag in LEVELS and token.map:
            first, end = token.map
            yield LEVELS[token.tag], " ".join(tokens[number + 1].content.split()), first, end


def _iter_sections(headings: Sequence[_Heading], text: str, starts: Sequence[int]) -> Iterator[SectionSpan]:
    sections = [heading for heading in headings if heading.level == SECTION_LEVEL]
    ends = [heading.line for heading in sections[1:]]
    for heading, end in zip_longest(sections, ends):
        end_offset = len(text) if end is None else _line_offset(text, starts, end)
        below = _iter_subsections(headings, heading.end, len(starts) if end is None else end, end_offset, text, starts)
        yield _make_span(heading, end_offset, text, starts, tuple(below))


def _iter_subsections(
    headings: Sequence[_Heading], line: int, end: int, end_offset: int, text: str, starts: Sequence[int]
) -> Iterator[SectionSpan]:
    first = bisect_left(headings, line, key=lambda heading: heading.line)
    last = bisect_left(headings, end, key=lambda heading: heading.line)
    for number in range(first, last):
        if headings[number].level == SUBSECTION_LEVEL:
            following = number + 1 < last
            stop = _line_offset(text, starts, headings[number + 1].line) if following else end_offset
            yield _make_span(headings[number], stop, text, starts)


def _make_span(
    heading: _Heading, end_offset: int, text: str, starts: Sequence[int], below: tuple[SectionSpan, ...] = ()
) -> SectionSpan:
    start, body = _line_offset(text, starts, heading.line), _line_offset(text, starts, heading.end)
    return SectionSpan(heading.name, heading.line + 1, heading.end + 1, start, body, end_offset, below)


def _introduction_lines(lines: Sequence[str], end: int, *, whole: bool) -> tuple[int, int]:
    """Return the first line of the introduction and its end (excluded), among the lines before `end`.

    Blank lines, comments and thematic breaks before it are left out, as are the title, and blank lines and thematic
    breaks after it, unless it is `whole`: an unclosed block reaches to the end. Link definitions alone are no
    introduction.
    """
    number, titled = 0, False
    while number < end:
        line = lines[number]
        if not line.strip(" \t") or THEMATIC_BREAK.match(line):
            number += 1
        elif COMMENT_START.match(line) and (after := _comment_end(lines, number, end)):
            number = after
        elif not titled and (after := _title_end(lines, number, end)):
            number, titled = after, True
        else:
            break
    while not whole and number < end and (not lines[end - 1].strip(" \t") or THEMATIC_BREAK.match(lines[end - 1])):
        end -= 1
    return (end, end) if number < end and _has_only_definitions(lines[number:end]) else (number, end)


def _has_only_definitions(lines: Sequence[str]) -> bool:
    """Return whether the lines hold link definitions only; False for more than `DEFINITION_LINES`."""
    alike = len(lines) <= DEFINITION_LINES and all(DEFINITION.match(line) or not line.strip() for line in lines)
    return alike and not parse_blocks("\n".join(lines))


def _comment_end(lines: Sequence[str], first: int, end: int) -> int | None:
    """Return the line after a comment, or None if text follows it on its last line."""
    for number in range(first, end):
        line = lines[number]
        closed = line.find("-->", line.index("<!--") + 4 if number == first else 0)
        if closed >= 0:
            return None if COMMENT_ON_LINE.sub("", line[closed + 3 :]).strip(" \t") else number + 1
    return end


def _title_end(lines: Sequence[str], first: int, end: int) -> int | None:
    """Return the line after the heading of level 1 that begins on a line, or None if none does."""
    if TITLE.match(lines[first]):
        return first + 1
    near = lines[first : min(end, first + TITLE_LINES)]
    if not any(UNDERLINE.match(line) for line in near):
        return None
    token = next(iter(parse_blocks("\n".join(near))), None)
    is_title = token is not None and token.type == "heading_open" and token.tag == "h1"
    return first + token.map[1] if token and is_title and token.map else None


def _relevant_lines(lines: list[str]) -> list[int]:
    """Return the numbers of the lines that can affect headings of levels 1 to 3.

    The parser takes some 20 µs a line, so skipping the others makes parsing several times faster. If a line at the
    margin ends all paragraphs, lists and quotations, inert lines before it can be left out, except one blank line,
    which ends some HTML. The extent of code and HTML is the same without them.
    """
    relevant: list[int] = []
    held: list[int] = []
    blank: int | None = None
    for number, line in enumerate(lines):
        if not line.strip(" \t"):
            held.append(number)
            blank = number if blank is None else blank
            continue
        after_blank = bool(held) and not lines[held[-1]].strip(" \t")
        if line[0] not in " \t" and (after_blank or CONTAINER_BREAK.match(line)):
            held = [] if blank is None else [blank]
        if INERT_LINE.match(line):
            held.append(number)
        else:
            relevant += [*held, number]
            held, blank = [], None
    return relevant if blank is None else [*relevant, blank]


def _build_block_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": MAX_NESTING})
    # The rulers of markdown-it compile their chains at first use, which two threads must not do at once. Afterwards
    # the parser has no state that parsing changes, and all threads share it.
    parser.parse("text")
    return parser


BLOCK_PARSER = _build_block_parser()


def parse_blocks(text: str) -> list[Token]:
    """Parse a text into block tokens, without parsing inline content."""
    # Not MarkdownIt.parse, which would parse the inline content too, and that takes most of its time.
    tokens: list[Token] = []
    BLOCK_PARSER.block.parse(text, BLOCK_PARSER, {}, tokens)
    return tokens


def parse_block_tree(text: str) -> SyntaxTreeNode:
    return SyntaxTreeNode(parse_blocks(text))


def _normalize_line_ends(text: str) -> str:
    return LINE_END.sub("\n", text) if "\r" in text else text


def _line_offset(text: str, starts: Sequence[int], line: int) -> int:
    """Return the offset of a line, counted from 0; one past the last line gives the length."""
    if line == 0:
        return 1 if text.startswith(BOM) else 0
    return starts[line] if line < len(starts) else len(text)


def _front_matter_end(text: str) -> int:
    """Return the offset of the Markdown, after a byte order mark and front matter.

    Otherwise the end of front matter would turn its last entry into a heading.
    """
    begin = len(BOM) if text.startswith(BOM) else 0
    start = FRONT_MATTER_START.match(text, begin)
    end = start and FRONT_MATTER_END.search(text, start.end())
    return end.end() if end else begin


def _unclosed_block_end(tokens: list[Token], lines: list[str]) -> str:
    last = tokens[-1] if tokens else None
    if last is None or last.level or last.type not in ("fence", "html_block") or not last.map:
        return ""
    if last.type == "html_block":
        return _unclosed_html_end(last.content)
    start, end = last.map
    closed = end - start > 1 and FENCE_END.fullmatch(lines[end - 1])
    return "" if closed and closed[1].startswith(last.markup) else last.markup


def _unclosed_html_end(content: str) -> str:
    for start, end, closing in HTML_BLOCKS:
        if match := start.match(content):
            return "" if end.search(content) else closing.format(*match.groups())
    return ""
