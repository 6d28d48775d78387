"""An agent of LangChain whose tools are under guard. A script stands in for the model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from cstp_grpc.agents.frameworks.langchain import GuardMiddleware
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
            {"tool": "*", "ask": "check"},
        ]
    }
)


class ScriptedModel(GenericFakeChatModel):
    """Returns the next answer of a script."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> ScriptedModel:
        """Take the tools, which the script knows."""
        return self


@tool
def drop_table(table: str) -> str:
    """Drop a table."""
    return f"{table} is dropped"


def main(target: str, token: str) -> None:
    """Run the agent and print the answers of its tools."""
    calls = [{"name": "drop_table", "args": {"table": table}, "id": table} for table in ("scratch", "orders")]
    script = ScriptedModel(messages=iter([AIMessage("", tool_calls=calls), AIMessage("One of them is dropped.")]))
    with CstpClient(target, token) as client:
        guard = GuardMiddleware(ToolGuard(client, rules=RULES, confidence=0.8))
        agent = create_agent(script, [drop_table], middleware=[guard])
        for message in agent.invoke({"messages": [("user", "Drop both tables")]})["messages"]:
            print(f"{message.type}: {message.text}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).read_text().strip())
