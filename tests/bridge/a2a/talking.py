"""Talking to conversations directly, without a transport of A2A."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec

import grpc
import uvloop
from a2a.types.a2a_pb2 import Message, Part, SendMessageRequest, Task, TaskState
from google.protobuf import any_pb2, json_format
from google.protobuf.message import Message as ProtoMessage
from google.rpc import error_details_pb2, status_pb2

from bridge.a2a.agent_card import AdvertisedPorts, AgentCardBuilder
from bridge.a2a.call_context import A2aAccessCheck, A2aCallContext, parse_extensions
from bridge.a2a.request_handler import A2aRequestHandler
from bridge.a2a.task_store import GrpcTaskStore
from bridge.http_request import AccessCheck
from bridge.upstream import Forwarder, open_channel
from cstp_grpc.contract.methods import RpcMethod, contract_methods
from cstp_grpc.platform.config import Settings
from tests.harness import TOKENS

P = ParamSpec("P")

URI = "urn:cstp:extension:v1"
SECONDS = 30.0
TIMEOUT = 10.0
ADDRESS = "https://agent.example.com"
REQUEST_ID = "a-request-id"

COMPLETED = TaskState.TASK_STATE_COMPLETED
REJECTED = TaskState.TASK_STATE_REJECTED
INPUT_REQUIRED = TaskState.TASK_STATE_INPUT_REQUIRED
FAILED = TaskState.TASK_STATE_FAILED
CANCELED = TaskState.TASK_STATE_CANCELED
SUBMITTED = TaskState.TASK_STATE_SUBMITTED
WORKING = TaskState.TASK_STATE_WORKING

READY = {"affectsProduction": True, "codeReviewCompleted": True, "ciPassing": True}
"""What the default guardrails want to hear of a change in production."""


def asynchronous(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine function, with a bound on its time, on the kind of loop that the bridge runs on."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        # It takes other arguments than asyncio's own.
        uvloop.run(asyncio.wait_for(test(*args, **kwargs), 2 * SECONDS))

    return run


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Return when a condition holds; fail, saying what was waited for, when it does not in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SECONDS
    while not await condition():
        assert loop.time() < deadline, f"not within {SECONDS:g} seconds: {what}"
        await asyncio.sleep(0.01)


def context(who: str | None = "alice", *extensions: str) -> A2aCallContext:
    """Return the context of a call by one of the harness's agents, or by nobody."""
    token = [("authorization", f"Bearer {TOKENS.get(who, who)}")] if who else []
    return A2aCallContext([*token, ("x-request-id", REQUEST_ID)], ADDRESS, parse_extensions(extensions), "1.0")


def message(*parts: str | dict[str, Any] | list[Any], given: object = None, **members: Any) -> Message:
    """Return a message of text parts and data parts; `given` is what its metadata says under our extension."""
    found = [{"text": part} if isinstance(part, str) else {"data": part} for part in parts]
    content = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": found, **members}
    if given is not None:
        content["metadata"] = {URI: given}
    return json_format.ParseDict(content, Message())


def sending(*parts: str | dict[str, Any], configuration: dict[str, Any] | None = None, **members: Any) -> Any:
    """Return the request that sends a message."""
    request = SendMessageRequest(message=message(*parts, **members))
    if configuration:
        json_format.ParseDict(configuration, request.configuration)
    return request


def calling(method: str, /, **params: Any) -> dict[str, Any]:
    """Return the data part that is a call."""
    return {"method": method, "params": params}


def data_of(part: Part) -> Any:
    """Return the JSON of a data part."""
    return json_format.MessageToDict(part.data)


def result_of(task: Task) -> Any:
    """Return the result that a task's artifact holds."""
    return data_of(task.artifacts[0].parts[0])


def error_of(task: Task) -> Any:
    """Return the error that a failed task tells."""
    return data_of(task.status.message.parts[1])["error"]


def announced(task: Task) -> Any:
    """Return the params of the announcement that a task is about."""
    return json_format.MessageToDict(task.metadata)[URI]["params"]


def within(settings: Settings, seconds: float) -> Settings:
    """Return settings by which a call may take so many seconds."""
    return settings.model_copy(update={"server": settings.server.model_copy(update={"timeout_seconds": seconds})})


@asynccontextmanager
async def conversing(target: str, settings: Settings, calls: str | None = None) -> AsyncIterator[A2aRequestHandler]:
    """Yield conversations that keep their tasks at `target`, and call methods there too or at `calls`."""
    async with open_channel(target) as channel, open_channel(calls or target) as other:
        contract = contract_methods()
        forwarder = Forwarder(other, contract, TIMEOUT, settings.cstp.guardrails.max_values)
        cards = AgentCardBuilder(settings, "1.2.3", contract.values(), AdvertisedPorts(50051))
        conversations = A2aRequestHandler(
            forwarder, A2aAccessCheck(AccessCheck(forwarder)), GrpcTaskStore(channel, TIMEOUT), cards, settings
        )
        yield conversations
        await conversations.aclose()


@dataclass
class Slow:
    """A server whose methods answer an empty message, or an error, once they may."""

    target: str = ""
    reason: str = ""
    """Why it fails; empty where it does not."""
    answers: dict[str, ProtoMessage] = field(default_factory=dict)
    """What methods answer instead, by their JSON-RPC names."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    may: asyncio.Event = field(default_factory=asyncio.Event)

    def handler(self, method: RpcMethod) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of a method."""

        async def answer(_: ProtoMessage, context: grpc.aio.ServicerContext[Any, Any]) -> ProtoMessage:
            self.asked.set()
            await asyncio.wait_for(self.may.wait(), SECONDS)
            if self.reason:
                await context.abort(grpc.StatusCode.UNKNOWN, "It failed", status_metadata(self.reason))
            return self.answers.get(method.name) or method.response()

        return grpc.unary_unary_rpc_method_handler(answer, method.request.FromString, method.response.SerializeToString)


def status_metadata(reason: str) -> tuple[tuple[str, bytes]]:
    """Return the trailing metadata of a failure for a reason."""
    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="cstp"))
    status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message="It failed", details=[packed])
    return (("grpc-status-details-bin", status.SerializeToString()),)


@asynccontextmanager
async def slow_server() -> AsyncIterator[Slow]:
    """Run a server that answers when it may."""
    slow = Slow()
    server = grpc.aio.server()
    for service in {method.service for method in contract_methods().values()}:
        handlers = {
            method.rpc: slow.handler(method) for method in contract_methods().values() if method.service == service
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    slow.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield slow
    finally:
        slow.may.set()
        await server.stop(SECONDS)
