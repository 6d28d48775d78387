"""Finding where a quota can be set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.cpu_quota import NoQuota, find_hierarchy, held_to


def described(folder: Path, own: str, mounts: str) -> tuple[Path, Path]:
    (folder / "own").write_text(own)
    (folder / "mounts").write_text(mounts)
    return folder / "own", folder / "mounts"


def test_version_1_is_used_where_it_has_the_controller(tmp_path: Path) -> None:
    mounts = "cgroup /groups/cpu cgroup rw,relatime,cpu,cpuacct 0 0\ncgroup2 /groups/unified cgroup2 rw 0 0\n"
    found = find_hierarchy(*described(tmp_path, "1:cpu,cpuacct:/user\n", mounts))
    assert (found.version, found.parent) == (1, Path("/groups/cpu/user"))


@pytest.mark.parametrize("controllers", ["cpu memory", "memory"])
def test_version_2_is_used_where_the_controller_is_given_to_children(tmp_path: Path, controllers: str) -> None:
    (tmp_path / "own-group").mkdir()
    (tmp_path / "own-group" / "cgroup.subtree_control").write_text(controllers)
    files = described(tmp_path, "0::/own-group\n", f"cgroup2 {tmp_path} cgroup2 rw,nsdelegate 0 0\n")
    if "cpu" in controllers.split():
        assert find_hierarchy(*files).version == 2
    else:
        with pytest.raises(NoQuota):
            find_hierarchy(*files)


def test_a_system_without_control_groups_is_told(tmp_path: Path) -> None:
    with pytest.raises(NoQuota, match="no control groups"):
        find_hierarchy(tmp_path / "own", tmp_path / "mounts")


def test_a_process_is_released_from_its_quota() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    group = Path(f"/proc/{process.pid}/cgroup")
    try:
        before = group.read_text()
        with held_to(0.25, [process.pid]):
            assert "cstp-bench-" in group.read_text()
        assert group.read_text() == before
    except (NoQuota, FileNotFoundError) as reason:
        pytest.skip(str(reason))
    finally:
        process.kill()
        process.communicate()
