"""The result of a task: its final state, status message and artifact, and its text in Markdown-safe form."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from a2a.types.a2a_pb2 import Artifact, Part, Role, Task, TaskState

from bridge.a2a.message_parsing import ANNOUNCE_METHOD, APPLICATION_JSON, TEXT_PLAIN, IntentAnnouncement, MessageRequest
from bridge.a2a.task_store import copy_task
from bridge.call_errors import error_data, violation_text
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import to_single_line
from cstp_grpc.contract import json_values
from cstp_grpc.contract.errors import CstpError

Result = Mapping[str, Any]

MAX_JSON_CHARACTERS: Final = 20_000
"""Maximum number of characters of JSON in a text."""
MAX_LINE_CHARACTERS: Final = 1_000
"""Maximum number of characters of a text written by others."""
# What begins code, links or HTML in Markdown; other signs only change how a text looks.
MARKUP: Final = re.compile(r"[\\`\[\]<]")


def render_announcement(result: Result) -> list[str]:
    verdict = result.get("guardrailStatus")
    decisions, revision = result["similarDecisions"], result["revision"]
    return [
        verdict_line("this intent", verdict) if verdict else "Received. Guardrails give no verdict here.",
        *(verdict_sections(verdict) if verdict else ()),
        *list_section("Similar decisions", [decision_lines(item) for item in decisions]),
        *list_section("Related intents", [related_intent_lines(item) for item in result["relatedIntents"]]),
        *list_section("Suggestions", [[escape_line(item)] for item in result["suggestions"]]),
        "",
        f"Correlation id: {escape_line(result['correlationId'])}{f', revision {revision}' if revision > 1 else ''}",
    ]


def related_intent_lines(item: Result) -> list[str]:
    closing = item.get("closing")
    state = f"closed with {closing['outcome']}" if closing else "open"
    agent = "/".join(item[name] for name in ("origin", "agent") if name in item)
    lines = [f"{escape_line(agent)} at {item['receivedAt']}, {state}: {escape_line(item['intent'])}"]
    return [*lines, f"Notes: {escape_line(closing['notes'])}"] if closing and "notes" in closing else lines


def render_query(result: Result) -> list[str]:
    decisions = result["decisions"]
    query = f"“{escape_line(result['query'])}”"
    if not decisions:
        return [f"No past decision resembles {query}."]
    return [
        f"{count_noun(len(decisions), 'past decision')} found for {query}.",
        *list_section("Decisions", [decision_lines(item) for item in decisions]),
    ]


def render_json(method: str, result: Result) -> list[str]:
    """Return a heading and the JSON of a result, indented so that Markdown does not format it."""
    content = json.dumps(result, ensure_ascii=False, indent=2)
    lines = [f"{method} answered.", "", *(f"    {line}" for line in content[:MAX_JSON_CHARACTERS].splitlines())]
    if len(content) > MAX_JSON_CHARACTERS:
        lines += [
            "",
            f"These are the first {MAX_JSON_CHARACTERS} of {len(content)} characters; as application/json it is whole.",
        ]
    return lines


RENDERERS: Final[Mapping[str, Callable[[Result], list[str]]]] = {
    "cstp.announceIntent": render_announcement,
    "cstp.queryDecisions": render_query,
    "cstp.checkGuardrails": lambda result: [verdict_line("this action", result), *verdict_sections(result)],
}


def verdict_line(what: str, verdict: Result) -> str:
    violations, warnings, evaluated = verdict["violations"], verdict["warnings"], verdict["evaluated"]
    if verdict.get("approvalRequired"):
        return f"Approval required for {what}: {join_messages(violations)}"
    approval = verdict.get("approval", {})
    if approval.get("status") == "denied":
        comment = f": {escape_line(approval['comment'])}" if "comment" in approval else ""
        return f"Denied: nobody may do {what}{comment}"
    if not verdict["allowed"]:
        number = len(violations)
        blocked = f"{number} of {count_noun(evaluated, 'guardrail')} block{'s' if number == 1 else ''} {what}"
        return f"Blocked: {blocked}: {join_messages(violations)}"
    allowed = f"Allowed: no guardrail of {evaluated} blocks {what}"
    return f"{allowed}, but mind: {join_messages(warnings)}" if warnings else f"{allowed}."


def join_messages(violations: Iterable[Result]) -> str:
    return "; ".join(escape_line(item["message"]) for item in violations)


def verdict_sections(verdict: Result) -> list[str]:
    return [
        *list_section("Violations", [violation_lines(item) for item in verdict["violations"]]),
        *list_section("Warnings", [violation_lines(item) for item in verdict["warnings"]]),
        *list_section("Ignored keys", [[ignored_key_line(item)] for item in verdict.get("ignoredContext", ())]),
        *list_section("Dry run", [violation_lines(item) for item in verdict.get("dryrunViolations", ())]),
    ]


def ignored_key_line(item: Result) -> str:
    hint = f" (did you mean {escape_line(item['closest'])}?)" if "closest" in item else ""
    return f"{escape_line(item['name'])}{hint}"


def violation_lines(violation: Result) -> list[str]:
    lines = [f"{escape_line(violation['name'])}: {escape_line(violation['message'])}"]
    if suggestion := violation.get("suggestion"):
        lines.append(f"Suggestion: {escape_line(suggestion)}")
    return lines


def decision_lines(decision: Result) -> list[str]:
    facts = [escape_line(decision[name]) for name in ("category", "status", "outcome") if decision.get(name)]
    if "date" in decision:
        facts.append(decision["date"][:10])
    # Agents of older versions state no score.
    facts.append(f"score {decision.get('score', 1 - decision['distance']):.2f}")
    if origin := decision.get("origin"):
        facts.append(f"from {escape_line(origin)}")
    lines = [f"{escape_line(decision['title'])} ({', '.join(facts)})"]
    if notes := decision.get("notes"):
        lines.append(f"Notes: {escape_line(notes)}")
    return lines


def list_section(heading: str, entries: Iterable[list[str]]) -> list[str]:
    """Return a list under a heading, or nothing if it would be empty."""
    lines = [line for first, *more in entries for line in (f"- {first}", *(f"  {item}" for item in more))]
    return ["", f"{heading}:", *lines] if lines else []


def escape_line(text: str) -> str:
    """Return user text on one line, truncated and with Markdown characters escaped."""
    # Line breaks of foreign text could otherwise begin a heading, a list or a new verdict.
    line = to_single_line(text)
    line = line if len(line) <= MAX_LINE_CHARACTERS else line[:MAX_LINE_CHARACTERS] + "…"
    return MARKUP.sub(lambda sign: f"\\{sign[0]}", line)


CHECK_METHOD: Final = "cstp.checkGuardrails"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The final state of a task, its status message and its artifact."""

    state: TaskState
    status: tuple[Part, ...]
    """The parts of the status message."""
    artifact: Artifact | None = None
    approval: Mapping[str, Any] | None = None
    """The pending approval request that the task waits for, as verdicts name it."""


