"""The tools: the rpc, the arguments and the annotations of each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from cstp_grpc.agents.mcp_server import tool_texts
from cstp_grpc.agents.mcp_server.json_schemas import MAX_MEMBERS, JsonSchema, member_schema, request_schema
from cstp_grpc.common.unicode_text import replace_invisible
from cstp_grpc.contract.errors import FieldViolation
from cstp_grpc.contract.json_codec import CodecError, from_json, json_path
from cstp_grpc.contract.json_scalars import printable_key
from cstp_grpc.contract.methods import RpcMethod, method_by_name

MAX_REPORTED: Final = 20
"""Maximum number of unknown arguments that an error names. Chosen: a caller may send thousands."""

JsonObject = Mapping[str, Any]

IDENTITY_FIELDS: Final = frozenset({"agent", "agentId"})
"""The agent's own id, which is omitted: over MCP, the token identifies the caller."""
REVISION_FIELDS: Final = frozenset({"minJournalRevision"})
"""For programs that write on one server and read on another, not for a model."""


@dataclass(frozen=True)
class ContractTool:
    """A tool that calls one rpc of the contract."""

    name: str
    title: str
    description: str
    """For the model: when to call the tool, and how to use the answer."""
    method_name: str
    """The JSON-RPC name of the rpc."""
    render: Callable[[JsonObject], str]
    """Returns the model's text for a response in JSON."""
    lifted: str | None = None
    """The field of the request whose fields are the arguments; None if the request's own fields are."""
    omitted: frozenset[str] = IDENTITY_FIELDS | REVISION_FIELDS
    """The fields of the request, by their JSON names, that are not arguments."""
    read_only: bool = False
    """Whether it changes nothing, except that the audit trail records the call."""
    idempotent: bool = False
    """Whether calling it again with the same arguments changes nothing more."""
    facts_argument: str = ""
    """The argument with the inputs of the guardrails, of tools that give a verdict; empty for others."""
    verdict_member: str = ""
    """The member of the response that is the verdict; empty if the response itself is."""
    members: Mapping[str, str] = field(default_factory=dict)
    """The members of the structured content that programs need, and their paths in the response."""

    @property
    def gives_verdict(self) -> bool:
        """Whether it returns a verdict, so that a failure leaves the action unchecked."""
        return bool(self.facts_argument)

    def verdict_of(self, response: JsonObject) -> JsonObject | None:
        if not self.gives_verdict:
            return None
        verdict: JsonObject | None = response.get(self.verdict_member) if self.verdict_member else response
        return verdict

    @functools.cached_property
    def method(self) -> RpcMethod:
        return method_by_name(self.method_name)

    @functools.cached_property
    def _request(self) -> Descriptor:
        return cast(Descriptor, self.method.request.DESCRIPTOR)

    @functools.cached_property
    def input_schema(self) -> JsonSchema:
        return request_schema(self._request, lifted=self.lifted, omitted=self.omitted)

    @functools.cached_property
    def output_schema(self) -> JsonSchema:
        """The schema of the structured content. It accepts members that a later version adds."""
        response = cast(Descriptor, self.method.response.DESCRIPTOR)
        properties: JsonSchema = {
            **({"verdict": {"enum": list(tool_texts.HEADLINES)}} if self.gives_verdict else {}),
            "text": {"type": "string", "description": "The answer in Markdown, as in the content."},
            **({"allowed": {"type": "boolean"}} if self.gives_verdict else {}),
        }
        required = list(properties)
        properties |= {name: member_schema(response, path) for name, path in self.members.items()}
        return {"type": "object", "properties": properties, "required": required}

    def structure(self, response: JsonObject, unquoted: JsonObject, text: str) -> dict[str, Any]:
        """Return the structured content for a quoted response and its text. Many hosts show only this to a model."""
        values = {name: select_values(response, path.split(".")) for name, path in self.members.items()}
        if CORRELATION_ID in values:
            # The caller's own value, which another announcement repeats unchanged.
            values[CORRELATION_ID] = replace_invisible(unquoted[CORRELATION_ID])
        members = {"text": text} | {name: value for name, value in values.items() if value is not None}
        if not self.gives_verdict:
            return members
        word = tool_texts.name_verdict(self.verdict_of(response))
        return {"verdict": word, "text": text, "allowed": word == "allowed"} | members

    def to_json(self) -> dict[str, Any]:
        """Return the tool as hosts list it."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            "outputSchema": self.output_schema,
            "annotations": {
                "title": self.title,
                "readOnlyHint": self.read_only,
                # Nothing is overwritten: announcements have revisions, and decisions keep all reviews.
                "destructiveHint": False,
                "idempotentHint": self.read_only or self.idempotent,
                "openWorldHint": False,
            },
        }

    def parse_arguments(self, arguments: JsonObject) -> Message:
        """Return the request. Raises CodecError with each field that is invalid, as a path in the request."""
        known = self.input_schema["properties"]
        # Checked here: an omitted field belongs to the request, but is not an argument.
        if unknown := sorted(map(printable_key, arguments.keys() - known.keys()))[:MAX_REPORTED]:
            raise CodecError([FieldViolation(name, f"is not an argument of {self.name}") for name in unknown])
        request = dict(arguments)
        if self.lifted is not None:
            own = {field.json_name for field in self._request.fields}
            request = {key: value for key, value in arguments.items() if key in own}
            request[self.lifted] = {key: value for key, value in arguments.items() if key not in own}
        return from_json(request, self.method.request)

    def argument_name(self, path: str) -> str:
        name = json_path(self.method.request, path)
        return name if self.lifted is None else name.removeprefix(f"{self.lifted}.")


def select_values(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a path in a response, or None; for lists, at most MAX_MEMBERS distinct values."""
    if isinstance(value, list):
        found = [select_values(each, path) for each in value]
        leaves = (leaf for each in found for leaf in (each if isinstance(each, list) else [each]))
        return list(dict.fromkeys(leaves))[:MAX_MEMBERS]
    if not path or value is None:
        return value
    return select_values(value.get(path[0]), path[1:])


