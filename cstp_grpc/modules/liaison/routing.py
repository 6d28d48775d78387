"""Route chat sessions from the guide to liaison agents, each routing once, and return them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from cstp_grpc.common.canonical_json import hash_canonical_json
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.spans import inbound_trace
from cstp_grpc.contract.errors import Conflict, ContextSharingFailed, CstpError, SessionWithAnotherAgent
from cstp_grpc.core.audit.model import AuditEvent
from cstp_grpc.core.guardrails.model import Verdict
from cstp_grpc.modules.liaison import context_sharing, model
from cstp_grpc.modules.liaison.agents import (
    LiaisonAgent,
    LiaisonAgents,
    caches_availability,
    decision_json,
    history_entry,
)
from cstp_grpc.modules.liaison.audit import AuditedWriter, SessionOperation
from cstp_grpc.modules.liaison.redaction import RedactedContext
from cstp_grpc.modules.liaison.sessions import (
    ClaimFence,
    assign_agent,
    check_version,
    concurrent_update,
    lock_open_session,
    require_same_activation,
    require_session,
    session_closed,
    session_event,
)
from cstp_grpc.modules.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.modules.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.platform.storage.background_work import WorkPool
from cstp_grpc.platform.storage.locks import KeyedLocks
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork

READ_FACTOR = 8
"""Characters read of a conversation, as a multiple of the bytes that may be shared. Chosen: redaction may drop most."""
SHORT_CONTEXT = 4096
"""Maximum length of a session's context, in characters of JSON, to be decoded on the event loop: less than 1 ms."""


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """A request to hand a session to a pillar.

    Without `session_id` it is the user's active session; without `context` the whole conversation is shared. `leaving`
    is the activation key of the liaison agent from which the session is taken; None for a routing that the guide
    requested.
    """

    target_pillar: str
    user_id: str
    session_id: str | None = None
    reason: str = ""
    context: Mapping[str, Any] | None = None
    leaving: str | None = None


@dataclass(frozen=True, slots=True)
class RoutingPlan:
    """A routing that is valid as long as the session stays as it was read."""

    pillar: str
    session: model.Session
    reason: str
    redacted: RedactedContext
    epoch: int
    key: str
    """The idempotency key."""
    whole_conversation: bool
    """Whether the context has all messages, so that another one makes it another context."""

    @property
    def handover(self) -> context_sharing.Handover:
        session = self.session
        to = model.liaison_agent(self.pillar)
        return context_sharing.Handover(self.pillar, session.active_agent, to, self.reason, session.id, session.user_id)


@dataclass(slots=True)
class RoutingAttempt:
    """A routing in progress, for the audit trail: `begun_at` is its start, the rest is known as it proceeds."""

    caller: model.TenantCaller
    request: RoutingRequest
    begun_at: datetime
    session: model.Session | None = None
    redacted: RedactedContext | None = None
    verdict: Verdict | None = None

    def to_operation(self, error: str | None = None) -> SessionOperation:
        """Return the audit record of the routing, or of its failure with a reason."""
        request, session, redacted = self.request, self.session, self.redacted
        return SessionOperation(
            at=self.begun_at,
            event=AuditEvent.SESSION_ROUTED,
            caller=self.caller,
            agent=model.liaison_agent(request.target_pillar),
            session_id=request.session_id if session is None else session.id,
            reason=request.reason,
            context_hash=None if redacted is None else redacted.context_hash,
            shared_context=None if redacted is None else redacted.context,
            verdict=self.verdict,
            error=error,
        )


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """The limits of routings.

    With `direct_handover` a liaison agent's session may go to another one without the guide. A conversation whose
    messages have more than READ_FACTOR times `max_context_bytes` characters is not shared as a whole. With
    `reads_are_short` the database is a file, so that a session is read in microseconds.
    """

    direct_handover: bool
    max_context_bytes: int
    reads_are_short: bool = False


