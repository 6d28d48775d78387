"""Send contexts to A2A agents from callers without an event loop. The official SDK speaks the protocol."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

import httpx
from a2a.client import A2AClientError, Client, ClientConfig, ClientFactory
from a2a.client.card_resolver import parse_agent_card
from a2a.helpers import get_message_text, new_data_part, new_message
from a2a.types import a2a_pb2
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH, TransportProtocol
from a2a.utils.errors import A2AError, InternalError, InvalidAgentResponseError, MethodNotFoundError, TaskNotFoundError

from cstp_grpc.client.targets import bearer_header
from cstp_grpc.client.tls import tls_context
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.spans import outgoing_trace
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.contract.json_values import restore_integers
from cstp_grpc.contract.rpc_errors import append_reason

T = TypeVar("T")

MAX_RESPONSE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a response. Chosen: a task or a card is far smaller, and the agent is another party."""
MAX_TASK_ID_CHARACTERS: Final = 256
TIMEOUT_GRACE_SECONDS: Final = 1.0
"""Seconds for a call to end after its timeout, since a cancellation takes a pass of the event loop."""
CLOSE_SECONDS: Final = 5.0
"""Maximum seconds to cancel all calls, and again for the thread to end. Chosen: neither waits for the network."""
SUPPORTED_BINDINGS: Final = [TransportProtocol.JSONRPC.value, TransportProtocol.HTTP_JSON.value]
TRANSIENT_STATUSES: Final = frozenset({404, 408, 425, 429})
"""HTTP statuses below 500 after which the agent may answer differently later."""
REJECTED_STATES: Final[Mapping[int, str]] = {
    a2a_pb2.TaskState.TASK_STATE_REJECTED: "rejected",
    a2a_pb2.TaskState.TASK_STATE_FAILED: "failed",
    a2a_pb2.TaskState.TASK_STATE_CANCELED: "canceled",
    a2a_pb2.TaskState.TASK_STATE_AUTH_REQUIRED: "authentication required",
}
UNDECIDED_STATES: Final = frozenset({a2a_pb2.TaskState.TASK_STATE_UNSPECIFIED, a2a_pb2.TaskState.TASK_STATE_SUBMITTED})
"""States of a task that the agent has neither begun nor refused: a server may answer before its agent has seen it."""
FIRST_LOOK_SECONDS: Final = 0.02
LONGEST_LOOK_SECONDS: Final = 1.0
"""Bounds of the pause between two looks at a submitted task, which doubles."""


class A2aSendError(Exception):
    """An agent did not accept a message. The text is safe to show to callers; the cause is for the log."""


class A2aPermanentError(A2aSendError):
    """The agent rejects the message permanently; retrying does not help."""


class A2aTransientError(A2aSendError):
    """The agent may accept the message later. `task_id` is the task that it made of the message and has not begun."""

    task_id: str | None = None


class A2aResponseTooLarge(httpx.TransportError):
    """A response is larger than MAX_RESPONSE_BYTES, or compressed."""


