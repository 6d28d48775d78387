"""The console in a real browser; `make test-console` runs it. Without Chromium, the tests are skipped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, ViewportSize, expect, sync_playwright

from console.app import SCREENS
from cstp_grpc.client import CstpClient
from cstp_grpc.server.app import App
from tests.console.support import served_console
from tests.harness import TOKENS, running, settings

HOSTILE = "<img src=x onerror=\"document.title='owned'\">{{ constructor.constructor('alert(1)')() }}</script>\u202e"
RULES = """
apiVersion: cstp.guardrails/v1
metadata: {name: ours, version: "1"}
guardrails:
  - {id: ask, name: Ask a person, match: {stakes: critical}, severity: approve, message: A person decides}
"""
PATHS = [each.path for each in SCREENS if "{" not in each.path]
NARROW: ViewportSize = {"width": 400, "height": 800}
WIDE: ViewportSize = {"width": 1280, "height": 900}
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
"""The pixels by which a page is too wide."""
EXPECTED_ERRORS = re.compile(r"Failed to load resource|WebSocket connection to")
"""Of a page whose server stops."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        if os.environ.get("REQUIRE_CHROMIUM"):
            pytest.fail("there is no chromium")
        pytest.skip("there is no chromium")
    with sync_playwright() as playwright:
        # A container has no user namespaces for the sandbox; the pages are ours.
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    folder = tmp_path_factory.mktemp("browser")
    (folder / "rules.yaml").write_text(RULES)
    rules = {"guardrails": {"config_path": folder / "rules.yaml"}}
    with running(settings(folder / "data", cstp=rules)) as app, CstpClient(app.target, TOKENS["alice"]) as alice:
        first = alice.record_decision("Use PostgreSQL", category="database", stakes="high", confidence=0.8)
        links = {"depends_on": [first.id]}
        alice.record_decision(
            HOSTILE, links=links, tags=[HOSTILE], notes=HOSTILE, visibility="shared", category=HOSTILE
        )
        alice.announce_intent(HOSTILE, context=HOSTILE, correlation_id="hostile")
        alice.review_decision(first.id, "success", notes=HOSTILE)
        yield app


@pytest.fixture(scope="module")
def console(app: App) -> Iterator[str]:
    with served_console(app.target) as (url, _):
        yield url


class BrowserUser:
    """A person with a browser of their own, which collects errors of pages."""

    def __init__(self, browser: Browser, url: str, name: str, **options: object) -> None:
        self.url = url
        self.errors: list[str] = []
        self.context: BrowserContext = browser.new_context(viewport=WIDE, **options)  # type: ignore[arg-type]
        self.page: Page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._note)
        self.page.goto(f"{url}/approvals")
        self.page.get_by_label("Token or JWT").fill(TOKENS[name])
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("heading", name="Approvals", level=1)).to_be_visible()

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not EXPECTED_ERRORS.search(message.text):
            self.errors.append(message.text)

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.url}{path}")
        expect(self.page.locator("main h1")).to_be_visible()
        return self.page


@pytest.fixture
def alice(browser: Browser, console: str) -> Iterator[BrowserUser]:
    with ExitStack() as opened:
        user = BrowserUser(browser, console, "alice")
        opened.callback(user.context.close)
        yield user


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_every_screen_is_accessible_and_fits(browser: Browser, console: str, colours: str) -> None:
    user = BrowserUser(browser, console, "bob", color_scheme=colours)
    found: dict[str, object] = {}
    for path in PATHS:
        page = user.open(path)
        expect(page.get_by_text("This cannot be shown")).to_have_count(0)
        # The editor is drawn after its modules are loaded.
        page.wait_for_load_state("networkidle")
        results = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]})
        if results.violations_count:
            found[path] = results.generate_report()
        page.set_viewport_size(NARROW)
        # Charts are drawn again when they notice that they are narrower.
        page.wait_for_function(f"{TOO_WIDE} <= 0")
        page.set_viewport_size(WIDE)
    user.context.close()
    assert found == {}, "\n".join(map(str, found.values()))
    assert user.errors == []


def test_the_sign_in_is_accessible(browser: Browser, console: str) -> None:
    page = browser.new_page()
    page.goto(f"{console}/decisions")
    assert Axe().run(page).violations_count == 0
    page.get_by_label("Token or JWT").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    page.close()


