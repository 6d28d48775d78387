"""The YAML that a Markdown file may begin with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cstp_grpc.decisions.importing.plain_yaml import Plain, load_documents
from cstp_grpc.decisions.importing.results import Unreadable
from cstp_grpc.decisions.importing.text import flaw


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The fields of a front matter, by names in lower case with `_` for `-` and spaces.

    `end` is the number of lines it takes, fences included; 0 where there is none.
    """

    fields: Mapping[str, Plain] = field(default_factory=dict)
    end: int = 0

    def text(self, *names: str) -> str | None:
        """Return the first of the named fields that has a text, without white space around it."""
        texts = self.texts(*names)
        return texts[0] if texts else None

    def texts(self, *names: str) -> list[str]:
        """Return the texts of the first of the named fields that has any: the items of a list, or the one value."""
        for name in names:
            value = self.fields.get(name)
            items = value if isinstance(value, list) else [value]
            texts = [text for item in items if (text := _text(item))]
            if texts:
                return texts
        return []


def read_front_matter(lines: list[str]) -> FrontMatter:
    """Return the front matter of a file by its lines. Raises Unreadable where its YAML is broken."""
    if not lines or lines[0].rstrip() != "---":
        return FrontMatter()
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), None)
    if end is None:
        return FrontMatter()
    try:
        documents = load_documents("\n".join(lines[1:end]), first_line=2)
    except Unreadable as error:
        raise Unreadable(f"front matter: {error.reason}", error.line) from None
    if not documents:
        return FrontMatter(end=end + 1)
    values = documents[0][1]
    if not isinstance(values, dict):
        return FrontMatter()
    return FrontMatter({_name(key): value for key, value in values.items()}, end + 1)


def _name(key: str) -> str:
    return key.strip().lower().replace("-", "_").replace(" ", "_")


def _text(value: Plain) -> str | None:
    if value is None or isinstance(value, (list, dict)):
        return None
    text = str(value).strip()
    if problem := flaw(text):
        raise Unreadable(f"front matter: {problem}")
    return text
