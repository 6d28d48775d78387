"""Programs of others that look at what is in `deploy/`."""

from __future__ import annotations

import os
import shutil

import pytest

REQUIRED = "REQUIRE_DEPLOY_TOOLS"


def require_tool(name: str) -> str:
    """Return the path of a program; skip the test without it, or fail if CI must have it."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is not None:
        return found
    reason = f"{name} is not installed: make test-deploy installs what the package index has"
    if os.environ.get(REQUIRED):
        pytest.fail(reason)
    pytest.skip(reason)
