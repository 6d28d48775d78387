"""Listing tools and calling them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cstp_grpc.agents.mcp_server.clients import ClientSource
from cstp_grpc.agents.mcp_server.elicitation import PersonAnswer, can_show_forms, find_question, read_retried_answer
from cstp_grpc.agents.mcp_server.tool_errors import failed_call_result, invalid_arguments_error
from cstp_grpc.agents.mcp_server.tool_texts import join_sections
from cstp_grpc.agents.mcp_server.tools import TOOLS, TOOLS_BY_NAME, ContractTool
from cstp_grpc.common.quoted_text import quote_answer
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.contract.json_codec import CodecError, to_json

JsonObject = Mapping[str, Any]

RequestContext = ServerRequestContext[Any, Any]


class ToolHandlers:
    """Answers `tools/list` and `tools/call`."""

    def __init__(self, clients: ClientSource) -> None:
        self._clients = clients

    async def list_tools(
        self, _: RequestContext, __: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=[mcp_types.Tool.model_validate(tool.to_json()) for tool in TOOLS])

    async def call_tool(
        self, ctx: RequestContext, params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
        """Call the rpc of a tool; a failure is a result that the model reads. Raises MCPError for an unknown tool.

        If a person can give facts that a verdict lacks, they are asked once, and the rpc is repeated with the answer.
        """
        tool = TOOLS_BY_NAME.get(params.name)
        if tool is None:
            # By the specification, unknown tools are protocol errors (server/tools, "Error Handling").
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=f"Unknown tool: {params.name[:100]}")
        arguments, answer = params.arguments or {}, read_retried_answer(params)
        try:
            if answer is not None:
                return await self._call_with_answer(ctx, tool, arguments, answer)
            response = await self._call(ctx, tool, arguments)
            question = find_question(tool, response) if can_show_forms(ctx) else None
            if question is None:
                return answered_call_result(tool, response)
            if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
                return question.to_result()
            return await self._call_with_answer(ctx, tool, arguments, await question.ask_host(ctx))
        except CodecError as error:
            return failed_call_result(tool, invalid_arguments_error(error))
        except CstpError as error:
            return failed_call_result(tool, error)

    async def _call_with_answer(
        self, ctx: RequestContext, tool: ContractTool, arguments: JsonObject, answer: PersonAnswer
    ) -> mcp_types.CallToolResult:
        """Call the rpc of a tool with a person's answer. Raises CodecError and CstpError."""
        response = await self._call(ctx, tool, answer.complete_arguments(tool, arguments))
        return answered_call_result(tool, response, answer.describe())

    async def _call(self, ctx: RequestContext, tool: ContractTool, arguments: JsonObject) -> dict[str, Any]:
        """Call the rpc of a tool, and report both ends of the call as progress if the host asked for it.

        Raises CodecError and CstpError. A call that the host cancels is cancelled at the server, too.
        """
        request = tool.parse_arguments(arguments)
        await ctx.session.report_progress(0, 1, f"{tool.title}: the server is asked")
        async with self._clients.lease_client() as client:
            response = await client.call(tool.method, request)
        await ctx.session.report_progress(1, 1, f"{tool.title}: answered")
        return to_json(response)


def answered_call_result(tool: ContractTool, response: dict[str, Any], note: str = "") -> mcp_types.CallToolResult:
    quoted = quote_answer(response)
    text = join_sections([tool.render(quoted), note])
    return mcp_types.CallToolResult(
        content=[mcp_types.TextContent(type="text", text=text)],
        # Claude Code, Codex and Pydantic AI show the model this instead of the content.
        structured_content=tool.structure(quoted, response, text),
    )
