"""Who is calling, for the length of one call."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from cstp_grpc.decisions.sharing import RELAYED
from cstp_grpc.vocabulary import Permission


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated agent and the request it makes."""

    agent: str
    permissions: frozenset[Permission] = field(default=frozenset())
    request_id: str = ""
    tenant: str = ""
    relayed: bool = False
    """Whether it asks on behalf of another agent's caller."""

    @property
    def reader(self) -> str:
        """In whose name decisions are read: what is told on must not be the agent's own affair."""
        return RELAYED if self.relayed else self.agent


current_caller: ContextVar[Caller] = ContextVar("current_caller")
"""Set by the server's authentication before a servicer runs; a context variable because gRPC's generated servicers
have no parameter for it."""
