"""Settings that would quietly not mean what they say keep the server from starting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.config import ConfigError
from cstp_grpc.server.app import App
from tests.harness import settings

TWINS = [{"name": name, "token": "the-same-token"} for name in ("alice", "bob")]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"auth": {"tokens": TWINS}}, "auth.tokens: alice and bob have the same token"),
        (
            {"rate_limits": {"enabled": True, "methods": {"cstp.anounceIntent": "1/minute"}}},
            "rate_limits.methods: there is no method cstp.anounceIntent",
        ),
        ({"rate_limits": {"enabled": True, "per_agent": "0/minute"}}, "rate_limits.per_agent"),
        ({"auth": {"enabled": False}, "grpc": {"host": "0.0.0.0"}}, "auth.enabled: false is accepted on loopback only"),
        ({"auth": {"enabled": False}, "server": {"host": "::"}}, "auth.enabled: false is accepted on loopback only"),
    ],
    ids=["same token", "unknown method", "no calls at all", "open gRPC", "open bridge"],
)
def test_it_is_named(tmp_path: Path, overrides: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        App(settings(tmp_path / "data", **overrides)).stop()
    assert problem in str(raised.value)
    assert "the-same-token" not in str(raised.value)
    assert not (tmp_path / "data").exists()
