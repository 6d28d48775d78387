"""Tools of the Microsoft Agent Framework, the successor of AutoGen, under guard: a function middleware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from agent_framework import (
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    MiddlewareFailure,
    MiddlewareTermination,
)

from cstp_grpc.agents.frameworks.tool_guard import ApprovalNeeded, GuardedToolCall, ToolCallRefused, ToolGuard
from cstp_grpc.client import Blocked
from cstp_grpc.contract.errors import CstpError


class GuardFunctionMiddleware(FunctionMiddleware):
    """Checks each call of a function before the function is called.

    A refused call has the refusal as its result. With `approvals="ask"` the run ends with a request that the caller
    approves, like functions that always require approval. A run raises a MiddlewareFailure that was caused by Blocked
    or a CstpError: the framework reports other exceptions to the model.
    """

    def __init__(self, tool_guard: ToolGuard) -> None:
        self._guard = tool_guard

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Call a function if it is allowed. Raises MiddlewareFailure if the settings say so."""
        async with AsyncExitStack() as opened:
            try:
                await opened.enter_async_context(self._guarded(context))
            except ApprovalNeeded as needed:
                context.result = approval_request(context, needed)
                raise MiddlewareTermination("A person is asked") from needed
            except ToolCallRefused as refused:
                context.result = refused.text
                return
            except (Blocked, CstpError) as cause:
                raise MiddlewareFailure(str(cause)) from cause
            await call_next()

    def _guarded(self, context: FunctionInvocationContext) -> GuardedToolCall:
        arguments = context.arguments
        stated = arguments if isinstance(arguments, Mapping) else arguments.model_dump(mode="json")
        # The framework has compared the approval with the call: it approves no other call.
        answer = context.metadata.get("approval_response")
        approved = isinstance(answer, Content) and answer.approved is True
        return self._guard.guard_call(context.function.name, stated, approved=approved)


def approval_request(context: FunctionInvocationContext, needed: ApprovalNeeded) -> Content:
    """Return the request with which the caller of a run is asked to approve a call."""
    call_id: str = context.metadata["call_id"]
    occurrence: str = context.metadata.get("function_call_occurrence_id", call_id)
    arguments: Any = context.arguments
    call = Content.from_function_call(call_id, context.function.name, arguments=dict(arguments), id=occurrence)
    return Content.from_function_approval_request(
        id=occurrence, function_call=call, additional_properties={"question": needed.question}
    )
