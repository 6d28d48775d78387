"""Handing a chat session from the guide to a liaison agent, once, and giving it back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from cstp_grpc.errors import Conflict, ContextSharingFailed, CstpError, SessionWithAnotherAgent
from cstp_grpc.guardrails.model import Verdict
from cstp_grpc.liaison.acts import Act, ActKind
from cstp_grpc.liaison.agents import LiaisonAgent, LiaisonAgents, is_remembered
from cstp_grpc.liaison.canonical import digest
from cstp_grpc.liaison.documents import decision_json, history_entry
from cstp_grpc.liaison.fencing import ClaimFence
from cstp_grpc.liaison.locks import KeyedLocks
from cstp_grpc.liaison.model import (
    GUIDE,
    HISTORY,
    Activation,
    Caller,
    Event,
    EventType,
    Message,
    RoutingDecision,
    Session,
    Share,
    liaison_agent,
)
from cstp_grpc.liaison.recorder import Recorder
from cstp_grpc.liaison.redaction import Redacted
from cstp_grpc.liaison.sessions import changed, check_version, closed_already, event_in, found, locked, overtaken
from cstp_grpc.liaison.sharing import Handover, Sharing, explain, missing_parameter, require_allowed
from cstp_grpc.liaison.store import RoutingStore, SessionStore
from cstp_grpc.storage.blocking import WorkLane

READ_FACTOR = 8
"""How much longer than what is shared of it a conversation may be, since redaction shortens it."""
SHORT_CONTEXT = 4096
"""Characters of JSON that a session's context may have to be read on an event loop, which takes less than 1 ms."""


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """Which session to hand to whom.

    Without `session_id` it is the active one of the user; without `context` all of the conversation's is shared.
    `leaving` is the activation key by which a liaison agent has the session that is taken from it; None for a routing
    that the guide asked for.
    """

    target_pillar: str
    user_id: str
    session_id: str | None = None
    reason: str = ""
    context: Mapping[str, Any] | None = None
    leaving: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A routing that may be carried out, as long as the session stays as it was read."""

    pillar: str
    session: Session
    reason: str
    redacted: Redacted
    epoch: int
    key: str
    """The idempotency key."""
    whole_conversation: bool
    """Whether the context has all messages, so that another one makes it another context."""

    @property
    def handover(self) -> Handover:
        """What guardrails judge."""
        session = self.session
        to = liaison_agent(self.pillar)
        return Handover(self.pillar, session.active_agent, to, self.reason, session.id, session.user_id)


@dataclass(slots=True)
class Attempt:
    """A routing that goes on, for the audit trail: `begun_at` is when it began, the rest what is known of it by now."""

    caller: Caller
    request: RoutingRequest
    begun_at: datetime
    session: Session | None = None
    redacted: Redacted | None = None
    verdict: Verdict | None = None

    def act(self, error: str | None = None) -> Act:
        """Return it as the act that it is, or as one that failed for a reason."""
        request, session, redacted = self.request, self.session, self.redacted
        return Act(
            at=self.begun_at,
            kind=ActKind.SESSION_ROUTED,
            caller=self.caller,
            agent=liaison_agent(request.target_pillar),
            session_id=request.session_id if session is None else session.id,
            reason=request.reason,
            context_hash=None if redacted is None else redacted.context_hash,
            shared_context=None if redacted is None else redacted.context,
            verdict=self.verdict,
            error=error,
        )


class Router:
    """Routes chat sessions.

    With `direct_handover` a liaison agent's session may go to another one without the guide. A conversation whose
    messages have more than READ_FACTOR times `max_context_bytes` characters is not shared as a whole. With
    `reads_are_short` the database is a file, so that a session is read in microseconds.
    """

    def __init__(
        self,
        sessions: SessionStore,
        store: RoutingStore,
        agents: LiaisonAgents,
        sharing: Sharing,
        recorder: Recorder,
        clock: Callable[[], datetime],
        wake: Callable[[], None],
        fence: ClaimFence,
        *,
        direct_handover: bool,
        max_context_bytes: int,
        reads_are_short: bool = False,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._agents = agents
        self._sharing = sharing
        self._recorder = recorder
        self._clock = clock
        self._wake = wake
        self._fence = fence
        self._direct_handover = direct_handover
        self._readable = READ_FACTOR * max_context_bytes
        self._confirming = KeyedLocks()
        self._reads_are_short = reads_are_short

    async def route_on_loop(self, caller: Caller, request: RoutingRequest, lane: WorkLane) -> Activation | None:
        """Return what `route` does, on an event loop, which is not held; the context of the request must be small.

        Returns None, and has done nothing, unless all but the transaction is sure to take less than a millisecond: a
        given context without redaction, and a session with the guide for a local agent that is known to be there.
        Raises as `route` does.
        """
        agent = self._agent_of(request)
        if not self._is_short(caller, agent, request):
            return None
        attempt = Attempt(caller, request, self._clock())
        try:
            plan = await lane.run_short(self._plan_shortly, attempt)
            if plan is None:
                return None
            job, _ = self._prepare(caller, agent, plan, attempt.act())
            return await self._recorder.write(job)
        except CstpError as error:
            explain(error, request.target_pillar)
            await self._recorder.write_refusal(attempt.act(error.reason))
            raise

    def _plan_shortly(self, attempt: Attempt) -> Plan | None:
        """Return a routing that may be carried out; None if its session is large or not with the guide.

        Raises QueryFailed, ContextSharingFailed, GuardrailEvalFailed and PermissionDenied.
        """
        caller, request = attempt.caller, attempt.request
        with self._sessions.reading() as connection:
            wanted = caller.tenant, request.session_id, request.user_id
            session = self._sessions.get_small(connection, *wanted, SHORT_CONTEXT)
        if session is None or not session.is_open or session.active_agent != GUIDE:
            return None
        attempt.session = session
        attempt.redacted = self._redacted(request, session, ())
        plan = self._plan(request, session, attempt.redacted)
        self._judge(attempt, plan)
        return plan

    def route(self, caller: Caller, request: RoutingRequest) -> Activation:
        """Return the activation of the pillar's agent, once share, session, activation and event are on disk together.

        The same routing again, until the session is given back, returns the first one. Raises MissingParameter,
        InvalidPillar, SessionNotFound, SessionWithAnotherAgent, LiaisonAgentUnavailable, ContextSharingFailed,
        SessionUpdateFailed, and PermissionDenied where guardrails block it; then nothing has changed.
        """
        agent = self._agent_of(request)
        attempt = Attempt(caller, request, self._clock())
        try:
            session, messages = self._read(caller, request)
            attempt.session = session
            attempt.redacted = self._redacted(request, session, messages)
            plan = self._plan(request, session, attempt.redacted)
            if known := self._earlier(plan):
                return known
            self._require_movable(session, request)
            agent.check(caller.tenant)
            self._judge(attempt, plan)
            if not agent.confirms:
                return self._hand_over(caller, agent, plan, attempt.act())
            with self._confirming.holding((caller.tenant, plan.key)) as waited:
                return self._hand_over_confirmed(caller, agent, plan, attempt.act(), again=waited)
        except CstpError as error:
            explain(error, request.target_pillar)
            self._recorder.refusal(attempt.act(error.reason))
            raise

    def return_to_guide(
        self, caller: Caller, session_id: str, reason: str, version: int | None, claim_number: int | None = None
    ) -> tuple[Session, Event | None]:
        """Return a session that is with the guide, and what happened; nothing where it was there.

        Raises SessionNotFound where it is not active, SessionUpdateFailed where it has another version than the stated
        one, and SessionWithAnotherAgent if the caller does not have it (any more).
        """

        def job(connection: Connection) -> tuple[Session, Event | None]:
            session = locked(self._sessions, connection, caller, session_id)
            if session.active_agent == GUIDE:
                return session, None
            now = self._clock()
            self._fence.check_return(caller, session, claim_number, now)
            check_version(session, version)
            return self.give_back(connection, caller, session, reason, now)

        return self._recorder.run(job)

    def give_back(
        self, connection: Connection, caller: Caller, session: Session, reason: str, now: datetime
    ) -> tuple[Session, Event]:
        """Give a locked session of a liaison agent to the guide within a transaction, and return what happened."""
        returned = moved(session, now, GUIDE, session.routing_epoch + 1, None)
        if not self._sessions.replace(connection, returned):
            raise overtaken(session.id)
        data = {"from": session.active_agent, "reason": reason}
        event = self._recorder.event(connection, event_in(returned, EventType.RETURNED_TO_GUIDE, now, data))
        self._recorder.act(connection, Act(now, ActKind.SESSION_RETURNED, caller, GUIDE, session.id, reason))
        return returned, event

    def _agent_of(self, request: RoutingRequest) -> LiaisonAgent:
        """Return the agent of the wanted pillar. Raises MissingParameter and InvalidPillar."""
        if not request.target_pillar.strip():
            raise missing_parameter("target_pillar")
        return self._agents.of_pillar(request.target_pillar)

    def _is_short(self, caller: Caller, agent: LiaisonAgent, request: RoutingRequest) -> bool:
        """Whether nothing but the session has to be read for a routing, which asks nobody and redacts nothing."""
        if not self._reads_are_short or self._sharing.redacts:
            return False
        if request.context is None or request.leaving is not None:
            return False
        return is_remembered(agent) and agent.is_known_to_serve(caller.tenant)

    def _judge(self, attempt: Attempt, plan: Plan) -> None:
        """Judge a routing that may be carried out. Raises GuardrailEvalFailed and PermissionDenied."""
        attempt.verdict = self._sharing.judge(attempt.caller, plan.handover)
        require_allowed(attempt.verdict, plan.handover)

    def _read(self, caller: Caller, request: RoutingRequest) -> tuple[Session, Sequence[Message]]:
        """Return the session as it stands, and its messages, of which too many are not all read, where they matter."""
        with self._sessions.reading() as connection:
            session = found(self._sessions, connection, caller, request.session_id, request.user_id)
            if request.context is not None:
                return session, ()
            # One state of the database has both, so the messages are those that the session counts.
            return session, self._sessions.history(connection, session.tenant, session.id, self._readable)

    def _redacted(self, request: RoutingRequest, session: Session, messages: Sequence[Message]) -> Redacted:
        """Return what is shared. Raises ContextSharingFailed, and first of all what keeps the session where it is."""
        try:
            return self._sharing.redact(self._context(request, session, messages))
        except ContextSharingFailed:
            # No earlier call shared it either.
            self._require_movable(session, request)
            raise

    def _context(self, request: RoutingRequest, session: Session, messages: Sequence[Message]) -> Mapping[str, Any]:
        """Return what is to be shared: what is given, or else all. Raises ContextSharingFailed."""
        if request.context is not None:
            return request.context
        # Messages that expired are missing at the beginning, those that were not read are at the end.
        if messages and messages[-1].sequence < session.message_count:
            raise ContextSharingFailed(
                f"the conversation has more than {self._readable} characters; say with context_to_share what to share",
                metadata={"reason": "the conversation is too long"},
            )
        return {**session.context, HISTORY: [history_entry(message) for message in messages]}

    def _plan(self, request: RoutingRequest, session: Session, redacted: Redacted) -> Plan:
        """Return the routing; one that leaves a liaison agent directly begins another epoch."""
        leaves = session.active_agent != GUIDE
        epoch = session.routing_epoch + 1 if leaves else session.routing_epoch
        key = routing_key(session.id, request.target_pillar, redacted.context_hash, epoch)
        return Plan(request.target_pillar, session, request.reason, redacted, epoch, key, request.context is None)

    def _earlier(self, plan: Plan) -> Activation | None:
        """Return what the same routing came to before, in the session's present epoch."""
        session = plan.session
        if session.is_open and session.active_agent == GUIDE:
            # Nobody was handed the session in this epoch.
            return None
        key = routing_key(session.id, plan.pillar, plan.redacted.context_hash, session.routing_epoch)
        return self._known(session.tenant, key)

    def _known(self, tenant: str, key: str) -> Activation | None:
        """Return the activation of an idempotency key, or None if there is none."""
        with self._sessions.reading() as connection:
            return self._store.activation(connection, tenant, key)

    def _require_movable(self, session: Session, request: RoutingRequest) -> None:
        """Refuse a session that may not be handed on. Raises SessionNotFound and SessionWithAnotherAgent."""
        if not session.is_open:
            raise closed_already(session)
        if request.leaving is not None:
            require_held(session, request.leaving)
        elif session.active_agent != GUIDE and not self._direct_handover:
            again = session.active_agent == liaison_agent(request.target_pillar)
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
        self, caller: Caller, agent: LiaisonAgent, plan: Plan, act: Act, *, again: bool
    ) -> Activation:
        """Carry a routing out whose agent must accept it, unless it was carried out meanwhile."""
        if known := self._known(caller.tenant, plan.key):
            return known
        if again:
            # Whoever waited does not ask a second time, or many would wait for each other at an agent that hangs.
            raise ContextSharingFailed(
                "the same routing was tried at the same time, and failed; try again",
                metadata={"reason": "the same routing failed at the same time"},
            )
        return self._hand_over(caller, agent, plan, act)

    def _hand_over(self, caller: Caller, agent: LiaisonAgent, plan: Plan, act: Act) -> Activation:
        """Carry a routing out: ask an agent that must accept first, then change everything in one transaction."""
        job, share = self._prepare(caller, agent, plan, act)
        activation = self._recorder.run(job)
        if share.is_to_be_delivered:
            self._wake()
        return activation

    def _prepare(
        self, caller: Caller, agent: LiaisonAgent, plan: Plan, act: Act
    ) -> tuple[Callable[[Connection], Activation], Share]:
        """Return the transaction that carries a routing out, and the share, which an agent that confirms has accepted.

        Raises ContextSharingFailed if it does not.
        """
        to = liaison_agent(plan.pillar)
        decision = RoutingDecision(plan.session.active_agent, to, plan.reason, self._clock(), plan.key)
        share = self._sharing.offer(agent, share_of(caller, plan, decision), decision, plan.pillar)
        return lambda connection: self._commit(connection, caller, plan, share, decision, act), share

    def _commit(
        self, connection: Connection, caller: Caller, plan: Plan, share: Share, decision: RoutingDecision, act: Act
    ) -> Activation:
        """Return the activation within a transaction: what another call made of the same routing, or a new one."""
        wanted = moved(plan.session, decision.decided_at, decision.to_agent, plan.epoch, plan.key)
        # Whoever else routes this session has to wait here, so that what it did is seen below. The store compares who
        # opened it and when: what a deleted session of the same id held must not come back in this one.
        routed = self._sessions.hand_over(connection, wanted, with_messages=plan.whole_conversation)
        if routed is None:
            if known := self._store.activation(connection, caller.tenant, plan.key):
                return known
            raise overtaken(plan.session.id)
        self._keep(connection, share)
        event = self._recorder.event(connection, activated(routed, plan, share, decision))
        activation = Activation(plan.pillar, decision, share.shared_context, routed, event, caller.request_id)
        self._store.add_activation(connection, caller.tenant, activation)
        self._recorder.act(connection, act)
        return activation

    def _keep(self, connection: Connection, share: Share) -> None:
        """Keep the share of a routing. Raises ContextSharingFailed where its key was used to share something else."""
        try:
            self._sharing.keep(connection, share)
        except Conflict as error:
            reason = {"reason": "the key was used to share something else"}
            raise ContextSharingFailed(error.message, metadata={**error.metadata, **reason}) from error


