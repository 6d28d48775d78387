"""Call a peer over gRPC or JSON-RPC, at a given address or that of its agent card, and classify the result."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import urlsplit

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from cstp_grpc.client import json_rpc, jsonrpc_transport
from cstp_grpc.client.grpc_transport import channel_options
from cstp_grpc.client.http_client import HttpClient, HttpResponse, ResponseTooLarge
from cstp_grpc.client.http_exchange import HttpProtocolError
from cstp_grpc.client.targets import bearer_header, grpc_address, target_scheme
from cstp_grpc.client.tls import channel_credentials, context_for_authorities, tls_context
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import to_single_line
from cstp_grpc.contract import errors, json_codec, rpc_errors
from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.contract.errors import CstpError, DeadlineExceeded, InvalidArgument, ServerUnreachable
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.modules.federation import agent_card
from cstp_grpc.modules.federation.response_validation import MAX_PEER_RESPONSE_BYTES

if TYPE_CHECKING:
    from cstp_grpc.contract.card_keys import PublicKey

CallMetadata = Sequence[tuple[str, str]]
"""Sent with the request: gRPC metadata, or HTTP headers."""

CARD_CACHE_SECONDS: Final = 300.0
"""How long a fetched agent card is used."""
SERVER_FAILURES: Final = (errors.Unavailable, errors.QueryFailed, errors.InternalError, errors.LiaisonAgentUnavailable)
"""Errors that mean that an agent failed, in contrast to a rejection."""


@dataclass(frozen=True, slots=True)
class PeerCallResult:
    """The result of calling a peer: an answer if the status is ANSWERED.

    Otherwise `error` may add a reason, whose message is one line and safe for callers. `cause` is the text of the
    library below, for the log only.
    """

    status: PeerStatus
    answer: Message | None = None
    error: CstpError | None = None
    cause: str = ""


TIMED_OUT_RESULT: Final = PeerCallResult(PeerStatus.TIMED_OUT)
SKIPPED_RESULT: Final = PeerCallResult(PeerStatus.SKIPPED)


def result_of_answer(answer: Message) -> PeerCallResult:
    return PeerCallResult(PeerStatus.ANSWERED, answer)


def unreadable_result(why: str, cause: str = "") -> PeerCallResult:
    return PeerCallResult(PeerStatus.NOT_UNDERSTOOD, error=errors.InternalError(why), cause=cause)


def no_connection_result(cause: str) -> PeerCallResult:
    """Return the result for an address where no server answers."""
    return PeerCallResult(PeerStatus.UNREACHABLE, cause=cause)


def unavailable_result(why: str) -> PeerCallResult:
    return PeerCallResult(PeerStatus.UNREACHABLE, error=errors.Unavailable(why))


def result_of_error(error: CstpError) -> PeerCallResult:
    if isinstance(error, DeadlineExceeded):
        return TIMED_OUT_RESULT
    # A refusal shows that the peer works, and closes its circuit breaker; a failure opens it.
    status = PeerStatus.UNREACHABLE if isinstance(error, SERVER_FAILURES) else PeerStatus.REFUSED
    return PeerCallResult(
        status,
        error=type(error)(
            to_single_line(error.message[: 2 * rpc_errors.MAX_REASON_CHARACTERS])[: rpc_errors.MAX_REASON_CHARACTERS]
        ),
    )


class PeerTransport(Protocol):
    """Calls a peer over one kind of connection."""

    def call(self, method: RpcMethod, request: Message, seconds: float, metadata: CallMetadata) -> PeerCallResult:
        """Return the result of a call, within `seconds`."""

    def close(self) -> None:
        """Close the connections."""


CHANNEL_OPTIONS: Final[Mapping[str, int]] = {
    "grpc.max_receive_message_length": MAX_PEER_RESPONSE_BYTES,
    # A peer is asked once: a lost answer costs a call; a repetition costs a peer that may be overloaded already.
    "grpc.enable_retries": 0,
}
UNREADABLE_RESPONSES: Final[Mapping[str, str]] = {
    "Failed parsing HTTP/2": "no HTTP/2",
    "CLIENT: Received message larger": f"more than {MAX_PEER_RESPONSE_BYTES} bytes",
}
"""The errors for gRPC texts about unreadable bytes; no status code distinguishes them from other failures."""


class GrpcPeerTransport:
    """Calls a peer over one gRPC channel. Thread-safe. Raises InvalidArgument."""

    def __init__(self, target: str, token: str | None, root_certificates: bytes | None, *, secure: bool) -> None:
        address = grpc_address(target)
        options = list((dict(channel_options(address)) | dict(CHANNEL_OPTIONS)).items())
        self._metadata = bearer_header(token)
        self._calls: dict[str, Any] = {}
        if secure:
            self._channel = grpc.secure_channel(address, channel_credentials(root_certificates), options)
        else:
            self._channel = grpc.insecure_channel(address, options)

    def call(self, method: RpcMethod, request: Message, seconds: float, metadata: CallMetadata) -> PeerCallResult:
        try:
            content = self._callable(method)(request, timeout=seconds, metadata=(*self._metadata, *metadata))
        except grpc.RpcError as error:
            return result_of_rpc_error(error)
        try:
            return result_of_answer(method.response.FromString(content))
        except DecodeError:
            return unreadable_result("no message of the contract")

    def close(self) -> None:
        """Close the channel, which cancels calls in progress."""
        self._channel.close()

    def _callable(self, method: RpcMethod) -> Any:
        # Without a deserializer of gRPC's, whose failures cannot be distinguished from those of the peer.
        return self._calls.get(method.path) or self._calls.setdefault(
            method.path, self._channel.unary_unary(method.path, method.request.SerializeToString, None)
        )


def result_of_rpc_error(error: grpc.RpcError) -> PeerCallResult:
    """Return the result of a failed call; texts of CSTP servers are passed on, those of gRPC are not."""
    call = cast(grpc.Call, error)  # every error of a channel's call is the call too
    details = call.details() or ""
    if garbled := next((words for mark, words in UNREADABLE_RESPONSES.items() if mark in details), None):
        return unreadable_result(garbled, details)
    found = rpc_errors.error_from_rpc(error, "it")
    if rpc_errors.read_error_details(call) is not None:
        return result_of_error(found)
    if isinstance(found, ServerUnreachable):
        return no_connection_result(details)
    return result_of_error(type(found)(f"gRPC status {call.code().name}"))


JSON_MEDIA_TYPE: Final = "application/json"


class HttpPeerTransport:
    """Calls a peer by JSON-RPC, each call on its own connection. Thread-safe. Raises InvalidArgument."""

    def __init__(
        self,
        target: str,
        token: str | None,
        root_certificates: bytes | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = json_rpc.jsonrpc_url(target)
        self._headers = {"content-type": JSON_MEDIA_TYPE, "accept": JSON_MEDIA_TYPE} | dict(bearer_header(token))
        self._http = HttpClient(
            tls_context(root_certificates, self._url.scheme), max_bytes=MAX_PEER_RESPONSE_BYTES, clock=clock
        )
        self._ids = itertools.count(1)

    def call(self, method: RpcMethod, request: Message, seconds: float, metadata: CallMetadata) -> PeerCallResult:
        call_id = next(self._ids)
        params = jsonrpc_transport.params_of_request(method, request)
        body, headers = json_rpc.encode_call(method.name, params, call_id), self._headers | dict(metadata)
        try:
            answer = self._http.fetch("POST", self._url, headers, body, seconds)
        except TimeoutError:
            return TIMED_OUT_RESULT
        except OSError as error:
            return no_connection_result(str(error))
        except ResponseTooLarge as error:
            return unreadable_result(str(error))
        except HttpProtocolError as error:
            return unreadable_result("no HTTP", repr(error))
        return result_of_http_response(answer, call_id, method)

    def close(self) -> None:
        """Do nothing: connections are closed after each call."""


def result_of_http_response(answer: HttpResponse, call_id: int, method: RpcMethod) -> PeerCallResult:
    content = parse_json_body(answer)
    if not isinstance(content, dict) or content.get("jsonrpc") != "2.0":
        return result_of_http_status(answer.status)
    if isinstance(content.get("error"), dict):
        return result_of_error(json_rpc.error_from_jsonrpc(content["error"]))
    result = content.get("result")
    if content.get("id") != call_id or not isinstance(result, dict):
        return unreadable_result("it belongs to no call")
    try:
        known = jsonrpc_transport.drop_unknown_fields(result, cast(Descriptor, method.response.DESCRIPTOR))
        return result_of_answer(json_codec.from_json(known, method.response))
    except json_codec.CodecError as error:
        return unreadable_result("it does not fit the contract", str(error))


def parse_json_body(answer: HttpResponse) -> Any:
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON_MEDIA_TYPE:
        return None
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return None


def result_of_http_status(status: int) -> PeerCallResult:
    words = f"HTTP {status} without JSON-RPC"
    if error_class := rpc_errors.error_class_for_http_status(status):
        return result_of_error(error_class(words))
    return unavailable_result(words) if status >= 500 else unreadable_result(words)


@dataclass(frozen=True, slots=True)
class ResolvedCard:
    """The transport for the address that a card named, and until when it is used."""

    address: str
    transport: PeerTransport
    until: float


class CardPeerTransport:
    """Calls a peer at the address in its agent card.

    The card is fetched with the first call, again when it expires, and after a failure. With `card_keys`, one of them
    must have signed it. Raises InvalidArgument.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        root_certificates: bytes | None,
        clock: Callable[[], float],
        card_keys: Sequence[PublicKey] = (),
    ) -> None:
        # The card is fetched with the first call; checks that do not need it are made here.
        agent_card.parse_card_url(url)
        bearer_header(token)
        if root_certificates is not None:
            context_for_authorities(root_certificates)
        self._url = url
        self._token = token
        self._roots = root_certificates
        self._clock = clock
        self._card_keys = card_keys
        self._fetching = threading.Lock()
        """Held by the one call that fetches the card. The fields below are read and set without it: a call that sees an
        older value uses an older transport, or has the card fetched once more."""
        self._resolved: ResolvedCard | None = None
        self._is_doubted = False
        """Whether a call failed since the card was fetched: the peer may have moved."""
        self._closed = False

    def call(self, method: RpcMethod, request: Message, seconds: float, metadata: CallMetadata) -> PeerCallResult:
        deadline = self._clock() + seconds
        try:
            # At most half of the time, so that some is left for the call.
            transport = self._current_transport(seconds / 2)
        except agent_card.InvalidAgentCard as error:
            return PeerCallResult(PeerStatus.NOT_UNDERSTOOD, error=error)
        result = transport.call(method, request, deadline - self._clock(), metadata)
        if result.status in (PeerStatus.UNREACHABLE, PeerStatus.NOT_UNDERSTOOD):
            # Not for timeouts: a slow peer is where its card says, and fetching the card again would take time from the
            # next call.
            self._is_doubted = True
        return result

    def close(self) -> None:
        self._closed = True
        if self._resolved is not None:
            self._resolved.transport.close()

    def _current_transport(self, seconds: float) -> PeerTransport:
        """Return the transport to use. Raises the errors of reading the card."""
        deadline = self._clock() + seconds
        if (resolved := self._fresh_card()) is not None:
            return resolved.transport
        if not self._fetching.acquire(timeout=seconds):
            raise DeadlineExceeded("the agent card did not come in time")
        try:
            # The call that held the lock before has perhaps fetched it.
            resolved = self._fresh_card() or self._resolve_card(deadline - self._clock())
        finally:
            self._fetching.release()
        return resolved.transport

    def _fresh_card(self) -> ResolvedCard | None:
        resolved = self._resolved
        is_fresh = resolved is not None and not self._is_doubted and self._clock() < resolved.until
        return resolved if is_fresh else None

    def _resolve_card(self, seconds: float) -> ResolvedCard:
        """Fetch the card and return the transport for its address, the present one if the address is the same."""
        present = self._resolved
        try:
            card = agent_card.read_card(self._url, self._token, self._roots, seconds, self._clock, self._card_keys)
            address = preferred_address(card)
        except agent_card.UntrustedCard:
            # Somebody else may answer at the card's URL, and then also at the address of the card before.
            raise
        except CstpError:
            if present is None or self._is_doubted:
                raise
            # No call to the address has failed: it is used although the card cannot be fetched again.
            address = present.address
        is_same = present is not None and present.address == address
        transport = present.transport if present and is_same else self._open(address)
        resolved = self._resolved = ResolvedCard(address, transport, self._clock() + CARD_CACHE_SECONDS)
        if present is not None and not is_same:
            # Calls of other threads that still use it fail as unreachable: the peer says that it is not there any more.
            present.transport.close()
        self._is_doubted = False
        if self._closed:
            # `close` ran meanwhile, and has perhaps not seen the new transport.
            transport.close()
        return resolved

    def _open(self, address: str) -> PeerTransport:
        return open_direct_transport(address, self._token, self._roots, self._clock)


