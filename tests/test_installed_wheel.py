"""The wheel, installed from a package index as users install it: alone, with a server, and by uv."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.agents.hooks.payloads import encode, payload
from tests.cli.serving import ENVIRONMENT, READY, started
from tests.harness import TOKENS, running, settings
from tests.installations import PROJECT, ROOT, build_distribution
from tests.package_index import skip_where_unreachable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

INSTALL_SECONDS = 600.0
COMMAND_SECONDS = 60.0
CONSTRAINTS = ROOT / "constraints.txt"


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment of somebody who has no checkout of ours and no settings."""
    hidden = {"PYTHONPATH", "VIRTUAL_ENV"}
    kept = {name: text for name, text in os.environ.items() if not name.startswith("CSTP_") and name not in hidden}
    return {**kept, **more}


def install(command: Sequence[object], folder: Path) -> None:
    """Run an installing command; skip the test if no package index answers."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=INSTALL_SECONDS,
    )
    skip_where_unreachable(done.returncode, done.stdout)
    assert done.returncode == 0, done.stdout


def create_environment(folder: Path, *requirements: object) -> Path:
    """Install requirements into a new virtual environment, and return its folder of commands."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=COMMAND_SECONDS)
    commands = folder / "bin"
    pip = (commands / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile")
    install((*pip, "--constraint", CONSTRAINTS, *requirements), folder)
    return commands


def run(command: Sequence[object], folder: Path, stdin: str = "", **environment: str) -> str:
    """Run a command that must succeed, and return what it prints."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=clean_environment(HOME=str(folder), **environment),
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as it would be published."""
    return build_distribution("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Path]:
    """The folder of a virtual environment, which is large and removed at once: it may lie in memory."""
    folder = tmp_path / "environment"
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of this checkout."""
    with running(settings(tmp_path_factory.mktemp("server") / "data")) as app:
        yield f"grpc://{app.target}"


def test_the_wheel_alone_is_a_client(wheel: Path, server: str, empty: Path, environment: Path) -> None:
    commands = create_environment(environment, wheel)
    listed = json.loads(run([commands / "python", "-m", "pip", "list", "--format", "json"], empty))
    assert len(listed) < 30
    assert not {"numpy", "chromadb", "sqlalchemy", "aiohttp"} & {each["name"].lower() for each in listed}
    run([commands / "python", "-m", "pip", "check"], empty)
    cstp = commands / "cstp"
    assert "Look before you act" in run([cstp, "--help"], empty)
    assert "Check an action against the guardrails" in run([cstp, "check", "--help"], empty)
    asked = [cstp, "check", "Rename a variable", "--agent", server, "--token", TOKENS["alice"], "--json"]
    assert json.loads(run(asked, empty))["allowed"]
    hook = [cstp, "hook", "claude-code", "--agent", server, "--token", TOKENS["alice"]]
    json.loads(run(hook, empty, encode(payload("bash", empty))))
    assert "nothing found" in run([cstp, "context", "validate"], empty)


def serves_from(command: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prove that the command serves from a folder, answers a call there, and stops."""
    monkeypatch.chdir(folder)
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    with started("serve", "--dev", program=command, environment=ENVIRONMENT) as process:
        process.wait_for(READY)
        assert "with 60 example decisions" in process.value("data")
        asked = json.loads(run([*command, "query", "zero downtime migration", "--json"], folder))
        assert asked["decisions"]
        assert process.end() == 0
    assert (folder / "var" / "journal.db").exists()


def test_the_wheel_with_its_server_serves_from_an_empty_folder(
    wheel: Path, empty: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = create_environment(environment, f"{wheel}[server]")
    run([commands / "python", "-m", "pip", "check"], empty)
    serves_from([str(commands / "cstp")], empty, monkeypatch)


def test_uvx_serves_from_an_empty_folder(
    wheel: Path, empty: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uvx = create_environment(environment, "uv") / "uvx"
    # With the authorities that the system knows, as pip has them, and one cache for all homes.
    monkeypatch.setenv("UV_NATIVE_TLS", "true")
    monkeypatch.setenv("UV_CACHE_DIR", run([uvx.with_name("uv"), "cache", "dir"], Path.home()).strip())
    source = f"{PROJECT['name']}[server] @ {wheel.as_uri()}"
    command = [str(uvx), "--quiet", "--constraints", str(CONSTRAINTS), "--from", source, "cstp"]
    install([*command, "version"], empty)
    serves_from(command, empty, monkeypatch)
