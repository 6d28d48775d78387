"""Reading mapping files; `docs/importing.md` describes them for those who write one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cstp_grpc.decisions.importing.fields import FIELDS, FieldError, FieldReader
from cstp_grpc.decisions.importing.files import read_text
from cstp_grpc.decisions.importing.mapping import JOINED, LINKS, SEVERAL, FieldMapping, Place
from cstp_grpc.decisions.importing.plain_yaml import Plain, Table, load_documents
from cstp_grpc.decisions.importing.results import Unreadable

SECTIONS = ("fields", "values", "defaults", "constants", "links")


class MappingError(Exception):
    """A mapping file cannot be used; the message has a line for each problem: file, line, key and what is wrong."""


def load_mapping(path: Path) -> FieldMapping:
    """Return the mapping in a file. Raises MappingError with all that is wrong with it."""
    try:
        documents = load_documents(read_text(path))
    except Unreadable as error:
        raise MappingError(_located(path, error.line, error.reason)) from None
    root = documents[0][1] if len(documents) == 1 else None
    if not isinstance(root, Table):
        raise MappingError(_located(path, 1, f"it must be one mapping with the keys {', '.join(SECTIONS)}"))
    loader = _Loader(root)
    mapping = loader.mapping()
    if loader.problems:
        raise MappingError("\n".join(_located(path, *problem) for problem in loader.in_order()))
    return mapping


def _located(path: Path, line: int | None, reason: str) -> str:
    return f"{path}:{line}: {reason}" if line else f"{path}: {reason}"


class _Loader:
    """Reads the sections of a mapping and gathers what is wrong, each problem with its line."""

    def __init__(self, root: Table) -> None:
        self._root = root
        self.problems: list[tuple[int, str]] = []

    def mapping(self) -> FieldMapping:
        for key in self._root.keys() - set(SECTIONS):
            self._problem(self._root, key, key, f"there is no such key; possible are {', '.join(SECTIONS)}")
        fields = self._places("fields", ("id", *FIELDS))
        if "title" not in fields:
            self._problem(self._root, "fields", "fields.title", "it is missing, and a decision needs a title")
        return FieldMapping(
            fields=fields,
            values=self._values(),
            defaults=self._contents("defaults"),
            constants=self._contents("constants"),
            links=self._places("links", LINKS),
        )

    def in_order(self) -> list[tuple[int, str]]:
        """Return the problems by their lines."""
        return sorted(self.problems, key=lambda problem: problem[0])

    def _problem(self, table: Table, key: str, name: str, reason: str) -> None:
        self.problems.append((table.lines.get(key, table.line), f"{name}: {reason}"))

    def _section(self, name: str, known: tuple[str, ...]) -> Iterator[tuple[Table, str, str]]:
        """Yield the table of a section with each of its known keys, as written and by our name."""
        section = self._root.get(name)
        if section is None:
            return
        if not isinstance(section, Table):
            self._problem(self._root, name, name, "it must be a mapping")
            return
        for key in section:
            ours = _snake(key)
            if ours in known:
                yield section, key, ours
            else:
                self._problem(section, key, f"{name}.{key}", f"there is no such field; possible are {', '.join(known)}")

    def _places(self, name: str, known: tuple[str, ...]) -> dict[str, tuple[Place, ...]]:
        found: dict[str, tuple[Place, ...]] = {}
        for table, key, ours in self._section(name, known):
            value = table[key]
            items = value if isinstance(value, list) else [value]
            if len(items) > 1 and ours not in (*JOINED, *SEVERAL):
                self._problem(table, key, f"{name}.{key}", "it can be taken from one place only")
            places = [place for item in items if (place := self._place(table, key, f"{name}.{key}", item))]
            if places:
                found[ours] = tuple(places)
        return found

    def _place(self, table: Table, key: str, name: str, item: Plain) -> Place | None:
        if not isinstance(item, str) or not item.strip():
            self._problem(
                table, key, name, "it must be a path such as `links.Requires` or a template such as `{a}: {b}`"
            )
            return None
        try:
            return Place.parse(item)
        except ValueError as error:
            self._problem(table, key, name, str(error))
            return None

    def _values(self) -> dict[str, dict[str, Plain]]:
        found: dict[str, dict[str, Plain]] = {}
        for table, key, ours in self._section("values", FIELDS):
            meanings = table[key]
            if not isinstance(meanings, Table):
                self._problem(table, key, f"values.{key}", "it must be a mapping of values to ours")
                continue
            self._must_be_mapped(table, key, "values", ours)
            for word in meanings:
                self._must_fit(meanings, word, f"values.{key}.{word}", ours)
            found[ours] = dict(meanings)
        return found

    def _contents(self, name: str) -> dict[str, Plain]:
        found: dict[str, Plain] = {}
        for table, key, ours in self._section(name, FIELDS):
            if name == "defaults":
                self._must_be_mapped(table, key, name, ours)
            elif ours in self._mapped():
                self._problem(table, key, f"{name}.{key}", "it is in `fields` too; use `defaults`")
            self._must_fit(table, key, f"{name}.{key}", ours)
            found[ours] = table[key]
        return found

    def _mapped(self) -> set[str]:
        fields = self._root.get("fields")
        return {_snake(key) for key in fields} if isinstance(fields, dict) else set()

    def _must_be_mapped(self, table: Table, key: str, section: str, ours: str) -> None:
        if ours not in self._mapped():
            self._problem(table, key, f"{section}.{key}", "it is not in `fields`, so it would never be used")

    def _must_fit(self, table: Table, key: str, name: str, ours: str) -> None:
        try:
            FieldReader({"title": "any", ours: table[key]}).content()
        except FieldError as error:
            self._problem(table, key, name, str(error).removeprefix(f"{ours}: "))


def _snake(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
