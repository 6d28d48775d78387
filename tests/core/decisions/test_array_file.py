"""Files of arrays: what is written is read again, and damage is never taken for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from cstp_grpc.core.decisions.search.array_file import (
    ALIGNMENT,
    Array,
    SavedArray,
    UnusableFile,
    open_array_file,
    write_array_file,
)

FLAGS = np.array([True, False, True])
NUMBERS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrays") / "arrays"


@pytest.fixture(scope="module")
def written(path: Path) -> bytes:
    """The bytes of a file with two arrays, one of them with room."""
    path.unlink(missing_ok=True)
    write_array_file(path, {"name": "é"}, {"flags": SavedArray([FLAGS], 3), "numbers": SavedArray([NUMBERS], 9)})
    content = path.read_bytes()
    path.unlink()
    return content


def read(path: Path, content: bytes | bytearray) -> tuple[Any, dict[str, Array]]:
    path.write_bytes(content)
    return open_array_file(path)


def assert_written(content: Any, arrays: dict[str, Array]) -> None:
    assert content == {"name": "é"}
    assert arrays["flags"].tolist() == FLAGS.tolist()
    assert arrays["numbers"][:4].tolist() == NUMBERS.tolist()


kinds = st.sampled_from([np.float32, np.float16, np.int8, np.int64, np.uint64, np.bool_])
shapes = st.tuples(st.integers(0, 5)) | st.tuples(st.integers(0, 5), st.integers(1, 4))
saved = st.lists(
    st.tuples(kinds.flatmap(lambda kind: arrays_of.arrays(kind, shapes)), st.integers(0, 9), st.integers(1, 3)),
    max_size=4,
)


@given(st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text()), saved)
def test_arrays_and_values_are_read_as_written(path: Path, content: dict[str, Any], saved: Any) -> None:
    path.unlink(missing_ok=True)
    arrays = {
        str(number): SavedArray(np.array_split(array, parts), len(array) + more)
        for number, (array, more, parts) in enumerate(saved)
    }
    write_array_file(path, content, arrays)
    for _ in range(2):
        read_content, found = open_array_file(path)
        assert read_content == content
        for each, (array, more, _) in zip(found.values(), saved, strict=True):
            assert (each.dtype, each.shape) == (array.dtype, (len(array) + more, *array.shape[1:]))
            assert each[: len(array)].tobytes() == array.tobytes()
            # Written for this process alone, so the second look finds the same.
            each[:] = 1


@given(st.data())
def test_damage_is_found_or_changes_nothing(path: Path, written: bytes, data: st.DataObject) -> None:
    used = [*range(28), *range(ALIGNMENT, ALIGNMENT + 60), *range(2 * ALIGNMENT, 2 * ALIGNMENT + 120)]
    place = data.draw(st.sampled_from(used) | st.integers(0, len(written) - 1))
    damaged = bytearray(written)
    damaged[place] ^= data.draw(st.integers(1, 255))
    try:
        found = read(path, damaged)
    except UnusableFile:
        return
    assert_written(*found)


def test_each_damaged_byte_of_values_is_found(path: Path, written: bytes) -> None:
    assert_written(*read(path, written))
    rows = [*range(ALIGNMENT, ALIGNMENT + FLAGS.nbytes), *range(2 * ALIGNMENT, 2 * ALIGNMENT + NUMBERS.nbytes)]
    for place in [*range(28), *rows, *range(3 * ALIGNMENT, len(written))]:
        damaged = bytearray(written)
        damaged[place] ^= 1
        with pytest.raises(UnusableFile):
            read(path, damaged)


@given(st.data())
def test_a_beginning_is_not_used(path: Path, written: bytes, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(written) - 1))
    # A kill leaves the beginning; a power failure may leave zeros in place of the rest.
    for torn in (written[:length], written[:length].rstrip(b"\0").ljust(len(written), b"\0")):
        if torn != written:
            with pytest.raises(UnusableFile):
                read(path, torn)


def test_an_existing_file_is_never_overwritten(path: Path, written: bytes) -> None:
    path.write_bytes(written)
    with pytest.raises(FileExistsError):
        write_array_file(path, None, {})
    assert path.read_bytes() == written
