"""The proxy between an MCP host and a server, without their processes."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter

from cstp_grpc.agents.frameworks.mcp_approvals import describe_call
from cstp_grpc.agents.frameworks.mcp_proxy import MAX_JUDGED, ToolCallProxy
from cstp_grpc.agents.frameworks.tool_guard import ToolGuard
from cstp_grpc.client import CstpClient
from cstp_grpc.contract.calls import UnaryCall
from cstp_grpc.modules.federation import Agent, FederatedClient
from tests.agents.frameworks.scenario import guard_with, name_table, outcome_of

T = TypeVar("T")
SECONDS = 30.0


class Wires:
    """Keeps what the proxy sends to either side."""

    def __init__(self, tool_guard: ToolGuard) -> None:
        self.to_host: list[JSONRPCMessage] = []
        self.to_server: list[JSONRPCMessage] = []
        self.proxy = ToolCallProxy(tool_guard, self._keep(self.to_host), self._keep(self.to_server))

    @staticmethod
    def _keep(sent: list[JSONRPCMessage]) -> Callable[[JSONRPCMessage], Awaitable[None]]:
        async def keep(message: JSONRPCMessage) -> None:
            sent.append(message)

        return keep

    async def from_host(self, *messages: JSONRPCMessage | ValueError) -> None:
        """Have the proxy take messages of the host, and wait until it has judged them."""
        async with anyio.create_task_group() as tasks:
            for message in messages:
                await self.proxy.pass_to_server(message, tasks)

    async def from_server(self, *messages: JSONRPCMessage | ValueError) -> None:
        """Have the proxy take messages of the server, and wait until it has passed them on."""
        async with anyio.create_task_group() as tasks:
            for message in messages:
                await self.proxy.pass_to_host(message, tasks)


class SlowClient:
    """A client whose calls wait until they are let go, and then break."""

    def __init__(self) -> None:
        self.called = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.calls = 0

    def make(self, call: UnaryCall[T], timeout: float | None = None) -> T:
        self.calls += 1
        self.called.release()
        assert self.let_go.wait(SECONDS)
        raise RuntimeError("the judgement broke")


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(SECONDS):
            await body()

    anyio.run(bounded)


def calling(request_id: int | str, table: str) -> JSONRPCRequest:
    params = {"name": "drop_table", "arguments": {"table": table}}
    return JSONRPCRequest(jsonrpc="2.0", id=request_id, method="tools/call", params=params)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=8), JSON, max_size=4)
IDS = st.integers(-(2**53), 2**53) | st.text(max_size=8)
METHODS = st.text(max_size=12).filter(lambda method: method not in ("tools/call", "notifications/cancelled"))
MESSAGES = st.one_of(
    st.fixed_dictionaries({"jsonrpc": st.just("2.0"), "id": IDS, "method": METHODS}, optional={"params": OBJECTS}),
    st.fixed_dictionaries({"jsonrpc": st.just("2.0"), "method": METHODS}, optional={"params": OBJECTS}),
    st.fixed_dictionaries({"jsonrpc": st.just("2.0"), "id": IDS, "result": OBJECTS}),
)


@given(messages=st.lists(MESSAGES, max_size=5))
def test_what_is_no_call_of_a_tool_passes_in_order_and_unchanged(messages: list[dict[str, Any]]) -> None:
    parsed = [jsonrpc_message_adapter.validate_python(message) for message in messages]

    async def body() -> None:
        with FederatedClient([Agent("away", "grpc://127.0.0.1:1")]) as client:
            wires = Wires(ToolGuard(client, record=False))
            await wires.from_host(*parsed)
            await wires.from_server(*parsed)
            for passed in (wires.to_server, wires.to_host):
                assert [message.model_dump(exclude_unset=True) for message in passed] == messages

    run(body)


def test_a_call_that_is_cancelled_while_it_is_judged_is_neither_made_nor_answered() -> None:
    slow = SlowClient()
    cancelled = jsonrpc_message_adapter.validate_python(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    )

    async def body() -> None:
        wires = Wires(ToolGuard(slow, record=False))
        async with anyio.create_task_group() as tasks:
            await wires.proxy.pass_to_server(calling(1, "scratch"), tasks)
            await anyio.to_thread.run_sync(slow.called.acquire)
            await wires.proxy.pass_to_server(cancelled, tasks)
            slow.let_go.set()
        assert (wires.to_server, wires.to_host) == ([], [])

    run(body)


def test_only_so_many_calls_are_judged_at_once() -> None:
    slow = SlowClient()
    passed: list[int] = []

    async def body() -> None:
        wires = Wires(ToolGuard(slow, record=False))
        async with anyio.create_task_group() as tasks:

            async def read_host() -> None:
                for number in range(MAX_JUDGED + 1):
                    await wires.proxy.pass_to_server(calling(number, "scratch"), tasks)
                    passed.append(number)

            tasks.start_soon(read_host)
            await anyio.to_thread.run_sync(slow.called.acquire)
            while len(passed) < MAX_JUDGED:
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            assert passed == list(range(MAX_JUDGED))
            slow.let_go.set()
        assert len(wires.to_host) == slow.calls == MAX_JUDGED + 1

    run(body)


def test_a_call_whose_judgement_breaks_is_refused() -> None:
    slow = SlowClient()
    slow.let_go.set()

    async def body() -> None:
        wires = Wires(ToolGuard(slow, record=False))
        await wires.from_host(calling(1, "scratch"))
        (answer,) = wires.to_host
        assert isinstance(answer, JSONRPCResponse)
        assert answer.result["isError"]
        assert wires.to_server == []

    run(body)


def test_nobody_waits_for_a_person_once_the_host_is_gone(client: CstpClient) -> None:
    handshake: dict[str, Any] = {"capabilities": {"elicitation": {}}}
    initialize = JSONRPCRequest(jsonrpc="2.0", id=0, method="initialize", params=handshake)

    async def body() -> None:
        wires = Wires(guard_with(client, approvals="ask"))
        async with anyio.create_task_group() as tasks:
            await wires.proxy.pass_to_server(initialize, tasks)
            await wires.proxy.pass_to_server(calling(1, name_table("payments")), tasks)
            while not wires.to_host:
                await anyio.lowlevel.checkpoint()
            wires.proxy.end_input()
        asked, answer = wires.to_host
        assert isinstance(asked, JSONRPCRequest)
        assert isinstance(answer, JSONRPCResponse)
        assert (asked.method, answer.result["isError"]) == ("elicitation/create", True)

    run(body)


def test_nobody_is_asked_once_the_host_is_gone(client: CstpClient) -> None:
    initialize = JSONRPCRequest(jsonrpc="2.0", id=0, method="initialize", params={"capabilities": {"elicitation": {}}})

    async def body() -> None:
        wires = Wires(guard_with(client, approvals="ask"))
        async with anyio.create_task_group() as tasks:
            await wires.proxy.pass_to_server(initialize, tasks)
            await wires.proxy.pass_to_server(calling(1, name_table("payments")), tasks)
            # Before the call is judged: that takes an exchange with the server.
            wires.proxy.end_input()
        (answer,) = wires.to_host
        assert isinstance(answer, JSONRPCResponse)
        assert answer.result["isError"]
        assert wires.to_server == [initialize]

    run(body)


@pytest.mark.parametrize("named", [[1], {"id": 1}, None, 1.5])
def test_a_cancellation_of_no_call_passes(named: Any) -> None:
    cancelled = jsonrpc_message_adapter.validate_python(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": named}}
    )

    async def body() -> None:
        wires = Wires(ToolGuard(SlowClient(), record=False))
        await wires.from_host(cancelled)
        assert wires.to_server == [cancelled]

    run(body)


def test_an_approved_retry_has_what_the_server_asked_for(client: CstpClient) -> None:
    capabilities: dict[str, Any] = {mcp_types.CLIENT_CAPABILITIES_META_KEY: {"elicitation": {}}}
    meta = {mcp_types.PROTOCOL_VERSION_META_KEY: "2026-07-28", **capabilities}
    first = calling(1, name_table("payments"))
    own = {"requestState": "the server's", "inputResponses": {"why": {"action": "accept", "content": {"why": "so"}}}}
    retry = {**(first.params or {}), "_meta": meta, **own}

    async def body() -> None:
        wires = Wires(guard_with(client, approvals="ask"))
        await wires.from_host(first.model_copy(update={"params": retry}))
        (asked,) = wires.to_host
        assert isinstance(asked, JSONRPCResponse)
        assert asked.result["resultType"] == "input_required"
        approval = {"cstp-approval": {"action": "accept", "content": {"approve": True}}}
        answered = {**retry, "requestState": asked.result["requestState"], "inputResponses": approval}
        await wires.from_host(first.model_copy(update={"id": 2, "params": answered}))
        (passed,) = wires.to_server
        assert isinstance(passed, JSONRPCRequest)
        assert passed.params == retry

    run(body)


@given(arguments=OBJECTS, name=st.text(max_size=20))
def test_a_person_reads_what_is_called_on_a_line_of_its_own(arguments: dict[str, Any], name: str) -> None:
    long = {**arguments, "text": "x" * 10_000}
    for given_arguments, most in ((arguments, 10_000), (long, 2_100)):
        params = {"name": name, "arguments": given_arguments}
        shown = describe_call(JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params=params))
        assert len(shown.splitlines()) == 1
        assert len(shown) < most


def test_an_answer_that_comes_too_late_does_not_reach_the_server(client: CstpClient) -> None:
    async def body() -> None:
        wires = Wires(guard_with(client, approvals="ask"))
        late = JSONRPCResponse(jsonrpc="2.0", id="cstp-approval-0", result={"action": "accept"})
        await wires.from_host(late)
        assert wires.to_server == []

    run(body)


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        ({"content": []}, "success"),
        ({"content": [], "isError": True}, "failure"),
        ({"resultType": "complete"}, "success"),
        ({"resultType": "input_required", "inputRequests": {}}, "abandoned"),
        ({"task": {"taskId": "1"}}, "abandoned"),
        (None, "failure"),
    ],
)
def test_the_outcome_is_what_the_server_answered(client: CstpClient, result: Any, outcome: str) -> None:
    table = name_table("scratch")

    async def body() -> None:
        wires = Wires(guard_with(client))
        await wires.from_host(calling("a", table))
        assert len(wires.to_server) == 1
        answer: JSONRPCMessage = (
            jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", "id": "a", "error": {"code": 1, "message": "m"}})
            if result is None
            else JSONRPCResponse(jsonrpc="2.0", id="a", result=result)
        )
        await wires.from_server(answer)
        assert wires.to_host == [answer]
        assert result is not None or isinstance(answer, JSONRPCError)

    run(body)
    assert outcome_of(client, table) == outcome
