"""A crew of CrewAI whose tools are under guard. A script stands in for the model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.tools import tool
from pydantic import PrivateAttr

from cstp_grpc.agents.frameworks.crewai import guard_tool
from cstp_grpc.agents.frameworks.tool_guard import ToolGuard
from cstp_grpc.agents.hooks.tool_rules import ToolRules
from cstp_grpc.client import CstpClient

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


class ScriptedLLM(BaseLLM):
    """Returns the next answer of a script, and prints the last answer of the tool."""

    _script: Iterator[str] = PrivateAttr()

    def __init__(self, *script: str) -> None:
        super().__init__(model="scripted")
        self._script = iter(script)

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        """Return the next line of the script."""
        print(str(messages[-2]["content"]).partition("Observation: ")[2])
        return next(self._script)


@tool("drop_table")
def drop_table(table: str) -> str:
    """Drop a table."""
    return f"{table} is dropped"


def main(target: str, token: str) -> None:
    """Run the crew and print the answers of its tools."""
    calls = [
        f'Thought: I drop it\nAction: drop_table\nAction Input: {{"table": "{table}"}}'
        for table in ("scratch", "orders")
    ]
    script = ScriptedLLM(*calls, "Thought: I know the final answer\nFinal Answer: One of them is dropped.")
    with CstpClient(target, token) as client:
        guard = ToolGuard(client, rules=RULES, confidence=0.8)
        tools = [guard_tool(drop_table, guard)]
        keeper = Agent(role="keeper", goal="Keep the tables", backstory="A script", llm=script, tools=tools)
        task = Task(description="Drop both tables", expected_output="The result of each", agent=keeper)
        print(Crew(agents=[keeper], tasks=[task]).kickoff())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).read_text().strip())
