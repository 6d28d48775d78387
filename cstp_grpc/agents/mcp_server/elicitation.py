"""Asking a person during a call: for facts that a guardrail reads and the model did not give, or for an approval.

Hosts of 2025-11-25 receive a request during the call. Hosts of 2026-07-28 get a result that asks, and repeat the call
with the answers and the sealed state; the server keeps nothing meanwhile.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from cstp_grpc.agents.mcp_server.json_schemas import TIMESTAMP_PATTERN, JsonSchema
from cstp_grpc.agents.mcp_server.tool_texts import describe_approval, headline_of_verdict
from cstp_grpc.agents.mcp_server.tools import ContractTool
from cstp_grpc.common.quoted_text import MAX_QUOTED_CHARACTERS, quote_answer
from cstp_grpc.common.unicode_text import cut_line

JsonObject = Mapping[str, Any]
RequestContext = ServerRequestContext[Any, Any]

logger = logging.getLogger(__name__)

QUESTION_KEY: Final = "person"
"""The name of the only question of a call."""
MAX_QUESTIONS: Final = 8
"""Maximum number of facts in a form. Chosen: few enough that a person fills them in."""
ANSWER_SECONDS: Final = 600.0
"""Seconds that a person has to answer; the state of 2026-07-28 is valid for the same time."""

DECIDED_FIELD: Final = "decided"
DECIDED_SCHEMA: Final[JsonSchema] = {
    "type": "boolean",
    "title": "Decided",
    "description": "It was granted or denied. Answering approves nothing: the action is checked again.",
}

SCHEMAS_OF_TYPES: Final[Mapping[str, JsonSchema]] = {
    "bool": {"type": "boolean"},
    "number": {"type": "number"},
    "string": {"type": "string"},
    "timestamp": {"type": "string", "format": "date-time", "pattern": TIMESTAMP_PATTERN},
    "duration": {"type": "string"},
}
"""The form fields for inputs by type. Lists and maps are not asked for: forms have only primitive fields."""


@dataclass(frozen=True)
class PersonQuestion:
    """A question whose answer can change the verdict."""

    message: str
    fields: Mapping[str, JsonSchema]
    """The fields of the form, by the names of their inputs; the field for an approval has its own name."""
    about_facts: bool
    """Whether the fields are inputs; otherwise the answer only confirms that an approval was decided."""
    correlation_id: str | None

    def to_mcp(self) -> mcp_types.ElicitRequest:
        # No field is required: facts that a person does not know stay unknown, and the rules handle that.
        schema = {"type": "object", "properties": dict(self.fields)}
        return mcp_types.ElicitRequest(
            params=mcp_types.ElicitRequestFormParams(message=self.message, requested_schema=schema)
        )

    def to_result(self) -> mcp_types.InputRequiredResult:
        state = {"fields": list(self.fields), "facts": self.about_facts, "correlationId": self.correlation_id}
        return mcp_types.InputRequiredResult(
            input_requests={QUESTION_KEY: self.to_mcp()}, request_state=json.dumps(state)
        )

    async def ask_host(self, ctx: RequestContext) -> PersonAnswer:
        """Ask during the call and return the answer, for hosts of 2025-11-25."""
        form = self.to_mcp().params
        assert isinstance(form, mcp_types.ElicitRequestFormParams), "to_mcp makes no other"
        answer = None
        with anyio.move_on_after(ANSWER_SECONDS):
            try:
                answer = await ctx.session.elicit_form(
                    form.message, form.requested_schema, related_request_id=ctx.request_id
                )
            except MCPError as error:
                # The verdict then stays unchanged, which allows nothing more.
                logger.info("A host did not ask a person: %s", error.error.message)
        return read_answer(answer, self.fields, facts=self.about_facts, correlation_id=self.correlation_id)


@dataclass(frozen=True)
class PersonAnswer:
    """A person's answer, and the announcement that it is about."""

    accepted: bool
    about_facts: bool
    facts: JsonObject
    correlation_id: str | None

    def complete_arguments(self, tool: ContractTool, arguments: JsonObject) -> dict[str, Any]:
        """Return the arguments of a call with the facts, under the correlation id of the announcement."""
        completed = dict(arguments)
        given = arguments.get(tool.facts_argument)
        if self.facts:
            completed[tool.facts_argument] = {**(given if isinstance(given, dict) else {}), **self.facts}
        if self.correlation_id is not None:
            completed["correlationId"] = self.correlation_id
        return completed

    def describe(self) -> str:
        if not self.about_facts:
            return f"A person {'says that it was decided' if self.accepted else 'did not say that it was decided'}."
        if not self.facts:
            return "A person was asked for the missing facts and gave none."
        return (
            f"A person gave these facts: {cut_line(json.dumps(self.facts, ensure_ascii=False), MAX_QUOTED_CHARACTERS)}"
        )


def find_question(tool: ContractTool, response: JsonObject) -> PersonQuestion | None:
    """Return the question about a response; None if the response has no verdict or no answer could change it."""
    verdict = tool.verdict_of(response)
    if verdict is None or (verdict["allowed"] and not verdict["violations"]):
        return None
    correlation_id = response.get("correlationId")
    missing = {each["name"]: each for violation in verdict["violations"] for each in violation["missingInputs"]}
    inputs = [each for each in missing.values() if each["type"] in SCHEMAS_OF_TYPES][:MAX_QUESTIONS]
    checked = f"CSTP checked the agent's next action: {headline_of_verdict(verdict)}"
    if inputs:
        message = f"{checked} These facts were not given and can change the verdict. Fill in those you are sure of."
        fields = {each["name"]: form_field(each) for each in inputs}
        return PersonQuestion(message, fields, about_facts=True, correlation_id=correlation_id)
    if verdict["approvalRequired"] and (approval := verdict.get("approval")):
        fields = {DECIDED_FIELD: DECIDED_SCHEMA}
        message = f"{checked} {describe_approval(quote_answer(approval))}"
        return PersonQuestion(message, fields, about_facts=False, correlation_id=correlation_id)
    return None


def read_retried_answer(params: mcp_types.CallToolRequestParams) -> PersonAnswer | None:
    """Return the answer in a call, or None if it is the first call. The state was verified before."""
    if params.request_state is None:
        return None
    state = json.loads(params.request_state)
    answer = (params.input_responses or {}).get(QUESTION_KEY)
    return read_answer(
        answer if isinstance(answer, mcp_types.ElicitResult) else None,
        state["fields"],
        facts=state["facts"],
        correlation_id=state["correlationId"],
    )


def read_answer(
    answer: mcp_types.ElicitResult | None, asked: Collection[str], *, facts: bool, correlation_id: str | None
) -> PersonAnswer:
    """Return a person's answer; a missing answer counts as a refusal."""
    accepted = answer is not None and answer.action == "accept"
    content = (answer.content or {}) if answer is not None and accepted else {}
    found = {name: value for name, value in content.items() if facts and name in asked and value is not None}
    return PersonAnswer(accepted, facts, found, correlation_id)


def form_field(missing: JsonObject) -> JsonSchema:
    schema: JsonSchema = {"title": missing["name"], **SCHEMAS_OF_TYPES[missing["type"]]}
    if missing.get("description"):
        schema["description"] = cut_line(missing["description"], MAX_QUOTED_CHARACTERS)
    if missing["type"] == "string" and missing["values"]:
        schema["enum"] = list(missing["values"])
    return schema


def can_show_forms(ctx: RequestContext) -> bool:
    capabilities = ctx.session.client_capabilities
    offered = capabilities.elicitation if capabilities is not None else None
    # Without a mode the capability means forms (client/elicitation, "Capabilities").
    return offered is not None and (offered.form is not None or offered.url is None)
