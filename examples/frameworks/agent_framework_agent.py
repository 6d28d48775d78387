"""An agent of the Microsoft Agent Framework whose tools are under guard. A script stands in for the model."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    tool,
)

from cstp_grpc.agents.frameworks.agent_framework import GuardFunctionMiddleware
from cstp_grpc.agents.frameworks.tool_guard import ToolGuard
from cstp_grpc.agents.hooks.tool_rules import ToolRules
from cstp_grpc.client import AsyncCstpClient

RULES = ToolRules.parse(
    {
        "tools": [
            {
                "tool": "drop_table",
                "ask": "announce",
                "description": "Drop the table {table}",
                "category": "database",
                "inputs": [{"argument": "table", "matches": "^orders$", "set": {"destroysData": True}}],
            },
        ]
    }
)


class ScriptedClient(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """Returns the next answer of a script."""

    def __init__(self, *script: Sequence[Content | str]) -> None:
        super().__init__()
        self._script = iter(script)

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse[Any]]:
        async def answer() -> ChatResponse[Any]:
            return ChatResponse(messages=[Message("assistant", list(next(self._script)))])

        return answer()


@tool(approval_mode="never_require")
def drop_table(table: str) -> str:
    """Drop a table."""
    return f"{table} is dropped"


async def main(target: str, token: str) -> None:
    """Run the agent and print the answers of its tools."""
    calls = [
        Content.from_function_call(table, "drop_table", arguments={"table": table}) for table in ("scratch", "orders")
    ]
    script = ScriptedClient(calls, ["One of them is dropped."])
    async with AsyncCstpClient(target, token) as client:
        guard = GuardFunctionMiddleware(ToolGuard(client, rules=RULES, confidence=0.8))
        agent = Agent(client=script, tools=[drop_table], middleware=[guard])
        response = await agent.run("Drop both tables")
    for content in (content for message in response.messages for content in message.contents):
        if content.type == "function_result":
            print(f"tool: {content.result}")
    print(response.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]).read_text().strip()))
