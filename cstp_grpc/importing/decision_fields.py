"""Reading the fields of a decision from plain values, by the names of the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from cstp_grpc.decisions.model import DecisionContent, Reason
from cstp_grpc.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.importing.model import (
    MAX_LENGTHS,
    MAX_LINKS,
    MAX_REASONS,
    MAX_TAGS,
    collapse_spaces,
    is_blank,
    quote_start,
    storage_problem,
    truncate_text,
)
from cstp_grpc.importing.record_dates import DateError, parse_date
from cstp_grpc.yaml_with_lines import PlainValue

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")

ENUMS: Mapping[str, type[StrEnum]] = {
    "stakes": Stakes,
    "status": DecisionStatus,
    "outcome": Outcome,
    "visibility": Visibility,
}
FIELDS = tuple(DecisionContent.__dataclass_fields__)
"""The fields of a decision's content."""
LINKS = ("supersedes", "superseded_by", "depends_on", "relates_to")


class FieldError(Exception):
    """A value does not fit its field; the message names the field."""


class FieldReader:
    """Reads the fields of one decision; `remarks` lists what was cut or is not used."""

    def __init__(self, values: Mapping[str, PlainValue]) -> None:
        self._values = values
        self.remarks: list[str] = []

    def read_content(self) -> DecisionContent:
        """Return the content of the decision. Raises FieldError for the first value that does not fit."""
        title = self._truncated_text("title")
        if title is None:
            raise FieldError("title: it is missing or blank")
        return DecisionContent(
            title=collapse_spaces(title),
            context=self._truncated_text("context"),
            category=self._name("category"),
            stakes=self._word("stakes", Stakes),
            confidence=self._fraction("confidence"),
            status=self._word("status", DecisionStatus),
            outcome=self._word("outcome", Outcome),
            date=self._date("date"),
            notes=self._truncated_text("notes"),
            reasons=self._reasons(),
            tags=self._names("tags", MAX_LENGTHS["tags"], MAX_TAGS),
            project=self._name("project"),
            visibility=self._word("visibility", Visibility) or Visibility.PRIVATE,
            review_by=self._date("review_by"),
        )

    def read_id(self) -> str | None:
        """Return the identifier of the decision in its file. Raises FieldError."""
        return self._name("id")

    def read_links(self) -> dict[str, tuple[str, ...]]:
        """Return the identifiers of other decisions by the kind of the link. Raises FieldError."""
        return {name: self._names(name, MAX_LENGTHS["id"], MAX_LINKS) for name in LINKS}

    def _text(self, name: str) -> str | None:
        return read_text_value(name, self._values.get(name))

    def _convert(self, name: str, convert: Callable[[str], T], problem: str) -> T | None:
        text = self._text(name)
        try:
            return None if text is None else convert(text)
        except ValueError:
            raise FieldError(f"{name}: {quote_start(text or '')} {problem}") from None

    def _word(self, name: str, words: type[E]) -> E | None:
        return self._convert(name, lambda text: words(text.lower()), f"is none of {', '.join(words)}")

    def _fraction(self, name: str) -> float | None:
        number = self._convert(name, float, "is not a number")
        if number is not None and not 0 <= number <= 1:
            raise FieldError(f"{name}: {self._text(name)} is not from 0 to 1")
        return number

    def _date(self, name: str) -> datetime | None:
        text = self._text(name)
        try:
            return None if text is None else parse_date(text)
        except DateError as error:
            # Only remarked: such a record is worth more than the day it was made, and its file has a date too.
            self.remarks.append(f"{name}: {error}; it is not used")
            return None

    def _truncated_text(self, name: str, kind: str | None = None) -> str | None:
        text, limit = self._text(name), MAX_LENGTHS[kind or name]
        if text is not None and len(text) > limit:
            self.remarks.append(f"{name}: cut from {len(text)} to {limit} characters")
        return None if text is None else truncate_text(text, limit)

    def _name(self, name: str, kind: str | None = None) -> str | None:
        text, limit = self._text(name), MAX_LENGTHS[kind or name]
        if text is not None and len(text) > limit:
            raise FieldError(f"{name}: {len(text)} characters, at most {limit} are possible")
        return text

    def _names(self, name: str, limit: int, count: int) -> tuple[str, ...]:
        """Return the texts of a list, or those that one text separates by commas, each once."""
        value = self._values.get(name)
        items = value if isinstance(value, list) else (self._text(name) or "").split(",")
        texts = [text for item in items if (text := read_text_value(name, item))]
        if long := next((text for text in texts if len(text) > limit), None):
            raise FieldError(f"{name}: {quote_start(long)} has {len(long)} characters, at most {limit} are possible")
        distinct = tuple(dict.fromkeys(texts))
        if len(distinct) > count:
            self.remarks.append(f"{name}: the first {count} of {len(distinct)} are taken")
        return distinct[:count]

    def _reasons(self) -> tuple[Reason, ...]:
        value = self._values.get("reasons")
        items = value if isinstance(value, list) else [] if value is None else [value]
        if len(items) > MAX_REASONS:
            self.remarks.append(f"reasons: the first {MAX_REASONS} of {len(items)} are taken")
        return tuple(self._reason(f"reasons[{number}]", item) for number, item in enumerate(items[:MAX_REASONS]))

    def _reason(self, name: str, item: PlainValue) -> Reason:
        if not isinstance(item, dict):
            return Reason("reason", truncate_text(read_text_value(name, item) or "", MAX_LENGTHS["reasons.text"]))
        if unknown := item.keys() - {"type", "text", "strength"}:
            raise FieldError(f"{name}.{min(unknown)}: there is no such field")
        inner = FieldReader({f"{name}.{key}": value for key, value in item.items()})
        kind = inner._name(f"{name}.type", "reasons.type")
        if kind is None:
            raise FieldError(f"{name}.type: it is missing or blank")
        text = inner._truncated_text(f"{name}.text", "reasons.text")
        reason = Reason(kind, text or "", inner._fraction(f"{name}.strength"))
        self.remarks += inner.remarks
        return reason


def check_field(name: str, value: PlainValue) -> str | None:
    """Return why a value does not fit a field, or None."""
    try:
        FieldReader({"title": "any", name: value}).read_content()
        if name == "date" and (text := read_text_value(name, value)):
            parse_date(text)
    except FieldError as error:
        return str(error)
    except DateError as error:
        return f"{name}: {error}"
    return None


def read_text_value(name: str, value: PlainValue) -> str | None:
    """Return a value as text without white space around it, or None if it is empty. Raises FieldError."""
    if value is None:
        return None
    if isinstance(value, (bool, list, dict)):
        kind = "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else "true or false"
        raise FieldError(f"{name}: it is {kind}, not a text")
    text = str(value).strip()
    if problem := storage_problem(text):
        raise FieldError(f"{name}: {problem}")
    return None if is_blank(text) else text
