"""Tools of Pydantic AI under guard: a toolset around another one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset
from pydantic_core import to_jsonable_python

from cstp_grpc.agents.frameworks.tool_guard import ApprovalNeeded, ToolCallRefused, ToolGuard


@dataclass
class GuardedToolset(WrapperToolset[AgentDepsT]):
    """A toolset whose tools are called only if the guardrails allow it.

    A refused call is a ToolFailed, which the model reads and which is not retried. With `approvals="ask"` the call is
    deferred for approval: the agent needs DeferredToolRequests among its output types.
    """

    _: KW_ONLY
    tool_guard: ToolGuard

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> Any:
        """Call a tool if it is allowed. Raises Blocked and CstpError if the settings say so."""
        arguments = to_jsonable_python(tool_args, fallback=str)
        guarded = self.tool_guard.guard_call(name, arguments, approved=ctx.tool_call_approved)
        # With these exceptions, a tool reports that it continues elsewhere.
        guarded.suspending = (ApprovalRequired, CallDeferred)
        async with AsyncExitStack() as opened:
            try:
                await opened.enter_async_context(guarded)
            except ApprovalNeeded as needed:
                raise ApprovalRequired(metadata={"question": needed.question}) from needed
            except ToolCallRefused as refused:
                raise ToolFailed(refused.text) from refused
            return await super().call_tool(name, tool_args, ctx, tool)
