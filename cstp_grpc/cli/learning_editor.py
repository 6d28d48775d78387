"""The text in which a reviewer edits a learning before it is merged."""

from __future__ import annotations

import sys

import click

from cstp_grpc.errors import InvalidArgument
from cstp_grpc.intent_layer.merging import SECTIONS
from cstp_grpc.intent_layer.model import Edits, Learning

TITLE = "Title:"
SECTION = "Section:"


def edit_learning(learning: Learning, edits: Edits) -> Edits:
    """Return the edits that the reviewer makes in an editor, on top of earlier ones.

    Raises InvalidArgument for a text that is not of the form of the one that is offered, click.ClickException if the
    editor fails, click.UsageError if there is none to start without a terminal.
    """
    _require_editor()
    offered = format_edit_buffer(learning, edits)
    edited = click.edit(offered, extension=".md")
    return edits if edited is None or edited == offered else parse_edit_buffer(edited, learning)


def format_edit_buffer(learning: Learning, edits: Edits) -> str:
    """Return the text to edit: the title and the section on a line each, a blank line, and the detail."""
    title = " ".join((edits.title or learning.title).split())
    section = edits.section or SECTIONS[learning.type]
    detail = learning.detail if edits.detail is None else edits.detail
    return f"{TITLE} {title}\n{SECTION} {section}\n\n{detail.rstrip()}\n"


def parse_edit_buffer(text: str, learning: Learning) -> Edits:
    """Return what an edited text changes in a learning. Raises InvalidArgument."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n", 2)
    if len(lines) < 3 or not lines[0].startswith(TITLE) or not lines[1].startswith(SECTION):
        raise InvalidArgument.field("edits", f"must begin with the lines {TITLE} and {SECTION}")
    title, section = lines[0].removeprefix(TITLE).strip(), lines[1].removeprefix(SECTION).strip()
    detail = lines[2].strip("\n")
    return Edits(
        title=None if title == " ".join(learning.title.split()) else title,
        detail=None if detail.rstrip() == learning.detail.strip("\n").rstrip() else detail,
        section=None if section == SECTIONS[learning.type] else section,
    )


def _require_editor() -> None:
    from cstp_grpc.config import inherited_environment

    on_terminal = sys.stdin is not None and sys.stdin.isatty()
    if not on_terminal and not any(inherited_environment(("VISUAL", "EDITOR")).values()):
        raise click.UsageError("There is no terminal to edit on: set EDITOR, or give --title, --detail or --section.")
