"""A coding agent is stopped, a person approves in the console, the agent continues, and an auditor proves it.

`make test-hosts` walks; `make docs-images` also takes the pictures of docs/walk.md.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from cstp_grpc.platform.config.environment import APPROVER_TOKEN_FILE
from scripts.small_png import save_small_png
from tests.agents.hosts.agents import AGENTS
from tests.agents.hosts.conftest import Workplace
from tests.agents.hosts.scripted_model import ScriptedModel, ToolCall
from tests.cli.serving import BOUND, ENVIRONMENT, READY, started
from tests.console.browser import browser  # noqa: F401 - a fixture

pytestmark = pytest.mark.timeout(300)
CLAUDE = next(each for each in AGENTS if each.host == "claude-code")
PROMPT = "Free some disk space."
DELETE = "rm -r exports"
LOOK = "ls -R exports"
COMMENT = "The exports of 2025 are in the backup of last night."
INSTRUCTIONS = "the page /approvals/{id} of the console"
TOOLS = """tools:
  - {tool: Bash, ask: announce, description: "{command}", command: command}
"""
"""Commands are announced, so that the trail has their outcome, too."""
PICTURES = os.environ.get("WALK_PICTURES")
"""The folder for pictures, if they are wanted."""
VIEWPORT = {"width": 1280, "height": 620}
COLUMNS = 104


@dataclass(frozen=True)
class Walk:
    """A developer's server with its console, a workplace, and the browser of its people."""

    workplace: Workplace
    console: str
    browser: Browser
    data: Path

    def sign_in(self, token: str, path: str) -> Page:
        """Sign a person in, in a browser of their own, and return the page at a path."""
        page = self.browser.new_context(viewport=VIEWPORT, color_scheme="light").new_page()  # type: ignore[arg-type]
        page.goto(f"{self.console}{path}")
        page.get_by_label("Token or JWT").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("main h1")).to_be_visible()
        return page

    def draw_session(self, name: str, results: Sequence[str], commands: Sequence[str]) -> None:
        """Take a picture of a session: each command, and what its tool returned to the model."""
        console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
        console.print(Text.assemble(("> ", "dim"), PROMPT, "\n"))
        for command, result in zip(commands, results, strict=True):
            colour = "red" if "NOT ALLOWED" in result else "green"
            console.print(Text.assemble(("● ", colour), ("Bash", "bold"), f"({command})"))
            console.print(Padding(Text(result.strip()), (0, 2, 1, 2)))
        page = self.browser.new_page(viewport=VIEWPORT)  # type: ignore[arg-type]
        page.set_content(f"<style>svg {{width: 1260px}}</style>{console.export_svg(title='claude')}")
        self.take_picture(name, page, "svg")
        page.close()

    def take_picture(self, name: str, page: Page, selector: str = "body") -> None:
        """Take a picture of a whole page, or of a part of it, if pictures are wanted."""
        if not PICTURES:
            return
        page.set_viewport_size(VIEWPORT)  # type: ignore[arg-type]
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": VIEWPORT["width"], "height": max(height, VIEWPORT["height"])})
        picture = page.locator(selector).first.screenshot(animations="disabled", caret="hide")
        save_small_png(self.browser, picture, Path(PICTURES) / f"walk-{name}.png")


@pytest.fixture
def walk(
    tmp_path_factory: pytest.TempPathFactory,
    browser: Browser,  # noqa: F811
    programs: Path,
    model: ScriptedModel,
) -> Iterator[Walk]:
    folder = tmp_path_factory.mktemp("walk", numbered=False)
    project, home, data = folder / "shop", folder / "home", folder / "data"
    (project / "exports").mkdir(parents=True)
    (project / "exports" / "2025.csv").write_text("id,total\n1,1900\n")
    (project / "README.md").write_text("# Shop\n")
    home.mkdir()
    config = folder / "cstp.yaml"
    config.write_text(json.dumps({"data_dir": str(data), "approvals": {"instructions": INSTRUCTIONS}}))
    environment = {name: value for name, value in ENVIRONMENT.items() if not name.endswith("PRESET")}
    environment |= {"CSTP_CONSOLE__ENABLED": "true", "CSTP_CONSOLE__PORT": "0"}
    with started("serve", "--dev", "--config", str(config), environment=environment) as process:
        process.wait_for(READY)
        console = process.value("console").partition("/enter")[0]
        command = [PROMPT if word == CLAUDE.command[2] else word for word in CLAUDE.command]
        agent = replace(CLAUDE, command=command)
        yield Walk(Workplace(agent, programs, model, home, project, data / "agents.yaml"), console, browser, data)


