"""Dataclasses as rows of tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, Column, MetaData, Table, Text

from cstp_grpc.platform.storage.row_mapper import ColumnCodec, RowMapper

AT = datetime(2026, 2, 4, 12, tzinfo=UTC)


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Size:
    width: int
    unit: str | None = None


@dataclass(frozen=True)
class Box:
    """A box; `weight` is stored in grams, `owner` nowhere."""

    label: str
    color: Color | None
    made_at: datetime
    size: Size
    weight: float
    tags: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    extra: Mapping[str, Any] | None = None
    owner: str = "nobody"


boxes = Table(
    "boxes",
    MetaData(),
    Column("name", Text, nullable=False),
    Column("color", Text),
    Column("made_at", Text, nullable=False),
    Column("width", Text, nullable=False),
    Column("unit", Text),
    Column("weight", Text, nullable=False),
    Column("tags", JSON, nullable=False),
    Column("words", JSON),
    Column("extra", JSON),
)
MAPPER = RowMapper(
    Box,
    boxes,
    renamed={"label": "name"},
    codecs={"weight": ColumnCodec(lambda kilograms: round(kilograms * 1000), lambda grams: grams / 1000)},
    nested={"size": RowMapper(Size, boxes)},
)
FULL = Box("a\0b", Color.RED, AT, Size(3, "cm"), 0.5, ("x",), ("y\0",), {"k": 1}, "ada")
FULL_ROW = {
    "name": "a\ufffdb",
    "color": "red",
    "made_at": AT,
    "width": 3,
    "unit": "cm",
    "weight": 500,
    "tags": ["x"],
    "words": ["y\ufffd"],
    "extra": {"k": 1},
}
BARE = Box("a", None, AT, Size(3), 0.5)
BARE_ROW = {**FULL_ROW, "name": "a", "color": None, "unit": None, "tags": [], "words": None, "extra": None}


def test_fields_become_columns() -> None:
    assert MAPPER.to_row(FULL) == FULL_ROW
    assert MAPPER.to_row(BARE) == BARE_ROW


def test_columns_become_fields() -> None:
    assert MAPPER.from_row(FULL_ROW, owner="ada") == Box(
        "a\ufffdb", Color.RED, AT, Size(3, "cm"), 0.5, ("x",), ("y\ufffd",), {"k": 1}, "ada"
    )
    assert MAPPER.from_row(BARE_ROW) == BARE


def test_missing_columns_become_defaults() -> None:
    assert MAPPER.from_row({name: FULL_ROW[name] for name in ("name", "color", "made_at", "width", "weight")}) == Box(
        "a\ufffdb", Color.RED, AT, Size(3), 0.5
    )


def test_rows_are_read_by_position() -> None:
    columns = [boxes.c[name] for name in ("weight", "width", "made_at", "color", "name", "words")]
    read = MAPPER.reader(columns)
    assert read([500, 3, AT, "red", "a", None, "further"]) == Box("a", Color.RED, AT, Size(3), 0.5)
    assert read([250, 4, AT, None, "b", ["y"]]) == Box("b", None, AT, Size(4), 0.25, words=("y",))
