"""What runs under guard, what does not, and what is known of it afterwards."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from cstp_grpc.client import AsyncCstpClient, Blocked, CstpClient, RetryPolicy, guard
from cstp_grpc.contract.calls import UnaryCall
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.errors import PermissionDenied, ServerUnreachable
from cstp_grpc.gen.cstp.v1 import cstp_pb2, journal_pb2, types_pb2
from cstp_grpc.modules.federation import Agent, FederatedClient
from cstp_grpc.server.app import App
from tests.client.scripted import scripted_server
from tests.harness import TOKENS, running, settings
from tests.waiting import SECONDS

ONCE = RetryPolicy(attempts=1)
LOSING = {"destroysData": True}
ANNOUNCED = cstp_pb2.AnnounceIntentResponse(received=True, guardrail_status=cstp_pb2.GuardrailStatus(allowed=True))
RECORDED = journal_pb2.RecordDecisionResponse(decision=journal_pb2.Decision(id="dec-1"))


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    granted = {"announcer": [Permission.ANNOUNCE], "recorder": [Permission.ANNOUNCE, Permission.RECORD]}
    tokens = [
        {"name": name, "token": f"{name}-secret-token", "permissions": sorted(permissions)}
        for name, permissions in granted.items()
    ]
    tokens.append({"name": "alice", "token": TOKENS["alice"], "permissions": sorted(Permission)})
    with running(settings(tmp_path_factory.mktemp("guard"), auth={"tokens": tokens})) as app:
        yield app


@pytest.fixture
def client(app: App) -> Iterator[CstpClient]:
    with CstpClient(app.target, TOKENS["alice"]) as client:
        yield client


def outcome_of(client: CstpClient, title: str) -> tuple[str, str]:
    """Return outcome and notes of the only decision of a title."""
    (found,) = [decision for decision in client.list_decisions() if decision.title == title]
    return types_pb2.Outcome.Name(found.outcome).removeprefix("OUTCOME_").lower(), found.notes


def titles(client: CstpClient) -> list[str]:
    return [decision.title for decision in client.list_decisions()]


def test_what_is_allowed_runs_and_is_a_success(client: CstpClient) -> None:
    @guard(client, "Rename a variable", category="code", stakes="low")
    def rename(old: str, *, new: str) -> str:
        """Rename."""
        return f"{old} to {new}"

    assert rename("a", new="b") == "a to b"
    assert (rename.__name__, rename.__doc__) == ("rename", "Rename.")
    assert outcome_of(client, "Rename a variable") == ("success", "")


def test_what_guardrails_forbid_does_not_run(client: CstpClient) -> None:
    ran: list[str] = []

    @guard(client, lambda table: f"Drop {table}", metadata=lambda table: {"destroysData": table != "scratch"})
    def drop(table: str) -> None:
        ran.append(table)

    drop("scratch")
    with pytest.raises(
        Blocked, match="'Drop orders' is blocked:\n- no-data-loss-without-backup: Destroying data"
    ) as caught:
        drop("orders")
    assert ran == ["scratch"]
    blocked = caught.value
    assert [violation.guardrail_id for violation in blocked.violations] == ["no-data-loss-without-backup"]
    assert blocked.violations[0].suggestion in str(blocked)
    assert blocked.suggestions == tuple(blocked.response.suggestions)
    assert "Drop orders" not in titles(client)


def test_a_warning_does_not_block(client: CstpClient) -> None:
    inputs = {"affectsProduction": True, "codeReviewCompleted": True, "ciPassing": True, "rolloutPercent": 100}
    with guard(client, "Roll out to everyone", metadata=inputs) as announced:
        assert [warning.guardrail_id for warning in announced.response.guardrail_status.warnings] == [
            "prefer-staged-rollout"
        ]
    assert outcome_of(client, "Roll out to everyone")[0] == "success"


def test_an_exception_is_a_failure_and_passes_unchanged(client: CstpClient) -> None:
    error = ValueError("no\nsuch table")

    @guard(client, "Fail to migrate")
    def migrate() -> None:
        raise error

    with pytest.raises(ValueError, match="no\nsuch table") as caught:
        migrate()
    assert caught.value is error
    assert outcome_of(client, "Fail to migrate") == ("failure", "ValueError: no such table")


def test_what_is_interrupted_is_abandoned(client: CstpClient) -> None:
    with pytest.raises(KeyboardInterrupt), guard(client, "Wait for ever"):
        raise KeyboardInterrupt
    assert outcome_of(client, "Wait for ever") == ("abandoned", "KeyboardInterrupt")


def test_an_intent_that_is_longer_than_a_title_is_kept_whole(client: CstpClient) -> None:
    intent = "Tell a long story " * 100
    with guard(client, intent, context="It is late") as announced:
        pass
    assert announced.decision is not None
    assert announced.decision.title == intent[:499] + "…"
    assert announced.decision.context == f"{intent}\n\nIt is late"


def test_what_is_recorded_has_the_confidence_that_was_given_and_is_private(client: CstpClient) -> None:
    with guard(client, "Deploy with some doubt", confidence=0.7) as announced:
        pass
    assert announced.decision is not None
    assert announced.decision.confidence == pytest.approx(0.7)
    assert announced.decision.visibility == types_pb2.VISIBILITY_PRIVATE


def test_what_is_recorded_can_be_shared(client: CstpClient) -> None:
    with guard(client, "Deploy for all to see", share=True) as announced:
        pass
    assert announced.decision is not None
    assert announced.decision.visibility == types_pb2.VISIBILITY_SHARED


def test_what_is_not_recorded_cannot_be_shared(client: CstpClient) -> None:
    with pytest.raises(TypeError, match="share only what it records"):
        guard(client, "Act", record=False, share=True)


def test_one_decorator_serves_many_threads(client: CstpClient) -> None:
    @guard(client, lambda number: f"Count {number}")
    def count(number: int) -> int:
        if number % 2:
            raise LookupError(number)
        return number

    with ThreadPoolExecutor(8) as pool:
        results = [pool.submit(count, number) for number in range(16)]
        failures = [result.exception() for result in results]
    assert [failure is None for failure in failures] == [number % 2 == 0 for number in range(16)]
    for number in range(16):
        assert outcome_of(client, f"Count {number}")[0] == ("failure" if number % 2 else "success")


def test_a_guard_is_around_one_block_at_a_time(client: CstpClient) -> None:
    again = guard(client, "Do it twice", record=False)
    with again, pytest.raises(RuntimeError, match="make one for each block"), again:
        pass
    with again as announced:
        assert announced.decision is None


def test_threads_cannot_share_a_guard_around_their_blocks(client: CstpClient) -> None:
    announcing = threading.Event()

    def announced_late(**_: Any) -> str:
        announcing.set()
        assert refused.wait(SECONDS)
        return "Share a guard"

    refused = threading.Event()
    shared = guard(client, announced_late)

    def act() -> None:
        with shared:
            pass

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(act)
        assert announcing.wait(SECONDS)
        try:
            with pytest.raises(RuntimeError, match="make one for each block"), shared:
                pytest.fail("it ran")
        finally:
            refused.set()
        first.result(SECONDS)
    assert outcome_of(client, "Share a guard")[0] == "success"


def test_tasks_cannot_share_a_guard_around_their_blocks(app: App, client: CstpClient) -> None:
    async def run() -> None:
        async with AsyncCstpClient(app.target, TOKENS["alice"]) as loop_client:
            shared = guard(loop_client, "Share a guard in a loop")

            async def act() -> None:
                async with shared:
                    await asyncio.sleep(0)

            results = await asyncio.gather(act(), act(), return_exceptions=True)
            assert [type(result) for result in results] == [type(None), RuntimeError]
            await act()

    asyncio.run(run())
    found = [each for each in client.list_decisions() if each.title == "Share a guard in a loop"]
    assert [each.outcome for each in found] == [types_pb2.OUTCOME_SUCCESS] * 2


def test_a_guard_that_let_nobody_in_may_be_tried_again(client: CstpClient) -> None:
    inputs = dict(LOSING)
    again = guard(client, "Lose data perhaps", metadata=inputs)
    for _ in range(2):
        with pytest.raises(Blocked), again:
            pytest.fail("it ran")
    inputs.clear()
    with again as announced:
        assert announced.decision is not None


def test_what_is_blocked_in_another_process_is_told_here(client: CstpClient) -> None:
    with pytest.raises(Blocked) as caught, guard(client, "Lose data elsewhere", metadata=LOSING):
        pytest.fail("it ran")
    blocked = pickle.loads(pickle.dumps(caught.value))
    assert str(blocked) == str(caught.value)
    assert (blocked.intent, blocked.response) == (caught.value.intent, caught.value.response)


def test_a_coroutine_that_is_closed_ends_at_once() -> None:
    reviews: list[str] = []

    class Scripted(AsyncCstpClient):
        async def make(self, call: UnaryCall[Any], timeout: float | None = None) -> Any:
            reviews.extend([call.method] * (call.method == "cstp.reviewDecision"))
            if reviews:
                await Pause()
            return ANNOUNCED if call.method == "cstp.announceIntent" else RECORDED.decision

    @guard(Scripted("localhost:1"), "Wait to be forgotten")
    async def wait() -> None:
        await Pause()

    waiting = wait()
    waiting.send(None)
    waiting.close()
    assert reviews == []


class Pause:
    """Gives way once, without a loop."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def test_methods_of_all_kinds_run_under_guard(client: CstpClient) -> None:
    class Store:
        name = "store"

        @guard(client, lambda self, table: f"Drop {table} of {self.name}", record=False)
        def drop(self, table: str) -> str:
            return f"{self.name}.{table}"

        @classmethod
        @guard(client, lambda cls, table: f"Create {table} of {cls.name}", record=False)
        def create(cls, table: str) -> str:
            return f"{cls.name}.{table}"

        @staticmethod
        @guard(client, "Count", record=False)
        def count() -> int:
            return 3

    assert (Store().drop("a"), Store.create("b"), Store().count()) == ("store.a", "store.b", 3)


