"""Answers the events of a session: asks a server, and fails closed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cstp_grpc.agents.hooks import hook_texts, long_calls
from cstp_grpc.agents.hooks.model import HookAnswer, HookDecision, HookEvent, HookMoment
from cstp_grpc.agents.hooks.server_calls import JsonObject, ServerCallFailed, ServerCalls
from cstp_grpc.agents.hooks.tool_rules import ANNOUNCE, NOTHING, ToolQuestion, ToolRules, path_in_project
from cstp_grpc.common.quoted_text import quote_name

if TYPE_CHECKING:
    from cstp_grpc.agents.hooks.learning_blocks import StatedLearning

APPROVE: Final = "approve"
"""The severity of a violation that a person may approve."""
INVALID_ARGUMENT: Final = "INVALID_ARGUMENT"
"""The reason of an invalid call."""
INTERNAL: Final = "INTERNAL"
"""The reason of an invalid answer."""
UNANSWERED: Final = frozenset({"", "UNAVAILABLE", "DEADLINE_EXCEEDED"})
"""The reasons of failures that `--on-failure allow` lets pass; empty if no server has answered."""
SEVERAL_PROJECTS: Final = "there are several"
"""The server's error for a project that must be named."""
CORRELATION_ID: Final = re.compile(r"[!-~]{1,128}")
"""A correlation id of the contract."""
CONTRACT_TOKENS: Final = 1500
"""Maximum number of tokens about a file. Chosen: fewer than an answer to an announcement has at most."""
MAX_READ_PATHS: Final = 5
"""Maximum number of files of one call whose contracts are read. Chosen: each is a call to the server."""
SIMILAR_DECISIONS: Final = 3
"""Maximum number of similar decisions in the answer to a prompt. Chosen: few enough that a model reads them."""
SESSION_TOKENS: Final = 1500
"""Token budget for the context of earlier sessions. Chosen: two thirds of the context that a model gets at once."""


class FailurePolicy(StrEnum):
    """How to answer a tool call that could not be checked."""

    ASK = "ask"
    DENY = "deny"
    ALLOW = "allow"
    """The agent goes on as without the hook, and its user is told; asks if the server refuses to check."""


class ApprovalPolicy(StrEnum):
    """How to answer a tool call that a guardrail lets a person approve."""

    ASK = "ask"
    """The agent's user decides."""
    DENY = "deny"
    """The call waits for an approval on the server, by a person that the guardrail accepts."""


class HookSettings(NamedTuple):
    """How events are answered."""

    rules: ToolRules
    project: str | None = None
    """The project's name on the server; None for its only project."""
    tells_before_tool: bool = True
    """Whether the model can get context before a tool call; otherwise the contracts of a file come after the call."""
    hears_last_message: bool = True
    """Whether the end of a turn includes the agent's message."""
    on_failure: FailurePolicy = FailurePolicy.ASK
    approvals: ApprovalPolicy = ApprovalPolicy.ASK


def answer_event(event: HookEvent, calls: ServerCalls, settings: HookSettings) -> HookAnswer:
    """Return the answer to an event. Does not raise if the server fails: that is an answer, too."""
    try:
        match event.moment:
            case HookMoment.SESSION_STARTED:
                return start_session(calls, settings)
            case HookMoment.PROMPT_SUBMITTED:
                return answer_prompt(event, calls)
            case HookMoment.BEFORE_TOOL:
                return judge_tool_call(event, calls, settings)
            case HookMoment.AFTER_TOOL:
                return close_tool_call(event, calls, settings)
            case HookMoment.TURN_ENDED:
                return file_learnings(event, calls, settings)
            case _:
                return HookAnswer()
    except ServerCallFailed as error:
        return answer_failure(event.moment, error.message, settings.on_failure, error.reason or INTERNAL)
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        # Another version of the server, or something else at its address.
        why = f"the server's answer does not fit the contract ({type(error).__name__}: {error})"
        return answer_failure(event.moment, why, settings.on_failure, INTERNAL)


def answer_failure(moment: HookMoment, why: str, policy: FailurePolicy, reason: str = "") -> HookAnswer:
    """Return the answer to an event that could not be handled; `reason` is that of a failed call."""
    said = hook_texts.describe_failure(why)
    # An agent could cause a refusal, such as by withholding the token: only a missing answer may allow a call.
    if policy is FailurePolicy.ALLOW and reason not in UNANSWERED:
        policy = FailurePolicy.ASK
    if moment is not HookMoment.BEFORE_TOOL or policy is FailurePolicy.ALLOW:
        return HookAnswer(notice=said)
    return HookAnswer(HookDecision.ASK if policy is FailurePolicy.ASK else HookDecision.DENY, said)


def start_session(calls: ServerCalls, settings: HookSettings) -> HookAnswer:
    """Tell the model which rules check it, what earlier sessions left, and how to file learnings."""
    # Without the project, whose files coding agents read by themselves.
    remembered = calls.call("cstp.getSessionContext", {"maxTokens": SESSION_TOKENS})["markdown"]
    rules = ""
    # The token may lack the permission.
    with suppress(ServerCallFailed, KeyError):
        rules = describe_rules_of(calls)
    introduction = hook_texts.introduce_session(remembered, rules, files_learnings=files_learnings(settings))
    return HookAnswer(context=introduction)


