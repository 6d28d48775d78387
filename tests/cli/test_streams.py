"""What commands do where standard output takes no more, where it knows few letters, and about what is no text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Server
from tests.harness import TOKENS

FULL = Path("/dev/full")


def run(
    server: Server, *arguments: str | bytes, url: str = "", redirect: str = "", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a process, through a shell that redirects its output."""
    command = [sys.executable, "-m", "cstp_grpc", *arguments, "--agent", url or server.url, "--token", TOKENS["alice"]]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirect}', "sh", *command],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_told(server: Server, options: list[str]) -> None:
    server.ok("record", "Use a queue")
    result = run(server, "list", *options, redirect=f"> {FULL}")
    assert result.returncode == 1
    assert b"standard output: No space left on device" in result.stderr
    assert b"Traceback" not in result.stderr


def test_a_closed_output_is_like_none(server: Server) -> None:
    result = run(server, "record", "Use a queue", redirect=">&-")
    assert (result.returncode, result.stderr) == (0, b"")
    assert "Use a queue" in server.ok("list")


def test_letters_that_the_output_does_not_know_are_replaced(server: Server) -> None:
    server.ok("record", "Füge 日本 hinzu")
    result = run(server, "list", PYTHONIOENCODING="latin-1")
    assert (result.returncode, result.stderr) == (0, b"")
    assert "Füge ?? hinzu" in result.stdout.decode("latin-1")


def test_json_is_whole_whatever_letters_the_output_knows(server: Server) -> None:
    server.ok("record", "Füge 日本 hinzu")
    result = run(server, "list", "--json", PYTHONIOENCODING="latin-1")
    assert json.loads(result.stdout.decode("latin-1"))["decisions"][0]["title"] == "Füge 日本 hinzu"


def test_an_argument_that_is_no_text_is_refused(server: Server) -> None:
    result = run(server, "query", b"caf\xe9")
    assert result.returncode == 1
    assert b"query: must be valid Unicode" in result.stderr
    assert b"Traceback" not in result.stderr


@pytest.mark.parametrize(("environment", "told"), [({}, False), ({"GRPC_VERBOSITY": "info"}, True)], ids=["no", "yes"])
def test_the_log_of_grpc_is_for_those_who_ask_for_it(server: Server, environment: dict[str, str], told: bool) -> None:
    # The server speaks no TLS, so that gRPC logs each handshake.
    result = run(server, "list", url=server.url.replace("grpc://", "grpcs://"), **environment)
    assert result.returncode == 1
    assert b"It does not speak TLS" in result.stderr
    assert (b"ssl_transport_security" in result.stderr) is told
