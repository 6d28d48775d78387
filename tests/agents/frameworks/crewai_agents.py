"""Crews of CrewAI under guard."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from crewai import Agent, BaseLLM, Crew, Task
from crewai.tools import BaseTool, ToolFailure, ToolFailurePolicy, tool
from crewai.tools.tool_failure import ToolExecutionFailedError
from pydantic import PrivateAttr

from cstp_grpc.agents.frameworks.crewai import guard_tool
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


class ScriptedLLM(BaseLLM):
    _script: Iterator[str] = PrivateAttr()
    _heard: list[str] = PrivateAttr()

    def __init__(self, *script: str) -> None:
        super().__init__(model="scripted")
        self._script = iter(script)
        self._heard = []

    @property
    def observation(self) -> str:
        """What the model was told of the tool."""
        return self._heard[-1].partition("Observation: ")[2]

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        self._heard.append("\n".join(str(message["content"]) for message in messages))
        return next(self._script)


def drop_tool(tables: Tables) -> BaseTool:
    @tool("drop_table")
    def drop_table(table: str) -> str:
        """Drop a table."""
        return tables.drop(table)

    made: BaseTool = drop_table
    return made


def crew_of(guarded: BaseTool, table: str) -> tuple[Crew, ScriptedLLM]:
    action = f'Thought: I drop it\nAction: drop_table\nAction Input: {{"table": "{table}"}}'
    script = ScriptedLLM(action, "Thought: I know the final answer\nFinal Answer: Done.")
    keeper = Agent(role="keeper", goal="Keep tables", backstory="A script", llm=script, tools=[guarded], max_iter=3)
    task = Task(description="Drop it", expected_output="What became of it", agent=keeper)
    return Crew(agents=[keeper], tasks=[task]), script


def run(guarded: BaseTool, table: str) -> str:
    """Return the text about the tool that the model got in a crew."""
    crew, script = crew_of(guarded, table)
    assert crew.kickoff().raw == "Done."
    return script.observation


def test_what_is_allowed_runs_and_what_is_blocked_does_not(client: CstpClient) -> None:
    tables, allowed, blocked = Tables(), name_table("scratch"), name_table("orders")
    guarded = guard_tool(drop_tool(tables), guard_with(client))
    assert f"{allowed} is dropped" in run(guarded, allowed)
    refused = run(guarded, blocked)
    assert all(words in refused for words in BLOCKED_WORDS)
    assert tables.dropped == [allowed]
    decision = decision_about(client, allowed)
    assert decision is not None
    assert (outcome_of(client, allowed), decision.confidence) == ("success", 0.7)
    assert decision_about(client, blocked) is None


def test_an_asynchronous_crew_works_too(client: CstpClient) -> None:
    tables, table = Tables(), name_table("scratch")
    crew, _ = crew_of(guard_tool(drop_tool(tables), guard_with(client)), table)
    assert asyncio.run(crew.kickoff_async()).raw == "Done."
    assert tables.dropped == [table]


def test_a_tool_is_called_asynchronously_with_either_client(client: CstpClient, target: str, token: str) -> None:
    async def drop(tables: Tables, table: str, calls: Any) -> Any:
        @tool("drop_table")
        async def drop_table(table: str) -> str:
            """Drop a table."""
            return tables.drop(table)

        return await guard_tool(drop_table, guard_with(calls)).arun(table=table)

    async def drop_with_both() -> None:
        async with AsyncCstpClient(target, token) as calls:
            for each in (client, calls):
                tables, table = Tables(), name_table("scratch")
                assert await drop(tables, table, each) == f"{table} is dropped"
                refused = await drop(tables, name_table("orders"), each)
                assert isinstance(refused, ToolFailure)
                assert tables.dropped == [table]

    asyncio.run(drop_with_both())


def test_a_tool_that_fails_is_a_failure_of_which_the_model_is_told(client: CstpClient) -> None:
    table = name_table("broken")
    assert BROKEN_WORDS in run(guard_tool(drop_tool(Tables()), guard_with(client)), table)
    outcomes = [each for each in client.list_decisions() if each.title == f"Drop the table {table}"]
    assert outcomes
    assert all(BROKEN_WORDS in each.notes for each in outcomes)

    @tool("drop_table")
    def drop_table(table: str) -> Any:
        """Drop a table."""
        return ToolFailure(message="no such table")

    table = name_table("scratch")
    run(guard_tool(drop_table, guard_with(client)), table)
    assert outcome_of(client, table) == "failure"


@pytest.mark.parametrize("said", ["approve", "", "no"])
def test_the_person_at_the_console_is_asked(
    client: CstpClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    monkeypatch.setattr("builtins.input", lambda: said)
    tables, table = Tables(), name_table("payments")
    guarded = guard_tool(drop_tool(tables), guard_with(client, approvals="ask"))
    result = guarded.run(table=table)
    assert QUESTION_WORDS in capsys.readouterr().out
    assert isinstance(result, ToolFailure) is (said != "approve")
    assert tables.dropped == ([table] if said == "approve" else [])
    assert outcome_of(client, table) == ("success" if said == "approve" else None)


def test_somebody_else_may_be_asked(client: CstpClient) -> None:
    tables, table, asked = Tables(), name_table("payments"), []

    def ask(tool: BaseTool, arguments: Any, question: str) -> bool:
        asked.append((tool.name, arguments, QUESTION_WORDS in question))
        return True

    run(guard_tool(drop_tool(tables), guard_with(client, approvals="ask"), ask_person=ask), table)
    assert (asked, tables.dropped) == ([("drop_table", {"table": table}, True)], [table])


def test_the_model_is_told_that_a_person_must_approve(client: CstpClient) -> None:
    tables = Tables()
    guarded = guard_tool(drop_tool(tables), guard_with(client))
    assert "NOT ALLOWED without approval" in run(guarded, name_table("payments"))
    with pytest.raises(Blocked):
        guard_tool(drop_tool(tables), guard_with(client, approvals="raise")).run(table=name_table("payments"))
    assert tables.dropped == []


def test_what_cannot_be_judged_does_not_run() -> None:
    tables, table = Tables(), name_table("scratch")
    with unreachable_client() as client:
        assert UNREACHABLE_WORDS in run(guard_tool(drop_tool(tables), guard_with(client)), table)
        with pytest.raises(ServerUnreachable):
            guard_tool(drop_tool(tables), guard_with(client, on_failure="raise")).run(table=table)
        assert tables.dropped == []
        run(guard_tool(drop_tool(tables), guard_with(client, on_failure="allow")), table)
    assert tables.dropped == [table]


def test_by_the_policy_of_the_tool_a_refusal_ends_the_crew(client: CstpClient) -> None:
    made = drop_tool(Tables())
    made.tool_failure_policy = ToolFailurePolicy.RAISE
    crew, _ = crew_of(guard_tool(made, guard_with(client)), name_table("orders"))
    with pytest.raises(ToolExecutionFailedError):
        crew.kickoff()


def test_what_is_refused_is_not_cached(client: CstpClient) -> None:
    guarded = guard_tool(drop_tool(Tables()), guard_with(client))
    assert guarded.cache_function({}, "dropped")
    assert not guarded.cache_function({}, ToolFailure(message="refused"))
    made = drop_tool(Tables())
    made.cache_function = lambda arguments, result: result == "kept"
    own = guard_tool(made, guard_with(client))
    assert (own.cache_function({}, "kept"), own.cache_function({}, "dropped")) == (True, False)
