"""Figures of the state of a server, which its modules offer and which are read when metrics are requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeAlias

from cstp_grpc.common.lazy_dataclass import dataclass


class MeasureKind(StrEnum):
    """How a figure changes."""

    GAUGE = "gauge"
    """It rises and falls."""
    COUNTER = "counter"
    """It only rises while the process lives."""


Readings: TypeAlias = Mapping[tuple[str, ...], float]
"""Values by the values of their labels; an empty tuple for a figure without labels."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure that is read on a thread when metrics are requested; several modules may offer values of one.

    `name` has neither the prefix of the product nor the `_total` of counters, and ends in its unit. Label values are
    of a bounded set: no ids and no free text. `read` may block for a query of the database, and may raise.
    """

    name: str
    help: str
    read: Callable[[], Readings]
    labels: tuple[str, ...] = ()
    kind: MeasureKind = MeasureKind.GAUGE
    of_database: bool = False
    """Whether all processes on the database would read the same, so that one of them does."""


def read_value(read: Callable[[], float]) -> Callable[[], Readings]:
    """Return the reader of a figure without labels from a function that returns its value."""
    return lambda: {(): read()}


def read_labelled(label: str, read: Callable[[], float]) -> Callable[[], Readings]:
    """Return the reader of one value of a figure with one label, such as the watchers of one kind."""
    return lambda: {(label,): read()}
