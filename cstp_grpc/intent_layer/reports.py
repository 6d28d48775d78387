"""The reports in which learnings are filed: Markdown that people, scripts and this module read alike.

A report begins with the title and one line for each field, which is all that tells what it is; then come sections:

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

`**Operation**` repeats the title, which other tools look for there; what the agent was doing is in `**Task**`, which is
left out if it was not said. `**Paths**` is left out where the directory says it all, `### Evidence` where there is
none. A review ticks its box and adds the fields Review, Reviewer, Reviewed and Reason at the end.

What an agent wrote comes back to the last character and can be taken for nothing else: where a field would not be read
back as it is, it is a JSON string; a section that holds lines which mean something to Markdown or to scripts is a
quotation, and one with characters that end or hide lines is a list of JSON strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cstp_grpc.intent_layer.model import ROOT, Learning, LearningState, LearningType, Review, ReviewVerdict

DETAIL = "What Happened"
EVIDENCE = "Evidence"
DISPOSITION = "Disposition"
UNKNOWN_AGENT = "unknown"
MAX_TITLE = 200

BOXES = {
    ReviewVerdict.ACCEPT: "Added to AGENTS.md",
    ReviewVerdict.REJECT: "Rejected",
    ReviewVerdict.DEFER: "Deferred",
}
TICKABLE = {
    ReviewVerdict.ACCEPT: re.compile(r"(?m)^(- \[) (\] +(?:added|accept|integrat|\w+ added))", re.IGNORECASE),
    ReviewVerdict.REJECT: re.compile(r"(?m)^(- \[) (\] +reject)", re.IGNORECASE),
    ReviewVerdict.DEFER: re.compile(r"(?m)^(- \[) (\] +defer)", re.IGNORECASE),
}
"""The boxes of a verdict, as other tools name them too."""
PREFIXES = {
    **{type_.value: type_ for type_ in LearningType},
    "mistake": LearningType.PITFALL,
    "skeleton": LearningType.PITFALL,
}
"""What identifiers begin with, in lower case; other tools know more than there are types."""
REASONS = frozenset({"root cause", "why this matters"})
"""Sections of other tools that go on with what the first one tells."""
SCAFFOLDING = re.compile(r"how discovered|intent layer gap|suggested .*")
"""Sections of other tools that tell nothing of what was learned."""
PLACEHOLDER = "_Awaiting analysis_"
"""The text of a section that another tool left for somebody to fill in."""

LINE_END = re.compile(r"\r\n?|\n")
HEADING = re.compile(r"#{2,3}[ \t]+(.*?)[ \t]*(?:[ \t]#+)?")
TITLE = re.compile(r"#{1,2}[ \t]+(?:([A-Za-z]+):(?:[ \t]+|\Z))?(.*)")
UNTITLED = re.compile(r"learning report|(?:mistake|skeleton)(?: report)?|", re.IGNORECASE)
FIELD = re.compile(r"\*\*([A-Za-z ]+)(?:\*\*:|:\*\*)[ \t]*(.*)")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^`]*)")
ID_DATE = re.compile(r"-(\d{4}-\d{2}-\d{2})(?:-|\Z)")
HIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters, line feeds and tabs aside, that end a line for some readers, that none shows or no file keeps."""
MEANINGFUL = re.compile(r"[ \t]*(?:#|\*\*|>|```|~~~|<|-+[ \t]*\Z|=+[ \t]*\Z)")
"""Lines that could be taken for a heading, a field, a quotation, a fence or HTML."""


class UnreadableReport(Exception):
    """A file that is no report; the message says why and may be shown."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A section: its name, the number of the line of its heading, and the text below without blank lines around."""

    name: str
    line: int
    text: str

    @property
    def key(self) -> str:
        return self.name.casefold()


@dataclass(frozen=True, slots=True)
class _Outline:
    """What a report is made of: the title with what it says of the type, the lines up to the sections, and these."""

    type: str
    title: str
    header: list[str]
    parts: list[_Part]


def write(learning: Learning, directory: str) -> bytes:
    """Return the report of a learning; `directory` is the folder that its paths have in common."""
    lines = [f"# {learning.type.upper()}: {_inline(learning.title)}", "", *_header(learning, directory), ""]
    lines += [f"### {DETAIL}", "", _block(learning.detail), ""]
    if learning.evidence is not None:
        lines += [f"### {EVIDENCE}", "", _block(learning.evidence), ""]
    content = "\n".join([*lines, *_disposition(), ""]).encode()
    for review in learning.reviews:
        content = add_review(content, review)
    return content


