"""Errors with messages that callers may read, independent of the transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

REQUEST_ID: Final = "requestId"
"""The key of an error's metadata that holds the request id."""


class FieldViolation(NamedTuple):
    """An invalid field of a request. `field` is its path as in the contract, for instance `filters.min_confidence`."""

    field: str
    description: str


class BlockingGuardrail(NamedTuple):
    """A guardrail that blocks the requested action."""

    guardrail_id: str
    name: str
    message: str


class CstpError(Exception):
    """An error with a message for the caller and a stable reason.

    `reason` is a value of the contract's ErrorReason without its prefix; `metadata` adds details by name.
    """

    reason: str
    """A value of ErrorReason; a client may meet one of a newer contract, for which there is no class here."""

    def __init__(
        self,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[FieldViolation] = (),
        retry_after: float | None = None,
        blocks: Sequence[BlockingGuardrail] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after = retry_after
        """Seconds to wait before trying again; None where waiting does not help."""
        self.blocks = tuple(blocks)
        """The guardrails that block the action."""
        self.final = False
        """True if the server asks not to retry the call, although errors of this reason are retriable."""
        self.inferred = False
        """True if no server gave the reason: it is what an HTTP status or an error code means."""

    @property
    def request_id(self) -> str | None:
        """The id of the call in the server's log, or None if no server answered."""
        return self.metadata.get(REQUEST_ID)


def drop_tracebacks(error: BaseException) -> None:
    """Remove the tracebacks of an error that was answered, and of its causes and contexts.

    Their frames hold the request, and often the error too, which keeps both until a full garbage collection.
    """
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        found = pending.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            found.__traceback__ = None
            pending += (found.__cause__, found.__context__)


class ConfigError(Exception):
    """The settings are invalid; the message names each key and its problem. Never sent to callers."""


class CannotListen(Exception):
    """A server or a bridge cannot listen on an address of its settings. Never sent to callers."""

    def __init__(self, address: str, setting: str) -> None:
        super().__init__(f"cannot listen on {address}: is the port taken? Set {setting} to another")


class MethodNotFound(CstpError):
    """The method does not exist."""

    reason = "METHOD_NOT_FOUND"


class InvalidArgument(CstpError):
    """A field is missing, unknown or out of range; `violations` names each."""

    reason = "INVALID_ARGUMENT"

    @classmethod
    def field(cls, field: str, description: str) -> InvalidArgument:
        return cls(f"{field}: {description}", violations=[FieldViolation(field, description)])


class JsonParseError(InvalidArgument):
    """The bridge received a request that is not valid JSON."""

    reason = "PARSE_ERROR"


class InvalidJsonRpcRequest(InvalidArgument):
    """The bridge received JSON that is not a JSON-RPC request."""

    reason = "INVALID_REQUEST"


class InternalError(CstpError):
    """An unexpected failure; its cause goes to the log only."""

    reason = "INTERNAL"


class AuthenticationRequired(CstpError):
    """The bearer token is missing, unknown or expired."""

    reason = "AUTHENTICATION_REQUIRED"


class RateLimited(CstpError):
    """Too many calls or open streams; `retry_after` has the seconds to wait, if the server sent them."""

    reason = "RATE_LIMITED"


class QueryFailed(CstpError):
    """The journal, the embedder or the search cannot answer."""

    reason = "QUERY_FAILED"


class GuardrailEvalFailed(CstpError):
    """No usable rule set is loaded."""

    reason = "GUARDRAIL_EVAL_FAILED"


class PermissionDenied(CstpError):
    """The agent lacks a permission."""

    reason = "PERMISSION_DENIED"


class NotFound(CstpError):
    """Nothing with this name exists that the caller may see."""

    reason = "NOT_FOUND"


class Conflict(CstpError):
    """An identifier chosen by the caller was used before with other content."""

    reason = "CONFLICT"


class DeadlineExceeded(CstpError):
    """The caller's deadline passed before the response."""

    reason = "DEADLINE_EXCEEDED"


class Unavailable(CstpError):
    """The server cannot answer now; a retry may succeed."""

    reason = "UNAVAILABLE"


class ServerUnreachable(Unavailable):
    """The server is unreachable: nothing listens at the address, or the network fails."""


class MissingParameter(InvalidArgument):
    """An intent lacks a parameter."""

    reason = "MISSING_PARAMETER"


class InvalidPillar(InvalidArgument):
    """The pillar does not exist."""

    reason = "INVALID_PILLAR"


class SessionNotFound(NotFound):
    """The tenant has no chat session with this id, or it is closed."""

    reason = "SESSION_NOT_FOUND"


class ContextSharingFailed(CstpError):
    """A context may not be shared, or the target agent rejected it."""

    reason = "CONTEXT_SHARING_FAILED"


class SessionUpdateFailed(CstpError):
    """A chat session was changed concurrently; read it again and retry."""

    reason = "SESSION_UPDATE_FAILED"


class LiaisonAgentUnavailable(CstpError):
    """A liaison agent is unavailable; `retry_after` has the seconds to wait."""

    reason = "LIAISON_AGENT_UNAVAILABLE"


class SessionWithAnotherAgent(CstpError):
    """A chat session is assigned to another agent than the guide."""

    reason = "SESSION_WITH_ANOTHER_AGENT"


def error_reason(error: Exception) -> str:
    return error.reason if isinstance(error, CstpError) else InternalError.reason
