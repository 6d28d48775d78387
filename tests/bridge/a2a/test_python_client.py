"""The official Python client of A2A: the same session over every transport that the cards offer, in both versions."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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
from a2a.types import a2a_pb2_grpc
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

from cstp_grpc.config import Settings
from cstp_grpc.contract.methods import contract_methods
from tests.bridge.a2a.sdks import plain_http
from tests.harness import TIMEOUT, TOKENS, JsonRpcCaller, Peers, decoded, peering, running, settings
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


@contextmanager
def serving(wanted: Settings) -> Iterator[Peers]:
    with running(wanted) as app, peering(wanted, app.target) as peers:
        yield peers


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    wanted = settings(tmp_path_factory.mktemp("open"), a2a={"push": {"allow_loopback": True}})
    with serving(wanted) as peers:
        yield peers


@pytest.fixture(scope="module")
def strict_peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    """A peer that only talks to those who activate the extension."""
    with serving(settings(tmp_path_factory.mktemp("strict"), a2a={"require_extension": True})) as peers:
        yield peers


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


def announced(task: Task) -> dict[str, Any]:
    """Return the announcement that the task stands for."""
    call = MessageToDict(task.metadata)[EXTENSION]
    assert call["method"] == "cstp.announceIntent"
    params: dict[str, Any] = call["params"]
    return params


def test_the_card_tells_who_answers_and_what_it_can_do(way: Way, alice: Agent) -> None:
    assert alice.card.capabilities.streaming
    interfaces = [(i.protocol_binding, i.protocol_version[:3]) for i in alice.card.supported_interfaces]
    assert (way.binding, way.version) in interfaces
    assert {"cstp.announceIntent", "cstp.queryDecisions"} <= {skill.id for skill in alice.card.skills}


def test_the_client_speaks_the_version_that_it_found(way: Way, alice: Agent) -> None:
    alice.send(INTENT)
    assert alice.wire.versions == {way.version}


def test_the_extended_card_is_for_those_who_have_a_token(way: Way, peers: Peers, alice: Agent) -> None:
    assert alice.extended_card().name == alice.card.name
    with agent(way, peers, token=None) as stranger, pytest.raises(A2AClientError):
        stranger.extended_card()


@pytest.mark.parametrize("way", WAYS_1_0, ids=str)
def test_the_extended_card_tells_what_its_reader_may_do(way: Way, peers: Peers) -> None:
    told = []
    for name in ("alice", "reader"):
        with agent(way, peers, TOKENS[name]) as caller:
            extended = caller.extended_card()
        assert extended.supported_interfaces == caller.card.supported_interfaces
        extension = find_extension_by_uri(extended, EXTENSION)
        assert extension is not None
        told.append(MessageToDict(extension.params)["access"])
    assert [access["agent"] for access in told] == ["alice", "reader"]
    assert ["announce" in access["permissions"] for access in told] == [True, False]


def test_text_is_an_intent_to_announce(alice: Agent) -> None:
    task = alice.send(INTENT)
    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    assert get_message_text(task.status.message)
    result = result_of(task)
    assert result["received"] is True
    assert result["correlationId"] == task.id
    assert announced(task)["intent"] == INTENT
    assert [get_message_text(said) for said in task.history] == [INTENT]


def test_data_is_a_call_with_the_result_that_it_has_elsewhere(peers: Peers, alice: Agent) -> None:
    task = alice.send(QUERY)
    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    elsewhere = JsonRpcCaller(peers.url).call(QUERY["method"], QUERY["params"]).result
    assert elsewhere is not None
    timed = {"queryTimeMs"}
    result = result_of(task)
    assert set(result) == set(elsewhere)
    assert {k: v for k, v in result.items() if k not in timed} == {k: v for k, v in elsewhere.items() if k not in timed}


def test_a_call_that_fails_is_a_task_that_says_why(alice: Agent) -> None:
    task = alice.send({"method": "cstp.queryDecisions", "params": {"limit": -1}})
    assert task.status.state == TaskState.TASK_STATE_FAILED
    assert not task.artifacts
    [said] = get_data_parts(task.status.message.parts)
    assert said["error"]["reason"] == "INVALID_ARGUMENT"


def test_work_is_streamed_from_its_start_to_its_end(alice: Agent) -> None:
    first, artifact, last = alice.stream(INTENT)
    assert first.task.status.state == TaskState.TASK_STATE_WORKING
    assert last.status_update.status.state == TaskState.TASK_STATE_COMPLETED
    task = alice.get(first.task.id)
    assert list(task.artifacts) == [artifact.artifact_update.artifact]
    assert task.status == last.status_update.status


@pytest.mark.parametrize("line_break", ["\u2028", "\u2029", "\x85", "\x0b", "\r\n"])
def test_no_sign_that_may_end_a_line_ends_an_event(alice: Agent, line_break: str) -> None:
    said = f"Deploy{line_break}today"
    first, *_ = alice.stream(said)
    assert first.task.history[0].parts[0].text == said


def test_a_task_can_be_had_again(alice: Agent) -> None:
    task = alice.send(INTENT)
    assert alice.get(task.id) == task


@pytest.mark.parametrize("way", WAYS_1_0, ids=str)
def test_tasks_are_listed_by_conversation_and_page(alice: Agent) -> None:
    first = alice.send(INTENT)
    second = alice.send(QUERY, context_id=first.context_id)
    alice.send("Something else")
    latest = alice.list_tasks(context_id=first.context_id, page_size=1)
    assert ([task.id for task in latest.tasks], latest.total_size, latest.page_size) == ([second.id], 2, 1)
    rest = alice.list_tasks(context_id=first.context_id, page_size=1, page_token=latest.next_page_token)
    assert ([task.id for task in rest.tasks], rest.next_page_token) == ([first.id], "")
    assert not rest.tasks[0].artifacts
    whole = alice.list_tasks(context_id=first.context_id, include_artifacts=True)
    assert [result_of(task) for task in whole.tasks] == [result_of(second), result_of(first)]


@pytest.mark.parametrize("way", WAYS_1_0, ids=str)
def test_tasks_are_listed_by_how_they_ended_and_when(alice: Agent) -> None:
    blocked = alice.send(INTENT, metadata=UNREVIEWED)
    passed = alice.send(INTENT, context_id=blocked.context_id)
    waiting = alice.list_tasks(context_id=blocked.context_id, status=TaskState.TASK_STATE_INPUT_REQUIRED)
    assert [task.id for task in waiting.tasks] == [blocked.id]
    later = alice.list_tasks(context_id=blocked.context_id, status_timestamp_after=passed.status.timestamp)
    assert [task.id for task in later.tasks] == [passed.id]
    assert not alice.list_tasks(context_id=blocked.context_id, history_length=0).tasks[0].history


@pytest.mark.parametrize("way", WAYS_1_0, ids=str)
def test_a_task_can_be_had_without_its_history(alice: Agent) -> None:
    task = alice.send(INTENT)
    assert not alice.get(task.id, history_length=0).history


def test_nobody_has_to_wait_for_a_task(alice: Agent) -> None:
    task = alice.send(INTENT, wanted={"return_immediately": True})
    wait_until(lambda: alice.get(task.id).status.state == TaskState.TASK_STATE_COMPLETED, "the task is completed")
    assert result_of(alice.get(task.id))["correlationId"] == task.id


def test_only_what_the_caller_accepts_is_in_the_artifact(alice: Agent) -> None:
    [artifact] = alice.send(INTENT, wanted={"accepted_output_modes": ["text/plain"]}).artifacts
    assert [part.WhichOneof("content") for part in artifact.parts] == ["text"]
    with pytest.raises(ContentTypeNotSupportedError):
        alice.send(INTENT, wanted={"accepted_output_modes": ["image/png"]})


def test_what_is_not_offered_is_refused_as_such(alice: Agent) -> None:
    task = alice.send(INTENT)
    refusals: list[tuple[type[A2AError], Callable[[str], object]]] = [
        (UnsupportedOperationError, alice.subscribe),
        (UnsupportedOperationError, lambda task_id: alice.send(INTENT, task_id=task_id)),
    ]
    for expected, attempt in refusals:
        with pytest.raises(expected):
            attempt(task.id)


def test_push_notifications_are_configured_for_the_tasks_of_the_caller(way: Way, peers: Peers, alice: Agent) -> None:
    task = alice.send(INTENT)
    config = alice.ask_for_pushes(task.id)
    assert (config.task_id, config.id, config.url) == (task.id, "mine", "https://127.0.0.1:1/pushes")
    with agent(way, peers, TOKENS["bob"]) as bob, pytest.raises(TaskNotFoundError):
        bob.ask_for_pushes(task.id)


def test_what_is_over_cannot_be_canceled(alice: Agent) -> None:
    task = alice.send(INTENT)
    with pytest.raises(TaskNotCancelableError):
        alice.cancel(task.id)
    assert alice.get(task.id).status == task.status


def test_the_tasks_of_others_do_not_exist(way: Way, peers: Peers, alice: Agent) -> None:
    task = alice.send(INTENT)
    with agent(way, peers, TOKENS["bob"]) as bob:
        for attempt in (bob.get, bob.cancel, lambda task_id: bob.send(INTENT, task_id=task_id)):
            with pytest.raises(TaskNotFoundError):
                attempt(task.id)


@pytest.mark.parametrize("way", WAYS_1_0, ids=str)
def test_the_tasks_of_others_are_not_listed(way: Way, peers: Peers, alice: Agent) -> None:
    task = alice.send(INTENT)
    with agent(way, peers, TOKENS["bob"]) as bob:
        assert bob.list_tasks(context_id=task.context_id).total_size == 0
        assert task.id not in [found.id for found in bob.list_tasks().tasks]


@pytest.mark.parametrize("token", [None, "nobody-has-this-token"])
def test_a_stranger_learns_only_that_it_must_authenticate(
    way: Way, peers: Peers, alice: Agent, token: str | None
) -> None:
    task = alice.send(INTENT)
    with agent(way, peers, token) as stranger:
        attempts: list[Callable[[], object]] = [
            lambda: stranger.send(INTENT),
            lambda: stranger.send({"not": "a call"}),
            lambda: stranger.stream(INTENT),
            lambda: stranger.get(task.id),
            lambda: stranger.get("no-such-task"),
            lambda: stranger.cancel(task.id),
        ]
        if way.version == "1.0":
            attempts.append(stranger.list_tasks)
        for attempt in attempts:
            with pytest.raises(A2AClientError, match=r"401|UNAUTHENTICATED"):
                attempt()


def test_an_activated_extension_is_said_to_be_active(way: Way, peers: Peers) -> None:
    header = {"1.0": {"a2a-extensions"}, "0.3": {"a2a-extensions", "x-a2a-extensions"}}[way.version]
    with agent(way, peers, activate=True) as alice:
        alice.send(INTENT)
        assert alice.wire.activated == [dict.fromkeys(header, EXTENSION)]


def test_an_extension_that_nobody_activated_is_not_mentioned(alice: Agent) -> None:
    alice.send(INTENT)
    assert alice.wire.activated == [{}]


def test_a_blocked_intent_passes_once_the_conversation_says_what_was_missing(alice: Agent) -> None:
    blocked = alice.send(INTENT, metadata=UNREVIEWED)
    assert blocked.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    [violation] = result_of(blocked)["guardrailStatus"]["violations"]
    assert violation["guardrailId"] == "no-production-without-review"

    passed = alice.send(*REVIEW, context_id=blocked.context_id)
    assert passed.status.state == TaskState.TASK_STATE_COMPLETED
    assert (passed.context_id, passed.id != blocked.id) == (blocked.context_id, True)
    before, after = announced(blocked), announced(passed)
    assert after["metadata"] == {**before["metadata"], "codeReviewCompleted": True}
    assert [(params["intent"], params["stakes"]) for params in (before, after)] == [(INTENT, "high")] * 2
    assert alice.get(blocked.id) == blocked


@pytest.mark.parametrize("way", WAYS_WITH_REFERENCES, ids=str)
def test_a_follow_up_that_only_names_a_task_stays_in_its_conversation(alice: Agent) -> None:
    blocked = alice.send(INTENT, metadata=UNREVIEWED)
    alice.send("Something else", context_id=blocked.context_id)
    passed = alice.send(*REVIEW, reference_task_ids=[blocked.id])
    assert passed.status.state == TaskState.TASK_STATE_COMPLETED
    assert passed.context_id == blocked.context_id


@pytest.mark.parametrize("way", WAYS_1_0, ids=str)
def test_copies_of_the_bridge_lead_the_same_conversations(way: Way, tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    with (
        running(wanted) as app,
        peering(wanted, app.target) as one,
        peering(wanted, app.target) as other,
        agent(way, one) as here,
        agent(way, other) as there,
    ):
        blocked = here.send(INTENT, metadata=UNREVIEWED)
        passed = there.send(*REVIEW, context_id=blocked.context_id)
        assert passed.status.state == TaskState.TASK_STATE_COMPLETED
        assert here.get(passed.id) == passed


def test_a_required_extension_is_required_of_every_call(way: Way, strict_peers: Peers) -> None:
    with agent(way, strict_peers, activate=True) as alice:
        extension = find_extension_by_uri(alice.card, EXTENSION)
        assert extension is not None
        assert extension.required
        task = alice.send(INTENT)
        assert alice.get(task.id) == task
    with agent(way, strict_peers) as alice:
        for attempt in (alice.send, alice.stream, alice.get, alice.cancel):
            with pytest.raises(ExtensionSupportRequiredError):
                attempt(task.id)


@pytest.mark.parametrize("sent", [None, "0.3", "0.9", "1", "2.0", "latest"])
def test_grpc_refuses_other_versions(peers: Peers, sent: str | None) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list_over_grpc(peers, sent)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert decoded(caught.value).reason == "VERSION_NOT_SUPPORTED"
    assert "A2A-Version" in (caught.value.details() or "")


def test_grpc_passes_over_the_patch_number(peers: Peers) -> None:
    assert list_over_grpc(peers, "1.0.7").page_size > 0


def list_over_grpc(peers: Peers, version: str | None) -> ListTasksResponse:
    metadata = [("authorization", f"Bearer {TOKENS['alice']}")]
    if version is not None:
        metadata.append(("a2a-version", version))
    with grpc.insecure_channel(peers.grpc_target) as channel:
        stub = a2a_pb2_grpc.A2AServiceStub(channel)
        found: ListTasksResponse = stub.ListTasks(ListTasksRequest(), metadata=metadata, timeout=TIMEOUT)
        return found


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("message/send", {}),
        ("message/send", {"message": INTENT}),
        ("message/send", {"message": {"role": "user", "parts": [{"kind": "text", "text": INTENT}]}}),
        ("message/send", {"message": {"role": "someone", "messageId": "1", "parts": []}}),
        ("message/stream", {"message": {}}),
        ("tasks/get", {}),
        ("tasks/get", {"id": 5}),
        ("tasks/get", {"id": "1", "historyLength": "all"}),
        ("tasks/cancel", {"task": "1"}),
    ],
)
def test_params_that_0_3_does_not_know_are_invalid_params(peers: Peers, method: str, params: dict[str, Any]) -> None:
    error = post_0_3(peers, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})["error"]
    assert error["code"] == -32602


def post_0_3(peers: Peers, call: Mapping[str, Any]) -> dict[str, Any]:
    """Send a JSON-RPC call as clients of 0.3 do, which name no version."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKENS['alice']}"}
    request = urllib.request.Request(f"{peers.url}/a2a/", json.dumps(call).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        # Operations that stream answer with an event, also where there is nothing but an error.
        found: dict[str, Any] = json.loads(answer.read().removeprefix(b"data: "))
        return found


def test_the_extended_card_lists_every_method_that_its_reader_may_call(peers: Peers) -> None:
    with agent(WAYS[0], peers, TOKENS["alice"]) as alice:
        skills = {skill.id for skill in alice.extended_card().skills}
    assert skills == {method.name for method in contract_methods().values() if method.public and not method.streaming}
