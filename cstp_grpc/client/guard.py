"""Acting under guard: announced before, recorded, and reviewed afterwards."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from cstp_grpc.calling import Call, Json
from cstp_grpc.client.async_client import AsyncCstpClient
from cstp_grpc.client.client import CstpClient
from cstp_grpc.client.federation.client import FederatedClient
from cstp_grpc.client.words import told
from cstp_grpc.errors import PermissionDenied
from cstp_grpc.gen import calls
from cstp_grpc.gen.cstp.v1 import cstp_pb2, journal_pb2, types_pb2
from cstp_grpc.vocabulary import DecisionStatus, Outcome

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

LATE = "a generator runs after it was called: guard what it does, or the block that uses it"
MAX_TITLE = 500
"""Characters of a decision's title."""

AnyClient = CstpClient | FederatedClient | AsyncCstpClient
Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


class Blocked(Exception):
    """Guardrails forbid what was announced, or none judged it; it was not done.

    `violations` and `warnings` are those of the verdict, `suggestions` what the server suggests, `response` its whole
    answer.
    """

    def __init__(self, intent: str, response: cstp_pb2.AnnounceIntentResponse) -> None:
        self.intent = intent
        self.response = response
        self.violations = tuple(response.guardrail_status.violations)
        self.warnings = tuple(response.guardrail_status.warnings)
        self.suggestions = tuple(response.suggestions)
        super().__init__("\n".join(self._lines()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes it anew in another process; messages cannot be pickled."""
        return told_elsewhere, (self.intent, self.response.SerializeToString())

    def _lines(self) -> Iterator[str]:
        if not self.response.HasField("guardrail_status"):
            yield f"{self.intent!r} is not allowed: the server gave no verdict"
            return
        yield f"{self.intent!r} is blocked:"
        for violation in self.violations:
            by = f"{violation.guardrail_id} of {violation.agent}" if violation.agent else violation.guardrail_id
            yield " ".join(filter(None, [f"- {by}: {violation.message}", violation.suggestion]))
        if self.suggestions:
            yield f"Suggestions: {'; '.join(self.suggestions)}"


def told_elsewhere(intent: str, response: bytes) -> Blocked:
    """Return what was raised in another process."""
    return Blocked(intent, cstp_pb2.AnnounceIntentResponse.FromString(response))


@dataclass(frozen=True, slots=True)
class Announced:
    """What is under way: what the server answered, and the decision whose outcome is reviewed, if any."""

    response: cstp_pb2.AnnounceIntentResponse
    decision: journal_pb2.Decision | None


class Options(TypedDict, total=False):
    """What is announced beside the intent; all of it may be left out."""

    context: str
    """Further text that is searched together with the intent."""
    category: str
    """The category of the decision."""
    stakes: str
    """What is at risk: low, medium, high or critical."""
    confidence: float
    """How sure the agent is, 0 to 1."""
    metadata: Mapping[str, Json] | Callable[..., Mapping[str, Json]]
    """The inputs of the guardrails, or what makes them of the arguments."""
    project: str
    """The project that `paths` are in."""
    paths: Sequence[str]
    """The files and folders that are touched."""
    agent: types_pb2.AgentInfo
    """Who the agent says it is."""
    scope: str
    """Who answers: local or federated."""
    agents: Sequence[str]
    """The peers to ask where the scope is federated."""
    record: bool
    """Whether a decision is recorded and its outcome reviewed; True when left out."""
    timeout: float
    """Seconds that each call may take; what the client was made with when left out."""


@overload
def guard(
    client: CstpClient | FederatedClient, intent: str | Callable[..., str], **options: Unpack[Options]
) -> Guard: ...


@overload
def guard(client: AsyncCstpClient, intent: str | Callable[..., str], **options: Unpack[Options]) -> AsyncGuard: ...


def guard(client: AnyClient, intent: str | Callable[..., str], **options: Unpack[Options]) -> Guard | AsyncGuard:
    """Return what lets a function, or a block, run only where the guardrails allow it, and reviews the outcome.

    Around a function, each call of it is announced anew; `intent` and `metadata` may be functions of its arguments:

        @guard(client, lambda table: f"Drop the table {table}", stakes="high", category="database")
        def drop(table: str) -> None: ...

    Around a block, it is announced once:

        with guard(client, "Deploy the auth service", stakes="high") as announced:
            deploy(announced.response.suggestions)

    With an AsyncCstpClient it is for `async def` functions, and for `async with`.

    Blocked is raised where the verdict is not that it is allowed; warnings do not block. A CstpError is raised where
    the announcement or the record fails. In either case nothing has run. What runs is recorded as a private decision,
    for which the token needs the permissions announce, record and review; afterwards its outcome is a success, a
    failure with the exception in its notes, or abandoned where it was interrupted. Exceptions pass unchanged. That the
    outcome could not be reviewed is only logged. `record=False` announces alone, as a FederatedClient must. Raises
    TypeError for options that there are not.
    """
    plan = Plan(intent, options)
    if isinstance(client, FederatedClient) and plan.records:
        raise TypeError("a FederatedClient records nothing: guard with record=False")
    return AsyncGuard(client, plan) if isinstance(client, AsyncCstpClient) else Guard(client, plan)


class Plan:
    """Says which calls a guard makes, and judges the answers. Raises TypeError for options that there are not."""

    def __init__(self, intent: str | Callable[..., str], options: Options) -> None:
        if unknown := sorted(options.keys() - Options.__annotations__.keys()):
            raise TypeError(f"guard() has no option {unknown[0]!r}")
        said = cast(dict[str, Any], {**options})
        self.records: bool = said.pop("record", True)
        """Whether there is a decision to review."""
        self.timeout: float | None = said.pop("timeout", None)
        """The seconds that each call may take."""
        self._intent = intent
        self._metadata = said.pop("metadata", None)
        self._said = said

    def announcement(self, arguments: Arguments) -> Call[cstp_pb2.AnnounceIntentResponse]:
        """Return the call that announces what is done with some arguments."""
        return calls.announce_intent(
            resolved(self._intent, arguments),
            metadata=resolved(self._metadata, arguments),
            correlation_id=str(uuid.uuid4()),
            **self._said,
        )

    def admit(self, announcement: Call[Any], response: cstp_pb2.AnnounceIntentResponse) -> None:
        """Raise Blocked where what was announced is not allowed."""
        verdict = response.guardrail_status
        if not verdict.allowed or verdict.violations:
            raise Blocked(announcement.values["intent"], response)

    def recording(self, announcement: Call[Any]) -> Call[journal_pb2.Decision]:
        """Return the call that records what was announced, under an identifier that follows from its own."""
        announced = announcement.values
        intent, context = announced["intent"], announced["context"]
        if len(intent) > MAX_TITLE:
            context = "\n\n".join(filter(None, [intent, context]))
        return calls.record_decision(
            intent if len(intent) <= MAX_TITLE else f"{intent[: MAX_TITLE - 1]}…",
            context=context,
            category=announced["category"],
            stakes=announced["stakes"],
            confidence=announced["confidence"],
            status=DecisionStatus.DECIDED,
            project=announced["project"],
            request_id=str(uuid.uuid5(uuid.UUID(announced["correlation_id"]), "decision")),
        )


def resolved(value: Any, arguments: Arguments) -> Any:
    """Return a value, or what it makes of the arguments."""
    positional, named = arguments
    return value(*positional, **named) if callable(value) else value


def review(decision: journal_pb2.Decision, error: BaseException | None) -> Call[journal_pb2.Decision]:
    """Return the call that says how a decision turned out."""
    if error is None:
        return calls.review_decision(decision.id, Outcome.SUCCESS)
    outcome = Outcome.FAILURE if isinstance(error, Exception) else Outcome.ABANDONED
    return calls.review_decision(decision.id, outcome, notes=told(type(error).__name__, str(error)))


def unrecorded(error: PermissionDenied) -> PermissionDenied:
    """Return what tells that the outcome could not be reviewed, because there would be no decision."""
    message = (
        f"Nothing was done, because there is no decision whose outcome to review: {error.message}. Recording one needs"
        " the permission record; with record=False the guard announces alone"
    )
    return PermissionDenied(message, metadata=error.metadata)


def note_unreviewed(decision: journal_pb2.Decision, error: BaseException) -> None:
    """Log that the outcome is not known to the server; what was done stays done."""
    needed = ": the token lacks the permission review" if isinstance(error, PermissionDenied) else ""
    logger.warning("The outcome of the decision %s could not be reviewed%s", decision.id, needed, exc_info=error)


class Action:
    """One action under guard, from its announcement to its review.

    Over a client for threads its coroutines wait for nothing, so that one way to act does for both kinds of client.
    """

    def __init__(self, client: AnyClient, plan: Plan, arguments: Arguments = ((), {})) -> None:
        self._client = client
        self._plan = plan
        self._arguments = arguments
        self._decision: journal_pb2.Decision | None = None

    async def __aenter__(self) -> Announced:
        """Announce it, and record it. Raises Blocked and CstpError."""
        announcement = self._plan.announcement(self._arguments)
        response = await self._made(announcement)
        self._plan.admit(announcement, response)
        if self._plan.records:
            self._decision = await self._recorded(announcement)
        return Announced(response, self._decision)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Review how it ended."""
        if self._decision is None:
            return
        if isinstance(error, GeneratorExit) and isinstance(self._client, AsyncCstpClient):
            # Where a coroutine is closed, it cannot wait for anything any more.
            note_unreviewed(self._decision, error)
            return
        try:
            await self._made(review(self._decision, error))
        except Exception as unreviewed:  # noqa: BLE001 - whatever it is, what was done has a result
            note_unreviewed(self._decision, unreviewed)

    async def _recorded(self, announcement: Call[Any]) -> journal_pb2.Decision:
        try:
            return await self._made(self._plan.recording(announcement))
        except PermissionDenied as error:
            raise unrecorded(error) from error

    async def _made(self, call: Call[T]) -> T:
        if isinstance(self._client, AsyncCstpClient):
            return await self._client.make(call, self._plan.timeout)
        return self._client.make(call, self._plan.timeout)


class OneBlock:
    """The block that a guard is around: one at a time, also where threads or tasks share the guard."""

    def __init__(self, client: AnyClient, plan: Plan) -> None:
        self._client = client
        self._plan = plan
        self._around = threading.Lock()
        self._action: Action | None = None

    async def __aenter__(self) -> Announced:
        """Announce what the block does. Raises Blocked, CstpError, and RuntimeError within a block of this guard."""
        if not self._around.acquire(blocking=False):
            raise RuntimeError("this guard is around a block already: make one for each block")
        action = Action(self._client, self._plan)
        try:
            announced = await action.__aenter__()
        except BaseException:
            self._around.release()
            raise
        self._action = action
        return announced

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Review how the block ended."""
        action, self._action = self._action, None
        if action is None:
            return
        try:
            await action.__aexit__(kind, error, trace)
        finally:
            self._around.release()


class AtOnce:
    """The plain context manager that one of event loops is where it waits for nothing."""

    def __init__(self, within: AbstractAsyncContextManager[Announced]) -> None:
        self._within = within

    def __enter__(self) -> Announced:
        """Announce what the block does. Raises Blocked, CstpError, and RuntimeError within a block of this guard."""
        return at_once(self._within.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Review how the block ended."""
        at_once(self._within.__aexit__(kind, error, trace))


class Guard(AtOnce):
    """A decorator for functions, and a context manager for one block at a time; see `guard`."""

    def __init__(self, client: CstpClient | FederatedClient, plan: Plan) -> None:
        super().__init__(OneBlock(client, plan))
        self._client = client
        self._plan = plan

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function under guard; many threads may call it at once. Raises TypeError."""
        refuse_unfit(function)
        if inspect.iscoroutinefunction(function):
            raise TypeError("an async function is guarded with an AsyncCstpClient")

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            with AtOnce(Action(self._client, self._plan, (args, kwargs))):
                return finished(function(*args, **kwargs))

        return guarded


class AsyncGuard(OneBlock):
    """A decorator for async functions, and an async context manager for one block at a time; see `guard`."""

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return the function under guard; many tasks may call it at once. Raises TypeError."""
        refuse_unfit(function)
        if not inspect.iscoroutinefunction(function):
            raise TypeError("only an async function is guarded with an AsyncCstpClient; others are with a CstpClient")

        @functools.wraps(function)
        async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            async with Action(self._client, self._plan, (args, kwargs)):
                return finished(await function(*args, **kwargs))

        return guarded


def refuse_unfit(function: Callable[..., Any]) -> None:
    """Raise TypeError for what is no function, and for a function that returns before it has done anything."""
    if isinstance(function, staticmethod) or not callable(function):
        raise TypeError("only a function is guarded: of a class or static method, the function in it")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(LATE)


def finished(result: T) -> T:
    """Return the result of a function. Raises TypeError for one that is still to be run, which did nothing."""
    if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
        result.close()
        raise TypeError("a coroutine runs after it was called: guard the async function, with an AsyncCstpClient")
    if inspect.isasyncgen(result) or (
        inspect.isgenerator(result) and inspect.getgeneratorstate(result) == inspect.GEN_CREATED
    ):
        raise TypeError(LATE)
    return result


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine comes to that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise RuntimeError("it waits for something")
