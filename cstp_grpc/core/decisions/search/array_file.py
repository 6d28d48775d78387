"""Arrays in a file that is mapped into memory: they take no memory of the process until it changes them.

A file is written once and checked as a whole when it is opened, so that a torn or damaged one is never used. An array
has capacity for more rows, which only the process that writes them sees; in the file, the rest of it is a hole.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

HEADER: Final = struct.Struct("<8sQQI")
"""MAGIC, where the description begins, its length, and its CRC-32."""
MAGIC: Final = b"cstparr1"
ALIGNMENT: Final = 4096
READ_BYTES: Final = 1 << 20


class UnusableFile(Exception):
    """A file is incomplete or damaged."""


class SavedArray(NamedTuple):
    """The rows of an array in parts, at least one, and how many rows it has room for."""

    parts: Iterable[Array]
    capacity: int


def write_array_file(path: Path, content: object, arrays: Mapping[str, SavedArray]) -> None:
    """Write a new file with arrays and a JSON value. Raises OSError."""
    path.touch(mode=0o600, exist_ok=False)
    with path.open("wb") as file:
        end, described = ALIGNMENT, {}
        for name, (parts, capacity) in arrays.items():
            file.seek(end)
            rows = checksum = 0
            for part in map(np.ascontiguousarray, parts):
                file.write(part.data)
                checksum, rows = zlib.crc32(part.data, checksum), rows + len(part)
            shape = (capacity, *part.shape[1:])
            described[name] = (part.dtype.str, shape, end, rows, checksum)
            end += -(-part.dtype.itemsize * int(np.prod(shape)) // ALIGNMENT) * ALIGNMENT
        description = json.dumps([content, described]).encode()
        file.seek(end)
        file.write(description)
        file.seek(0)
        file.write(HEADER.pack(MAGIC, end, len(description), zlib.crc32(description)))


def open_array_file(path: Path) -> tuple[Any, dict[str, Array]]:
    """Return the JSON value of a file and its arrays, each with its room. Raises OSError and UnusableFile."""
    with path.open("rb", buffering=0) as file:
        header = file.read(HEADER.size).ljust(HEADER.size)
        magic, begin, length, checksum = HEADER.unpack(header)
        if magic != MAGIC or begin + length != os.fstat(file.fileno()).st_size:
            raise UnusableFile(f"{path}: is incomplete")
        # The description comes last, so that all arrays and their room lie within the file.
        if read_checksum(file, begin, length) != checksum:
            raise UnusableFile(f"{path}: is damaged")
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        content, described = json.loads(memory[begin:])
        arrays = {}
        for name, (kind, shape, start, rows, expected) in described.items():
            array = np.frombuffer(memory, kind, int(np.prod(shape)), start).reshape(shape)
            # Not through the mapping, whose pages would then count as memory of the process.
            if read_checksum(file, start, array[:rows].nbytes) != expected:
                raise UnusableFile(f"{path}: {name} is damaged")
            arrays[name] = array
        return content, arrays


def read_checksum(file: FileIO, start: int, length: int) -> int:
    """Return the CRC-32 of a part of a file."""
    checksum, buffer = 0, memoryview(bytearray(min(READ_BYTES, length)))
    file.seek(start)
    while length > 0 and (count := file.readinto(buffer[:length])):
        checksum, length = zlib.crc32(buffer[:count], checksum), length - count
    return checksum
