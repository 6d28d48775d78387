"""What governs a path, as Markdown for an agent to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cstp_grpc.intent_layer.model import Learning, LeftOut, MergedSection, UnreadableReportFile

PENDING = "Pending Learnings"
"""The section that holds what nobody has reviewed yet."""
SHOWN_CHARACTERS = 200
SHOWN_UNREADABLE = 20
"""How many of the reports that cannot be read are listed."""


@dataclass(frozen=True, slots=True)
class Page:
    """What to write down; `origins` tells whether each part says which file it is from."""

    title: str | None
    hierarchy: tuple[str, ...]
    sections: tuple[MergedSection, ...]
    pending: tuple[Learning, ...]
    origins: bool
    left_out: tuple[LeftOut, ...] = ()
    unreadable: tuple[UnreadableReportFile, ...] = ()


def render(page: Page) -> str:
    """Return a page as Markdown, ended by a line feed; empty where it holds nothing.

    The title comes first, then the files from the root down, what was left out, the sections, and the pending
    learnings. Those are quoted, so that no text that nobody has reviewed passes for a section.
    """
    text = "\n\n".join(_blocks(page))
    return f"{text}\n" if text else ""


def _blocks(page: Page) -> Iterator[str]:
    if page.title is not None:
        yield f"# Context for {_shown(page.title)}"
    if page.hierarchy:
        yield "\n".join(f"- `{_shown(file)}`" for file in page.hierarchy)
    if page.left_out:
        yield _comment("left out: " + ", ".join(f"{left.section} ({left.file})" for left in page.left_out))
    for section in page.sections:
        yield f"## {section.name}"
        for part in section.parts:
            yield from _part(page, part.file, part.text)
    if page.pending or page.unreadable:
        yield f"## {PENDING}"
    for learning in page.pending:
        yield f"### {learning.type.upper()}: {' '.join(learning.title.split())}"
        yield from _part(page, learning.file, _quoted(learning.detail))
        if learning.unplaced_paths:
            yield f"Reported for {_code(', '.join(learning.unplaced_paths))}, which is not in this project."
    if page.unreadable:
        yield "Reports that cannot be read:"
        yield "\n".join(_unreadable_lines(page.unreadable))


def _unreadable_lines(reports: Sequence[UnreadableReportFile]) -> Iterator[str]:
    for report in reports[:SHOWN_UNREADABLE]:
        yield f"- {_code(report.file)}: {_shown(report.reason)}"
    if len(reports) > SHOWN_UNREADABLE:
        yield f"- {len(reports) - SHOWN_UNREADABLE} more"


def _code(text: str) -> str:
    """Return a text as inline code, shortened."""
    shown = _shown(text).replace("`", "'")
    return f"`{shown if len(shown) <= SHOWN_CHARACTERS else f'{shown[:SHOWN_CHARACTERS]}…'}`"


def _part(page: Page, file: str, text: str) -> Iterator[str]:
    lines = [_comment(f"from {file}")] if page.origins else []
    if text:
        lines.append(text)
    if lines:
        yield "\n".join(lines)


def _comment(text: str) -> str:
    """Return a comment that its text cannot end."""
    return f"<!-- {_shown(text).replace('>', '&gt;')} -->"


def _shown(text: str) -> str:
    """Return a text on one line."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def _quoted(text: str) -> str:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n").split("\n")
    return "\n".join(f"> {line}".rstrip() for line in lines)
