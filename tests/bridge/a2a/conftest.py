from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cstp_grpc.config import Settings
from tests.bridge.a2a.sdks import install_js_sdk, install_python_sdk_v0_3
from tests.harness import running, settings


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


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return settings(tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module")
def core(wanted: Settings) -> Iterator[str]:
    with running(wanted) as app:
        yield f"127.0.0.1:{app.port}"
