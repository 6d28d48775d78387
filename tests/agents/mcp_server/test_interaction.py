"""What happens amid a call: a person is asked, progress is told, and a call that is not wanted any more ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anyio
import mcp_types
import pytest
from google.protobuf.message import Message
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from cstp_grpc.agents.mcp_server.clients import SingleClient
from cstp_grpc.agents.mcp_server.http_transport import HttpOptions, open_http_server
from cstp_grpc.agents.mcp_server.server_setup import build_mcp_server
from cstp_grpc.client import AsyncCstpClient
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.gen.cstp.v1 import access_pb2
from cstp_grpc.server.app import App
from tests.agents.mcp_server.hosts import MODERN, MODES, MODES_OF_COMMANDS, SECONDS, Host, authorized_client, text_of
from tests.event_loops import entered_in_thread
from tests.harness import TOKENS
from tests.waiting import wait_until

DEPLOY = {"intent": "Deploy the shop", "metadata": {"affectsProduction": True}}
CHECK = {"description": "Deploy the shop", "context": {"affectsProduction": True}}
PAYMENT = {"category": "payments", "context": {"affectsProduction": False}}
Answer = mcp_types.ElicitResult | mcp_types.ErrorData


class Person:
    """Answers forms, and remembers them."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.forms: list[mcp_types.ElicitRequestFormParams] = []

    async def __call__(self, _: Any, params: mcp_types.ElicitRequestParams) -> Answer:
        assert isinstance(params, mcp_types.ElicitRequestFormParams)
        self.forms.append(params)
        return self.answer


def accepting(**facts: str | bool) -> mcp_types.ElicitResult:
    return mcp_types.ElicitResult(action="accept", content={**facts})


@pytest.mark.parametrize(("tool", "arguments"), [("look_before_acting", DEPLOY), ("check_action", CHECK)])
def test_a_person_is_asked_for_the_facts_that_can_change_a_verdict(
    host: Host, tool: str, arguments: dict[str, Any]
) -> None:
    person = Person(accepting(codeReviewed=True, somethingElse=True))
    result = host.run(lambda client: client.call_tool(tool, arguments), elicitation_callback=person)
    [form] = person.forms
    assert "BLOCKED" in form.message
    described = {"title": "codeReviewed", "type": "boolean", "description": "Whether a person has reviewed the code"}
    assert form.requested_schema["properties"] == {"codeReviewed": described}
    assert text_of(result).startswith("ALLOWED")
    assert 'A person gave these facts: {"codeReviewed": true}' in text_of(result)


def test_the_answer_makes_a_revision_of_the_same_announcement(host: Host) -> None:
    person = Person(accepting(codeReviewed=True))
    result = host.run(lambda client: client.call_tool("look_before_acting", DEPLOY), elicitation_callback=person)
    assert result.structured_content["revision"] == 2


@pytest.mark.parametrize(
    "answer",
    [
        mcp_types.ElicitResult(action="decline"),
        mcp_types.ElicitResult(action="cancel", content={"codeReviewed": True}),
        accepting(),
    ],
    ids=["decline", "cancel", "nothing"],
)
def test_without_an_answer_the_verdict_stands_and_nobody_is_asked_again(host: Host, answer: Answer) -> None:
    person = Person(answer)
    result = host.run(lambda client: client.call_tool("look_before_acting", DEPLOY), elicitation_callback=person)
    assert len(person.forms) == 1
    assert text_of(result).startswith("BLOCKED")
    assert "gave none" in text_of(result)
    assert result.structured_content["revision"] == 1


def test_a_host_that_fails_to_ask_gets_the_verdict(cstp_server: App, mcp_url: str) -> None:
    person = Person(mcp_types.ErrorData(code=-32000, message="no window"))
    host = Host(cstp_server.target, mcp_url, "legacy")
    result = host.run(lambda client: client.call_tool("check_action", CHECK), elicitation_callback=person)
    assert text_of(result).startswith("BLOCKED")


@pytest.mark.parametrize("arguments", [{"description": "x", "context": {"window": "weekend"}}, {"description": "x"}])
def test_nobody_is_asked_if_the_action_is_allowed(host: Host, arguments: dict[str, Any]) -> None:
    person = Person(accepting())
    result = host.run(lambda client: client.call_tool("check_action", arguments), elicitation_callback=person)
    assert text_of(result).startswith("ALLOWED")
    assert person.forms == []


@pytest.mark.parametrize("mode", MODES_OF_COMMANDS)
def test_a_person_is_asked_over_standard_streams(cstp_server: App, mode: str) -> None:
    person = Person(accepting(codeReviewed=True))
    host = Host(cstp_server.target, "stdio", mode)
    result = host.run(lambda client: client.call_tool("check_action", CHECK), elicitation_callback=person)
    assert text_of(result).startswith("ALLOWED")


@pytest.mark.parametrize("forged", ['{"asked": ["codeReviewed"], "correlationId": null}', "v1.AAAA", ""])
def test_a_state_that_this_server_did_not_make_is_refused(cstp_server: App, mcp_url: str, forged: str) -> None:
    async def use(client: Client) -> mcp_types.ErrorData:
        answers: mcp_types.InputResponses = {"person": accepting(codeReviewed=True)}
        with pytest.raises(MCPError) as refused:
            await client.call_tool("check_action", CHECK, input_responses=answers, request_state=forged)
        return refused.value.error

    error = Host(cstp_server.target, mcp_url, MODERN).run(use)
    assert error.code == mcp_types.INVALID_PARAMS
    assert "requestState" in error.message