async def coroutine() -> None:
    pytest.fail("it ran")


def generator() -> Iterator[int]:
    pytest.fail("it ran")
    yield 1


async def async_generator() -> AsyncIterator[int]:
    pytest.fail("it ran")
    yield 1


@pytest.mark.parametrize("later", [coroutine, generator, async_generator], ids=lambda later: later.__name__)
def test_what_runs_later_is_no_success(later: Any, client: CstpClient) -> None:
    title = f"Run a {later.__name__}"
    with pytest.raises(TypeError, match="runs after it was called"):
        guard(client, title)(lambda: later())()
    assert outcome_of(client, title)[0] == "failure"


def test_what_runs_later_is_no_success_in_a_loop(app: App, client: CstpClient) -> None:
    async def run() -> None:
        async with AsyncCstpClient(app.target, TOKENS["alice"]) as loop_client:

            @guard(loop_client, "Run a generator in a loop")
            async def act() -> Iterator[int]:
                return generator()

            await act()

    with pytest.raises(TypeError, match="runs after it was called"):
        asyncio.run(run())
    assert outcome_of(client, "Run a generator in a loop")[0] == "failure"


def test_what_began_before_it_was_returned_is_a_result(client: CstpClient) -> None:
    def numbers() -> Iterator[int]:
        yield from (1, 2)

    def begun() -> Iterator[int]:
        found = numbers()
        next(found)
        return found

    assert list(guard(client, "Begin to count")(begun)()) == [2]
    assert outcome_of(client, "Begin to count")[0] == "success"


