"""Errors of calls: the codes of each reason, the google.rpc.Status with details, and quoted texts of other parties.

Reasons and codes are declared in `proto/cstp/v1/errors.proto`, as options of the values of ErrorReason. The server, the
bridge and the clients share this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.common.unicode_text import to_single_line
from cstp_grpc.contract import errors
from cstp_grpc.contract.errors import BlockingGuardrail, CstpError, FieldViolation, InternalError
from cstp_grpc.gen import error_reasons as generated

if TYPE_CHECKING:
    import grpc
    from google.protobuf import any_pb2
    from google.protobuf import message as messages
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.message import Message
    from google.rpc import error_details_pb2, status_pb2

    FailedCall = grpc.Call | grpc.aio.AioRpcError
else:
    # Loaded by the first error of a call over gRPC: commands that call over HTTP need none of them.
    grpc = LazyModule("grpc")
    any_pb2 = LazyModule("google.protobuf.any_pb2")
    messages = LazyModule("google.protobuf.message")
    error_details_pb2 = LazyModule("google.rpc.error_details_pb2")
    status_pb2 = LazyModule("google.rpc.status_pb2")

INTERNAL: Final = InternalError.reason
"""The reason of statuses that no reason claims."""


@dataclass(frozen=True, slots=True)
class ReasonCodes:
    """The codes of failures with one reason, for each transport."""

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
    """Whether gRPC servers never return the reason."""


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
"""The exceptions of `cstp_grpc.contract.errors` by their reasons."""


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


DOMAIN: Final = "cstp"
"""The domain of the contract's reasons in ErrorInfo; other domains may have reasons of the same names."""
STATUS_KEY: Final = "grpc-status-details-bin"
"""The trailing metadata in which gRPC carries a google.rpc.Status."""
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
"""The trailing metadata in which gRPC clients look for how long to wait before a retry, or that they must not retry."""
REQUEST_ID_KEY: Final = "x-request-id"
"""The metadata in which a request and its answer carry the request id."""

MAX_DELAY_SECONDS: Final = 1e9
"""Longest accepted retry delay, some 30 years. Chosen: below what sleep functions take."""

# gRPC core answers RESOURCE_EXHAUSTED to messages beyond its limits; only its text distinguishes that from a server
# that is busy, after which a retry makes sense.
SIZE_LIMIT_REASONS: Final[Mapping[str, str]] = {
    "Received message larger": errors.InvalidArgument.reason,
    "Sent message larger": errors.InternalError.reason,
}

HANDSHAKE: Final = re.compile(r"OPENSSL_internal:([A-Z_]+(: self signed certificate)?)")
"""The cause in gRPC's text about a failed handshake; the text after it does not belong to the cause."""

HTTP_SIGNS: Final = ("an http1.x server", "missing selected ALPN property")
"""gRPC's texts for a server that answers in HTTP/1.1, without and with TLS."""
SPEAKS_HTTP: Final = "it speaks HTTP and not gRPC; the address of a bridge is http://HOST:PORT"


@dataclass(frozen=True, slots=True)
class RpcErrorDetails:
    """The details of a failed call in a google.rpc.Status whose ErrorInfo has the contract's domain."""

    reason: str
    """A value of ErrorReason without its prefix; unknown here if the server has a later contract."""
    message: str
    metadata: Mapping[str, str]
    """The metadata of ErrorInfo, with the request id."""
    violations: tuple[FieldViolation, ...] = ()
    blocks: tuple[BlockingGuardrail, ...] = ()
    retry_after: float | None = None
    """Seconds to wait before a retry; None if the server does not say."""


def error_from_rpc(error: grpc.RpcError, target: str) -> CstpError:
    """Return the exception for a failed gRPC call to `target`."""
    call = cast("grpc.Call", error)  # every error of a channel's call is the call too
    details = read_error_details(call)
    found = error_from_status(call, target) if details is None else error_from_details(details)
    if (pushback := trailing_value(call, PUSHBACK_KEY)) is not None:
        delay = parse_pushback(pushback)
        # The pushback of gRPC's retry design (gRFC A6): anything but a number forbids a retry.
        found.final = delay is None
        if found.retry_after is None and delay is not None:
            found.retry_after = delay / 1000
    return found


def error_from_details(details: RpcErrorDetails) -> CstpError:
    return error_for_reason(
        details.reason,
        details.message,
        metadata=details.metadata,
        violations=details.violations,
        retry_after=details.retry_after,
        blocks=details.blocks,
    )


def error_from_status(call: FailedCall, target: str) -> CstpError:
    """Return the exception for a failed call that gives no reason: gRPC itself answered, or something between."""
    text = call.details() or ""
    reason = reason_for_status(call)
    if call.code() is grpc.StatusCode.UNAVAILABLE:
        return errors.ServerUnreachable(f"No server answers at {target}: {connection_failure(text)}")
    if reason == errors.DeadlineExceeded.reason:
        return errors.DeadlineExceeded(f"{target} did not answer in time")
    return error_for_reason(reason, f"{target} answered {call.code().name}: {text}")