def describe_rules_of(calls: ServerCalls) -> str:
    """Return the line about the rulebooks of a server. Raises ServerCallFailed and KeyError."""
    rulebooks = calls.call("cstp.getRulebook", {})["rulebooks"]
    return hook_texts.describe_rules([quote_name(each["name"]) for each in rulebooks])


def files_learnings(settings: HookSettings) -> bool:
    """Return whether to file the learnings that the agent states at the end of its turn."""
    return settings.project is not None and settings.hears_last_message


def answer_prompt(event: HookEvent, calls: ServerCalls) -> HookAnswer:
    """Tell the model which past decisions resemble the user's prompt."""
    if not event.prompt.strip():
        return HookAnswer()
    # Cut, since it is only a search query.
    query = {"query": event.prompt.strip()[: long_calls.MAX_DESCRIPTION_CHARACTERS], "limit": SIMILAR_DECISIONS}
    return HookAnswer(context=hook_texts.describe_precedents(calls.call("cstp.queryDecisions", query)["decisions"]))


def judge_tool_call(event: HookEvent, calls: ServerCalls, settings: HookSettings) -> HookAnswer:
    """Check a tool call before it is made. Raises ServerCallFailed and KeyError."""
    question = settings.rules.question_about(event.tool, event.arguments, event.folder)
    if question.ask == NOTHING:
        return HookAnswer()
    if len(question.invocation.get("command", "")) > long_calls.MAX_COMMAND_CHARACTERS:
        why = f"the command has more than {long_calls.MAX_COMMAND_CHARACTERS} characters; put its data into a file"
        return answer_failure(event.moment, why, FailurePolicy.DENY)
    if "command" in question.invocation:
        # Cut: guardrails read the command itself.
        question = question._replace(description=question.description[: long_calls.MAX_DESCRIPTION_CHARACTERS])
    # Not cut: guardrails cannot forbid text that they do not read.
    if len(question.description) > long_calls.MAX_DESCRIPTION_CHARACTERS:
        return judge_in_parts(event, question, calls, settings)
    if question.ask == ANNOUNCE:
        return judge_announcement(event, question, calls, settings)
    verdict = calls.call("cstp.checkGuardrails", check_params(event, question, settings))
    return answer_verdict(verdict, lambda: hook_texts.describe_warnings(verdict), settings.approvals)


def judge_announcement(
    event: HookEvent, question: ToolQuestion, calls: ServerCalls, settings: HookSettings
) -> HookAnswer:
    """Announce a tool call, and return the answer for the feedback. Raises ServerCallFailed and KeyError."""
    params = announcement_params(event, question)
    code = {"paths": list(question.paths)} if question.paths else {}
    project = {} if settings.project is None else {"project": settings.project}
    notice = ""
    try:
        response = calls.call("cstp.announceIntent", {**params, **code, **project})
    except ServerCallFailed as error:
        # A server without projects, or with several, cannot find the contracts of the paths; it can check the words.
        if project or not code or error.violations.keys() != {"project"}:
            raise
        response = calls.call("cstp.announceIntent", params)
        # A server without projects is not a mistake, but not naming one of several is.
        if SEVERAL_PROJECTS in error.violations["project"]:
            notice = hook_texts.NAME_PROJECT
    verdict = response.get("guardrailStatus")
    if verdict is None:
        raise ServerCallFailed("the server gave no verdict")
    answer = answer_verdict(verdict, lambda: hook_texts.describe_announcement(response), settings.approvals)
    return answer._replace(notice=notice)


def judge_in_parts(event: HookEvent, question: ToolQuestion, calls: ServerCalls, settings: HookSettings) -> HookAnswer:
    """Check a tool call that is longer than guardrails read at once. Raises ServerCallFailed and KeyError.

    Each part may be denied. If no part is, the call has not been checked as a whole: that is a failure.
    """
    length = len(question.description)
    if length > long_calls.MAX_CALL_CHARACTERS:
        why = f"the call has {length} characters, more than {long_calls.MAX_CALL_CHARACTERS}; put its data into a file"
        return answer_failure(event.moment, why, FailurePolicy.DENY)
    parts = [question._replace(description=part) for part in long_calls.split_description(question.description)]
    actions = [check_params(event, part, settings)["action"] for part in parts]
    results = calls.call("cstp.batchCheckGuardrails", {"actions": actions})["results"]
    if len(results) != len(actions):
        raise ServerCallFailed("the server checked only some parts of the call")
    answers = [answer_verdict(each["verdict"], str, settings.approvals) for each in results]
    for decision in (HookDecision.DENY, HookDecision.ASK):
        if objecting := [answer for answer in answers if answer.decision is decision]:
            return objecting[0]
    read = f"of which guardrails read {long_calls.MAX_DESCRIPTION_CHARACTERS} at once"
    why = f"the call has {length} characters, {read}; no part is forbidden, but the call as a whole was not checked"
    return answer_failure(event.moment, why, settings.on_failure)


