"""Thoughts: what agents reason about their intents and about decisions, until it expires."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import Visibility
from cstp_grpc.contract.errors import Conflict, InvalidArgument, NotFound, RateLimited
from cstp_grpc.core.decisions import model
from cstp_grpc.core.decisions.journal_reader import decision_not_found_error
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.decisions.sql_thoughts import SqlThoughtStore
from cstp_grpc.platform.storage.pagination import Page, PageRequest
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from cstp_grpc.platform.storage.writer import GroupCommitWriter

MAX_SHOWN = 20
"""Thoughts that are returned with a decision, if they fit into a page."""
REMOVAL_BATCH = 1000
"""Expired thoughts that one transaction deletes."""


@dataclass(frozen=True, slots=True)
class ThoughtLimits:
    """Limits of thoughts: their characters, their numbers for each agent, and how long they are kept."""

    max_characters: int
    per_target: int
    per_agent: int
    kept: timedelta | None


class Thoughts:
    """Records and reads thoughts. An agent's limits depend on its own alone, so that they reveal no others."""

    def __init__(
        self,
        store: SqlThoughtStore,
        decisions: SqlDecisionStore,
        writer: GroupCommitWriter,
        clock: Callable[[], datetime],
        limits: ThoughtLimits,
    ) -> None:
        self._store = store
        self._decisions = decisions
        self._writer = writer
        self._clock = clock
        self._limits = limits

    def record(self, content: model.ThoughtContent, agent: str) -> model.Thought:
        """Record a thought; the same one under the same request id is returned as it was recorded.

        Raises InvalidArgument for a text that is too long, NotFound for a decision that the agent may not read or an
        intent that it did not announce, Conflict for another use of the request id, RateLimited and Unavailable.
        """
        limits, content = self._limits, replace(content, text=replace_unstorable(content.text))
        if len(content.text) > limits.max_characters:
            raise InvalidArgument.field(
                "text", f"must have at most {limits.max_characters} characters (thoughts.max_characters)"
            )
        new = model.Thought(f"tho-{secrets.token_hex(10)}", agent, self._clock(), content)

        def job(unit_of_work: UnitOfWork) -> model.Thought:
            self._store.order.hold(unit_of_work)
            if content.request_id is not None:
                known = self._store.find_recorded(unit_of_work, agent, content.request_id, self._expired())
                if known is not None and known.content != content:
                    raise Conflict("requestId was used to record another thought")
                if known is not None:
                    return known
            self._require_target(unit_of_work, new)
            self._require_room(unit_of_work, new)
            self._store.insert(unit_of_work, new)
            return new

        return self._for_reader(self._writer.run(job), agent)

    def delete(self, thought_id: str, agent: str) -> bool:
        """Delete a thought of an agent; return whether there was one. Raises Unavailable."""
        return self._writer.run(lambda unit_of_work: self._store.delete(unit_of_work, agent, thought_id))

    def remove_expired(self) -> bool:
        """Delete some expired thoughts; return whether there may be more. Raises Unavailable."""
        job = partial(self._store.remove_expired, expired=self._expired(), limit=REMOVAL_BATCH)
        return self._writer.run(job) == REMOVAL_BATCH

    def page(
        self, reader: str, decision_id: str | None, correlation_id: str | None, request: PageRequest
    ) -> Page[model.Thought]:
        """Return the thoughts about a decision that the reader may read, or the reader's own ones; latest first.

        Raises NotFound, InvalidArgument for a page token of another listing, and QueryFailed.
        """
        if decision_id is not None:
            found = self._decisions.get(decision_id)
            if found is None or not self._decisions.may_read(found, reader):
                raise decision_not_found_error(decision_id)
        return self._page(reader, decision_id, correlation_id, request)

    def show(self, decision_id: str, reader: str) -> tuple[Sequence[model.Thought], int]:
        """Return the latest thoughts that the reader of a decision may read too, in their order, and their number."""
        count = self.count([decision_id], reader).get(decision_id, 0)
        latest = self._page(reader, decision_id, None, PageRequest(MAX_SHOWN)).items if count else ()
        return latest[::-1], count

    def count(self, ids: Sequence[str], reader: str) -> dict[str, int]:
        """Return the numbers of thoughts that the reader of decisions may read too, without zeros."""
        return self._store.count_about(ids, reader, self._expired())

    def _page(
        self, reader: str, decision_id: str | None, correlation_id: str | None, request: PageRequest
    ) -> Page[model.Thought]:
        page = self._store.page(reader, decision_id, correlation_id, request, self._expired())
        return Page(tuple(self._for_reader(item, reader) for item in page.items), page.next_token)

    def _require_target(self, unit_of_work: UnitOfWork, thought: model.Thought) -> None:
        decision_id, correlation_id = thought.content.decision_id, thought.content.correlation_id
        if decision_id is not None:
            entry = self._decisions.load(unit_of_work, [decision_id]).get(decision_id)
            if entry is None or not self._decisions.may_read(entry.decision, thought.agent):
                raise decision_not_found_error(decision_id)
        elif not self._store.has_intent(unit_of_work, thought.agent, correlation_id or ""):
            raise NotFound(f"you announced no intent {correlation_id}")

    def _require_room(self, unit_of_work: UnitOfWork, thought: model.Thought) -> None:
        limits = self._limits
        same, every = self._store.count_own(unit_of_work, thought, self._expired())
        if same >= limits.per_target:
            field = "correlationId" if thought.content.decision_id is None else "decisionId"
            raise too_many_error(f"{field}: you have {same} thoughts about it", limits.per_target, "per_target")
        if every >= limits.per_agent:
            raise too_many_error(f"you have {every} thoughts", limits.per_agent, "per_agent")

    def _expired(self) -> datetime:
        """Return the instant until which thoughts are expired."""
        kept = self._limits.kept
        return datetime.min.replace(tzinfo=UTC) if kept is None else self._clock() - kept

    def _for_reader(self, thought: model.Thought, reader: str) -> model.Thought:
        """Return a thought with its expiry, and without its text if it is another agent's private one."""
        expires_at = None if self._limits.kept is None else thought.recorded_at + self._limits.kept
        content = thought.content
        # Only an overseer gets these.
        if reader != thought.agent and content.visibility is not Visibility.SHARED:
            content = replace(content, text="")
        return replace(thought, content=content, expires_at=expires_at)


def too_many_error(problem: str, limit: int, setting: str) -> RateLimited:
    # Without a retry time: waiting helps only when one expires.
    return RateLimited(
        f"{problem}, and the limit is {limit} (thoughts.{setting}); delete some, or wait until they expire",
        metadata={"limit": str(limit)},
    )