def test_an_agent_is_stopped_a_person_approves_and_an_auditor_proves_it(walk: Walk, tmp_path: Path) -> None:
    place, shell = walk.workplace, walk.workplace.agent.shell
    (tmp_path / "tools.yaml").write_text(TOOLS)
    place.cstp(
        *("install", "claude-code", "--yes", "--approvals", "deny"),
        *("--tools", str(tmp_path / "tools.yaml"), *place.server()),
    )
    granted = threading.Event()

    def ask_again(_: str) -> ToolCall:
        """Repeat the command once the person has decided."""
        assert granted.wait(BOUND)
        return shell(DELETE)

    with ThreadPoolExecutor() as pool:
        working = pool.submit(place.work, shell(DELETE), shell(LOOK), ask_again, shell("ls"))
        try:
            approve(walk)
        finally:
            granted.set()
        stopped, seen, deleted, after = working.result()
    walk.draw_session("stopped", [stopped, seen], [DELETE, LOOK])
    walk.draw_session("continues", [deleted, after], [DELETE, "ls"])
    assert "The command deletes a folder with all that is in it" in stopped
    assert "2025.csv" in seen
    assert after.split() == ["README.md"]
    audit(walk, tmp_path)


def approve(walk: Walk) -> None:
    """Find the request of the agent in the inbox, and grant it with a comment."""
    page = walk.sign_in((walk.data / APPROVER_TOKEN_FILE).read_text(), "/approvals")
    request = page.locator("main .card", has=page.get_by_role("link", name=DELETE))
    expect(request).to_be_visible(timeout=BOUND * 1000)
    assert (walk.workplace.project / "exports").exists()
    walk.take_picture("inbox", page)
    request.get_by_role("button", name="Grant").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Comment").fill(COMMENT)
    walk.take_picture("grant", page)
    dialog.get_by_role("button", name="Grant").click()
    expect(request).to_be_hidden()
    page.context.close()


def audit(walk: Walk, folder: Path) -> None:
    """Find the whole story, verify the trail, and check the evidence with nothing but the public key."""
    place = walk.workplace
    developer = ("--agents-file", str(place.agents_file), "--agent", "developer")
    token = place.cstp(
        "token", "create", "auditor", "--permission", "admin", "--permission", "approve", *developer
    ).strip()
    page = walk.sign_in(token, "/audit")
    page.get_by_role("link", name=DELETE).first.click()
    story = page.locator("ol.timeline")
    for step in ("Intent announced", "Approval requested", "Approval granted", "Approval used", "Intent closed"):
        expect(story.get_by_text(step).first).to_be_visible()
    expect(page.get_by_text(COMMENT)).to_be_visible()
    walk.take_picture("story", page)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the evidence").click()
    evidence = folder / "evidence.json"
    download.value.save_as(evidence)
    page.get_by_role("link", name="Verify the trail").click()
    page.get_by_role("button", name="Verify now").click()
    expect(page.get_by_role("status").get_by_text("verified", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Verify now")).to_be_enabled()
    walk.take_picture("verified", page)
    page.context.close()
    key = folder / "audit.pem"
    key.write_text(place.cstp("audit", "public-key", *developer))
    verify = ("cstp", "audit", "verify-evidence", str(evidence), "--public-key", str(key))
    done = place.run(verify)
    assert done.returncode == 0, done.stdout + done.stderr
    forged = folder / "forged.json"
    forged.write_text(evidence.read_text().replace("approval_granted", "approval_denied"))
    assert place.run(("cstp", "audit", "verify-evidence", str(forged), "--public-key", str(key))).returncode == 3
    events = [each["event"] for each in json.loads(evidence.read_text())["entries"]]
    assert re.search("approval_granted.*intent_closed", " ".join(events)), events
