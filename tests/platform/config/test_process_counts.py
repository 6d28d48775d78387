"""How many processes `auto` means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cstp_grpc.platform.config import ServeSettings, count_bridges, count_workers
from cstp_grpc.platform.config.listeners import count_cores, read_quota


@pytest.mark.parametrize(
    ("text", "cores"), [("200000 100000\n", 2), ("150000 100000\n", 2), ("25000 100000\n", 1), ("max 100000\n", None)]
)
def test_the_quota_of_a_container_bounds_the_cores(tmp_path: Path, text: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert read_quota(tmp_path / "cpu.max") == (cores or os.cpu_count())


def test_without_a_quota_all_cores_count(tmp_path: Path) -> None:
    assert read_quota(tmp_path / "absent") == os.cpu_count()


def test_the_bridge_has_as_many_processes_as_the_server_unless_set_otherwise() -> None:
    assert count_workers(ServeSettings()) == count_bridges(ServeSettings()) == 1
    assert count_bridges(ServeSettings(workers=3)) == 3
    assert count_bridges(ServeSettings(workers=3, bridge_workers=1)) == 1
    assert count_workers(ServeSettings(workers="auto")) == count_cores() >= 1