def test_who_asks_several_agents_records_nothing() -> None:
    with FederatedClient([Agent("security", "localhost:1")]) as client:
        with pytest.raises(TypeError, match="record=False"):
            guard(client, "Act")
        assert guard(client, "Act", record=False)


@pytest.mark.parametrize("kind", [CstpClient, AsyncCstpClient])
def test_an_option_that_there_is_not_is_refused_at_once(kind: Any) -> None:
    option: dict[str, Any] = {"stake": "critical"}
    with pytest.raises(TypeError, match="'stake'"):
        guard(kind("localhost:1"), "Lose data", **option)


def test_a_block_that_is_forbidden_does_not_run(client: CstpClient) -> None:
    ran = False
    with pytest.raises(Blocked), guard(client, "Lose data", metadata=LOSING):
        ran = True
    assert not ran


def test_nothing_runs_where_the_server_is_away(free_port: int) -> None:
    ran: list[bool] = []
    with CstpClient(f"127.0.0.1:{free_port}", retries=ONCE) as client:
        act = guard(client, "Act alone")(lambda: ran.append(True))
        with pytest.raises(ServerUnreachable):
            act()
    assert ran == []


def test_nothing_runs_without_a_verdict() -> None:
    with scripted_server(cstp_pb2.AnnounceIntentResponse(received=True)) as server, CstpClient(server.target) as client:
        with pytest.raises(Blocked, match="gave no verdict") as caught, guard(client, "Act unjudged"):
            pytest.fail("it ran")
        assert caught.value.violations == ()


