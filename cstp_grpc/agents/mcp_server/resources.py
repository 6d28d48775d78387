"""The resources: decisions, guardrails and their inputs, and the nodes of projects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.shared.uri_template import UriTemplate

from cstp_grpc.agents.mcp_server.clients import ClientSource, ContractClient, call_by_name, list_pages
from cstp_grpc.agents.mcp_server.protocol_errors import failures_as_protocol_errors, resource_not_found_error
from cstp_grpc.common.quoted_text import quote_name, quote_text
from cstp_grpc.common.unicode_text import escape_invisible, replace_invisible
from cstp_grpc.contract.errors import InvalidArgument, MethodNotFound, NotFound

RequestContext = ServerRequestContext[Any, Any]

INPUTS_URI: Final = "cstp://rulebook/inputs"
GUARDRAILS_URI: Final = "cstp://rulebook/guardrails"
DECISION_TEMPLATE: Final = UriTemplate.parse("cstp://decisions/{id}")
NODE_TEMPLATE: Final = UriTemplate.parse("cstp://projects/{project}/nodes/{+path}")
JSON_TYPE: Final = "application/json"
MARKDOWN_TYPE: Final = "text/markdown"
DECISIONS_PER_PAGE: Final = 50
"""Number of decisions on a page of the list. Chosen: a person picks one from the page."""
MAX_RULES: Final = 5000
"""Maximum number of inputs or guardrails that are read. Chosen: far more than any rulebook has."""

LISTINGS: Final[Mapping[str, tuple[str, str]]] = {
    INPUTS_URI: ("cstp.listInputs", "inputs"),
    GUARDRAILS_URI: ("cstp.listGuardrails", "guardrails"),
}
"""The method that lists the items of a resource, and the field of its pages."""
RULEBOOK_RESOURCES: Final = (
    mcp_types.Resource(
        uri=INPUTS_URI,
        name="rulebook-inputs",
        title="Facts that the guardrails read",
        description=(
            "The inputs in `metadata` of look_before_acting and `context` of check_action: names, types, meanings,"
            " defaults, and whether they are required."
        ),
        mime_type=JSON_TYPE,
    ),
    mcp_types.Resource(
        uri=GUARDRAILS_URI,
        name="rulebook-guardrails",
        title="Guardrails in force",
        description="The rules that actions are checked against, and how to satisfy each.",
        mime_type=JSON_TYPE,
    ),
)
TEMPLATES: Final = (
    mcp_types.ResourceTemplate(
        uri_template=str(DECISION_TEMPLATE),
        name="decision",
        title="A decision",
        description="A past decision with its outcome, lesson, links and history, as far as you may read it.",
        mime_type=JSON_TYPE,
    ),
    mcp_types.ResourceTemplate(
        uri_template=str(NODE_TEMPLATE),
        name="node",
        title="A node of a project",
        description="The content of the AGENTS.md or CLAUDE.md of a folder; `path` is the folder or the file.",
        mime_type=MARKDOWN_TYPE,
    ),
)


class ResourceHandlers:
    """Answers `resources/list`, `resources/templates/list` and `resources/read`."""

    def __init__(self, clients: ClientSource) -> None:
        self._clients = clients

    async def list_resources(
        self, _: RequestContext, params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListResourcesResult:
        """Return the rulebook's resources and the latest decisions, page by page. Raises MCPError."""
        cursor = (params and params.cursor) or ""
        with failures_as_protocol_errors():
            async with self._clients.lease_client() as client:
                page = await call_by_name(
                    client, "cstp.listDecisions", {"pageSize": DECISIONS_PER_PAGE, "pageToken": cursor}
                )
        return mcp_types.ListResourcesResult(
            resources=[*(() if cursor else RULEBOOK_RESOURCES), *map(describe_resource, page["decisions"])],
            next_cursor=page["nextPageToken"] or None,
        )

    async def list_templates(
        self, _: RequestContext, __: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListResourceTemplatesResult:
        return mcp_types.ListResourceTemplatesResult(resource_templates=list(TEMPLATES))

    async def read_resource(
        self, ctx: RequestContext, params: mcp_types.ReadResourceRequestParams
    ) -> mcp_types.ReadResourceResult:
        """Return a resource as text. Raises MCPError, also for a resource that the caller may not read."""
        uri = str(params.uri)
        with failures_as_protocol_errors():
            async with self._clients.lease_client() as client:
                try:
                    found = await read_content(client, uri)
                except (NotFound, MethodNotFound, InvalidArgument):
                    # Also a path that leaves its project: no resource has such a name.
                    found = None
        if found is None:
            raise resource_not_found_error(uri, ctx.protocol_version)
        text, mime_type = found
        return mcp_types.ReadResourceResult(
            contents=[mcp_types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)]
        )


async def read_content(client: ContractClient, uri: str) -> tuple[str, str] | None:
    """Return the text and the type of a resource, or None if no resource has this URI. Raises CstpError."""
    if uri in LISTINGS:
        method, items = LISTINGS[uri]
        return to_json_text({items: await list_pages(client, method, {}, items, most=MAX_RULES)}), JSON_TYPE
    if (names := DECISION_TEMPLATE.match(uri)) is not None:
        return to_json_text((await call_by_name(client, "cstp.getDecision", names))["decision"]), JSON_TYPE
    if (names := NODE_TEMPLATE.match(uri)) is not None:
        return render_node(await call_by_name(client, "intentLayer.getNode", names)), MARKDOWN_TYPE
    return None


def describe_resource(decision: Mapping[str, Any]) -> mcp_types.Resource:
    facts = [
        decision.get("outcome", "outcome unknown"),
        quote_name(decision.get("category", "")),
        decision["date"][:10],
    ]
    return mcp_types.Resource(
        uri=DECISION_TEMPLATE.expand({"id": decision["id"]}),
        name=decision["id"],
        title=quote_text(decision["title"]),
        description=", ".join(filter(None, facts)),
        mime_type=JSON_TYPE,
    )


def render_node(node: Mapping[str, Any]) -> str:
    introduction = "Introduction"
    text = "\n\n".join(
        section["text"] if section["name"] == introduction else f"## {quote_name(section['name'])}\n\n{section['text']}"
        for section in node["sections"]
    )
    return replace_invisible(text)


def to_json_text(value: Mapping[str, Any]) -> str:
    return escape_invisible(json.dumps(value, indent=2, ensure_ascii=False))
