"""Which setting a mistyped key was likely meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from cstp_grpc.config.annotations import alternatives


def suggest_key(model: type[BaseModel], location: Sequence[int | str]) -> str | None:
    """Return the key that resembles the last one of a location best; None if none does."""
    kinds: list[Any] = [model]
    for part in location[:-1]:
        kinds = [inner for kind in kinds for inner in types_within(kind, part)]
    keys = [key for kind in kinds if is_model(kind) for key in kind.model_fields]
    return next(iter(difflib.get_close_matches(str(location[-1]), keys, n=1)), None)


def types_within(kind: Any, part: int | str) -> Iterator[Any]:
    """Yield the types of what a value of a type has under a key or an index."""
    if is_model(kind) and part in kind.model_fields:
        yield from alternatives(kind.model_fields[part].rebuild_annotation())
    elif get_origin(kind) in (list, tuple, dict):
        for each in get_args(kind):
            yield from alternatives(each)


def is_model(kind: Any) -> bool:
    """Whether a type is a group of settings."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)