def test_who_may_not_record_is_told_so_before_anything_runs(app: App) -> None:
    with CstpClient(app.target, "announcer-secret-token") as client:
        with pytest.raises(PermissionDenied, match=r"the permission record; with record=False"), guard(client, "Act"):
            pytest.fail("it ran")
        with guard(client, "Act", record=False) as announced:
            assert announced.response.received


def test_who_may_not_review_loses_no_result(app: App, caplog: pytest.LogCaptureFixture) -> None:
    with CstpClient(app.target, "recorder-secret-token") as client, caplog.at_level(logging.WARNING):
        assert guard(client, "Add")(lambda a, b: a + b)(1, 2) == 3
    assert "could not be reviewed: the token lacks the permission review" in caplog.text


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_review_that_fails_loses_no_result(in_loop: bool, caplog: pytest.LogCaptureFixture) -> None:
    script = (ANNOUNCED, RECORDED, grpc.StatusCode.INTERNAL)

    async def run(target: str) -> int:
        async with AsyncCstpClient(target, retries=ONCE) as client:

            @guard(client, "Compute")
            async def compute() -> int:
                return 3

            return await compute()

    with scripted_server(*script) as server, caplog.at_level(logging.WARNING):
        if in_loop:
            assert asyncio.run(run(server.target)) == 3
        else:
            with CstpClient(server.target, retries=ONCE) as client:
                assert guard(client, "Compute")(lambda: 3)() == 3
    assert "dec-1 could not be reviewed" in caplog.text


def test_a_record_is_known_by_its_announcement() -> None:
    keys = []
    for _ in range(2):
        with scripted_server(ANNOUNCED, RECORDED, journal_pb2.ReviewDecisionResponse()) as server:
            with CstpClient(server.target) as client, guard(client, "Act"):
                pass
            announcement, record, review = server.requests
            keys += [announcement.correlation_id, record.request_id]
            assert (review.id, review.outcome) == ("dec-1", types_pb2.OUTCOME_SUCCESS)
    assert len(set(keys)) == 4


def test_async_functions_and_blocks_run_under_guard(app: App, client: CstpClient) -> None:
    async def run() -> None:
        async with AsyncCstpClient(app.target, TOKENS["alice"]) as loop_client:

            @guard(loop_client, lambda number: f"Count in a loop {number}", metadata=lambda number: {"n": number})
            async def count(number: int) -> int:
                await asyncio.sleep(0)
                if number == 3:
                    raise LookupError(number)
                return number

            results = await asyncio.gather(*(count(number) for number in range(5)), return_exceptions=True)
            assert [type(result) for result in results] == [int, int, int, LookupError, int]
            async with guard(loop_client, "Enter a block") as announced:
                assert announced.decision is not None
            with pytest.raises(Blocked, match="no-data-loss-without-backup"):
                async with guard(loop_client, "Enter a forbidden block", metadata=LOSING):
                    pytest.fail("it ran")

    asyncio.run(run())
    outcomes = [outcome_of(client, f"Count in a loop {number}")[0] for number in range(5)]
    assert outcomes == ["success", "success", "success", "failure", "success"]
    assert outcome_of(client, "Enter a block")[0] == "success"


def test_a_task_that_is_cancelled_is_abandoned(app: App, client: CstpClient) -> None:
    async def run() -> None:
        begun = asyncio.Event()
        async with AsyncCstpClient(app.target, TOKENS["alice"]) as loop_client:

            @guard(loop_client, "Wait in a loop")
            async def wait() -> None:
                begun.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(wait())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert outcome_of(client, "Wait in a loop") == ("abandoned", "CancelledError")


def test_what_cannot_be_guarded_is_refused_at_once() -> None:
    async def in_loop() -> None: ...

    def plain() -> None: ...

    def generated() -> Iterator[int]:
        yield 1

    async def streamed() -> AsyncIterator[int]:
        yield 1

    sync: Any = guard(CstpClient("localhost:1"), "Act")
    loop: Any = guard(AsyncCstpClient("localhost:1"), "Act")
    kinds: tuple[Any, ...] = (classmethod, staticmethod, property)
    pairs: list[tuple[Any, Any]] = [
        (sync, in_loop),
        (sync, generated),
        (sync, streamed),
        (loop, plain),
        (loop, streamed),
    ]
    pairs += [(guarded, kind(plain)) for guarded in (sync, loop) for kind in kinds]
    for guarded, function in pairs:
        with pytest.raises(TypeError):
            guarded(function)
