"""Keeping agents that no longer have a session from acting in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from cstp_grpc.errors import SessionWithAnotherAgent
from cstp_grpc.liaison.model import LIAISON, Caller, Session


class ClaimFence:
    """Refuses what late agents do in a session; asked within the transaction that holds the session's row.

    `agents` are the names of the local liaison agents by pillar. Only those claim sessions: remote agents, and callers
    that serve no pillar, are known by a claim number alone, which they do not have. A caller that may route acts as the
    guide, unless it serves the session's pillar.
    """

    def __init__(self, agents: Mapping[str, Collection[str]]) -> None:
        self._agents = agents

    def check_number(self, caller: Caller, session: Session, number: int | None, now: datetime) -> None:
        """Let a caller pass that states no claim number, or that of the live claim. Raises SessionWithAnotherAgent."""
        if number is None:
            return
        if not self._serves(caller, session):
            raise with_another_agent(session)
        if number != session.claim_number:
            raise refused(session, f"claim {number} is not the current one", "the claim number is not the current one")
        require_live_claim(session, now)

    def check_speaker(self, caller: Caller, session: Session, number: int | None, now: datetime) -> None:
        """Let a caller pass that may speak as the assistant. Raises SessionWithAnotherAgent."""
        if number is not None:
            self.check_number(caller, session, number, now)
        elif self._serves(caller, session):
            require_own_claim(caller, session, now)
        elif self._is_liaison_agent(caller):
            raise with_another_agent(session)

    def check_return(self, caller: Caller, session: Session, number: int | None, now: datetime) -> None:
        """Let a caller pass that may return a liaison agent's session. Raises SessionWithAnotherAgent."""
        if number is not None or not caller.may_route:
            self.check_speaker(caller, session, number, now)

    def _serves(self, caller: Caller, session: Session) -> bool:
        """Return whether a caller is the local liaison agent that has a session."""
        pillar = session.active_agent.removeprefix(LIAISON)
        return session.activation_key is not None and caller.agent in self._agents.get(pillar, ())

    def _is_liaison_agent(self, caller: Caller) -> bool:
        """Return whether a caller is a local liaison agent and nothing else."""
        return not caller.may_route and any(caller.agent in names for names in self._agents.values())


def require_own_claim(caller: Caller, session: Session, now: datetime) -> None:
    """Refuse an agent without a claim number, unless it claimed a session by its own name or nobody has claimed it.

    Raises SessionWithAnotherAgent.
    """
    if session.claimed_by is None:
        return
    require_live_claim(session, now)
    if session.claimed_by != caller.agent:
        detail = f"{session.claimed_by} claimed it; state the claim_number that it was given"
        raise refused(session, detail, "the claim number is missing")


def require_live_claim(session: Session, now: datetime) -> None:
    """Refuse to act on a claim that has ended. Raises SessionWithAnotherAgent."""
    if not session.is_claimed(now):
        raise refused(session, "the claim on it has ended; claim it again", "the claim has ended")


def with_another_agent(session: Session) -> SessionWithAnotherAgent:
    """Return the error for an agent of a pillar that does not have a session."""
    return refused(session, f"it is with {session.active_agent}", "the session is with another agent")


def refused(session: Session, detail: str, reason: str) -> SessionWithAnotherAgent:
    """Return the error for an agent that does not have a session."""
    metadata = {"chat_session_id": session.id, "active_agent": session.active_agent, "reason": reason}
    return SessionWithAnotherAgent(f"You do not have the chat session {session.id}: {detail}", metadata=metadata)
