"""Tools of LangChain and LangGraph under guard: a middleware for agents, and a wrapper for single tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command, interrupt

from cstp_grpc.agents.frameworks.tool_guard import ApprovalNeeded, GuardedToolCall, ToolCallRefused, ToolGuard

T = TypeVar("T")
R = TypeVar("R")
ToolAnswer: TypeAlias = ToolMessage | Command[Any]

APPROVE: Final = "approve"
"""The type of the decision with which a person approves a tool call."""
FAILED: Final = "error"
"""The message status of a tool that failed, or was not called."""


class GuardMiddleware(AgentMiddleware[Any, Any, Any]):
    """Checks each tool call of an agent before the tool is called.

    A refused call is answered with a ToolMessage of the status `error`. With `approvals="ask"` the run is interrupted
    as by HumanInTheLoopMiddleware, with one interrupt for each call, and resumed by a decision such as
    `{"type": "approve"}`. Pass the methods to a LangGraph ToolNode as its `wrap_tool_call` and `awrap_tool_call`.
    """

    def __init__(self, tool_guard: ToolGuard) -> None:
        super().__init__()
        self._guard = tool_guard

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolAnswer]) -> ToolAnswer:
        """Answer a tool call: call the tool if it is allowed. Raises Blocked and CstpError if the settings say so."""
        return self._call_to_judge(request).run(lambda: handler(request))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolAnswer]]
    ) -> ToolAnswer:
        """Answer a tool call: call the tool if it is allowed. Raises Blocked and CstpError if the settings say so."""
        return await self._call_to_judge(request).run_async(lambda: handler(request))

    def _call_to_judge(self, request: ToolCallRequest) -> CallToJudge[ToolMessage]:
        call = request.tool_call
        return CallToJudge(self._guard, call["name"], call["args"], call["id"], refused_message)


class GuardedTool(BaseTool):
    """A guarded copy of a tool."""

    guarded_tool: BaseTool
    tool_guard: Any
    """A ToolGuard."""

    def run(self, tool_input: str | dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Call the tool if it is allowed. Raises Blocked and CstpError if the settings say so."""
        return self._call_to_judge(tool_input, kwargs).run(lambda: self.guarded_tool.run(tool_input, *args, **kwargs))

    async def arun(self, tool_input: str | dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Call the tool if it is allowed. Raises Blocked and CstpError if the settings say so."""
        call = self._call_to_judge(tool_input, kwargs)
        return await call.run_async(lambda: self.guarded_tool.arun(tool_input, *args, **kwargs))

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a GuardedTool is called by run and arun")

    def _call_to_judge(
        self, tool_input: str | dict[str, Any], options: Mapping[str, Any]
    ) -> CallToJudge[ToolMessage | str]:
        stated = tool_input if isinstance(tool_input, dict) else {"input": tool_input}
        # LangGraph adds arguments that are not from the model, such as the state of the graph. They are recognised as
        # LangChain does for its callbacks, and not by `args`, since tools may take arguments that `args` does not name.
        if isinstance(tool_input, dict):
            stated = self.guarded_tool._filter_injected_args(tool_input)
        return CallToJudge(self.tool_guard, self.name, stated, options.get("tool_call_id"), refused_answer)


def guard_tool(tool: BaseTool, tool_guard: ToolGuard) -> GuardedTool:
    """Return a tool that is called only if the guardrails allow it, for agents without middleware.

    A refused call is answered with a ToolMessage of the status `error`, or with its text if the caller is not a
    model. `approvals="ask"` is for tools that are called in a graph.
    """
    return GuardedTool(
        name=tool.name,
        description=tool.description,
        args_schema=tool.args_schema,
        return_direct=tool.return_direct,
        tags=tool.tags,
        metadata=tool.metadata,
        extras=tool.extras,
        guarded_tool=tool,
        tool_guard=tool_guard,
    )


class CallToJudge(Generic[R]):
    """A tool call, and how LangChain answers it."""

    def __init__(
        self,
        tool_guard: ToolGuard,
        tool: str,
        arguments: Mapping[str, Any],
        call_id: str | None,
        answer_refusal: Callable[[str, str, str | None], R],
    ) -> None:
        self._guard = tool_guard
        self._tool = tool
        self._arguments = arguments
        self._call_id = call_id
        self._answer_refusal = answer_refusal

    def run(self, action: Callable[[], T]) -> T | R:
        """Return the tool's answer, or the reason why it was not called."""
        try:
            return self._run(action, approved=False)
        except ApprovalNeeded as needed:
            if not self._is_approved(needed):
                return self._refuse(needed)
            return self._run(action, approved=True)

    async def run_async(self, action: Callable[[], Awaitable[T]]) -> T | R:
        """Return the tool's answer, or the reason why it was not called."""
        try:
            return await self._run_async(action, approved=False)
        except ApprovalNeeded as needed:
            if not self._is_approved(needed):
                return self._refuse(needed)
            return await self._run_async(action, approved=True)

    def _run(self, action: Callable[[], T], *, approved: bool) -> T | R:
        try:
            with self._guarded(approved=approved) as guarded:
                return note_failure(guarded, action())
        except ApprovalNeeded:
            raise
        except ToolCallRefused as refusal:
            return self._refuse(refusal)

    async def _run_async(self, action: Callable[[], Awaitable[T]], *, approved: bool) -> T | R:
        try:
            async with self._guarded(approved=approved) as guarded:
                return note_failure(guarded, await action())
        except ApprovalNeeded:
            raise
        except ToolCallRefused as refusal:
            return self._refuse(refusal)

    def _guarded(self, *, approved: bool) -> GuardedToolCall:
        guarded = self._guard.guard_call(self._tool, self._arguments, approved=approved)
        # An interrupt within the tool: LangGraph calls the tool again when the run is resumed.
        guarded.suspending = (GraphBubbleUp,)
        return guarded

    def _is_approved(self, needed: ApprovalNeeded) -> bool:
        """Interrupt the run, and return the person's decision once the run is resumed."""
        asked = {
            "type": "tool_approval",
            "tool_call_id": self._call_id,
            "name": self._tool,
            "args": dict(self._arguments),
            "description": needed.question,
        }
        decision = interrupt(asked)
        return isinstance(decision, Mapping) and decision.get("type") == APPROVE

    def _refuse(self, refusal: ToolCallRefused) -> R:
        return self._answer_refusal(refusal.text, self._tool, self._call_id)


def refused_message(text: str, tool: str, call_id: str | None) -> ToolMessage:
    """Return the message that tells a model that a tool was not called."""
    return ToolMessage(text, tool_call_id=call_id or "", name=tool, status=FAILED)


def refused_answer(text: str, tool: str, call_id: str | None) -> ToolMessage | str:
    """Return the answer to a refused call: a message for a model, a text for any other caller."""
    return text if call_id is None else refused_message(text, tool, call_id)


def note_failure(guarded: GuardedToolCall, answer: T) -> T:
    """Note that a tool failed if its answer says so, and return the answer."""
    if isinstance(answer, ToolMessage) and answer.status == FAILED:
        guarded.fail(answer.text)
    return answer
