"""The sections of the benchmark, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.bench.checks import measure_checks
from tests.bench.commands import measure_commands
from tests.bench.console_screens import measure_console
from tests.bench.contention import measure_contention
from tests.bench.embedding import measure_embedding
from tests.bench.federation import measure_federation
from tests.bench.guardrail_engines import measure_engines
from tests.bench.history_rules import measure_history
from tests.bench.intent_layer import measure_project
from tests.bench.keeping import measure_keeping
from tests.bench.liaison import measure_liaison
from tests.bench.memory import measure_large_memory, measure_memory
from tests.bench.overload import measure_overload
from tests.bench.peers import measure_peers
from tests.bench.retrieval.section import measure_retrieval
from tests.bench.run import Run
from tests.bench.search_speed import measure_search
from tests.bench.start import measure_start
from tests.bench.steps import measure_steps
from tests.bench.telemetry import measure_telemetry
from tests.bench.workers import measure_workers


@dataclass(frozen=True)
class Section:
    """A part of the benchmark that can be measured alone."""

    what: str
    measure: Callable[[Run], None]
    is_usual: bool = True
    """Whether it is measured unless other sections are named."""


SECTIONS: Mapping[str, Section] = {
    "checks": Section("guardrail checks with 5, 50 and 500 rules, with durable audit and without", measure_checks),
    "guardrails": Section("the engine alone with 5, 50 and 500 rules, and beside others", measure_engines),
    "peers": Section(
        "guardrail checks compared with Cerbos and OPA: `make bench-peers`", measure_peers, is_usual=False
    ),
    "commands": Section("parsing and checking the labelled commands", measure_commands, is_usual=False),
    "telemetry": Section("checks of servers with metrics", measure_telemetry),
    "history": Section("checks with rules over the past, of 100 000 recorded outcomes", measure_history),
    "memory": Section("queries, announcements, the bridge and A2A with 1 000 decisions", measure_memory),
    "large-memory": Section("queries and announcements with 10 000 decisions", measure_large_memory),
    "search": Section("queries under filters by the number of decisions: --sizes 1k 10k 100k 1m", measure_search),
    "console": Section("screens of the console, of 10 000 decisions and 100 000 audit entries", measure_console),
    "liaison": Section("routing chat sessions", measure_liaison),
    "contention": Section("checks beside 64 queries in flight", measure_contention),
    "overload": Section("checks beside ten times the searches that saturate", measure_overload, is_usual=False),
    "workers": Section("one worker and four, each held to a quarter of a core", measure_workers),
    "keeping": Section("backups, restores and copies beside the raw ways", measure_keeping, is_usual=False),
    "start": Section("ready after kill -9, memory when idle, CPU of commands", measure_start),
    "federation": Section("checks that ask peers", measure_federation),
    "project": Section("the Intent Layer on a large project", measure_project),
    "embedding": Section("texts of many records, embedded in batches; --data names real ones", measure_embedding),
    "retrieval": Section(
        "whether searches find what was meant; --data names the corpora", measure_retrieval, is_usual=False
    ),
    "steps": Section("what each step of a call costs, alone", measure_steps, is_usual=False),
}
