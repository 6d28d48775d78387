"""The format of reports, in which learnings are filed: Markdown for people, for scripts and for this module.

A report begins with the title and one line for each field, which alone identify it; then come sections:

    # PITFALL: Handlers are arrow functions

    **ID**: PITFALL-2026-02-06-a1b2c3d4e5f60718-4567
    **Type**: pitfall
    **Timestamp**: 2026-02-06T10:00:00Z
    **Directory**: src/api
    **Operation**: Handlers are arrow functions
    **Task**: Adding a handler
    **Agent**: worker-3
    **Paths**:
    - src/api/handlers.ts

    ### What Happened

    The loader calls them without a receiver.

    ### Evidence

    TypeError in handlers.ts:12

    ### Disposition

    - [ ] Added to AGENTS.md
    - [ ] Rejected
    - [ ] Deferred

`**Operation**` repeats the title, because other tools read it there; what the agent was doing is in `**Task**`, which
is omitted if it is unknown. `**Paths**` is omitted if it would repeat the directory, `### Evidence` without evidence. A
review ticks its box and adds the fields Review, Reviewer, Reviewed and Reason at the end.

Texts of agents are read back exactly and cannot be mistaken for structure: a field that would not be read back as it is
is written as a JSON string; a section with lines that mean something to Markdown or to scripts as a quotation, and one
with characters that end or hide lines as a list of JSON strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.rfc3339 import format_rfc3339
from cstp_grpc.common.unicode_text import truncate_text
from cstp_grpc.modules.intent_layer import model

DETAIL = "What Happened"
EVIDENCE = "Evidence"
DISPOSITION = "Disposition"
UNKNOWN_AGENT = "unknown"
MAX_TITLE = 200

CHECKBOX_LABELS = {
    model.ReviewVerdict.ACCEPT: "Added to AGENTS.md",
    model.ReviewVerdict.REJECT: "Rejected",
    model.ReviewVerdict.DEFER: "Deferred",
}
CHECKBOX_PATTERNS = {
    model.ReviewVerdict.ACCEPT: re.compile(r"(?m)^(- \[) (\] +(?:added|accept|integrat|\w+ added))", re.IGNORECASE),
    model.ReviewVerdict.REJECT: re.compile(r"(?m)^(- \[) (\] +reject)", re.IGNORECASE),
    model.ReviewVerdict.DEFER: re.compile(r"(?m)^(- \[) (\] +defer)", re.IGNORECASE),
}
"""The checkboxes of each verdict, also in the words of other tools."""
TYPE_BY_PREFIX = {
    **{type_.value: type_ for type_ in model.LearningType},
    "mistake": model.LearningType.PITFALL,
    "skeleton": model.LearningType.PITFALL,
}
"""The learning type by the prefix of an identifier, in lower case; other tools use further prefixes."""
CONTINUATION_SECTIONS = frozenset({"root cause", "why this matters"})
"""Sections of other tools that continue the first one, so that they need no heading in the detail."""
IGNORED_SECTIONS = re.compile(r"how discovered|intent layer gap|suggested .*")
"""Sections of other tools that do not belong to the learning."""
PLACEHOLDER = "_Awaiting analysis_"
"""The text that another tool writes into a section that is to be filled in."""

LINE_END = re.compile(r"\r\n?|\n")
HEADING = re.compile(r"#{2,3}[ \t]+(.*?)[ \t]*(?:[ \t]#+)?")
TITLE = re.compile(r"#{1,2}[ \t]+(?:([A-Za-z]+):(?:[ \t]+|\Z))?(.*)")
UNTITLED = re.compile(r"learning report|(?:mistake|skeleton)(?: report)?|", re.IGNORECASE)
FIELD = re.compile(r"\*\*([A-Za-z ]+)(?:\*\*:|:\*\*)[ \t]*(.*)")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^`]*)")
ID_DATE = re.compile(r"-(\d{4}-\d{2}-\d{2})(?:-|\Z)")
HIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters except line feed and tab, Unicode line separators, and lone surrogates: some readers take them for
the end of a line, none shows them, and UTF-8 cannot encode surrogates.
"""
MARKUP_LINE = re.compile(r"[ \t]*(?:#|\*\*|>|```|~~~|<|-+[ \t]*\Z|=+[ \t]*\Z)")
"""Lines that could be taken for a heading, a field, a quotation, a fence or HTML."""


