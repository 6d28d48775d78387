"""Tools of CrewAI under guard: a tool around another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Final

from crewai.hooks import ToolCallHookContext
from crewai.tools import BaseTool, ToolFailure

from cstp_grpc.agents.frameworks.tool_guard import ApprovalNeeded, GuardedToolCall, ToolCallRefused, ToolGuard

APPROVE: Final = "approve"
"""The word that a person types to approve a tool call."""

DEFAULT_CACHING: Final = BaseTool.model_fields["cache_function"].default

AskPerson = Callable[[BaseTool, Mapping[str, Any], str], bool]
"""Asks a person whether to call a tool with some arguments; the last argument is the question."""


class GuardedCrewTool(BaseTool):
    """A guarded copy of a tool."""

    guarded_tool: BaseTool
    tool_guard: Any
    """A ToolGuard."""
    ask_person: Any
    """An AskPerson."""

    def _run(self, **kwargs: Any) -> Any:
        with ExitStack() as opened:
            try:
                guarded = self._enter(opened, kwargs)
            except ToolCallRefused as refused:
                return ToolFailure(message=refused.text)
            return note_failure(guarded, self.guarded_tool.run(**kwargs))

    async def _arun(self, **kwargs: Any) -> Any:
        async with AsyncExitStack() as opened:
            try:
                guarded = await self._enter_async(opened, kwargs)
            except ToolCallRefused as refused:
                return ToolFailure(message=refused.text)
            return note_failure(guarded, await self.guarded_tool.arun(**kwargs))

    def _enter(self, opened: ExitStack, arguments: dict[str, Any]) -> GuardedToolCall:
        """Check a call, and ask a person if the settings say so. Raises ToolCallRefused, and others by setting."""
        guard: ToolGuard = self.tool_guard
        try:
            return opened.enter_context(guard.guard_call(self.name, arguments))
        except ApprovalNeeded as needed:
            if not self.ask_person(self.guarded_tool, arguments, needed.question):
                raise
            return opened.enter_context(guard.guard_call(self.name, arguments, approved=True))

    async def _enter_async(self, opened: AsyncExitStack, arguments: dict[str, Any]) -> GuardedToolCall:
        """Check a call, and ask a person if the settings say so. Raises ToolCallRefused, and others by setting."""
        guard: ToolGuard = self.tool_guard
        try:
            return await opened.enter_async_context(guard.guard_call(self.name, arguments))
        except ApprovalNeeded as needed:
            # A console has one reader: this blocks the event loop while a person is asked.
            if not self.ask_person(self.guarded_tool, arguments, needed.question):
                raise
            return await opened.enter_async_context(guard.guard_call(self.name, arguments, approved=True))


def ask_on_console(tool: BaseTool, arguments: Mapping[str, Any], question: str) -> bool:
    """Ask the person at the console of the crew, as hooks of CrewAI do."""
    context = ToolCallHookContext(tool.name, dict(arguments), tool.to_structured_tool())
    said: str = context.request_human_input(
        f"{tool.name} {dict(arguments)}\n{question}", default_message=f"Type {APPROVE!r} to call it:"
    )
    return said == APPROVE


def guard_tool(tool: BaseTool, tool_guard: ToolGuard, *, ask_person: AskPerson = ask_on_console) -> GuardedCrewTool:
    """Return a tool that is called only if the guardrails allow it.

    A refused call is a ToolFailure, which the agent reads. With `approvals="ask"`, `ask_person` asks a person, by
    default on the console. CrewAI reports exceptions to the agent, too, unless `tool_failure_policy` is `raise`.
    """

    custom = tool.cache_function is not DEFAULT_CACHING

    def is_cacheable(arguments: Any, result: Any) -> bool:
        return is_no_failure(arguments, result) and bool(tool.cache_function(arguments, result))

    return GuardedCrewTool(
        name=tool.name,
        description=tool.description,
        env_vars=tool.env_vars,
        args_schema=tool.args_schema,
        result_schema=tool.result_schema,
        # CrewAI can only serialise functions of modules; it warns about others.
        cache_function=is_cacheable if custom else is_no_failure,
        result_as_answer=tool.result_as_answer,
        tool_failure_policy=tool.tool_failure_policy,
        guarded_tool=tool,
        tool_guard=tool_guard,
        ask_person=ask_person,
    )


def is_no_failure(_: Any, result: Any) -> bool:
    """Return whether to cache a result: a call that is refused now may be allowed later."""
    return not isinstance(result, ToolFailure)


def note_failure(guarded: GuardedToolCall, result: Any) -> Any:
    """Note that a tool failed if its result says so, and return the result."""
    if isinstance(result, ToolFailure):
        guarded.fail(result.message)
    return result
