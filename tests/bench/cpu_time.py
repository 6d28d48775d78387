"""CPU time of processes, as precise as the kernel counts it."""

from __future__ import annotations

import ctypes
import resource
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence


def cpu_seconds(pids: Sequence[int]) -> float | None:
    """Return the CPU seconds that processes have used since they started, all their threads together.

    None for no processes, and on systems that do not tell (macOS).
    """
    clocks = [cpu_clock(pid) for pid in pids]
    known = [time.clock_gettime(clock) for clock in clocks if clock is not None]
    return sum(known) if clocks and len(known) == len(clocks) else None


def cpu_clock(pid: int) -> int | None:
    """Return the number of a process's CPU clock, or None if the system has none."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "clock_getcpuclockid"):
        return None
    clock = ctypes.c_int()
    if failed := library.clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise ProcessLookupError(failed, f"process {pid} has no CPU clock")
    return clock.value


def run_to_end(
    command: Sequence[str], environment: Mapping[str, str] | None = None, standard_input: str = ""
) -> tuple[float, float]:
    """Run a command, which must succeed, and return its wall and its CPU seconds, those of its children included."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, input=standard_input, text=True, stdout=subprocess.DEVNULL, env=environment)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_time(act: Callable[[], object]) -> float:
    """Return the wall seconds that a function takes."""
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun
