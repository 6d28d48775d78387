"""The MCP server, composed of its handlers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

from cstp_grpc.agents.mcp_server.clients import ClientSource
from cstp_grpc.agents.mcp_server.completions import CompletionHandlers
from cstp_grpc.agents.mcp_server.elicitation import ANSWER_SECONDS
from cstp_grpc.agents.mcp_server.first_answers import INSTRUCTIONS, LASTING_MS, NAME, TITLE
from cstp_grpc.agents.mcp_server.prompts import PromptHandlers
from cstp_grpc.agents.mcp_server.protocol_errors import hide_unexpected_failures
from cstp_grpc.agents.mcp_server.resources import ResourceHandlers
from cstp_grpc.agents.mcp_server.tool_calls import ToolHandlers
from cstp_grpc.common.version import VERSION

SAME_FOR_ALL: Final = CacheHint(ttl_ms=LASTING_MS, scope="public")
"""For answers that are the same for every caller of this version."""
CALLERS_OWN: Final = CacheHint(ttl_ms=0, scope="private")
"""For answers that depend on the caller and change with each record: they are stale at once."""
CACHE_HINTS: Final[Mapping[CacheableMethod, CacheHint]] = {
    "server/discover": SAME_FOR_ALL,
    "tools/list": SAME_FOR_ALL,
    "prompts/list": SAME_FOR_ALL,
    "resources/templates/list": SAME_FOR_ALL,
    "resources/list": CALLERS_OWN,
    "resources/read": CALLERS_OWN,
}


def build_mcp_server(clients: ClientSource) -> Server[Any]:
    """Return the server for any transport; `clients` provides the clients of its callers."""
    tools, resources = ToolHandlers(clients), ResourceHandlers(clients)
    prompts, completions = PromptHandlers(clients), CompletionHandlers(clients)
    server = Server[Any](
        NAME,
        version=VERSION,
        title=TITLE,
        instructions=INSTRUCTIONS,
        on_list_tools=tools.list_tools,
        on_call_tool=tools.call_tool,
        on_list_resources=resources.list_resources,
        on_list_resource_templates=resources.list_templates,
        on_read_resource=resources.read_resource,
        on_list_prompts=prompts.list_prompts,
        on_get_prompt=prompts.get_prompt,
        on_completion=completions.complete_argument,
        cache_hints=CACHE_HINTS,
    )
    server.middleware.append(hide_unexpected_failures)
    # The state that a host returns with a person's answers is encrypted with a key of this process, and bound to the
    # call and its caller: a host cannot forge the question.
    server.middleware.append(
        RequestStateBoundary(RequestStateSecurity.ephemeral(ttl=ANSWER_SECONDS), default_audience=NAME)
    )
    return server
