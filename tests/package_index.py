"""What tests do that install from a package index where none answers."""

from __future__ import annotations

import os
from typing import Final

import pytest

DEMANDED_BY: Final = ("CI", "REQUIRE_PACKAGE_INDEX")
"""If one of these is set in the environment, such tests fail instead of being skipped."""
UNREACHABLE_SIGNS: Final = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "dns error")
"""How pip and uv say that they do not reach an index."""


def skip_where_unreachable(exit_code: int, printed: str) -> None:
    """Skip the test if an installation failed for want of an index, or fail it where it is demanded."""
    if exit_code == 0 or not any(sign in printed for sign in UNREACHABLE_SIGNS):
        return
    reason = f"no package index answers: {printed.strip()}"
    if any(os.environ.get(name) for name in DEMANDED_BY):
        pytest.fail(reason)
    pytest.skip(reason)
