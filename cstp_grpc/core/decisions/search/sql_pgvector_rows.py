"""The tables of the search engine in PostgreSQL, and the values of their rows."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from cstp_grpc.core.decisions.decision_terms import hash_term
from cstp_grpc.core.decisions.store import IndexRow, Vector


class HalfVector(sa.types.UserDefinedType[Vector]):
    """A vector of float16."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "HALFVEC"

    def bind_processor(self, dialect: sa.Dialect) -> Any:  # noqa: ARG002
        return vector_text


def vector_text(vector: Vector) -> str:
    return str(vector.tolist())


def vector_bytes(vector: Vector) -> bytes:
    """Return a vector in the binary format of pgvector: its dimensions, two unused bytes, and float16, big-endian."""
    return struct.pack(">HH", len(vector), 0) + vector.astype(">f2").tobytes()


METADATA: Final = sa.MetaData()
COLLECTIONS: Final = sa.Table(
    "cstp_search_collections",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("journal", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("complete", sa.Boolean, nullable=False),
    sa.Column("fed_at", sa.DateTime(timezone=True), nullable=False),
    sa.UniqueConstraint("journal", "model"),
)
TERMS: Final = sa.Table(
    "cstp_search_terms",
    METADATA,
    sa.Column("collection", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("reader", sa.Text, primary_key=True),
    sa.Column("term", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("decisions", sa.Integer, nullable=False),
)
"""How many decisions have each term: shared ones, and the private ones of each agent."""

TEXTS: Final = postgresql.ARRAY(sa.Text)
NUMBERS: Final = postgresql.ARRAY(sa.Integer)
COLUMNS: Final[Mapping[str, sa.types.TypeEngine[Any]]] = {
    "decision_id": sa.Text(),
    "place": sa.SmallInteger(),
    "agent": sa.Text(),
    "visibility": sa.Text(),
    "category": sa.Text(),
    "project": sa.Text(),
    "confidence": sa.Double(),
    "date": sa.DateTime(timezone=True),
    "stakes": sa.Text(),
    "status": sa.Text(),
    "outcome": sa.Text(),
    "tags": TEXTS,
    "has_lesson": sa.Boolean(),
    "facets": NUMBERS,
    "terms": NUMBERS,
    "vector": HalfVector(),
}
"""The columns of a passage; only the first one of a decision has its terms. Terms and facets are signed hashes."""

COPIED_TYPES: Final = (
    *("text", "int2", *("text",) * 4, "float8", "timestamptz", *("text",) * 3),
    *("text[]", "bool", "int4[]", "int4[]", "bytea"),
)
"""The types of COLUMNS as psycopg names them; a vector is passed as it is."""

FACETED: Final = ("category", "project", "agent", "stakes", "status", "outcome", "tags")
"""The columns whose values are in `facets`. An index of all of them finds the rows that meet several conditions without
reading those that meet only one: three filters on a million passages take 12 ms instead of 46."""

LAYOUT: Final = hash_term(" ".join(COLUMNS))
"""A part of the key of a collection: a server does not use rows with other columns, which another version has made."""

INDEXES: Final = (
    "USING hnsw (vector halfvec_ip_ops)",
    "USING gin (terms)",
    "USING gin (facets)",
    "(agent, decision_id)",
    "(decision_id) WHERE visibility = 'shared' AND place = 0",
    "(date)",
)
"""Made when all rows are there, in a tenth of the time that it takes to add them one by one."""


def passage_values(row: IndexRow) -> Iterator[tuple[object, ...]]:
    """Yield the values of COLUMNS for each passage of a decision."""
    date = datetime.fromtimestamp(row.date, UTC)
    labels = (row.agent, row.visibility, row.category, row.project, row.confidence, date)
    facets = [number for name in FACETED for number in facet_numbers(name, values_of(row, name))]
    state = (row.stakes, row.status, row.outcome, list(row.tags), row.passages.has_lesson, facets)
    for place, vector in enumerate(row.passages.vectors):
        terms = None if place else signed_terms(row.terms["hash"])
        yield row.decision_id, place, *labels, *state, terms, vector_bytes(vector)


def values_of(row: IndexRow, name: str) -> Sequence[str]:
    value = getattr(row, name)
    return () if value is None else [value] if isinstance(value, str) else value


def facet_numbers(name: str, values: Iterable[str]) -> list[int]:
    """Return the facets of a column with some values."""
    return signed_terms([hash_term(f"{name}={value}") for value in values])


def signed_terms(hashes: Any) -> list[int]:
    found: list[int] = np.array(hashes, np.uint32).view(np.int32).tolist()
    return found