CORRELATION_ID: Final = "correlationId"
COMMAND_ADVICE: Final = (
    "If you are about to run a shell command, pass all of it, word for word, in `command`, with its `shell` and"
    " `directory`; name the files that a tool reads or writes in `reads` and `writes`: rules read these."
)
VERDICT_MEMBERS: Final = {
    "violatedRules": "violations.guardrailId",
    "missingInputs": "violations.missingInputs.name",
    "approvalId": "approval.id",
}

TOOLS: Final = (
    ContractTool(
        name="look_before_acting",
        title="Look before acting",
        description=(
            "Announce what you are about to do, before you do it: a change to code, data or infrastructure, a"
            " deployment, a message to people, anything that costs money or cannot be undone."
            f" {COMMAND_ADVICE} Answers with a verdict of"
            " the guardrails (act only if it is allowed), similar past decisions and how they turned out, what governs"
            " the code at the paths that you name, and suggestions. The announcement is recorded."
            " Announce a changed plan again under the same correlationId."
        ),
        method_name="cstp.announceIntent",
        render=tool_texts.render_announcement,
        facts_argument="metadata",
        verdict_member="guardrailStatus",
        members={
            **{name: f"guardrailStatus.{path}" for name, path in VERDICT_MEMBERS.items()},
            CORRELATION_ID: CORRELATION_ID,
            "revision": "revision",
        },
    ),
    ContractTool(
        name="check_action",
        title="Check an action",
        description=(
            "Ask whether the guardrails allow one concrete action, without announcing it: cheaper than"
            f" look_before_acting, for a step within what you announced. {COMMAND_ADVICE}"
            " Give the facts that rules read in `context`;"
            " the resource cstp://rulebook/inputs lists them. Act only if the answer is ALLOWED."
        ),
        method_name="cstp.checkGuardrails",
        lifted="action",
        render=tool_texts.render_verdict,
        read_only=True,
        facts_argument="context",
        members=VERDICT_MEMBERS,
    ),
    ContractTool(
        name="find_decisions",
        title="Find decisions",
        description=(
            "Search past decisions by meaning and words, the most relevant first: what was decided, how it turned out"
            " and what was learnt. Use it before you choose between alternatives, and to find what failed before."
        ),
        method_name="cstp.queryDecisions",
        render=tool_texts.render_search,
        read_only=True,
        members={"decisionIds": "decisions.id"},
    ),
    ContractTool(
        name="record_decision",
        title="Record a decision",
        description=(
            "Record a decision that you took, with your confidence and reasons, so that you and others find it later."
            " Give a requestId if you may have to repeat the call. Review it with review_decision once you know how it"
            " turned out. It is private unless visibility is shared."
        ),
        method_name="cstp.recordDecision",
        lifted="decision",
        render=tool_texts.render_recorded_decision,
        members={"id": "decision.id"},
    ),
    ContractTool(
        name="review_decision",
        title="Review a decision",
        description=(
            "Say how a decision turned out, and what is to be learnt from it in `notes`. Do it as soon as the outcome"
            " is known, for failures too: these are what warns the next one. The latest review counts."
        ),
        method_name="cstp.reviewDecision",
        render=tool_texts.render_reviewed_decision,
        members={"id": "decision.id"},
    ),
    ContractTool(
        name="record_thought",
        title="Record a thought",
        description=(
            "Attach a step of your reasoning to what you work on: an assumption, an alternative that you rejected, a"
            " doubt. Name the intent by the correlationId of look_before_acting, or a decision by its decisionId."
            " Give a requestId if you may have to repeat the call. It is private unless visibility is shared, and"
            " expires."
        ),
        method_name="cstp.recordThought",
        render=tool_texts.render_recorded_thought,
        members={"id": "thought.id"},
    ),
    ContractTool(
        name="session_context",
        title="Remember earlier sessions",
        description=(
            "Read at the start of a session what you should know: your decisions whose outcome is to be reviewed, that"
            " failed and that are recent, lessons by category, the rules and the facts that they read, what your stated"
            " confidence has meant, what other agents are doing, and what governs the paths that you name. Say in"
            " `task` what you are going to do. maxTokens bounds the answer, which lists the omitted parts."
        ),
        method_name="cstp.getSessionContext",
        render=tool_texts.render_session_context,
        read_only=True,
    ),
    ContractTool(
        name="code_context",
        title="Read the contracts of code",
        description=(
            "Read the rules of a file or folder before you edit it: contracts, pitfalls, checks and boundaries,"
            " from the AGENTS.md and CLAUDE.md files that cover it. maxTokens bounds the answer."
        ),
        method_name="intentLayer.resolveContext",
        render=tool_texts.render_code_context,
        read_only=True,
    ),
    ContractTool(
        name="report_learning",
        title="Report a learning",
        description=(
            "File what you learned at work and would have liked to know before: a pitfall, a check, a pattern or an"
            " insight about paths of a project. A person reviews it before it changes any file."
        ),
        method_name="intentLayer.reportLearning",
        render=tool_texts.render_learning,
        members={"id": "learning.id"},
    ),
)
"""In the order of the list: models use the first tools first."""

TOOLS_BY_NAME: Final[Mapping[str, ContractTool]] = {tool.name: tool for tool in TOOLS}
