"""The guard of tool calls on which the adapters of all frameworks are built."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cstp_grpc.agents.frameworks.tool_guard import ApprovalNeeded, ToolCallRefused, ToolGuard
from cstp_grpc.agents.hooks.tool_rules import ToolRules
from cstp_grpc.client import AsyncCstpClient, CstpClient
from cstp_grpc.contract.calls import UnaryCall
from cstp_grpc.contract.errors import AuthenticationRequired, ServerUnreachable, Unavailable
from cstp_grpc.modules.federation import Agent, FederatedClient
from tests.agents.frameworks.scenario import (
    BLOCKED_WORDS,
    NOBODY,
    QUESTION_WORDS,
    Tables,
    decision_about,
    guard_with,
    name_table,
    outcome_of,
    unreachable_client,
)

T = TypeVar("T")
Run = Callable[..., str]


@pytest.fixture(params=["synchronous", "asynchronous", "in a thread"])
def run(request: pytest.FixtureRequest, client: CstpClient, target: str, token: str) -> Run:
    """Calls a tool under guard in one of the three ways."""

    def run_sync(tool: str, table: str, tables: Tables, *, approved: bool = False, **options: Any) -> str:
        guard = guard_with(client, **options)
        with guard.guard_call(tool, {"table": table}, approved=approved):
            return tables.drop(table)

    def run_async(tool: str, table: str, tables: Tables, *, approved: bool = False, **options: Any) -> str:
        async def execute() -> str:
            async with AsyncCstpClient(target, token) as calls:
                chosen = calls if request.param == "asynchronous" else client
                async with guard_with(chosen, **options).guard_call(tool, {"table": table}, approved=approved):
                    return tables.drop(table)

        return asyncio.run(execute())

    return run_sync if request.param == "synchronous" else run_async


def test_an_announced_call_is_recorded_with_its_outcome(run: Run, client: CstpClient) -> None:
    kept, broken = name_table("scratch"), name_table("broken")
    run("drop_table", kept, Tables())
    with pytest.raises(OSError, match="disk"):
        run("drop_table", broken, Tables(), confidence=lambda call: 0.9 if "broken" in call.arguments["table"] else 0.1)
    assert (outcome_of(client, kept), outcome_of(client, broken)) == ("success", "failure")
    decision = decision_about(client, broken)
    assert decision is not None
    assert (decision.confidence, decision.category) == (0.9, "database")


def test_a_blocked_call_is_refused_with_message_and_suggestion(run: Run) -> None:
    tables = Tables()
    for tool in ("drop_table", "read_table"):
        with pytest.raises(ToolCallRefused) as caught:
            run(tool, name_table("orders"), tables)
        assert all(words in caught.value.text for words in BLOCKED_WORDS)
    assert tables.dropped == []


def test_a_checked_call_is_not_recorded(run: Run, client: CstpClient) -> None:
    table = name_table("scratch")
    run("read_table", table, Tables())
    assert not [each for each in client.list_decisions() if table in each.title]


def test_nothing_is_asked_about_a_tool_of_which_the_rules_say_so(run: Run) -> None:
    tables, table = Tables(), name_table("orders")
    run("list_tables", table, tables)
    assert tables.dropped == [table]


@pytest.mark.parametrize("tool", ["drop_table", "read_table"])
def test_a_call_that_a_person_approved_is_made(run: Run, tool: str) -> None:
    tables, table = Tables(), name_table("payments")
    with pytest.raises(ApprovalNeeded) as caught:
        run(tool, table, tables, approvals="ask")
    assert QUESTION_WORDS in caught.value.question
    assert "NOT ALLOWED without approval" in caught.value.text
    assert tables.dropped == []
    run(tool, table, tables, approvals="ask", approved=True)
    assert tables.dropped == [table]


def test_an_approval_does_not_allow_what_is_blocked(run: Run) -> None:
    tables = Tables()
    with pytest.raises(ToolCallRefused):
        run("drop_table", name_table("orders"), tables, approvals="ask", approved=True)
    assert tables.dropped == []


def test_a_granted_approval_is_used(client: CstpClient, target: str) -> None:
    from tests.harness import TOKENS

    tables, table = Tables(), name_table("payments")
    guard = guard_with(client)

    def drop() -> None:
        with guard.guard_call("drop_table", {"table": table}):
            tables.drop(table)

    with pytest.raises(ToolCallRefused, match="apr-"):
        drop()
    with CstpClient(target, TOKENS["bob"]) as person:
        (pending,) = [each for each in person.list_approvals() if table in each.subject.description]
        person.grant_approval(pending.id)
    drop()
    assert tables.dropped == [table]


def test_by_default_every_call_is_announced_by_name_and_arguments(client: CstpClient) -> None:
    with ToolGuard(client).guard_call("send_mail", {"on": date(2026, 1, 2)}):
        pass
    assert 'Call send_mail with {"on": "2026-01-02"}' in [each.title for each in client.list_decisions()]


def test_inputs_may_be_computed(client: CstpClient) -> None:
    guard = guard_with(client, inputs=lambda call: {"destroysData": call.arguments["rows"] > 10})
    with guard.guard_call("purge", {"rows": 10}):
        pass
    with pytest.raises(ToolCallRefused, match=BLOCKED_WORDS[0]), guard.guard_call("purge", {"rows": 11}):
        pass


def test_a_tool_may_fail_without_raising(client: CstpClient) -> None:
    table = name_table("scratch")
    with guard_with(client).guard_call("drop_table", {"table": table}) as guarded:
        guarded.fail("no such table")
    decision = decision_about(client, table)
    assert decision is not None
    assert (outcome_of(client, table), decision.notes) == ("failure", "ToolFailed: no such table")


def test_only_the_absence_of_the_server_can_be_allowed(target: str) -> None:
    tables = Tables()
    with unreachable_client() as away:
        for options, raised in (({}, ToolCallRefused), ({"on_failure": "raise"}, ServerUnreachable)):
            with (
                pytest.raises(raised),
                guard_with(away, **options).guard_call("drop_table", {"table": "scratch"}),
            ):
                tables.drop("scratch")
        with guard_with(away, on_failure="allow").guard_call("drop_table", {"table": "scratch"}):
            tables.drop("scratch")
    assert tables.dropped == ["scratch"]
    with (
        CstpClient(target, "unknown-token") as unknown,
        pytest.raises(ToolCallRefused) as caught,
        guard_with(unknown, on_failure="allow").guard_call("drop_table", {"table": "scratch"}),
    ):
        tables.drop("scratch")
    assert isinstance(caught.value.cause, AuthenticationRequired)
    assert tables.dropped == ["scratch"]


def test_a_server_that_answers_that_it_cannot_judge_allows_nothing() -> None:
    class Answering:
        def make(self, call: UnaryCall[T], timeout: float | None = None) -> T:
            raise Unavailable("AGENTS.md cannot be read")

    guard = ToolGuard(Answering(), record=False, on_failure="allow")
    with pytest.raises(ToolCallRefused, match="AGENTS"), guard.guard_call("drop_table", {"table": "scratch"}):
        pytest.fail("the tool was called")


def test_what_is_too_long_to_be_judged_is_not_allowed(client: CstpClient) -> None:
    guard = ToolGuard(client, on_failure="allow")
    with pytest.raises(ToolCallRefused) as caught, guard.guard_call("send_mail", {"text": "x" * 10_000}):
        pytest.fail("the tool was called")
    assert "characters, of which guardrails read 8000" in caught.value.text


@pytest.mark.parametrize(
    ("options", "message"),
    [({"aprovals": "ask"}, "aprovals"), ({"approvals": "aks"}, "approvals"), ({"on_failure": "ignore"}, "on_failure")],
)
def test_a_misspelled_setting_is_an_error(client: CstpClient, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ToolGuard(client, **options)


def test_a_federated_client_records_nothing(token: str) -> None:
    with FederatedClient([Agent("away", NOBODY, token, timeout=0.2)]) as client:
        with pytest.raises(TypeError, match="record=False"):
            ToolGuard(client)
        with pytest.raises(ToolCallRefused), ToolGuard(client, record=False).guard_call("drop_table", {}):
            pytest.fail("the tool was called")


def test_paths_are_announced_with_the_project(client: CstpClient, tmp_path: Path) -> None:
    rules = ToolRules.parse({"tools": [{"tool": "*", "ask": "announce", "paths": ["file"]}]})
    guard = ToolGuard(client, rules=rules, folder=tmp_path, project="nothing", on_failure="raise")
    with pytest.raises(Exception, match="nothing"), guard.guard_call("edit", {"file": str(tmp_path / "a.py")}):
        pytest.fail("the tool was called")