def result_of_call(method: str, result: Mapping[str, Any], media_types: Collection[str]) -> TaskResult:
    """Return the result for the response of a method, with an artifact of the requested media types."""
    writer = RENDERERS.get(method)
    text = "\n".join(writer(result) if writer else render_json(method, result))
    parts = {APPLICATION_JSON: data_part(result), TEXT_PLAIN: text_part(text)}
    artifact = Artifact(
        artifact_id=uuid.uuid4().hex,
        name=method,
        parts=[part for media_type, part in parts.items() if media_type in media_types],
    )
    headline = text.partition("\n")[0]
    verdict = {ANNOUNCE_METHOD: result.get("guardrailStatus"), CHECK_METHOD: result}.get(method)
    if verdict is None or verdict["allowed"]:
        return TaskResult(TaskState.TASK_STATE_COMPLETED, (text_part(headline),), artifact)
    missing = find_required_inputs(result["guardrailStatus"]) if method == ANNOUNCE_METHOD else []
    approval = verdict.get("approval")
    if approval and approval["status"] == "pending":
        waits = f"{headline}. It waits until {approval['expiresAt']} for the approval {approval['id']}"
        awaited = {"approval": approval, **({"missingInputs": missing} if missing else {})}
        status = (text_part(waits), data_part(awaited))
        return TaskResult(TaskState.TASK_STATE_AUTH_REQUIRED, status, artifact, approval)
    if not missing:
        return TaskResult(TaskState.TASK_STATE_REJECTED, (text_part(headline),), artifact)
    asked = "; ".join(map(describe_input, missing))
    question = f"{headline}. To have it checked again, give in a data part of this task: {asked}"
    return TaskResult(
        TaskState.TASK_STATE_INPUT_REQUIRED, (text_part(question), data_part({"missingInputs": missing})), artifact
    )


