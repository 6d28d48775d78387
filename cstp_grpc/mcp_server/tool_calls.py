"""Listing tools and calling them."""

from __future__ import annotations

from typing import Any

import mcp_types
from google.protobuf.message import Message
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from cstp_grpc.contract.json_codec import CodecError, to_json
from cstp_grpc.errors import CstpError
from cstp_grpc.mcp_server.clients import ClientSource
from cstp_grpc.mcp_server.tool_errors import failed_call_result, invalid_arguments_error
from cstp_grpc.mcp_server.tools import TOOLS, TOOLS_BY_NAME, ContractTool

RequestContext = ServerRequestContext[Any, Any]


class ToolHandlers:
    """Answers `tools/list` and `tools/call`."""

    def __init__(self, clients: ClientSource) -> None:
        self._clients = clients

    async def list_tools(
        self, _: RequestContext, __: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        """Return all tools on one page."""
        return mcp_types.ListToolsResult(tools=[tool.to_mcp() for tool in TOOLS])

    async def call_tool(self, ctx: RequestContext, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        """Call the rpc of a tool; its failure is a result that the model reads. Raises MCPError for no tool."""
        tool = TOOLS_BY_NAME.get(params.name)
        if tool is None:
            # The specification has unknown tools as protocol errors (server/tools, "Error Handling").
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=f"Unknown tool: {params.name[:100]}")
        try:
            request = tool.parse_arguments(params.arguments or {})
        except CodecError as error:
            return failed_call_result(tool, invalid_arguments_error(error))
        try:
            response = await self._call(ctx, tool, request)
        except CstpError as error:
            return failed_call_result(tool, error)
        return answered_call_result(tool, response)

    async def _call(self, ctx: RequestContext, tool: ContractTool, request: Message) -> Message:
        """Call the rpc and report its two ends as progress, if the caller asked for it. Raises CstpError."""
        await ctx.session.report_progress(0, 1, f"{tool.title}: the server is asked")
        async with self._clients.lease_client() as client:
            response = await client.call(tool.method, request)
        await ctx.session.report_progress(1, 1, f"{tool.title}: answered")
        return response


def answered_call_result(tool: ContractTool, response: Message) -> mcp_types.CallToolResult:
    """Return the result of a tool for a response: a text for the model, and all of it as structured content."""
    content = to_json(response)
    return mcp_types.CallToolResult(
        content=[mcp_types.TextContent(type="text", text=tool.render(content))], structured_content=content
    )
