"""Section `steps`: what each step of a call costs alone: kinds of servers, our own code, threads, the disk."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import uvloop

from cstp_grpc.contract.caller import Caller
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.contract.proto_values import struct_to_dict
from cstp_grpc.core.audit.sql_trail import SqlAuditTrail
from cstp_grpc.core.guardrails.checker import GuardrailChecker
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.messages import parse_action
from cstp_grpc.core.guardrails.rulebook import load_rule_set
from cstp_grpc.platform.storage.database import open_database
from cstp_grpc.platform.storage.migration import migrate_database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from cstp_grpc.server.call_handlers import serialize_message
from cstp_grpc.server.execution import CallPools, PoolName
from cstp_grpc.server.request_validation import RequestValidator, StructBounds
from tests.bench.checks import AIMED_AT, IN_FLIGHT, WITH_AUDIT, write_rulebook
from tests.bench.clients import CHECK, Method, calling, cstp_method, noop_method
from tests.bench.empty_server import KINDS
from tests.bench.load import Finished, OneByOne, Series
from tests.bench.parts import durable_transaction, without_request
from tests.bench.processes import stop
from tests.bench.results import Better
from tests.bench.run import Run

BENCH_CALLER = Caller("bench", "bench")
SERVERS = {
    "threads": "an empty call, grpc.server on threads",
    "asyncio": "an empty call, grpc.aio on asyncio",
    "uvloop": "an empty call, grpc.aio on uvloop",
    "reading": "the same, and the method reads its message itself",
    "chain": "an empty servicer behind everything that surrounds a call",
}


def measure_steps(run: Run) -> None:
    """Measure each step beside the others."""
    with ExitStack() as opened:
        empty = [
            Series(SERVERS[kind], n, opened.enter_context(calling(method, n)), [pid])
            for kind in KINDS
            for pid, method in [opened.enter_context(empty_server(kind))]
            for n in IN_FLIGHT
        ]
        run.measure(empty)
    with ExitStack() as opened:
        steps = {**compute_steps(run), **thread_steps(opened), **disk_steps(run, opened)}
        run.measure(list(steps.values()))
    for name, series in steps.items():
        run.add(name, "us", Better.LOWER, series.values(lambda s: s.p50_ms * 1_000))


@contextmanager
def empty_server(kind: str) -> Iterator[tuple[int, Method]]:
    """Run a server that does nothing, and yield its process and the method to call."""
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.empty_server", kind], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield process.pid, check_method(port) if kind == "chain" else noop_method(port)
    finally:
        stop(process)


def check_method(port: int) -> Method:
    """Return CheckGuardrails as it is measured."""
    return cstp_method(port, "cstp.checkGuardrails", lambda: CHECK)


def compute_steps(run: Run) -> dict[str, Series]:
    """Return the steps that only compute."""
    method = contract_methods()["cstp.checkGuardrails"]
    data = cstp_method(0, method.name, lambda: CHECK).request()
    request: Any = method.request.FromString(data)
    validation = RequestValidator(StructBounds(24, 20_000, 2_000))
    wanted = parse_action(request.action, BENCH_CALLER)
    steps: dict[str, tuple[str, Callable[[], object]]] = {
        "parse": ("parsing a check", lambda: method.request.FromString(data)),
        "validation": ("validation of a check", lambda: validation.validate(request)),
        "struct": ("conversion of a check's context", lambda: struct_to_dict(request.action.context)),
        "serialize": ("serializing a message of that size", lambda: serialize_message(request)),
    }
    for rules in WITH_AUDIT:
        evaluator = GuardrailEvaluator(load_rule_set(write_rulebook(run.folder, rules)))
        steps[f"engine-{rules}"] = (f"engine, {rules} rules", evaluation_by(evaluator, wanted))
    return {name: repeat(what, repeating(act)) for name, (what, act) in steps.items()}


def repeating(act: Callable[[], object]) -> OneByOne:
    """Return calls of a function without arguments."""
    return without_request(lambda _: act())


def evaluation_by(evaluator: GuardrailEvaluator, wanted: Any) -> Callable[[], object]:
    """Return a function that evaluates all rules."""
    return lambda: evaluator.evaluate(wanted)


def thread_steps(opened: ExitStack) -> dict[str, Series]:
    """Return changes between an event loop and threads."""
    lanes = CallPools()
    opened.callback(lanes.close)
    pool = opened.enter_context(ThreadPoolExecutor(1))
    loop = uvloop.new_event_loop()
    opened.callback(loop.close)
    lane = lanes[PoolName.CHECKS]

    async def hop() -> None:
        await lane.run(time.perf_counter)

    async def wake() -> None:
        woken = asyncio.get_running_loop().create_future()
        pool.submit(asyncio.get_running_loop().call_soon_threadsafe, woken.set_result, None)
        await woken

    def hand_over() -> None:
        handed: Future[float] = pool.submit(time.perf_counter)
        handed.result()

    return {
        "yield": repeat("one turn of the loop", OnLoop(loop, lambda: asyncio.sleep(0))),
        "hop": repeat("from the loop to a thread of a lane and back", OnLoop(loop, hop)),
        "wake": repeat("from the loop to a bare pool, which wakes it", OnLoop(loop, wake)),
        "hand-over": repeat("from a thread to another and back", repeating(hand_over)),
    }


def disk_steps(run: Run, opened: ExitStack) -> dict[str, Series]:
    """Return durable transactions: by the bare driver, and as audit entries of checks by our writer."""
    database = open_database(f"sqlite:///{run.folder / 'steps.db'}", 4)
    opened.callback(database.close)
    migrate_database(database)
    writer = GroupCommitWriter(database, 30)
    opened.callback(writer.close)
    evaluator = GuardrailEvaluator(load_rule_set(write_rulebook(run.folder, AIMED_AT)))
    trail = SqlAuditTrail(database, writer)
    checks = GuardrailChecker(evaluator, trail, lambda: datetime.now(UTC))
    request: Any = contract_methods()["cstp.checkGuardrails"].request.FromString(check_method(0).request())
    wanted = parse_action(request.action, BENCH_CALLER)
    loop = uvloop.new_event_loop()
    opened.callback(loop.close)
    judge = f"a check of {AIMED_AT} rules with its durable entry"
    return {
        "transaction": repeat("one durable transaction (sqlite3)", durable_transaction(run.folder)),
        "write": repeat(
            f"{judge}, awaited on the loop", OnLoop(loop, lambda: checks.judge_and_record(wanted, "a", None, "r"))
        ),
        "write-16": repeat(
            f"{judge}, 16 at once on the loop",
            OnLoop(loop, lambda: checks.judge_and_record(wanted, "a", None, "r"), at_once=16),
        ),
    }


@dataclass(frozen=True)
class OnLoop:
    """Coroutines run on an event loop of this thread, some of them at once."""

    loop: asyncio.AbstractEventLoop
    begin: Callable[[], Awaitable[object]]
    at_once: int = 1

    def prepare(self, count: int) -> Sequence[object]:
        return [None] * count

    def run(self, requests: Sequence[object]) -> Finished:
        latencies: list[float] = []

        async def repeat_each(count: int) -> None:
            for _ in range(count):
                begun = time.perf_counter()
                await self.begin()
                latencies.append(time.perf_counter() - begun)

        async def repeat_all() -> None:
            each = max(1, len(requests) // self.at_once)
            await asyncio.gather(*(repeat_each(each) for _ in range(self.at_once)))

        begun = time.perf_counter()
        self.loop.run_until_complete(repeat_all())
        return Finished(latencies, time.perf_counter() - begun)


def repeat(what: str, caller: Any) -> Series:
    """Return the series of a step in this process."""
    return Series(what, getattr(caller, "at_once", 1), caller, [os.getpid()])
