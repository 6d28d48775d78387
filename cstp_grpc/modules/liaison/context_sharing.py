"""Share contexts with liaison agents: redacted, checked by guardrails, and each once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

from cstp_grpc.common.canonical_json import hash_canonical_json
from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.spans import inbound_trace
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract import errors
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.core.guardrails.model import NO_INTENTS, Action, Verdict
from cstp_grpc.modules.liaison.agents import DeliveryRequest, LiaisonAgent, LiaisonAgents, is_remote
from cstp_grpc.modules.liaison.audit import AuditedWriter, SessionOperation
from cstp_grpc.modules.liaison.model import DeliveryState, Event, EventType, RoutingDecision, Share, TenantCaller
from cstp_grpc.modules.liaison.redaction import RedactedContext, Redaction
from cstp_grpc.modules.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.platform.storage.delivery_queue import DeliveryFailed, DeliveryRejected
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

GUARDRAIL_CATEGORY = "liaison"
"""The category of a hand-over for guardrails."""


class HandoverJudge(Protocol):
    """Check actions with guardrails."""

    @property
    def reads_history(self) -> bool:
        """Whether any guardrail asks about the past."""

    def judge_blocking(self, action: Action, reader: str) -> Verdict:
        """Return the verdict without recording it; may block, to read past decisions visible to `reader`.

        Raises GuardrailEvalFailed.
        """


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """A request to share a context; None and empty mean that a parameter was not given."""

    source_agent: str
    target_agent: str
    shared_context: Mapping[str, Any] | None
    conversation_id: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Handover:
    """The hand-over that guardrails check: its source, target, reason and session."""

    pillar: str
    from_agent: str
    to_agent: str
    reason: str = ""
    session_id: str | None = None
    user_id: str | None = None


class ContextSharing:
    """Share contexts: redacted, allowed by guardrails, with available agents, each once.

    `wake` notifies the dispatcher that a delivery may be due.
    """

    def __init__(
        self,
        sessions: SqlSessionStore,
        store: SqlRoutingStore,
        agents: LiaisonAgents,
        redaction: Redaction,
        judge: HandoverJudge,
        recorder: AuditedWriter,
        clock: Callable[[], datetime],
        wake: Callable[[], None],
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._agents = agents
        self._redaction = redaction
        self._judge = judge
        self._recorder = recorder
        self._clock = clock
        self.wake = wake

    def share(self, caller: TenantCaller, request: ShareRequest) -> Share:
        """Share a context durably; the same request again returns the first share.

        Raises MissingParameter, InvalidPillar, LiaisonAgentUnavailable, ContextSharingFailed, PermissionDenied if
        guardrails block it, and Conflict if the key was used for another context.
        """
        # Outside the try, like the look-up of the agent: a request that names nothing to share is no refused hand-over
        # for the trail.
        context = require_parameters(request)
        pillar, agent = self._agents.of_agent(request.target_agent)
        operation = SessionOperation(
            self._clock(), AuditEvent.CONTEXT_SHARED, caller, request.target_agent, request.conversation_id
        )
        try:
            # First, because the identity of a share is the hash of the shared context, which is redacted.
            redacted = self.redact(context)
            share = new_share(caller, request, redacted, self._clock())
            operation = replace(operation, context_hash=share.context_hash, shared_context=share.shared_context)
            with self._sessions.read_snapshot() as unit_of_work:
                known = self._store.share(unit_of_work, caller.tenant, share.id)
            if known is not None:
                # Before the agent is asked: a repeated request gets its answer even if the agent is away by now.
                return require_same_share(known, share)
            # Before the guardrails, so that the trail has no verdict on a hand-over that could not happen.
            agent.check(caller.tenant)
            handover = Handover(pillar, request.source_agent, request.target_agent, session_id=request.conversation_id)
            verdict = self.judge(caller, handover)
            operation = replace(operation, verdict=verdict)
            require_allowed(verdict, handover)
            # Outside of the transaction, which must not wait for another server. Killed after it, the agent has a share
            # that is not on disk; the repeated request delivers it again under the same id.
            offered = self.deliver_if_confirming(agent, share, None, pillar)
        except errors.CstpError as error:
            add_failure_details(error, pillar)
            # A transaction of its own, because the one of the share never began.
            self._recorder.record_refusal(replace(operation, error=error.reason))
            raise
        stored = self._recorder.run(lambda unit_of_work: self._insert_unrouted(unit_of_work, offered, operation))
        # After the commit: the dispatcher reads the share from the database.
        if offered.is_to_be_delivered:
            self.wake()
        return stored

    def get(self, caller: TenantCaller, share_id: str) -> Share:
        """Return a share of the caller's tenant. Raises NotFound and QueryFailed."""
        with self._sessions.read_snapshot() as unit_of_work:
            share = self._store.share(unit_of_work, caller.tenant, share_id)
        if share is None:
            raise errors.NotFound(f"There is no share {share_id}", metadata={"share_id": share_id})
        return share

    @property
    def may_take_long(self) -> bool:
        """Whether there are redaction rules, or guardrails that ask about the past, of which much may be new."""
        return self._redaction.has_rules or self._judge.reads_history

    def redact(self, context: Mapping[str, Any]) -> RedactedContext:
        """Return the redacted context. Raises ContextSharingFailed."""
        return self._redaction.apply(context)

    def judge(self, caller: TenantCaller, handover: Handover) -> Verdict:
        """Return the guardrails' verdict on a hand-over. Raises GuardrailEvalFailed."""
        return self._judge.judge_blocking(handover_action(caller, handover), caller.agent)

    def deliver_if_confirming(
        self, agent: LiaisonAgent, share: Share, decision: RoutingDecision | None, pillar: str
    ) -> Share:
        """Return the share with its delivery state; an agent that must accept first is called now.

        Raises ContextSharingFailed if it does not accept.
        """
        if not is_remote(agent):
            # A local agent watches the events of this server, so the share is delivered once it is on disk.
            return replace(share, delivery=DeliveryState.DELIVERED, delivered_at=share.shared_at)
        if not agent.confirms:
            return replace(share, next_attempt_at=share.shared_at)
        try:
            task_id = agent.deliver(DeliveryRequest(share, decision, pillar))
        except (DeliveryRejected, DeliveryFailed) as error:
            details = {"target_pillar": pillar, "reason": str(error)}
            raise errors.ContextSharingFailed(
                f"{share.target_agent} did not accept: {error}", metadata=details
            ) from error
        return replace(share, delivery=DeliveryState.DELIVERED, delivered_at=self._clock(), attempts=1, task_id=task_id)

    def insert_or_get(self, unit_of_work: UnitOfWork, share: Share) -> Share:
        """Insert a share within a transaction, or return the same one if it exists."""
        if self._store.add_share(unit_of_work, share):
            return share
        known = self._store.share(unit_of_work, share.tenant, share.id)
        assert known is not None, "nobody deletes a share while this transaction holds the order of writes"
        return require_same_share(known, share)

    def _insert_unrouted(self, unit_of_work: UnitOfWork, share: Share, operation: SessionOperation) -> Share:
        """Store a share that belongs to no routing, with its event."""
        stored = self.insert_or_get(unit_of_work, share)
        if stored is share:
            self._recorder.add_event(unit_of_work, shared_event(share))
            self._recorder.add_operation(unit_of_work, operation)
        return stored