class ReportFormatError(Exception):
    """A file is not a valid report; the message may be shown."""


@dataclass(frozen=True, slots=True)
class _ReportSection:
    """A section: name, line number of the heading, and text without surrounding blank lines."""

    name: str
    line: int
    text: str

    @property
    def key(self) -> str:
        return self.name.casefold()


@dataclass(frozen=True, slots=True)
class _ReportOutline:
    """The structure of a report: type prefix and title, header lines, and sections."""

    type: str
    title: str
    header: list[str]
    parts: list[_ReportSection]


def format_report(learning: model.Learning, directory: str) -> bytes:
    """Format the report of a learning; `directory` is the common folder of its paths."""
    lines = [f"# {learning.type.upper()}: {_encode_value(learning.title)}", "", *_header_lines(learning, directory), ""]
    lines += [f"### {DETAIL}", "", _encode_block(learning.detail), ""]
    if learning.evidence is not None:
        lines += [f"### {EVIDENCE}", "", _encode_block(learning.evidence), ""]
    content = "\n".join([*lines, *_disposition_lines(), ""]).encode()
    for review in learning.reviews:
        content = add_review(content, review)
    return content


def parse_report(content: bytes, learning_id: str, state: model.LearningState, file: str) -> model.Learning:
    """Parse a report, also one that another tool wrote.

    `learning_id` is the name of its file without the suffix, and overrides the one in the report. Raises
    ReportFormatError if the type, the time or the text is missing.
    """
    # Bytes that are not UTF-8 are replaced: the rest of the report is still worth reading.
    outline = _split_report(content.decode(errors="replace"))
    fields, paths, prose = _parse_header(outline.header)
    operation = fields.get("operation") or None
    detail = _join_detail(outline.parts) or prose
    title = outline.title or _first_line(operation or detail)
    if not detail:
        raise ReportFormatError("the learning is missing")
    return model.Learning(
        id=learning_id,
        type=_learning_type(fields.get("type", ""), outline.type, learning_id),
        state=state,
        at=_filed_at(fields.get("timestamp", ""), learning_id),
        paths=paths or (fields.get("directory") or model.ROOT,),
        title=title,
        detail=detail,
        agent_id=fields.get("agent") or UNKNOWN_AGENT,
        file=file,
        evidence=next((_decode_block(part.text) for part in outline.parts if part.key == EVIDENCE.casefold()), None),
        operation=fields.get("task") or (None if operation == outline.title else operation),
        reviews=tuple(_iter_reviews(outline.parts)),
    )


def add_review(content: bytes, review: model.LearningReview) -> bytes:
    """Return a report with a review added: box ticked, fields at the end, the rest byte for byte."""
    # Reports of other tools may contain bytes that are not UTF-8; they are written back unchanged.
    text = content.decode(errors="surrogateescape")
    first_end = LINE_END.search(text)
    end = first_end[0] if first_end else "\n"
    if text and not text.endswith(("\n", "\r")):
        text += end
    parts = _split_report(text).parts
    if not parts or parts[-1].key != DISPOSITION.casefold():
        text += "".join(line + end for line in ["", *_disposition_lines()])
        parts = _split_report(text).parts
    start = _line_offset(text, parts[-1].line)
    ticked = CHECKBOX_PATTERNS[review.verdict].sub(r"\1x\2", text[start:], count=1)
    note = (
        "",
        f"**Review**: {review.verdict}",
        f"**Reviewer**: {_encode_value(review.reviewer)}",
        f"**Reviewed**: {format_rfc3339(review.at)}",
        f"**Reason**: {_encode_value(review.reason)}" if review.reason else "**Reason**:",
    )
    return (text[:start] + ticked + "".join(line + end for line in note)).encode(errors="surrogateescape")


def has_review(content: bytes, review: model.LearningReview) -> bool:
    return review in _iter_reviews(_split_report(content.decode(errors="replace")).parts)


