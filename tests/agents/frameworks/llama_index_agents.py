"""Agents of LlamaIndex under guard."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.agent.workflow import CodeActAgent, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.tools import FunctionTool, ToolOutput
from llama_index.core.tools.calling import call_tool
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent

from cstp_grpc.agents.frameworks.llama_index import AskPerson, guard_tool
from cstp_grpc.agents.frameworks.tool_guard import ToolCallRefused, ToolGuard
from cstp_grpc.client import AsyncCstpClient, Blocked, CstpClient
from cstp_grpc.contract.errors import ServerUnreachable
from cstp_grpc.gen.cstp.v1 import types_pb2
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


def drop_tool(tables: Tables) -> FunctionTool:
    return FunctionTool.from_defaults(tables.drop, name="drop_table")


def agent_for(tool: FunctionTool, table: str) -> FunctionAgent:
    def follow_script(messages: Sequence[ChatMessage], **_: Any) -> ChatMessage:
        answered = any(message.role == "tool" for message in messages)
        call = ToolCallBlock(tool_call_id="call-1", tool_name="drop_table", tool_kwargs={"table": table})
        return (
            ChatMessage(role="assistant", content="Done.") if answered else ChatMessage(role="assistant", blocks=[call])
        )

    return FunctionAgent(tools=[tool], llm=MockFunctionCallingLLM(response_generator=follow_script), streaming=False)


async def answer_of(tool: FunctionTool, table: str) -> ToolOutput:
    """Return the only answer of the tool in a run that has ended."""
    result = await agent_for(tool, table).run("Drop it")
    assert str(result) == "Done."
    [called] = result.tool_calls
    assert isinstance(called, ToolCallResult)
    return called.tool_output


def run(tool_guard: ToolGuard, tables: Tables, table: str, ask_person: AskPerson | None = None) -> ToolOutput:
    return asyncio.run(answer_of(guard_tool(drop_tool(tables), tool_guard, ask_person=ask_person), table))


@pytest.mark.parametrize("asynchronous", [True, False], ids=["AsyncCstpClient", "CstpClient"])
def test_what_is_allowed_runs_and_what_is_blocked_does_not(
    client: CstpClient, target: str, token: str, asynchronous: bool
) -> None:
    tables, allowed, blocked = Tables(), name_table("scratch"), name_table("orders")

    async def drop(table: str) -> ToolOutput:
        async with AsyncCstpClient(target, token) as calls:
            guard = guard_with(calls if asynchronous else client)
            return await answer_of(guard_tool(drop_tool(tables), guard), table)

    assert asyncio.run(drop(allowed)).content == f"{allowed} is dropped"
    refused = asyncio.run(drop(blocked))
    assert refused.is_error
    assert all(words in refused.content for words in BLOCKED_WORDS)
    assert tables.dropped == [allowed]
    decision = decision_about(client, allowed)
    assert decision is not None
    assert (outcome_of(client, allowed), decision.confidence) == ("success", 0.7)
    assert decision_about(client, blocked) is None


@pytest.mark.parametrize("by_name", [True, False])
def test_a_synchronous_call_is_judged_by_its_arguments(client: CstpClient, by_name: bool) -> None:
    tables, table = Tables(), name_table("orders")
    tool = guard_tool(drop_tool(tables), guard_with(client))
    with pytest.raises(ToolCallRefused, match=BLOCKED_WORDS[0]):
        tool(table=table) if by_name else tool(table)
    assert BLOCKED_WORDS[0] in call_tool(tool, {"table": table}).content
    assert tables.dropped == []


def test_agents_that_call_functions_are_guarded_too(client: CstpClient) -> None:
    tables = Tables()
    tool = guard_tool(drop_tool(tables), guard_with(client))
    agent = CodeActAgent(code_execute_fn=lambda code: code, tools=[tool], llm=MockFunctionCallingLLM())
    [function] = agent._get_tool_fns([tool])
    with pytest.raises(ToolCallRefused):
        function(name_table("orders"))
    assert tables.dropped == []


def test_further_arguments_are_judged_too(client: CstpClient) -> None:
    async def drop(**arguments: str) -> str:
        return f"{arguments['table']} is dropped"

    tool = guard_tool(FunctionTool.from_defaults(async_fn=drop, name="drop_table"), guard_with(client))
    allowed = name_table("scratch")
    assert asyncio.run(tool.acall(table=allowed)).content == f"{allowed} is dropped"
    with pytest.raises(ToolCallRefused):
        tool(table=name_table("orders"))


def test_a_tool_that_raises_is_a_failure_of_which_the_model_is_told(client: CstpClient) -> None:
    table = name_table("broken")
    answer = run(guard_with(client), Tables(), table)
    assert (answer.is_error, BROKEN_WORDS in answer.content) == (True, True)
    assert outcome_of(client, table) == "failure"


def test_a_tool_that_waits_for_an_event_is_called_again(client: CstpClient) -> None:
    table = name_table("scratch")

    async def drop(ctx: Context, table: str) -> str:
        asked = InputRequiredEvent(prefix="Sure?")
        answer = await ctx.wait_for_event(HumanResponseEvent, waiter_event=asked, waiter_id=table)
        return f"{table}: {answer.response}"

    # LlamaIndex does not resolve annotations that are postponed.
    drop.__annotations__["ctx"] = Context

    async def converse() -> Any:
        tool = guard_tool(FunctionTool.from_defaults(async_fn=drop, name="drop_table"), guard_with(client))
        running = agent_for(tool, table).run("Drop it")
        async for event in running.stream_events():
            if isinstance(event, InputRequiredEvent):
                running.ctx.send_event(HumanResponseEvent(response="yes"))
        return (await running).tool_calls[0].tool_output

    assert asyncio.run(converse()).content == f"{table}: yes"
    outcomes = [each.outcome for each in client.list_decisions() if each.title == f"Drop the table {table}"]
    assert sorted(outcomes) == sorted([types_pb2.OUTCOME_ABANDONED, types_pb2.OUTCOME_SUCCESS])


@pytest.mark.parametrize("approves", [True, False])
def test_a_person_is_asked(client: CstpClient, approves: bool) -> None:
    tables, table, asked = Tables(), name_table("payments"), []

    def ask(*question: Any) -> bool:
        asked.append(question)
        return approves

    answer = run(guard_with(client, approvals="ask"), tables, table, ask)
    [(tool, arguments, question)] = asked
    assert (tool.metadata.name, arguments, QUESTION_WORDS in question) == ("drop_table", {"table": table}, True)
    assert answer.is_error is not approves
    assert tables.dropped == ([table] if approves else [])
    assert outcome_of(client, table) == ("success" if approves else None)


def test_without_a_way_to_ask_nothing_is_approved(client: CstpClient) -> None:
    tables, table = Tables(), name_table("payments")
    for approvals in ("tell", "ask"):
        assert "NOT ALLOWED without approval" in run(guard_with(client, approvals=approvals), tables, table).content
    with pytest.raises(Blocked):
        guard_tool(drop_tool(tables), guard_with(client, approvals="raise"))(table)
    assert tables.dropped == []


def test_what_cannot_be_judged_does_not_run() -> None:
    tables, table = Tables(), name_table("scratch")
    with unreachable_client() as client:
        assert UNREACHABLE_WORDS in run(guard_with(client), tables, table).content
        with pytest.raises(ServerUnreachable):
            guard_tool(drop_tool(tables), guard_with(client, on_failure="raise"))(table)
        assert tables.dropped == []
        run(guard_with(client, on_failure="allow"), tables, table)
    assert tables.dropped == [table]
