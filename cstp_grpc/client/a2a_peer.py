"""Sending contexts to A2A agents, for callers that know no event loop; the official SDK speaks the protocol."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

import httpx
from a2a.client import A2AClientError, ClientConfig, ClientFactory
from a2a.client.card_resolver import parse_agent_card
from a2a.helpers import get_message_text, new_data_part, new_message
from a2a.types.a2a_pb2 import (
    AgentCard,
    AgentInterface,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
)
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH, TransportProtocol
from a2a.utils.errors import A2AError, InternalError, InvalidAgentResponseError, MethodNotFoundError

from cstp_grpc.client.json_known import with_integers
from cstp_grpc.client.jsonrpc import tls_context
from cstp_grpc.client.transport import authorization
from cstp_grpc.client.words import told
from cstp_grpc.errors import InvalidArgument

T = TypeVar("T")

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""The largest answer that is read; agents have no reason to send a context back."""
MAX_TASK_ID: Final = 256
GRACE_SECONDS: Final = 1.0
"""How long after its time a call may take to end."""
CLOSE_SECONDS: Final = 5.0
BINDINGS: Final = [TransportProtocol.JSONRPC.value, TransportProtocol.HTTP_JSON.value]
PASSING_STATUS: Final = frozenset({404, 408, 425, 429})
"""HTTP statuses below 500 of agents that may answer otherwise later."""
REFUSING_STATES: Final[Mapping[int, str]] = {
    TaskState.TASK_STATE_REJECTED: "rejected",
    TaskState.TASK_STATE_FAILED: "failed",
    TaskState.TASK_STATE_CANCELED: "canceled",
    TaskState.TASK_STATE_AUTH_REQUIRED: "authentication required",
}


class PeerError(Exception):
    """An agent did not take what it was sent; the message is a few words fit for callers, the cause is for the log."""


class PeerRefuses(PeerError):
    """The agent will not take it, however often it is sent."""


class PeerFails(PeerError):
    """The agent may take it later."""


class AnswerTooLarge(httpx.TransportError):
    """An answer is larger than anything that is read."""


class A2aPeer:
    """Sends data to one A2A agent, over the JSON-RPC or HTTP+JSON interface that its card names. Safe for many threads.

    `url` is that of the card, which ends with `.json`, or of the site that has it at its well-known path. The token and
    what is sent go to the host of the URL alone, whatever the card says, and never from https to http; redirects are
    not followed, and no proxies used. `root_certificates` (PEM) replaces the system's authorities. Raises
    InvalidArgument where one of these cannot be used.
    """

    def __init__(self, url: str, token: str | None, *, root_certificates: bytes | None = None) -> None:
        self._address = card_address(url)
        self._http = IntegerClient(
            # What is read is counted as it comes, so it must not come compressed.
            headers=[("accept-encoding", "identity"), *authorization(token)],
            transport=Bounded(httpx.AsyncHTTPTransport(verify=tls_context(root_certificates))),
            # Each call has a bound of its own.
            timeout=None,
            trust_env=False,
        )
        config = ClientConfig(
            streaming=False, polling=True, httpx_client=self._http, supported_protocol_bindings=BINDINGS
        )
        self._clients = ClientFactory(config)
        self._card: AgentCard | None = None
        self._loop = EventLoop("a2a-peer")

    def probe(self, seconds: float) -> None:
        """Return where the agent's card names an interface that can be used. Raises PeerRefuses, PeerFails."""
        self._run(self._read_card(), seconds)

    def send(self, data: Mapping[str, Any], message_id: str, context_id: str | None, seconds: float) -> str | None:
        """Send a message of one data part and return the id of the task that the agent made of it, if it made one.

        The agent has accepted it, not finished with it. It knows a repetition by `message_id`. Raises PeerRefuses,
        PeerFails.
        """
        message = new_message([new_data_part(dict(data))], context_id=context_id, role=Role.ROLE_USER)
        message.message_id = message_id
        configuration = SendMessageConfiguration(return_immediately=True, history_length=0)
        return self._run(self._send(SendMessageRequest(message=message, configuration=configuration)), seconds)

    def close(self) -> None:
        """End calls in progress, which raise PeerFails, and give back what is held open."""
        self._loop.close(self._http.aclose)

    def _run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        try:
            return self._loop.run(work, seconds)
        except PeerError:
            raise
        except Exception as error:
            # The SDK raises whatever an answer that is none makes its parsers raise.
            raise judged(error) from error

    async def _read_card(self) -> AgentCard:
        """Return the agent's card with those interfaces alone that can be used."""
        answer = await self._http.get(self._address, headers={"accept": "application/json"})
        if answer.status_code in {404, 410}:
            raise PeerFails("no agent card")
        answer.raise_for_status()
        try:
            card = parse_agent_card(answer.json())
        except Exception as error:
            raise PeerFails("no agent card that can be read") from error
        self._card = self._usable(card)
        return self._card

    def _usable(self, card: AgentCard) -> AgentCard:
        spoken = [each for each in card.supported_interfaces if each.protocol_binding in BINDINGS]
        if not spoken:
            raise PeerRefuses("no interface of A2A over JSON-RPC or HTTP+JSON in its card")
        own = [each for each in spoken if self._is_own(each)]
        if not own:
            raise PeerRefuses("only interfaces on other hosts than its own in its card, or less secure ones")
        usable = AgentCard()
        usable.CopyFrom(card)
        del usable.supported_interfaces[:]
        usable.supported_interfaces.extend(own)
        return usable

    def _is_own(self, interface: AgentInterface) -> bool:
        try:
            url = httpx.URL(interface.url)
        except httpx.InvalidURL:
            return False
        schemes = {"https", self._address.scheme}
        return url.host == self._address.host and url.scheme in schemes and not url.userinfo

    async def _send(self, request: SendMessageRequest) -> str | None:
        card = self._card or await self._read_card()
        try:
            answers = [answer async for answer in self._clients.create(card).send_message(request)]
            return task_of(answers[0])
        except Exception:
            # It may be elsewhere by now.
            self._card = None
            raise


