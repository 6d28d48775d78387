"""Agents of the Microsoft Agent Framework under guard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import pytest
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    FunctionTool,
    Message,
    MiddlewareFailure,
    tool,
)

from cstp_grpc.agents.frameworks.agent_framework import GuardFunctionMiddleware
from cstp_grpc.agents.frameworks.tool_guard import ToolGuard
from cstp_grpc.client import AsyncCstpClient, Blocked, CstpClient
from cstp_grpc.contract.errors import ServerUnreachable
from tests.agents.frameworks.scenario import (
    BLOCKED_WORDS,
    BROKEN_WORDS,
    QUESTION_WORDS,
    UNREACHABLE_WORDS,
    Tables,
    decision_about,
    guard_with,
    name_table,
    outcome_of,
    unreachable_client,
)


class ScriptedClient(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    def __init__(self, *script: Sequence[Content | str]) -> None:
        super().__init__()
        self._script = iter(script)

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse[Any]]:
        async def answer() -> ChatResponse[Any]:
            return ChatResponse(messages=[Message("assistant", list(next(self._script)))])

        return answer()


def drop_tool(tables: Tables, **options: Any) -> FunctionTool:
    @tool(name="drop_table", **{"approval_mode": "never_require", **options})
    def drop(table: str) -> str:
        """Drop a table."""
        return tables.drop(table)

    return drop


def agent_for(tool_guard: ToolGuard, function: FunctionTool, table: str) -> Any:
    call = Content.from_function_call("call-1", "drop_table", arguments={"table": table})
    script = ScriptedClient([call], ["Done."])
    return Agent(client=script, tools=[function], middleware=[GuardFunctionMiddleware(tool_guard)])


def run(tool_guard: ToolGuard, function: FunctionTool, table: str) -> Any:
    return asyncio.run(agent_for(tool_guard, function, table).run("Drop it"))


def answer_of(response: Any) -> Content:
    """Return the only result of a function in a run that has ended."""
    assert response.text == "Done."
    contents = [content for message in response.messages for content in message.contents]
    (answer,) = [content for content in contents if content.type == "function_result"]
    return answer


@pytest.mark.parametrize("asynchronous", [True, False], ids=["AsyncCstpClient", "CstpClient"])
def test_what_is_allowed_runs_and_what_is_blocked_does_not(
    client: CstpClient, target: str, token: str, asynchronous: bool
) -> None:
    tables, allowed, blocked = Tables(), name_table("scratch"), name_table("orders")

    async def drop(table: str) -> Content:
        async with AsyncCstpClient(target, token) as calls:
            guard = guard_with(calls if asynchronous else client)
            return answer_of(await agent_for(guard, drop_tool(tables), table).run("Drop it"))

    assert asyncio.run(drop(allowed)).result == f"{allowed} is dropped"
    refused = asyncio.run(drop(blocked)).result
    assert all(words in refused for words in BLOCKED_WORDS)
    assert tables.dropped == [allowed]
    decision = decision_about(client, allowed)
    assert decision is not None
    assert (outcome_of(client, allowed), decision.confidence) == ("success", 0.7)
    assert decision_about(client, blocked) is None


def test_a_function_that_raises_is_a_failure_of_which_the_model_is_told(client: CstpClient) -> None:
    table = name_table("broken")
    assert answer_of(run(guard_with(client), drop_tool(Tables()), table)).exception
    decision = decision_about(client, table)
    assert decision is not None
    assert (outcome_of(client, table), BROKEN_WORDS in decision.notes) == ("failure", True)


@pytest.mark.parametrize("approves", [True, False])
def test_a_person_is_asked_by_a_request(client: CstpClient, approves: bool) -> None:
    tables, table = Tables(), name_table("payments")
    agent = agent_for(guard_with(client, approvals="ask"), drop_tool(tables), table)

    async def converse() -> Any:
        session = agent.create_session()
        paused = await agent.run("Drop it", session=session)
        (asked,) = paused.user_input_requests
        assert QUESTION_WORDS in asked.additional_properties["question"]
        assert asked.function_call.parse_arguments() == {"table": table}
        assert tables.dropped == []
        decided = Message("user", [asked.to_function_approval_response(approved=approves)])
        return await agent.run(decided, session=session)

    assert asyncio.run(converse()).text == "Done."
    assert tables.dropped == ([table] if approves else [])
    assert outcome_of(client, table) == ("success" if approves else None)


def test_a_person_whom_the_function_itself_asks_approves_nothing_else(client: CstpClient) -> None:
    tables, table = Tables(), name_table("payments")
    agent = agent_for(guard_with(client), drop_tool(tables, approval_mode="always_require"), table)

    async def converse() -> Any:
        session = agent.create_session()
        (asked,) = (await agent.run("Drop it", session=session)).user_input_requests
        return await agent.run(Message("user", [asked.to_function_approval_response(approved=True)]), session=session)

    assert "NOT ALLOWED without approval" in answer_of(asyncio.run(converse())).result
    assert tables.dropped == []


def test_by_setting_what_needs_approval_leaves_the_run(client: CstpClient) -> None:
    tables = Tables()
    with pytest.raises(MiddlewareFailure) as caught:
        run(guard_with(client, approvals="raise"), drop_tool(tables), name_table("payments"))
    assert isinstance(caught.value.__cause__, Blocked)
    assert tables.dropped == []


def test_what_cannot_be_judged_does_not_run() -> None:
    tables, table = Tables(), name_table("scratch")
    with unreachable_client() as client:
        assert UNREACHABLE_WORDS in answer_of(run(guard_with(client), drop_tool(tables), table)).result
        with pytest.raises(MiddlewareFailure) as caught:
            run(guard_with(client, on_failure="raise"), drop_tool(tables), table)
        assert isinstance(caught.value.__cause__, ServerUnreachable)
        assert tables.dropped == []
        run(guard_with(client, on_failure="allow"), drop_tool(tables), table)
    assert tables.dropped == [table]
