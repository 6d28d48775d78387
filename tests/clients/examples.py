"""The programs in examples/ that announce, check and record, in TypeScript and Go.

`python -m tests.clients` runs it for the languages that there are tools for; test_examples.py has the one in Python.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.harness import TOKENS, running, settings
from tests.installations import ROOT

EXAMPLES = ROOT / "examples"
CLIENTS = ROOT / "clients"
SECONDS = 300.0
REVIEW_MISSING = ["blocked: Production changes require completed code review"]


def check_example(command: Sequence[str], folder: Path) -> None:
    """Run a program against a server of its own: blocked, then recorded, then with the similar decision found."""
    with running(settings(folder / "data")) as app:

        def run(*arguments: str) -> tuple[int, list[str]]:
            environment = {**os.environ, "CSTP_TARGET": f"grpc://{app.target}", "CSTP_TOKEN": TOKENS["alice"]}
            done = subprocess.run(
                [*command, *arguments],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,
            )
            assert not done.stderr, done.stderr
            return done.returncode, done.stdout.splitlines()

        assert run() == (3, REVIEW_MISSING)
        code, (recorded,) = run("reviewed")
        assert code == 0
        assert re.fullmatch(r"recorded: dec-[0-9a-f]+", recorded)
        code, (similar, again) = run("reviewed")
        assert (code, similar) == (0, "similar: Deploy the auth service to production")
        assert again.startswith("recorded: ")
        assert again != recorded


def test_the_typescript_example(tmp_path: Path) -> None:
    client = CLIENTS / "typescript"
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "cstp-client").symlink_to(client)
    (tmp_path / "package.json").write_text(json.dumps({"type": "module"}))
    shutil.copy(EXAMPLES / "announce.ts", tmp_path)
    options = ["--module", "nodenext", "--target", "es2022", "--strict", "--skipLibCheck", "--types", "node"]
    types = ["--typeRoots", str(client / "node_modules" / "@types")]
    compiled = subprocess.run(
        [client / "node_modules" / ".bin" / "tsc", *options, *types, "announce.ts"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert compiled.returncode == 0, compiled.stdout
    check_example(["node", "announce.js"], tmp_path)


def test_the_go_example(tmp_path: Path) -> None:
    client = CLIENTS / "go"
    shutil.copy(client / "go.sum", tmp_path)
    shutil.copy(EXAMPLES / "announce.go", tmp_path)
    (tmp_path / "go.mod").write_text(f"module announce\n\ngo 1.24\n\nreplace example.org/cstp => {client}\n")
    for command in (["mod", "tidy"], ["vet", "."], ["build", "-o", "announce"]):
        done = subprocess.run(
            ["go", *command],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stdout
    formatted = subprocess.run(["gofmt", "-l", "announce.go"], cwd=tmp_path, stdout=subprocess.PIPE, check=True)
    assert formatted.stdout == b""
    check_example([str(tmp_path / "announce")], tmp_path)