def test_texts_of_agents_stay_texts(alice: BrowserUser, app: App) -> None:
    with CstpClient(app.target, TOKENS["alice"]) as client:
        decisions = [each.id for each in client.list_decisions()]
    for path in (
        "/decisions",
        *(f"/decisions/{each}" for each in decisions),
        "/audit",
        "/audit/story?correlation=hostile",
    ):
        page = alice.open(path)
        page.wait_for_load_state("networkidle")
        assert page.locator("main img").count() == 0
        assert "owned" not in page.title()
        assert "\u202e" not in page.content()
        expect(page.locator(".content")).to_contain_text("<img src=x onerror=")
    assert alice.errors == []


def test_keyboards_reach_everything(alice: BrowserUser) -> None:
    page = alice.open("/decisions")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to main content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".content")).to_be_focused()
    page.get_by_label("Category").fill("database")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("category=database"))
    expect(page.get_by_role("link", name="Use PostgreSQL")).to_be_visible()
    page.get_by_role("link", name="Use PostgreSQL").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/decisions/dec-"))


def test_two_people_meet_in_one_approval(browser: Browser, console: str, app: App, alice: BrowserUser) -> None:
    bob = BrowserUser(browser, console, "bob")
    empty = "No approval is pending."
    expect(bob.page.get_by_text(empty)).to_be_visible()
    with CstpClient(app.target, TOKENS["reader"]) as agent:
        assert not agent.check_guardrails("Drop the old tables", stakes="critical").allowed
    for user in (alice, bob):
        expect(user.page.get_by_role("link", name="Drop the old tables")).to_be_visible()
    alice.page.get_by_role("button", name="Grant").click()
    bob.page.get_by_role("button", name="Deny").click()
    bob.page.get_by_role("dialog").get_by_label("Comment for the agent").fill("Not during the sale")
    bob.page.get_by_role("dialog").get_by_role("button", name="Deny").click()
    expect(bob.page.get_by_text(empty)).to_be_visible()
    # The other person decides too late, and is told so.
    alice.page.get_by_role("dialog").get_by_role("button", name="Grant").click()
    expect(alice.page.get_by_role("alert").filter(has_text="denied")).to_be_visible()
    bob.context.close()


def test_the_playground_highlights_what_decides(alice: BrowserUser) -> None:
    page = alice.open("/rulebooks/playground")
    expect(page.locator("mark", has_text="context.rows > 1000 = true")).to_be_visible()
    page.get_by_label("Actions").fill("Rename a variable")
    page.get_by_role("button", name="Try").click()
    expect(page.locator("mark")).to_have_count(0)
    page.get_by_role("button", name="Share").click()
    expect(page).to_have_url(re.compile(r"\?s="))
    page.reload()
    expect(page.get_by_label("Actions")).to_have_value("Rename a variable")


def test_the_trail_is_verified_and_exported(alice: BrowserUser) -> None:
    page = alice.open("/audit/verify")
    page.get_by_role("button", name="Verify now").click()
    expect(page.get_by_role("status").get_by_text(re.compile("verified|not provable yet"))).to_be_visible()
    page = alice.open("/audit")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert "guardrail" in download.value.path().read_text()


def test_a_person_who_signs_out_is_out_everywhere(alice: BrowserUser) -> None:
    other = alice.context.new_page()
    other.goto(f"{alice.url}/live")
    alice.page.get_by_role("button", name="Sign out").click()
    expect(alice.page.get_by_label("Token or JWT")).to_be_visible()
    other.reload()
    expect(other.get_by_label("Token or JWT")).to_be_visible()


def test_a_server_that_stops_is_awaited(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("returns")
    with running(settings(folder)) as first, console_process(first.target) as url:
        user = BrowserUser(browser, url, "alice")
        first.stop()
        page = user.open("/decisions")
        expect(page.get_by_text("The server does not answer")).to_be_visible()
        port = int(first.target.rpartition(":")[2])
        with running(settings(folder, grpc={"port": port})):
            # The page tries again by itself.
            expect(page.get_by_text("No decision matches.")).to_be_visible(timeout=30_000)
        user.context.close()


@contextmanager
def console_process(target: str) -> Iterator[str]:
    """Run `cstp console`, as NiceGUI has one application for each process."""
    command = [
        sys.executable,
        "-m",
        "cstp_grpc",
        "console",
        "--agent",
        f"grpc://{target}",
        "--dev",
        "--token",
        "unused",
    ]
    environment = {**os.environ, "CSTP_CONSOLE__PORT": "0"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert found
            yield found[0]
        finally:
            process.terminate()