class EventLoop:
    """An event loop on a thread of its own, for the calls of other threads."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._entering = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Return what comes of a coroutine, which gets so many seconds.

        Raises what it raises, TimeoutError, and PeerFails after `close`.
        """
        with self._entering:
            if self._closed:
                work.close()
                raise PeerFails("not called any more")
            ending = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), self._loop)
        try:
            return ending.result(seconds + GRACE_SECONDS)
        except concurrent.futures.CancelledError:
            raise PeerFails("not called any more") from None

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End everything that runs, then run a last coroutine, and end the thread."""
        with self._entering:
            if self._closed:
                return
            self._closed = True
            # What entered before comes before this in the loop, so it is ended.
            ending = asyncio.run_coroutine_threadsafe(finish(last), self._loop)
        try:
            ending.result(CLOSE_SECONDS)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_SECONDS)
            self._loop.close()


async def finish(last: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """End everything else that runs in the present event loop, then run a last coroutine."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await last()
    await asyncio.get_running_loop().shutdown_asyncgens()


class IntegerClient(httpx.AsyncClient):
    """Writes whole numbers of JSON bodies as integers; the SDK gives every number of free-form data as a float."""

    def build_request(self, method: str, url: httpx.URL | str, *, json: Any = None, **rest: Any) -> httpx.Request:
        """Return a request."""
        return super().build_request(method, url, json=with_integers(json), **rest)


class Bounded(httpx.AsyncBaseTransport):
    """Carries requests as another transport does, and ends answers that are too large."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer to a request."""
        response = await self._transport.handle_async_request(request)
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream), "it comes from the network"
        if response.headers.get("content-encoding", "identity") != "identity":
            await stream.aclose()
            raise AnswerTooLarge("the answer is compressed, though that was not asked for")
        response.stream = BoundedStream(stream)
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


class BoundedStream(httpx.AsyncByteStream):
    """Gives the bytes of another stream, and raises AnswerTooLarge where they are too many."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes."""
        received = 0
        async for chunk in self._stream:
            received += len(chunk)
            if received > MAX_ANSWER_BYTES:
                raise AnswerTooLarge(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()


def card_address(url: str) -> httpx.URL:
    """Return where the agent card is. Raises InvalidArgument."""
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidArgument.field("url", f"{url!r} is no URL") from error
    usable = address.scheme in {"http", "https"} and address.host and (address.port or 1) < 65536
    if not usable or address.userinfo or address.fragment:
        raise InvalidArgument.field("url", "is not of the form https://HOST/PATH, without a user and a fragment")
    if address.path.endswith(".json"):
        return address
    return address.copy_with(path=address.path.rstrip("/") + AGENT_CARD_WELL_KNOWN_PATH)


def task_of(answer: StreamResponse) -> str | None:
    """Return the id of the task that an agent answered, None for a message. Raises PeerRefuses, PeerFails."""
    if not answer.HasField("task"):
        return None
    task = answer.task
    if task.status.state in REFUSING_STATES:
        raise PeerRefuses(told(REFUSING_STATES[task.status.state], said_in(task)))
    if not task.id or len(task.id) > MAX_TASK_ID or not task.id.isprintable():
        raise PeerFails("an answer that is none of A2A")
    return task.id


def said_in(task: Task) -> str:
    """Return the text of a task's status; empty where there is none."""
    return get_message_text(task.status.message) if task.status.HasField("message") else ""


def judged(error: Exception) -> PeerError:
    """Return what callers are told of a failure of the SDK or below it."""
    cause = error.__cause__ if isinstance(error, A2AClientError | MethodNotFoundError) and error.__cause__ else error
    if isinstance(cause, httpx.HTTPStatusError):
        return of_status(cause.response.status_code)
    if isinstance(cause, TimeoutError | httpx.TimeoutException):
        return PeerFails("no answer in time")
    if isinstance(cause, AnswerTooLarge):
        return PeerFails("an answer that is too large")
    if isinstance(cause, httpx.RequestError):
        return PeerFails("not reachable")
    if isinstance(cause, A2AError) and not isinstance(cause, A2AClientError):
        kind = PeerFails if isinstance(cause, InternalError | InvalidAgentResponseError) else PeerRefuses
        return kind(told("answered an error", str(cause.message)))
    return PeerFails("an answer that is none of A2A")


def of_status(status: int) -> PeerError:
    """Return what callers are told of an HTTP status without an answer of A2A."""
    if status in {401, 403}:
        return PeerRefuses(f"token not accepted, with HTTP {status}")
    if 300 <= status < 400:
        return PeerRefuses("redirects elsewhere, which is not followed")
    kind = PeerFails if status >= 500 or status in PASSING_STATUS else PeerRefuses
    return kind(f"answered HTTP {status}")
