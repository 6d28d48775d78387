"""The clients of A2A that cannot be installed beside ours: for JavaScript, for Python 0.3, and of agent frameworks."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

TESTS = Path(__file__).parents[2]
JS_SOURCE = TESTS / "a2a_js"
JS_PACKAGE = ("package.json", "package-lock.json", ".npmrc")
JS_SESSIONS = ("session.mjs", "discovery.mjs", "verify.mjs")
PYTHON_SOURCE = TESTS / "a2a_v0_3"
FRAMEWORKS_SOURCE = TESTS / "a2a_frameworks"
NODE_DEMANDED_BY = ("CI", "REQUIRE_NODE")
PYTHON_DEMANDED_BY = ("CI", "REQUIRE_A2A_0_3")
FRAMEWORKS_DEMANDED_BY = ("REQUIRE_A2A_FRAMEWORKS",)
"""If one of these is set in the environment, the tests that need the client fail instead of being skipped."""
NPM_INSTALL = (
    *("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"),
    *("--fetch-retries=2", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000", "--fetch-timeout=20000"),
)
PIP_INSTALL = (
    *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"),
    *("--only-binary", ":all:", "--retries", "2", "--timeout", "20"),
)
INSTALL_SECONDS = 180.0
SESSION_SECONDS = 60.0


def run_command(
    command: Sequence[str], folder: Path, seconds: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder and return what came of it."""
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def plain_http(**options: Any) -> httpx.AsyncClient:
    """Return a client for servers without TLS: to load the authorities of the system takes 30 ms for each client."""
    return httpx.AsyncClient(verify=False, **options)


def skip_or_fail(reason: str, demanded_by: Sequence[str]) -> NoReturn:
    """Skip for a reason, or fail for it if the tests are demanded."""
    if any(os.environ.get(name) for name in demanded_by):
        pytest.fail(reason)
    pytest.skip(reason)


def install_js_sdk(folder: Path) -> None:
    """Put the sessions in JavaScript into a folder, with both generations of the client, kept as that of Python is."""
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            skip_or_fail(f"{command} is not installed", NODE_DEMANDED_BY)
    for name in (*JS_PACKAGE, *JS_SESSIONS):
        shutil.copyfile(JS_SOURCE / name, folder / name)

    def install_into(target: Path) -> None:
        for name in JS_PACKAGE:
            shutil.copyfile(JS_SOURCE / name, target / name)
        install(NPM_INSTALL, target, NODE_DEMANDED_BY)

    kept = install_once("a2a-js", JS_SOURCE / "package-lock.json", install_into)
    (folder / "node_modules").symlink_to(kept / "node_modules")


def install_python_sdk_v0_3() -> Path:
    """Return a folder with the Python client of 0.3."""
    requirements = PYTHON_SOURCE / "requirements.txt"

    def install_into(target: Path) -> None:
        install((*PIP_INSTALL, "--target", str(target), "-r", str(requirements)), PYTHON_SOURCE, PYTHON_DEMANDED_BY)

    return install_once("a2a-v0.3", requirements, install_into)


def install_frameworks() -> Path:
    """Return a folder with the agent frameworks that call A2A agents."""
    requirements = FRAMEWORKS_SOURCE / "requirements.txt"

    def install_into(target: Path) -> None:
        command = (*PIP_INSTALL, "--target", str(target), "-r", str(requirements))
        install(command, FRAMEWORKS_SOURCE, FRAMEWORKS_DEMANDED_BY)

    return install_once("a2a-frameworks", requirements, install_into)


def install_once(name: str, versions: Path, install_into: Callable[[Path], None]) -> Path:
    """Return a folder in the environment of the tests with what is installed there once for the versions in a file."""
    digest = hashlib.sha256(versions.read_bytes()).hexdigest()[:16]
    kept = Path(sys.prefix) / f"{name}-{digest}"
    if kept.is_dir():
        return kept
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=sys.prefix) as unfinished:
        target = Path(unfinished) / "packages"
        target.mkdir()
        install_into(target)
        try:
            target.rename(kept)
        except OSError:
            # Another process of the tests was faster.
            assert kept.is_dir()
    return kept


def install(command: Sequence[str], folder: Path, demanded_by: Sequence[str]) -> None:
    """Run the command of a package manager; skip, or fail, if it does not succeed."""
    name = "npm" if command[0] == "npm" else "pip"
    try:
        installed = run_command(command, folder, INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        skip_or_fail(f"{name} took more than {INSTALL_SECONDS:g} seconds", demanded_by)
    if installed.returncode != 0:
        skip_or_fail(f"{name} failed: {installed.stderr.strip()}", demanded_by)


def run_python_v0_3(packages: Path, script: str, *arguments: str, **environment: str) -> str:
    """Run a script of tests/a2a_v0_3 with the client of 0.3 and nothing of our own; return what it prints."""
    command = (sys.executable, "-S", str(PYTHON_SOURCE / script), *arguments)
    done = run_command(command, PYTHON_SOURCE, SESSION_SECONDS, PYTHONPATH=str(packages), **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
