"""The command in a folder of its own, and a server for it to call."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cstp_grpc.cli.main import main
from cstp_grpc.server.app import App
from tests.harness import TOKENS, running, settings

Invoke = Callable[..., Result]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder, which is the home folder too, and hear nothing of the developer's environment."""
    folder = tmp_path / "home"
    folder.mkdir()
    enter_home(monkeypatch, folder)
    return folder


def enter_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make a folder the working and the home folder, and forget the settings in the environment."""
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("CSTP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))


def run_command(*arguments: object, **options: Any) -> Result:
    """Run the command with arguments."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], **options)


@pytest.fixture
def invoke() -> Invoke:
    """Run the command with arguments."""
    return run_command


@dataclass(frozen=True)
class Server:
    """A running server and a way to call it from the command line."""

    app: App
    invoke: Invoke

    @property
    def url(self) -> str:
        return f"grpc://{self.app.target}"

    def __call__(self, *arguments: object, agent: str = "alice", **options: Any) -> Result:
        """Run a command against the server as one of its agents."""
        return self.invoke(*arguments, "--agent", self.url, "--token", TOKENS[agent], **options)

    def ok(self, *arguments: object, agent: str = "alice") -> str:
        """Run a command that must succeed, and return what it prints."""
        result = self(*arguments, agent=agent)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: object, agent: str = "alice") -> Any:
        """Run a command that must succeed, and return the JSON that it prints."""
        return json.loads(self.ok(*arguments, "--json", agent=agent))


@pytest.fixture
def server(tmp_path: Path, invoke: Invoke) -> Iterator[Server]:
    """A server with a fresh journal."""
    with running(settings(tmp_path / "data")) as app:
        yield Server(app, invoke)


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for the tests of a module that only ask it."""
    folder = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patched:
        enter_home(patched, folder)
        with running(settings(folder / "data")) as app:
            yield Server(app, run_command)
