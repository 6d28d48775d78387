from __future__ import annotations

from pathlib import Path

import pytest

from tests.bridge.a2a.sdks import install_js_sdk, install_python_sdk_v0_3


@pytest.fixture(scope="session")
def js_sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sessions in JavaScript and both generations of the official client."""
    folder = tmp_path_factory.mktemp("a2a_js")
    install_js_sdk(folder)
    return folder


@pytest.fixture(scope="session")
def python_sdk_v0_3() -> Path:
    """A folder with the official Python client of A2A 0.3."""
    return install_python_sdk_v0_3()