class A2aClient:
    """Sends data to one A2A agent, over the JSON-RPC or HTTP+JSON interface that its card names. Thread-safe.

    `url` is that of the card, which ends with `.json`, or of the site that has it at its well-known path. The token and
    the data are sent to the host of the URL only, whatever the card says, and never over http if the URL is https.
    Redirects are not followed and proxies are not used. `root_certificates` (PEM) replaces the system's certificate
    authorities. Raises InvalidArgument if one of these is unusable.
    """

    def __init__(self, url: str, token: str | None, *, root_certificates: bytes | None = None) -> None:
        self._address = agent_card_url(url)
        self._http = IntegerJsonClient(
            # Security: the size limit counts bytes as they arrive, and a compressed body could become a thousand times
            # as large.
            headers=[("accept-encoding", "identity"), *bearer_header(token)],
            event_hooks={"request": [add_trace_headers], "response": [limit_body_size]},
            verify=tls_context(root_certificates),
            # `_run` limits each call as a whole; httpx limits only each read.
            timeout=None,
            # No proxy from the environment, which would get the token.
            trust_env=False,
        )
        config = ClientConfig(
            # `polling` makes the SDK return the task at once, as `return_immediately` asks the agent for.
            streaming=False,
            polling=True,
            httpx_client=self._http,
            supported_protocol_bindings=SUPPORTED_BINDINGS,
        )
        self._clients = ClientFactory(config)
        self._card: a2a_pb2.AgentCard | None = None
        self._loop = A2aEventLoopThread("a2a-peer")

    def probe(self, seconds: float) -> None:
        """Check that the agent's card names a supported interface. Raises A2aPermanentError and A2aTransientError."""
        self._run(self._read_card(), seconds)

    def send(
        self,
        data: Mapping[str, Any],
        message_id: str,
        context_id: str | None,
        seconds: float,
        task_id: str | None = None,
    ) -> str | None:
        """Send a message with one data part; return the id of its task, or None, when the agent has begun or answered.

        The agent has accepted the message, not finished with it; it recognises a repetition by `message_id`. With the
        `task_id` of an A2aTransientError only that task is looked at. Raises A2aPermanentError and A2aTransientError.
        """
        message = new_message([new_data_part(dict(data))], context_id=context_id, role=a2a_pb2.Role.ROLE_USER)
        message.message_id = message_id
        configuration = a2a_pb2.SendMessageConfiguration(return_immediately=True, history_length=0)
        sent = SentMessage(a2a_pb2.SendMessageRequest(message=message, configuration=configuration), task_id)
        try:
            return self._run(self._send(sent), seconds)
        except A2aTransientError as error:
            error.task_id = sent.task_id
            if sent.task_id and isinstance(error.__cause__, TimeoutError):
                error.args = ("has neither begun nor refused the task in time",)
            raise

    def close(self) -> None:
        """Cancel the calls in progress, which then raise A2aTransientError, and close the connections."""
        self._loop.close(self._http.aclose)

    def _run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        try:
            return self._loop.run(work, seconds)
        except A2aSendError:
            raise
        except Exception as error:
            # For an invalid response the SDK raises the exceptions of its parsers.
            raise send_error_for(error) from error

    async def _read_card(self) -> a2a_pb2.AgentCard:
        answer = await self._http.get(self._address, headers={"accept": "application/json"})
        # Transient: an agent that is being deployed has no card for a while.
        if answer.status_code in {404, 410}:
            raise A2aTransientError("no agent card")
        answer.raise_for_status()
        try:
            card = parse_agent_card(answer.json())
        except Exception as error:
            raise A2aTransientError("no agent card that can be read") from error
        self._card = self._usable(card)
        return self._card

    def _usable(self, card: a2a_pb2.AgentCard) -> a2a_pb2.AgentCard:
        supported = [each for each in card.supported_interfaces if each.protocol_binding in SUPPORTED_BINDINGS]
        if not supported:
            raise A2aPermanentError("no interface of A2A over JSON-RPC or HTTP+JSON in its card")
        # Security: otherwise the card, which is not signed, could send the token and the context to any host.
        own = [each for each in supported if self._is_own(each)]
        if not own:
            raise A2aPermanentError("only interfaces on other hosts than its own in its card, or less secure ones")
        usable = a2a_pb2.AgentCard()
        usable.CopyFrom(card)
        del usable.supported_interfaces[:]
        usable.supported_interfaces.extend(own)
        return usable

    def _is_own(self, interface: a2a_pb2.AgentInterface) -> bool:
        try:
            url = httpx.URL(interface.url)
        except httpx.InvalidURL:
            return False
        # Never from https down to http.
        schemes = {"https", self._address.scheme}
        return url.host == self._address.host and url.scheme in schemes and not url.userinfo

    async def _send(self, sent: SentMessage) -> str | None:
        # No lock: two first calls at once both read the card, and the later result replaces an equal one.
        card = self._card or await self._read_card()
        client = self._clients.create(card)
        pause = FIRST_LOOK_SECONDS
        try:
            task = await (look_at_task(client, sent) if sent.task_id else send_message(client, sent.request))
            while task is not None and is_undecided(task):
                sent.task_id = task.id
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_LOOK_SECONDS)
                task = await look_at_task(client, sent)
            return None if task is None else task.id
        except Exception:
            # The agent may have moved: the next call reads the card again.
            self._card = None
            raise


@dataclass(slots=True)
class SentMessage:
    """A message, and the task that the agent made of it and has not begun."""

    request: a2a_pb2.SendMessageRequest
    task_id: str | None


async def send_message(client: Client, request: a2a_pb2.SendMessageRequest) -> a2a_pb2.Task | None:
    """Send a message and return its task, or None if the agent answered with a message."""
    # Read to the end, so that the SDK closes its response; without streaming there is one.
    answer, *_ = [each async for each in client.send_message(request)]
    return answer.task if answer.HasField("task") else None


async def look_at_task(client: Client, sent: SentMessage) -> a2a_pb2.Task:
    """Return the task of a message. Raises A2aTransientError, and forgets the task, if the agent no longer has it."""
    assert sent.task_id is not None
    try:
        return await client.get_task(a2a_pb2.GetTaskRequest(id=sent.task_id, history_length=0))
    except TaskNotFoundError as error:
        sent.task_id = None
        raise A2aTransientError("no longer has the task") from error


