"""Redis at the start of a server: its password must be right, and it may be away."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.platform.config import ConfigError
from tests.cli.conftest import Invoke, home, invoke
from tests.harness import running, settings
from tests.redis_stub import redis_with_password

__all__ = ["home", "invoke"]


def shared_limits(port: int, password: str = "right") -> dict[str, Any]:
    """Return the settings of rate limits that are shared in a Redis."""
    redis = {"url": f"redis://:{password}@127.0.0.1:{port}/0", "timeout_seconds": 5}
    return {"rate_limits": {"enabled": True, "redis": redis}}


def test_a_wrong_password_of_redis_prevents_the_start(tmp_path: Path) -> None:
    with (
        redis_with_password("right") as port,
        pytest.raises(ConfigError, match=r"^rate_limits.redis.url: Redis refuses its user or password$"),
        running(settings(tmp_path / "data", **shared_limits(port, "wrong"))),
    ):
        pass


def test_serve_names_the_wrong_password_in_one_line(home: Path, invoke: Invoke) -> None:
    with redis_with_password("right") as port:
        variables = {"CSTP_RATE_LIMITS__REDIS__URL": f"redis://:wrong@127.0.0.1:{port}/0", "CSTP_GRPC__PORT": "0"}
        result = invoke("serve", "--dev", "--no-bridge", env=variables)
    assert result.exit_code == 1
    assert result.stderr.endswith("Error: rate_limits.redis.url: Redis refuses its user or password\n")
    assert "wrong" not in result.output


def test_a_redis_that_is_away_is_a_warning(tmp_path: Path, free_port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), running(settings(tmp_path, **shared_limits(free_port))):
        pass
    assert any("Redis does not answer, so rate limits are not shared" in each for each in caplog.messages)


def test_a_redis_that_answers_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        redis_with_password("right") as port,
        running(settings(tmp_path, **shared_limits(port))),
    ):
        pass
    assert not any("Redis" in each for each in caplog.messages)
