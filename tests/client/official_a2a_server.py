"""The server of the official A2A SDK, unchanged: its routes, under Starlette and uvicorn, on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import EventQueue
from a2a.server.request_handlers.default_request_handler_v2 import DefaultRequestHandlerV2
from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.server.tasks.task_updater import TaskUpdater
from a2a.types.a2a_pb2 import AgentCard, AgentInterface
from starlette.applications import Starlette
from starlette.routing import Route

from tests.event_loops import entered_in_thread
from tests.waiting import SECONDS

Behaviour = Callable[[TaskUpdater], Awaitable[None]]


@dataclass
class OfficialServer:
    """What its executor does with each submitted task, and what it received."""

    behave: Behaviour
    received: list[RequestContext] = field(default_factory=list)
    updaters: list[TaskUpdater] = field(default_factory=list)
    tasks: InMemoryTaskStore = field(default_factory=InMemoryTaskStore)
    loop: asyncio.AbstractEventLoop | None = None
    url: str = ""

    def begin(self) -> None:
        """Begin with all tasks."""
        for updater in self.updaters:
            self._run(updater.start_work())

    def lose(self, task_id: str) -> None:
        """Lose a task, as a restart would."""
        self._run(self.tasks.delete(task_id, ServerCallContext()))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        assert self.loop
        asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS)


class SubmittingExecutor(AgentExecutor):
    """Publishes each task as submitted first, as the SDK's samples do."""

    def __init__(self, server: OfficialServer) -> None:
        self._server = server

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message
        self._server.received.append(context)
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        self._server.updaters.append(updater)
        await self._server.behave(updater)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


async def reject(updater: TaskUpdater) -> None:
    """Refuse the task."""
    await updater.reject(updater.new_agent_message([]))


async def work(updater: TaskUpdater) -> None:
    """Begin with the task."""
    await updater.start_work()
    await asyncio.Event().wait()


async def leave_submitted(updater: TaskUpdater) -> None:
    """Neither begin nor refuse."""
    await asyncio.Event().wait()


@contextmanager
def official_server(behave: Behaviour, binding: str = "JSONRPC", version: str = "1.0") -> Iterator[OfficialServer]:
    """Serve for the length of a block."""
    server = OfficialServer(behave)

    @asynccontextmanager
    async def listening() -> AsyncIterator[str]:
        server.loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        card = AgentCard(name="content", description="Files", version="1")
        card.supported_interfaces.append(
            AgentInterface(url=f"{url}/a2a", protocol_binding=binding, protocol_version=version)
        )
        handler = DefaultRequestHandlerV2(SubmittingExecutor(server), server.tasks, card)
        routes: list[Route] = [
            *create_agent_card_routes(card),
            *(
                create_jsonrpc_routes(handler, "/a2a", enable_v0_3_compat=True)
                if binding == "JSONRPC"
                else create_rest_routes(handler, path_prefix="/a2a")
            ),
        ]
        config = uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off", ws="none")
        running = uvicorn.Server(config)
        serving = asyncio.create_task(running.serve([listener]))
        try:
            yield url
        finally:
            running.should_exit = running.force_exit = True
            await serving
            listener.close()

    with entered_in_thread(listening, "official-a2a-server") as server.url:
        yield server
