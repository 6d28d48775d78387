"""A proxy that puts the tools of an MCP server under guard: it runs the server and speaks over standard streams.

Every message passes unchanged, except tool calls: each is checked first, and the proxy answers a call that is not
allowed. The proxy keeps no session, so that it serves every revision of the protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
import mcp_types
from anyio.abc import TaskGroup
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, RequestId

from cstp_grpc.agents.frameworks.mcp_approvals import PersonAsker, is_sessionless
from cstp_grpc.agents.frameworks.tool_guard import ApprovalNeeded, GuardedToolCall, ToolCallRefused, ToolGuard
from cstp_grpc.agents.hooks.hook_texts import describe_failure
from cstp_grpc.common.lazy_dataclass import dataclass

logger = logging.getLogger(__name__)

Send = Callable[[JSONRPCMessage], Awaitable[None]]

CALL_TOOL: Final = "tools/call"
CANCELLED: Final = "notifications/cancelled"
MAX_JUDGED: Final = 32
"""Maximum number of calls that are checked at once; further messages of the host wait. Chosen: more than models call
in parallel."""
COMPLETE: Final = "complete"
"""The type of a final result of a call."""


@dataclass(slots=True)
class HeldCall:
    """A tool call, from its arrival until the server has answered it."""

    scope: anyio.CancelScope
    guarded: GuardedToolCall | None = None
    """The checked call; None until it is allowed."""


class ToolCallProxy:
    """Passes messages between a host and the server that it runs, and checks tool calls."""

    def __init__(
        self, tool_guard: ToolGuard, to_host: Send, to_server: Send, *, server_name: str | None = None
    ) -> None:
        self._guard = tool_guard
        self._to_host = to_host
        self._to_server = to_server
        self._prefix = f"mcp__{server_name}__" if server_name else ""
        self._asker = PersonAsker(to_host)
        self._held: dict[RequestId, HeldCall] = {}
        self._judging = anyio.Semaphore(MAX_JUDGED)

    async def pass_to_server(self, message: JSONRPCMessage | ValueError, tasks: TaskGroup) -> None:
        """Pass on a message of the host; a tool call is checked in a task, and follows once it is allowed."""
        if isinstance(message, ValueError):
            # Not passed on: the server might read a tool call in it that this proxy does not.
            await self._answer_error(None, mcp_types.PARSE_ERROR, "The line is not a message of JSON-RPC")
            return
        match message:
            case JSONRPCRequest(method=method) as request if method == CALL_TOOL:
                await self._hold(request, tasks)
            case JSONRPCNotification(method=method) if method == CALL_TOOL:
                logger.warning("A call of a tool without a usable id is not passed on")
            case JSONRPCNotification(method=method, params=params) if method == CANCELLED:
                await self._cancel(message, (params or {}).get("requestId"), tasks)
            case JSONRPCResponse() | JSONRPCError() as answer if self._asker.take_answer(answer):
                pass
            case _:
                self._asker.note_handshake(message)
                await self._to_server(message)

    def end_input(self) -> None:
        """Note that the host sends nothing more, so that no call waits for its user."""
        self._asker.answer_nobody()

    async def pass_to_host(self, message: JSONRPCMessage | ValueError, tasks: TaskGroup) -> None:
        """Pass on a message of the server; a tool's result follows in a task, once its outcome is recorded."""
        if isinstance(message, ValueError):
            logger.warning("The guarded server wrote a line that is not a message of JSON-RPC")
            return
        guarded = self._take_ended(message.id) if isinstance(message, JSONRPCResponse | JSONRPCError) else None
        if guarded is None:
            await self._to_host(message)
        else:
            tasks.start_soon(self._finish, guarded, message)

    async def abandon_calls(self) -> None:
        """Record an unknown outcome for the calls that the server did not answer before it ended."""
        for request_id, held in list(self._held.items()):
            if held.guarded is None:
                held.scope.cancel()
            elif guarded := self._take_ended(request_id):
                await end_suspended(guarded, "the guarded server ended before it answered")

    def _take_ended(self, request_id: RequestId | None) -> GuardedToolCall | None:
        """Remove and return the call in progress that an answer belongs to, or None."""
        held = None if request_id is None else self._held.get(request_id)
        if held is None or held.guarded is None or request_id is None:
            return None
        del self._held[request_id]
        return held.guarded

    async def _hold(self, request: JSONRPCRequest, tasks: TaskGroup) -> None:
        """Start checking a call; wait first while too many others are being checked."""
        params = request.params or {}
        tool, arguments = params.get("name"), params.get("arguments")
        if arguments is None:
            arguments = {}
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            await self._answer_error(request.id, mcp_types.INVALID_PARAMS, "A tool is called by name with an object")
        elif request.id in self._held:
            await self._answer_error(request.id, mcp_types.INVALID_REQUEST, "The id is that of a call in progress")
        else:
            await self._judging.acquire()
            held = self._held[request.id] = HeldCall(anyio.CancelScope())
            tasks.start_soon(self._judge, held, request, tool, arguments)

    async def _judge(self, held: HeldCall, request: JSONRPCRequest, tool: str, arguments: Mapping[str, Any]) -> None:
        """Check a call, then pass it on or answer it."""
        refusal: dict[str, Any] | None = None
        passed_on, answer = self._asker.take_retry(request)
        with held.scope:
            refusal = await self._begin(held, request, tool, arguments, answer)
        if held.guarded is not None:
            await self._to_server(passed_on)
            return
        self._held.pop(request.id, None)
        # A call that the host cancelled meanwhile is not answered.
        if refusal is not None:
            await self._to_host(JSONRPCResponse(jsonrpc="2.0", id=request.id, result=refusal))

    async def _begin(
        self, held: HeldCall, request: JSONRPCRequest, tool: str, arguments: Mapping[str, Any], answer: bool | None
    ) -> dict[str, Any] | None:
        """Begin a call that is allowed, or return the result that tells the host why it is not."""
        try:
            return await self._begin_if_allowed(held, request, tool, arguments, answer)
        except ToolCallRefused as refused:
            return refused_result(request, refused.text)
        except Exception:
            # Whatever failed here, the call was not checked, and is not passed on.
            logger.exception("A call of the tool %s could not be checked", tool)
            return refused_result(request, describe_failure("the proxy failed; its log says more"))

    async def _begin_if_allowed(
        self, held: HeldCall, request: JSONRPCRequest, tool: str, arguments: Mapping[str, Any], answer: bool | None
    ) -> dict[str, Any] | None:
        """Begin a call, or return the result that asks a person. Raises ToolCallRefused."""
        try:
            held.guarded = await self._enter(tool, arguments, approved=answer is True)
            return None
        except ApprovalNeeded as needed:
            if answer is False:
                raise
            unapproved = needed
        finally:
            # A person may take long; other calls are checked meanwhile.
            self._judging.release()
        asked = await self._asker.ask(request, unapproved.question)
        if isinstance(asked, dict):
            return asked
        if not asked:
            raise unapproved
        held.guarded = await self._enter(tool, arguments, approved=True)
        return None

    async def _enter(self, tool: str, arguments: Mapping[str, Any], *, approved: bool) -> GuardedToolCall:
        return await self._guard.guard_call(self._prefix + tool, arguments, approved=approved).__aenter__()

    async def _cancel(self, message: JSONRPCMessage, request_id: Any, tasks: TaskGroup) -> None:
        if not isinstance(request_id, str | int):
            await self._to_server(message)
            return
        held = self._held.get(request_id)
        if held is not None and held.guarded is None:
            held.scope.cancel()
            return
        await self._to_server(message)
        if guarded := self._take_ended(request_id):
            tasks.start_soon(end_suspended, guarded, "the host cancelled the call")

    async def _finish(self, guarded: GuardedToolCall, answer: JSONRPCMessage) -> None:
        note_outcome(guarded, answer)
        await guarded.__aexit__(None, None, None)
        await self._to_host(answer)

    async def _answer_error(self, request_id: RequestId | None, code: int, message: str) -> None:
        error = mcp_types.ErrorData(code=code, message=message)
        await self._to_host(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))


async def end_suspended(guarded: GuardedToolCall, notes: str) -> None:
    guarded.suspend(notes)
    await guarded.__aexit__(None, None, None)


def note_outcome(guarded: GuardedToolCall, answer: JSONRPCMessage) -> None:
    """Note how a call ended, by the answer of the server."""
    if isinstance(answer, JSONRPCError):
        guarded.fail(answer.error.message)
    elif isinstance(answer, JSONRPCResponse):
        result = answer.result
        if result.get("isError"):
            guarded.fail(text_of_result(result))
        elif "task" in result or result.get("resultType", COMPLETE) != COMPLETE:
            guarded.suspend("the server answered that it has not ended")


def text_of_result(result: Mapping[str, Any]) -> str:
    """Return the first text in a tool's result, whose shape is not validated; empty if it has no text."""
    content = result.get("content")
    blocks = content if isinstance(content, list) else []
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    return next((text for text in texts if isinstance(text, str)), "")


def refused_result(request: JSONRPCRequest, text: str) -> dict[str, Any]:
    """Return the result of a tool that was not called, as the model reads it."""
    result = {"content": [{"type": "text", "text": text}], "isError": True}
    return {**result, "resultType": COMPLETE} if is_sessionless(request) else result
