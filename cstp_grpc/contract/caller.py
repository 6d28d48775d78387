"""The authenticated caller of the current call."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.enums import Permission

ANONYMOUS: Final = "anonymous"
"""The agent name of all callers if authentication is disabled."""

DEVELOPER: Final = "developer"
"""The agent of a developer, whose token `cstp serve --dev` makes."""

APPROVER: Final = "approver"
"""The person who approves actions of the developer's agents; `cstp serve --dev` makes the token."""

RELAYED_READER: Final = ""
"""The reader's name if a peer asks on behalf of its own callers: a peer without decisions. No agent has this name."""

OVERSEER: Final = "\noverseer"
"""The reader's name for reads with the permission `oversee`: it may read the decisions of every agent, as others may
read shared ones. No agent has this name.
"""


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated agent and its request."""

    agent: str
    reader: str
    """The name used for read permission: the agent, or RELAYED_READER if a peer asks for its own caller."""
    permissions: frozenset[Permission] = field(default=frozenset())
    request_id: str = ""
    tenant: str = ""


current_caller: ContextVar[Caller] = ContextVar("current_caller")
"""Set by authentication before a servicer runs. A context variable, because gRPC's generated servicers have no
parameter for it; work pools run their functions in a copy of the context, so that it is set on their threads too.
"""
