"""The official Python client of A2A: the same session over every transport that the cards offer, in both versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
import pytest
from a2a.client import (
    A2ACardResolver,
    A2AClientError,
    AuthInterceptor,
    Client,
    ClientCallContext,
    ClientConfig,
    ClientFactory,
    CredentialService,
)
from a2a.client.service_parameters import ServiceParametersFactory, with_a2a_extensions
from a2a.compat.v0_3.grpc_transport import CompatGrpcTransport
from a2a.extensions.common import find_extension_by_uri
from a2a.helpers import get_data_parts, get_message_text, new_data_part, new_message, new_text_part
from a2a.types.a2a_pb2 import (
    AgentCard,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.constants import TransportProtocol
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict

from tests.bridge.a2a.products import Product
from tests.bridge.a2a.sdks import plain_http
from tests.harness import TIMEOUT, TOKENS, Peers
from tests.waiting import wait_until

EXTENSION = "urn:cstp:extension:v1"
INTENT = "Deploy the payment service to production"
UNREVIEWED = {
    EXTENSION: {
        "category": "architecture",
        "stakes": "high",
        "confidence": 0.9,
        "context": {"affectsProduction": True, "ciPassing": True},
    }
}
REVIEW = ("code review is done now", {"codeReviewCompleted": True})
QUERY: Mapping[str, Any] = {"method": "cstp.queryDecisions", "params": {"query": "payment service"}}

Content = str | Mapping[str, Any]


@dataclass(frozen=True)
class Way:
    """A transport of the client, and the version of A2A that it speaks."""

    binding: TransportProtocol
    version: str

    def __str__(self) -> str:
        return f"{self.binding.value}-{self.version}"

    @property
    def card_path(self) -> str:
        """Where clients of that version look for the card."""
        return "/.well-known/agent.json" if self.version == "0.3" else "/.well-known/agent-card.json"


WAYS_1_0 = [Way(binding, "1.0") for binding in TransportProtocol]
JSONRPC_0_3 = Way(TransportProtocol.JSONRPC, "0.3")
GRPC_0_3 = Way(TransportProtocol.GRPC, "0.3")
WAYS = [*WAYS_1_0, JSONRPC_0_3, GRPC_0_3]
WAYS_WITH_REFERENCES = [*WAYS_1_0, JSONRPC_0_3]
"""Those whose messages can name other tasks."""


class Token(CredentialService):
    """Has the same token for every scheme; the client decides by the card where it goes."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    async def get_credentials(self, security_scheme_name: str, context: ClientCallContext | None) -> str | None:
        return self._token


@dataclass
class Wire(grpc.aio.UnaryUnaryClientInterceptor):
    """Listens to what the client does not show: the versions it sends, the extensions that answers call active."""

    versions: set[str] = field(default_factory=set)
    activated: list[Mapping[str, str]] = field(default_factory=list)

    def hear(self, sent: Iterable[tuple[str, str]], received: Iterable[tuple[str, str]]) -> None:
        self.versions.add(dict(sent)["a2a-version"])
        names = ("a2a-extensions", "x-a2a-extensions")
        self.activated.append({name: value for name, value in received if name in names})

    async def hear_http(self, response: httpx.Response) -> None:
        self.hear(response.request.headers.items(), response.headers.items())

    async def intercept_unary_unary(
        self, continuation: Callable[..., Awaitable[Any]], details: Any, request: Any
    ) -> Any:
        call = await continuation(details, request)
        self.hear(details.metadata, await call.initial_metadata())
        return call


