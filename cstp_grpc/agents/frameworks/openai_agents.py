"""Tools of the OpenAI Agents SDK under guard: checked by a tool guardrail, approved by an interruption of the run."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from agents import FunctionTool, RunContextWrapper
from agents.tool import maybe_invoke_function_tool_failure_error_function
from agents.tool_context import ToolContext
from agents.tool_guardrails import ToolGuardrailFunctionOutput, ToolInputGuardrail, ToolInputGuardrailData

from cstp_grpc.agents.frameworks.tool_guard import ApprovalNeeded, GuardedToolCall, ToolCallRefused, ToolGuard
from cstp_grpc.client import Blocked
from cstp_grpc.contract.errors import CstpError

MAX_JUDGED_CALLS: Final = 256
"""Maximum number of checked calls that wait to be made; the oldest is dropped first, and checked again. Chosen: more
than an agent makes at once."""
FRESH_SECONDS: Final = 30.0
"""Seconds for which a verdict waits for its call. Chosen: the SDK calls as soon as it knows that nobody is asked."""


def guard_tool(tool: FunctionTool, tool_guard: ToolGuard) -> FunctionTool:
    """Return a copy of a tool that is called only if the guardrails allow it.

    A refused call is rejected with a text for the model. With `approvals="ask"` the run is interrupted, and goes on
    once the call was approved or rejected on its RunState. A run raises a ToolInputGuardrailTripwireTriggered, whose
    `output.output_info` is Blocked or a CstpError: the SDK wraps other exceptions.
    """
    return ToolInvoker(tool, tool_guard).guarded_tool


@dataclasses.dataclass(frozen=True, slots=True)
class KeptJudgement:
    """The verdict on a call that is about to be made, and its expiry by a monotonic clock."""

    judged: GuardedToolCall | ToolCallRefused
    fresh_until: float


class ToolInvoker:
    """Calls one tool: checks each call in a guardrail, and reviews it when the tool has ended."""

    def __init__(self, tool: FunctionTool, tool_guard: ToolGuard, clock: Callable[[], float] = time.monotonic) -> None:
        self._guard = tool_guard
        self._clock = clock
        self._tool = tool
        self._judged: OrderedDict[tuple[str, str], KeptJudgement] = OrderedDict()
        # The SDK turns exceptions of decorated functions into texts before its caller sees them. That is done here
        # instead, once the outcome is known; tools of another kind raise.
        self._tells_errors = hasattr(tool.on_invoke_tool, "__agents_bind_function_tool__")
        self._raising_tool = dataclasses.replace(
            tool, _failure_error_function=None, _use_default_failure_error_function=False
        )
        guardrail = ToolInputGuardrail[Any](self._judge, name="cstp")
        self.guarded_tool = dataclasses.replace(
            tool,
            on_invoke_tool=self._invoke,
            tool_input_guardrails=[*(tool.tool_input_guardrails or ()), guardrail],
            needs_approval=self._needs_approval if tool_guard.asks_persons else tool.needs_approval,
        )

    async def _needs_approval(self, context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        """Return whether a person is asked, and keep the verdict if not."""
        own = self._tool.needs_approval
        if own is True or (callable(own) and await own(context, arguments, call_id)):
            return True
        try:
            self._keep(call_id, arguments, await self._begin(arguments, approved=False))
        except ApprovalNeeded:
            return True
        except ToolCallRefused as refused:
            self._keep(call_id, arguments, refused)
        except (Blocked, CstpError):
            # Not kept: the guardrail checks the call again, and can stop the run.
            return False
        return False

    async def _judge(self, data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        """Let a call pass, reject it, or stop the run if the settings say so."""
        context = data.context
        arguments = read_arguments(context.tool_arguments)
        try:
            judged = self._take(context.tool_call_id, arguments) or await self._begin(
                arguments, approved=self._is_approved(context)
            )
        except ApprovalNeeded:
            # Guardrails can be set to run before the person is asked, and run again afterwards. A call that nobody
            # approved is refused by _invoke.
            return ToolGuardrailFunctionOutput.allow()
        except ToolCallRefused as refused:
            judged = refused
        except (Blocked, CstpError) as cause:
            return ToolGuardrailFunctionOutput.raise_exception(output_info=cause)
        if isinstance(judged, ToolCallRefused):
            return ToolGuardrailFunctionOutput.reject_content(judged.text)
        self._keep(context.tool_call_id, arguments, judged)
        return ToolGuardrailFunctionOutput.allow()

    async def _invoke(self, context: ToolContext[Any], text: str) -> Any:
        """Call the tool and review the outcome. Raises the tool's exception, unless the SDK reports it to the model."""
        arguments = read_arguments(text)
        guarded = self._take(context.tool_call_id, arguments)
        try:
            # An agent used as a tool, resumed after its own interruption, passes no guardrail.
            if not isinstance(guarded, GuardedToolCall):
                guarded = await self._begin(arguments, approved=self._is_approved(context))
        except ToolCallRefused as refused:
            return refused.text
        error: BaseException | None = None
        try:
            return await self._raising_tool.on_invoke_tool(context, text)
        except BaseException as raised:
            error = raised
            if not (self._tells_errors and isinstance(raised, Exception)):
                raise
            told = await maybe_invoke_function_tool_failure_error_function(
                function_tool=self.guarded_tool, context=context, error=raised
            )
            if told is None:
                raise
            return told
        finally:
            await guarded.__aexit__(type(error) if error else None, error, None)

    async def _begin(self, arguments: dict[str, Any], *, approved: bool) -> GuardedToolCall:
        return await self._guard.guard_call(self._tool.name, arguments, approved=approved).__aenter__()

    def _is_approved(self, context: ToolContext[Any]) -> bool:
        return context.is_tool_approved(self._tool.name, context.tool_call_id) is True

    def _keep(self, call_id: str, arguments: dict[str, Any], judged: GuardedToolCall | ToolCallRefused) -> None:
        """Keep a verdict until the call is made. The arguments are part of its key: models may reuse ids."""
        key = call_id, json.dumps(arguments, sort_keys=True)
        self._judged[key] = KeptJudgement(judged, self._clock() + FRESH_SECONDS)
        if len(self._judged) > MAX_JUDGED_CALLS:
            self._judged.popitem(last=False)

    def _take(self, call_id: str, arguments: dict[str, Any]) -> GuardedToolCall | ToolCallRefused | None:
        """Remove and return the verdict for a call; None if it is missing or has expired."""
        kept = self._judged.pop((call_id, json.dumps(arguments, sort_keys=True)), None)
        return kept.judged if kept is not None and self._clock() < kept.fresh_until else None


def read_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call; text that is not a JSON object, which no tool accepts, is under one name."""
    try:
        arguments = json.loads(text) if text else {}
    except ValueError:
        arguments = text
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}