def _header_lines(learning: model.Learning, directory: str) -> Iterator[str]:
    yield f"**ID**: {learning.id}"
    yield f"**Type**: {learning.type}"
    yield f"**Timestamp**: {format_rfc3339(learning.at)}"
    yield f"**Directory**: {_encode_value(directory)}"
    yield f"**Operation**: {_encode_value(learning.title)}"
    if learning.operation is not None:
        yield f"**Task**: {_encode_value(learning.operation)}"
    yield f"**Agent**: {_encode_value(learning.agent_id)}"
    if learning.paths != (directory,):
        yield "**Paths**:"
        yield from (f"- {_encode_value(path)}" for path in learning.paths)


def _disposition_lines() -> list[str]:
    return [f"### {DISPOSITION}", "", *(f"- [ ] {box}" for box in CHECKBOX_LABELS.values())]


def _encode_value(text: str) -> str:
    """Encode a text as a field value on one line."""
    # A leading quote or backtick would be read back as JSON or as inline code.
    plain = text and text == text.strip() and text[0] not in '"`' and "\t" not in text and "\n" not in text
    return text if plain and not HIDDEN.search(text) else _encode_json_string(text)


def _decode_value(text: str) -> str:
    """Decode a field value that `_encode_value` wrote; other tools put paths in backticks."""
    text = text.strip()
    if text.startswith('"'):
        try:
            value = json.loads(text)
        except ValueError:
            return text
        return value if isinstance(value, str) else text
    return text[1:-1] if len(text) > 2 and text[0] == text[-1] == "`" else text


def _encode_json_string(text: str) -> str:
    """Encode a text as a JSON string that escapes only the hidden characters."""
    return HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def _encode_block(text: str) -> str:
    """Encode a text as the body of a section."""
    lines = text.split("\n")
    if HIDDEN.search(text):
        return "\n".join(["```json", "[", ",\n".join(_encode_json_string(line) for line in lines), "]", "```"])
    if text == text.strip() and text and not any(MARKUP_LINE.match(line) for line in lines):
        return text
    return "\n".join(f"> {line}" if line else ">" for line in lines)


def _decode_block(text: str) -> str:
    """Decode the body of a section that `_encode_block` wrote."""
    lines = text.split("\n")
    if lines[0] == "```json" and lines[-1] == "```":
        try:
            value = json.loads("\n".join(lines[1:-1]))
        except ValueError:
            return text
        return "\n".join(value) if isinstance(value, list) and all(isinstance(line, str) for line in value) else text
    if all(line.startswith(">") for line in lines):
        return "\n".join(line[1:].removeprefix(" ") for line in lines)
    return text


def _line_offset(text: str, line: int) -> int:
    ends = [match.end() for _, match in zip(range(line), LINE_END.finditer(text), strict=False)]
    return ends[-1] if ends else 0


def _split_report(text: str) -> _ReportOutline:
    lines = LINE_END.split(text.removeprefix("\ufeff"))
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    type_, title = _parse_title(lines[first])
    begin = first + 1 if TITLE.fullmatch(lines[first]) else 0
    outside = [number for number in _lines_outside_fences(lines) if number >= begin]
    headings = [(number, match[1]) for number in outside if (match := HEADING.fullmatch(lines[number]))]
    ends = [*(number for number, _ in headings[1:]), len(lines)]
    parts = [
        _ReportSection(name, start, "\n".join(lines[start + 1 : end]).strip("\n"))
        for (start, name), end in zip(headings, ends, strict=False)
    ]
    return _ReportOutline(type_, title, lines[begin : headings[0][0] if headings else None], parts)


def _parse_title(line: str) -> tuple[str, str]:
    """Return the type prefix and the title of a heading line; both empty if it is none or a placeholder."""
    match = TITLE.fullmatch(line)
    if not match:
        return "", ""
    prefix = (match[1] or "").casefold()
    if prefix in TYPE_BY_PREFIX:
        return prefix, _decode_value(match[2])
    title = f"{match[1]}: {match[2]}" if match[1] else match[2]
    return "", "" if UNTITLED.fullmatch(title.strip()) else _decode_value(title)


