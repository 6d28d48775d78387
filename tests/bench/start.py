"""Section `start`: ready after kill -9, memory when idle, and the CPU that commands need."""

from __future__ import annotations

import subprocess
import sys

from tests.bench.clients import TOKEN
from tests.bench.cpu_time import cpu_seconds, run_to_end
from tests.bench.memory import MANY
from tests.bench.proc import listeners, memory_of
from tests.bench.processes import stop
from tests.bench.resident import CountedResident, counted_resident
from tests.bench.results import Better
from tests.bench.run import Run
from tests.bench.stack import CSTP, Stack, clean_environment, configure

IMPORTS = [sys.executable, "-c", "import grpc, numpy, sqlalchemy"]
"""What any server like this has to load: the yardstick of its start."""
NOTHING = [sys.executable, "-c", "pass"]
"""The yardstick of commands."""
REPEATS = 3
"""How often a command runs in each round."""
CHECK = ("check", "Deploy authentication service to production", "--context-json")
EVENT = '{"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "npm test"}, "cwd": "/"}'
"""What Claude Code sends to its hook before a tool call."""
CONTEXT = '{"affectsProduction": true, "codeReviewCompleted": true, "ciPassing": true}'


def measure_start(run: Run) -> None:
    """Measure starts, then commands that call what was started, then the memory of a stack that nobody has used."""
    stack = configure(run.folder, run.decisions(MANY), embedding={"provider": run.provider})
    process, _ = stack.start_until_ready()
    try:
        for number in range(run.rounds):
            run.progress(f"round {number + 1}/{run.rounds}: kill -9 and start")
            process = measure_kill(run, stack, process)
        measure_memory(run, stack, process, "with-many-")
        for number in range(run.rounds):
            run.progress(f"round {number + 1}/{run.rounds}: commands")
            measure_commands(run, stack)
    finally:
        stop(process)
    stack = configure(run.folder, run.folder / "unused", embedding={"provider": run.provider})
    for number in range(run.rounds):
        run.progress(f"round {number + 1}/{run.rounds}: memory")
        process, _ = stack.start_until_ready()
        try:
            measure_memory(run, stack, process)
        finally:
            stop(process)


def measure_kill(run: Run, stack: Stack, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Measure one start after a kill, beside the yardstick; return the new process."""
    process.kill()
    process.wait()
    # After the kill: a server that is ready may still load what its first calls will need.
    least_wall, least_cpu = run_to_end(IMPORTS)
    process, seconds = stack.start_until_ready()
    run.add("ready-after-kill.seconds", "s", Better.LOWER, [seconds])
    run.add("ready-after-kill.wall", "x", Better.LOWER, [seconds / least_wall])
    servers, bridges = processes_of(stack, process)
    cpu = cpu_seconds([*servers, *bridges]) if bridges else None
    if cpu is None:
        run.skip("ready-after-kill.cpu", "this system does not tell the CPU time of processes")
    else:
        run.add("ready-after-kill.cpu", "x", Better.LOWER, [cpu / least_cpu])
    return process


def measure_memory(run: Run, stack: Stack, process: subprocess.Popen[bytes], when: str = "") -> None:
    """Measure the memory of the server and of the bridge."""
    servers, bridges = processes_of(stack, process)
    if not bridges:
        run.skip("memory-", "this system does not tell the memory of processes")
        return
    for name, pids in (("server", servers), ("bridge", bridges)):
        found = [memory for pid in pids if (memory := memory_of(pid))]
        run.add(f"memory-{when}{name}.rss", "MB", Better.LOWER, [sum(each.resident for each in found)])
        run.add(f"memory-{when}{name}.pss", "MB", Better.LOWER, [sum(each.share for each in found)])


def processes_of(stack: Stack, process: subprocess.Popen[bytes]) -> tuple[list[int], list[int]]:
    """Return the processes of the server and those of its bridge; no bridges if the system does not tell."""
    return sorted({process.pid, *listeners(stack.grpc)}), listeners(stack.http)


def measure_commands(run: Run, stack: Stack) -> None:
    """Measure the CPU of commands and hooks beside that of an interpreter that does nothing."""
    address = ["--agent", f"http://127.0.0.1:{stack.http}", "--token", TOKEN]
    # In a folder of its own: the server locks its data folder.
    local = configure(run.folder, run.folder / "local", embedding={"provider": "lexical"})
    hook = [CSTP, "hook", "claude-code", "--timeout", "60"]
    commands: dict[str, tuple[list[str], str]] = {
        "nothing": (NOTHING, ""),
        "help": ([CSTP, "--help"], ""),
        "check": ([CSTP, *CHECK, CONTEXT, "--config", str(stack.config)], ""),
        "check-http": ([CSTP, *CHECK, CONTEXT, *address], ""),
        "hook-http": ([*hook, *address], EVENT),
        "hook-local": ([*hook, "--local", "--config", str(local.config)], EVENT),
    }
    # Once before: the first run makes the journal of the data folder.
    run_to_end(commands["hook-local"][0], clean_environment(), EVENT)
    spent = dict.fromkeys(commands, 0.0)
    resident_hook = [*commands["hook-local"][0], "--resident"]
    with counted_resident() as resident:
        # Once before: loading counts for the first hook.
        run_resident_hook(resident, resident_hook)
        spent["hook-resident"] = sum(run_resident_hook(resident, resident_hook) for _ in range(REPEATS))
        for _ in range(REPEATS):
            for name, (command, event) in commands.items():
                spent[name] += run_to_end(command, clean_environment(), event)[1]
    for name in list(spent)[1:]:
        run.add(f"{name}.cpu", "x", Better.LOWER, [spent[name] / spent["nothing"]])
        run.add(f"{name}.cpu-seconds", "s", Better.LOWER, [spent[name] / REPEATS])


def run_resident_hook(resident: CountedResident, command: list[str]) -> float:
    """Run a hook that the resident process answers, and return the CPU seconds of both."""
    client = run_to_end(command, resident.environment, EVENT)[1]
    return client + resident.take_cpu()
