"""Processes that get a share of a core only, by a quota of a control group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PERIOD_US = 10_000
"""Short, since whoever is stopped within a transaction stops all other writers until the next period."""


class NoQuota(Exception):
    """This machine lets us set no quota; the message says why."""


@dataclass(frozen=True)
class Hierarchy:
    """Where groups with a CPU controller can be made: version 2 of control groups or version 1."""

    parent: Path
    version: int

    def limit(self, group: Path, share: float) -> None:
        """Give a group a share of a core."""
        quota = int(PERIOD_US * share)
        if self.version == 2:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))


@contextmanager
def held_to(share: float, pids: list[int]) -> Iterator[None]:
    """Hold each of some processes to a share of a core, as long as they live. Raises NoQuota."""
    hierarchy = find_hierarchy()
    groups = []
    try:
        for pid in pids:
            group = hierarchy.parent / f"cstp-bench-{os.getpid()}-{pid}"
            try:
                group.mkdir()
                groups.append(group)
                hierarchy.limit(group, share)
                (group / "cgroup.procs").write_text(str(pid))
            except OSError as error:
                raise NoQuota(f"control groups cannot be made in {hierarchy.parent}: {error.strerror}") from error
        yield
    finally:
        for group in groups:
            release(group, hierarchy.parent)


def release(group: Path, parent: Path) -> None:
    """Move what still runs in a group to its parent, and remove it."""
    for pid in (group / "cgroup.procs").read_text().split():
        (parent / "cgroup.procs").write_text(pid)
    group.rmdir()


def find_hierarchy(own: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/proc/self/mounts")) -> Hierarchy:
    """Return the folder in which this process may make groups with a CPU controller. Raises NoQuota."""
    if not own.exists():
        raise NoQuota("this system has no control groups")
    groups = {}
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path.lstrip("/")
    for line in mounts.read_text().splitlines():
        _, folder, kind, options, *_ = line.split()
        if kind == "cgroup2" and "" in groups:
            parent = Path(folder, groups[""])
            if "cpu" in (parent / "cgroup.subtree_control").read_text().split():
                return Hierarchy(parent, 2)
        if kind == "cgroup" and "cpu" in options.split(",") and "cpu" in groups:
            return Hierarchy(Path(folder, groups["cpu"]), 1)
    raise NoQuota("no CPU controller of control groups is given to this user")