def test_the_state_of_another_call_is_refused(cstp_server: App, mcp_url: str) -> None:
    async def use(client: Client) -> None:
        asked = await client.session.call_tool("check_action", CHECK, allow_input_required=True)
        assert isinstance(asked, mcp_types.InputRequiredResult)
        other = {**CHECK, "description": "Drop the shop"}
        answers: mcp_types.InputResponses = {"person": accepting(codeReviewed=True)}
        with pytest.raises(MCPError, match="requestState"):
            await client.call_tool("check_action", other, input_responses=answers, request_state=asked.request_state)

    person = Person(accepting())
    Host(cstp_server.target, mcp_url, MODERN).run(use, elicitation_callback=person)


class Approver(Person):
    """Has another agent decide on the request that the form names before it answers."""

    def __init__(self, target: str, *, grants: bool) -> None:
        super().__init__(accepting(decided=True))
        self._target = target
        self._grants = grants

    async def __call__(self, context: Any, params: mcp_types.ElicitRequestParams) -> Answer:
        answer = await super().__call__(context, params)
        identifier = params.message.partition("The approval ")[2].partition(" ")[0]
        async with AsyncCstpClient(self._target, TOKENS["bob"]) as client:
            decide = client.grant_approval if self._grants else client.deny_approval
            await decide(identifier, comment="The backup is verified")
        return answer


@pytest.mark.parametrize(("grants", "begins"), [(True, "ALLOWED, with warnings"), (False, "BLOCKED.")])
def test_an_approval_is_awaited_and_the_action_judged_again(host: Host, grants: bool, begins: str) -> None:
    action = {**PAYMENT, "description": f"Pay the bill, {host.mode}, {grants}"}
    person = Approver(host.target, grants=grants)
    result = host.run(lambda client: client.call_tool("check_action", action), elicitation_callback=person)
    assert "NOT ALLOWED without approval" in person.forms[0].message
    assert "Answering approves nothing" in person.forms[0].requested_schema["properties"]["decided"]["description"]
    assert text_of(result).startswith(begins)
    assert "The backup is verified" in text_of(result)


def test_an_answer_alone_approves_nothing(host: Host) -> None:
    action = {**PAYMENT, "description": f"Pay the rent, {host.mode}"}
    person = Person(accepting(decided=True, affectsProduction=True))
    result = host.run(lambda client: client.call_tool("check_action", action), elicitation_callback=person)
    assert text_of(result).startswith("NOT ALLOWED without approval")
    assert "cstp approvals grant apr-" in text_of(result)


def test_both_ends_of_a_call_are_told_as_progress(host: Host) -> None:
    told: list[tuple[float, float | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total))

    async def use(client: Client) -> None:
        await client.call_tool("check_action", {"description": "x"}, progress_callback=note)

    host.run(use)
    assert told == [(0, 1), (1, 1)]


class WaitingClient:
    """Knows every token, and answers no other call before it is cancelled."""

    def __init__(self) -> None:
        self.waiting = 0
        self.cancelled = 0

    async def call(self, method: RpcMethod, request: Message, timeout: float | None = None) -> Message:
        if method.rpc == "GetAccess":
            return access_pb2.GetAccessResponse(requesting_agent="alice", tenant="default")
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError("it waits for ever")

    async def close(self) -> None:
        """There is nothing to close."""


class BrokenClient(WaitingClient):
    """Fails as no server does."""

    async def call(self, method: RpcMethod, request: Message, timeout: float | None = None) -> Message:
        raise RuntimeError("a secret of the implementation")


@pytest.mark.parametrize("mode", MODES)
def test_an_unexpected_failure_is_told_to_the_log_alone(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> mcp_types.ErrorData:
        async with Client(build_mcp_server(SingleClient(BrokenClient())), mode=mode) as client:
            with pytest.raises(MCPError) as refused:
                await client.call_tool("check_action", {"description": "x"})
            return refused.value.error

    error = asyncio.run(use())
    assert error.code == mcp_types.INTERNAL_ERROR
    assert "secret" not in f"{error.message} {error.data}"
    assert "a secret of the implementation" in caplog.text


@pytest.fixture
def waiting() -> Iterator[tuple[WaitingClient, str]]:
    """A client whose calls wait, and the URL of MCP in front of it."""
    client = WaitingClient()
    with entered_in_thread(lambda: open_http_server(lambda _: client, HttpOptions()), "mcp-waiting") as url:
        yield client, url


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_the_host_cancels_is_cancelled_at_the_server(waiting: tuple[WaitingClient, str], mode: str) -> None:
    calls, url = waiting

    async def use() -> None:
        async with (
            authorized_client(TOKENS["alice"]) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(client.call_tool, "check_action", {"description": "x"})
            await asyncio.to_thread(wait_until, lambda: calls.waiting == 1, "the server is called")
            tasks.cancel_scope.cancel()
            # The session stays open meanwhile, whose end would cancel the call, too.
            with anyio.CancelScope(shield=True):
                await asyncio.to_thread(wait_until, lambda: calls.cancelled == 1, "the call is cancelled")

    asyncio.run(asyncio.wait_for(use(), SECONDS))
