"""An agent of the OpenAI Agents SDK whose tools are under guard. A script stands in for the model."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agents import Agent, RunConfig, Runner, function_tool
from agents.items import ToolCallOutputItem
from agents.testing import ScriptedModel, assistant_message, function_call

from cstp_grpc.agents.frameworks.openai_agents import guard_tool
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


@function_tool
def drop_table(table: str) -> str:
    """Drop a table."""
    return f"{table} is dropped"


async def main(target: str, token: str) -> None:
    """Run the agent and print the answers of its tools."""
    calls = [function_call("drop_table", {"table": table}, call_id=table) for table in ("scratch", "orders")]
    script = ScriptedModel([calls, [assistant_message("One of them is dropped.")]])
    async with AsyncCstpClient(target, token) as client:
        guard = ToolGuard(client, rules=RULES, confidence=0.8)
        agent = Agent(name="keeper", tools=[guard_tool(drop_table, guard)], model=script)
        result = await Runner.run(agent, "Drop both tables", run_config=RunConfig(tracing_disabled=True))
    for item in result.new_items:
        if isinstance(item, ToolCallOutputItem):
            print(f"tool: {item.output}")
    print(result.final_output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]).read_text().strip()))
