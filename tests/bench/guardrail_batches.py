"""Batches of checks, and rules that are loaded again: two parts of the section `guardrails`."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from cstp_grpc.core.guardrails.evaluator import ALLOW_UNKNOWN
from cstp_grpc.core.guardrails.model import Action
from cstp_grpc.core.guardrails.reloading import RuleLoader
from cstp_grpc.core.guardrails.rulebook import read_rulebooks
from tests.bench.clients import calling, cstp_method, noop_method
from tests.bench.guardrail_rules import mixed_rules, varied_actions, write_rules
from tests.bench.load import Series
from tests.bench.parts import durable_transaction
from tests.bench.processes import server
from tests.bench.results import Better
from tests.bench.run import Run

ACTIONS = 100
"""Actions in a batch, as the aim is stated."""


def measure_batches(run: Run, size: int) -> None:
    """Measure an action of a batch by so many rules, beside its share of the call and of one durable write."""
    path = write_rules(run.folder / f"batch-{size}.yaml", mixed_rules(size))
    params = {"actions": list(map(action_to_json, varied_actions(ACTIONS)))}
    with ExitStack() as opened:
        served = opened.enter_context(server(run.folder / f"batch-{size}", "--rules", str(path)))
        method = cstp_method(served.grpc, "cstp.batchCheckGuardrails", lambda: params)
        batch = Series(
            f"BatchCheckGuardrails, {ACTIONS} actions, {size} rules",
            1,
            opened.enter_context(calling(method, 1)),
            [served.pid],
        )
        noop = Series("no-op", 1, opened.enter_context(calling(noop_method(served.noop), 1)), [served.pid])
        written = Series(
            f"one durable transaction of {ACTIONS} rows (sqlite3)", 1, durable_transaction(run.folder, ACTIONS)
        )
        run.measure([noop, batch, written])
    parts = zip(*(each.values(lambda sample: sample.p50_ms) for each in (batch, noop, written)), strict=True)
    above = [(whole - call - write) * 1_000 / ACTIONS for whole, call, write in parts]
    run.add(f"batch-{size}", "us", Better.LOWER, above)


def action_to_json(action: Action) -> dict[str, Any]:
    """Return an action as a request has it."""
    return {
        "description": action.description,
        "category": action.category,
        "stakes": action.stakes.value,
        "confidence": action.confidence,
        "context": dict(action.context),
    }


def measure_reload(run: Run, size: int) -> None:
    """Measure how long a changed rulebook takes until it can judge, in CPU time of this process."""
    path = run.folder / "reloaded.yaml"
    loader = RuleLoader(path, ALLOW_UNKNOWN, frozenset(), lambda: datetime.now(UTC))
    rounds = []
    for _ in range(run.rounds):
        write_rules(path, mixed_rules(size))
        begun = time.process_time()
        loader.load(*read_rulebooks(path))
        rounds.append((time.process_time() - begun) * 1_000)
    run.add(f"reload-{size}", "ms", Better.LOWER, rounds)
