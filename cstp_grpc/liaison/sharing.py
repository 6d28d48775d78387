"""Sharing contexts with liaison agents: what may be shared, with whom, and once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Connection

from cstp_grpc.errors import (
    Block,
    Conflict,
    ContextSharingFailed,
    CstpError,
    MissingParameter,
    NotFound,
    PermissionDenied,
)
from cstp_grpc.guardrails.model import Action, Verdict
from cstp_grpc.liaison.acts import Act, ActKind
from cstp_grpc.liaison.agents import (
    DeliveryFailed,
    DeliveryRefused,
    LiaisonAgent,
    LiaisonAgents,
    Parcel,
    is_remote,
)
from cstp_grpc.liaison.canonical import digest
from cstp_grpc.liaison.model import Caller, DeliveryState, Event, EventType, RoutingDecision, Share
from cstp_grpc.liaison.recorder import Recorder
from cstp_grpc.liaison.redaction import Redacted, Redaction
from cstp_grpc.liaison.store import RoutingStore, SessionStore
from cstp_grpc.storage.text import storable

CATEGORY = "liaison"
"""The category by which guardrails know a hand-over."""


class Judge(Protocol):
    """Judges actions."""

    def judge(self, action: Action) -> Verdict:
        """Return the verdict without recording it. Raises GuardrailEvalFailed."""


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """What is to be shared with whom; None and empty stand for what was not given."""

    source_agent: str
    target_agent: str
    shared_context: Mapping[str, Any] | None
    conversation_id: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Handover:
    """What guardrails judge: who gives what to whom, and why."""

    pillar: str
    from_agent: str
    to_agent: str
    reason: str = ""
    session_id: str | None = None
    user_id: str | None = None


class Sharing:
    """Shares contexts: redacted, allowed by guardrails, with agents that are there, each once.

    `wake` tells whoever delivers that there may be something to deliver.
    """

    def __init__(
        self,
        sessions: SessionStore,
        store: RoutingStore,
        agents: LiaisonAgents,
        redaction: Redaction,
        judge: Judge,
        recorder: Recorder,
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
        self._wake = wake

    def share(self, caller: Caller, request: ShareRequest) -> Share:
        """Return a share that is on disk; the same one again gives the first.

        Raises MissingParameter, InvalidPillar, LiaisonAgentUnavailable, ContextSharingFailed, PermissionDenied where
        guardrails block it, and Conflict where the key was used for another context.
        """
        context = require_parameters(request)
        pillar, agent = self._agents.of_agent(request.target_agent)
        act = Act(self._clock(), ActKind.CONTEXT_SHARED, caller, request.target_agent, request.conversation_id)
        try:
            redacted = self.redact(context)
            share = draft(caller, request, redacted, self._clock())
            act = replace(act, context_hash=share.context_hash, shared_context=share.shared_context)
            with self._sessions.reading() as connection:
                known = self._store.share(connection, caller.tenant, share.id)
            if known is not None:
                return same(known, share)
            agent.check(caller.tenant)
            handover = Handover(pillar, request.source_agent, request.target_agent, session_id=request.conversation_id)
            verdict = self.judge(caller, handover)
            act = replace(act, verdict=verdict)
            require_allowed(verdict, handover)
            offered = self.offer(agent, share, None, pillar)
        except CstpError as error:
            explain(error, pillar)
            self._recorder.refusal(replace(act, error=error.reason))
            raise
        stored = self._recorder.run(lambda connection: self._keep_alone(connection, offered, act))
        if offered.is_to_be_delivered:
            self._wake()
        return stored

    def get(self, caller: Caller, share_id: str) -> Share:
        """Return a share of the caller's tenant. Raises NotFound and QueryFailed."""
        with self._sessions.reading() as connection:
            share = self._store.share(connection, caller.tenant, share_id)
        if share is None:
            raise NotFound(f"There is no share {share_id}", metadata={"share_id": share_id})
        return share

    @property
    def redacts(self) -> bool:
        """Whether there are rules of redaction, which may take long."""
        return self._redaction.has_rules

    def redact(self, context: Mapping[str, Any]) -> Redacted:
        """Return what may be shared of a context. Raises ContextSharingFailed."""
        return self._redaction.apply(context)

    def judge(self, caller: Caller, handover: Handover) -> Verdict:
        """Return the guardrails' verdict on a hand-over. Raises GuardrailEvalFailed."""
        return self._judge.judge(action_of(caller, handover))

    def offer(self, agent: LiaisonAgent, share: Share, decision: RoutingDecision | None, pillar: str) -> Share:
        """Return a share with what becomes of its delivery: an agent that must accept it first is asked.

        Raises ContextSharingFailed where it does not.
        """
        if not is_remote(agent):
            # It is there for the agent, which watches, as soon as it is on disk.
            return replace(share, delivery=DeliveryState.DELIVERED, delivered_at=share.shared_at)
        if not agent.confirms:
            return replace(share, next_attempt_at=share.shared_at)
        try:
            receipt = agent.deliver(Parcel(share, decision, pillar))
        except (DeliveryRefused, DeliveryFailed) as error:
            details = {"target_pillar": pillar, "reason": str(error)}
            raise ContextSharingFailed(f"{share.target_agent} did not accept: {error}", metadata=details) from error
        return replace(
            share, delivery=DeliveryState.DELIVERED, delivered_at=self._clock(), attempts=1, task_id=receipt.task_id
        )

    def keep(self, connection: Connection, share: Share) -> Share:
        """Return a share within a transaction, as it is kept: added now or the same one before."""
        if self._store.add_share(connection, share):
            return share
        known = self._store.share(connection, share.tenant, share.id)
        assert known is not None, "nobody deletes a share while this transaction holds the order of writes"
        return same(known, share)

    def _keep_alone(self, connection: Connection, share: Share, act: Act) -> Share:
        """Keep a share that no routing makes, with its event."""
        stored = self.keep(connection, share)
        if stored is share:
            self._recorder.event(connection, shared_event(share))
            self._recorder.act(connection, act)
        return stored


