from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cstp_grpc.platform.config import ServerSettings, Settings
from tests.bridge.a2a.bindings import BINDINGS, Binding, connected
from tests.bridge.a2a.products import MAX_BATCH, MAX_BODY_BYTES, Product, serving
from tests.bridge.a2a.raw import Core, Raw, raw_client
from tests.bridge.a2a.sdks import install_js_sdk, install_python_sdk_v0_3
from tests.bridge.support import Scripted
from tests.harness import Peers, peering


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


@pytest.fixture(scope="package")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A server that may notify this machine, with two bridges before it."""
    limits = {"port": 0, "max_batch": MAX_BATCH, "max_body_bytes": MAX_BODY_BYTES}
    with serving(tmp_path_factory.mktemp("a2a"), server=limits, a2a={"push": {"allow_loopback": True}}) as found:
        yield found


@pytest.fixture(scope="package")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A product that talks only to those who activate the extension."""
    with serving(tmp_path_factory.mktemp("strict"), a2a={"require_extension": True}) as found:
        yield found


@pytest.fixture
def peers(product: Product) -> Peers:
    """The first bridge of the product."""
    return product.bridges[0]


@pytest.fixture
def raw(product: Product) -> Raw:
    """The first bridge of the product, for single requests over HTTP."""
    return product.raw


@pytest.fixture(params=BINDINGS, ids=lambda kind: kind.__name__)
def binding(request: pytest.FixtureRequest, product: Product) -> Binding:
    """Each binding of the product's first bridge; a test of fewer of them is parametrised with their classes."""
    return product.binding(request.param)


@pytest.fixture
def wanted(product: Product) -> Settings:
    """The settings of the product."""
    return product.settings


@pytest.fixture
def core(product: Product) -> str:
    """Where the server of the product is."""
    return product.core.target


@pytest.fixture(scope="package")
def scripted_peers(shared: tuple[Scripted, str]) -> Iterator[Peers]:
    """A bridge before the scripted server, which pages of one origin may call."""
    limits = ServerSettings(port=0, timeout_seconds=15, cors_origins=["https://page.example"])
    with peering(Settings.model_validate({"server": limits, "a2a": {"grpc_port": 0}}), shared[1]) as found:
        yield found


@pytest.fixture(params=BINDINGS, ids=lambda kind: kind.__name__)
def scripted(request: pytest.FixtureRequest, scripted_peers: Peers, script: Core) -> Iterator[Binding]:
    """Each binding of the bridge before the scripted server."""
    with connected(request.param, scripted_peers) as found:
        yield found


@pytest.fixture
def scripted_raw(scripted_peers: Peers, script: Core) -> Raw:
    """The bridge before the scripted server, for single requests over HTTP."""
    return raw_client(scripted_peers)
