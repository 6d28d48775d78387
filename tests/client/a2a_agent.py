"""A real A2A agent of the official SDK on loopback, behind a small HTTP application."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from a2a.compat.v0_3 import conversions
from a2a.compat.v0_3 import types as types_v0_3
from a2a.compat.v0_3.request_handler import RequestHandler03
from a2a.helpers import new_task_from_user_message, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import EventQueue
from a2a.server.request_handlers.default_request_handler_v2 import DefaultRequestHandlerV2
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.tasks import InMemoryTaskStore
from a2a.types.a2a_pb2 import AgentCard, AgentInterface, Message, SendMessageRequest, SendMessageResponse, TaskState
from a2a.utils.errors import A2AError
from aiohttp import web
from google.protobuf import json_format

from tests.event_loops import entered_in_thread

Play = Callable[[RequestContext, EventQueue], Awaitable[None]]
Raw = Callable[[web.Request], Awaitable[web.StreamResponse]]

CARD = "/.well-known/agent-card.json"
SECURE = "application/json"


async def take(context: RequestContext, queue: EventQueue) -> None:
    """Make a task of the message, and go on working."""
    assert context.message
    task = new_task_from_user_message(context.message)
    task.status.state = TaskState.TASK_STATE_WORKING
    await queue.enqueue_event(task)


async def reply(context: RequestContext, queue: EventQueue) -> None:
    """Answer with a message."""
    await queue.enqueue_event(new_text_message("Thank you", context_id=context.context_id))


def ending(state: TaskState, text: str | None = None) -> Play:
    """Return a play that makes a task of the message which is in that state at once."""

    async def play(context: RequestContext, queue: EventQueue) -> None:
        assert context.message
        task = new_task_from_user_message(context.message)
        task.status.state = state
        if text is not None:
            task.status.message.CopyFrom(new_text_message(text, context_id=task.context_id, task_id=task.id))
        await queue.enqueue_event(task)

    return play


def raising(error: Exception) -> Play:
    """Return a play that fails."""

    async def play(context: RequestContext, queue: EventQueue) -> None:
        raise error

    return play


class Executor(AgentExecutor):
    """Does what the agent's play says."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._agent.play(context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


@dataclass
class Agent:
    """What the agent does, and what it saw; `raws` answer paths in the place of the SDK."""

    play: Play = take
    raws: dict[str, Raw] = field(default_factory=dict)
    legacy: bool = False
    """Whether the card is of A2A 0.3."""
    interfaces: list[AgentInterface] = field(default_factory=list)
    """What the card names, where it is not the interfaces of the agent."""
    binding: str = "JSONRPC"
    messages: list[Message] = field(default_factory=list)
    blocking: list[bool] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    url: str = ""

    def card(self) -> AgentCard:
        card = AgentCard(name="content", description="Files", version="1")
        card.default_input_modes.append(SECURE)
        card.default_output_modes.append(SECURE)
        path = "/rpc" if self.binding == "JSONRPC" else "/rest"
        version = "0.3.0" if self.legacy else "1.0"
        own = AgentInterface(url=self.url + path, protocol_binding=self.binding, protocol_version=version)
        card.supported_interfaces.extend(self.interfaces or [own])
        return card

    def card_json(self) -> Any:
        if not self.legacy:
            return json_format.MessageToDict(self.card())
        return conversions.to_compat_agent_card(self.card()).model_dump(by_alias=True, exclude_none=True, mode="json")


class Application:
    """Serves an agent over HTTP."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._handler = DefaultRequestHandlerV2(Executor(agent), InMemoryTaskStore(), agent.card())
        self._legacy = RequestHandler03(self._handler)

    def build(self) -> web.Application:
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self._agent.headers.append({name.lower(): value for name, value in request.headers.items()})
        self._agent.bodies.append(await request.read())
        if raw := self._agent.raws.get(request.path):
            return await raw(request)
        if request.path.endswith(".json") and request.method == "GET":
            return web.json_response(self._agent.card_json())
        if request.path == "/rpc":
            return web.json_response(await self._answer(await request.json()))
        if request.path == "/rest/message:send":
            return await self._rest(await request.json())
        raise web.HTTPNotFound

    async def _answer(self, call: Mapping[str, Any]) -> Any:
        try:
            if call["method"] == "message/send":
                result = await self._send_0_3(call)
            else:
                assert call["method"] == "SendMessage", call["method"]
                result = await self._send(call["params"])
        except A2AError as error:
            return build_error_response(call["id"], error)
        return {"jsonrpc": "2.0", "id": call["id"], "result": result}

    async def _rest(self, body: Mapping[str, Any]) -> web.Response:
        try:
            return web.json_response(await self._send(body))
        except A2AError:
            info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "INVALID_PARAMS"}
            return web.json_response({"error": {"message": "not so", "details": [info]}}, status=400)

    async def _send(self, params: Mapping[str, Any]) -> Any:
        request = json_format.ParseDict(dict(params), SendMessageRequest())
        self._saw(request)
        answer = await self._handler.on_message_send(request, ServerCallContext())
        kind = "message" if isinstance(answer, Message) else "task"
        return json_format.MessageToDict(SendMessageResponse(**{kind: answer}))  # type: ignore[arg-type]

    async def _send_0_3(self, call: Mapping[str, Any]) -> Any:
        request = types_v0_3.SendMessageRequest.model_validate(call)
        self._saw(conversions.to_core_send_message_request(request))
        answer = await self._legacy.on_message_send(request, ServerCallContext())
        return answer.model_dump(by_alias=True, exclude_none=True, mode="json")

    def _saw(self, request: SendMessageRequest) -> None:
        self._agent.messages.append(request.message)
        self._agent.blocking.append(not request.configuration.return_immediately)


@contextmanager
def running_agent(
    agent: Agent, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, port: int = 0
) -> Iterator[Agent]:
    """Run an agent in a thread of its own for the length of a block; its `url` says where."""

    @asynccontextmanager
    async def listening() -> AsyncIterator[int]:
        runner = web.AppRunner(Application(agent).build(), shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, ssl_context=tls).start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    with entered_in_thread(listening, "a2a-agent") as found:
        agent.url = f"{'https' if tls else 'http'}://{host}:{found}"
        yield agent


def body(content: Any, status: int = 200, **headers: str) -> Raw:
    """Return a handler that answers bytes, or anything else as JSON."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=data, status=status, content_type="application/json", headers=headers)

    return answer