def reason_for_status(call: FailedCall) -> str:
    """Return the reason that the gRPC status of a failed call means if its details give none."""
    code = call.code()
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        text = call.details() or ""
        if reason := next((reason for mark, reason in SIZE_LIMIT_REASONS.items() if mark in text), None):
            return reason
    return reason_for_grpc_code(code.name)


def read_error_details(call: FailedCall) -> RpcErrorDetails | None:
    """Return the details in the status of a failed call; None if it has no google.rpc.Status with a reason of ours."""
    status = read_rich_status(call)
    info = error_details_pb2.ErrorInfo()
    if status is None or not unpack_detail(status, info) or info.domain != DOMAIN or not info.reason:
        return None
    bad_request, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    precondition = error_details_pb2.PreconditionFailure()
    unpack_detail(status, bad_request)
    unpack_detail(status, precondition)
    has_delay = unpack_detail(status, retry) and retry.HasField("retry_delay")
    return RpcErrorDetails(
        info.reason,
        status.message,
        metadata=dict(info.metadata),
        violations=tuple(FieldViolation(v.field, v.description) for v in bad_request.field_violations),
        blocks=tuple(BlockingGuardrail(v.type, v.subject, v.description) for v in precondition.violations),
        retry_after=retry_delay_seconds(retry.retry_delay) if has_delay else None,
    )


def read_rich_status(call: FailedCall) -> status_pb2.Status | None:
    content = trailing_value(call, STATUS_KEY)
    if not isinstance(content, bytes):
        return None
    try:
        return status_pb2.Status.FromString(content)
    except messages.DecodeError:
        return None


def unpack_detail(status: status_pb2.Status, detail: Message) -> bool:
    """Fill `detail` from a status and return whether the status has such a detail that can be read."""
    try:
        return any(envelope.Unpack(detail) for envelope in status.details if envelope.Is(detail.DESCRIPTOR))
    except messages.DecodeError:
        return False


def trailing_value(call: FailedCall, key: str) -> str | bytes | None:
    return next((value for name, value in call.trailing_metadata() or () if name == key), None)


def parse_pushback(pushback: str | bytes) -> int | None:
    """Return the milliseconds to wait before a retry; None for anything but a number, which forbids retries."""
    text = pushback if isinstance(pushback, str) else ""
    return int(text) if text.isascii() and text.isdecimal() else None


def retry_delay_seconds(delay: Duration) -> float | None:
    """Return the seconds of a delay; None if it is negative or makes no sense."""
    # Divided once, so that 2.829 s does not become 2.8289999999999997.
    seconds = (delay.seconds * 1_000_000_000 + delay.nanos) / 1_000_000_000
    return seconds if 0 <= seconds <= MAX_DELAY_SECONDS else None


def connection_failure(text: str) -> str:
    """Return why a server cannot be reached: the end of the chain of causes that gRPC's text lists."""
    if any(sign in text for sign in HTTP_SIGNS):
        return SPEAKS_HTTP
    handshake = HANDSHAKE.search(text)
    return f"the TLS handshake failed, {handshake[1]}" if handshake else text.rpartition(": ")[2]


def make_error_details(
    reason: str,
    metadata: Mapping[str, str],
    *,
    domain: str = DOMAIN,
    violations: Iterable[FieldViolation] = (),
    blocks: Iterable[BlockingGuardrail] = (),
    retry_after_ms: int | None = None,
) -> list[Message]:
    """Return ErrorInfo, then BadRequest, PreconditionFailure and RetryInfo if they have content."""
    info = error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata)
    bad_request = error_details_pb2.BadRequest()
    for violation in violations:
        bad_request.field_violations.add(field=violation.field, description=violation.description)
    precondition = error_details_pb2.PreconditionFailure()
    for block in blocks:
        precondition.violations.add(type=block.guardrail_id, subject=block.name, description=block.message)
    details: list[Message] = [info]
    details += [detail for detail in (bad_request, precondition) if detail.ByteSize()]
    if retry_after_ms is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(retry_after_ms)
        details.append(retry)
    return details


def pack_any(detail: Message) -> any_pb2.Any:
    envelope = any_pb2.Any()
    envelope.Pack(detail)
    return envelope


MAX_REASON_CHARACTERS: Final = 500
"""Maximum length of a reason. Chosen: some sentences; it may end up in a log, a notification and an error at once."""
MAX_REASON_BYTES: Final = 1_000
"""Limit in bytes: errors travel in trailing metadata, where a byte takes up to six, and many clients reject more than 8
KiB of it.
"""


def append_reason(what: str, why: str) -> str:
    """Return a message followed by another party's sanitized reason, on one line."""
    # Cut before it is cleaned too, since another party decides how long it is.
    words = (
        to_single_line(why[: 2 * MAX_REASON_CHARACTERS])[:MAX_REASON_CHARACTERS]
        .encode()[:MAX_REASON_BYTES]
        .decode(errors="ignore")
    )
    return f"{what}: {words}" if words else what
