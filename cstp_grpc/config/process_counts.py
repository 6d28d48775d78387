"""How many processes `cstp serve` runs."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from cstp_grpc.config.listening import ServeSettings

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""What a container may use, in microseconds of each period: `200000 100000` is two cores, `max 100000` all."""


def count_workers(settings: ServeSettings) -> int:
    """Return how many processes serve gRPC."""
    return count_cores() if settings.workers == "auto" else settings.workers


def count_bridges(settings: ServeSettings) -> int:
    """Return how many processes the bridge has."""
    wanted = settings.workers if settings.bridge_workers is None else settings.bridge_workers
    return count_cores() if wanted == "auto" else wanted


def count_cores() -> int:
    """Return how many cores this process may use, the quota of a container included; one where that cannot be used."""
    if sys.platform != "linux":
        return 1
    return min(len(os.sched_getaffinity(0)), read_quota(CPU_QUOTA))


def read_quota(path: Path) -> int:
    """Return the cores that a quota allows, rounded up; as many as there are if it sets no bound or there is none."""
    try:
        quota, period = path.read_text(encoding="ascii").split()
        return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return os.cpu_count() or 1
