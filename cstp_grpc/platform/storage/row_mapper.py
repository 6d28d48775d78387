"""Converts dataclasses to rows of tables and back, by the names and types of their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from sqlalchemy import ColumnElement, Table

from cstp_grpc.common.lazy_dataclass import dataclass, fields
from cstp_grpc.common.unicode_text import replace_unstorable

T = TypeVar("T")
Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ColumnCodec:
    """How the values of a field are stored; None, an absent value, is NULL without being converted."""

    encode: Convert | None = None
    decode: Convert | None = None
    empty: Any = None
    """The value for NULL."""


@dataclass(frozen=True, slots=True)
class MappedField:
    """A field and the column that holds it."""

    name: str
    column: str
    codec: ColumnCodec


class RowMapper(Generic[T]):
    """Converts objects of a dataclass to rows of a table and back.

    A field is in the column of its name, or of the name that `renamed` gives it. Enums are stored by their values,
    texts with unstorable characters replaced, and an empty tuple of texts in an optional column as NULL. `codecs` store
    the fields of other types. `nested` fields are dataclasses whose own fields are columns of the table, too. What has
    no column is left out, and gets its default when it is read.
    """

    def __init__(
        self,
        model: type[T],
        table: Table,
        *,
        renamed: Mapping[str, str] | None = None,
        codecs: Mapping[str, ColumnCodec] | None = None,
        nested: Mapping[str, RowMapper[Any]] | None = None,
    ) -> None:
        self._model = model
        self._table = table
        self._renamed = renamed or {}
        self._codecs = codecs or {}
        self._nested = nested or {}

    @cached_property
    def _fields(self) -> Sequence[MappedField]:
        # At first use: looking up the types takes longer than starting without them.
        kinds, columns = get_type_hints(self._model), self._table.c
        found = []
        for field in fields(self._model):  # type: ignore[arg-type]  # any dataclass
            column = self._renamed.get(field.name, field.name)
            if column in columns and field.name not in self._nested:
                is_optional = bool(columns[column].nullable)
                codec = self._codecs.get(field.name) or codec_of_type(kinds[field.name], is_optional)
                found.append(MappedField(field.name, column, codec))
        return found

    def to_row(self, item: T) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for each in self._fields:
            value, encode = getattr(item, each.name), each.codec.encode
            row[each.column] = value if value is None or encode is None else encode(value)
        for name, mapper in self._nested.items():
            row |= mapper.to_row(getattr(item, name))
        return row

    def from_row(self, row: Mapping[Any, Any], **given: Any) -> T:
        """Return the object in a row; fields whose columns it lacks get their defaults, others are `given`."""
        values = given
        for each in self._fields:
            if each.column in row and each.name not in given:
                values[each.name] = decode_value(row[each.column], each.codec)
        for name, mapper in self._nested.items():
            values[name] = mapper.from_row(row)
        return self._model(**values)

    def reader(self, columns: Sequence[ColumnElement[Any]]) -> Callable[[Sequence[Any]], T]:
        """Return the function that converts rows that begin with these columns; they are read by their position."""
        places = {column.key: place for place, column in enumerate(columns)}
        model = self._model
        nested = {name: mapper.reader(columns) for name, mapper in self._nested.items()}
        found: list[tuple[str, int, ColumnCodec]] = []

        def read(row: Sequence[Any]) -> T:
            if not found:
                found.extend(
                    (each.name, places[each.column], each.codec) for each in self._fields if each.column in places
                )
            values = {name: decode_value(row[place], codec) for name, place, codec in found}
            for name, read_nested in nested.items():
                values[name] = read_nested(row)
            return model(**values)

        return read


def decode_value(value: Any, codec: ColumnCodec) -> Any:
    if value is None:
        return codec.empty
    return value if codec.decode is None else codec.decode(value)


def codec_of_type(kind: Any, is_optional: bool) -> ColumnCodec:
    """Return how values of a type are stored in a column that may be NULL."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    (plain,) = (member for member in members if member is not NoneType)
    if isinstance(plain, type) and issubclass(plain, Enum):
        return ColumnCodec(lambda value: value.value, {item.value: item for item in plain}.__getitem__)
    if plain is str:
        return ColumnCodec(replace_unstorable)
    if get_origin(plain) is tuple:
        return ColumnCodec(lambda texts: encode_texts(texts) or (None if is_optional else []), tuple, ())
    if get_origin(plain) is not None and issubclass(get_origin(plain), Mapping):
        return ColumnCodec(dict)
    return ColumnCodec()


def encode_texts(texts: Sequence[str]) -> list[str]:
    return [replace_unstorable(text) for text in texts]
