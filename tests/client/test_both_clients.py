"""What the client for threads and the one for event loops do alike."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from cstp_grpc.client import (
    AsyncCstp,
    AsyncCstpClient,
    AsyncIntentLayer,
    AsyncLiaison,
    Cstp,
    CstpClient,
    IntentLayer,
    Liaison,
    RetryPolicy,
)
from cstp_grpc.contract.errors import (
    CstpError,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    QueryFailed,
    RateLimited,
    ServerUnreachable,
    Unavailable,
)
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.contract.rpc_errors import PUSHBACK_KEY
from cstp_grpc.gen.cstp.v1 import access_pb2, cstp_pb2, journal_pb2, types_pb2
from cstp_grpc.gen.intent_layer.v1 import intent_layer_pb2
from cstp_grpc.gen.liaison.v1 import liaison_pb2
from tests.client.both import BOTH, Time, in_loop
from tests.client.conversing import event, watched
from tests.client.scripted import Answer, ScriptedServer, scripted_server
from tests.error_classes import SERVER_ERRORS
from tests.grpc_servers import grpc_server
from tests.named_case import named_case
from tests.waiting import SECONDS

Run = Callable[..., None]

both = pytest.mark.parametrize("run", BOTH, ids=lambda run: run.__name__)
TWINS = [(Cstp, AsyncCstp), (Liaison, AsyncLiaison), (IntentLayer, AsyncIntentLayer)]


def methods_of(kind: type) -> dict[str, Any]:
    return {name: item for name, item in vars(kind).items() if not name.startswith("_")}


def use(run: Run, server: ScriptedServer, call: Callable[[Any], Any], **options: Any) -> list[float]:
    """Use a client and return its pauses."""
    time = Time()
    run(server.target, call, time, **options)
    return time.slept


@pytest.mark.parametrize(("plain", "in_loop"), TWINS, ids=lambda kind: kind.__name__)
def test_both_have_the_same_methods_with_the_same_parameters_and_words(plain: type, in_loop: type) -> None:
    ours, theirs = methods_of(plain), methods_of(in_loop)
    assert list(ours) == list(theirs)
    for name, method in ours.items():
        assert list(inspect.signature(method).parameters) == list(inspect.signature(theirs[name]).parameters)
        assert method.__doc__ == theirs[name].__doc__
        assert method.__doc__


def test_every_public_rpc_has_its_method() -> None:
    public = [method for method in contract_methods().values() if method.public]
    groups = {"cstp": Cstp, "liaison": Liaison, "intentLayer": IntentLayer}
    found: dict[str, set[str]] = {}
    for method in public:
        package, _, name = method.name.partition(".")
        found.setdefault(package, set()).add("".join(f"_{c.lower()}" if c.isupper() else c for c in name))
    assert {package: set(methods_of(kind)) for package, kind in groups.items()} == found


@both
def test_what_is_required_within_a_required_message_is_said_at_once(run: Run) -> None:
    async def call(client: Any) -> None:
        assert (await client.check_guardrails("deploy", stakes="HIGH", context={"a": [1, None]}, scope="local")).allowed

    with scripted_server(cstp_pb2.CheckGuardrailsResponse(allowed=True)) as server:
        use(run, server, call)
    expected = cstp_pb2.CheckGuardrailsRequest(scope=types_pb2.SCOPE_LOCAL)
    expected.action.description = "deploy"
    expected.action.stakes = types_pb2.STAKES_HIGH
    expected.action.context.update({"a": [1, None]})
    assert server.requests == [expected]


@both
def test_a_single_message_comes_unwrapped(run: Run) -> None:
    async def call(client: Any) -> None:
        learning = await client.intent_layer.report_learning("shop", "src", "Arrow functions", "All of them", "pitfall")
        assert learning == intent_layer_pb2.Learning(id="l-1")

    answer = intent_layer_pb2.ReportLearningResponse(learning=intent_layer_pb2.Learning(id="l-1"))
    with scripted_server(answer) as server:
        use(run, server, call)
    assert server.requests[0].type == intent_layer_pb2.LEARNING_TYPE_PITFALL


@both
def test_pages_are_fetched_as_they_are_needed(run: Run) -> None:
    nodes = [
        intent_layer_pb2.ListNodesResponse(nodes=[intent_layer_pb2.NodeSummary(file="a")], next_page_token="2"),
        intent_layer_pb2.ListNodesResponse(nodes=[intent_layer_pb2.NodeSummary(file="b")]),
    ]

    async def call(client: Any) -> None:
        files = []
        async for node in client.intent_layer.list_nodes("shop", page_size=1):
            files.append(node.file)
            assert len(server.requests) == len(files)
        assert files == ["a", "b"]

    with scripted_server(*nodes) as server:
        use(run, server, call)
    assert [(request.page_size, request.page_token) for request in server.requests] == [(1, ""), (1, "2")]


@both
def test_what_is_numbered_is_listed_behind_the_last_number(run: Run) -> None:
    pages = [liaison_pb2.ListEventsResponse(events=[event(4)], more=True), liaison_pb2.ListEventsResponse()]

    async def call(client: Any) -> None:
        assert [each.sequence async for each in client.liaison.list_events(after=3)] == [4]

    with scripted_server(*pages) as server:
        use(run, server, call)
    assert [request.after for request in server.requests] == [3, 4]


@both
def test_an_import_travels_in_batches_each_of_which_is_repeated(run: Run) -> None:
    def results(*sources: str) -> journal_pb2.ImportDecisionsResponse:
        return journal_pb2.ImportDecisionsResponse(results=[journal_pb2.ImportResult(source=each) for each in sources])

    async def call(client: Any) -> None:
        records = [journal_pb2.ImportDecisionsRequest(source=name) for name in "abc"]
        assert [each.source async for each in client.import_decisions(records, batch=2)] == ["a", "b", "c"]

    with scripted_server(results("a", "b"), Unavailable("restarting"), results("c")) as server:
        use(run, server, call)
    assert ["".join(each.source for each in stream) for stream in server.requests] == ["ab", "c", "c"]


@both
@pytest.mark.parametrize("batch", [0, -1])
def test_batches_in_which_nothing_travels_are_refused(run: Run, batch: int) -> None:
    async def call(client: Any) -> None:
        with pytest.raises(InvalidArgument, match="batch"):
            [each async for each in client.import_decisions([journal_pb2.ImportDecisionsRequest()], batch=batch)]

    run("localhost:1", call, Time())


@both
def test_a_watch_goes_on_behind_what_it_saw(run: Run) -> None:
    time, told = Time(), []

    async def call(client: Any) -> None:
        seen = []
        async for each in client.liaison.watch_events(on_failure=lambda error, pause: told.append(pause)):
            seen.append(each.sequence)
            if len(seen) == 3:
                break
        assert seen == [7, 8, 9]

    with watched([7, Unavailable("stopping")], [QueryFailed("no database")], [8, 9]) as server:
        server.newest = 6
        run(server.target, call, time)
    assert [request.after for request in server.requests] == [6, 7, 7]
    assert time.slept == told == [0.1, 0.2]


@both
@pytest.mark.parametrize("kind", SERVER_ERRORS, ids=lambda kind: kind.reason)
def test_failures_are_exceptions_of_their_own(run: Run, kind: type[CstpError]) -> None:
    async def call(client: Any) -> None:
        with pytest.raises(kind, match="In words") as caught:
            await client.get_decision("dec-1")
        assert type(caught.value) is kind
        assert caught.value.metadata == {"a": "b", "requestId": "req-1"}

    with scripted_server(kind("In words", metadata={"a": "b"})) as server:
        use(run, server, call, retries=RetryPolicy(attempts=1))


@both
def test_a_passing_failure_is_repeated_as_the_service_config_says(run: Run) -> None:
    async def call(client: Any) -> None:
        assert (await client.announce_intent("deploy")).received

    failures: list[Answer] = [Unavailable("a"), RateLimited("b", retry_after=2.5), grpc.StatusCode.RESOURCE_EXHAUSTED]
    with scripted_server(*failures, cstp_pb2.AnnounceIntentResponse(received=True)) as server:
        assert use(run, server, call) == [0.1, 2.5, 0.4]
    keys = {request.correlation_id for request in server.requests}
    assert len(server.requests) == 4
    assert uuid.UUID(keys.pop())
    assert not keys


@both
def test_the_last_error_is_raised_when_the_attempts_are_used_up(run: Run) -> None:
    async def call(client: Any) -> None:
        with pytest.raises(Unavailable, match="starting"):
            await client.get_decision("dec-1")

    with scripted_server(Unavailable("starting")) as server:
        assert use(run, server, call) == [0.1, 0.2, 0.4]
    assert len(server.requests) == 4


@both
def test_nobody_waits_beyond_the_deadline(run: Run) -> None:
    async def call(client: Any) -> None:
        with pytest.raises(RateLimited):
            await client.get_decision("dec-1", timeout=5)
        with pytest.raises(RateLimited):
            await client.get_decision("dec-1")

    with scripted_server(RateLimited("slower", retry_after=31)) as server:
        assert use(run, server, call) == []
    assert len(server.requests) == 2


@both
def test_what_the_contract_does_not_call_idempotent_is_made_once(run: Run) -> None:
    async def call(client: Any) -> None:
        with pytest.raises(Unavailable):
            await client.intent_layer.init_node("shop", "src")

    with scripted_server(Unavailable("starting")) as server:
        assert use(run, server, call) == []
    assert len(server.requests) == 1


@both
@pytest.mark.parametrize(("pushback", "pauses"), [("-1", []), ("soon", []), ("1500", [1.5])])
def test_a_server_without_reasons_is_obeyed_too(run: Run, pushback: str, pauses: list[float]) -> None:
    def push_back(request: Any, context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata(((PUSHBACK_KEY, pushback),))

    async def call(client: Any) -> None:
        with pytest.raises(ServerUnreachable):
            await client.get_decision("dec-1")

    with scripted_server(grpc.StatusCode.UNAVAILABLE, before=push_back) as server:
        assert use(run, server, call, retries=RetryPolicy(attempts=2)) == pauses
    assert len(server.requests) == 1 + len(pauses)


@both
def test_what_cannot_be_sent_is_refused_by_field(run: Run) -> None:
    async def call(client: Any) -> None:
        with pytest.raises(InvalidArgument, match="'extreme' is not one of low, medium, high, critical"):
            await client.check_guardrails("deploy", stakes="extreme")

    run("localhost:1", call, Time())


@both
def test_mappings_stand_for_messages(run: Run) -> None:
    async def call(client: Any) -> None:
        await client.query_decisions("cache", filters={"outcome": ["failure"], "min_confidence": 0.5, "project": None})
        await client.record_decision(
            "Use X", reasons=[{"type": "analysis", "text": "measured"}], links={"supersedes": ["dec-0"]}
        )
        assert [each async for each in client.import_decisions([{"source": "a", "decision": {"title": "T"}}])] == []

    answers = cstp_pb2.QueryDecisionsResponse(), journal_pb2.RecordDecisionResponse()
    with scripted_server(*answers, journal_pb2.ImportDecisionsResponse()) as server:
        use(run, server, call)
    query, record, imported = server.requests
    assert query.filters == types_pb2.DecisionFilters(outcome=[types_pb2.OUTCOME_FAILURE], min_confidence=0.5)
    assert list(record.decision.reasons) == [journal_pb2.Reason(type="analysis", text="measured")]
    assert record.links == journal_pb2.Links(supersedes=["dec-0"])
    assert imported == [journal_pb2.ImportDecisionsRequest(source="a", decision=journal_pb2.DecisionContent(title="T"))]


@both
@pytest.mark.parametrize(
    ("method", "arguments", "refusal"),
    [
        ("query_decisions", {"filters": {"outcom": ["failure"]}}, "filters.outcom: is unknown; did you mean outcome?"),
        (
            "query_decisions",
            {"filters": {"minConfidence": 1}},
            "filters.minConfidence: is unknown; did you mean min_confid",
        ),
        ("query_decisions", {"filters": {"x": 1}}, "filters.x: is unknown; known are category, min_confidence,"),
        ("query_decisions", {"filters": ["failure"]}, "filters: must be a DecisionFilters or a mapping of its fields"),
        ("query_decisions", {"filters": {"tags": "auth"}}, "filters.tags: must be a list"),
        ("query_decisions", {"filters": {"tags": ["a", 1]}}, "filters.tags[1]: must be a string"),
        ("query_decisions", {"filters": {"outcome": [1]}}, "filters.outcome[0]: 1 is not one of success"),
        (
            "query_decisions",
            {"filters": {"date_after": "2026"}},
            "filters.date_after: must be a datetime with a time z",
        ),
        ("query_decisions", {"filters": journal_pb2.Links()}, "filters: must be a DecisionFilters or a mapping"),
        ("query_decisions", {"limit": "5"}, "limit: must be a"),
        ("query_decisions", {"limit": 2**40}, "limit: must be a"),
        ("record_decision", {"confidence": "0.8"}, "decision.confidence: must be a numbe"),
        (
            "record_decision",
            {"reasons": [{"typ": "analysis"}]},
            "decision.reasons[0].typ: is unknown; did you mean type?",
        ),
        ("record_decision", {"reasons": {"type": "analysis"}}, "decision.reasons: must be a list"),
        ("record_decision", {"visibility": 3}, "decision.visibility: 3 is not one of private, shared"),
        ("record_decision", {"context": "lone \udcff"}, "decision.context: must be valid Unicode"),
        ("link_decisions", {"add": {"related": ["dec-2"]}}, "add.related: is unknown; did you mean relates_to?"),
        ("update_decision", {"reasons": [1]}, "changes.reasons[0]: must be a Reason or a mapping of its fields"),
        ("announce_intent", {"metadata": [1]}, "metadata: is not a JSON object"),
    ],
)
def test_an_invalid_value_is_refused_with_its_path(
    run: Run, method: str, arguments: dict[str, Any], refusal: str
) -> None:
    async def call(client: Any) -> None:
        with pytest.raises(InvalidArgument) as refused:
            await getattr(client, method)("dec-1", **arguments)
        assert str(refused.value).startswith(refusal)
        assert refusal.startswith(f"{refused.value.violations[0].field}: ")

    run("localhost:1", call, Time())


@both
def test_an_invalid_request_of_an_upload_is_refused_with_its_position(run: Run) -> None:
    async def call(client: Any) -> None:
        with pytest.raises(InvalidArgument, match=r"^requests\[1\].decision.titel: is unknown; did you mean title"):
            [each async for each in client.import_decisions([{"source": "a"}, {"decision": {"titel": "T"}}])]

    run("localhost:1", call, Time())


@contextmanager
def garbling_server() -> Iterator[str]:
    """Run a server whose answers are no messages."""

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        return b"\xff"

    class Handlers(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            if details.method.endswith("/WatchEvents"):
                return grpc.unary_stream_rpc_method_handler(lambda request, context: iter([answer(request, context)]))
            if details.method.endswith("/ListEvents"):
                return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
            return None if "Health" in details.method else grpc.unary_unary_rpc_method_handler(answer)

    with grpc_server(lambda server: server.add_generic_rpc_handlers((Handlers(),))) as port:
        yield f"127.0.0.1:{port}"


class Silence:
    """Keeps calls waiting until they are over."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self, request: Any, context: grpc.ServicerContext) -> None:
        context.add_callback(self.over.set)
        self.begun.set()
        self.over.wait(SECONDS)


