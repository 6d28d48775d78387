"""Draw docs/images/console-*.png: the screens of the console, on a server with example data.

Usage: scripts/console_pictures.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, sync_playwright

from cstp_grpc.client import CstpClient

ROOT: Final = Path(__file__).resolve().parents[1]
IMAGES: Final = ROOT / "docs" / "images"
SIZE: Final = {"width": 1280, "height": 800}
PAGES: Final[Mapping[str, str]] = {
    "overview": "/",
    "approvals": "/approvals",
    "decisions": "/decisions",
    "audit": "/audit",
    "rulebooks": "/rulebooks",
    "playground": "/rulebooks/playground",
    "calibration": "/calibration",
    "code-context": "/context?project=shop",
    "agents": "/agents",
    "liaison": "/liaison",
    "federation": "/peers",
    "tokens": "/tokens",
    "server": "/server",
}
"""The page of each picture, except for the live one."""
COMMANDS: Final = ("terraform destroy -auto-approve", "kubectl delete namespace shop")
"""What agents ask for before the pictures are drawn; people must approve it."""
NODE: Final = (
    "# Shop\n\n## Contracts\n\n- Prices are integers, in cents.\n\n## Pitfalls\n\n- Orders are never deleted.\n"
)


def write_project(folder: Path) -> str:
    """Write a project with a node, and return the setting that names it."""
    project = folder / "shop"
    project.mkdir()
    (project / "AGENTS.md").write_text(NODE, encoding="utf-8")
    subprocess.run(["git", "init", "-q", "-b", "main", str(project)], check=True)
    return json.dumps([{"name": "shop", "root": str(project)}])


@contextmanager
def serve_console(folder: Path, **settings: str) -> Iterator[Mapping[str, str]]:
    """Run a developer's server with the console on free ports, and yield what it prints by name."""
    ports = dict.fromkeys(("GRPC__PORT", "SERVER__PORT", "A2A__GRPC_PORT", "CONSOLE__PORT"), "0")
    environment = {**os.environ, **{f"CSTP_{name}": value for name, value in {**ports, **settings}.items()}}
    command = [str(Path(sys.executable).with_name("cstp")), "serve", "--dev"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        printed: dict[str, str] = {}
        for line in server.stdout:
            name, *rest = line.split()
            printed[name] = rest[0] if rest else ""
            if name == "Ctrl-C":
                break
        try:
            yield printed
        finally:
            server.terminate()


def act_as_agent(target: str, token: str) -> None:
    """Do what the pictures show: actions that wait for people, and an intent that is open."""
    with CstpClient(target, token) as client:
        for command in COMMANDS:
            client.check_guardrails(
                f"Run {command}", command=command, shell="bash", stakes="high", directory="/srv/shop"
            )
        metadata = {"affectsProduction": True, "codeReviewCompleted": True, "ciPassing": True, "rolloutPercent": 10}
        client.announce_intent(
            "Deploy the auth service to production", stakes="high", confidence=0.8, metadata=metadata
        )


def save_page(page: Page, name: str) -> None:
    page.wait_for_load_state("networkidle")
    page.locator("main h1").wait_for()
    page.screenshot(path=IMAGES / f"console-{name}.png")


def draw_pages(page: Page, link: str, act: Callable[[], None]) -> None:
    """Draw every page; `act` does what the agents do meanwhile."""
    url = link.partition("/enter")[0]
    page.goto(link)
    page.locator("main h1").wait_for()
    page.goto(f"{url}/live")
    page.wait_for_load_state("networkidle")
    act()
    page.get_by_text("Deploy the auth service").first.wait_for()
    save_page(page, "live")
    for name, path in PAGES.items():
        page.goto(f"{url}{path}")
        save_page(page, name)
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(url)
    save_page(page, "narrow")


def main() -> None:
    """Start a server with a console, and draw all pages."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("There is no chromium, so the pictures of the console are left as they are.")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        with serve_console(folder):
            # Its first start imports the examples, which it does for an empty journal only.
            pass
        with serve_console(folder, INTENT_LAYER__PROJECTS=write_project(folder)) as printed:
            token = (folder / "var" / "dev-token").read_text().strip()
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE)
            draw_pages(page, printed["console"], lambda: act_as_agent(printed["gRPC"], token))
            browser.close()


if __name__ == "__main__":
    main()
