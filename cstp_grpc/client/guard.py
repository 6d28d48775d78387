"""Guard functions and blocks: announce the action first, record it as a decision, review the outcome."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast, overload

from cstp_grpc.client.async_client import AsyncCstpClient
from cstp_grpc.client.cstp_client import CstpClient
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.calls import Fields, Json, UnaryCall
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Visibility
from cstp_grpc.contract.errors import PermissionDenied
from cstp_grpc.contract.rpc_errors import append_reason
from cstp_grpc.gen import calls
from cstp_grpc.gen.cstp.v1 import cstp_pb2, journal_pb2, types_pb2

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

DEFERRED_WORK_MESSAGE = "a generator runs after it was called: guard what it does, or the block that uses it"
MAX_TITLE_CHARACTERS = 500
"""Maximum length of a decision's title, in characters, as the contract limits it."""


class GuardableClient(Protocol):
    """A synchronous client that can announce: a CstpClient or a FederatedClient."""

    def make(self, call: UnaryCall[T], timeout: float | None = None) -> T:
        """Execute a call and return its response."""


AnyClient = GuardableClient | AsyncCstpClient
CallArguments = tuple[tuple[Any, ...], Mapping[str, Any]]


class Blocked(Exception):
    """The announced action is not allowed, or there was no verdict; nothing was executed.

    `violations` and `warnings` are those of the verdict, `suggestions` are the server's, `response` is the whole
    response.
    """

    def __init__(self, intent: str, response: cstp_pb2.AnnounceIntentResponse) -> None:
        self.intent = intent
        self.response = response
        self.violations = tuple(response.guardrail_status.violations)
        self.warnings = tuple(response.guardrail_status.warnings)
        self.suggestions = tuple(response.suggestions)
        self.approvable = lacks_only_approvals(response.guardrail_status)
        """Whether only the approval of a person is missing."""
        super().__init__("\n".join(self._lines()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the serialized response; protobuf messages cannot be pickled."""
        return unpickle_blocked, (self.intent, self.response.SerializeToString())

    def _lines(self) -> Iterator[str]:
        if not self.response.HasField("guardrail_status"):
            yield f"{self.intent!r} is not allowed: the server gave no verdict"
            return
        status = self.response.guardrail_status
        request = f" ({status.approval.id})" if status.approval.id else ""
        yield f"{self.intent!r} {'needs approval' if status.approval_required else 'is blocked'}{request}:"
        for violation in self.violations:
            by = f"{violation.guardrail_id} of {violation.agent}" if violation.agent else violation.guardrail_id
            yield " ".join(filter(None, [f"- {by}: {violation.message}", violation.suggestion]))
        if self.suggestions:
            yield f"Suggestions: {'; '.join(self.suggestions)}"


def lacks_only_approvals(verdict: cstp_pb2.GuardrailStatus) -> bool:
    """Return whether a verdict would allow the action if a person approved it."""
    return verdict.approval_required and all(
        violation.severity == types_pb2.SEVERITY_APPROVE for violation in verdict.violations
    )


def unpickle_blocked(intent: str, response: bytes) -> Blocked:
    """Recreate the exception in another process."""
    return Blocked(intent, cstp_pb2.AnnounceIntentResponse.FromString(response))


@dataclass(frozen=True, slots=True)
class Announced:
    """A guarded action in progress: the server's response, and the decision to review, if one was recorded."""

    response: cstp_pb2.AnnounceIntentResponse
    decision: journal_pb2.Decision | None


class GuardOptions(TypedDict, total=False):
    """Optional arguments of the announcement."""

    context: str
    """Further text to search together with the intent."""
    category: str
    """The category of the decision."""
    stakes: str
    """The stakes: low, medium, high or critical."""
    confidence: float
    """The agent's confidence, 0 to 1; it is recorded, so that calibration can compare it with the outcome."""
    metadata: Mapping[str, Json] | Callable[..., Mapping[str, Json]]
    """The inputs of the guardrails, or a function that computes them from the arguments."""
    project: str
    """The project that contains `paths`."""
    paths: Sequence[str]
    """The files and folders that the action touches."""
    command: str
    """The command that the action runs."""
    shell: str
    """The language of the command: bash or powershell."""
    directory: str
    """The absolute folder in which it runs."""
    reads: Sequence[str]
    """The files that the action reads."""
    writes: Sequence[str]
    """The files that the action writes."""
    agent: types_pb2.AgentInfo | Fields
    """The agent's claimed identity."""
    scope: str
    """Who evaluates the action: local or federated."""
    agents: Sequence[str]
    """The peers to ask if the scope is federated."""
    record: bool
    """Whether to record a decision and review its outcome; True by default."""
    share: bool
    """Whether every agent may read that decision, with the exception of a failure; False by default."""
    timeout: float
    """Limit of each call in seconds; the client's by default."""


@overload
def guard(client: GuardableClient, intent: str | Callable[..., str], **options: Unpack[GuardOptions]) -> Guard: ...


@overload
def guard(client: AsyncCstpClient, intent: str | Callable[..., str], **options: Unpack[GuardOptions]) -> AsyncGuard: ...


def guard(client: AnyClient, intent: str | Callable[..., str], **options: Unpack[GuardOptions]) -> Guard | AsyncGuard:
    """Guard a function or a block: it runs only if the guardrails allow it, and its outcome is reviewed.

    Around a function, each call of it is announced; `intent` and `metadata` may be functions of its arguments:

        @guard(client, lambda table: f"Drop the table {table}", stakes="high", category="database")
        def drop(table: str) -> None: ...

    Around a block, it is announced once:

        with guard(client, "Deploy the auth service", stakes="high") as announced:
            deploy(announced.response.suggestions)

    With an AsyncCstpClient it is for `async def` functions, and for `async with`.

    Raises Blocked unless the verdict allows the action; warnings do not block. Raises a CstpError if the announcement
    or the record fails. In both cases nothing has run. The action is recorded as a decision with the confidence that
    was given, for which the token needs the permissions announce, record and review; afterwards its outcome is set to
    success, to failure with the exception in its notes, or to abandoned if it was interrupted. The decision is private,
    or shared with `share=True`, its notes included. Exceptions pass unchanged. If the review fails, that is only
    logged. `record=False` only announces, as a FederatedClient must. Raises TypeError for unknown options.
    """
    plan = GuardPlan(intent, options)
    if plan.records and not isinstance(client, (CstpClient, AsyncCstpClient)):
        raise TypeError("a FederatedClient records nothing: guard with record=False")
    return AsyncGuard(client, plan) if isinstance(client, AsyncCstpClient) else Guard(client, plan)


class GuardPlan:
    """Builds the calls of a guard. Raises TypeError for unknown options."""

    def __init__(self, intent: str | Callable[..., str], options: GuardOptions) -> None:
        # A misspelled option, such as `stake`, would announce less than intended.
        if unknown := sorted(options.keys() - GuardOptions.__annotations__.keys()):
            raise TypeError(f"guard() has no option {unknown[0]!r}")
        remaining = cast(dict[str, Any], {**options})
        self.records: bool = remaining.pop("record", True)
        """True if a decision is recorded, to be reviewed."""
        self._visibility = Visibility.SHARED if remaining.pop("share", False) else None
        if self._visibility is not None and not self.records:
            raise TypeError("guard() can share only what it records")
        self.timeout: float | None = remaining.pop("timeout", None)
        """The seconds that each call may take."""
        self._intent = intent
        self._metadata = remaining.pop("metadata", None)
        self._announced_values = remaining

    def announce_call(self, arguments: CallArguments) -> UnaryCall[cstp_pb2.AnnounceIntentResponse]:
        return calls.announce_intent(
            resolve_value(self._intent, arguments),
            metadata=resolve_value(self._metadata, arguments),
            # Chosen here and not by the server: a retried announcement is then the same intent.
            correlation_id=str(uuid.uuid4()),
            **self._announced_values,
        )

    def record_call(self, announcement: UnaryCall[Any]) -> UnaryCall[journal_pb2.Decision]:
        """Return the call that records the action; its idempotency key is derived from that of the announcement."""
        announced = announcement.values
        intent, context = announced["intent"], announced["context"]
        # Nothing of a long intent is lost: the title is cut, and the whole opens the context.
        if len(intent) > MAX_TITLE_CHARACTERS:
            context = "\n\n".join(filter(None, [intent, context]))
        return calls.record_decision(
            intent if len(intent) <= MAX_TITLE_CHARACTERS else f"{intent[: MAX_TITLE_CHARACTERS - 1]}…",
            context=context,
            category=announced["category"],
            stakes=announced["stakes"],
            confidence=announced["confidence"],
            status=DecisionStatus.DECIDED,
            project=announced["project"],
            visibility=self._visibility,
            request_id=str(uuid.uuid5(uuid.UUID(announced["correlation_id"]), "decision")),
        )


def require_allowed(intent: str, response: cstp_pb2.AnnounceIntentResponse, *, approved: bool = False) -> None:
    """Raise Blocked if an action is not allowed; `approved` says that a person has approved it."""
    verdict = response.guardrail_status
    # Fail closed: a response without a verdict has `allowed` false, and violations block even if it were true.
    if verdict.allowed and not verdict.violations:
        return
    blocked = Blocked(intent, response)
    if not (approved and blocked.approvable):
        raise blocked


def resolve_value(value: Any, arguments: CallArguments) -> Any:
    """Return a value, or call it with the arguments if it is a function."""
    positional, named = arguments
    return value(*positional, **named) if callable(value) else value


def review_call(decision: journal_pb2.Decision, error: BaseException | None) -> UnaryCall[journal_pb2.Decision]:
    if error is None:
        return calls.review_decision(decision.id, Outcome.SUCCESS)
    # KeyboardInterrupt, SystemExit and CancelledError are not Exceptions: the action was stopped, and did not fail.
    outcome = Outcome.FAILURE if isinstance(error, Exception) else Outcome.ABANDONED
    notes = replace_unstorable(append_reason(type(error).__name__, str(error)))
    return calls.review_decision(decision.id, outcome, notes=notes)


def record_permission_error(error: PermissionDenied) -> PermissionDenied:
    """Return the error for a token that lacks the permission to record decisions."""
    message = (
        f"Nothing was done, because the decision could not be recorded: {error.message}. Recording needs the permission"
        " record; with record=False the guard only announces"
    )
    return PermissionDenied(message, metadata=error.metadata)


def log_review_failure(decision: journal_pb2.Decision, error: BaseException) -> None:
    """Log that the outcome could not be reviewed; the action itself is not undone."""
    needed = ": the token lacks the permission review" if isinstance(error, PermissionDenied) else ""
    logger.warning("The outcome of the decision %s could not be reviewed%s", decision.id, needed, exc_info=error)


async def execute_call(client: AnyClient, call: UnaryCall[T], timeout: float | None) -> T:
    """Execute a call with either kind of client; with a synchronous one it never suspends. Raises CstpError."""
    if isinstance(client, AsyncCstpClient):
        return await client.make(call, timeout)
    return client.make(call, timeout)


class GuardedAction:
    """One guarded action, from its announcement to its review.

    With a synchronous client its coroutines never suspend, so that one implementation serves both kinds of client.
    """

    def __init__(
        self, client: AnyClient, plan: GuardPlan, arguments: CallArguments = ((), {}), *, approved: bool = False
    ) -> None:
        self._client = client
        self._plan = plan
        self._arguments = arguments
        self._approved = approved
        self._decision: journal_pb2.Decision | None = None

    async def __aenter__(self) -> Announced:
        announcement = self._plan.announce_call(self._arguments)
        response = await self._execute(announcement)
        require_allowed(announcement.values["intent"], response, approved=self._approved)
        if self._plan.records:
            self._decision = await self._record(announcement)
        return Announced(response, self._decision)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._decision is None:
            return
        if isinstance(error, GeneratorExit) and isinstance(self._client, AsyncCstpClient):
            # The coroutine is being closed: awaiting now would raise RuntimeError.
            log_review_failure(self._decision, error)
            return
        try:
            await self._execute(review_call(self._decision, error))
        except Exception as failure:  # noqa: BLE001 - the action is done, and its own result counts
            log_review_failure(self._decision, failure)

    async def _record(self, announcement: UnaryCall[Any]) -> journal_pb2.Decision:
        try:
            return await self._execute(self._plan.record_call(announcement))
        except PermissionDenied as error:
            raise record_permission_error(error) from error

    async def _execute(self, call: UnaryCall[T]) -> T:
        return await execute_call(self._client, call, self._plan.timeout)


class GuardedBlock:
    """Guards a block, one at a time, also if threads or tasks share the guard."""

    def __init__(self, client: AnyClient, plan: GuardPlan) -> None:
        self._client = client
        self._plan = plan
        # Held from the announcement to the review, and never waited for: a second block at the same time would
        # overwrite `_action`. Threads and tasks may share a guard.
        self._busy = threading.Lock()
        self._action: GuardedAction | None = None

    async def __aenter__(self) -> Announced:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this guard is around a block already: make one for each block")
        action = GuardedAction(self._client, self._plan)
        try:
            announced = await action.__aenter__()
        except BaseException:
            self._busy.release()
            raise
        self._action = action
        return announced

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        action, self._action = self._action, None
        if action is None:
            return
        try:
            await action.__aexit__(kind, error, trace)
        finally:
            self._busy.release()


class SyncContextManager:
    """Runs an async context manager synchronously; RuntimeError if one of its coroutines suspends."""

    def __init__(self, within: AbstractAsyncContextManager[Announced]) -> None:
        self._within = within

    def __enter__(self) -> Announced:
        return run_without_waiting(self._within.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_without_waiting(self._within.__aexit__(kind, error, trace))


class Guard(SyncContextManager):
    """A decorator for functions, and a context manager for one block at a time; see `guard`."""

    def __init__(self, client: GuardableClient, plan: GuardPlan) -> None:
        super().__init__(GuardedBlock(client, plan))
        self._client = client
        self._plan = plan

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the guarded function, which is thread-safe. Raises TypeError."""
        require_guardable(function)
        if inspect.iscoroutinefunction(function):
            raise TypeError("an async function is guarded with an AsyncCstpClient")

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            with SyncContextManager(GuardedAction(self._client, self._plan, (args, kwargs))):
                return require_finished(function(*args, **kwargs))

        return guarded


class AsyncGuard(GuardedBlock):
    """A decorator for async functions, and an async context manager for one block at a time; see `guard`."""

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return the guarded function, which many tasks may call concurrently. Raises TypeError."""
        require_guardable(function)
        if not inspect.iscoroutinefunction(function):
            raise TypeError("only an async function is guarded with an AsyncCstpClient; others are with a CstpClient")

        @functools.wraps(function)
        async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            async with GuardedAction(self._client, self._plan, (args, kwargs)):
                return require_finished(await function(*args, **kwargs))

        return guarded


def require_guardable(function: Callable[..., Any]) -> None:
    """Raise TypeError for anything but a function, and for generator functions, which do nothing when called."""
    if isinstance(function, staticmethod) or not callable(function):
        raise TypeError("only a function is guarded: of a class or static method, the function in it")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(DEFERRED_WORK_MESSAGE)


def require_finished(result: T) -> T:
    """Return the result of a function. Raises TypeError for a coroutine or generator that has not started."""
    # An undecorated function may return work that has not run yet: it would then run unguarded, after the review.
    if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
        result.close()
        raise TypeError("a coroutine runs after it was called: guard the async function, with an AsyncCstpClient")
    if inspect.isasyncgen(result) or (
        inspect.isgenerator(result) and inspect.getgeneratorstate(result) == inspect.GEN_CREATED
    ):
        raise TypeError(DEFERRED_WORK_MESSAGE)
    return result


def run_without_waiting(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends. Raises RuntimeError if it does."""
    try:
        # Runs to the end in one step, as nothing in it suspends with a synchronous client.
        coroutine.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise RuntimeError("it waits for something")