def require_parameters(request: ShareRequest) -> Mapping[str, Any]:
    """Return the context of a request. Raises MissingParameter."""
    for name in ("source_agent", "target_agent"):
        if not getattr(request, name).strip():
            raise missing_parameter(name)
    if request.shared_context is None:
        raise missing_parameter("shared_context")
    return request.shared_context


def missing_parameter(name: str) -> MissingParameter:
    """Return the error for a parameter that was not given."""
    error = MissingParameter.field(name, "is required")
    return MissingParameter(f"{name} is required", violations=error.violations, metadata={"parameter": name})


def explain(error: CstpError, pillar: str) -> None:
    """Give an error the details that every failure of an intent has."""
    error.metadata.setdefault("target_pillar", pillar)
    error.metadata.setdefault("reason", error.message)


def draft(caller: Caller, request: ShareRequest, redacted: Redacted, at: datetime) -> Share:
    """Return a share that no routing makes, not offered yet."""
    # As they will be read again, so that a repetition is known by them.
    source_agent, conversation_id = storable(request.source_agent), storable(request.conversation_id)
    identity = [source_agent, request.target_agent, conversation_id, redacted.context_hash]
    return Share(
        tenant=caller.tenant,
        id=request.idempotency_key or digest(identity),
        source_agent=source_agent,
        target_agent=request.target_agent,
        conversation_id=conversation_id,
        shared_context=redacted.context,
        context_hash=redacted.context_hash,
        shared_by=caller.agent,
        shared_at=at,
        execution_id=caller.request_id,
        context_json=redacted.json,
    )


def same(known: Share, share: Share) -> Share:
    """Return the share that is there, if it is of the same between the same. Raises Conflict."""
    for name in ("source_agent", "target_agent", "conversation_id", "context_hash"):
        if getattr(known, name) != getattr(share, name):
            raise Conflict(
                f"The key {share.id} was used to share something else: {name} differs", metadata={"share_id": share.id}
            )
    return known


def shared_event(share: Share) -> Event:
    """Return the event of a share that no routing makes."""
    data = {
        "share_id": share.id,
        "source_agent": share.source_agent,
        "target_agent": share.target_agent,
        "context_hash": share.context_hash,
    }
    if share.conversation_id is not None:
        data["conversation_id"] = share.conversation_id
    return Event(share.tenant, EventType.CONTEXT_SHARED, share.target_agent, share.shared_at, data=data)


def action_of(caller: Caller, handover: Handover) -> Action:
    """Return a hand-over as guardrails see it."""
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
        category=CATEGORY,
        context={key: value for key, value in context.items() if value is not None},
    )


def require_allowed(verdict: Verdict, handover: Handover) -> None:
    """Refuse what guardrails block. Raises PermissionDenied, which names them."""
    if verdict.allowed:
        return
    blocks = [Block(found.guardrail_id, found.name, found.message) for found in verdict.violations]
    raise PermissionDenied(
        f"Guardrails block the hand-over to {handover.to_agent}: {', '.join(block.guardrail_id for block in blocks)}",
        metadata={"target_pillar": handover.pillar, "reason": "blocked by guardrails"},
        blocks=blocks,
    )
