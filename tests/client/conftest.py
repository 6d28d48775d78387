from __future__ import annotations

import shutil
import socket

import pytest

from tests.client.certificates import Certificate, make_certificate


@pytest.fixture
def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    return port


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate for localhost."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make a certificate")
    return make_certificate(tmp_path_factory.mktemp("tls"))
