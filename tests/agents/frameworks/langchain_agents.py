"""Agents of LangChain and graphs of LangGraph under guard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode
from langgraph.types import Command, interrupt
from pydantic import BaseModel, ConfigDict

from cstp_grpc.agents.frameworks.langchain import GuardMiddleware, guard_tool
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

THREAD: Any = {"configurable": {"thread_id": "1"}}


class ScriptedModel(GenericFakeChatModel):
    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> ScriptedModel:
        return self


def drop_tool(tables: Tables) -> BaseTool:
    @tool
    def drop_table(table: str) -> str:
        """Drop a table."""
        return tables.drop(table)

    return drop_table


def build_agent(tools: Sequence[BaseTool], table: str, *middleware: GuardMiddleware) -> Any:
    call = {"name": "drop_table", "args": {"table": table}, "id": "call-1"}
    script = ScriptedModel(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("Done.")]))
    return create_agent(script, list(tools), middleware=middleware, checkpointer=InMemorySaver())


def answer_of(state: Any) -> ToolMessage:
    """Return the only message of a tool in a state."""
    (message,) = [each for each in state["messages"] if isinstance(each, ToolMessage)]
    return message


def start(agent: Any) -> Any:
    return agent.invoke({"messages": [("user", "Drop it")]}, THREAD)


@pytest.fixture(params=["middleware", "tool"])
def make_agent(request: pytest.FixtureRequest) -> Callable[[ToolGuard, Tables, str], Any]:
    """Makes an agent whose tool is guarded in one of the two ways."""

    def make(tool_guard: ToolGuard, tables: Tables, table: str) -> Any:
        if request.param == "middleware":
            return build_agent([drop_tool(tables)], table, GuardMiddleware(tool_guard))
        return build_agent([guard_tool(drop_tool(tables), tool_guard)], table)

    return make


MakeAgent = Callable[[ToolGuard, Tables, str], Any]


def test_what_is_allowed_runs_and_is_recorded_as_a_success(client: CstpClient, make_agent: MakeAgent) -> None:
    tables, table = Tables(), name_table("scratch")
    answer = answer_of(start(make_agent(guard_with(client), tables, table)))
    assert (answer.text, answer.status, answer.name) == (f"{table} is dropped", "success", "drop_table")
    assert tables.dropped == [table]
    decision = decision_about(client, table)
    assert decision is not None
    assert (outcome_of(client, table), decision.confidence) == ("success", 0.7)


def test_what_is_blocked_does_not_run_and_the_model_is_told_why(client: CstpClient, make_agent: MakeAgent) -> None:
    tables, table = Tables(), name_table("orders")
    state = start(make_agent(guard_with(client), tables, table))
    answer = answer_of(state)
    assert (answer.status, answer.tool_call_id) == ("error", "call-1")
    assert all(words in answer.text for words in BLOCKED_WORDS)
    assert state["messages"][-1].text == "Done."
    assert (tables.dropped, decision_about(client, table)) == ([], None)


def test_a_tool_that_raises_is_a_failure_and_its_exception_passes(client: CstpClient, make_agent: MakeAgent) -> None:
    table = name_table("broken")
    with pytest.raises(OSError, match=BROKEN_WORDS):
        start(make_agent(guard_with(client), Tables(), table))
    decision = decision_about(client, table)
    assert decision is not None
    assert (outcome_of(client, table), decision.notes) == ("failure", f"OSError: {BROKEN_WORDS}")


def test_a_tool_that_answers_an_error_is_a_failure(client: CstpClient, make_agent: MakeAgent) -> None:
    class Refusing(Tables):
        def drop(self, table: str) -> str:
            raise ToolException("there is no such table")

    def handled(tables: Tables) -> BaseTool:
        made = drop_tool(tables)
        made.handle_tool_error = True
        return made

    table = name_table("scratch")
    for agent in (
        build_agent([handled(Refusing())], table, GuardMiddleware(guard_with(client))),
        build_agent([guard_tool(handled(Refusing()), guard_with(client))], table := name_table("scratch")),
    ):
        assert answer_of(start(agent)).status == "error"
    assert outcome_of(client, table) == "failure"


def test_the_model_is_told_that_a_person_must_approve(client: CstpClient, make_agent: MakeAgent) -> None:
    tables = Tables()
    answer = answer_of(start(make_agent(guard_with(client), tables, name_table("payments"))))
    assert "NOT ALLOWED without approval" in answer.text
    assert tables.dropped == []


@pytest.mark.parametrize("decision", [{"type": "approve"}, {"type": "reject"}, True, "approve"])
def test_a_person_is_asked_by_an_interrupt(client: CstpClient, make_agent: MakeAgent, decision: Any) -> None:
    tables, table = Tables(), name_table("payments")
    agent = make_agent(guard_with(client, approvals="ask"), tables, table)
    (asked,) = start(agent)["__interrupt__"]
    assert asked.value["type"] == "tool_approval"
    assert (asked.value["name"], asked.value["args"]) == ("drop_table", {"table": table})
    assert QUESTION_WORDS in asked.value["description"]
    assert tables.dropped == []
    answer = answer_of(agent.invoke(Command(resume=decision), THREAD))
    approved = decision == {"type": "approve"}
    assert answer.status == ("success" if approved else "error")
    assert tables.dropped == ([table] if approved else [])
    assert outcome_of(client, table) == ("success" if approved else None)


def test_by_setting_what_needs_approval_leaves_the_run(client: CstpClient, make_agent: MakeAgent) -> None:
    tables = Tables()
    with pytest.raises(Blocked) as caught:
        start(make_agent(guard_with(client, approvals="raise"), tables, name_table("payments")))
    assert caught.value.approvable
    assert tables.dropped == []


def test_what_cannot_be_judged_does_not_run(make_agent: MakeAgent) -> None:
    tables, table = Tables(), name_table("scratch")
    with unreachable_client() as client:
        answer = answer_of(start(make_agent(guard_with(client), tables, table)))
        assert (UNREACHABLE_WORDS in answer.text, answer.status) == (True, "error")
        with pytest.raises(ServerUnreachable):
            start(make_agent(guard_with(client, on_failure="raise"), tables, table))
        assert tables.dropped == []
        start(make_agent(guard_with(client, on_failure="allow"), tables, table))
    assert tables.dropped == [table]


@pytest.mark.parametrize("asynchronous", [True, False], ids=["AsyncCstpClient", "CstpClient"])
def test_an_asynchronous_agent_takes_either_client(
    client: CstpClient, make_agent: MakeAgent, target: str, token: str, asynchronous: bool
) -> None:
    tables, allowed, blocked = Tables(), name_table("scratch"), name_table("orders")

    async def run(table: str) -> ToolMessage:
        async with AsyncCstpClient(target, token) as calls:
            agent = make_agent(guard_with(calls if asynchronous else client), tables, table)
            return answer_of(await agent.ainvoke({"messages": [("user", "Drop it")]}, THREAD))

    assert asyncio.run(run(allowed)).status == "success"
    assert BLOCKED_WORDS[0] in asyncio.run(run(blocked)).text
    assert tables.dropped == [allowed]
    assert outcome_of(client, allowed) == "success"


def test_a_graph_takes_the_middleware_for_its_tool_node(client: CstpClient) -> None:
    tables, allowed, blocked = Tables(), name_table("scratch"), name_table("orders")
    middleware = GuardMiddleware(guard_with(client))
    node = ToolNode(
        [drop_tool(tables)], wrap_tool_call=middleware.wrap_tool_call, awrap_tool_call=middleware.awrap_tool_call
    )
    graph = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools").compile()
    calls: Any = [{"name": "drop_table", "args": {"table": table}, "id": table} for table in (allowed, blocked)]
    state = graph.invoke({"messages": [AIMessage("", tool_calls=calls)]})
    assert [message.status for message in state["messages"][1:]] == ["success", "error"]
    assert tables.dropped == [allowed]


def test_a_tool_that_interrupts_has_not_failed(client: CstpClient) -> None:
    table = name_table("scratch")

    @tool
    def drop_table(table: str) -> str:
        """Drop a table."""
        return f"{table}: {interrupt('Really?')}"

    agent = build_agent([drop_table], table, GuardMiddleware(guard_with(client)))
    assert start(agent)["__interrupt__"]
    assert outcome_of(client, table) == "abandoned"


def test_what_the_graph_adds_to_the_arguments_is_not_announced(client: CstpClient) -> None:
    said: list[Any] = []

    @tool
    def drop_table(table: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Drop a table."""
        return f"{table} of {len(state['messages'])} messages"

    def note(call: ToolCall) -> dict[str, Any]:
        said.append(call.arguments)
        return {}

    guarded = guard_tool(drop_table, guard_with(client, inputs=note))
    table = name_table("scratch")
    assert answer_of(start(build_agent([guarded], table))).text == f"{table} of 2 messages"
    assert said == [{"table": table}]


