"""Plain values, by the names of the contract, as the content of a decision; what does not fit is an error."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from cstp_grpc.decisions.importing.dates import DateError, parse_date
from cstp_grpc.decisions.importing.plain_yaml import Plain
from cstp_grpc.decisions.importing.text import (
    CONTEXT_LIMIT,
    LINKS_LIMIT,
    NAME_LIMIT,
    NOTES_LIMIT,
    PROJECT_LIMIT,
    REASON_LIMIT,
    REASONS_LIMIT,
    TAGS_LIMIT,
    TITLE_LIMIT,
    clip,
    flaw,
    is_blank,
    one_line,
)
from cstp_grpc.decisions.model import DecisionContent, Reason
from cstp_grpc.vocabulary import DecisionStatus, Outcome, Stakes, Visibility

E = TypeVar("E", bound=StrEnum)

ID_LIMIT = 200
ENUMS: Mapping[str, type[StrEnum]] = {
    "stakes": Stakes,
    "status": DecisionStatus,
    "outcome": Outcome,
    "visibility": Visibility,
}
FIELDS = (
    "title",
    "context",
    "category",
    "stakes",
    "confidence",
    "status",
    "outcome",
    "date",
    "notes",
    "reasons",
    "tags",
    "project",
    "visibility",
)
"""The fields of a decision's content."""


class FieldError(Exception):
    """A value does not fit its field; the message names the field."""


class FieldReader:
    """Reads the fields of one decision; `remarks` tells what had to be cut."""

    def __init__(self, values: Mapping[str, Plain]) -> None:
        self._values = values
        self.remarks: list[str] = []

    def content(self) -> DecisionContent:
        """Return the content of the decision. Raises FieldError for the first value that does not fit."""
        title = self._cut("title", TITLE_LIMIT)
        if title is None:
            raise FieldError("title: it is missing or blank")
        return DecisionContent(
            title=one_line(title),
            context=self._cut("context", CONTEXT_LIMIT),
            category=self._name("category", NAME_LIMIT),
            stakes=self.word("stakes", Stakes),
            confidence=self.share("confidence"),
            status=self.word("status", DecisionStatus),
            outcome=self.word("outcome", Outcome),
            date=self._date("date"),
            notes=self._cut("notes", NOTES_LIMIT),
            reasons=self._reasons("reasons"),
            tags=self._names("tags", NAME_LIMIT, TAGS_LIMIT),
            project=self._name("project", PROJECT_LIMIT),
            visibility=self.word("visibility", Visibility) or Visibility.PRIVATE,
        )

    def identifier(self, name: str = "id") -> str | None:
        """Return what the file calls the decision."""
        return self._name(name, ID_LIMIT)

    def identifiers(self, name: str) -> tuple[str, ...]:
        """Return the identifiers of other decisions: a list of them, one, or several separated by commas."""
        return self._names(name, ID_LIMIT, LINKS_LIMIT)

    def word(self, name: str, words: type[E]) -> E | None:
        """Return one of the contract's words, whatever its case."""
        text = as_text(name, self._values.get(name))
        if text is None:
            return None
        try:
            return words(text.lower())
        except ValueError:
            raise FieldError(f"{name}: {_quoted(text)} is none of {', '.join(words)}") from None

    def share(self, name: str) -> float | None:
        """Return a number from 0 to 1."""
        value = self._values.get(name)
        text = as_text(name, value)
        if text is None:
            return None
        try:
            number = float(text)
        except ValueError:
            raise FieldError(f"{name}: {_quoted(text)} is not a number") from None
        if not 0 <= number <= 1:
            raise FieldError(f"{name}: {text} is not from 0 to 1")
        return number

    def _date(self, name: str) -> datetime | None:
        text = as_text(name, self._values.get(name))
        try:
            return None if text is None else parse_date(text)
        except DateError as error:
            raise FieldError(f"{name}: {error}") from None

    def _cut(self, name: str, limit: int) -> str | None:
        text = as_text(name, self._values.get(name))
        if text is not None and len(text) > limit:
            self.remarks.append(f"{name}: cut from {len(text)} to {limit} characters")
        return None if text is None else clip(text, limit)

    def _name(self, name: str, limit: int) -> str | None:
        text = as_text(name, self._values.get(name))
        if text is not None and len(text) > limit:
            raise FieldError(f"{name}: {len(text)} characters, at most {limit} are possible")
        return text

    def _names(self, name: str, limit: int, count: int) -> tuple[str, ...]:
        value = self._values.get(name)
        items = value if isinstance(value, list) else (as_text(name, value) or "").split(",")
        texts = [text for item in items if (text := as_text(name, item))]
        if long := next((text for text in texts if len(text) > limit), None):
            raise FieldError(f"{name}: {_quoted(long)} has {len(long)} characters, at most {limit} are possible")
        distinct = tuple(dict.fromkeys(texts))
        if len(distinct) > count:
            self.remarks.append(f"{name}: the first {count} of {len(distinct)} are taken")
        return distinct[:count]

    def _reasons(self, name: str) -> tuple[Reason, ...]:
        value = self._values.get(name)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if len(items) > REASONS_LIMIT:
            self.remarks.append(f"{name}: the first {REASONS_LIMIT} of {len(items)} are taken")
        return tuple(self._reason(f"{name}[{number}]", item) for number, item in enumerate(items[:REASONS_LIMIT]))

    def _reason(self, name: str, item: Plain) -> Reason:
        if not isinstance(item, dict):
            return Reason("reason", clip(as_text(name, item) or "", REASON_LIMIT))
        if unknown := item.keys() - {"type", "text", "strength"}:
            raise FieldError(f"{name}.{min(unknown)}: there is no such field")
        inner = FieldReader({f"{name}.{key}": value for key, value in item.items()})
        kind = inner._name(f"{name}.type", NAME_LIMIT)
        if kind is None:
            raise FieldError(f"{name}.type: it is missing or blank")
        reason = Reason(kind, inner._cut(f"{name}.text", REASON_LIMIT) or "", inner.share(f"{name}.strength"))
        self.remarks += inner.remarks
        return reason


def as_text(name: str, value: Plain) -> str | None:
    """Return a value as text without white space around it; None for nothing. Raises FieldError."""
    if value is None:
        return None
    if isinstance(value, (bool, list, dict)):
        kind = "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else "true or false"
        raise FieldError(f"{name}: it is {kind}, not a text")
    text = str(value).strip()
    if problem := flaw(text):
        raise FieldError(f"{name}: {problem}")
    return None if is_blank(text) else text


def _quoted(text: str) -> str:
    return repr(clip(text, 60))
