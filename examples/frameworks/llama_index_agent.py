"""An agent of LlamaIndex whose tools are under guard. A script stands in for the model."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.tools import FunctionTool

from cstp_grpc.agents.frameworks.llama_index import guard_tool
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


def follow_script(messages: Sequence[ChatMessage], **_: Any) -> ChatMessage:
    """Drop two tables, and be done once they are answered."""
    if any(message.role == "tool" for message in messages):
        return ChatMessage("One of them is dropped.", role="assistant")
    calls = [
        ToolCallBlock(tool_call_id=table, tool_name="drop_table", tool_kwargs={"table": table})
        for table in ("scratch", "orders")
    ]
    return ChatMessage(role="assistant", blocks=calls)


async def main(target: str, token: str) -> None:
    """Run the agent and print the answers of its tools."""
    script = MockFunctionCallingLLM(response_generator=follow_script)
    async with AsyncCstpClient(target, token) as client:
        guard = ToolGuard(client, rules=RULES, confidence=0.8)
        tools = [guard_tool(FunctionTool.from_defaults(drop_table), guard)]
        result = await FunctionAgent(tools=tools, llm=script, streaming=False).run("Drop both tables")
    for call in result.tool_calls:
        print(f"tool: {call.tool_output}")
    print(result)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]).read_text().strip()))
