"""Section `history`: checks with rules over the past, where many outcomes are recorded."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import uvloop

from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.core.audit.model import NullAuditSink
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import JournalEntry
from cstp_grpc.core.guardrails.checker import GuardrailChecker, prepare_history
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.rulebook import load_rule_set
from cstp_grpc.core.intents.outcome_history import OutcomeHistory
from cstp_grpc.core.intents.sql_outcomes import SqlOutcomeStore
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.migration import migrate_database
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from cstp_grpc.server.execution import CallPools, PoolName
from tests.bench.guardrail_rules import ACTION, CATEGORIES, mixed_rules, write_rules
from tests.bench.load import Sample, Series
from tests.bench.results import Better
from tests.bench.run import Run
from tests.bench.steps import OnLoop, repeat

RULES = 50
OUTCOMES = 100_000
DAYS = 30
"""The days over which the outcomes are spread."""
BATCH = 5_000
"""Outcomes of one transaction."""
NOW = datetime(2026, 3, 1, tzinfo=UTC)

QUESTIONS = {
    "day": [
        'history.failures(category, "24h") >= 3000 && history.successes_since_failure(category, "24h") < 2',
        'history.count(agent, "7d") >= 10 && history.failures(agent, "7d") * 2 > history.count(agent, "7d")',
    ],
    "all": ['history.failures("30d") * 2 > history.count("30d")'],
}
"""Rules over the past, by the name of the figure; `all` counts every outcome that there is."""


def measure_history(run: Run) -> None:
    """Measure checks with such rules beside the same checks without them."""
    with ExitStack() as opened:
        database = open_database(f"sqlite:///{run.folder / 'history.db'}", 4)
        opened.callback(database.close)
        migrate_database(database)
        outcomes = OUTCOMES // 100 if run.small else OUTCOMES
        write_outcomes(database, outcomes)
        pools = CallPools()
        opened.callback(pools.close)
        loop = uvloop.new_event_loop()
        opened.callback(loop.close)

        def checks(name: str, conditions: list[str]) -> Series:
            # As of a server that has the database alone, and writes nothing meanwhile.
            store = SqlOutcomeStore(database, lambda: 0)
            history = OutcomeHistory(store, SHARE_WITH_ALL, lambda: NOW, pools[PoolName.CHECKS])
            path = write_rules(run.folder / f"history-{name}.yaml", [*mixed_rules(RULES), *history_rules(conditions)])
            evaluator = GuardrailEvaluator(load_rule_set(path))
            prepare_history(evaluator, history)
            checker = GuardrailChecker(evaluator, NullAuditSink(), lambda: NOW, history=history)
            what = f"a check of {RULES} rules" + (
                f" and {len(conditions)} over {outcomes} outcomes" if conditions else ""
            )
            return repeat(what, OnLoop(loop, lambda: checker.judge_and_record(ACTION, ACTION.agent, None, "r")))

        without = checks("none", [])
        series = {name: checks(name, conditions) for name, conditions in QUESTIONS.items()}
        run.measure([without, *series.values()])
    for name, measured in series.items():
        pairs = zip(measured.values(p50_ms), without.values(p50_ms), strict=True)
        run.add(f"added-{name}", "ms", Better.LOWER, [with_rules - plain for with_rules, plain in pairs])


def p50_ms(sample: Sample) -> float:
    """Return the median latency of a sample."""
    return sample.p50_ms


def history_rules(conditions: list[str]) -> list[dict[str, Any]]:
    """Return rules with these conditions, none of which fires."""
    common = {"name": "Past", "severity": "block", "message": "It fails too often"}
    return [common | {"id": f"past-{number}", "when": condition} for number, condition in enumerate(conditions)]


def write_outcomes(database: Database, count: int) -> None:
    """Record so many decisions with an outcome, a fifth of them by the agent of the measured action."""
    store, writer, chance = (
        SqlDecisionStore(database, SHARE_WITH_ALL),
        GroupCommitWriter(database, 600),
        random.Random(7),
    )
    try:
        for start in range(0, count, BATCH):
            entries = [(make_entry(number, chance), number + 1) for number in range(start, min(count, start + BATCH))]
            writer.run(partial(insert, store, entries))
    finally:
        writer.close()


def insert(store: SqlDecisionStore, entries: list[tuple[JournalEntry, int]], unit_of_work: UnitOfWork) -> None:
    """Insert decisions."""
    store.insert(unit_of_work, entries, NOW)


def make_entry(number: int, chance: random.Random) -> JournalEntry:
    """Return a decision with an outcome, one in eight of them a failure."""
    at = NOW - timedelta(days=chance.random() * DAYS)
    decision = Decision(
        id=f"dec-{number:08}",
        title=f"Decision {number}",
        status=DecisionStatus.REVIEWED,
        date=at,
        agent=ACTION.agent if number % 5 == 0 else f"agent-{number % 20}",
        visibility=Visibility.SHARED if number % 3 else Visibility.PRIVATE,
        category=CATEGORIES[number % len(CATEGORIES)],
        outcome=Outcome.FAILURE if number % 8 == 0 else Outcome.SUCCESS,
    )
    return JournalEntry(replace(decision, reviewed_date=at), DecisionStatus.DECIDED, content_hash="")
