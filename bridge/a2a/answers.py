"""What became of a call, as A2A tells it: the state of a task, its status message and its artifact."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from a2a.types.a2a_pb2 import Artifact, Part, Role, Task, TaskState

from bridge.a2a.media import JSON, TEXT
from bridge.a2a.messages import ANNOUNCE, Announcement, Request
from bridge.a2a.prose import one_line, text_of
from bridge.a2a.tasks import copy_of
from bridge.status import Failure, summary, violations
from cstp_grpc.client import json_known

CHECK: Final = "cstp.checkGuardrails"


@dataclass(frozen=True, slots=True)
class Answer:
    """How a task ends."""

    state: TaskState
    status: tuple[Part, ...]
    """What the status message says."""
    artifact: Artifact | None = None


def answered(method: str, result: Mapping[str, Any], media_types: Collection[str]) -> Answer:
    """Return the answer that the result of a method is, with an artifact of the media types that are wanted."""
    text = text_of(method, result)
    parts = {JSON: data_part(result), TEXT: text_part(text)}
    artifact = Artifact(
        artifact_id=uuid.uuid4().hex,
        name=method,
        parts=[part for media_type, part in parts.items() if media_type in media_types],
    )
    headline = text.partition("\n")[0]
    if not is_blocked(method, result):
        return Answer(TaskState.TASK_STATE_COMPLETED, (text_part(headline),), artifact)
    missing = required_inputs(result["guardrailStatus"]) if method == ANNOUNCE else []
    if not missing:
        return Answer(TaskState.TASK_STATE_REJECTED, (text_part(headline),), artifact)
    asked = "; ".join(map(describe_input, missing))
    question = f"{headline}. To have it judged again, give in a data part of this task: {asked}"
    return Answer(
        TaskState.TASK_STATE_INPUT_REQUIRED, (text_part(question), data_part({"missingInputs": missing})), artifact
    )


def required_inputs(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the inputs that were not given and that all guardrails which block may allow the intent for, by name.

    They are none if a guardrail blocks whatever is given, since giving them would not help then.
    """
    missing = [violation.get("missingInputs", []) for violation in verdict["violations"]]
    found = {each["name"]: dict(each) for inputs in missing for each in inputs}
    return [found[name] for name in sorted(found)] if all(missing) else []


def describe_input(given: Mapping[str, Any]) -> str:
    """Return an input as a sentence asks for it."""
    about = f", {one_line(given['description'])}" if given.get("description") else ""
    return f"{given['name']} ({given['type']}{about})"


def failed(failure: Failure, request_id: str) -> Answer:
    """Return the answer that a failure is; `request_id` is used where it does not bring its own."""
    error = {"reason": failure.reason, "message": failure.message, "requestId": request_id, **failure.details}
    text = f"Failed: {failure.message} ({failure.reason})"
    return Answer(TaskState.TASK_STATE_FAILED, (text_part(text), data_part({"error": error})))


def canceled() -> Answer:
    """Return the answer to whoever calls a task off."""
    return Answer(TaskState.TASK_STATE_CANCELED, (text_part("Canceled by its owner"),))


def with_answer(task: Task, answer: Answer) -> Task:
    """Return the task as it ends with an answer."""
    ended = copy_of(task)
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


def is_blocked(method: str, result: Mapping[str, Any]) -> bool:
    """Whether guardrails block what was asked."""
    verdict = {ANNOUNCE: result.get("guardrailStatus"), CHECK: result}.get(method)
    return verdict is not None and not verdict["allowed"]


def placed_in_message(failure: Failure, request: Request) -> Failure:
    """Return a failure that names wrong params by where the message says them.

    Whoever calls a method wrote its params; whoever announces in words did not.
    """
    found = failure.wrong_fields
    if not isinstance(request, Announcement) or not found:
        return failure
    moved = [(place_of(field, request.places), description) for field, description in found]
    details = {**failure.details, "violations": violations(moved)}
    return Failure(failure.reason, summary(moved), codes=failure.codes, details=details)


def place_of(path: str, places: Mapping[str, str]) -> str:
    """Return where in the message the params' field at a path comes from; the path where that is not known."""
    if path in places:
        return places[path]
    name, dot, rest = path.partition(".")
    return f"{places[name]}{dot}{rest}" if name in places else path


def text_part(text: str) -> Part:
    """Return a part of text."""
    return Part(text=text, media_type=TEXT)


def data_part(content: Mapping[str, Any]) -> Part:
    """Return a part of data. Raises ValueError where it is not JSON."""
    part = Part(media_type=JSON)
    part.data.struct_value.SetInParent()
    json_known.fill_struct(part.data.struct_value, content)
    return part
