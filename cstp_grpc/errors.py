"""Everything that can go wrong, in words a caller may read; no transport is known here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

REQUEST_ID: Final = "requestId"
"""The key of an error's metadata that holds the request id."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """What is wrong with one field of a request.

    `field` is its path as the contract writes it, for instance `filters.min_confidence`.
    """

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class Block:
    """A guardrail that blocks what was asked for."""

    guardrail_id: str
    name: str
    message: str


class CstpError(Exception):
    """A failure with a message fit for the caller and a reason that does not change.

    `reason` is a value of the contract's ErrorReason without its prefix; `metadata` adds details by name.
    """

    reason: ClassVar[str]

    def __init__(
        self,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[FieldViolation] = (),
        retry_after: float | None = None,
        blocks: Sequence[Block] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after = retry_after
        """Seconds to wait before trying again; None where waiting does not help."""
        self.blocks = tuple(blocks)
        """The guardrails that forbid it."""
        self.final = False
        """Whether whoever answered asks not to repeat the call, although the reason may pass."""

    @property
    def request_id(self) -> str | None:
        """The id of the call in the server's log; None if no server answered."""
        return self.metadata.get(REQUEST_ID)


class ConfigError(Exception):
    """The settings cannot be used; the message names each key and what is wrong with it. No caller ever sees it."""


class MethodNotFound(CstpError):
    """There is no such method."""

    reason = "METHOD_NOT_FOUND"


class InvalidArgument(CstpError):
    """A field is missing, unknown or out of its range; `violations` names each."""

    reason = "INVALID_ARGUMENT"

    @classmethod
    def field(cls, field: str, description: str) -> InvalidArgument:
        """Return the error for a single field."""
        return cls(f"{field}: {description}", violations=[FieldViolation(field, description)])


class JsonParseError(InvalidArgument):
    """The bridge could not read the call as JSON."""

    reason = "PARSE_ERROR"


class InvalidJsonRpcRequest(InvalidArgument):
    """The bridge read JSON that is no JSON-RPC call."""

    reason = "INVALID_REQUEST"


class InternalError(CstpError):
    """Something unforeseen; its cause goes to the log only."""

    reason = "INTERNAL"


class AuthenticationRequired(CstpError):
    """The bearer token is missing, unknown or expired."""

    reason = "AUTHENTICATION_REQUIRED"


class RateLimited(CstpError):
    """Too many calls or open streams; `retry_after` says how long to wait, if the server does."""

    reason = "RATE_LIMITED"


class QueryFailed(CstpError):
    """The journal, the embedder or the search cannot answer."""

    reason = "QUERY_FAILED"


class GuardrailEvalFailed(CstpError):
    """There is no usable rule set."""

    reason = "GUARDRAIL_EVAL_FAILED"


class PermissionDenied(CstpError):
    """The agent lacks a permission."""

    reason = "PERMISSION_DENIED"


class NotFound(CstpError):
    """There is nothing of that name that the caller may see."""

    reason = "NOT_FOUND"


class Conflict(CstpError):
    """An identifier chosen by the caller was used with another content."""

    reason = "CONFLICT"


class DeadlineExceeded(CstpError):
    """The caller's deadline passed before the answer."""

    reason = "DEADLINE_EXCEEDED"


class Unavailable(CstpError):
    """The server cannot answer now; trying again may help."""

    reason = "UNAVAILABLE"


class ServerUnreachable(Unavailable):
    """There is no server at the address, or the network between fails."""


class MissingParameter(InvalidArgument):
    """An intent lacks a parameter."""

    reason = "MISSING_PARAMETER"


class InvalidPillar(InvalidArgument):
    """There is no such pillar."""

    reason = "INVALID_PILLAR"


class SessionNotFound(NotFound):
    """The tenant has no such chat session, or it is closed."""

    reason = "SESSION_NOT_FOUND"


class ContextSharingFailed(CstpError):
    """A context may not be shared as it is, or the agent that it is for refused it."""

    reason = "CONTEXT_SHARING_FAILED"


class SessionUpdateFailed(CstpError):
    """A chat session was changed at the same time; reading it again and trying again may help."""

    reason = "SESSION_UPDATE_FAILED"


class LiaisonAgentUnavailable(CstpError):
    """A liaison agent does not answer now; `retry_after` says when to try again."""

    reason = "LIAISON_AGENT_UNAVAILABLE"


class SessionWithAnotherAgent(CstpError):
    """A chat session is with another agent than the guide."""

    reason = "SESSION_WITH_ANOTHER_AGENT"


def reason_of(error: Exception) -> str:
    """Return the reason that a failure is recorded with; what is unforeseen is internal."""
    return error.reason if isinstance(error, CstpError) else InternalError.reason
