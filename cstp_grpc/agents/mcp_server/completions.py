"""Completions of the arguments of prompts and resource templates, from the data that the caller may read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import mcp_types
from mcp.server.context import ServerRequestContext

from cstp_grpc.agents.mcp_server.clients import ClientSource, list_pages
from cstp_grpc.agents.mcp_server.prompts import PROMPTS, RISKY_CHANGE
from cstp_grpc.agents.mcp_server.protocol_errors import failures_as_protocol_errors, invalid_params_error
from cstp_grpc.agents.mcp_server.resources import DECISION_TEMPLATE, NODE_TEMPLATE, TEMPLATES
from cstp_grpc.contract.enums import Stakes

RequestContext = ServerRequestContext[Any, Any]

MAX_VALUES: Final = 100
"""Maximum number of values in a completion, by the specification."""
MAX_DECISIONS: Final = 500
"""Number of the latest decisions that are searched. Chosen: one page, since hosts ask after each letter."""
MAX_NODES: Final = 1000
"""Number of nodes of a project that are searched, one page."""


class CompletionHandlers:
    """Answers `completion/complete`."""

    def __init__(self, clients: ClientSource) -> None:
        self._clients = clients

    async def complete_argument(
        self, _: RequestContext, params: mcp_types.CompleteRequestParams
    ) -> mcp_types.CompleteResult:
        """Return the possible values of an argument that match the typed text. Raises MCPError."""
        typed = params.argument.value.lower()
        given = (params.context and params.context.arguments) or {}
        with failures_as_protocol_errors():
            if isinstance(params.ref, mcp_types.PromptReference):
                known = await self._prompt_values(params.ref.name, params.argument.name)
            else:
                known = await self._template_values(params.ref.uri, params.argument.name, given)
        fitting = [value for value, words in known.items() if typed in words.lower()]
        # Values that begin with the typed text come first; otherwise they keep the order of the source.
        fitting.sort(key=lambda value: not value.lower().startswith(typed))
        return mcp_types.CompleteResult(
            completion=mcp_types.Completion(
                values=fitting[:MAX_VALUES], total=len(fitting), has_more=len(fitting) > MAX_VALUES
            )
        )

    async def _prompt_values(self, prompt: str, argument: str) -> Mapping[str, str]:
        """Return the values of a prompt's argument, each with its search text."""
        if prompt not in PROMPTS:
            raise invalid_params_error(f"Unknown prompt: {prompt[:100]}")
        if (prompt, argument) == (RISKY_CHANGE, "stakes"):
            return map_to_themselves(Stakes)
        if argument in ("category", "project"):
            return map_to_themselves(each[argument] for each in await self._latest_decisions() if each.get(argument))
        return {}

    async def _template_values(self, template: str, argument: str, given: Mapping[str, str]) -> Mapping[str, str]:
        """Return the values of a template's variable, each with its search text."""
        if template not in {each.uri_template for each in TEMPLATES}:
            raise invalid_params_error(f"Unknown template: {template[:100]}")
        if (template, argument) == (str(DECISION_TEMPLATE), "id"):
            return {each["id"]: f"{each['id']} {each['title']}" for each in await self._latest_decisions()}
        if (template, argument) == (str(NODE_TEMPLATE), "path") and (project := given.get("project")):
            async with self._clients.lease_client() as client:
                params = {"project": project}
                nodes = await list_pages(client, "intentLayer.listNodes", params, "nodes", most=MAX_NODES)
            return map_to_themselves(node["file"] for node in nodes)
        return {}

    async def _latest_decisions(self) -> list[dict[str, Any]]:
        """Return the latest decisions that the caller may read. Raises CstpError."""
        async with self._clients.lease_client() as client:
            return await list_pages(client, "cstp.listDecisions", {}, "decisions", most=MAX_DECISIONS)


def map_to_themselves(values: Iterable[str]) -> dict[str, str]:
    """Return values that are their own search text, each once, without unreadable ones."""
    return {str(value): str(value) for value in values if str(value).isprintable()}