def _lines_outside_fences(lines: Sequence[str]) -> Iterator[int]:
    """Yield the numbers of the lines outside fences; an unclosed fence counts as text."""
    number = 0
    while number < len(lines):
        opening = FENCE.fullmatch(lines[number])
        closing = _fence_end(lines, number, opening[1]) if opening else None
        if closing is None:
            yield number
            number += 1
        else:
            number = closing + 1


def _fence_end(lines: Sequence[str], opening: int, fence: str) -> int | None:
    for number in range(opening + 1, len(lines)):
        match = FENCE.fullmatch(lines[number])
        if match and match[1].startswith(fence) and not match[2].strip():
            return number
    return None


def _parse_header(header: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...], str]:
    """Return the fields by lower-case name (the first of each), the paths, and the remaining lines."""
    fields: dict[str, str] = {}
    paths: list[str] = []
    prose: list[str] = []
    listing = False
    for line in header:
        if field := FIELD.fullmatch(line):
            name = field[1].strip().casefold()
            listing = name == "paths" and name not in fields
            if listing and field[2].strip():
                paths += [_decode_value(path) for path in field[2].split(",") if path.strip()]
            # The first of a name counts: texts of agents stand below the fields, and cannot override them.
            fields.setdefault(name, _decode_value(field[2]))
        elif listing and line.startswith("- "):
            paths.append(_decode_value(line[2:]))
        else:
            listing = listing and not line.strip()
            prose.append(line)
    return fields, tuple(paths), "\n".join(prose).strip()


def _join_detail(parts: Sequence[_ReportSection]) -> str:
    """Join the text of the sections; repeated text is included once."""
    detailed = [
        part
        for part in parts
        if part.key not in (EVIDENCE.casefold(), DISPOSITION.casefold()) and not IGNORED_SECTIONS.fullmatch(part.key)
    ]
    seen = {PLACEHOLDER}
    texts: list[str] = []
    for part in detailed:
        text = _decode_block(part.text)
        words = " ".join(text.split())
        if part.text.strip() and words not in seen:
            texts.append(text if not texts or part.key in CONTINUATION_SECTIONS else f"**{part.name}**\n\n{text}")
            seen.add(words)
    return "\n\n".join(texts)


def _iter_reviews(parts: Iterable[_ReportSection]) -> Iterator[model.LearningReview]:
    for part in parts:
        if part.key == DISPOSITION.casefold():
            for note in _review_fields(part.text.split("\n")):
                review = _parse_review(note)
                if review:
                    yield review


def _review_fields(lines: Iterable[str]) -> list[dict[str, str]]:
    notes: list[dict[str, str]] = []
    for line in lines:
        if field := FIELD.fullmatch(line):
            name = field[1].strip().casefold()
            if name == "review":
                notes.append({})
            if notes:
                notes[-1].setdefault(name, _decode_value(field[2]))
    return notes


def _parse_review(note: Mapping[str, str]) -> model.LearningReview | None:
    try:
        verdict = model.ReviewVerdict(note["review"].casefold())
        at = _parse_instant(note.get("reviewed", ""))
    except ValueError:
        return None
    return model.LearningReview(verdict, note.get("reviewer", ""), note.get("reason", ""), at)


def _learning_type(field: str, title: str, learning_id: str) -> model.LearningType:
    # What is said expressly first, then what only the name of the file or the title suggests.
    for name in (field.casefold(), learning_id.partition("-")[0].casefold(), title):
        if name in TYPE_BY_PREFIX:
            return TYPE_BY_PREFIX[name]
    raise ReportFormatError("its type is not known")


def _filed_at(field: str, learning_id: str) -> datetime:
    date = ID_DATE.search(learning_id)
    for text in (field, date[1] if date else ""):
        try:
            return _parse_instant(text)
        except ValueError:
            continue
    raise ReportFormatError("it does not say when it was filed")


def _parse_instant(text: str) -> datetime:
    """Parse an instant; UTC is assumed without a zone. Raises ValueError."""
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:
        raise ValueError(text) from None


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.split("\n") if line.strip()), text.strip())
    return truncate_text(line, MAX_TITLE)