def find_required_inputs(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the missing inputs with which every blocking guardrail may allow the intent, sorted by name.

    The list is empty if some guardrail blocks whatever is given, since inputs would not help then.
    """
    missing = [violation.get("missingInputs", []) for violation in verdict["violations"]]
    found = {each["name"]: dict(each) for inputs in missing for each in inputs}
    # `all`: one guardrail that no input can satisfy blocks in any case, and asking for the inputs of others would be in
    # vain.
    return [found[name] for name in sorted(found)] if all(missing) else []


def describe_input(given: Mapping[str, Any]) -> str:
    values = f" of {escape_line(', '.join(given['values']))}" if given.get("values") else ""
    about = f", {escape_line(given['description'])}" if given.get("description") else ""
    return f"{given['name']} ({given['type']}{values}{about})"


def result_of_failure(failure: CstpError, request_id: str) -> TaskResult:
    """Return the result for a failure; `request_id` is used if the failure has no id of its own."""
    error = {"message": failure.message, **error_data(failure, request_id)}
    text = f"Failed: {failure.message} ({failure.reason})"
    return TaskResult(TaskState.TASK_STATE_FAILED, (text_part(text), data_part({"error": error})))


def canceled_result() -> TaskResult:
    return TaskResult(TaskState.TASK_STATE_CANCELED, (text_part("Canceled by its owner"),))


def with_result(task: Task, answer: TaskResult) -> Task:
    """Return a copy of the task in its final state, with the result's status message and artifact."""
    ended = copy_task(task)
    # A result without an artifact, such as a cancellation, leaves those of the announcement before.
    if answer.artifact:
        del ended.artifacts[:]
    ended.status.Clear()
    ended.status.state = answer.state
    message = ended.status.message
    message.message_id = str(uuid.uuid4())
    message.task_id = task.id
    message.context_id = task.context_id
    message.role = Role.ROLE_AGENT
    message.parts.extend(answer.status)
    if answer.artifact:
        ended.artifacts.append(answer.artifact)
    return ended


def name_message_fields(failure: CstpError, request: MessageRequest) -> None:
    """Name the invalid params of a failure by their paths in the message.

    Only an announcement in words needs this; the caller of a method wrote its params.
    """
    if isinstance(request, IntentAnnouncement) and failure.violations:
        failure.violations = tuple(
            each._replace(field=message_field_path(each.field, request.places)) for each in failure.violations
        )
        failure.message = violation_text(failure.violations)


def message_field_path(path: str, places: Mapping[str, str]) -> str:
    """Return the path in the message from which a field of the params comes, or the field's own path if unknown."""
    if path in places:
        return places[path]
    name, dot, rest = path.partition(".")
    return f"{places[name]}{dot}{rest}" if name in places else path


def text_part(text: str) -> Part:
    return Part(text=text, media_type=TEXT_PLAIN)


def data_part(content: Mapping[str, Any]) -> Part:
    """Build a data part. Raises ValueError if the content is not JSON."""
    part = Part(media_type=APPLICATION_JSON)
    part.data.struct_value.SetInParent()
    json_values.set_trusted_struct(part.data.struct_value, content)
    return part
