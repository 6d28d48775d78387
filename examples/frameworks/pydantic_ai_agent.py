"""An agent of Pydantic AI whose tools are under guard. A script stands in for the model."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pydantic_ai import Agent, FunctionToolset, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from cstp_grpc.agents.frameworks.pydantic_ai import GuardedToolset
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


def drop_table(table: str) -> str:
    """Drop a table."""
    return f"{table} is dropped"


def follow_script(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Call the tool twice, then report the results."""
    answers = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if not answers:
        return ModelResponse([ToolCallPart("drop_table", {"table": table}) for table in ("scratch", "orders")])
    return ModelResponse([TextPart("\n".join(f"tool: {answer.content}" for answer in answers))])


async def main(target: str, token: str) -> None:
    """Run the agent and print the answers of its tools."""
    async with AsyncCstpClient(target, token) as client:
        guard = ToolGuard(client, rules=RULES, confidence=0.8)
        tools = GuardedToolset(FunctionToolset([drop_table]), tool_guard=guard)
        agent = Agent(FunctionModel(follow_script), toolsets=[tools])
        print((await agent.run("Drop both tables")).output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]).read_text().strip()))
