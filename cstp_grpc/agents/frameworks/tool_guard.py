"""Guarded tool calls for all frameworks: checked before the call, recorded, and reviewed with their outcome.

An adapter enters a GuardedToolCall around the call of the tool. If entering raises, the adapter reports the exception
to the model in the framework's own way, and the tool is not called.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, TypeAlias, TypedDict, TypeVar, Unpack, cast, get_args

from cstp_grpc.agents.hooks.hook_texts import describe_denial, describe_failure, describe_needed_approval
from cstp_grpc.agents.hooks.long_calls import MAX_DESCRIPTION_CHARACTERS
from cstp_grpc.agents.hooks.tool_rules import ANNOUNCE, NOTHING, ToolQuestion, ToolRules
from cstp_grpc.agents.mcp_server.tool_texts import join_sections, render_items
from cstp_grpc.client.async_client import AsyncCstpClient
from cstp_grpc.client.cstp_client import CstpClient
from cstp_grpc.client.guard import (
    AnyClient,
    Blocked,
    GuardedAction,
    GuardOptions,
    GuardPlan,
    execute_call,
    require_allowed,
    run_without_waiting,
)
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.quoted_text import OTHERS_NOTE, quote_text
from cstp_grpc.contract.calls import Json
from cstp_grpc.contract.errors import CstpError, DeadlineExceeded, InvalidArgument, ServerUnreachable
from cstp_grpc.contract.json_codec import to_json
from cstp_grpc.gen import calls
from cstp_grpc.gen.cstp.v1 import cstp_pb2

logger = logging.getLogger(__name__)

T = TypeVar("T")

Approvals = Literal["tell", "ask", "raise"]
"""How to handle a call that only lacks a person's approval: tell the model, ask a person in the framework's way, or
raise Blocked from the run."""
OnFailure = Literal["tell", "raise", "allow"]
"""How to handle a call that could not be checked: tell the model, raise the CstpError from the run, or call the tool
if the server could not be reached in time."""

APPROVALS: Final = get_args(Approvals)
ON_FAILURE: Final = get_args(OnFailure)
ANNOUNCE_ALL: Final = ToolRules.parse({"tools": [{"tool": "*", "ask": ANNOUNCE}]})
"""The default table of tools: every call is announced, recorded and reviewed."""
UNANSWERED: Final = (ServerUnreachable, DeadlineExceeded)
"""The failures that `on_failure="allow"` lets pass. Others are answers of the server, such as an invalid token, or
Unavailable for an unreadable file of the project: an agent could cause them."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call, as the model requested it."""

    tool: str
    arguments: Mapping[str, Any]


class ToolCallRefused(Exception):
    """A tool is not called; the text is for the model, `cause` is the reason."""

    def __init__(self, text: str, cause: Blocked | CstpError) -> None:
        super().__init__(text)
        self.text = text
        self.cause = cause


class ApprovalNeeded(ToolCallRefused):
    """A tool is not called before a person approves it; `question` is the text for that person."""

    def __init__(self, text: str, cause: Blocked, question: str) -> None:
        super().__init__(text, cause)
        self.question = question


class ToolFailed(Exception):
    """A tool was called and its result reports a failure."""


class ToolSuspended(BaseException):
    """A tool was called and waits for something outside of the run, such as a person; it may be called again."""


class ToolGuardOptions(TypedDict, total=False):
    """Optional settings of a ToolGuard."""

    rules: ToolRules
    """The table of tools and of the questions about their calls. [default: announce every call]"""
    folder: Path
    """The project's folder, to which paths are relative. [default: the working folder]"""
    project: str
    """The project's name on the server; paths are announced only with it."""
    inputs: Callable[[ToolCall], Mapping[str, Json]]
    """Computes inputs of the guardrails from a call, in addition to those of the rules."""
    confidence: float | Callable[[ToolCall], float | None]
    """The agent's confidence, 0 to 1, or a function that returns it for a call."""
    approvals: Approvals
    """How to handle calls that a person may approve. [default: tell]"""
    on_failure: OnFailure
    """How to handle calls that cannot be checked. [default: tell]"""
    record: bool
    """Whether announced calls are recorded as decisions and their outcomes reviewed. [default: True]"""
    share: bool
    """Whether every agent may read the recorded decisions. [default: False]"""
    timeout: float
    """Timeout of each request to the server in seconds. [default: the client's]"""


