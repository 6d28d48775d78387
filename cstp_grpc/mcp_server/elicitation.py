"""Asking a person for the facts that a guardrail reads and the model did not give.

Hosts of 2025-11-25 are sent a request amid the call. Those of 2026-07-28 get a result that asks, and call again with
the answers and the sealed state; nothing is kept here meanwhile.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from cstp_grpc.mcp_server.json_schemas import TIMESTAMP_PATTERN, JsonSchema
from cstp_grpc.mcp_server.tool_texts import headline_of_verdict, quote_text
from cstp_grpc.mcp_server.tools import ContractTool

JsonObject = Mapping[str, Any]
RequestContext = ServerRequestContext[Any, Any]

logger = logging.getLogger(__name__)

QUESTION_KEY: Final = "facts"
"""The name of the only question of a call."""
MAX_QUESTIONS: Final = 8
"""Maximum number of facts that are asked for at once. Chosen: what a person fills in without giving up."""
ANSWER_SECONDS: Final = 600.0
"""How long a person has to answer; the state of 2026-07-28 is as long valid."""

SCHEMAS_OF_TYPES: Final[Mapping[str, JsonSchema]] = {
    "bool": {"type": "boolean"},
    "number": {"type": "number"},
    "string": {"type": "string"},
    "timestamp": {"type": "string", "format": "date-time", "pattern": TIMESTAMP_PATTERN},
    "duration": {"type": "string"},
}
"""How a form asks for an input of a type. Lists and maps are not asked for: forms have primitive fields only."""


@dataclass(frozen=True)
class FactsQuestion:
    """What a person is asked, because the verdict can change with it."""

    tool: ContractTool
    inputs: tuple[JsonObject, ...]
    """The MissingInputs of the verdict that a form can ask for, by their names once each."""
    headline: str
    correlation_id: str | None

    def to_mcp(self) -> mcp_types.ElicitRequest:
        """Return the form for the host to show."""
        properties = {each["name"]: form_field(each) for each in self.inputs}
        return mcp_types.ElicitRequest(
            params=mcp_types.ElicitRequestFormParams(
                message=(
                    f"CSTP judged what the agent is about to do: {self.headline} These facts were not given and can"
                    " change the verdict. Fill in what you know for certain."
                ),
                # None is required: what a person does not know stays unknown, and the rules decide what that means.
                requested_schema={"type": "object", "properties": properties},
            )
        )

    def to_result(self) -> mcp_types.InputRequiredResult:
        """Return the result that asks, for hosts of 2026-07-28."""
        state = {"asked": [each["name"] for each in self.inputs], "correlationId": self.correlation_id}
        return mcp_types.InputRequiredResult(
            input_requests={QUESTION_KEY: self.to_mcp()}, request_state=json.dumps(state)
        )

    def read_answer(self, answer: mcp_types.ElicitResult | None) -> FactsAnswer:
        """Return what a person answered; no answer is as good as a refusal."""
        return read_facts(answer, [each["name"] for each in self.inputs], self.correlation_id)

    async def ask_host(self, ctx: RequestContext) -> FactsAnswer:
        """Ask amid the call and return the answer, for hosts of 2025-11-25."""
        request = self.to_mcp()
        assert isinstance(request.params, mcp_types.ElicitRequestFormParams)
        answer = None
        with anyio.move_on_after(ANSWER_SECONDS):
            try:
                answer = await ctx.session.elicit_form(
                    request.params.message, request.params.requested_schema, related_request_id=ctx.request_id
                )
            except MCPError as error:
                # The verdict stands as it is then, which allows nothing more.
                logger.info("A host did not ask for facts: %s", error.error.message)
        return self.read_answer(answer)


@dataclass(frozen=True)
class FactsAnswer:
    """What a person answered, and the announcement that it is about."""

    facts: JsonObject = field(default_factory=dict)
    correlation_id: str | None = None

    def complete_arguments(self, tool: ContractTool, arguments: JsonObject) -> dict[str, Any]:
        """Return the arguments of a call with the facts, as a revision of the same announcement."""
        completed = dict(arguments)
        given = arguments.get(tool.facts_argument)
        if self.facts:
            completed[tool.facts_argument] = {**(given if isinstance(given, dict) else {}), **self.facts}
        if self.correlation_id is not None:
            completed["correlationId"] = self.correlation_id
        return completed

    def describe(self) -> str:
        """Return one line for the model."""
        if not self.facts:
            return "A person was asked for the missing facts and gave none."
        return f"A person gave these facts: {quote_text(json.dumps(self.facts, ensure_ascii=False))}"


def find_question(tool: ContractTool, response: JsonObject) -> FactsQuestion | None:
    """Return what to ask a person about a response, or None if it is no verdict or no answer could change it."""
    verdict = tool.verdict_of(response)
    if verdict is None or (verdict["allowed"] and not verdict["violations"]):
        return None
    missing = {each["name"]: each for violation in verdict["violations"] for each in violation["missingInputs"]}
    inputs = tuple(each for each in missing.values() if each["type"] in SCHEMAS_OF_TYPES)[:MAX_QUESTIONS]
    if not inputs:
        return None
    return FactsQuestion(tool, inputs, headline_of_verdict(verdict), response.get("correlationId"))


def read_retried_answer(params: mcp_types.CallToolRequestParams) -> FactsAnswer | None:
    """Return the answer that a call carries, or None if it is the first one. The state was verified before."""
    if params.request_state is None:
        return None
    state = json.loads(params.request_state)
    answer = (params.input_responses or {}).get(QUESTION_KEY)
    return read_facts(
        answer if isinstance(answer, mcp_types.ElicitResult) else None, state["asked"], state["correlationId"]
    )


def read_facts(answer: mcp_types.ElicitResult | None, asked: list[str], correlation_id: str | None) -> FactsAnswer:
    """Return the facts among an answer that were asked for."""
    content = answer.content if answer is not None and answer.action == "accept" else None
    facts = {name: value for name, value in (content or {}).items() if name in asked and value is not None}
    return FactsAnswer(facts, correlation_id)


def form_field(missing: JsonObject) -> JsonSchema:
    """Return the schema of a form's field for a MissingInput."""
    schema: JsonSchema = {"title": missing["name"], **SCHEMAS_OF_TYPES[missing["type"]]}
    if missing.get("description"):
        schema["description"] = quote_text(missing["description"])
    if missing["type"] == "string" and missing["values"]:
        schema["enum"] = list(missing["values"])
    return schema


def can_show_forms(ctx: RequestContext) -> bool:
    """Return whether the host of a request shows forms to a person."""
    capabilities = ctx.session.client_capabilities
    offered = capabilities.elicitation if capabilities is not None else None
    # Without a mode the capability means forms (client/elicitation, "Capabilities").
    return offered is not None and (offered.form is not None or offered.url is None)
