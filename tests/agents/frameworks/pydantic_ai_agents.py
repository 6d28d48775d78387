"""Agents of Pydantic AI under guard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    FunctionToolset,
    ModelMessage,
    ModelResponse,
    ModelRetry,
    TextPart,
    ToolCallPart,
    ToolDenied,
    ToolReturnPart,
)
from pydantic_ai.exceptions import CallDeferred
from pydantic_ai.models.function import AgentInfo, FunctionModel

from cstp_grpc.agents.frameworks.pydantic_ai import GuardedToolset
from cstp_grpc.agents.frameworks.tool_guard import ToolCall, ToolGuard
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


def build_agent(tool_guard: ToolGuard, drop: Callable[..., Any], arguments: dict[str, Any]) -> Agent[None, Any]:
    def follow_script(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        answered = any(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
        return ModelResponse([TextPart("Done.") if answered else ToolCallPart("drop_table", arguments, "call-1")])

    toolset: FunctionToolset[None] = FunctionToolset()
    toolset.add_function(drop, name="drop_table")
    guarded = GuardedToolset(toolset, tool_guard=tool_guard)
    return Agent(FunctionModel(follow_script), toolsets=[guarded], output_type=[str, DeferredToolRequests])


def agent_for(tool_guard: ToolGuard, tables: Tables, table: str) -> Agent[None, Any]:
    return build_agent(tool_guard, tables.drop, {"table": table})


def answer_of(result: Any) -> ToolReturnPart:
    """Return the only answer of a tool in a run that has ended."""
    assert result.output == "Done."
    parts = [part for message in result.all_messages() for part in message.parts]
    (answer,) = [part for part in parts if isinstance(part, ToolReturnPart)]
    return answer


@pytest.mark.parametrize("asynchronous", [True, False], ids=["AsyncCstpClient", "CstpClient"])
def test_what_is_allowed_runs_and_what_is_blocked_does_not(
    client: CstpClient, target: str, token: str, asynchronous: bool
) -> None:
    tables, allowed, blocked = Tables(), name_table("scratch"), name_table("orders")

    async def drop(table: str) -> ToolReturnPart:
        async with AsyncCstpClient(target, token) as calls:
            guard = guard_with(calls if asynchronous else client)
            return answer_of(await agent_for(guard, tables, table).run("Drop it"))

    assert asyncio.run(drop(allowed)).content == f"{allowed} is dropped"
    refused = asyncio.run(drop(blocked))
    assert refused.outcome == "failed"
    assert all(words in str(refused.content) for words in BLOCKED_WORDS)
    assert tables.dropped == [allowed]
    decision = decision_about(client, allowed)
    assert decision is not None
    assert (outcome_of(client, allowed), decision.confidence) == ("success", 0.7)
    assert decision_about(client, blocked) is None


def test_a_synchronous_run_works_too(client: CstpClient) -> None:
    tables, table = Tables(), name_table("scratch")
    assert answer_of(agent_for(guard_with(client), tables, table).run_sync("Drop it")).outcome == "success"
    assert tables.dropped == [table]


def test_a_tool_that_raises_is_a_failure_and_its_exception_passes(client: CstpClient) -> None:
    table = name_table("broken")
    with pytest.raises(OSError, match=BROKEN_WORDS):
        agent_for(guard_with(client), Tables(), table).run_sync("Drop it")
    assert outcome_of(client, table) == "failure"


def test_a_tool_that_wants_other_arguments_has_failed(client: CstpClient) -> None:
    table = name_table("scratch")

    def drop(table: str) -> str:
        raise ModelRetry("which schema?")

    result = build_agent(guard_with(client), drop, {"table": table}).run_sync("Drop it")
    assert answer_of(result).outcome == "retried"
    assert outcome_of(client, table) == "failure"


@pytest.mark.parametrize("decision", [True, False, ToolDenied("not today")])
def test_a_person_is_asked_by_a_deferred_call(client: CstpClient, decision: Any) -> None:
    tables, table = Tables(), name_table("payments")
    agent = agent_for(guard_with(client, approvals="ask"), tables, table)
    paused = agent.run_sync("Drop it")
    assert isinstance(paused.output, DeferredToolRequests)
    (asked,) = paused.output.approvals
    assert QUESTION_WORDS in paused.output.metadata[asked.tool_call_id]["question"]
    assert tables.dropped == []
    answered = DeferredToolResults(approvals={asked.tool_call_id: decision})
    result = agent.run_sync(message_history=paused.all_messages(), deferred_tool_results=answered)
    assert answer_of(result).outcome == ("success" if decision is True else "denied")
    assert tables.dropped == ([table] if decision is True else [])
    assert outcome_of(client, table) == ("success" if decision is True else None)


def test_the_model_is_told_that_a_person_must_approve(client: CstpClient) -> None:
    tables = Tables()
    answer = answer_of(agent_for(guard_with(client), tables, name_table("payments")).run_sync("Drop it"))
    assert "NOT ALLOWED without approval" in str(answer.content)
    with pytest.raises(Blocked):
        agent_for(guard_with(client, approvals="raise"), tables, name_table("payments")).run_sync("Drop it")
    assert tables.dropped == []


def test_what_cannot_be_judged_does_not_run() -> None:
    tables, table = Tables(), name_table("scratch")
    with unreachable_client() as client:
        answer = answer_of(agent_for(guard_with(client), tables, table).run_sync("Drop it"))
        assert (UNREACHABLE_WORDS in str(answer.content), answer.outcome) == (True, "failed")
        with pytest.raises(ServerUnreachable):
            agent_for(guard_with(client, on_failure="raise"), tables, table).run_sync("Drop it")
        assert tables.dropped == []
        agent_for(guard_with(client, on_failure="allow"), tables, table).run_sync("Drop it")
    assert tables.dropped == [table]


def test_a_tool_that_defers_its_call_has_not_failed(client: CstpClient) -> None:
    table = name_table("scratch")

    def drop(table: str) -> str:
        raise CallDeferred

    result = build_agent(guard_with(client), drop, {"table": table}).run_sync("Drop it")
    assert isinstance(result.output, DeferredToolRequests)
    assert outcome_of(client, table) == "abandoned"


class Place(BaseModel):
    schema_name: str
    table: str


def test_arguments_that_are_models_are_announced_as_json(client: CstpClient) -> None:
    said: list[Any] = []

    def note(call: ToolCall) -> dict[str, Any]:
        said.append(call.arguments)
        return {}

    def drop(place: Place) -> str:
        return f"{place.table} is dropped"

    place = {"schema_name": "shop", "table": "scratch"}
    answer_of(build_agent(guard_with(client, inputs=note), drop, {"place": place}).run_sync("Drop it"))
    assert said == [{"place": place}]
