"""What the guides in docs/ show, and a developer's folder in which it is tried."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOUND = 60.0
"""Seconds after which something that should have happened has not."""
SMALL = {"CSTP_EMBEDDING__PROVIDER": "lexical", "CSTP_INDEX__MODE": "off"}
"""Settings that keep a server of a test small."""


def guide(name: str) -> str:
    """Return the text of a guide."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of a guide in a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def exchanges(session: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a session, which may have several lines of its own, and what it prints."""
    for exchange in re.split(r"(?m)^\$ ", session)[1:]:
        command, _, printed = exchange.partition("\n")
        yield command, printed


def surroundings(folder: Path, **settings: str) -> dict[str, str]:
    """Return the environment of a developer who has configured nothing else; the command is in the folder."""
    command = folder / "cstp"
    if not command.exists():
        command.symlink_to(ROOT / "scripts" / "cstp.sh")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CSTP_")}
    return {**kept, **settings, "HOME": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}


def run(command: str, folder: Path, environment: Mapping[str, str], *, check: bool = True) -> str:
    """Run a command as a shell does, and return what it prints."""
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=BOUND,
        check=check,
    ).stdout


@contextmanager
def serving(folder: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[None]:
    """Run `cstp serve` for the length of a block."""
    command = [sys.executable, "-m", "cstp_grpc", "serve", *arguments, "--no-bridge"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            assert any("Ctrl-C stops everything." in line for line in server.stdout)
            yield
        finally:
            server.terminate()
            assert server.wait(BOUND) == 0
