"""The servicer that announces an action and records the decision to take it."""

from __future__ import annotations

import uuid
from typing import Final, Protocol

import grpc

from cstp_grpc.contract.caller import Caller, current_caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.methods import missing_permission_error
from cstp_grpc.core.decisions.journal import Journal
from cstp_grpc.core.decisions.messages import CONTENT, DECISION, LINKS
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.intents.servicer import Announcements
from cstp_grpc.gen.cstp.v1 import cstp_pb2, pre_actions_pb2, pre_actions_pb2_grpc
from cstp_grpc.modules.pre_actions.recording import AnnouncedDecision, PlannedDecision, UninterruptedCalls
from cstp_grpc.platform.storage.background_work import WorkPool

METHOD: Final = "cstp.preAction"


class IntentAnnouncer(Protocol):
    """Announces intents, to peers too if a call or the settings say so."""

    def asks_peers(self, request: cstp_pb2.AnnounceIntentRequest) -> bool:
        """Return True if peers are asked. Raises InvalidArgument."""

    async def AnnounceIntent(
        self, request: cstp_pb2.AnnounceIntentRequest, context: grpc.ServicerContext
    ) -> cstp_pb2.AnnounceIntentResponse:
        """Announce an intent."""


class PreActionService(pre_actions_pb2_grpc.PreActionServiceServicer):
    """Serves cstp.v1.PreActionService.

    `announcer` asks peers if there are any, `local` announces to this agent alone. `stores_content` False keeps the
    texts of intents out of decisions; `pool` runs blocking work.
    """

    def __init__(
        self,
        announcer: IntentAnnouncer,
        local: Announcements,
        journal: Journal,
        pool: WorkPool,
        *,
        stores_content: bool,
    ) -> None:
        self._announcer = announcer
        self._local = local
        self._journal = journal
        self._pool = pool
        self._stores_content = stores_content
        self._calls = UninterruptedCalls()

    async def PreAction(
        self, request: pre_actions_pb2.PreActionRequest, context: grpc.ServicerContext
    ) -> pre_actions_pb2.PreActionResponse:
        """Announce an action, and record the decision to take it if it is allowed."""
        announcement = request.announcement
        if not announcement.HasField("correlation_id"):
            # Here, since the decision is recorded under it.
            announcement.correlation_id = str(uuid.uuid4())
        decision = self._parse_decision(request, current_caller.get())
        if self._announcer.asks_peers(announcement):
            # Two transactions: peers are asked about an intent that is on disk, and their verdicts decide.
            feedback = await self._announcer.AnnounceIntent(announcement, context)
            recorded = await decision.record() if feedback.guardrail_status.allowed else None
        else:
            feedback, recorded = await self._calls.run(self._announce_with(announcement, decision))
        return pre_actions_pb2.PreActionResponse(
            feedback=feedback,
            decision=DECISION.encode(recorded, journal_revision=self._journal.revision) if recorded else None,
        )

    def _parse_decision(self, request: pre_actions_pb2.PreActionRequest, caller: Caller) -> AnnouncedDecision:
        """Return the decision to record. Raises PermissionDenied and InvalidArgument."""
        if Permission.RECORD not in caller.permissions:
            raise missing_permission_error(METHOD, caller.agent, Permission.RECORD)
        content = CONTENT.decode(request.decision) if request.HasField("decision") else None
        return AnnouncedDecision(
            self._journal,
            self._pool,
            self._local.parse_announcement(request.announcement),
            PlannedDecision(content, LINKS.decode(request.links)),
            caller.agent,
            caller.request_id,
            stores_content=self._stores_content,
        )

    async def _announce_with(
        self, announcement: cstp_pb2.AnnounceIntentRequest, decision: AnnouncedDecision
    ) -> tuple[cstp_pb2.AnnounceIntentResponse, Decision | None]:
        """Announce an intent and record its decision in one transaction, and let searches find it."""
        feedback, written = await self._local.announce(announcement, decision)
        if written is None:
            return feedback, None
        await decision.publish(written)
        return feedback, written.result