class Agent:
    """An agent that calls with the official client, one step after the other."""

    def __init__(
        self, runner: asyncio.Runner, card: AgentCard, clients: Mapping[bool, Client], wire: Wire, activate: bool
    ) -> None:
        self._runner = runner
        self._clients = clients
        self._activate = activate
        self.card = card
        self.wire = wire

    def send(self, *parts: Content, wanted: Mapping[str, Any] | None = None, **more: Any) -> Task:
        """Send a message whose texts and data are `parts`, and return the task that answers it.

        `wanted` is the request's configuration, `more` the other fields of the message.
        """
        [answer] = self._send(parts, wanted, more, streaming=False)
        assert answer.HasField("task")
        return answer.task

    def stream(self, *parts: Content, **more: Any) -> list[StreamResponse]:
        """Send a message likewise, and return all that is streamed."""
        return self._send(parts, None, more, streaming=True)

    def subscribe(self, task_id: str) -> list[StreamResponse]:
        """Return all that is streamed of a task from now on."""
        answers = self._clients[True].subscribe(SubscribeToTaskRequest(id=task_id), context=self._context())
        return self._runner.run(collect(answers))

    def get(self, task_id: str, **wanted: Any) -> Task:
        return self._call("get_task", GetTaskRequest(id=task_id, **wanted))

    def list_tasks(self, **wanted: Any) -> ListTasksResponse:
        return self._call("list_tasks", ListTasksRequest(**wanted))

    def cancel(self, task_id: str) -> Task:
        return self._call("cancel_task", CancelTaskRequest(id=task_id))

    def extended_card(self) -> AgentCard:
        return self._call("get_extended_agent_card", GetExtendedAgentCardRequest())

    def ask_for_pushes(self, task_id: str) -> TaskPushNotificationConfig:
        config = TaskPushNotificationConfig(task_id=task_id, id="mine", url="https://127.0.0.1:1/pushes")
        return self._call("create_task_push_notification_config", config)

    def _send(
        self, parts: Iterable[Content], wanted: Mapping[str, Any] | None, more: Mapping[str, Any], *, streaming: bool
    ) -> list[StreamResponse]:
        configuration = SendMessageConfiguration(**wanted or {})
        request = SendMessageRequest(message=message(parts, **more), configuration=configuration)
        client = self._clients[streaming]
        return self._runner.run(collect(client.send_message(request, context=self._context())))

    def _call(self, operation: str, request: object) -> Any:
        async def answer() -> Any:
            return await getattr(self._clients[False], operation)(request, context=self._context())

        return self._runner.run(answer())

    def _context(self) -> ClientCallContext:
        update = with_a2a_extensions([EXTENSION] if self._activate else [])
        return ClientCallContext(service_parameters=ServiceParametersFactory.create([update]), timeout=TIMEOUT)


def message(parts: Iterable[Content], metadata: Mapping[str, Any] | None = None, **more: Any) -> Message:
    content = [new_text_part(part) if isinstance(part, str) else new_data_part(part) for part in parts]
    references = more.pop("reference_task_ids", ())
    made = new_message(content, role=Role.ROLE_USER, **more)
    made.reference_task_ids.extend(references)
    made.metadata.update(metadata or {})
    return made


async def collect(answers: AsyncIterator[StreamResponse]) -> list[StreamResponse]:
    return [answer async for answer in answers]


@contextmanager
def agent(way: Way, peers: Peers, token: str | None = TOKENS["alice"], *, activate: bool = False) -> Iterator[Agent]:
    """Find the agent that answers by its card and connect to it the wanted way."""
    with asyncio.Runner() as runner:
        wire = Wire()
        http = plain_http(event_hooks={"response": [wire.hear_http]}, timeout=TIMEOUT)
        card = runner.run(resolve(peers.url, way.card_path))
        clients = runner.run(connect(way, card, http, wire, token))
        try:
            yield Agent(runner, card, clients, wire, activate)
        finally:
            runner.run(close(clients.values(), http))


async def resolve(url: str, path: str) -> AgentCard:
    async with plain_http(timeout=TIMEOUT) as http:
        return await A2ACardResolver(http, url).get_agent_card(path)


async def connect(
    way: Way, card: AgentCard, http: httpx.AsyncClient, wire: Wire, token: str | None
) -> dict[bool, Client]:
    """Return two clients: one that does not stream and one that does."""
    found = {}
    for streaming in (False, True):
        config = ClientConfig(
            streaming=streaming,
            httpx_client=http,
            grpc_channel_factory=lambda target: grpc.aio.insecure_channel(target, interceptors=[wire]),
            supported_protocol_bindings=[way.binding],
        )
        factory = ClientFactory(config)
        if way == GRPC_0_3:
            # The SDK has lost this transport where its server side was imported first, and would speak 1.0 instead.
            factory.register(way.binding, CompatGrpcTransport.create)
        found[streaming] = factory.create(card, [AuthInterceptor(Token(token))])
    return found


async def close(clients: Iterable[Client], http: httpx.AsyncClient) -> None:
    for client in clients:
        await client.close()
    await http.aclose()


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


