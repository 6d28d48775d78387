"""The session of docs/a2a.md, as it is written there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.guides import blocks, guide
from tests.harness import TIMEOUT, TOKENS, peering, running, settings

GUIDE = guide("a2a.md")


def block(language: str) -> str:
    """Return the one block of the guide in a language."""
    (found,) = blocks(GUIDE, language)
    return found


def test_the_session_of_the_guide_prints_what_the_guide_says(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    with running(wanted) as app, peering(wanted, app.target) as peers:
        session = subprocess.run(
            [sys.executable, "-c", block("python")],
            env={**os.environ, "CSTP_URL": peers.url, "CSTP_TOKEN": TOKENS["alice"]},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=TIMEOUT * 3,
            check=False,
        )
    assert session.returncode == 0, session.stderr
    assert session.stdout == block("text")


def test_the_paths_of_the_guide_are_served(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    with running(wanted) as app, peering(wanted, app.target) as peers:
        for method, path in re.findall(r"`(GET|POST) (/[^`]*)`", GUIDE):
            assert status_of(method, peers.url + path) in (200, 401), path


def status_of(method: str, url: str) -> int:
    """Return the HTTP status of a request without a token."""
    body = b"{}" if method == "POST" else None
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
