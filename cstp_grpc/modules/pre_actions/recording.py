"""The decision that is recorded with the announcement of an action."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from cstp_grpc.common.lazy_dataclass import dataclass, field, replace
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.model import Decision, DecisionContent, Links
from cstp_grpc.core.decisions.store import JournalWrite
from cstp_grpc.core.intents.model import Announcement, RecordJob
from cstp_grpc.platform.storage.background_work import WorkPool

T = TypeVar("T")

MAX_TITLE_CHARACTERS: Final = 500
"""Maximum length of a title, as the contract has it."""
KEY_NAME: Final = "the same announcement"
"""The words for a request id in errors."""


@dataclass(frozen=True, slots=True)
class PlannedDecision:
    """The decision to take an announced action; `content` is None if it says nothing beyond the announcement."""

    content: DecisionContent | None = None
    links: Links = field(default_factory=Links)


class AnnouncedDecision:
    """A decision that is recorded once for an announcement, however often that is repeated.

    `caller` records it, in the transaction of the announcement or in one of its own; `pool` runs blocking work. Fulfils
    `DecisionRecording`.
    """

    def __init__(
        self,
        journal: Journal,
        pool: WorkPool,
        announcement: Announcement,
        planned: PlannedDecision,
        caller: str,
        request_id: str,
        *,
        stores_content: bool,
    ) -> None:
        """Set the content to record. Raises InvalidArgument if it must be given, since contents are not stored."""
        if planned.content is None and not stores_content:
            raise InvalidArgument.field("decision", "must be given: this server stores no contents of intents")
        self._journal = journal
        self._pool = pool
        self._content = complete_content(planned.content, announcement, with_context=stores_content)
        self._links = planned.links
        self._caller = caller
        self._request_id = request_id
        self._key = recording_key(announcement)

    async def prepare(self) -> RecordJob:
        """Return the job that records it within a transaction, and raises Conflict. Raises QueryFailed."""
        return await self._pool.run(
            self._journal.prepare_record,
            self._content,
            self._links,
            self._caller,
            self._request_id,
            self._key,
            KEY_NAME,
        )

    async def publish(self, write: JournalWrite[Decision]) -> None:
        """Make searches find it once the transaction is committed."""
        await self._pool.run(self._journal.publish, write)

    async def record(self) -> Decision:
        """Record it in a transaction of its own and return it. Raises Conflict, QueryFailed and Unavailable."""
        return await self._pool.run(
            self._journal.record, self._content, self._links, self._caller, self._request_id, self._key, KEY_NAME
        )


def recording_key(announcement: Announcement) -> str:
    """Return the key under which the decision of an announcement is recorded once.

    By the content and not by the revision: a late repetition, which is another revision, is not another decision.
    """
    identity = f"{announcement.correlation_id}\0{announcement.content_hash()}"
    # With a space, which no request id contains that a caller may choose.
    return f"announced {hashlib.sha256(identity.encode()).hexdigest()}"


def complete_content(
    content: DecisionContent | None, announcement: Announcement, *, with_context: bool
) -> DecisionContent:
    context = announcement.context if with_context else None
    if content is None:
        content = DecisionContent(cut_title(announcement.intent))
        if content.title != announcement.intent:
            context = "\n".join(filter(None, (announcement.intent, context)))
    return replace(
        content,
        context=content.context or context,
        category=content.category or announcement.category,
        stakes=content.stakes or announcement.stakes,
        confidence=announcement.confidence if content.confidence is None else content.confidence,
        project=content.project or announcement.project,
    )


def cut_title(text: str) -> str:
    return text if len(text) <= MAX_TITLE_CHARACTERS else f"{text[: MAX_TITLE_CHARACTERS - 1]}…"


class UninterruptedCalls:
    """Runs coroutines to their ends even if their callers are cancelled; for one event loop.

    Between a commit and its publication nothing may end a call: searches would not find the decision before the server
    starts again.
    """

    def __init__(self) -> None:
        # The loop itself keeps only weak references to tasks.
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine. Raises its errors."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)
