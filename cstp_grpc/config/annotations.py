"""What the types of settings are made of."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin


def alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation allows, and those that it is marked with."""
    origin = get_origin(annotation)
    if origin is Annotated:
        kind, *marks = get_args(annotation)
        yield from (mark for mark in marks if isinstance(mark, type))
        yield from alternatives(kind)
    elif origin in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from alternatives(each)
    else:
        yield annotation
