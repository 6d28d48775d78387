"""JSON Lines: one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import BinaryIO

from cstp_grpc.decisions.importing.files import decode
from cstp_grpc.decisions.importing.plain_yaml import Plain
from cstp_grpc.decisions.importing.results import Unreadable

MAX_LINE_BYTES = 4 * 1024 * 1024


def numbered_lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines that are not blank with their numbers, from 1; None in place of a line that is too long."""
    number = 0
    while data := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(data) > MAX_LINE_BYTES:
            rest = data
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE_BYTES)
            yield number, None
        elif data.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").strip():
            yield number, data


def parse_line(data: bytes | None) -> Plain:
    """Return the value of a line. Raises Unreadable."""
    if data is None:
        raise Unreadable(f"the line is longer than {MAX_LINE_BYTES // 1024 // 1024} MiB")
    text = decode(data.rstrip(b"\r\n"))
    try:
        value: Plain = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise Unreadable(f"it is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"it is not JSON: {error}") from None
    return value


def _distinct(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return found


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")
