"""Metrics of calls, and of the work behind them: verdicts, searches, transactions, audit, embeddings and peers."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final

from prometheus_client import Counter

from cstp_grpc.common.spans import CallSpan
from cstp_grpc.contract.errors import error_reason
from cstp_grpc.core.audit.model import AuditEntry, AuditSink
from cstp_grpc.core.guardrails.model import EVALUATION_ERROR, Verdict, Violation
from cstp_grpc.platform.embedding.embedder import Embedder, Vectors
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.telemetry.agent_classes import AgentClasses
from cstp_grpc.platform.telemetry.instruments import CALL_BUCKETS, Instruments

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from cstp_grpc.server.interceptors.admission import InboundCall

SHORT_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Seconds. Chosen: a commit on an SSD takes 0.1 to 1 ms, and callers give up after ten seconds."""
NETWORK_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds; the longest timeout of a peer is a minute."""
JOB_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""Jobs in a transaction, of which the writer takes at most 128."""
ROW_BUCKETS: Final = (10, 100, 1000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
MAX_RULE_SETS: Final = 3
"""Number of versions of the rule set whose figures are kept. Chosen: rules that are edited all day must not fill the
memory, and two versions are in use while workers load new rules."""


class CallInstruments:
    """Counts calls when they end; fulfils `CallObserver`. Safe for many threads, though calls end on one event loop."""

    def __init__(self, instruments: Instruments, classes: AgentClasses) -> None:
        self._classes = classes
        self._seconds = instruments.histogram(
            "cstp_call_seconds",
            "Duration of calls, from their metadata to their status; of response streams, how long they were open.",
            CALL_BUCKETS,
            ("method", "agent_class", "status"),
        )
        self._errors = instruments.counter(
            "cstp_call_errors", "Calls that failed or were refused, by the reason of the error.", ("method", "reason")
        )

    def begin(self, call: InboundCall) -> None:
        call.started = time.perf_counter()

    def end(self, call: InboundCall, status: str, error: BaseException | None, response: Message | None) -> None:  # noqa: ARG002
        seconds = time.perf_counter() - call.started
        self._seconds.observe(seconds, call.method.name, self._classes.class_of(call.agent), status)
        if isinstance(error, Exception):
            self._errors.labels(call.method.name, error_reason(error)).inc()


class VerdictInstruments:
    """Counts verdicts and matched guardrails, by the version of the rules; fulfils `VerdictObserver`."""

    def __init__(self, instruments: Instruments) -> None:
        self._spans = instruments.spans
        self._verdicts = instruments.counter(
            "cstp_guardrail_verdicts",
            "Verdicts on actions, before approvals: allowed, blocked, or approval if only that was missing.",
            ("verdict", "rule_set"),
        )
        self._firings = instruments.counter(
            "cstp_guardrail_firings",
            "Guardrails that matched an action, by effect: block, approve, warn or dryrun.",
            ("rule", "effect", "rule_set"),
        )
        self._errors = instruments.counter(
            "cstp_guardrail_errors",
            "Guardrails that could not be evaluated, which counts as a match.",
            ("rule", "rule_set"),
        )
        self._failures = instruments.counter(
            "cstp_guardrail_judgement_failures", "Actions on which there was no verdict at all."
        )
        # Guards the fields below. Actions are evaluated on the event loop and, in batches, on threads.
        self._lock = threading.Lock()
        self._children: dict[tuple[str, str], Counter] = {}
        self._rule_sets: list[str] = []
        """The versions that have figures, the latest one last."""

    def measure_judgement(self) -> AbstractContextManager[object]:
        return self._spans.measure("judge")

    def observe_verdict(self, verdict: Verdict) -> None:
        outcome = "allowed" if verdict.allowed else "approval" if verdict.approval_required else "blocked"
        version = verdict.rule_set_version
        child = self._children.get((outcome, version))
        if child is None:
            child = self._add_child(outcome, version)
        child.inc()
        if verdict.violations or verdict.warnings or verdict.dryrun:
            for fired in (*verdict.violations, *verdict.warnings):
                self._count_firing(fired, fired.severity.value, version)
            for fired in verdict.dryrun:
                self._count_firing(fired, "dryrun", version)

    def observe_failure(self) -> None:
        self._failures.inc()

    def _count_firing(self, fired: Violation, effect: str, version: str) -> None:
        if fired.code == EVALUATION_ERROR:
            self._errors.labels(fired.guardrail_id, version).inc()
        self._firings.labels(fired.guardrail_id, effect, version).inc()

    def _add_child(self, outcome: str, version: str) -> Counter:
        with self._lock:
            if version not in self._rule_sets:
                self._rule_sets.append(version)
                while len(self._rule_sets) > MAX_RULE_SETS:
                    self._forget_rule_set(self._rule_sets.pop(0))
            child = self._children[outcome, version] = self._verdicts.labels(outcome, version)
        return child

    def _forget_rule_set(self, version: str) -> None:
        for counter in (self._verdicts, self._firings, self._errors):
            counter.remove_by_labels({"rule_set": version})
        self._children = {key: child for key, child in self._children.items() if key[1] != version}


class SearchInstruments:
    """Counts how searches were answered, and how many rows they scored; fulfils `SearchObserver`."""

    def __init__(self, instruments: Instruments) -> None:
        self._spans = instruments.spans
        self._plans = instruments.counter(
            "cstp_search_plans",
            "Searches by how they were answered: kept (found before, nothing changed), exact (all rows scored) and "
            "proposed (rows that the engine proposed).",
            ("plan",),
        )
        self._rows = instruments.histogram("cstp_search_scored_rows", "Rows that a search scored.", ROW_BUCKETS)

    def measure_search(self) -> AbstractContextManager[object]:
        return self._spans.measure("recall")

    def observe_plan(self, plan: str, rows: int) -> None:
        self._plans.labels(plan).inc()
        # None were scored if the search was kept.
        if rows:
            self._rows.observe(rows)


class CommitInstruments:
    """Counts transactions of the writer; fulfils `CommitObserver`."""

    def __init__(self, instruments: Instruments) -> None:
        self._spans = instruments.spans
        # Not traced: a transaction holds the writes of several calls.
        self._jobs = instruments.histogram(
            "cstp_transaction_jobs", "Writes that one transaction held.", JOB_BUCKETS, traced=False
        )
        self._seconds = instruments.histogram(
            "cstp_transaction_seconds", "Duration of transactions.", SHORT_BUCKETS, traced=False
        )
        self._commit_seconds = instruments.histogram(
            "cstp_commit_seconds",
            "Duration of commits alone, most of which is waiting until the disk has the data (fsync).",
            SHORT_BUCKETS,
            traced=False,
        )
        self._failures = instruments.counter(
            "cstp_transaction_failures", "Transactions that failed, with all writes in them."
        )

    def measure_write(self) -> AbstractContextManager[object]:
        return self._spans.measure("write")

    def observe_commit(self, jobs: int, seconds: float, commit_seconds: float) -> None:
        self._jobs.observe(jobs)
        self._seconds.observe(seconds)
        self._commit_seconds.observe(commit_seconds)

    def observe_failure(self) -> None:
        self._failures.inc()


class PeerInstruments:
    """Counts calls of peers, which are as many as are configured; fulfils `PeerObserver`."""

    def __init__(self, instruments: Instruments) -> None:
        self._spans = instruments.spans
        self._seconds = instruments.histogram(
            "cstp_peer_call_seconds",
            "Duration of calls of peers, by how they ended; skipped ones were not made.",
            NETWORK_BUCKETS,
            ("peer", "status"),
            traced=False,
        )

    def begin_call(self, peer: str, method: str) -> CallSpan:
        return self._spans.begin_call(f"peer {method}", {"cstp.peer": peer, "cstp.method": method})

    def observe_call(self, peer: str, status: str, seconds: float) -> None:
        self._seconds.observe(seconds, peer, status)


class MeasuredAuditSink:
    """An audit sink that measures how long writing entries takes; those within other transactions are part of these."""

    def __init__(self, inner: AuditSink, instruments: Instruments) -> None:
        self._inner = inner
        self._seconds = instruments.histogram(
            "cstp_audit_write_seconds",
            "How long audit entries take to be on disk, with the wait for other writes.",
            SHORT_BUCKETS,
        )

    def append(self, unit_of_work: UnitOfWork, entry: AuditEntry) -> None:
        self._inner.append(unit_of_work, entry)

    async def write(self, entry: AuditEntry) -> None:
        started = time.perf_counter()
        await self._inner.write(entry)
        self._seconds.observe(time.perf_counter() - started)

    async def write_all(self, entries: Sequence[AuditEntry]) -> None:
        started = time.perf_counter()
        await self._inner.write_all(entries)
        self._seconds.observe(time.perf_counter() - started)

    def record(self, entry: AuditEntry) -> None:
        started = time.perf_counter()
        self._inner.record(entry)
        self._seconds.observe(time.perf_counter() - started)


class MeasuredEmbedder:
    """An embedder that counts texts and measures computations; answers from the cache take no time."""

    def __init__(self, inner: Embedder, instruments: Instruments) -> None:
        self._inner = inner
        self._spans = instruments.spans
        texts = instruments.counter(
            "cstp_embedded_texts",
            "Texts whose vector was needed, by whether it was kept (cached) or computed.",
            ("source",),
        )
        self._cached, self._computed = (texts.labels(source) for source in ("cached", "computed"))
        self._waiting = instruments.gauge(
            "cstp_embedding_texts_in_progress", "Texts that are being embedded or wait for it."
        )
        self._seconds = instruments.histogram(
            "cstp_embedding_seconds", "How long it takes to embed a text or a batch of them.", SHORT_BUCKETS
        )

    def measure(self, other: Embedder) -> MeasuredEmbedder:
        """Return another embedder that is measured by the same instruments."""
        measured = copy.copy(self)
        measured._inner = other
        return measured

    @property
    def model(self) -> str:
        return self._inner.model

    @property
    def dimensions(self) -> int:
        return self._inner.dimensions

    def is_cached(self, text: str) -> bool:
        return self._inner.is_cached(text)

    def embed(self, texts: Sequence[str]) -> Vectors:
        if len(texts) == 1 and self._inner.is_cached(texts[0]):
            self._cached.inc()
            return self._inner.embed(texts)
        self._computed.inc(len(texts))
        with self._measure(len(texts)):
            return self._inner.embed(texts)

    @property
    def embeds_together(self) -> bool:
        return self._inner.embeds_together

    def embed_together(self, texts: Iterable[str]) -> None:
        if unknown := [text for text in dict.fromkeys(texts) if not self._inner.is_cached(text)]:
            self._computed.inc(len(unknown))
            with self._measure(len(unknown)):
                self._inner.embed_together(unknown)

    @contextmanager
    def _measure(self, texts: int) -> Iterator[None]:
        started = time.perf_counter()
        self._waiting.inc(texts)
        try:
            with self._spans.measure("embed"):
                yield
        finally:
            self._waiting.dec(texts)
            self._seconds.observe(time.perf_counter() - started)
