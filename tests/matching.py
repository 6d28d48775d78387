"""Compares JSON with what a case expects of it.

In what is expected, `$instant`, `$uuid`, `$hash`, `$text`, `$number` and `$whole` stand for anything of that kind; a
hash is SHA-256 in hex. What is expected of an object may leave members out, unless it must match exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
HASH = re.compile(r"[0-9a-f]{64}")


def is_uuid(value: Any) -> bool:
    try:
        return isinstance(value, str) and str(UUID(value)) == value
    except ValueError:
        return False


PLACEHOLDERS: dict[str, Callable[[Any], bool]] = {
    "$instant": lambda value: isinstance(value, str) and bool(INSTANT.fullmatch(value)),
    "$uuid": is_uuid,
    "$hash": lambda value: isinstance(value, str) and bool(HASH.fullmatch(value)),
    "$text": lambda value: isinstance(value, str) and bool(value),
    "$number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "$whole": lambda value: isinstance(value, int) and not isinstance(value, bool),
}


def differences(expected: Any, actual: Any, path: str = "result", *, exact: bool = True) -> Iterator[str]:
    """Yield where two JSON values differ."""
    if isinstance(expected, datetime):
        expected = expected.strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(expected, str) and expected in PLACEHOLDERS:
        if not PLACEHOLDERS[expected](actual):
            yield f"{path}: {actual!r} is not {expected}"
    elif isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() | actual.keys()):
            if key not in actual:
                yield f"{path}.{key} is missing"
            elif key not in expected:
                if exact:
                    yield f"{path}.{key} is not expected: {actual[key]!r}"
            else:
                yield from differences(expected[key], actual[key], f"{path}.{key}", exact=exact)
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{path} has {len(actual)} items, not {len(expected)}: {actual!r}"
        for index, (wanted, found) in enumerate(zip(expected, actual, strict=False)):
            yield from differences(wanted, found, f"{path}[{index}]", exact=exact)
    elif isinstance(expected, float) and isinstance(actual, int | float):
        # Similarities have the precision of float32, whose last digit depends on the processor.
        if not math.isclose(expected, actual, rel_tol=1e-6, abs_tol=1e-9):
            yield f"{path}: {actual!r} is not {expected!r}"
    elif expected != actual or isinstance(expected, bool) != isinstance(actual, bool):
        yield f"{path}: {actual!r} is not {expected!r}"
