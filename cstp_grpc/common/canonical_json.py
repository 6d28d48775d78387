"""The canonical text of a JSON value by RFC 8785, and its hash."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import rfc8785

MAX_EXACT_INTEGER = 2**53 - 1
"""The largest integer up to which a double represents every integer exactly (RFC 8785, section 3.2.2.3)."""

encode_plain_json = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def encode_canonical_json(value: object) -> str:
    """Return the RFC 8785 text of a JSON value: None, bool, int, float, str, and lists and dicts of them.

    Integers beyond 2**53 - 1 become the nearest double. Raises ValueError for values that JSON does not have.
    """
    if is_plain_json(value):
        return encode_plain_json(value)
    try:
        content = rfc8785.dumps(value)  # type: ignore[arg-type]
    except rfc8785.IntegerDomainError:
        # Only after the refusal: hardly any context holds such integers, and the conversion copies all of it.
        content = rfc8785.dumps(ints_to_doubles(value))
    return content.decode()


def hash_canonical_json(value: object) -> str:
    """Return the SHA-256, in hex, of the RFC 8785 text of a JSON value."""
    return hashlib.sha256(encode_canonical_json(value).encode()).hexdigest()


def is_same_json(one: object, other: object) -> bool:
    """Return whether two JSON values are equal, with true different from 1. Raises ValueError as above."""
    return one is other or encode_canonical_json(one) == encode_canonical_json(other)


def is_plain_json(value: object) -> bool:
    """Return whether the standard encoder, which is several times as fast, writes a value as RFC 8785 does.

    The two order names other than ASCII differently, and write exponents and whole floats differently.
    """
    # The exact type: a subclass may encode itself otherwise, and `True` is an int.
    kind = type(value)
    if isinstance(value, dict) and kind is dict:
        for name, member in value.items():
            if type(name) is not str or not name.isascii():
                return False
            if type(member) is not str and not is_plain_json(member):
                return False
        return True
    if isinstance(value, list) and kind is list:
        for element in value:  # noqa: SIM110 a loop is twice as fast as all()
            if not is_plain_json(element):
                return False
        return True
    if isinstance(value, int):
        return kind is bool or (kind is int and -MAX_EXACT_INTEGER <= value <= MAX_EXACT_INTEGER)
    if isinstance(value, float):
        # Where Python's repr is the shortest form without an exponent, as in RFC 8785, section 3.2.2.3.
        return kind is float and 1e-4 <= abs(value) < 1e15 and not value.is_integer()
    return kind is str or value is None


def ints_to_doubles(value: Any) -> Any:
    """Return a value with doubles in place of integers that a double cannot hold exactly."""
    if isinstance(value, dict):
        return {name: ints_to_doubles(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [ints_to_doubles(element) for element in value]
    return float(value) if isinstance(value, int) and abs(value) > MAX_EXACT_INTEGER else value