def read(content: bytes, learning_id: str, state: LearningState, file: str) -> Learning:
    """Return the learning in a report, also in one that another tool wrote.

    `learning_id` is the name of its file without the ending, and holds whatever the report says. Raises
    UnreadableReport where the type or the time cannot be told, or where nothing was reported.
    """
    outline = _outline(content.decode(errors="replace"))
    fields, paths, prose = _fields(outline.header)
    operation = fields.get("operation") or None
    detail = _detail(outline.parts) or prose
    title = outline.title or _one_line(operation or detail)
    if not detail:
        raise UnreadableReport("it does not say what was learned")
    return Learning(
        id=learning_id,
        type=_type(fields.get("type", ""), outline.type, learning_id),
        state=state,
        at=_time(fields.get("timestamp", ""), learning_id),
        paths=paths or (fields.get("directory") or ROOT,),
        title=title,
        detail=detail,
        agent_id=fields.get("agent") or UNKNOWN_AGENT,
        file=file,
        evidence=next((_unblock(part.text) for part in outline.parts if part.key == EVIDENCE.casefold()), None),
        operation=fields.get("task") or (None if operation == outline.title else operation),
        reviews=tuple(_reviews(outline.parts)),
    )


def add_review(content: bytes, review: Review) -> bytes:
    """Return a report with a review noted: its box ticked, its fields at the end, the rest byte for byte."""
    text = content.decode(errors="surrogateescape")
    first_end = LINE_END.search(text)
    end = first_end[0] if first_end else "\n"
    if text and not text.endswith(("\n", "\r")):
        text += end
    parts = _outline(text).parts
    if not parts or parts[-1].key != DISPOSITION.casefold():
        text += "".join(line + end for line in ["", *_disposition()])
        parts = _outline(text).parts
    start = _offset(text, parts[-1].line)
    ticked = TICKABLE[review.verdict].sub(r"\1x\2", text[start:], count=1)
    note = (
        "",
        f"**Review**: {review.verdict}",
        f"**Reviewer**: {_inline(review.reviewer)}",
        f"**Reviewed**: {timestamp(review.at)}",
        f"**Reason**: {_inline(review.reason)}" if review.reason else "**Reason**:",
    )
    return (text[:start] + ticked + "".join(line + end for line in note)).encode(errors="surrogateescape")


def has_review(content: bytes, review: Review) -> bool:
    """Return whether a review is noted in a report."""
    return review in _reviews(_outline(content.decode(errors="replace")).parts)


