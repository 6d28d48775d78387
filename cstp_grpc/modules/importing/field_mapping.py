"""Fields of decisions from plain values: by the names of the contract, or by a mapping file.

`docs/importing.md` is the reference of mapping files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.common.unicode_text import truncate_text
from cstp_grpc.common.yaml_with_lines import PlainValue, YamlError, YamlNode, YamlReader
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes, Visibility
from cstp_grpc.core.decisions.model import DecisionContent, Reason
from cstp_grpc.modules.importing import model
from cstp_grpc.modules.importing.record_files import DateError, parse_date, read_text

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


FIELD_LABELS = {"review_by": "reviewBy"}
"""How fields are spelled in files, where our names of them are other ones."""


class FieldReader:
    """Reads the fields of one decision; `remarks` lists cut and unused values."""

    def __init__(self, values: Mapping[str, PlainValue]) -> None:
        self._values = values
        self.remarks: list[str] = []

    def read_content(self) -> DecisionContent:
        """Return the content of the decision. Raises FieldError for the first value that does not fit."""
        title = self._truncated_text("title")
        if title is None:
            raise FieldError("title: it is missing or blank")
        return DecisionContent(
            title=model.collapse_spaces(title),
            context=self._truncated_text("context"),
            category=self._name("category"),
            stakes=self._word("stakes", Stakes),
            confidence=self._fraction("confidence"),
            status=self._word("status", DecisionStatus),
            outcome=self._word("outcome", Outcome),
            date=self._date("date"),
            notes=self._truncated_text("notes"),
            reasons=self._reasons(),
            tags=self._names("tags", model.MAX_LENGTHS["tags"], model.MAX_TAGS),
            project=self._name("project"),
            visibility=self._word("visibility", Visibility) or Visibility.PRIVATE,
            review_by=self._date("review_by"),
        )

    def read_id(self) -> str | None:
        """Return the identifier of the decision in its file. Raises FieldError."""
        return self._name("id")

    def read_links(self) -> dict[str, tuple[str, ...]]:
        """Return the identifiers of other decisions by the kind of the link. Raises FieldError."""
        return {name: self._names(name, model.MAX_LENGTHS["id"], model.MAX_LINKS) for name in LINKS}

    def _text(self, name: str) -> str | None:
        return read_text_value(name, self._values.get(name))

    def _convert(self, name: str, convert: Callable[[str], T], problem: str) -> T | None:
        text = self._text(name)
        try:
            return None if text is None else convert(text)
        except ValueError:
            raise FieldError(f"{name}: {model.quote_start(text or '')} {problem}") from None

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
            self.remarks.append(f"{FIELD_LABELS.get(name, name)}: {error}; it is not used")
            return None

    def _truncated_text(self, name: str, kind: str | None = None) -> str | None:
        text, limit = self._text(name), model.MAX_LENGTHS[kind or name]
        if text is not None and len(text) > limit:
            self.remarks.append(f"{name}: cut from {len(text)} to {limit} characters")
        return None if text is None else truncate_text(text, limit)

    def _name(self, name: str, kind: str | None = None) -> str | None:
        text, limit = self._text(name), model.MAX_LENGTHS[kind or name]
        if text is not None and len(text) > limit:
            raise FieldError(f"{name}: {len(text)} characters, at most {limit} are possible")
        return text

    def _names(self, name: str, limit: int, count: int) -> tuple[str, ...]:
        """Return the texts of a list, or those that one text separates by commas, each once."""
        value = self._values.get(name)
        items = value if isinstance(value, list) else (self._text(name) or "").split(",")
        texts = [text for item in items if (text := read_text_value(name, item))]
        if long := next((text for text in texts if len(text) > limit), None):
            raise FieldError(
                f"{name}: {model.quote_start(long)} has {len(long)} characters, at most {limit} are possible"
            )
        distinct = tuple(dict.fromkeys(texts))
        if len(distinct) > count:
            self.remarks.append(f"{name}: the first {count} of {len(distinct)} are taken")
        return distinct[:count]

    def _reasons(self) -> tuple[Reason, ...]:
        value = self._values.get("reasons")
        items = value if isinstance(value, list) else [] if value is None else [value]
        if len(items) > model.MAX_REASONS:
            self.remarks.append(f"reasons: the first {model.MAX_REASONS} of {len(items)} are taken")
        return tuple(self._reason(f"reasons[{number}]", item) for number, item in enumerate(items[: model.MAX_REASONS]))

    def _reason(self, name: str, item: PlainValue) -> Reason:
        if not isinstance(item, dict):
            text = read_text_value(name, item) or ""
            return Reason("reason", truncate_text(text, model.MAX_LENGTHS["reasons.text"]))
        if unknown := item.keys() - {"type", "text", "strength"}:
            raise FieldError(f"{name}.{min(unknown)}: there is no such field")
        inner = FieldReader({f"{name}.{key}": value for key, value in item.items()})
        kind = inner._name(f"{name}.type", "reasons.type")
        if kind is None:
            raise FieldError(f"{name}.type: it is missing or blank")
        text = inner._truncated_text(f"{name}.text", "reasons.text") or ""
        reason = Reason(kind, text, inner._fraction(f"{name}.strength"))
        self.remarks += inner.remarks
        return reason


def check_field(name: str, value: PlainValue) -> str | None:
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
    if problem := model.storage_problem(text):
        raise FieldError(f"{name}: {problem}")
    return None if model.is_blank(text) else text


SECTIONS = ("fields", "values", "defaults", "constants", "links")
JOINED_FIELDS = ("context", "notes")
"""The fields that may be joined from the texts of several places."""
COLLECTED_FIELDS = ("tags", *LINKS)
"""The fields that may be collected from the values of several places."""
TEMPLATE_PART = re.compile(r"\{\{|\}\}|\{(?P<path>[^{}]*)\}|[{}]")


class MappingError(Exception):
    """A mapping file cannot be used; the message has a line for each problem, with file, line, key and reason."""


@dataclass(frozen=True, slots=True)
class ValueTemplate:
    """The location of a value: a path such as `links.Requires`, or a template such as `PEP {number}: {title}`.

    `parts` alternates texts and paths, beginning with a text; a path alone has two parts, the first one empty.
    """

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: PlainValue) -> ValueTemplate:
        """Return the template in a value of a mapping file. Raises ValueError."""
        if not isinstance(text, str) or not text.strip():
            raise ValueError("it must be a path such as `links.Requires` or a template such as `{a}: {b}`")
        if "{" not in text and "}" not in text:
            return cls(("", text.strip()))
        parts = [""]
        end = 0
        for match in TEMPLATE_PART.finditer(text):
            parts[-1] += text[end : match.start()]
            end = match.end()
            if match["path"] is not None and match["path"].strip():
                parts += [match["path"].strip(), ""]
            elif match[0] in ("{{", "}}"):
                parts[-1] += match[0][0]
            else:
                raise ValueError(f"{match[0]!r} has no partner or no path in it; a brace is written {{{{ or }}}}")
        return cls((*parts[:-1], parts[-1] + text[end:]))

    def value_in(self, record: dict[str, PlainValue]) -> PlainValue:
        if len(self.parts) == 2 and not self.parts[0]:
            return look_up(record, self.parts[1])
        texts = list(self.parts)
        for number in range(1, len(texts), 2):
            text = read_text_value(texts[number], look_up(record, texts[number]))
            if text is None:
                return None
            texts[number] = text
        return "".join(texts)


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """The templates for the fields of a decision, and the translations of values."""

    fields: Mapping[str, tuple[ValueTemplate, ...]]
    values: Mapping[str, Mapping[str, PlainValue]] = field(default_factory=dict)
    defaults: Mapping[str, PlainValue] = field(default_factory=dict)
    constants: Mapping[str, PlainValue] = field(default_factory=dict)
    links: Mapping[str, tuple[ValueTemplate, ...]] = field(default_factory=dict)

    def apply(self, record: dict[str, PlainValue]) -> tuple[dict[str, PlainValue], list[str]]:
        """Return the values of a record by our names, and remarks on unknown values that got a default.

        Raises FieldError.
        """
        remarks: list[str] = []
        values: dict[str, PlainValue] = dict(self.constants)
        for name, templates in {**self.fields, **self.links}.items():
            value = _collect_value(name, templates, record)
            if value is None or value == "":
                values[name] = self.defaults.get(name)
            elif isinstance(value, list) and name in COLLECTED_FIELDS:
                values[name] = [self._translate(name, item, remarks) for item in value]
            else:
                values[name] = self._translate(name, value, remarks)
        return values, remarks

    def _translate(self, name: str, value: PlainValue, remarks: list[str]) -> PlainValue:
        meanings, words = self.values.get(name, {}), list(ENUMS.get(name, ()))
        if isinstance(value, (list, dict)) or not (meanings or words):
            return value
        # Keys of the mapping file are texts; str(True) would be `True`, and YAML writes `true`.
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if text in meanings:
            return meanings[text]
        if text.strip().lower() in words or not (words or name in self.defaults):
            return value
        if name in self.defaults:
            remarks.append(f"{name}: {text!r} is unknown to the mapping; its default is taken")
            return self.defaults[name]
        known = ", ".join(map(repr, meanings)) or ", ".join(words)
        raise FieldError(f"{name}: {text!r} is none of {known}, and the mapping has no default")


def look_up(value: PlainValue, path: str) -> PlainValue:
    """Return the value at a dotted path, or None; a number picks from a list, counted from 0."""
    head, _, rest = path.partition(".")
    if isinstance(value, list):
        inner = value[int(head)] if head.isdecimal() and int(head) < len(value) else None
        return look_up(inner, rest) if rest else inner
    if not isinstance(value, dict):
        return None
    # The longest key first: a record may have a key with dots in it.
    if path in value:
        return value[path]
    return look_up(value.get(head), rest) if rest else None


def _collect_value(name: str, templates: Sequence[ValueTemplate], record: dict[str, PlainValue]) -> PlainValue:
    if len(templates) == 1:
        return templates[0].value_in(record)
    values = [value for template in templates if (value := template.value_in(record)) is not None]
    if name in JOINED_FIELDS:
        return "\n\n".join(text for value in values if (text := read_text_value(name, value)))
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def load_mapping(path: Path) -> FieldMapping:
    """Return the mapping in a file. Raises MappingError with all problems of the file."""
    try:
        documents = YamlReader().read(read_text(path))
    except (model.RecordError, YamlError) as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        raise MappingError(f"{where}: {error.reason}") from None
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        raise MappingError(f"{path}:1: it must be one mapping with the keys {', '.join(SECTIONS)}")
    loader = _MappingLoader(documents[0].line, documents[0].value)
    mapping = loader.load()
    if loader.problems:
        problems = sorted(loader.problems, key=lambda problem: problem[0])
        raise MappingError("\n".join(f"{path}:{line}: {reason}" for line, reason in problems))
    return mapping


class _MappingLoader:
    """Reads the sections of a mapping and collects its problems, each with its line."""

    def __init__(self, line: int, sections: Mapping[str, YamlNode]) -> None:
        self._line = line
        self._sections = sections
        self.problems: list[tuple[int, str]] = []
        fields = sections["fields"].value if "fields" in sections else None
        self._mapped = {to_snake_case(key) for key in fields} if isinstance(fields, dict) else set()

    def load(self) -> FieldMapping:
        for key, node in self._sections.items():
            if key not in SECTIONS:
                self._report(node.line, key, f"there is no such key; possible are {', '.join(SECTIONS)}")
        fields = self._load_templates("fields", ("id", *FIELDS))
        if "title" not in fields:
            line = self._sections["fields"].line if "fields" in self._sections else self._line
            self._report(line, "fields.title", "it is missing, and a decision needs a title")
        return FieldMapping(
            fields=fields,
            values=self._load_values(),
            defaults=self._load_contents("defaults"),
            constants=self._load_contents("constants"),
            links=self._load_templates("links", LINKS),
        )

    def _report(self, line: int, name: str, reason: str) -> None:
        self.problems.append((line, f"{name}: {reason}"))

    def _entries(self, section: str, known: tuple[str, ...]) -> Iterator[tuple[str, str, YamlNode]]:
        """Yield the known keys of a section, by our name and as problems name them, with their values."""
        node = self._sections.get(section)
        if node is None or node.value is None:
            return
        if not isinstance(node.value, dict):
            self._report(node.line, section, "it must be a mapping")
            return
        for key, entry in node.value.items():
            name = to_snake_case(key)
            if name in known:
                yield name, f"{section}.{key}", entry
            else:
                reason = f"there is no such field; possible are {', '.join(known)}"
                self._report(entry.line, f"{section}.{key}", reason)

    def _load_templates(self, section: str, known: tuple[str, ...]) -> dict[str, tuple[ValueTemplate, ...]]:
        found: dict[str, tuple[ValueTemplate, ...]] = {}
        for name, where, node in self._entries(section, known):
            items = node.plain if isinstance(node.plain, list) else [node.plain]
            if len(items) > 1 and name not in (*JOINED_FIELDS, *COLLECTED_FIELDS):
                self._report(node.line, where, "it can be taken from one place only")
            templates = []
            for item in items:
                try:
                    templates.append(ValueTemplate.parse(item))
                except ValueError as error:
                    self._report(node.line, where, str(error))
            if templates:
                found[name] = tuple(templates)
        return found

    def _load_values(self) -> dict[str, dict[str, PlainValue]]:
        found: dict[str, dict[str, PlainValue]] = {}
        for name, where, node in self._entries("values", FIELDS):
            if not isinstance(node.value, dict):
                self._report(node.line, where, "it must be a mapping of values to ours")
                continue
            self._check_is_mapped(name, where, node)
            for word, meaning in node.value.items():
                self._check_fits(name, f"{where}.{word}", meaning)
            found[name] = {word: meaning.plain for word, meaning in node.value.items()}
        return found

    def _load_contents(self, section: str) -> dict[str, PlainValue]:
        found: dict[str, PlainValue] = {}
        for name, where, node in self._entries(section, FIELDS):
            if section == "defaults":
                self._check_is_mapped(name, where, node)
            elif name in self._mapped:
                self._report(node.line, where, "it is in `fields` too; use `defaults`")
            self._check_fits(name, where, node)
            found[name] = node.plain
        return found

    def _check_is_mapped(self, name: str, where: str, node: YamlNode) -> None:
        if name not in self._mapped:
            self._report(node.line, where, "it is not in `fields`, so it would never be used")

    def _check_fits(self, name: str, where: str, node: YamlNode) -> None:
        if problem := check_field(name, node.plain):
            self._report(node.line, where, problem.removeprefix(f"{name}: "))


def to_snake_case(key: str) -> str:
    """Return the name of a field that is written as in Python or as in JSON."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