class ToolGuard:
    """Checks the tool calls of an agent against the guardrails of a server; the adapters of frameworks use it.

    An AsyncCstpClient serves asynchronous agents only, a CstpClient both kinds: asynchronous agents wait for it in
    another thread. Raises TypeError for unknown options, ValueError for unknown values.
    """

    def __init__(self, client: AnyClient, **options: Unpack[ToolGuardOptions]) -> None:
        # A misspelled option, such as `aprovals`, would guard less than intended.
        if unknown := sorted(options.keys() - ToolGuardOptions.__annotations__.keys()):
            raise TypeError(f"ToolGuard() has no option {unknown[0]!r}")
        self._client = client
        self._approvals = require_word("approvals", options.get("approvals", "tell"), APPROVALS)
        self._on_failure = require_word("on_failure", options.get("on_failure", "tell"), ON_FAILURE)
        self._rules = options.get("rules", ANNOUNCE_ALL)
        self._folder = str(options.get("folder", Path.cwd()))
        self._inputs = options.get("inputs")
        self._confidence = options.get("confidence")
        self._project = options.get("project")
        self._record = options.get("record", True)
        self._share = options.get("share", False)
        self._timeout = options.get("timeout")
        if self._record and not isinstance(client, (CstpClient, AsyncCstpClient)):
            raise TypeError("a FederatedClient records nothing: guard with record=False")

    @property
    def asks_persons(self) -> bool:
        """Whether the framework asks a person about calls that need approval."""
        return self._approvals == "ask"

    def guard_call(self, tool: str, arguments: Mapping[str, Any], *, approved: bool = False) -> GuardedToolCall:
        """Return the context manager for one call; `approved` means that a person has approved it.

        `approved` counts only if the settings are to ask a person; otherwise only approvals on the server count.
        """
        # Validated arguments may contain more than JSON, such as dates.
        call = ToolCall(tool, json.loads(json.dumps(dict(arguments), default=str)))
        return GuardedToolCall(self, call, approved=approved and self.asks_persons)

    def action_of(self, call: ToolCall, *, approved: bool) -> ActionOfCall | None:
        """Return the guarded action of a call, or None if the rules skip the tool."""
        question = self._rules.question_about(call.tool, call.arguments, self._folder)
        description = question.description or f"Call {call.tool}"
        if question.ask == NOTHING:
            return None
        if len(description) > MAX_DESCRIPTION_CHARACTERS:
            return OverlongAction(len(description))
        options = self._stated_options(call, question)
        if question.ask != ANNOUNCE:
            return CheckedAction(self._client, description, options, self._timeout, approved=approved)
        options |= {"record": self._record, "share": self._share}
        if self._timeout is not None:
            options["timeout"] = self._timeout
        if self._project is not None and question.paths:
            options["paths"] = question.paths
        return GuardedAction(self._client, GuardPlan(description, options), approved=approved)

    def refusal_of(self, cause: Blocked | CstpError) -> ToolCallRefused | None:
        """Return why a call is refused, or None if it is made anyway. Raises the cause if the settings say so."""
        if isinstance(cause, Blocked):
            if cause.approvable and self._approvals == "raise":
                raise cause
            if cause.approvable and self._approvals == "ask":
                question = describe_needed_approval(to_json(cause.response.guardrail_status))
                return ApprovalNeeded(describe_blocked(cause), cause, question)
            return ToolCallRefused(describe_blocked(cause), cause)
        if self._on_failure == "raise":
            raise cause
        if self._on_failure == "allow" and isinstance(cause, UNANSWERED):
            logger.warning("A tool is called without a verdict: %s", cause.message)
            return None
        return ToolCallRefused(describe_failure(cause.message), cause)

    async def execute(self, step: Coroutine[Any, Any, T]) -> T:
        if isinstance(self._client, AsyncCstpClient):
            return await step
        # With a synchronous client, the step never suspends; it blocks its thread.
        return await asyncio.to_thread(run_without_waiting, step)

    def execute_sync(self, step: Coroutine[Any, Any, T]) -> T:
        """Run a step of a guarded call without an event loop. Raises TypeError for an AsyncCstpClient."""
        if isinstance(self._client, AsyncCstpClient):
            step.close()
            raise TypeError("an AsyncCstpClient guards asynchronous agents only: give the ToolGuard a CstpClient")
        return run_without_waiting(step)

    def _stated_options(self, call: ToolCall, question: ToolQuestion) -> GuardOptions:
        inputs = {} if self._inputs is None else self._inputs(call)
        options = GuardOptions(metadata={**inputs, **question.inputs})
        options |= cast(GuardOptions, question.invocation)
        confidence = self._confidence(call) if callable(self._confidence) else self._confidence
        if confidence is not None:
            options["confidence"] = confidence
        if question.category is not None:
            options["category"] = question.category
        if question.stakes is not None:
            options["stakes"] = question.stakes
        if self._project is not None:
            options["project"] = self._project
        return options


