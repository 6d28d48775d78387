"""The prompts that a person chooses in the host: the steps before a risky change, and a retrospective."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import mcp_types
from mcp.server.context import ServerRequestContext

from cstp_grpc.agents.mcp_server.clients import ClientSource, list_pages
from cstp_grpc.agents.mcp_server.protocol_errors import failures_as_protocol_errors, invalid_params_error
from cstp_grpc.agents.mcp_server.tool_texts import MAX_LISTED, describe_decision, render_items
from cstp_grpc.common.quoted_text import OTHERS_NOTE, quote_answer
from cstp_grpc.contract.enums import Stakes

RequestContext = ServerRequestContext[Any, Any]
Arguments = Mapping[str, str]

RISKY_CHANGE: Final = "before_a_risky_change"
RETROSPECTIVE: Final = "retrospective"


@dataclass(frozen=True)
class PromptDefinition:
    """A prompt, and the function that writes its text."""

    prompt: mcp_types.Prompt
    write: Callable[[ClientSource, Arguments], Awaitable[str]]
    """Returns the text for some arguments. Raises CstpError."""


async def write_risky_change(_: ClientSource, arguments: Arguments) -> str:
    """Return the steps before a change."""
    about = [f"I want you to do this: {arguments['change']}"]
    if paths := arguments.get("paths"):
        about.append(f"It touches these files: {paths}")
    stakes = arguments.get("stakes", Stakes.HIGH)
    steps = (
        f"Call look_before_acting with the intent in your own words, stakes `{stakes}`, your honest confidence, the"
        " paths, and the facts that cstp://rulebook/inputs names. Leave out facts that you do not know.",
        "If the verdict is not ALLOWED, stop: name the guardrails that block it and what would resolve it. Do not look"
        " for a way around a rule.",
        "Say which precedents failed, why, and what your plan does otherwise.",
        "Read code_context for each path that was not covered, and make the checks that it names.",
        "Show me the plan with its way back, and wait for my word.",
        "Then record_decision, do it, and review_decision with the outcome and the lesson.",
    )
    return "\n".join([*about, "", "Before you do it:", *(f"{at}. {step}" for at, step in enumerate(steps, 1))])


async def write_retrospective(clients: ClientSource, arguments: Arguments) -> str:
    """Return the steps of a retrospective, with the decisions whose review is due."""
    filters = {name: value for name in ("category", "project") if (value := arguments.get(name))}
    params = {"reviewDue": True, "filters": filters}
    async with clients.lease_client() as client:
        due = await list_pages(client, "cstp.listDecisions", params, "decisions", most=MAX_LISTED)
    listed = render_items("Decisions whose review is due", map(describe_decision, quote_answer(due)), note=OTHERS_NOTE)
    about = " and ".join(f"{name} {value}" for name, value in filters.items())
    steps = (
        "For each decision whose outcome is due, find out how it turned out from the evidence you have, or ask me; then"
        " call review_decision with the outcome and one lesson that would have changed the decision.",
        "Search with find_decisions for failures of the same kind, and describe what they have in common.",
        "Call report_learning for each lesson that belongs next to the code.",
        "Say in five lines at most what to do differently, and which rule would have helped.",
    )
    return "\n".join(
        [
            f"Let us look back{f' on {about}' if about else ''}.",
            "",
            listed or "No review of yours is due.",
            "",
            *(f"{at}. {step}" for at, step in enumerate(steps, 1)),
        ]
    )


PROMPTS: Final[Mapping[str, PromptDefinition]] = {
    RISKY_CHANGE: PromptDefinition(
        mcp_types.Prompt(
            name=RISKY_CHANGE,
            title="Before a risky change",
            description="Announce a change, heed the verdict and the precedents, and plan before anything is touched.",
            arguments=[
                mcp_types.PromptArgument(name="change", description="The change to make.", required=True),
                mcp_types.PromptArgument(name="paths", description="The files and folders that it touches."),
                mcp_types.PromptArgument(name="stakes", description="low, medium, high or critical. [default: high]"),
            ],
        ),
        write_risky_change,
    ),
    RETROSPECTIVE: PromptDefinition(
        mcp_types.Prompt(
            name=RETROSPECTIVE,
            title="Retrospective",
            description="Review the decisions that are due, and draw lessons from failures.",
            arguments=[
                mcp_types.PromptArgument(name="category", description="Only decisions of this category."),
                mcp_types.PromptArgument(name="project", description="Only decisions of this project."),
            ],
        ),
        write_retrospective,
    ),
}


class PromptHandlers:
    """Answers `prompts/list` and `prompts/get`."""

    def __init__(self, clients: ClientSource) -> None:
        self._clients = clients

    async def list_prompts(
        self, _: RequestContext, __: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListPromptsResult:
        return mcp_types.ListPromptsResult(prompts=[definition.prompt for definition in PROMPTS.values()])

    async def get_prompt(
        self, _: RequestContext, params: mcp_types.GetPromptRequestParams
    ) -> mcp_types.GetPromptResult:
        """Return a prompt with its arguments filled in. Raises MCPError."""
        definition = PROMPTS.get(params.name)
        if definition is None:
            raise invalid_params_error(f"Unknown prompt: {params.name[:100]}")
        arguments = {name: value for name, value in (params.arguments or {}).items() if value.strip()}
        for argument in definition.prompt.arguments or ():
            if argument.required and argument.name not in arguments:
                raise invalid_params_error(f"The prompt needs the argument {argument.name}.")
        with failures_as_protocol_errors():
            text = await definition.write(self._clients, arguments)
        message = mcp_types.PromptMessage(role="user", content=mcp_types.TextContent(type="text", text=text))
        return mcp_types.GetPromptResult(description=definition.prompt.description, messages=[message])
