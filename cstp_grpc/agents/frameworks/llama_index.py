"""Tools of LlamaIndex under guard: a function tool around another one."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from llama_index.core.tools import FunctionTool, ToolOutput
from workflows.runtime.types.results import WaitingForEvent

from cstp_grpc.agents.frameworks.tool_guard import ApprovalNeeded, GuardedToolCall, ToolGuard

AskPerson = Callable[[FunctionTool, Mapping[str, Any], str], bool]
"""Asks a person whether to call a tool with some arguments; the last argument is the question."""


def guard_tool(tool: FunctionTool, tool_guard: ToolGuard, *, ask_person: AskPerson | None = None) -> FunctionTool:
    """Return a tool whose function is called only if the guardrails allow it.

    A refused call raises, and agents tell the model why; they report Blocked and CstpError to it, too. With
    `approvals="ask"`, `ask_person` asks a person, in another thread if the agent is asynchronous.
    """
    # The functions are wrapped, not `call`, since some agents call the functions.
    function, name = tool.real_fn, tool.metadata.get_name()

    def begin(arguments: Mapping[str, Any], *, approved: bool = False) -> GuardedToolCall:
        guarded = tool_guard.guard_call(name, arguments, approved=approved)
        guarded.suspending = (WaitingForEvent,)
        return guarded

    def is_approved(arguments: Mapping[str, Any], question: str) -> bool:
        return ask_person is not None and ask_person(tool, arguments, question)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = name_arguments(tool, args, kwargs)
        with ExitStack() as opened:
            try:
                guarded = opened.enter_context(begin(arguments))
            except ApprovalNeeded as needed:
                if not is_approved(arguments, needed.question):
                    raise
                guarded = opened.enter_context(begin(arguments, approved=True))
            return note_failure(guarded, tool.fn(*args, **kwargs))

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        arguments = name_arguments(tool, args, kwargs)
        async with AsyncExitStack() as opened:
            try:
                guarded = await opened.enter_async_context(begin(arguments))
            except ApprovalNeeded as needed:
                if not await asyncio.to_thread(is_approved, arguments, needed.question):
                    raise
                guarded = await opened.enter_async_context(begin(arguments, approved=True))
            return note_failure(guarded, await tool.async_fn(*args, **kwargs))

    return FunctionTool(
        fn=None if inspect.iscoroutinefunction(function) else call,
        async_fn=call_async,
        metadata=tool.metadata,
        callback=tool._callback,
        async_callback=tool._async_callback,
        partial_params=tool.partial_params,
    )


def name_arguments(tool: FunctionTool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, without the workflow's context. Raises TypeError for wrong arguments."""
    bound = inspect.signature(tool.real_fn).bind(*args, **kwargs)
    named = {name: value for name, value in bound.arguments.items() if name != tool.ctx_param_name}
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(parameter.name, {})
    return named


def note_failure(guarded: GuardedToolCall, result: Any) -> Any:
    """Note that a tool failed if its result says so, and return the result."""
    if isinstance(result, ToolOutput) and result.is_error:
        guarded.fail(result.content)
    return result
