"""Disks that fail: a library between the server and its files, and file systems that are small or read-only."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import pytest

from tests.faults.preloading import compile_preload


class DiskFault(StrEnum):
    """What the disk does; the values are those of failing_disk.c."""

    NONE = "-"
    FULL = "f"
    READ_ONLY = "r"
    FAILING_FSYNC = "s"
    SLOW_FSYNC = "l"


class FailingDisk:
    """Has the files of a folder fail in processes that are started with its environment."""

    def __init__(self, folder: Path, data: Path) -> None:
        """Compile the library, or skip the test; `data` is the folder whose files fail."""
        library = compile_preload(folder, "failing_disk")
        self._switch = folder / "fault"
        self._switch.write_text(DiskFault.NONE)
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "CSTP_FAULT_SWITCH": str(self._switch),
            "CSTP_FAULT_FOLDER": str(data.resolve()),
        }

    @contextmanager
    def failing(self, fault: DiskFault) -> Iterator[None]:
        """Have the disk fail for the length of a block."""
        # Overwritten in place: processes have mapped this very file.
        with self._switch.open("r+") as switch:
            switch.write(fault)
        try:
            yield
        finally:
            with self._switch.open("r+") as switch:
                switch.write(DiskFault.NONE)


@contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    """Mount a file system at a folder for the length of a block; skip the test if that is not permitted."""
    folder.mkdir(exist_ok=True)
    outcome = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True, check=False)
    if outcome.returncode:
        pytest.skip(f"a file system cannot be mounted here: {outcome.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_up(folder: Path) -> Path:
    """Write a file until the file system is full, and return it."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            return ballast
    raise AssertionError("unreachable")
