"""An MCP server whose tools drop tables, to be put under guard; it is run as a program."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

server = MCPServer("tables", instructions="Tables are dropped here.")
DROPPED = Path(sys.argv[1])
"""The file to which the names of dropped tables are added, a line each."""


class Reason(BaseModel):
    why: str


@server.tool()
def drop_table(table: str) -> str:
    """Drop a table; the broken ones cannot be dropped."""
    if table.startswith("broken"):
        raise ToolError("the disk is full")
    with DROPPED.open("a") as file:
        file.write(f"{table}\n")
    return f"{table} is dropped"


@server.tool()
def list_tables() -> str:
    """Tell what the server knows of its environment, which no table guards."""
    return " ".join(sorted(name for name in os.environ if name.startswith("CSTP_")))


@server.tool()
async def report(ctx: Context) -> str:
    """Report progress, and offer another tool."""
    await ctx.report_progress(1, 2, "half")
    server.add_tool(list_tables, name="offered_later")
    await ctx.session.send_tool_list_changed()
    return "reported"


@server.tool()
async def wait(ctx: Context) -> str:
    """Wait until it is cancelled, and say so in a file."""
    await ctx.report_progress(0)
    try:
        await anyio.sleep_forever()
    finally:
        DROPPED.write_text("cancelled\n")
    return ""


@server.tool()
async def ask_why(ctx: Context) -> str:
    """Ask a person a question of the server's own."""
    answer = await ctx.elicit("Why?", Reason)
    return answer.data.why if answer.action == "accept" else "nobody said"


@server.tool()
def die() -> None:
    """End the server at once."""
    os._exit(7)


@server.resource("tables://all")
def all_tables() -> str:
    """Return the tables that were dropped."""
    return DROPPED.read_text() if DROPPED.exists() else ""


if __name__ == "__main__":
    server.run("stdio")