@pytest.fixture
def alice(way: Way, peers: Peers) -> Iterator[Agent]:
    with agent(way, peers) as alice:
        yield alice


def result_of(task: Task) -> dict[str, Any]:
    """Return the result in the task's one artifact, whose other part is for reading."""
    [artifact] = task.artifacts
    data, text = artifact.parts
    assert text.text
    [result] = get_data_parts([data])
    assert isinstance(result, dict)
    return result


def test_the_card_tells_who_answers_and_what_it_can_do(way: Way, alice: Agent) -> None:
    assert alice.card.capabilities.streaming
    interfaces = [(i.protocol_binding, i.protocol_version[:3]) for i in alice.card.supported_interfaces]
    assert (way.binding, way.version) in interfaces
    assert {"cstp.announceIntent", "cstp.queryDecisions"} <= {skill.id for skill in alice.card.skills}


def test_an_intent_is_announced_judged_again_and_read(way: Way, alice: Agent) -> None:
    blocked = alice.send(INTENT, metadata=UNREVIEWED)
    assert blocked.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    assert get_message_text(blocked.status.message)
    assert get_message_text(blocked.history[0]) == INTENT
    passed = alice.send(*REVIEW, context_id=blocked.context_id)
    assert passed.status.state == TaskState.TASK_STATE_COMPLETED
    assert passed.context_id == blocked.context_id
    assert result_of(passed)["correlationId"] == passed.id
    assert MessageToDict(passed.metadata)[EXTENSION]["method"] == "cstp.announceIntent"
    assert alice.get(passed.id) == passed
    assert alice.wire.versions == {way.version}
    # An extension that nobody activated is not mentioned.
    assert alice.wire.activated == [{}] * 3


def test_a_call_is_answered_or_says_why_not(alice: Agent) -> None:
    answered = alice.send(QUERY)
    assert answered.status.state == TaskState.TASK_STATE_COMPLETED
    assert result_of(answered)["query"] == QUERY["params"]["query"]
    failed = alice.send({"method": "cstp.queryDecisions", "params": {"limit": -1}})
    assert failed.status.state == TaskState.TASK_STATE_FAILED
    [said] = get_data_parts(failed.status.message.parts)
    assert said["error"]["reason"] == "INVALID_ARGUMENT"


def test_work_is_streamed_from_its_start_to_its_end(alice: Agent) -> None:
    first, artifact, last = alice.stream(INTENT)
    assert first.task.status.state == TaskState.TASK_STATE_WORKING
    assert last.status_update.status.state == TaskState.TASK_STATE_COMPLETED
    task = alice.get(first.task.id)
    assert list(task.artifacts) == [artifact.artifact_update.artifact]
    assert task.status == last.status_update.status


def test_no_sign_that_may_end_a_line_ends_an_event(alice: Agent) -> None:
    for line_break in ("\u2028", "\u2029", "\x85", "\x0b", "\r\n"):
        said = f"Deploy{line_break}today"
        first, *_ = alice.stream(said)
        assert first.task.history[0].parts[0].text == said


def test_a_caller_chooses_what_it_waits_for_and_gets(alice: Agent) -> None:
    task = alice.send(INTENT, wanted={"return_immediately": True})
    wait_until(lambda: alice.get(task.id).status.state == TaskState.TASK_STATE_COMPLETED, "the task is completed")
    [artifact] = alice.send(INTENT, wanted={"accepted_output_modes": ["text/plain"]}).artifacts
    assert [part.WhichOneof("content") for part in artifact.parts] == ["text"]


@pytest.mark.parametrize("way", WAYS_1_0, ids=str)
def test_tasks_are_listed_by_conversation_and_page(alice: Agent) -> None:
    first = alice.send(INTENT)
    second = alice.send(QUERY, context_id=first.context_id)
    latest = alice.list_tasks(context_id=first.context_id, page_size=1)
    assert ([task.id for task in latest.tasks], latest.total_size, latest.page_size) == ([second.id], 2, 1)
    rest = alice.list_tasks(context_id=first.context_id, page_size=1, page_token=latest.next_page_token)
    assert ([task.id for task in rest.tasks], rest.next_page_token) == ([first.id], "")
    whole = alice.list_tasks(context_id=first.context_id, include_artifacts=True)
    assert [result_of(task) for task in whole.tasks] == [result_of(second), result_of(first)]
    later = alice.list_tasks(context_id=first.context_id, status_timestamp_after=second.status.timestamp)
    assert [task.id for task in later.tasks] == [second.id]


