"""Agents of Google's Agent Development Kit under guard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.genai import types

from cstp_grpc.agents.frameworks.google_adk import GuardPlugin
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

CONFIRMATION = "adk_request_confirmation"


class ScriptedLlm(BaseLlm):
    """Calls the tool once, and is done once it has an answer."""

    table: str

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        answered = any(part.function_response for content in llm_request.contents for part in content.parts or [])
        call = types.Part.from_function_call(name="drop_table", args={"table": self.table})
        part = types.Part.from_text(text="Done.") if answered else call
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


class Conversation:
    """A session with an agent whose only tool drops a table."""

    def __init__(self, tool_guard: ToolGuard, drop: Callable[[str], Any], table: str, kind: Any = FunctionTool) -> None:
        def drop_table(table: str) -> Any:
            """Drop a table."""
            return drop(table)

        agent = LlmAgent(name="keeper", model=ScriptedLlm(model="scripted", table=table), tools=[kind(drop_table)])
        self._runner = InMemoryRunner(agent=agent, app_name="tests", plugins=[GuardPlugin(tool_guard)])
        self._session = ""

    async def say(self, *parts: types.Part) -> list[types.Part]:
        """Return the parts of all events that follow."""
        if not self._session:
            made = await self._runner.session_service.create_session(app_name="tests", user_id="user")
            self._session = made.id
        message = types.Content(role="user", parts=list(parts) or [types.Part.from_text(text="Drop it")])
        run = self._runner.run_async(user_id="user", session_id=self._session, new_message=message)
        return [part async for event in run if event.content for part in event.content.parts or []]


def answer_of(parts: list[types.Part]) -> Any:
    """Return the last answer of the tool in a run that has ended."""
    assert parts[-1].text == "Done."
    answers = [part.function_response for part in parts if part.function_response]
    return answers[-1].response


def run(tool_guard: ToolGuard, drop: Callable[[str], Any], table: str, kind: Any = FunctionTool) -> Any:
    return answer_of(asyncio.run(Conversation(tool_guard, drop, table, kind).say()))


@pytest.mark.parametrize("asynchronous", [True, False], ids=["AsyncCstpClient", "CstpClient"])
def test_what_is_allowed_runs_and_what_is_blocked_does_not(
    client: CstpClient, target: str, token: str, asynchronous: bool
) -> None:
    tables, allowed, blocked = Tables(), name_table("scratch"), name_table("orders")

    async def drop(table: str) -> Any:
        async with AsyncCstpClient(target, token) as calls:
            guard = guard_with(calls if asynchronous else client)
            return answer_of(await Conversation(guard, tables.drop, table).say())

    assert asyncio.run(drop(allowed)) == {"result": f"{allowed} is dropped"}
    refused = asyncio.run(drop(blocked))["error"]
    assert all(words in refused for words in BLOCKED_WORDS)
    assert tables.dropped == [allowed]
    decision = decision_about(client, allowed)
    assert decision is not None
    assert (outcome_of(client, allowed), decision.confidence) == ("success", 0.7)
    assert decision_about(client, blocked) is None


def test_a_tool_that_raises_is_a_failure_and_its_exception_passes(client: CstpClient) -> None:
    table = name_table("broken")
    with pytest.raises(OSError, match=BROKEN_WORDS):
        run(guard_with(client), Tables().drop, table)
    assert outcome_of(client, table) == "failure"


def test_a_result_with_an_error_is_a_failure(client: CstpClient) -> None:
    table = name_table("scratch")
    assert run(guard_with(client), lambda _: {"error": BROKEN_WORDS}, table) == {"error": BROKEN_WORDS}
    decision = decision_about(client, table)
    assert decision is not None
    assert (outcome_of(client, table), BROKEN_WORDS in decision.notes) == ("failure", True)


def test_a_tool_that_goes_on_elsewhere_has_not_ended(client: CstpClient) -> None:
    table = name_table("scratch")
    conversation = Conversation(guard_with(client), lambda _: None, table, LongRunningFunctionTool)
    asyncio.run(conversation.say())
    assert outcome_of(client, table) == "abandoned"


@pytest.mark.parametrize("approves", [True, False])
def test_a_person_is_asked_for_a_confirmation(client: CstpClient, approves: bool) -> None:
    tables, table = Tables(), name_table("payments")
    conversation = Conversation(guard_with(client, approvals="ask"), tables.drop, table)

    async def converse() -> Any:
        paused = await conversation.say()
        (asked,) = [
            each.function_call for each in paused if each.function_call and each.function_call.name == CONFIRMATION
        ]
        assert QUESTION_WORDS in str(asked.args)
        assert tables.dropped == []
        answer = types.FunctionResponse(id=asked.id, name=CONFIRMATION, response={"confirmed": approves})
        return answer_of(await conversation.say(types.Part(function_response=answer)))

    answer = asyncio.run(converse())
    assert ("error" in answer) is not approves
    assert tables.dropped == ([table] if approves else [])
    assert outcome_of(client, table) == ("success" if approves else None)


def test_by_setting_what_needs_approval_leaves_the_run(client: CstpClient) -> None:
    tables = Tables()
    assert "NOT ALLOWED without approval" in run(guard_with(client), tables.drop, name_table("payments"))["error"]
    with pytest.raises(RuntimeError) as caught:
        run(guard_with(client, approvals="raise"), tables.drop, name_table("payments"))
    assert isinstance(caught.value.__cause__, Blocked)
    assert tables.dropped == []


def test_what_cannot_be_judged_does_not_run() -> None:
    tables, table = Tables(), name_table("scratch")
    with unreachable_client() as client:
        assert UNREACHABLE_WORDS in run(guard_with(client), tables.drop, table)["error"]
        with pytest.raises(RuntimeError) as caught:
            run(guard_with(client, on_failure="raise"), tables.drop, table)
        assert isinstance(caught.value.__cause__, ServerUnreachable)
        assert tables.dropped == []
        run(guard_with(client, on_failure="allow"), tables.drop, table)
    assert tables.dropped == [table]