def answer_verdict(verdict: JsonObject, describe: Callable[[], str], approvals: ApprovalPolicy) -> HookAnswer:
    """Return the answer for a verdict; unless it denies, the context is described. Raises KeyError if invalid."""
    # Fail closed: violations block even if `allowed` is true, and so does a value that is not a list of them.
    if verdict["allowed"] is True and verdict["violations"] == []:
        return HookAnswer(context=describe())
    approvable = verdict["approvalRequired"] is True and all(
        each["severity"] == APPROVE for each in verdict["violations"]
    )
    if approvable and approvals is ApprovalPolicy.ASK:
        return HookAnswer(HookDecision.ASK, hook_texts.describe_needed_approval(verdict), describe())
    return HookAnswer(HookDecision.DENY, hook_texts.describe_denial(verdict))


def announcement_params(event: HookEvent, question: ToolQuestion) -> JsonObject:
    params: dict[str, Any] = {
        "intent": describe_call(event, question),
        "metadata": question.inputs,
        **question.invocation,
    }
    if CORRELATION_ID.fullmatch(event.call_id):
        params["correlationId"] = event.call_id
    return {**params, **stated_facts(question)}


def check_params(event: HookEvent, question: ToolQuestion, settings: HookSettings) -> JsonObject:
    action = {
        "description": describe_call(event, question),
        "context": question.inputs,
        **question.invocation,
        **stated_facts(question),
    }
    if settings.project is not None:
        action["project"] = settings.project
    return {"action": action}


def describe_call(event: HookEvent, question: ToolQuestion) -> str:
    """Return the description of a tool call, which is never blank."""
    return question.description or f"Call {event.tool or 'a tool without a name'}"


def stated_facts(question: ToolQuestion) -> Mapping[str, str]:
    facts = {"category": question.category, "stakes": question.stakes}
    return {name: value for name, value in facts.items() if value is not None}


def close_tool_call(event: HookEvent, calls: ServerCalls, settings: HookSettings) -> HookAnswer:
    """Close the intent of a tool call that was announced. Raises ServerCallFailed."""
    question = settings.rules.question_about(event.tool, event.arguments, event.folder)
    if question.ask != ANNOUNCE or not CORRELATION_ID.fullmatch(event.call_id):
        return HookAnswer()
    outcome = "failure" if event.failed else "success"
    try:
        calls.call("cstp.closeIntent", {"correlationId": event.call_id, "outcome": outcome})
    except ServerCallFailed as error:
        # Not announced, because the server could not be reached (the user was told); or the same call was made before,
        # by an agent that gives calls no ids, and ended in another way.
        if error.reason not in ("NOT_FOUND", "CONFLICT"):
            raise
    if settings.tells_before_tool or settings.project is None:
        return HookAnswer()
    return HookAnswer(context=read_contracts(question.paths, calls, settings.project))


def read_contracts(paths: Sequence[str], calls: ServerCalls, project: str) -> str:
    """Return the contracts of paths of a project, as text for the model. Raises ServerCallFailed."""
    wanted = {"project": project, "compact": True, "maxTokens": CONTRACT_TOKENS}
    found = (calls.call("intentLayer.resolveContext", {**wanted, "path": path}) for path in paths[:MAX_READ_PATHS])
    return hook_texts.describe_contracts([each["markdown"] for each in found])


def file_learnings(event: HookEvent, calls: ServerCalls, settings: HookSettings) -> HookAnswer:
    """File the learnings that the agent states at the end of its turn, and have it correct invalid ones."""
    from cstp_grpc.agents.hooks.learning_blocks import read_learnings  # most turns and all tool calls need none

    learnings = list(read_learnings(event.last_message))
    if learnings and settings.project is None:
        return HookAnswer(notice=hook_texts.NEEDS_PROJECT)
    filed: list[str] = []
    mistakes: list[str] = []
    failures: list[str] = []
    for learning in learnings:
        if learning.problem:
            mistakes.append(learning.problem)
            continue
        try:
            filed.append(file_learning(learning, event, calls, settings.project or ""))
        except ServerCallFailed as error:
            # The user is told about failures that the agent cannot correct.
            (mistakes if error.reason == INVALID_ARGUMENT else failures).append(error.message)
    told = [hook_texts.describe_filed(filed), *map(hook_texts.describe_failure, failures)]
    reason = hook_texts.describe_unfiled(mistakes) if mistakes else ""
    # Only once: an agent that cannot correct it must be able to end.
    if not mistakes or event.continued:
        return HookAnswer(notice="\n".join(filter(None, [*told, reason])))
    return HookAnswer(reason=reason, notice="\n".join(filter(None, told)), keep_going=True)


def file_learning(learning: StatedLearning, event: HookEvent, calls: ServerCalls, project: str) -> str:
    """File one learning and return its id. Raises ServerCallFailed."""
    path = path_in_project(learning.path, event.folder) or learning.path
    stated = {"type": learning.type, "path": path, "title": learning.title, "detail": learning.detail}
    filed: str = calls.call("intentLayer.reportLearning", {"project": project, **stated})["learning"]["id"]
    return filed
