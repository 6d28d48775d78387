"""A remote liaison agent: an A2A agent made with the official SDK, which receives contexts and answers in the session.

It listens on A2A_PORT of this machine and accepts only messages with the bearer token A2A_TOKEN. CSTP_TARGET is the
address of the server, CSTP_TOKEN the agent's token there.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass

from a2a.helpers import get_data_parts, new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH, TransportProtocol
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError, TaskNotCancelableError
from aiohttp import web
from google.protobuf import json_format

from cstp_grpc.client import CstpClient, Liaison
from cstp_grpc.contract.errors import CstpError

HOST = "127.0.0.1"
CALL_SECONDS = 10.0


def main() -> None:
    """Serve the agent until SIGINT or SIGTERM."""
    port = int(os.environ["A2A_PORT"])
    with CstpClient(os.environ["CSTP_TARGET"], os.environ["CSTP_TOKEN"], timeout=CALL_SECONDS) as client:
        endpoint = Endpoint(InsightsAgent(client.liaison), card(f"http://{HOST}:{port}"), os.environ["A2A_TOKEN"])
        web.run_app(
            endpoint.application(),
            host=HOST,
            port=port,
            print=lambda _: print("ready as an A2A agent, liaison_insights"),
        )


class InsightsAgent(AgentExecutor):
    """Makes a task from each context that it receives, and answers in the session of the context."""

    def __init__(self, liaison: Liaison) -> None:
        self._liaison = liaison

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Accept a context, for which the server waits, then answer."""
        assert context.message is not None
        task = new_task_from_user_message(context.message)
        handover = handover_in(context.message)
        if handover is None:
            # The first event must tell this to the server.
            task.status.state = a2a_pb2.TaskState.TASK_STATE_REJECTED
            await event_queue.enqueue_event(task)
            return
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        text = said_of(handover.sales)
        try:
            await asyncio.to_thread(self._answer, handover, text)
        except CstpError as error:
            print(error)
            await updater.failed()
            return
        await updater.add_artifact([new_text_part(text)])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Refuse, since an answer cannot be taken back."""
        raise TaskNotCancelableError

    def _answer(self, handover: Handover, text: str) -> None:
        """Answer in a session and return it to the guide. Raises CstpError.

        Contexts are delivered at least once: the answer has the key of its share, and a session that has continued is
        not changed.
        """
        session = self._liaison.get_session(handover.session_id)
        types = ["liaison_agent_activated", "returned_to_guide"]
        *_, last = self._liaison.list_events(chat_session_id=session.id, types=types)
        if "share_id" not in last.data or last.data["share_id"] != handover.share_id:
            print(f"{session.id} has gone on")
            return
        print(f"sales of {', '.join(sorted(handover.sales))}")
        self._liaison.append_message(session.id, text, role="assistant", message_id=handover.share_id)
        self._liaison.return_to_guide(session.id, reason="answered", version=session.version)


@dataclass(frozen=True, slots=True)
class Handover:
    """The context that the server sends with a session."""

    session_id: str
    share_id: str
    sales: Mapping[str, float]


def handover_in(message: a2a_pb2.Message) -> Handover | None:
    """Return the handover in a message; None if the agent cannot answer it."""
    match get_data_parts(message.parts):
        case [{"chat_session_id": str(session), "share_id": str(share), "shared_context": {"sales": dict(sales)}}]:
            return Handover(session, share, sales)
    return None


def said_of(sales: Mapping[str, float]) -> str:
    """Return the agent's answer."""
    best = max(sales, key=lambda region: sales[region])
    return f"{best.capitalize()} sells best: {sales[best]:g} of {sum(sales.values()):g}."


def card(url: str) -> a2a_pb2.AgentCard:
    """Return the agent's card."""
    bearer = a2a_pb2.HTTPAuthSecurityScheme(scheme="Bearer")
    return a2a_pb2.AgentCard(
        name="insights",
        description="Answers questions on sales",
        version="1.0.0",
        supported_interfaces=[
            a2a_pb2.AgentInterface(url=url, protocol_binding=TransportProtocol.HTTP_JSON.value, protocol_version="1.0")
        ],
        capabilities=a2a_pb2.AgentCapabilities(),
        security_schemes={"bearer": a2a_pb2.SecurityScheme(http_auth_security_scheme=bearer)},
        security_requirements=[a2a_pb2.SecurityRequirement(schemes={"bearer": a2a_pb2.StringList()})],
        default_input_modes=["application/json"],
        default_output_modes=["text/plain"],
        skills=[
            a2a_pb2.AgentSkill(
                id="sales", name="Sales", description="Says which region sells best", tags=["sales", "insights"]
            )
        ],
    )


class Endpoint:
    """Serves an agent by A2A over HTTP+JSON.

    The SDK also has routes for Starlette (`a2a-sdk[http-server]`); both use the same request handler.
    """

    def __init__(self, agent: AgentExecutor, card: a2a_pb2.AgentCard, token: str) -> None:
        self._card = card
        self._handler = DefaultRequestHandler(agent, InMemoryTaskStore(), card)
        self._authorization = f"Bearer {token}".encode()

    def application(self) -> web.Application:
        """Return an application that serves the card to everyone and accepts messages with the token."""
        app = web.Application()
        app.router.add_get(AGENT_CARD_WELL_KNOWN_PATH, self._show_card)
        app.router.add_post("/message:send", self._take_message)
        app.on_cleanup.append(self._close)
        return app

    async def _show_card(self, request: web.Request) -> web.Response:
        return web.json_response(json_format.MessageToDict(self._card))

    async def _take_message(self, request: web.Request) -> web.Response:
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), self._authorization):
            raise web.HTTPUnauthorized
        try:
            message = json_format.Parse(await request.text(), a2a_pb2.SendMessageRequest())
            task = await self._handler.on_message_send(message, ServerCallContext())
        except (A2AError, json_format.ParseError) as error:
            payload = build_rest_error_payload(error)
            return web.json_response(payload, status=payload["error"]["code"])
        assert isinstance(task, a2a_pb2.Task), "the agent makes one of each message"
        return web.json_response(json_format.MessageToDict(a2a_pb2.SendMessageResponse(task=task)))

    async def _close(self, app: web.Application) -> None:
        await self._handler.aclose()


if __name__ == "__main__":
    main()
