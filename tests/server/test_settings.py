"""Settings that would quietly not mean what they say keep the server from starting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.platform.config import ConfigError
from cstp_grpc.server.app import App
from tests.harness import settings

MISSING = Path(__file__).parent / "no-such-folder"
TWINS = [{"name": name, "token": "the-same-token"} for name in ("alice", "bob")]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"auth": {"tokens": TWINS}}, "auth.tokens: alice and bob have the same token"),
        (
            {"auth": {"tokens": [{"name": "alice", "token": "short"}]}},
            "auth.tokens.0.token: must have at least 8 characters",
        ),
        (
            {"auth": {"tokens": [{"name": "intent-layer", "token": "the-same-token"}]}},
            "auth.tokens: no agent may be called intent-layer",
        ),
        (
            {"rate_limits": {"enabled": True, "methods": {"cstp.anounceIntent": "1/minute"}}},
            "rate_limits.methods: there is no method cstp.anounceIntent",
        ),
        ({"rate_limits": {"enabled": True, "per_agent": "0/minute"}}, "rate_limits.per_agent"),
        ({"auth": {"enabled": False}, "grpc": {"host": "0.0.0.0"}}, "auth.enabled: false is accepted on loopback only"),
        (
            {"intent_layer": {"projects": [{"name": "shop", "root": str(MISSING)}]}},
            f"intent_layer.projects.0.root: {MISSING} is no folder",
        ),
        (
            {"intent_layer": {"projects": [{"name": "shop", "root": __file__}]}},
            f"intent_layer.projects.0.root: {__file__} is no folder",
        ),
        (
            {"intent_layer": {"projects": [{"name": "shop", "root": "."}, {"name": "shop", "root": "/"}]}},
            "intent_layer.projects: named twice: shop",
        ),
        (
            {"intent_layer": {"projects": [{"name": "the shop", "root": "."}]}},
            "intent_layer.projects.0.name: String should match pattern",
        ),
        ({"intent_layer": {"duplicate_threshold": 0}}, "intent_layer.duplicate_threshold"),
        ({"intent_layer": {"refresh_seconds": 0}}, "intent_layer.refresh_seconds"),
        ({"auth": {"enabled": False}, "server": {"host": "::"}}, "auth.enabled: false is accepted on loopback only"),
        ({"auth": {"enabled": False}, "serve": {"behind_proxy": True}}, "but serve.behind_proxy is true"),
    ],
    ids=[
        "same token",
        "short token",
        "name of our own",
        "unknown method",
        "no calls at all",
        "open gRPC",
        "missing project",
        "project that is a file",
        "two projects of a name",
        "project with a space",
        "duplicates of no likeness",
        "refreshed all the time",
        "open bridge",
        "open to callers of a proxy",
    ],
)
def test_it_is_named(tmp_path: Path, overrides: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        App(settings(tmp_path / "data", **overrides)).stop()
    assert problem in str(raised.value)
    assert "the-same-token" not in str(raised.value)
    assert not (tmp_path / "data").exists()
