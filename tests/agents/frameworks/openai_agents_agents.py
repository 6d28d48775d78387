"""Agents of the OpenAI Agents SDK under guard."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import (
    Agent,
    FunctionTool,
    RunConfig,
    Runner,
    ToolExecutionConfig,
    ToolInputGuardrailTripwireTriggered,
    function_tool,
)
from agents.items import ToolCallOutputItem
from agents.testing import ScriptedModel, assistant_message, function_call

from cstp_grpc.agents.frameworks.openai_agents import ToolInvoker, guard_tool
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

CONFIG = RunConfig(tracing_disabled=True)


def drop_tool(tables: Tables, **options: Any) -> FunctionTool:
    @function_tool(name_override="drop_table", **options)
    def drop(table: str, cascade: bool = False) -> str:
        """Drop a table."""
        return tables.drop(table)

    return drop


def agent_for(tool_guard: ToolGuard, tool: FunctionTool, table: str) -> Agent[None]:
    call = function_call("drop_table", {"table": table}, call_id="call-1")
    script = ScriptedModel([[call], [assistant_message("Done.")]])
    return Agent(name="keeper", tools=[guard_tool(tool, tool_guard)], model=script)


def run(tool_guard: ToolGuard, tool: FunctionTool, table: str) -> Any:
    return Runner.run_sync(agent_for(tool_guard, tool, table), "Drop it", run_config=CONFIG)


def answer_of(result: Any) -> str:
    """Return the only answer of a tool in a run that has ended."""
    assert result.final_output == "Done."
    (answer,) = [item for item in result.new_items if isinstance(item, ToolCallOutputItem)]
    return str(answer.output)


@pytest.mark.parametrize("asynchronous", [True, False], ids=["AsyncCstpClient", "CstpClient"])
def test_what_is_allowed_runs_and_what_is_blocked_does_not(
    client: CstpClient, target: str, token: str, asynchronous: bool
) -> None:
    tables, allowed, blocked = Tables(), name_table("scratch"), name_table("orders")

    async def drop(table: str) -> str:
        async with AsyncCstpClient(target, token) as calls:
            agent = agent_for(guard_with(calls if asynchronous else client), drop_tool(tables), table)
            return answer_of(await Runner.run(agent, "Drop it", run_config=CONFIG))

    assert asyncio.run(drop(allowed)) == f"{allowed} is dropped"
    refused = asyncio.run(drop(blocked))
    assert all(words in refused for words in BLOCKED_WORDS)
    assert tables.dropped == [allowed]
    decision = decision_about(client, allowed)
    assert decision is not None
    assert (outcome_of(client, allowed), decision.confidence) == ("success", 0.7)
    assert decision_about(client, blocked) is None


def test_a_tool_that_raises_is_a_failure_which_the_model_is_told_as_before(client: CstpClient) -> None:
    table = name_table("broken")
    unguarded = Agent(
        name="keeper",
        tools=[drop_tool(Tables())],
        model=ScriptedModel(
            [[function_call("drop_table", {"table": table}, call_id="call-1")], [assistant_message("Done.")]]
        ),
    )
    expected = answer_of(Runner.run_sync(unguarded, "Drop it", run_config=CONFIG))
    assert "An error occurred" in expected
    assert answer_of(run(guard_with(client), drop_tool(Tables()), table)) == expected
    decision = decision_about(client, table)
    assert decision is not None
    assert (outcome_of(client, table), decision.notes) == ("failure", f"OSError: {BROKEN_WORDS}")


def test_a_tool_with_another_way_to_fail_keeps_it(client: CstpClient) -> None:
    told = drop_tool(Tables(), failure_error_function=lambda _, error: f"sorry: {error}")
    table = name_table("broken")
    assert answer_of(run(guard_with(client), told, table)) == f"sorry: {BROKEN_WORDS}"
    assert outcome_of(client, table) == "failure"
    table = name_table("broken")
    with pytest.raises(Exception, match=BROKEN_WORDS):
        run(guard_with(client), drop_tool(Tables(), failure_error_function=None), table)
    assert outcome_of(client, table) == "failure"


def test_a_tool_that_takes_too_long_is_abandoned(client: CstpClient) -> None:
    @function_tool(name_override="drop_table", timeout=0.05)
    async def drop(table: str) -> str:
        """Drop a table."""
        await asyncio.Event().wait()
        return table

    table = name_table("scratch")
    assert "timed out" in answer_of(run(guard_with(client), drop, table))
    assert outcome_of(client, table) == "abandoned"


@pytest.mark.parametrize("before", [True, False], ids=["guardrails before approval", "after"])
@pytest.mark.parametrize("approves", [True, False])
def test_a_person_is_asked_by_an_interruption(client: CstpClient, approves: bool, before: bool) -> None:
    tables, table = Tables(), name_table("payments")
    config = RunConfig(
        tracing_disabled=True, tool_execution=ToolExecutionConfig(pre_approval_tool_input_guardrails=before)
    )
    agent = agent_for(guard_with(client, approvals="ask"), drop_tool(tables), table)
    paused = Runner.run_sync(agent, "Drop it", run_config=config)
    (asked,) = paused.interruptions
    assert tables.dropped == []
    state = paused.to_state()
    if approves:
        state.approve(asked)
    else:
        state.reject(asked)
    result = Runner.run_sync(agent, state, run_config=config)
    assert result.final_output == "Done."
    assert tables.dropped == ([table] if approves else [])
    assert outcome_of(client, table) == ("success" if approves else None)


def test_what_asks_nobody_passes_though_persons_may_be_asked(client: CstpClient) -> None:
    tables, allowed, blocked = Tables(), name_table("scratch"), name_table("orders")
    guard = guard_with(client, approvals="ask")
    assert answer_of(run(guard, drop_tool(tables), allowed)) == f"{allowed} is dropped"
    assert BLOCKED_WORDS[0] in answer_of(run(guard, drop_tool(tables), blocked))
    assert (tables.dropped, outcome_of(client, allowed)) == ([allowed], "success")


def test_a_person_whom_the_tool_itself_asks_approves_nothing_else(client: CstpClient) -> None:
    tables, table = Tables(), name_table("payments")
    agent = agent_for(guard_with(client), drop_tool(tables, needs_approval=True), table)
    paused = Runner.run_sync(agent, "Drop it", run_config=CONFIG)
    state = paused.to_state()
    state.approve(paused.interruptions[0])
    answer = answer_of(Runner.run_sync(agent, state, run_config=CONFIG))
    assert ("NOT ALLOWED without approval" in answer, QUESTION_WORDS in answer) == (True, True)
    assert tables.dropped == []


def test_a_judgement_does_not_outlast_the_wait_for_a_person(client: CstpClient) -> None:
    tables, now = Tables(), [0.0]
    guard = guard_with(client, inputs=lambda _: {"destroysData": now[0] > 0})
    guarded = ToolInvoker(drop_tool(tables, needs_approval=True), guard, clock=lambda: now[0]).guarded_tool
    call = function_call("drop_table", {"table": name_table("scratch")}, call_id="call-1")
    agent = Agent(name="keeper", tools=[guarded], model=ScriptedModel([[call], [assistant_message("Done.")]]))
    config = RunConfig(
        tracing_disabled=True, tool_execution=ToolExecutionConfig(pre_approval_tool_input_guardrails=True)
    )
    paused = Runner.run_sync(agent, "Drop it", run_config=config)
    now[0] = 3600.0
    state = paused.to_state()
    state.approve(paused.interruptions[0])
    assert BLOCKED_WORDS[0] in answer_of(Runner.run_sync(agent, state, run_config=config))
    assert tables.dropped == []


def test_by_setting_what_needs_approval_leaves_the_run(client: CstpClient) -> None:
    tables = Tables()
    with pytest.raises(ToolInputGuardrailTripwireTriggered) as caught:
        run(guard_with(client, approvals="raise"), drop_tool(tables), name_table("payments"))
    assert isinstance(caught.value.output.output_info, Blocked)
    assert tables.dropped == []


def test_what_cannot_be_judged_does_not_run() -> None:
    tables, table = Tables(), name_table("scratch")
    with unreachable_client() as client:
        assert UNREACHABLE_WORDS in answer_of(run(guard_with(client), drop_tool(tables), table))
        with pytest.raises(ToolInputGuardrailTripwireTriggered) as caught:
            run(guard_with(client, on_failure="raise"), drop_tool(tables), table)
        assert isinstance(caught.value.output.output_info, ServerUnreachable)
        assert tables.dropped == []
        run(guard_with(client, on_failure="allow"), drop_tool(tables), table)
    assert tables.dropped == [table]


def test_the_guarded_tool_looks_like_the_other(client: CstpClient) -> None:
    tool = drop_tool(Tables())
    guarded = guard_tool(tool, guard_with(client))
    assert (guarded.name, guarded.description, guarded.params_json_schema, guarded.needs_approval) == (
        tool.name,
        tool.description,
        tool.params_json_schema,
        False,
    )
    assert tool.tool_input_guardrails is None
