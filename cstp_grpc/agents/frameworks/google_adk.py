"""Tools of Google's Agent Development Kit under guard: a plugin for a runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from google.adk.plugins import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from cstp_grpc.agents.frameworks.tool_guard import ApprovalNeeded, GuardedToolCall, ToolCallRefused, ToolGuard


class GuardPlugin(BasePlugin):
    """Checks each tool call of all agents of a runner before the tool is called.

    A refused call has the refusal as its `error`. With `approvals="ask"` the run ends with a request to confirm it.
    A run raises a RuntimeError that was caused by Blocked or a CstpError, because the runner wraps exceptions.
    """

    def __init__(self, tool_guard: ToolGuard, name: str = "cstp_guard") -> None:
        super().__init__(name)
        self._guard = tool_guard
        self._begun: WeakKeyDictionary[ToolContext, GuardedToolCall] = WeakKeyDictionary()

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Return the refusal of a call, or None if it is allowed. May raise Blocked and CstpError, by settings."""
        answer = tool_context.tool_confirmation
        approved = answer is not None and answer.confirmed
        try:
            guarded = await self._guard.guard_call(tool.name, tool_args, approved=approved).__aenter__()
        except ToolCallRefused as refused:
            if isinstance(refused, ApprovalNeeded) and answer is None:
                tool_context.request_confirmation(hint=refused.question)
                tool_context.actions.skip_summarization = True
            return {"error": refused.text}
        self._begun[tool_context] = guarded
        return None

    async def after_tool_callback(self, *, tool: BaseTool, tool_context: ToolContext, result: Any, **_: Any) -> None:
        if guarded := self._begun.pop(tool_context, None):
            actions = tool_context.actions
            if actions.requested_tool_confirmations or actions.requested_auth_configs:
                guarded.suspend("The tool waits for a person")
            elif tool.is_long_running and not result:
                guarded.suspend("The tool goes on elsewhere")
            elif isinstance(result, Mapping) and result.get("error"):
                guarded.fail(str(result["error"]))
            await guarded.__aexit__(None, None, None)

    async def on_tool_error_callback(self, *, tool_context: ToolContext, error: BaseException, **_: Any) -> None:
        if guarded := self._begun.pop(tool_context, None):
            await guarded.__aexit__(type(error), error, error.__traceback__)