class AnyArguments(BaseModel):
    model_config = ConfigDict(extra="allow")


@pytest.mark.parametrize(
    "schema", [AnyArguments, {"type": "object"}, {"type": "object", "properties": {"reason": {"type": "string"}}}]
)
def test_arguments_that_the_schema_does_not_name_are_judged_too(client: CstpClient, schema: Any) -> None:
    called: list[Any] = []
    tool = StructuredTool(
        name="drop_table", description="Drop a table.", args_schema=schema, func=lambda **given: called.append(given)
    )
    guarded = guard_tool(tool, guard_with(client))
    assert BLOCKED_WORDS[0] in guarded.invoke({"table": name_table("orders")})
    assert called == []


def test_a_guarded_tool_is_called_without_a_model_too(client: CstpClient) -> None:
    tables, table = Tables(), name_table("orders")
    guarded = guard_tool(drop_tool(tables), guard_with(client))
    assert (guarded.name, guarded.description, set(guarded.args)) == ("drop_table", "Drop a table.", {"table"})
    assert BLOCKED_WORDS[0] in guarded.invoke({"table": table})
    assert guarded.invoke({"table": table.replace("orders", "scratch")}).endswith("is dropped")


def test_a_synchronous_agent_needs_a_synchronous_client(make_agent: MakeAgent, target: str, token: str) -> None:
    tables = Tables()
    with pytest.raises(TypeError, match="asynchronous agents only"):
        start(make_agent(guard_with(AsyncCstpClient(target, token)), tables, name_table("scratch")))
    assert tables.dropped == []
