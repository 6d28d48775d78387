"""How the fields of a record of another make become those of a decision."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cstp_grpc.decisions.importing.fields import ENUMS, FieldError, as_text
from cstp_grpc.decisions.importing.plain_yaml import Plain

LINKS = ("supersedes", "superseded_by", "depends_on", "relates_to")
JOINED = ("context", "notes")
"""The fields that may be put together from the texts of several places."""
SEVERAL = ("tags", *LINKS)
"""The fields that may be put together from the values of several places."""
PART = re.compile(r"\{\{|\}\}|\{(?P<path>[^{}]*)\}|[{}]")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is found: a path such as `links.Requires`, or a template such as `PEP {number}: {title}`.

    `parts` alternates texts and paths, beginning with a text; a path alone has two parts, the first one empty.
    """

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place that a text of a mapping names. Raises ValueError."""
        if "{" not in text and "}" not in text:
            return cls(("", text.strip()))
        parts = [""]
        end = 0
        for match in PART.finditer(text):
            parts[-1] += text[end : match.start()]
            end = match.end()
            if match["path"] is not None and match["path"].strip():
                parts += [match["path"].strip(), ""]
            elif match[0] in ("{{", "}}"):
                parts[-1] += match[0][0]
            else:
                raise ValueError(f"{match[0]!r} has no partner or no path in it; a brace is written {{{{ or }}}}")
        return cls((*parts[:-1], parts[-1] + text[end:]))

    def value(self, record: dict[str, Plain]) -> Plain:
        """Return the value as it is for a path alone, else the text; None where anything it needs is missing."""
        if len(self.parts) == 2 and not self.parts[0]:
            return look_up(record, self.parts[1])
        texts = list(self.parts)
        for number in range(1, len(texts), 2):
            text = as_text(texts[number], look_up(record, texts[number]))
            if text is None:
                return None
            texts[number] = text
        return "".join(texts)


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """Where the fields of a decision are found in a record, and what its values mean."""

    fields: Mapping[str, tuple[Place, ...]]
    values: Mapping[str, Mapping[str, Plain]] = field(default_factory=dict)
    defaults: Mapping[str, Plain] = field(default_factory=dict)
    constants: Mapping[str, Plain] = field(default_factory=dict)
    links: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)

    def apply(self, record: dict[str, Plain]) -> tuple[dict[str, Plain], list[str]]:
        """Return the values of a record by our names, and remarks on unknown values that a default stands for.

        Raises FieldError.
        """
        remarks: list[str] = []
        found: dict[str, Plain] = dict(self.constants)
        for name, places in {**self.fields, **self.links}.items():
            value = _gathered(name, places, record)
            if value is None or value == "":
                found[name] = self.defaults.get(name)
            elif isinstance(value, list) and name in SEVERAL:
                found[name] = [self._translated(name, item, remarks) for item in value]
            else:
                found[name] = self._translated(name, value, remarks)
        return found, remarks

    def _translated(self, name: str, value: Plain, remarks: list[str]) -> Plain:
        table = self.values.get(name, {})
        if isinstance(value, (list, dict)) or not (table or name in ENUMS):
            return value
        text = _key(value)
        if text in table:
            return table[text]
        if name not in ENUMS and name not in self.defaults:
            return value
        if name in ENUMS and text.strip().lower() in list(ENUMS[name]):
            return value
        if name in self.defaults:
            remarks.append(f"{name}: {text!r} is unknown to the mapping; its default is taken")
            return self.defaults[name]
        known = ", ".join(map(repr, table)) or ", ".join(ENUMS[name])
        raise FieldError(f"{name}: {text!r} is none of {known}, and the mapping has no default")


def look_up(value: Plain, path: str) -> Plain:
    """Return what a dotted path leads to, None where it leads nowhere; a number picks from a list, from 0."""
    head, _, rest = path.partition(".")
    if isinstance(value, list):
        inner = value[int(head)] if head.isdecimal() and int(head) < len(value) else None
        return look_up(inner, rest) if rest else inner
    if not isinstance(value, dict):
        return None
    if path in value:
        return value[path]
    return look_up(value.get(head), rest) if rest else None


def _gathered(name: str, places: Sequence[Place], record: dict[str, Plain]) -> Plain:
    if len(places) == 1:
        return places[0].value(record)
    values = [value for place in places if (value := place.value(record)) is not None]
    if name in JOINED:
        return "\n\n".join(text for value in values if (text := as_text(name, value)))
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def _key(value: Plain) -> str:
    """Return a scalar as a mapping's table spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
