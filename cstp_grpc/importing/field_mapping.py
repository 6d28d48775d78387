"""Mapping files, by which records with other fields become decisions; `docs/importing.md` is their reference."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cstp_grpc.importing.decision_fields import ENUMS, FIELDS, LINKS, FieldError, check_field, read_text_value
from cstp_grpc.importing.model import RecordError
from cstp_grpc.importing.record_files import read_text
from cstp_grpc.yaml_with_lines import PlainValue, YamlError, YamlNode, YamlReader

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
        """Return the value itself for a path alone, otherwise the text; None if a value is missing."""
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
    except (RecordError, YamlError) as error:
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