def require_parameters(request: ShareRequest) -> Mapping[str, Any]:
    """Return the context of a request. Raises MissingParameter."""
    for name in ("source_agent", "target_agent"):
        if not getattr(request, name).strip():
            raise missing_parameter(name)
    if request.shared_context is None:
        raise missing_parameter("shared_context")
    return request.shared_context


def missing_parameter(name: str) -> errors.MissingParameter:
    error = errors.MissingParameter.field(name, "is required")
    return errors.MissingParameter(f"{name} is required", violations=error.violations, metadata={"parameter": name})


def add_failure_details(error: errors.CstpError, pillar: str) -> None:
    """Add the metadata that every failure of an intent has to an error."""
    error.metadata.setdefault("target_pillar", pillar)
    error.metadata.setdefault("reason", error.message)


def new_share(caller: TenantCaller, request: ShareRequest, redacted: RedactedContext, at: datetime) -> Share:
    """Return a new share that belongs to no routing, not delivered yet."""
    # In the form in which they are stored, so that a repeated request has the same id.
    source_agent, conversation_id = (
        replace_unstorable(request.source_agent),
        request.conversation_id and replace_unstorable(request.conversation_id),
    )
    identity = [source_agent, request.target_agent, conversation_id, redacted.context_hash]
    return Share(
        tenant=caller.tenant,
        id=request.idempotency_key or hash_canonical_json(identity),
        source_agent=source_agent,
        target_agent=request.target_agent,
        conversation_id=conversation_id,
        shared_context=redacted.context,
        context_hash=redacted.context_hash,
        shared_by=caller.agent,
        shared_at=at,
        execution_id=caller.request_id,
        traceparent=inbound_trace.get(),
        context_json=redacted.json,
    )


def require_same_share(known: Share, share: Share) -> Share:
    """Return the existing share if it equals the new one. Raises Conflict."""
    for name in ("source_agent", "target_agent", "conversation_id", "context_hash"):
        if getattr(known, name) != getattr(share, name):
            raise errors.Conflict(
                f"The key {share.id} was used to share something else: {name} differs", metadata={"share_id": share.id}
            )
    return known


def shared_event(share: Share) -> Event:
    """Return the event of a share that belongs to no routing."""
    data = {
        "share_id": share.id,
        "source_agent": share.source_agent,
        "target_agent": share.target_agent,
        "context_hash": share.context_hash,
    }
    if share.conversation_id is not None:
        data["conversation_id"] = share.conversation_id
    return Event(share.tenant, EventType.CONTEXT_SHARED, share.target_agent, share.shared_at, data=data)


def handover_action(caller: TenantCaller, handover: Handover) -> Action:
    """Return a hand-over as an action for guardrails."""
    context = {
        "target_pillar": handover.pillar,
        "routing_reason": handover.reason,
        "from": handover.from_agent,
        "to": handover.to_agent,
        "chat_session_id": handover.session_id,
        "user_id": handover.user_id,
        "tenant": caller.tenant,
    }
    reason = handover.reason or "no reason given"
    return Action(
        description=f"Hand over from {handover.from_agent} to {handover.to_agent}: {reason}",
        category=GUARDRAIL_CATEGORY,
        context={key: value for key, value in context.items() if value is not None},
        intents=NO_INTENTS,
        agent=caller.agent,
        permissions=caller.permissions,
        is_stated_by_server=True,
    )


def require_allowed(verdict: Verdict, handover: Handover) -> None:
    if verdict.allowed:
        return
    blocks = [errors.BlockingGuardrail(found.guardrail_id, found.name, found.message) for found in verdict.violations]
    raise errors.PermissionDenied(
        f"Guardrails block the hand-over to {handover.to_agent}: {', '.join(block.guardrail_id for block in blocks)}",
        metadata={"target_pillar": handover.pillar, "reason": "blocked by guardrails"},
        blocks=blocks,
    )