def timestamp(at: datetime) -> str:
    """Return an aware instant as RFC 3339 writes it in UTC."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _header(learning: Learning, directory: str) -> Iterator[str]:
    yield f"**ID**: {learning.id}"
    yield f"**Type**: {learning.type}"
    yield f"**Timestamp**: {timestamp(learning.at)}"
    yield f"**Directory**: {_inline(directory)}"
    yield f"**Operation**: {_inline(learning.title)}"
    if learning.operation is not None:
        yield f"**Task**: {_inline(learning.operation)}"
    yield f"**Agent**: {_inline(learning.agent_id)}"
    if learning.paths != (directory,):
        yield "**Paths**:"
        yield from (f"- {_inline(path)}" for path in learning.paths)


def _disposition() -> list[str]:
    return [f"### {DISPOSITION}", "", *(f"- [ ] {box}" for box in BOXES.values())]


def _inline(text: str) -> str:
    """Return a text as the value of a field, on one line."""
    plain = text and text == text.strip() and text[0] not in '"`' and "\t" not in text and "\n" not in text
    return text if plain and not HIDDEN.search(text) else _json(text)


def _value(text: str) -> str:
    """Return what `_inline` was given; other tools put paths in backticks."""
    text = text.strip()
    if text.startswith('"'):
        try:
            value = json.loads(text)
        except ValueError:
            return text
        return value if isinstance(value, str) else text
    return text[1:-1] if len(text) > 2 and text[0] == text[-1] == "`" else text


def _json(text: str) -> str:
    """Return a JSON string that spells out the hidden characters only."""
    return HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def _block(text: str) -> str:
    """Return a text as a section."""
    lines = text.split("\n")
    if HIDDEN.search(text):
        return "\n".join(["```json", "[", ",\n".join(_json(line) for line in lines), "]", "```"])
    if text == text.strip() and text and not any(MEANINGFUL.match(line) for line in lines):
        return text
    return "\n".join(f"> {line}" if line else ">" for line in lines)


def _unblock(text: str) -> str:
    """Return what `_block` was given."""
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


def _lines(text: str) -> list[str]:
    return LINE_END.split(text.removeprefix("\ufeff"))


def _offset(text: str, line: int) -> int:
    """Return where a line begins; lines count from 0."""
    ends = [match.end() for _, match in zip(range(line), LINE_END.finditer(text), strict=False)]
    return ends[-1] if ends else 0


def _outline(text: str) -> _Outline:
    lines = _lines(text)
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    type_, title = _title(lines[first])
    begin = first + 1 if TITLE.fullmatch(lines[first]) else 0
    outside = [number for number in _outside_fences(lines) if number >= begin]
    headings = [(number, match[1]) for number in outside if (match := HEADING.fullmatch(lines[number]))]
    ends = [*(number for number, _ in headings[1:]), len(lines)]
    parts = [
        _Part(name, start, "\n".join(lines[start + 1 : end]).strip("\n"))
        for (start, name), end in zip(headings, ends, strict=False)
    ]
    return _Outline(type_, title, lines[begin : headings[0][0] if headings else None], parts)


def _title(line: str) -> tuple[str, str]:
    """Return what a title says of the type, and the rest of it; empty where the line is none, or says nothing."""
    match = TITLE.fullmatch(line)
    if not match:
        return "", ""
    prefix = (match[1] or "").casefold()
    if prefix in PREFIXES:
        return prefix, _value(match[2])
    title = f"{match[1]}: {match[2]}" if match[1] else match[2]
    return "", "" if UNTITLED.fullmatch(title.strip()) else _value(title)


def _outside_fences(lines: Sequence[str]) -> Iterator[int]:
    """Yield the numbers of the lines that lie in no fence; one that nothing ends is none."""
    number = 0
    while number < len(lines):
        opening = FENCE.fullmatch(lines[number])
        closing = _closing(lines, number, opening[1]) if opening else None
        if closing is None:
            yield number
            number += 1
        else:
            number = closing + 1


def _closing(lines: Sequence[str], opening: int, fence: str) -> int | None:
    for number in range(opening + 1, len(lines)):
        match = FENCE.fullmatch(lines[number])
        if match and match[1].startswith(fence) and not match[2].strip():
            return number
    return None


def _fields(header: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...], str]:
    """Return the fields by name in lower case, the first of each; the paths; and what else stands among them."""
    fields: dict[str, str] = {}
    paths: list[str] = []
    prose: list[str] = []
    listing = False
    for line in header:
        if field := FIELD.fullmatch(line):
            name = field[1].strip().casefold()
            listing = name == "paths" and name not in fields
            if listing and field[2].strip():
                paths += [_value(path) for path in field[2].split(",") if path.strip()]
            fields.setdefault(name, _value(field[2]))
        elif listing and line.startswith("- "):
            paths.append(_value(line[2:]))
        else:
            listing = listing and not line.strip()
            prose.append(line)
    return fields, tuple(paths), "\n".join(prose).strip()


def _detail(parts: Sequence[_Part]) -> str:
    """Return what the sections tell; what several of them say is told once."""
    telling = [
        part
        for part in parts
        if part.key not in (EVIDENCE.casefold(), DISPOSITION.casefold()) and not SCAFFOLDING.fullmatch(part.key)
    ]
    said = {PLACEHOLDER}
    told: list[str] = []
    for part in telling:
        text = _unblock(part.text)
        words = " ".join(text.split())
        if part.text.strip() and words not in said:
            told.append(text if not told or part.key in REASONS else f"**{part.name}**\n\n{text}")
            said.add(words)
    return "\n\n".join(told)


def _reviews(parts: Iterable[_Part]) -> Iterator[Review]:
    for part in parts:
        if part.key == DISPOSITION.casefold():
            for note in _notes(part.text.split("\n")):
                review = _review(note)
                if review:
                    yield review


def _notes(lines: Iterable[str]) -> list[dict[str, str]]:
    """Return the fields of each review."""
    notes: list[dict[str, str]] = []
    for line in lines:
        if field := FIELD.fullmatch(line):
            name = field[1].strip().casefold()
            if name == "review":
                notes.append({})
            if notes:
                notes[-1].setdefault(name, _value(field[2]))
    return notes


def _review(note: Mapping[str, str]) -> Review | None:
    try:
        verdict = ReviewVerdict(note["review"].casefold())
        at = _instant(note.get("reviewed", ""))
    except ValueError:
        return None
    return Review(verdict, note.get("reviewer", ""), note.get("reason", ""), at)


def _type(field: str, title: str, learning_id: str) -> LearningType:
    for name in (field.casefold(), learning_id.partition("-")[0].casefold(), title):
        if name in PREFIXES:
            return PREFIXES[name]
    raise UnreadableReport("its type is not known")


def _time(field: str, learning_id: str) -> datetime:
    date = ID_DATE.search(learning_id)
    for text in (field, date[1] if date else ""):
        try:
            return _instant(text)
        except ValueError:
            continue
    raise UnreadableReport("it does not say when it was filed")


def _instant(text: str) -> datetime:
    """Return an instant in UTC, which is also assumed where no zone is given. Raises ValueError."""
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:
        raise ValueError(text) from None


def _one_line(text: str) -> str:
    """Return the first line with anything in it, shortened."""
    line = next((line.strip() for line in text.split("\n") if line.strip()), text.strip())
    return line if len(line) <= MAX_TITLE else line[: MAX_TITLE - 1].rstrip() + "…"