@both
def test_a_call_ends_with_its_time(run: Run) -> None:
    async def call(client: Any) -> None:
        with pytest.raises(DeadlineExceeded):
            await client.get_access(timeout=0.2)

    with scripted_server(access_pb2.GetAccessResponse(), before=Silence()) as server:
        run(server.target, call, Time())


@both
def test_a_call_may_take_for_ever_and_no_time_that_is_none(run: Run) -> None:
    async def call(client: Any) -> None:
        assert await client.get_access(timeout=math.inf) == access_pb2.GetAccessResponse()
        with pytest.raises(InvalidArgument, match="timeout"):
            await client.get_access(timeout=math.nan)

    with scripted_server(access_pb2.GetAccessResponse()) as server:
        run(server.target, call, Time())


@pytest.mark.parametrize(
    "begin",
    [
        lambda client: client.get_access(),
        lambda client: client.watch(contract_methods()["liaison.watchEvents"], liaison_pb2.WatchEventsRequest(after=3)),
        lambda client: anext(client.liaison.watch_events(after=3)),
    ],
    ids=["call", "stream", "watch"],
)
def test_a_call_ends_with_the_task_that_waits_for_it(begin: Callable[[Any], Any]) -> None:
    silence = Silence()

    async def within(client: Any) -> None:
        await begin(client)

    async def call(client: Any) -> None:
        task = asyncio.create_task(within(client))
        await asyncio.to_thread(silence.begun.wait, SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(silence.over.wait, SECONDS), "the server does not know that the call is over"

    with scripted_server(access_pb2.GetAccessResponse(), before=silence) as server:
        in_loop(server.target, call, Time())


@both
def test_a_client_that_is_closed_says_so_at_once(run: Run) -> None:
    async def call(client: Any) -> None:
        await client.close()
        with pytest.raises(Unavailable, match="The client is closed"):
            await client.get_access()
        with pytest.raises(Unavailable, match="The client is closed"):
            [each async for each in client.import_decisions([journal_pb2.ImportDecisionsRequest(source="a")])]
        with pytest.raises(Unavailable, match="The client is closed"):
            [each async for each in client.liaison.watch_events()]
        with pytest.raises(Unavailable, match="The client is closed"):
            await client.watch(contract_methods()["liaison.watchEvents"], liaison_pb2.WatchEventsRequest(after=3))

    with scripted_server(access_pb2.GetAccessResponse()) as server:
        assert use(run, server, call) == []
    assert server.requests == []


def test_a_call_that_waits_when_a_client_is_closed_is_not_repeated() -> None:
    silence, time = Silence(), Time()
    client_options: dict[str, Any] = {"sleep": time.sleep, "clock": lambda: time.now}
    with scripted_server(access_pb2.GetAccessResponse(), before=silence) as server, ThreadPoolExecutor(1) as pool:
        client = CstpClient(server.target, **client_options)
        answer = pool.submit(client.get_access)
        assert silence.begun.wait(SECONDS)
        client.close()
        with pytest.raises(Unavailable, match="The client is closed"):
            answer.result(SECONDS)
    assert time.slept == []


@both
def test_an_answer_that_cannot_be_read_is_an_error(run: Run) -> None:
    async def call(client: Any) -> None:
        with pytest.raises(InternalError):
            await client.get_access()
        with pytest.raises(InternalError):
            [each async for each in client.liaison.watch_events(resume=False, timeout=30)]

    with garbling_server() as target:
        run(target, call, Time())


def test_closing_the_client_ends_its_calls_and_cancels_no_task() -> None:
    silence = Silence()

    async def call(client: Any) -> None:
        task = asyncio.create_task(client.get_access())
        await asyncio.to_thread(silence.begun.wait, SECONDS)
        await client.close()
        with pytest.raises(Unavailable, match="closed"):
            await task
        with pytest.raises(Unavailable, match="closed"):
            await client.get_access()

    with scripted_server(access_pb2.GetAccessResponse(), before=silence) as server:
        in_loop(server.target, call, Time(), retries=RetryPolicy(attempts=1))


def test_closing_the_client_is_no_end_of_its_streams() -> None:
    release = threading.Event()

    async def call(client: Any) -> None:
        watching = client.liaison.watch_events(after=3)
        assert (await anext(watching)).sequence == 4
        rest = asyncio.create_task(anext(watching))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(Unavailable, match="closed"):
            await rest
        release.set()

    with watched([4, release]) as server:
        in_loop(server.target, call, Time())


def test_a_stream_that_is_closed_has_no_more_answers() -> None:
    release = threading.Event()

    async def call(client: Any) -> None:
        watch = contract_methods()["liaison.watchEvents"]
        async with await client.watch(watch, liaison_pb2.WatchEventsRequest(after=3)) as answers:
            assert (await anext(answers)).event.sequence == 4
            rest = asyncio.create_task(collected(answers))
            await asyncio.sleep(0)
            answers.close()
            assert await rest == []
        release.set()

    async def collected(answers: Any) -> list[Any]:
        return [answer async for answer in answers]

    with watched([4, release]) as server:
        in_loop(server.target, call, Time())


def test_an_import_can_be_fed_as_it_comes() -> None:
    async def records() -> AsyncIterator[journal_pb2.ImportDecisionsRequest]:
        for name in "abc":
            yield journal_pb2.ImportDecisionsRequest(source=name)

    async def call(client: Any) -> None:
        assert [each async for each in client.import_decisions(records(), batch=2)] == []

    with scripted_server(journal_pb2.ImportDecisionsResponse()) as server:
        in_loop(server.target, call, Time())
    assert ["".join(each.source for each in stream) for stream in server.requests] == ["ab", "c"]


@pytest.mark.parametrize("target", ["http://localhost:8000", "https://localhost"])
def test_a_bridge_is_for_the_other_client(target: str) -> None:
    with pytest.raises(InvalidArgument, match="which CstpClient calls"):
        AsyncCstpClient(target)


def test_a_target_that_is_none_is_refused_at_once() -> None:
    for kind in [CstpClient, AsyncCstpClient]:
        for target in ["", "localhost", "grpc://x:1/path", "grpc://x:1#path", "ftp://x:1", "grpc://[::1:1"]:
            with named_case(kind, target), pytest.raises(InvalidArgument, match="target"):
                kind(target)


def test_a_password_in_a_target_is_refused_and_not_told() -> None:
    for kind in [CstpClient, AsyncCstpClient]:
        for target in [
            "me:secret@x:1",
            "grpcs://me:secret@x:1",
            "ftp://me:secret@x:1",
            "https://me:secret@x",
            "grpc://me:secret@[x",
        ]:
            with named_case(kind, target):
                with pytest.raises(InvalidArgument, match="target") as caught:
                    kind(target)
                assert "secret" not in str(caught.value)