def preferred_address(card: agent_card.PeerCard) -> str:
    address = card.grpc_target or card.jsonrpc_url
    assert address is not None, "a card without an address is invalid"
    return address


def open_peer_transport(
    url: str,
    token: str | None,
    root_certificates: bytes | None,
    clock: Callable[[], float],
    card_keys: Sequence[PublicKey] = (),
) -> PeerTransport:
    """Return the transport for the URL of a server, a bridge or an agent card. Raises InvalidArgument."""
    if target_scheme(url) in {"http", "https"} and urlsplit(url).path.endswith(agent_card.CARD_SUFFIX):
        return CardPeerTransport(url, token, root_certificates, clock, card_keys)
    if card_keys:
        raise InvalidArgument.field("card_keys", "need the URL of an agent card, which ends with .json")
    return open_direct_transport(url, token, root_certificates, clock)


def open_direct_transport(
    url: str, token: str | None, root_certificates: bytes | None, clock: Callable[[], float]
) -> PeerTransport:
    """Return the transport for the URL of a server or a bridge. Raises InvalidArgument."""
    scheme = target_scheme(url)
    if scheme in {"http", "https"}:
        return HttpPeerTransport(url, token, root_certificates, clock)
    return GrpcPeerTransport(url, token, root_certificates, secure=scheme == "grpcs")