@pytest.mark.parametrize("way", WAYS_WITH_REFERENCES, ids=str)
def test_a_follow_up_that_only_names_a_task_stays_in_its_conversation(alice: Agent) -> None:
    blocked = alice.send(INTENT, metadata=UNREVIEWED)
    passed = alice.send(*REVIEW, reference_task_ids=[blocked.id])
    assert passed.status.state == TaskState.TASK_STATE_COMPLETED
    assert passed.context_id == blocked.context_id


def test_refusals_are_the_errors_of_the_client(way: Way, peers: Peers, alice: Agent) -> None:
    task = alice.send(INTENT)
    with agent(way, peers, TOKENS["bob"]) as bob:
        refusals: list[tuple[type[A2AError], Callable[[], object]]] = [
            (UnsupportedOperationError, lambda: alice.subscribe(task.id)),
            (UnsupportedOperationError, lambda: alice.send(INTENT, task_id=task.id)),
            (TaskNotCancelableError, lambda: alice.cancel(task.id)),
            (ContentTypeNotSupportedError, lambda: alice.send(INTENT, wanted={"accepted_output_modes": ["image/png"]})),
            (TaskNotFoundError, lambda: bob.get(task.id)),
            (TaskNotFoundError, lambda: bob.cancel(task.id)),
            (TaskNotFoundError, lambda: bob.send(INTENT, task_id=task.id)),
            (TaskNotFoundError, lambda: bob.ask_for_pushes(task.id)),
        ]
        for expected, attempt in refusals:
            with pytest.raises(expected):
                attempt()


def test_push_notifications_are_configured(alice: Agent) -> None:
    task = alice.send(INTENT)
    config = alice.ask_for_pushes(task.id)
    assert (config.task_id, config.id, config.url) == (task.id, "mine", "https://127.0.0.1:1/pushes")


def test_a_stranger_learns_only_that_it_must_authenticate(way: Way, peers: Peers) -> None:
    with agent(way, peers, None) as stranger:
        attempts: list[Callable[[], object]] = [
            lambda: stranger.send(INTENT),
            lambda: stranger.stream(INTENT),
            lambda: stranger.get("no-such-task"),
            lambda: stranger.cancel("no-such-task"),
        ]
        if way.version == "1.0":
            attempts.append(stranger.list_tasks)
        for attempt in attempts:
            with pytest.raises(A2AClientError, match=r"401|UNAUTHENTICATED"):
                attempt()
        with pytest.raises(A2AClientError):
            stranger.extended_card()


def test_the_extended_card_tells_what_its_reader_may_do(way: Way, peers: Peers) -> None:
    told = []
    for name in ("alice", "reader"):
        with agent(way, peers, TOKENS[name]) as caller:
            extended = caller.extended_card()
        extension = find_extension_by_uri(extended, EXTENSION)
        assert extension is not None
        assert extended.name == caller.card.name
        told.append(MessageToDict(extension.params)["access"])
    assert [access["agent"] for access in told] == ["alice", "reader"]
    assert ["announce" in access["permissions"] for access in told] == [True, False]


def test_an_activated_extension_is_said_to_be_active(way: Way, peers: Peers) -> None:
    header = {"1.0": {"a2a-extensions"}, "0.3": {"a2a-extensions", "x-a2a-extensions"}}[way.version]
    with agent(way, peers, activate=True) as alice:
        alice.send(INTENT)
        assert alice.wire.activated == [dict.fromkeys(header, EXTENSION)]


def test_a_required_extension_is_required_of_every_call(way: Way, strict: Product) -> None:
    with agent(way, strict.bridges[0], activate=True) as alice:
        extension = find_extension_by_uri(alice.card, EXTENSION)
        assert extension is not None
        assert extension.required
        task = alice.send(INTENT)
        assert alice.get(task.id) == task
    with agent(way, strict.bridges[0]) as alice:
        for attempt in (alice.send, alice.stream, alice.get, alice.cancel):
            with pytest.raises(ExtensionSupportRequiredError):
                attempt(task.id)