class CheckedAction:
    """An action that is only checked: nothing is recorded."""

    def __init__(
        self, client: AnyClient, description: str, options: GuardOptions, timeout: float | None, *, approved: bool
    ) -> None:
        self._client = client
        self._timeout = timeout
        self._approved = approved
        self._call = calls.check_guardrails(
            description,
            category=options.get("category"),
            stakes=options.get("stakes"),
            confidence=options.get("confidence"),
            context=cast(Mapping[str, Json], options.get("metadata")),
            project=options.get("project"),
            command=options.get("command"),
            shell=options.get("shell"),
            directory=options.get("directory"),
            reads=options.get("reads", ()),
            writes=options.get("writes", ()),
        )

    async def __aenter__(self) -> None:
        checked = await execute_call(self._client, self._call, self._timeout)
        # Both messages spell the members of a verdict alike.
        known = cstp_pb2.GuardrailStatus.DESCRIPTOR.fields_by_name
        members = {member.name: value for member, value in checked.ListFields() if member.name in known}
        verdict = cstp_pb2.GuardrailStatus(**members)
        response = cstp_pb2.AnnounceIntentResponse(guardrail_status=verdict)
        require_allowed(self._call.values["action"]["description"], response, approved=self._approved)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: the outcome of a checked action is not recorded."""


class OverlongAction:
    """An action that is never begun, because its description is longer than guardrails read."""

    def __init__(self, length: int) -> None:
        self._length = length

    async def __aenter__(self) -> NoReturn:
        raise InvalidArgument(
            f"the call has {self._length} characters, of which guardrails read {MAX_DESCRIPTION_CHARACTERS}. Make"
            " several shorter calls, or have somebody describe the tool without its data in the table of tools"
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: it was not begun."""


ActionOfCall: TypeAlias = GuardedAction | CheckedAction | OverlongAction


class GuardedToolCall:
    """Checks one tool call on entering and records its outcome on leaving; synchronous or asynchronous.

    Entering raises ToolCallRefused, such as ApprovalNeeded, or Blocked or a CstpError if the settings of the guard say
    so. An exception that leaves the block is the outcome: an abandoned call if it is one of `suspending` or not an
    Exception, otherwise a failure.
    """

    def __init__(self, tool_guard: ToolGuard, call: ToolCall, *, approved: bool) -> None:
        self._guard = tool_guard
        self._action = tool_guard.action_of(call, approved=approved)
        self._begun: ActionOfCall | None = None
        self._error: BaseException | None = None
        self.suspending: tuple[type[BaseException], ...] = ()
        """Exceptions with which the framework suspends a call, to repeat it later."""

    def fail(self, notes: str) -> None:
        """Note that the tool failed although it raised nothing; `notes` are recorded."""
        self._error = ToolFailed(notes)

    def suspend(self, notes: str) -> None:
        """Note that the tool has not ended, and that this call will get no further result."""
        self._error = ToolSuspended(notes)

    def __enter__(self) -> GuardedToolCall:
        if self._action is not None:
            self._guard.execute_sync(self._begin(self._action))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun is not None:
            self._guard.execute_sync(self._end(self._begun, error))

    async def __aenter__(self) -> GuardedToolCall:
        if self._action is not None:
            await self._guard.execute(self._begin(self._action))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun is not None:
            await self._guard.execute(self._end(self._begun, error))

    async def _begin(self, action: ActionOfCall) -> None:
        try:
            await action.__aenter__()
        except (Blocked, CstpError) as cause:
            if refusal := self._guard.refusal_of(cause):
                raise refusal from cause
        else:
            self._begun = action

    async def _end(self, action: ActionOfCall, error: BaseException | None) -> None:
        ended = error or self._error
        if isinstance(ended, self.suspending):
            ended = ToolSuspended(type(ended).__name__)
        await action.__aexit__(type(ended) if ended else None, ended, None)


def describe_blocked(blocked: Blocked) -> str:
    """Tell a model why a call is not made, and what to do instead."""
    if not blocked.response.HasField("guardrail_status"):
        return describe_failure("the server gave no verdict")
    verdict = to_json(blocked.response.guardrail_status)
    suggestions = render_items("Suggestions", map(quote_text, blocked.suggestions), note=OTHERS_NOTE)
    return join_sections([describe_denial(verdict), suggestions])


def require_word(option: str, value: str, words: tuple[str, ...]) -> str:
    """Return the value of an option. Raises ValueError unless it is one of the words."""
    if value not in words:
        raise ValueError(f"{option} must be one of {', '.join(words)}")
    return value
