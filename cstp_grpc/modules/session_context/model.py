"""Session contexts: the parts of the context for an agent that starts a session."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.guardrails.rules_in_force import ListedGuardrail, ListedInput
from cstp_grpc.core.intents.model import CodeNote
from cstp_grpc.core.intents.related_intents import RelatedIntent


class SessionContextPart(StrEnum):
    """A part of a session context; the values are the names of the fields of `SessionContext`.

    They are in the order of the Markdown, which is also that in which the parts are served within a round.
    """

    REVIEWS_DUE = "reviews_due"
    FAILURES = "failures"
    RELATED_INTENTS = "related_intents"
    GUARDRAILS = "guardrails"
    LESSONS = "lessons"
    SUMMARIES = "summaries"
    CODE = "code"
    CALIBRATION = "calibration"
    INPUTS = "inputs"
    RECENT = "recent"


@dataclass(frozen=True, slots=True)
class SessionContextRequest:
    """The subject of the session; `task` is the next task of the agent, in words."""

    max_tokens: int
    task: str | None = None
    project: str | None = None
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfidenceMeaning:
    """How often decisions with a confidence from `lower` to a tenth above it succeeded; category None is all."""

    category: str | None
    lower: float
    count: int
    success_rate: float
    is_misleading: bool


@dataclass(frozen=True, slots=True)
class GoverningNote:
    """The text of a binding section of a node."""

    section: str
    note: CodeNote


@dataclass(frozen=True, slots=True)
class OmittedPart:
    """How many items of a part were read and left out; `more` if further ones were not even read."""

    part: SessionContextPart
    count: int
    more: bool


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The past and the surroundings of an agent, as far as it may read them; each part has the most useful item first.

    `unread` are the parts that have further items. `missing` describes the parts that could not be read.
    """

    agent: str
    read_at: datetime
    reviews_due: tuple[Decision, ...] = ()
    failures: tuple[Decision, ...] = ()
    recent: tuple[Decision, ...] = ()
    lessons: tuple[Decision, ...] = ()
    summaries: tuple[Decision, ...] = ()
    guardrails: tuple[ListedGuardrail, ...] = ()
    inputs: tuple[ListedInput, ...] = ()
    calibration: tuple[ConfidenceMeaning, ...] = ()
    related_intents: tuple[RelatedIntent, ...] = ()
    code: tuple[GoverningNote, ...] = ()
    unread: frozenset[SessionContextPart] = frozenset()
    missing: tuple[str, ...] = ()

    def items_of(self, part: SessionContextPart) -> tuple[Any, ...]:
        items: tuple[Any, ...] = getattr(self, part.value)
        return items

    def keep_first(self, counts: Mapping[SessionContextPart, int]) -> SessionContext:
        kept: dict[str, Any] = {part.value: self.items_of(part)[:count] for part, count in counts.items()}
        return replace(self, **kept)

    def omissions(self, counts: Mapping[SessionContextPart, int]) -> tuple[OmittedPart, ...]:
        """Return the omissions if only so many items of each part are kept, in the order of the parts."""
        left = [
            OmittedPart(part, len(self.items_of(part)) - counts[part], part in self.unread)
            for part in SessionContextPart
        ]
        return tuple(each for each in left if each.count or each.more)


@dataclass(frozen=True, slots=True)
class FittedContext:
    """A session context cut to a budget, with its Markdown and the omitted items."""

    context: SessionContext
    left_out: tuple[OmittedPart, ...]
    markdown: str
    tokens: int
