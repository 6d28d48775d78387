"""The codes of each reason why a call fails, and the reasons that codes mean on their own.

Both are declared in `proto/cstp/v1/errors.proto`, as options of the values of ErrorReason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cstp_grpc import errors
from cstp_grpc.errors import BlockingGuardrail, CstpError, FieldViolation, InternalError
from cstp_grpc.gen import error_reasons as generated

INTERNAL: Final = InternalError.reason
"""The reason of statuses that no reason claims."""


@dataclass(frozen=True, slots=True)
class ReasonCodes:
    """How failures of one reason are answered over each transport."""

    grpc_code: str
    """The name of the gRPC status."""
    json_rpc_code: int
    http_status: int
    """The HTTP status of a JSON-RPC answer to a single call."""
    a2a_code: int
    """The code of a JSON-RPC error over A2A."""
    a2a_http_status: int
    """The HTTP status of an A2A answer over HTTP+JSON."""
    retriable: bool
    """Whether the same call may succeed later; with RESOURCE_EXHAUSTED only if the server says how long to wait."""
    parent: str | None
    """The more general reason that callers may treat this one as."""
    bridge_only: bool
    """Whether no gRPC server gives the reason."""


REASON_CODES: Final[Mapping[str, ReasonCodes]] = {
    reason: ReasonCodes(**codes) for reason, codes in generated.ERROR_CODES.items()
}
"""By the values of ErrorReason without their prefix."""

RETRIED_GRPC_CODES: Final = frozenset(codes.grpc_code for codes in REASON_CODES.values() if codes.retriable)
"""The statuses after which the service config has clients retry, whatever the reason, unless the server forbids it."""

ERROR_CLASSES: Final[Mapping[str, type[CstpError]]] = {
    kind.reason: kind
    for kind in vars(errors).values()
    # A class without a reason of its own is a special case of another, such as ServerUnreachable.
    if isinstance(kind, type) and issubclass(kind, CstpError) and "reason" in vars(kind)
}
"""The exceptions of `cstp_grpc.errors` by their reasons."""


def codes_for_error(error: CstpError) -> ReasonCodes:
    """Return the codes of an exception: those of its own reason, or of the nearest base class that the contract has."""
    # In the order of the MRO, so that a subclass without codes of its own is answered like the nearest class that has
    # some.
    bases = (kind for kind in type(error).__mro__ if issubclass(kind, CstpError) and hasattr(kind, "reason"))
    known = (REASON_CODES[kind.reason] for kind in bases if kind.reason in REASON_CODES)
    return next(known, REASON_CODES[INTERNAL])


def is_retriable(reason: str) -> bool:
    """Return whether a call that failed for a reason may succeed later; reasons of later contracts are not known to."""
    return reason in REASON_CODES and REASON_CODES[reason].retriable


def reason_for_grpc_code(code: str) -> str:
    """Return the reason that the name of a gRPC status means if nothing gives a reason."""
    return generated.BARE_GRPC_CODES.get(code, INTERNAL)


def reason_for_json_rpc_code(code: object) -> str:
    """Return the reason that the `code` of a JSON-RPC error means if its data gives none."""
    return generated.BARE_JSON_RPC_CODES.get(code, INTERNAL) if isinstance(code, int) else INTERNAL


def error_class_for_http_status(status: int) -> type[CstpError] | None:
    """Return the exception that an HTTP status means if the body is not JSON-RPC, or None."""
    reason = generated.BARE_HTTP_STATUSES.get(status)
    return None if reason is None else ERROR_CLASSES[reason]


def error_for_reason(
    reason: str,
    message: str,
    *,
    metadata: Mapping[str, str] | None = None,
    violations: Sequence[FieldViolation] = (),
    retry_after: float | None = None,
    blocks: Sequence[BlockingGuardrail] = (),
) -> CstpError:
    """Return the exception for a reason; for one of a later contract an InternalError whose metadata has the reason."""
    details = dict(metadata or {})
    if reason not in ERROR_CLASSES:
        details.setdefault("reason", reason)
    error_class = ERROR_CLASSES.get(reason, InternalError)
    return error_class(message, metadata=details, violations=violations, retry_after=retry_after, blocks=blocks)
