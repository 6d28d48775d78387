"""Screens on real data, as people use them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from nicegui import ui

from console.app import SCREENS
from console.frame import Screen
from console.view import find_method
from cstp_grpc.client import CstpClient
from cstp_grpc.contract.json_codec import to_json
from cstp_grpc.contract.proto_values import build_message
from cstp_grpc.server.app import App
from tests.console.support import ConsoleKit, console_kit
from tests.harness import TOKENS, running, settings

HOSTILE = "<img src=x onerror=alert(1)>{{ 7*7 }}\u202e"
SHOWN = "<img src=x onerror=alert(1)>{{ 7*7 }}\ufffd"
RULES = """
apiVersion: cstp.guardrails/v1
metadata: {name: ours, version: "1"}
guardrails:
  - {id: ask, name: Ask a person, match: {stakes: critical}, severity: approve, message: A person decides}
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    folder = tmp_path_factory.mktemp("screens")
    (folder / "rules.yaml").write_text(RULES)
    rules = {"guardrails": {"config_path": folder / "rules.yaml"}}
    with running(settings(folder / "data", cstp=rules)) as app, CstpClient(app.target, TOKENS["alice"]) as alice:
        alice.record_decision(HOSTILE, category="naming", stakes="high", confidence=0.8, context="why it was chosen")
        alice.check_guardrails("Drop the old tables", stakes="critical", command="psql -f drop.sql")
        yield app


def in_console(app: App, act: Callable[[ConsoleKit], Awaitable[None]]) -> None:
    async def run() -> None:
        async with console_kit(app.target) as kit:
            await act(kit)

    asyncio.run(run())


def test_texts_of_agents_are_shown_as_text(app: App) -> None:
    async def act(kit: ConsoleKit) -> None:
        user = await kit.sign_in("alice")
        await user.open("/decisions?category=naming")
        await user.should_see(SHOWN)
        page = (await user.http_client.get("/decisions?category=naming")).text
        assert "<img" not in page
        assert "\u202e" not in page

    in_console(app, act)


def test_a_decision_is_reviewed(app: App) -> None:
    async def act(kit: ConsoleKit) -> None:
        user = await kit.sign_in("alice")
        with CstpClient(app.target, TOKENS["alice"]) as client:
            decision = client.record_decision("Name it by its purpose")
        await user.open(f"/decisions/{decision.id}")
        user.find(kind=ui.button, content="Review").click()
        user.find(kind=ui.textarea).type("It was found at once")
        user.find(kind=ui.button, content="Save the review").click()
        await user.should_see("It was found at once")

    in_console(app, act)


def test_one_person_asks_and_another_grants(app: App) -> None:
    async def act(kit: ConsoleKit) -> None:
        alice, bob = await kit.sign_in("alice"), await kit.sign_in("bob")
        await alice.open("/approvals")
        await alice.should_see("This is your own request")
        await alice.should_not_see(kind=ui.button, content="Grant")
        await bob.open("/approvals")
        await bob.should_see("Drop the old tables")
        bob.find(kind=ui.button, content="Grant").click()
        await bob.should_see("Grant this approval?")
        bob.find(kind=ui.textarea).type("The backup is verified")
        with bob.scope(kind=ui.dialog):
            bob.find(kind=ui.button, content="Grant").click()
        await bob.should_see("No approval is pending.", retries=50)
        # The other page follows the change by itself.
        await alice.should_see("No approval is pending.", retries=50)
        await bob.open("/audit?event=approval_granted")
        await bob.should_see("approval granted")

    in_console(app, act)


def ask_approval(app: App) -> str:
    """Have a request of alice pending, and return its id."""
    with CstpClient(app.target, TOKENS["alice"]) as client:
        verdict = client.check_guardrails("Rename tables", stakes="critical", writes=["old_names.log"])
        return verdict.approval.id


def test_names_of_files_are_shown_as_they_are(app: App) -> None:
    async def act(kit: ConsoleKit) -> None:
        user = await kit.sign_in("bob")
        await user.open(f"/approvals/{ask_approval(app)}")
        await user.should_see("old_names.log")

    in_console(app, act)


def test_an_auditor_reads_the_story_of_a_request_of_others(app: App) -> None:
    async def act(kit: ConsoleKit) -> None:
        rpc = find_method("createToken")
        with CstpClient(app.target, TOKENS["bob"]) as client:
            wanted = build_message(rpc.request, {"agent": "auditor", "permissions": ["admin"], "request_id": "auditor"})
            auditor = to_json(client.call(rpc, wanted))["secret"]
        user = await kit.sign_in_with(auditor)
        await user.open(f"/audit/story?approval={ask_approval(app)}")
        await user.should_see("Approval requested")
        await user.should_see("Approval asked by ask")
        await user.should_not_see("This cannot be shown")

    in_console(app, act)


def test_what_a_person_may_not_do_is_not_offered(app: App) -> None:
    async def act(kit: ConsoleKit) -> None:
        reader = await kit.sign_in("reader")
        await reader.open("/decisions")
        await reader.should_see("Decisions")
        for screen in ("Audit", "Tokens", "Server"):
            await reader.should_not_see(screen)
        await reader.open("/tokens")
        await reader.should_see("Your permissions do not include this page.")

    in_console(app, act)


@pytest.mark.parametrize("screen", [each for each in SCREENS if "{" not in each.path], ids=lambda each: each.path)
def test_every_screen_is_built_without_a_failure(app: App, screen: Screen) -> None:
    async def act(kit: ConsoleKit) -> None:
        user = await kit.sign_in("bob")
        await user.open(screen.path)
        await user.should_see(screen.title)
        await user.should_not_see("This cannot be shown")
        await user.should_not_see("Your permissions do not include this page.")

    in_console(app, act)


@pytest.mark.parametrize("path", ["/audit", "/decisions", "/calibration"])
def test_a_filter_that_is_not_a_time_is_refused(app: App, path: str) -> None:
    async def act(kit: ConsoleKit) -> None:
        user = await kit.sign_in("bob")
        for text in ("soon", "9999999d"):
            await user.open(f"{path}?since={text}")
            await user.should_see(f"since: '{text}' is not a time like 7d")

    in_console(app, act)


@pytest.mark.parametrize("path", ["/download/audit", "/download/evidence"])
def test_a_download_of_a_malformed_period_is_refused(app: App, path: str) -> None:
    async def act(kit: ConsoleKit) -> None:
        user = await kit.sign_in("bob")
        response = await user.http_client.get(f"{path}?before=2026-01-31T12:00:00Z&after=soon")
        assert response.status_code == 400
        assert response.text.startswith("after must be an instant")

    in_console(app, act)


def test_a_server_that_stops_is_said_and_found_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    wanted = settings(tmp_path_factory.mktemp("stops"))

    async def act(kit: ConsoleKit) -> None:
        user = await kit.sign_in("alice")
        await asyncio.to_thread(stopped.stop)
        await user.open("/decisions")
        await user.should_see("The server does not answer")

    with running(wanted) as stopped:
        in_console(stopped, act)