def require_held(session: Session, activation_key: str) -> None:
    """Refuse a session that a liaison agent no longer has by an activation. Raises SessionWithAnotherAgent."""
    if session.activation_key != activation_key:
        raise SessionWithAnotherAgent(
            f"The chat session {session.id} has gone on, and is with {session.active_agent}",
            metadata={
                "chat_session_id": session.id,
                "active_agent": session.active_agent,
                "reason": "the session has gone on",
            },
        )


def routing_key(session_id: str, pillar: str, context_hash: str, epoch: int) -> str:
    """Return the idempotency key of a routing."""
    return digest([session_id, pillar, context_hash, epoch])


def moved(session: Session, at: datetime, agent: str, epoch: int, activation_key: str | None) -> Session:
    """Return a session that an agent was given; nobody has claimed it yet."""
    return changed(
        session,
        at,
        active_agent=agent,
        routing_epoch=epoch,
        activation_key=activation_key,
        claimed_by=None,
        claimed_until=None,
    )


def share_of(caller: Caller, plan: Plan, decision: RoutingDecision) -> Share:
    """Return what a routing shares, not offered yet."""
    return Share(
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
        context_json=plan.redacted.json,
    )


def activated(session: Session, plan: Plan, share: Share, decision: RoutingDecision) -> Event:
    """Return the event of a routing."""
    data = {
        "target_pillar": plan.pillar,
        "liaison_agent_id": decision.to_agent,
        "routing_reason": decision.reason,
        "routing_decision": decision_json(decision),
        "share_id": share.id,
        "context_hash": share.context_hash,
    }
    return event_in(session, EventType.LIAISON_AGENT_ACTIVATED, decision.decided_at, data)
