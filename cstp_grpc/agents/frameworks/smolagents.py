"""Tools of smolagents under guard: a tool around another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from smolagents import Tool

from cstp_grpc.agents.frameworks.tool_guard import ApprovalNeeded, ToolGuard

AskPerson = Callable[[Tool, Mapping[str, Any], str], bool]
"""Asks a person whether to call a tool with some arguments; the last argument is the question."""


class GuardedTool(Tool):
    """A guarded copy of a tool."""

    skip_forward_signature_validation = True

    def __init__(self, tool: Tool, tool_guard: ToolGuard, ask_person: AskPerson | None) -> None:
        super().__init__()
        self.name, self.description = tool.name, tool.description
        self.inputs, self.output_type, self.output_schema = tool.inputs, tool.output_type, tool.output_schema
        self._tool, self._guard, self._ask_person = tool, tool_guard, ask_person

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the tool if it is allowed. Raises ToolCallRefused; Blocked and CstpError if the settings say so."""
        if len(args) > len(self.inputs):
            raise TypeError(f"{self.name} takes {len(self.inputs)} arguments")
        # The tool gets the arguments that were checked, by their names.
        arguments = {**dict(zip(self.inputs, args, strict=False)), **kwargs}
        with ExitStack() as opened:
            try:
                opened.enter_context(self._guard.guard_call(self.name, arguments))
            except ApprovalNeeded as needed:
                if self._ask_person is None or not self._ask_person(self._tool, arguments, needed.question):
                    raise
                opened.enter_context(self._guard.guard_call(self.name, arguments, approved=True))
            return self._tool(**arguments)


def guard_tool(tool: Tool, tool_guard: ToolGuard, *, ask_person: AskPerson | None = None) -> GuardedTool:
    """Return a tool that is called only if the guardrails allow it.

    A refused call raises, which ends the code of a CodeAgent, and agents tell the model why; they report Blocked and
    CstpError to it, too. With `approvals="ask"`, `ask_person` asks a person.
    """
    return GuardedTool(tool, tool_guard, ask_person)