class Router:
    """Route chat sessions."""

    def __init__(
        self,
        sessions: SqlSessionStore,
        store: SqlRoutingStore,
        agents: LiaisonAgents,
        sharing: context_sharing.ContextSharing,
        recorder: AuditedWriter,
        clock: Callable[[], datetime],
        fence: ClaimFence,
        policy: RoutingPolicy,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._agents = agents
        self._sharing = sharing
        self._recorder = recorder
        self._clock = clock
        self._fence = fence
        self._policy = policy
        self._readable = READ_FACTOR * policy.max_context_bytes
        # Held by a thread while a remote agent is asked to accept, so that the same routing is not delivered twice from
        # this server. Taken outside of transactions; two servers are kept apart by the version of the session instead.
        self._confirming = KeyedLocks()

    async def route_on_loop(
        self, caller: model.TenantCaller, request: RoutingRequest, pool: WorkPool
    ) -> model.Activation | None:
        """Route as `route` does, without blocking the event loop; the context of the request must be small.

        Returns None, and has done nothing, unless everything but the transaction is sure to take less than a
        millisecond: a given context without redaction, and a session of the guide for a local agent that is known to be
        available. Raises as `route` does.
        """
        agent = self._agent_of(request)
        if not self._is_short(caller, agent, request):
            return None
        attempt = RoutingAttempt(caller, request, self._clock())
        try:
            plan = await pool.run_short(self._plan_on_loop, attempt)
            if plan is None:
                return None
            job, _ = self._prepare(caller, agent, plan, attempt.to_operation())
            return await self._recorder.write(job)
        except CstpError as error:
            context_sharing.add_failure_details(error, request.target_pillar)
            # A transaction of its own: the one of the routing was rolled back, or never began.
            await self._recorder.write_refusal(attempt.to_operation(error.reason))
            raise

    def _plan_on_loop(self, attempt: RoutingAttempt) -> RoutingPlan | None:
        """Return the plan of a routing, or None if its session is large or not with the guide.

        Raises QueryFailed, ContextSharingFailed, GuardrailEvalFailed and PermissionDenied.
        """
        caller, request = attempt.caller, attempt.request
        with self._sessions.read_snapshot() as unit_of_work:
            key = caller.tenant, request.session_id, request.user_id
            session = self._sessions.get_small(unit_of_work, *key, SHORT_CONTEXT)
        if session is None or not session.is_open or session.active_agent != model.GUIDE:
            return None
        attempt.session = session
        attempt.redacted = self._redact(request, session, ())
        plan = self._plan(request, session, attempt.redacted)
        self._judge(attempt, plan)
        return plan

    def route(self, caller: model.TenantCaller, request: RoutingRequest) -> model.Activation:
        """Hand a session to a pillar's agent and return the activation, once all of it is on disk.

        Share, session, activation and event are written in one transaction. Repeating a routing before the session is
        returned gives the first activation. Raises MissingParameter, InvalidPillar, SessionNotFound,
        SessionWithAnotherAgent, LiaisonAgentUnavailable, ContextSharingFailed, SessionUpdateFailed, and
        PermissionDenied if guardrails block it; then nothing has changed.
        """
        agent = self._agent_of(request)
        attempt = RoutingAttempt(caller, request, self._clock())
        try:
            session, messages = self._read(caller, request)
            attempt.session = session
            attempt.redacted = self._redact(request, session, messages)
            plan = self._plan(request, session, attempt.redacted)
            # Before the checks of session and agent: the same routing again gets its answer, whatever has changed
            # since.
            if known := self._previous_activation(plan):
                return known
            self._require_movable(session, request)
            # Before the guardrails, whose verdict would otherwise be about a hand-over that cannot happen.
            agent.check(caller.tenant)
            self._judge(attempt, plan)
            if not agent.confirms:
                return self._hand_over(caller, agent, plan, attempt.to_operation())
            with self._confirming.holding((caller.tenant, plan.key)) as waited:
                return self._hand_over_confirmed(caller, agent, plan, attempt.to_operation(), again=waited)
        except CstpError as error:
            context_sharing.add_failure_details(error, request.target_pillar)
            self._recorder.record_refusal(attempt.to_operation(error.reason))
            raise

    def return_to_guide(
        self,
        caller: model.TenantCaller,
        session_id: str,
        reason: str,
        version: int | None,
        claim_number: int | None = None,
    ) -> tuple[model.Session, model.Event | None]:
        """Return a session to the guide, and give the session and the event, None if the guide had it.

        Raises SessionNotFound if the session is not active, SessionUpdateFailed if it has another version than the
        stated one, and SessionWithAnotherAgent if the caller does not have it (any more).
        """

        def job(unit_of_work: UnitOfWork) -> tuple[model.Session, model.Event | None]:
            session = lock_open_session(self._sessions, unit_of_work, caller, session_id)
            if session.active_agent == model.GUIDE:
                return session, None
            now = self._clock()
            # Before the version: an agent that lost the session is told that, and not that its version is old.
            self._fence.check_return(caller, session, claim_number, now)
            check_version(session, version)
            return self.give_back(unit_of_work, caller, session, reason, now)

        return self._recorder.run(job)

    def give_back(
        self, unit_of_work: UnitOfWork, caller: model.TenantCaller, session: model.Session, reason: str, now: datetime
    ) -> tuple[model.Session, model.Event]:
        """Return a locked session to the guide within a transaction, and give the session and the event."""
        returned = assign_agent(session, now, model.GUIDE, session.routing_epoch + 1, None)
        if not self._sessions.replace(unit_of_work, returned):
            raise concurrent_update(session.id)
        data = {"from": session.active_agent, "reason": reason}
        event = self._recorder.add_event(
            unit_of_work, session_event(returned, model.EventType.RETURNED_TO_GUIDE, now, data)
        )
        self._recorder.add_operation(
            unit_of_work, SessionOperation(now, AuditEvent.SESSION_RETURNED, caller, model.GUIDE, session.id, reason)
        )
        return returned, event

    def _agent_of(self, request: RoutingRequest) -> LiaisonAgent:
        """Return the agent of the requested pillar. Raises MissingParameter and InvalidPillar."""
        if not request.target_pillar.strip():
            raise context_sharing.missing_parameter("target_pillar")
        return self._agents.of_pillar(request.target_pillar)

    def _is_short(self, caller: model.TenantCaller, agent: LiaisonAgent, request: RoutingRequest) -> bool:
        """Return whether a routing needs only one short read: no probe, no redaction and no look at the past."""
        if not self._policy.reads_are_short or self._sharing.may_take_long:
            return False
        if request.context is None or request.leaving is not None:
            return False
        return caches_availability(agent) and agent.is_known_to_serve(caller.tenant)

    def _judge(self, attempt: RoutingAttempt, plan: RoutingPlan) -> None:
        """Check a routing with guardrails. Raises GuardrailEvalFailed and PermissionDenied."""
        attempt.verdict = self._sharing.judge(attempt.caller, plan.handover)
        context_sharing.require_allowed(attempt.verdict, plan.handover)

    def _read(
        self, caller: model.TenantCaller, request: RoutingRequest
    ) -> tuple[model.Session, Sequence[model.ChatMessage]]:
        """Read the session and, if they are to be shared, its messages up to the size limit."""
        with self._sessions.read_snapshot() as unit_of_work:
            session = require_session(self._sessions, unit_of_work, caller, request.session_id, request.user_id)
            if request.context is not None:
                return session, ()
            # In the same snapshot, so that the messages are those that the session counts.
            return session, self._sessions.history(unit_of_work, session.tenant, session.id, self._readable)

    def _redact(
        self, request: RoutingRequest, session: model.Session, messages: Sequence[model.ChatMessage]
    ) -> RedactedContext:
        """Return the redacted context. Raises ContextSharingFailed, after errors about the session's state."""
        try:
            return self._sharing.redact(self._context(request, session, messages))
        except ContextSharingFailed:
            # A context that cannot be redacted has no earlier activation, so only the session's state can come first.
            self._require_movable(session, request)
            raise

    def _context(
        self, request: RoutingRequest, session: model.Session, messages: Sequence[model.ChatMessage]
    ) -> Mapping[str, Any]:
        """Return the context to share: the given one, or else the conversation. Raises ContextSharingFailed."""
        if request.context is not None:
            return request.context
        # Messages that expired are missing at the beginning, those that were not read are at the end.
        if messages and messages[-1].sequence < session.message_count:
            raise ContextSharingFailed(
                f"the conversation has more than {self._readable} characters; give the context in context_to_share",
                metadata={"reason": "the conversation is too long"},
            )
        return {**session.context, model.HISTORY_MEMBER: [history_entry(message) for message in messages]}

    def _plan(self, request: RoutingRequest, session: model.Session, redacted: RedactedContext) -> RoutingPlan:
        """Return the plan; a direct hand-over between liaison agents begins another epoch."""
        leaves = session.active_agent != model.GUIDE
        epoch = session.routing_epoch + 1 if leaves else session.routing_epoch
        # The epoch makes the same routing after a return another one.
        key = routing_key(session.id, request.target_pillar, redacted.context_hash, epoch)
        return RoutingPlan(
            request.target_pillar, session, request.reason, redacted, epoch, key, request.context is None
        )

    def _previous_activation(self, plan: RoutingPlan) -> model.Activation | None:
        """Return the activation of the same routing in the session's current epoch, or None."""
        session = plan.session
        if session.is_open and session.active_agent == model.GUIDE:
            # Every hand-over leaves the guide, and every return begins another epoch.
            return None
        key = routing_key(session.id, plan.pillar, plan.redacted.context_hash, session.routing_epoch)
        return self._find_activation(session.tenant, key)

    def _find_activation(self, tenant: str, key: str) -> model.Activation | None:
        with self._sessions.read_snapshot() as unit_of_work:
            return self._store.activation(unit_of_work, tenant, key)

    def _require_movable(self, session: model.Session, request: RoutingRequest) -> None:
        """Raise SessionNotFound or SessionWithAnotherAgent if a session may not be handed over."""
        if not session.is_open:
            raise session_closed(session)
        if request.leaving is not None:
            require_same_activation(session, request.leaving)
        elif session.active_agent != model.GUIDE and not self._policy.direct_handover:
            again = session.active_agent == model.liaison_agent(request.target_pillar)
            raise SessionWithAnotherAgent(
                f"The chat session {session.id} is with {session.active_agent} already, with another context; "
                "return it to the guide first, or share the context alone"
                if again
                else f"The chat session {session.id} is with {session.active_agent}; return it to the guide first",
                metadata={
                    "chat_session_id": session.id,
                    "active_agent": session.active_agent,
                    "reason": "the session is with this agent already"
                    if again
                    else "the session is not with the guide",
                },
            )

    def _hand_over_confirmed(
        self,
        caller: model.TenantCaller,
        agent: LiaisonAgent,
        plan: RoutingPlan,
        operation: SessionOperation,
        *,
        again: bool,
    ) -> model.Activation:
        """Hand over to an agent that must accept first, unless the same routing succeeded meanwhile."""
        # Read again with the lock: a call that held it may have succeeded.
        if known := self._find_activation(caller.tenant, plan.key):
            return known
        if again:
            # A caller that waited fails with the first one: if each asked again in its turn, the last of ten callers
            # would wait ten times as long for an agent that hangs.
            raise ContextSharingFailed(
                "the same routing was tried at the same time, and failed; try again",
                metadata={"reason": "the same routing failed at the same time"},
            )
        return self._hand_over(caller, agent, plan, operation)

    def _hand_over(
        self, caller: model.TenantCaller, agent: LiaisonAgent, plan: RoutingPlan, operation: SessionOperation
    ) -> model.Activation:
        """Hand over a session: ask an agent that must accept first, then change everything in one transaction."""
        job, share = self._prepare(caller, agent, plan, operation)
        # If the process is killed after the commit and before the wake-up, the share is on disk as pending, and the
        # next dispatcher delivers it. Killed before the commit, an agent that confirms may have a context of a routing
        # that never happened; the repeated call sends it again under the same key.
        activation = self._recorder.run(job)
        if share.is_to_be_delivered:
            self._sharing.wake()
        return activation

    def _prepare(
        self, caller: model.TenantCaller, agent: LiaisonAgent, plan: RoutingPlan, operation: SessionOperation
    ) -> tuple[Callable[[UnitOfWork], model.Activation], model.Share]:
        """Return the transaction of a routing and its share, which an agent that confirms has accepted.

        Raises ContextSharingFailed if it does not.
        """
        to = model.liaison_agent(plan.pillar)
        decision = model.RoutingDecision(plan.session.active_agent, to, plan.reason, self._clock(), plan.key)
        share = self._sharing.deliver_if_confirming(agent, routing_share(caller, plan, decision), decision, plan.pillar)
        return lambda unit_of_work: self._commit(unit_of_work, caller, plan, share, decision, operation), share

    def _commit(
        self,
        unit_of_work: UnitOfWork,
        caller: model.TenantCaller,
        plan: RoutingPlan,
        share: model.Share,
        decision: model.RoutingDecision,
        operation: SessionOperation,
    ) -> model.Activation:
        """Return the activation within a transaction: the one that a concurrent call stored, or a new one."""
        assigned = assign_agent(plan.session, decision.decided_at, decision.to_agent, plan.epoch, plan.key)
        # This takes the global write lock: a concurrent routing waits here, and its activation is visible below. The
        # plan was made from an earlier read, so the store compares the version; and who opened the session and when,
        # since a session may have been deleted and opened again under the same id, and must not get the old context.
        routed = self._sessions.hand_over(unit_of_work, assigned, with_messages=plan.whole_conversation)
        if routed is None:
            if known := self._store.activation(unit_of_work, caller.tenant, plan.key):
                return known
            raise concurrent_update(plan.session.id)
        self._insert_share(unit_of_work, share)
        event = self._recorder.add_event(unit_of_work, activation_event(routed, plan, share, decision))
        activation = model.Activation(plan.pillar, decision, share.shared_context, routed, event, caller.request_id)
        self._store.add_activation(unit_of_work, caller.tenant, activation)
        self._recorder.add_operation(unit_of_work, operation)
        return activation

    def _insert_share(self, unit_of_work: UnitOfWork, share: model.Share) -> None:
        """Store the share of a routing. Raises ContextSharingFailed if its key was used for another share."""
        try:
            self._sharing.insert_or_get(unit_of_work, share)
        except Conflict as error:
            reason = {"reason": "the key was used to share something else"}
            raise ContextSharingFailed(error.message, metadata={**error.metadata, **reason}) from error


def routing_key(session_id: str, pillar: str, context_hash: str, epoch: int) -> str:
    return hash_canonical_json([session_id, pillar, context_hash, epoch])


def routing_share(caller: model.TenantCaller, plan: RoutingPlan, decision: model.RoutingDecision) -> model.Share:
    """Return the share of a routing, not delivered yet."""
    return model.Share(
        tenant=caller.tenant,
        id=plan.key,
        source_agent=decision.from_agent,
        target_agent=decision.to_agent,
        conversation_id=plan.session.id,
        shared_context=plan.redacted.context,
        context_hash=plan.redacted.context_hash,
        shared_by=caller.agent,
        shared_at=decision.decided_at,
        execution_id=caller.request_id,
        traceparent=inbound_trace.get(),
        context_json=plan.redacted.json,
    )


def activation_event(
    session: model.Session, plan: RoutingPlan, share: model.Share, decision: model.RoutingDecision
) -> model.Event:
    data = {
        "target_pillar": plan.pillar,
        "liaison_agent_id": decision.to_agent,
        "routing_reason": decision.reason,
        "routing_decision": decision_json(decision),
        "share_id": share.id,
        "context_hash": share.context_hash,
    }
    return session_event(session, model.EventType.LIAISON_AGENT_ACTIVATED, decision.decided_at, data)
