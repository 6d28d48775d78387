"""Agents of smolagents under guard."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from smolagents import CodeAgent, Tool, ToolCallingAgent
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole, Model

from cstp_grpc.agents.frameworks.smolagents import AskPerson, guard_tool
from cstp_grpc.agents.frameworks.tool_guard import ToolCallRefused, ToolGuard
from cstp_grpc.client import Blocked, CstpClient
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


class DropTool(Tool):
    name = "drop_table"
    description = "Drop a table."
    inputs: ClassVar = {"table": {"type": "string", "description": "Its name"}}
    output_type = "string"

    def __init__(self, tables: Tables) -> None:
        super().__init__()
        self.tables = tables

    def forward(self, table: str) -> str:
        return self.tables.drop(table)


class ScriptedModel(Model):
    """Says what the script has, whatever it is asked."""

    def __init__(self, *script: ChatMessage) -> None:
        super().__init__()
        self._script = iter(script)

    def generate(self, messages: Any, **kwargs: Any) -> ChatMessage:
        return next(self._script)


def call_of(tool: str, **arguments: Any) -> ChatMessage:
    function = ChatMessageToolCallFunction(name=tool, arguments=arguments)
    return ChatMessage(MessageRole.ASSISTANT, "", [ChatMessageToolCall(function=function, id=tool, type="function")])


def code_of(code: str) -> ChatMessage:
    return ChatMessage(MessageRole.ASSISTANT, f"Thought: so\n<code>\n{code}\n</code>")


def told_by(agent: Any) -> str:
    """Run an agent and return what its model is told in the end."""
    assert agent.run("Drop it") == "Done."
    return str(agent.write_memory_to_messages())


def run(tool_guard: ToolGuard, tables: Tables, table: str, ask_person: AskPerson | None = None) -> str:
    script = ScriptedModel(call_of("drop_table", table=table), call_of("final_answer", answer="Done."))
    tool = guard_tool(DropTool(tables), tool_guard, ask_person=ask_person)
    return told_by(ToolCallingAgent(tools=[tool], model=script))


def test_what_is_allowed_runs_and_what_is_blocked_does_not(client: CstpClient) -> None:
    tables, allowed, blocked = Tables(), name_table("scratch"), name_table("orders")
    assert f"{allowed} is dropped" in run(guard_with(client), tables, allowed)
    told = run(guard_with(client), tables, blocked)
    assert all(words in told for words in BLOCKED_WORDS)
    assert tables.dropped == [allowed]
    decision = decision_about(client, allowed)
    assert decision is not None
    assert (outcome_of(client, allowed), decision.confidence) == ("success", 0.7)
    assert decision_about(client, blocked) is None


@pytest.mark.parametrize("call", ["drop_table('{}')", "drop_table(table='{}')", "drop_table({{'table': '{}'}})"])
def test_a_refusal_ends_the_code_of_an_agent(client: CstpClient, call: str) -> None:
    tables, allowed, blocked = Tables(), name_table("scratch"), name_table("orders")
    code = "\n".join(call.format(table) for table in (allowed, blocked, allowed))
    script = ScriptedModel(code_of(code), code_of("final_answer('Done.')"))
    told = told_by(CodeAgent(tools=[guard_tool(DropTool(tables), guard_with(client))], model=script))
    assert all(words in told for words in BLOCKED_WORDS)
    assert tables.dropped == [allowed]


def test_a_tool_that_raises_is_a_failure_of_which_the_model_is_told(client: CstpClient) -> None:
    table = name_table("broken")
    assert BROKEN_WORDS in run(guard_with(client), Tables(), table)
    assert outcome_of(client, table) == "failure"


@pytest.mark.parametrize("approves", [True, False])
def test_a_person_is_asked(client: CstpClient, approves: bool) -> None:
    tables, table, asked = Tables(), name_table("payments"), []

    def ask(*question: Any) -> bool:
        asked.append(question)
        return approves

    told = run(guard_with(client, approvals="ask"), tables, table, ask)
    [(tool, arguments, question)] = asked
    assert (tool.name, arguments, QUESTION_WORDS in question) == ("drop_table", {"table": table}, True)
    assert ("NOT ALLOWED without approval" in told) is not approves
    assert tables.dropped == ([table] if approves else [])


def test_without_a_way_to_ask_nothing_is_approved(client: CstpClient) -> None:
    tables, table = Tables(), name_table("payments")
    for approvals in ("tell", "ask"):
        assert "NOT ALLOWED without approval" in run(guard_with(client, approvals=approvals), tables, table)
    with pytest.raises(Blocked):
        guard_tool(DropTool(tables), guard_with(client, approvals="raise"))(table)
    assert tables.dropped == []


def test_too_many_arguments_are_no_call(client: CstpClient) -> None:
    tables = Tables()
    with pytest.raises(TypeError):
        guard_tool(DropTool(tables), guard_with(client))(name_table("scratch"), name_table("orders"))
    assert tables.dropped == []


def test_what_cannot_be_judged_does_not_run() -> None:
    tables, table = Tables(), name_table("scratch")
    with unreachable_client() as client:
        with pytest.raises(ToolCallRefused, match=UNREACHABLE_WORDS):
            guard_tool(DropTool(tables), guard_with(client))(table)
        with pytest.raises(ServerUnreachable):
            guard_tool(DropTool(tables), guard_with(client, on_failure="raise"))(table)
        assert tables.dropped == []
        guard_tool(DropTool(tables), guard_with(client, on_failure="allow"))(table)
    assert tables.dropped == [table]
