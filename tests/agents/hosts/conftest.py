"""A server as its users start it, a scripted model, and workplaces of coding agents."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cstp_grpc.agents.hooks.hosts import load_host
from tests.agents.hosts.agents import AGENTS, EDITED, OLD, Agent
from tests.agents.hosts.scripted_model import ScriptedModel, Step, ToolCall, scripted_model
from tests.bridge.a2a.sdks import run_command, skip_or_fail
from tests.cli.serving import ENVIRONMENT, READY, started

ROOT = Path(__file__).parents[3]
PACKAGES = ROOT / "build" / "hosts"
DEMANDED_BY = ("REQUIRE_HOSTS",)
SERVER = "developer-http"
INSTALL_SECONDS = 600.0
SESSION_SECONDS = 120.0
NPM_INSTALL = ("npm", "install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
INSTALL_SCRIPTS = {"@anthropic-ai/claude-code": "install.cjs", "opencode-ai": "postinstall.mjs"}
"""What puts the program for this platform into its place; other packages do without their scripts."""
NODE = """# Money

## Contracts

- Money is in cents.
"""


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder with the programs of the agents, installed once for the versions in package.json."""
    wanted = Path(__file__).with_name("package.json").read_bytes()
    finished = PACKAGES / "node_modules" / "installed.json"
    if not finished.exists() or finished.read_bytes() != wanted:
        PACKAGES.mkdir(parents=True, exist_ok=True)
        (PACKAGES / "package.json").write_bytes(wanted)
        install_with(NPM_INSTALL, PACKAGES)
        for package, script in INSTALL_SCRIPTS.items():
            install_with(["node", script], PACKAGES / "node_modules" / package)
        finished.write_bytes(wanted)
    return PACKAGES / "node_modules" / ".bin"


def install_with(command: Sequence[str], folder: Path) -> None:
    """Run a command that installs something; skip, or fail, if it does not succeed."""
    try:
        done = run_command(command, folder, INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        skip_or_fail(f"{command[0]} failed: {error}", DEMANDED_BY)
    if done.returncode != 0:
        skip_or_fail(f"{command[0]} failed: {done.stderr.strip()}", DEMANDED_BY)


@pytest.fixture(scope="session")
def model() -> Iterator[ScriptedModel]:
    with scripted_model() as serving:
        yield serving


@dataclass(frozen=True)
class Workplace:
    """A home folder and a project, in which an agent works."""

    agent: Agent
    programs: Path
    model: ScriptedModel
    home: Path
    project: Path
    agents_file: Path
    """Describes the server of the hook."""

    @property
    def victim(self) -> Path:
        """A folder that is to be deleted."""
        return self.project / "victim"

    def environment(self) -> dict[str, str]:
        """Return the environment of the agent, which has nothing of that of the tests."""
        # npm stands beside the Node.js of the system, if it brings none itself.
        folders = [
            self.programs,
            Path(sys.executable).parent,
            Path(shutil.which("npm") or "").parent,
            "/usr/bin",
            "/bin",
        ]
        basic = {"HOME": str(self.home), "PATH": os.pathsep.join(map(str, folders)), "LANG": "C.UTF-8"}
        return basic | {name: self.fill(value) for name, value in self.agent.environment.items()}

    def fill(self, text: str) -> str:
        """Return a text of the agent with what stands for something replaced."""
        return text.replace("MODEL", self.model.url).replace("PROJECT", str(self.project))

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in the project."""
        return subprocess.run(
            command,
            cwd=self.project,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SESSION_SECONDS,
            check=False,
        )

    def cstp(self, *words: str) -> str:
        """Run `cstp` and return what it prints."""
        done = self.run(["cstp", *words])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def server(self, agents_file: Path | None = None) -> tuple[str, ...]:
        """Return the options that choose the server."""
        return ("--agents-file", str(agents_file or self.agents_file), "--agent", SERVER)

    def described_server(self) -> dict[str, str]:
        """Return the entry of the server in the agents file."""
        agents: list[dict[str, str]] = yaml.safe_load(self.agents_file.read_text())["agents"]
        return next(entry for entry in agents if entry["name"] == SERVER)

    def install(self, agents_file: Path | None = None) -> str:
        """Install the hook, and return what is printed."""
        return self.cstp("install", self.agent.host, "--yes", "--project", self.agent.host, *self.server(agents_file))

    def work(self, *steps: Step) -> list[str]:
        """Run the agent with a script of its model, and return the results of the tools as the model got them."""
        self.model.follow([self.fill_call(step) if isinstance(step, ToolCall) else step for step in steps])
        done = self.run([self.fill(word) for word in self.agent.command])
        results = self.model.results
        assert len(results) == len(steps), f"{results}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return results

    def fill_call(self, call: ToolCall) -> ToolCall:
        """Return a call with what stands for something replaced."""
        if isinstance(call.arguments, str):
            return replace(call, arguments=self.fill(call.arguments))
        arguments: dict[str, Any] = json.loads(self.fill(json.dumps(call.arguments)))
        return replace(call, arguments=arguments)

    def settings(self) -> bytes | None:
        """Return the settings file with the hook, or None if it is missing."""
        named = next(iter(load_host(self.agent.host).settings_files.values()))
        file = self.home / named[2:] if named.startswith("~/") else self.project / named
        return file.read_bytes() if file.exists() else None

    def files(self) -> dict[str, bytes]:
        """Return the contents of all files, and the folders."""
        found = self.home.parent.rglob("*")
        return {str(path): path.read_bytes() if path.is_file() else b"" for path in found if not path.is_socket()}


@pytest.fixture(scope="session")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a home folder and a project for each agent."""
    parent = tmp_path_factory.mktemp("hosts")
    for agent in AGENTS:
        project = parent / agent.host / "project"
        (project / "src").mkdir(parents=True)
        (project / "src" / "AGENTS.md").write_text(NODE)
        subprocess.run(["git", "init", "-q", "-b", "main", project], check=True)
    return parent


@pytest.fixture(scope="session")
def agents_file(projects: Path) -> Iterator[Path]:
    """The agents file of a developer's server with the packaged rules."""
    served = [{"name": agent.host, "root": str(projects / agent.host / "project")} for agent in AGENTS]
    config = projects / "cstp.yaml"
    config.write_text(json.dumps({"data_dir": str(projects / "data"), "intent_layer": {"projects": served}}))
    environment = {name: value for name, value in ENVIRONMENT.items() if not name.endswith("PRESET")}
    with started("serve", "--dev", "--config", str(config), environment=environment) as process:
        process.wait_for(READY)
        yield projects / "data" / "agents.yaml"


@pytest.fixture(scope="module", params=AGENTS, ids=lambda agent: agent.host)
def workplace(
    request: pytest.FixtureRequest, projects: Path, agents_file: Path, programs: Path, model: ScriptedModel
) -> Workplace:
    agent: Agent = request.param
    place = projects / agent.host
    workplace = Workplace(agent, programs, model, place / "home", place / "project", agents_file)
    (workplace.project / EDITED).write_text(OLD)
    workplace.victim.mkdir(exist_ok=True)
    (workplace.victim / "diary.txt").write_text("Dear diary\n")
    workplace.home.mkdir(exist_ok=True)
    for name, text in agent.files.items():
        file = workplace.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(workplace.fill(text))
    version = workplace.run(["env", agent.command[0], "--version"])
    if version.returncode != 0:
        skip_or_fail(f"{agent.host} does not run on this machine: {version.stderr.strip()}", DEMANDED_BY)
    return workplace
