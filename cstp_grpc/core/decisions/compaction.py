"""Compaction: old decisions of one topic get a summary, which stands for them in session contexts and queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.enums import Outcome
from cstp_grpc.core.decisions import lifecycle
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.journal_reader import CURRENT_STATUSES, own_decisions
from cstp_grpc.core.decisions.model import SUMMARY_TAG, CompactionReport, Decision, DecisionFilter
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.store import Vector
from cstp_grpc.core.decisions.topic_summaries import MAX_CITED, Topic, compose_summary, list_cited, topic_of

MIN_DECISIONS: Final = 5
"""New decisions of a topic if no number is given. Chosen: fewer are read as fast as their summary."""
COMPACTED_AFTER: Final = timedelta(days=90)
"""Age of decisions if no date is given. Chosen: as old as decisions of which the ready queue asks for a review."""
MAX_READ: Final = 20_000
"""Old decisions that a call reads, the latest, in about a second."""
MAX_SUMMARIES: Final = 100
"""Summaries that a call writes, each in its transaction."""


@dataclass(frozen=True, slots=True)
class PlannedSummary:
    """A summary to write: its topic, the ids to cite, and the summary that it extends and supersedes."""

    topic: Topic
    ids: tuple[str, ...]
    former: Decision | None


class Compactor:
    """Writes summaries of agents' own old decisions; all methods raise QueryFailed and Unavailable."""

    def __init__(self, store: SqlDecisionStore, journal: Journal, model: str, clock: Callable[[], datetime]) -> None:
        """Choose quotations by the vectors of a model."""
        self._store = store
        self._journal = journal
        self._model = model
        self._clock = clock

    def compact(
        self, filters: DecisionFilter, min_decisions: int | None, caller: str, request_id: str, *, dry_run: bool
    ) -> CompactionReport:
        """Summarize the caller's old decisions that pass the filters, have an outcome and are in no summary yet."""
        if filters.agent not in (None, caller):
            return CompactionReport((), 0, truncated=False)
        before = filters.date_before or self._clock() - COMPACTED_AFTER
        closed = replace(filters, agent=caller, date_before=before, outcome=filters.outcome or tuple(Outcome))
        old = list(islice(own_decisions(self._store, caller, closed), MAX_READ + 1))
        tagged = DecisionFilter(agent=caller, tags=(SUMMARY_TAG,), status=CURRENT_STATUSES)
        summaries = [item for item in own_decisions(self._store, caller, tagged) if item.links.summarizes]
        planned = list(plan_summaries(old[:MAX_READ], summaries, min_decisions or MIN_DECISIONS))
        written: list[Decision] = []
        added = 0
        for plan in planned[:MAX_SUMMARIES]:
            summary = self._write(plan, caller, request_id, dry_run=dry_run)
            # Without one, a decision was changed meanwhile; the next call reads it again.
            if summary is not None:
                written.append(summary)
                added += len(plan.ids) - (len(plan.former.links.summarizes) if plan.former else 0)
        return CompactionReport(tuple(written), added, len(old) > MAX_READ or len(planned) > MAX_SUMMARIES)

    def _write(self, plan: PlannedSummary, caller: str, request_id: str, *, dry_run: bool) -> Decision | None:
        cited = {key: entry.decision for key, entry in self._store.get_entries(plan.ids).items()}
        if any(topic_of(item) != plan.topic for item in cited.values()) or len(cited) < len(plan.ids):
            return None
        content, links = compose_summary(plan.topic, list(cited.values()), self._read_vectors(plan.ids))
        links = replace(links, supersedes=() if plan.former is None else (plan.former.id,))
        if dry_run:
            content = lifecycle.normalize_content(content)
            return replace(lifecycle.new_entry("", content, "", caller, self._clock()).decision, links=links)
        return self._journal.record_summary(content, links, cited, caller, request_id)

    def _read_vectors(self, ids: Sequence[str]) -> Mapping[str, Vector]:
        """Return the vectors of lessons, or of the titles of decisions without one."""
        rows = self._store.index_rows_of(self._model, ids)
        return {row.decision_id: row.passages.vectors[-1 if row.passages.has_lesson else 0] for row in rows}


def plan_summaries(
    old: Sequence[Decision], summaries: Sequence[Decision], min_decisions: int
) -> Iterator[PlannedSummary]:
    """Yield the summaries to write of old decisions, those that exist extended if they have room."""
    cited = list_cited(summaries)
    new_of_topic: defaultdict[Topic, list[str]] = defaultdict(list)
    for item in sorted(old, key=lambda item: (item.date, item.id)):
        topic = topic_of(item)
        if topic is not None and (item.agent, item.id) not in cited and is_closed(item):
            new_of_topic[topic].append(item.id)
    # Of the summaries of a topic, the latest one may have room.
    latest = {topic_of(item): item for item in sorted(summaries, key=lambda item: (item.date, item.id))}
    for topic in sorted(
        new_of_topic, key=lambda topic: (topic.project or "", topic.name, topic.category or "", topic.visibility)
    ):
        new, former = new_of_topic[topic], latest.get(topic)
        while len(new) >= min_decisions:
            if former is not None and len(former.links.summarizes) >= MAX_CITED:
                former = None
            known = former.links.summarizes if former else ()
            taken = new[: MAX_CITED - len(known)]
            yield PlannedSummary(topic, (*known, *taken), former)
            new, former = new[len(taken) :], None


def is_closed(decision: Decision) -> bool:
    """Return whether a decision has an outcome, is not a summary, and waits for no review."""
    reviewed, due = decision.reviewed_date, decision.review_by
    waits = due is not None and (reviewed is None or reviewed < due)
    return decision.outcome is not None and not decision.links.summarizes and not waits
