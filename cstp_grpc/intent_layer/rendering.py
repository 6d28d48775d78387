"""What governs a path, as Markdown for an agent to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cstp_grpc.intent_layer.model import Learning, LeftOut, MergedSection

PENDING = "Pending Learnings"
"""The section that holds what nobody has reviewed yet."""


@dataclass(frozen=True, slots=True)
class Page:
    """What to write down; `origins` tells whether each part says which file it is from."""

    title: str | None
    hierarchy: tuple[str, ...]
    sections: tuple[MergedSection, ...]
    pending: tuple[Learning, ...]
    origins: bool
    left_out: tuple[LeftOut, ...] = ()


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
    if page.pending:
        yield f"## {PENDING}"
        for learning in page.pending:
            yield f"### {learning.type.upper()}: {' '.join(learning.title.split())}"
            yield from _part(page, learning.file, _quoted(learning.detail))


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
