"""Write rulebooks as YAML that people go on with: one line a value, quotes only where they are needed."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cstp_grpc.enums import Enforcement, Severity
from cstp_grpc.guardrails.input_values import InputType
from cstp_grpc.guardrails.rulebook_format import API_VERSION

WIDTH: Final = 118
"""Columns of a comment."""
# A letter first, since YAML takes other beginnings for something else; no colon, no comment sign, no space at the end.
PLAIN_TEXT: Final = re.compile(r"[A-Za-z][A-Za-z0-9 ,.()'/%_-]*(?<! )")
# The words that YAML 1.1 or 1.2 reads as a bool or as nothing.
WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
"""What JSON leaves as it is and YAML does not accept, or takes for a line break."""


@dataclass(frozen=True, slots=True)
class WrittenGuardrail:
    """A guardrail to write; `projects` are those that it is for, none for all."""

    id: str
    name: str
    when: str
    severity: Severity
    enforcement: Enforcement
    projects: Sequence[str]
    message: str


@dataclass(frozen=True, slots=True)
class WrittenRulebook:
    """A rulebook to write; `inputs` are the types and defaults by name, None for no default."""

    name: str
    version: str
    inputs: Mapping[str, tuple[InputType, bool | None]]
    guardrails: Sequence[WrittenGuardrail]
    comments: Sequence[str]


def write_rulebook(rulebook: WrittenRulebook, title: str) -> str:
    """Return a rulebook as YAML, with comments above it."""
    return "".join(f"{line}\n" for line in rulebook_lines(rulebook, title))


def rulebook_lines(rulebook: WrittenRulebook, title: str) -> Iterator[str]:
    """Yield the lines of a rulebook."""
    yield from comment_lines(title)
    for comment in rulebook.comments:
        yield from comment_lines(f"- {comment}")
    yield f"apiVersion: {API_VERSION}"
    yield f"metadata: {{name: {format_flow_scalar(rulebook.name)}, version: {quote_text(rulebook.version)}}}"
    if rulebook.inputs:
        yield "inputs:"
    for name, (kind, default) in rulebook.inputs.items():
        described = f", default: {json.dumps(default)}" if default is not None else ""
        yield f"  {format_flow_scalar(name)}: {{type: {kind}{described}}}"
    yield "guardrails:"
    for guardrail in rulebook.guardrails:
        yield from guardrail_lines(guardrail)


def guardrail_lines(guardrail: WrittenGuardrail) -> Iterator[str]:
    """Yield the lines of a guardrail."""
    yield f"  - id: {format_scalar(guardrail.id)}"
    yield f"    name: {format_scalar(guardrail.name)}"
    if guardrail.projects:
        yield f"    scope: {{projects: [{', '.join(map(quote_text, guardrail.projects))}]}}"
    yield "    when: >-"
    yield f"      {guardrail.when}"
    yield f"    severity: {guardrail.severity}"
    if guardrail.enforcement is not Enforcement.ENFORCE:
        yield f"    enforcement: {guardrail.enforcement}"
    yield f"    message: {format_scalar(guardrail.message)}"


def comment_lines(text: str) -> Iterator[str]:
    """Yield the lines of a comment."""
    lines = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
    return (f"# {line}" if number == 0 else f"#   {line}" for number, line in enumerate(lines))


def format_scalar(text: str) -> str:
    """Return a text as a YAML value, in quotes only where it needs them."""
    return text if PLAIN_TEXT.fullmatch(text) and text.lower() not in WORDS else quote_text(text)


def format_flow_scalar(text: str) -> str:
    """Return a text as a YAML key, or as a value within braces."""
    return text if "," not in text and format_scalar(text) == text else quote_text(text)


def quote_text(text: str) -> str:
    """Return a text in double quotes, which are those of JSON but for some characters."""
    return ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))
