"""Limits that servers share in Redis, and what holds while it is gone."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.harness import GrpcCaller, bridging, running, settings
from tests.server.test_rate_limit_headers import post
from tests.waiting import wait_until

REDIS = shutil.which("redis-server")
pytestmark = pytest.mark.skipif(REDIS is None, reason="redis-server is not installed")

LIMIT = 3
METHOD = "cstp.getAccess"
PASSWORD = "a-password-of-redis"


@contextmanager
def redis_server(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Redis in a folder for the length of a block."""
    folder.mkdir(exist_ok=True)
    options = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--requirepass",
        PASSWORD,
        "--dir",
        str(folder),
    ]
    process = subprocess.Popen([str(REDIS), *options], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if b"Ready to accept connections" in line:
                break
        else:
            raise RuntimeError(f"Redis did not start: exit code {process.wait()}")
        yield process
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def limits(port: int, **redis: Any) -> Mapping[str, Any]:
    """Return settings of three calls an hour that are shared at a port."""
    shared = {"url": f"redis://:{PASSWORD}@127.0.0.1:{port}/0", "timeout_seconds": 2, **redis}
    return {"rate_limits": {"enabled": True, "methods": {METHOD: f"{LIMIT}/hour"}, "redis": shared}}


@contextmanager
def two_servers(folder: Path, wanted: Mapping[str, Any]) -> Iterator[tuple[GrpcCaller, GrpcCaller]]:
    """Run two servers, each with a database of its own, and yield a caller of each."""
    with (
        running(settings(folder / "one", **wanted)) as one,
        running(settings(folder / "other", **wanted)) as other,
        closing(GrpcCaller(one.target)) as first,
        closing(GrpcCaller(other.target)) as second,
    ):
        yield first, second


def reasons(caller: GrpcCaller, calls: int) -> list[str | None]:
    """Call as often as told, and return the reason of each failure."""
    return [caller.call(METHOD, {}).reason for _ in range(calls)]


def is_admitted(caller: GrpcCaller) -> bool:
    return reasons(caller, 1) == [None]


def test_a_limit_is_that_of_all_servers_together(tmp_path: Path, free_port: int) -> None:
    port = free_port
    with redis_server(tmp_path / "redis", port), two_servers(tmp_path, limits(port)) as (first, second):
        assert reasons(first, 2) == [None, None]
        assert reasons(second, 2) == [None, "RATE_LIMITED"]
        assert reasons(first, 1) == ["RATE_LIMITED"]
        assert first.call(METHOD, {}, "bob-secret-token").reason is None, "each agent has a limit of its own"


def test_without_redis_each_server_counts_by_itself_until_it_is_back(tmp_path: Path, free_port: int) -> None:
    port = free_port
    with two_servers(tmp_path, limits(port)) as (first, second):
        assert reasons(first, LIMIT + 1) == [None] * LIMIT + ["RATE_LIMITED"]
        assert reasons(second, LIMIT + 1) == [None] * LIMIT + ["RATE_LIMITED"]
        with redis_server(tmp_path / "redis", port):
            for caller in (first, second):
                wait_until(partial(is_admitted, caller), "Redis is asked again")
            assert reasons(first, 2) == [None, "RATE_LIMITED"]
            assert reasons(second, 1) == ["RATE_LIMITED"], "the limit is shared again"
        assert reasons(first, 1) == ["RATE_LIMITED"], "it is not unlimited when Redis is gone again"


def test_the_answer_tells_what_is_left_of_a_shared_limit(tmp_path: Path, free_port: int) -> None:
    wanted = settings(tmp_path / "data", **limits(free_port))
    with redis_server(tmp_path / "redis", free_port), running(wanted) as app, bridging(wanted, app.target) as url:
        told = [post(url, METHOD)[1] for _ in range(LIMIT + 1)]
    assert [headers["RateLimit-Remaining"] for headers in told] == ["2", "1", "0", "0"]


def test_calls_are_refused_without_redis_if_so_configured(tmp_path: Path, free_port: int) -> None:
    port = free_port
    with (
        running(settings(tmp_path / "data", **limits(port, on_failure="refuse"))) as app,
        closing(GrpcCaller(app.target)) as caller,
    ):
        outcome = caller.call(METHOD, {})
        assert outcome.reason == "UNAVAILABLE"
        assert PASSWORD not in outcome.message


def test_a_redis_that_is_silent_holds_no_call_up(tmp_path: Path, free_port: int) -> None:
    port = free_port
    with (
        redis_server(tmp_path / "redis", port) as process,
        two_servers(tmp_path, limits(port, timeout_seconds=0.05)) as (
            first,
            _,
        ),
    ):
        assert reasons(first, 1) == [None]
        process.send_signal(19)
        try:
            assert reasons(first, LIMIT + 1) == [None] * LIMIT + ["RATE_LIMITED"]
        finally:
            process.send_signal(18)
