"""An agent of smolagents whose tools are under guard. A script stands in for the model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from smolagents import CodeAgent, tool
from smolagents.models import ChatMessage, MessageRole, Model

from cstp_grpc.agents.frameworks.smolagents import guard_tool
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


class ScriptedModel(Model):
    """Returns the next answer of a script."""

    def __init__(self, *script: str) -> None:
        super().__init__()
        self._script = iter(script)

    def generate(self, messages: Any, **kwargs: Any) -> ChatMessage:
        """Return the next code of the script."""
        return ChatMessage(MessageRole.ASSISTANT, f"<code>\n{next(self._script)}\n</code>")


@tool
def drop_table(table: str) -> str:
    """Drop a table.

    Args:
        table: Its name.
    """
    return f"{table} is dropped"


def main(target: str, token: str) -> None:
    """Run the agent, which prints the answers of its tools."""
    drops = [f"print(drop_table('{table}'))" for table in ("scratch", "orders")]
    script = ScriptedModel(*drops, "final_answer('One of them is dropped.')")
    with CstpClient(target, token) as client:
        guard = ToolGuard(client, rules=RULES, confidence=0.8)
        agent = CodeAgent(tools=[guard_tool(drop_table, guard)], model=script)
        agent.run("Drop both tables")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).read_text().strip())
