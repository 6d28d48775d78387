"""Hosts are told where to get tokens, and JWTs of such an issuer identify them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from cstp_grpc.agents.mcp_server.http_transport import HttpOptions
from tests.agents.mcp_server.hosts import SECONDS, serving_http
from tests.agents.mcp_server.test_http import post
from tests.harness import running, settings
from tests.server.identity.issuer import AUDIENCE, ISSUER, Issuer, serving_issuer

RESOURCE = "https://mcp.example.com/mcp"
METADATA = "/.well-known/oauth-protected-resource/mcp"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with serving_issuer() as issuer:
        yield issuer


@pytest.fixture
def target(tmp_path: Path, issuer: Issuer) -> Iterator[str]:
    known = {"issuer": ISSUER, "audience": [AUDIENCE], "jwks_url": issuer.url}
    with running(settings(tmp_path, auth={"jwt": [known]})) as app:
        yield app.target


def test_a_host_finds_the_issuer_and_is_let_in_with_its_token(target: str, issuer: Issuer) -> None:
    options = HttpOptions(public_url=RESOURCE, authorization_servers=[ISSUER])
    with serving_http(target, options) as url:
        refused = post(url, token=None)
        assert refused.status_code == 401
        assert f'resource_metadata="https://mcp.example.com{METADATA}"' in refused.headers["www-authenticate"]
        described = httpx2.get(url.removesuffix("/mcp") + METADATA, timeout=SECONDS).json()
        assert described["resource"] == RESOURCE
        assert described["authorization_servers"] == [ISSUER]
        assert post(url, token=issuer.token()).status_code == 200
        assert post(url, token=issuer.token(aud="another")).status_code == 401


def test_without_an_issuer_nothing_is_published(target: str) -> None:
    with serving_http(target) as url:
        assert "resource_metadata" not in post(url, token=None).headers["www-authenticate"]
        assert httpx2.get(url.removesuffix("/mcp") + METADATA, timeout=SECONDS).status_code == 404
