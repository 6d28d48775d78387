"""Slotted dataclasses whose constructors are compiled on first use behave like those of the standard library."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, replace
from dataclasses import dataclass as plain_dataclass
from typing import Any

import pytest

from cstp_grpc.common.lazy_dataclass import dataclass as lazy_dataclass


@lazy_dataclass(frozen=True, slots=True)
class Point:
    """A point, of a module so that it can be pickled."""

    x: int
    y: int = 0


def define(dataclass: Callable[..., Any]) -> tuple[Any, Any]:
    """Define a frozen class and a changeable one."""

    @dataclass(frozen=True, slots=True)
    class Frozen:
        name: str
        secret: str = field(repr=False)
        size: int = 3
        parts: list[int] = field(default_factory=list, compare=False)
        key: str = field(init=False, default="k")

        def __post_init__(self) -> None:
            object.__setattr__(self, "key", self.name.upper())

    @dataclass(slots=True, kw_only=True)
    class Changeable:
        name: str
        size: int = 3

    return Frozen, Changeable


def results(dataclass: Callable[..., Any]) -> list[Any]:
    """Return what the classes do, with errors as their texts."""
    frozen, changeable = define(dataclass)
    first, second = frozen("a", "s", parts=[1]), frozen("a", secret="s")
    changed = changeable(name="a")
    changed.size = 4

    def text(call: Callable[[], Any]) -> str:
        with pytest.raises((TypeError, FrozenInstanceError)) as caught:
            call()
        return f"{caught.type.__name__} {caught.value}"

    return [
        repr(first),
        repr(changed),
        asdict(first),
        (first == second, first == frozen("b", "s"), first == 3, hash(first) == hash(second)),
        second.parts is not frozen("a", "s").parts,
        replace(changed, name="b").size,
        first.__match_args__,
        hasattr(first, "__dict__"),
        text(lambda: frozen("a")),
        text(lambda: changeable("a")),
        text(lambda: hash(changed)),
        text(lambda: setattr(first, "name", "b")),
        text(lambda: delattr(first, "name")),
    ]


def test_same_results() -> None:
    assert results(lazy_dataclass) == results(plain_dataclass)


def test_copies_and_pickles() -> None:
    point = Point(1)
    assert [copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))] == [point] * 3
    assert Point(1, 2) != point
