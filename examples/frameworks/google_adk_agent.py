"""An agent of Google's Agent Development Kit whose tools are under guard. A script stands in for the model."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from cstp_grpc.agents.frameworks.google_adk import GuardPlugin
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


class ScriptedLlm(BaseLlm):
    """Drops two tables, and is done once it has answers."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the next message of the script."""
        parts = [types.Part.from_text(text="One of them is dropped.")]
        if not any(part.function_response for content in llm_request.contents for part in content.parts or []):
            parts = [types.Part.from_function_call(name="drop_table", args={"table": each}) for each in TABLES]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


TABLES = ("scratch", "orders")


def drop_table(table: str) -> str:
    """Drop a table."""
    return f"{table} is dropped"


async def main(target: str, token: str) -> None:
    """Run the agent and print the answers of its tools."""
    async with AsyncCstpClient(target, token) as client:
        agent = LlmAgent(name="keeper", model=ScriptedLlm(model="script"), tools=[drop_table])
        guard = GuardPlugin(ToolGuard(client, rules=RULES, confidence=0.8))
        runner = InMemoryRunner(agent=agent, app_name="shop", plugins=[guard])
        session = await runner.session_service.create_session(app_name="shop", user_id="user")
        message = types.Content(role="user", parts=[types.Part.from_text(text="Drop both tables")])
        async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
            for part in event.content.parts or [] if event.content else []:
                print(part.text or f"tool: {part.function_response and part.function_response.response}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]).read_text().strip()))
