"""What docs/a2a.md says of paths."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

from tests.harness import TIMEOUT, Peers
from tests.snippets import ROOT

GUIDE = (ROOT / "docs" / "a2a.md").read_text(encoding="utf-8")


def test_the_paths_of_the_guide_are_served(peers: Peers) -> None:
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