class A2aEventLoopThread:
    """An event loop on its own thread that runs coroutines for other threads."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # Guards `_closed`, and the order of submissions to the loop: no call can be submitted after the shutdown.
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run a coroutine for at most `seconds` and return its result.

        Raises what the coroutine raises, TimeoutError, and A2aTransientError after `close`.
        """
        with self._lock:
            if self._closed:
                # A coroutine that is never awaited would warn when it is collected.
                work.close()
                raise A2aTransientError("not called any more")
            ending = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), self._loop)
        try:
            # The coroutine has its own timeout in the loop; this one is for a loop that hangs.
            return ending.result(seconds + TIMEOUT_GRACE_SECONDS)
        except concurrent.futures.CancelledError:
            raise A2aTransientError("not called any more") from None

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancel all running tasks, run the last coroutine, and stop the thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            # Calls submitted before are started before this by the loop, so that it cancels them all.
            ending = asyncio.run_coroutine_threadsafe(shut_down_loop(last), self._loop)
        try:
            ending.result(CLOSE_SECONDS)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_SECONDS)
            self._loop.close()


async def shut_down_loop(last: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Cancel every other task of the running event loop, then run the last coroutine."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    # Until they have ended: `last` closes the connections that they use.
    await asyncio.gather(*others, return_exceptions=True)
    await last()
    await asyncio.get_running_loop().shutdown_asyncgens()


class IntegerJsonClient(httpx.AsyncClient):
    """Write whole numbers in JSON bodies as integers; the SDK turns every number of free-form data into a float."""

    def build_request(self, method: str, url: httpx.URL | str, *, json: Any = None, **rest: Any) -> httpx.Request:
        return super().build_request(method, url, json=restore_integers(json), **rest)


async def add_trace_headers(request: httpx.Request) -> None:
    """Add the headers of the trace that a request is part of, if there is one."""
    request.headers.update(outgoing_trace.get())


async def limit_body_size(response: httpx.Response) -> None:
    """Make a response that is larger than MAX_RESPONSE_BYTES fail while it is read. Raises A2aResponseTooLarge."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise A2aResponseTooLarge("the answer is compressed, though that was not asked for")
    assert isinstance(response.stream, httpx.AsyncByteStream), "it comes from the network"
    # In a response hook: httpx has read the headers by then, and nothing of the body.
    response.stream = SizeLimitedStream(response.stream)


class SizeLimitedStream(httpx.AsyncByteStream):
    """A byte stream that raises A2aResponseTooLarge when the stream below yields too many bytes."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for chunk in self._stream:
            received += len(chunk)
            if received > MAX_RESPONSE_BYTES:
                raise A2aResponseTooLarge(f"the answer is larger than {MAX_RESPONSE_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()


def agent_card_url(url: str) -> httpx.URL:
    """Return the URL of the agent card. Raises InvalidArgument."""
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


def is_undecided(task: a2a_pb2.Task) -> bool:
    """Return whether the agent has neither begun a task nor refused it.

    Raises A2aPermanentError if it has refused it, and A2aTransientError if the task is not one of A2A.
    """
    if task.status.state in REJECTED_STATES:
        raise A2aPermanentError(append_reason(REJECTED_STATES[task.status.state], status_text(task)))
    if not task.id or len(task.id) > MAX_TASK_ID_CHARACTERS or not task.id.isprintable():
        raise A2aTransientError("an answer that is none of A2A")
    return task.status.state in UNDECIDED_STATES


def status_text(task: a2a_pb2.Task) -> str:
    return get_message_text(task.status.message) if task.status.HasField("message") else ""


def send_error_for(error: Exception) -> A2aSendError:
    """Return the error to raise for a failure of the SDK or of the libraries below it."""
    # The SDK wraps what happened below it; the cause tells a refused connection from a refusal by the agent.
    cause = error.__cause__ if isinstance(error, A2AClientError | MethodNotFoundError) and error.__cause__ else error
    if isinstance(cause, httpx.HTTPStatusError):
        return send_error_for_status(cause.response.status_code)
    if isinstance(cause, TimeoutError | httpx.TimeoutException):
        return A2aTransientError("no answer in time")
    if isinstance(cause, A2aResponseTooLarge):
        return A2aTransientError("an answer that is too large")
    if isinstance(cause, httpx.RequestError):
        return A2aTransientError("not reachable")
    if isinstance(cause, A2AError) and not isinstance(cause, A2AClientError):
        kind = A2aTransientError if isinstance(cause, InternalError | InvalidAgentResponseError) else A2aPermanentError
        return kind(append_reason("answered an error", str(cause.message)))
    return A2aTransientError("an answer that is none of A2A")


def send_error_for_status(status: int) -> A2aSendError:
    """Return the error to raise for an HTTP status without an A2A response."""
    if status in {401, 403}:
        return A2aPermanentError(f"token not accepted, with HTTP {status}")
    if 300 <= status < 400:
        return A2aPermanentError("redirects elsewhere, which is not followed")
    kind = A2aTransientError if status >= 500 or status in TRANSIENT_STATUSES else A2aPermanentError
    return kind(f"answered HTTP {status}")
