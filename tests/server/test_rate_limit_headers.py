"""What answers tell of rate limits, over HTTP and over gRPC."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
from hypothesis import example, given
from hypothesis import strategies as st

from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.server.interceptors.rate_limits import MovingWindows, window_value_count
from tests.harness import TIMEOUT, TOKENS, bridging, running, settings

METHOD = "cstp.getAccess"
LIMITS = {"enabled": True, "methods": {METHOD: "2/hour", "cstp.listGuardrails": "9/hour"}}


def post(url: str, *methods: str, notify: bool = False) -> tuple[int, Mapping[str, str]]:
    """Call or notify methods, several as a batch, and return the status and the headers of the answer."""
    calls = [{"jsonrpc": "2.0", "method": method, "params": {}, **({} if notify else {"id": 1})} for method in methods]
    body = json.dumps(calls if len(calls) > 1 else calls[0]).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKENS['alice']}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url + "/cstp", body, headers), timeout=TIMEOUT) as answer:
            return answer.status, dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers)


def limit_headers(headers: Mapping[str, str]) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if name.startswith("RateLimit-")}


def test_answers_over_http_tell_the_limit_and_what_is_left_of_it(tmp_path: Path) -> None:
    wanted = settings(tmp_path / "data", rate_limits=LIMITS)
    with running(wanted) as app, bridging(wanted, app.target) as url:
        status, headers = post(url, METHOD)
        told = limit_headers(headers)
        assert 3590 <= int(told.pop("RateLimit-Reset")) <= 3600
        assert (status, told) == (
            200,
            {"RateLimit-Limit": "2", "RateLimit-Remaining": "1", "RateLimit-Policy": "2;w=3600"},
        )
        assert limit_headers(post(url, METHOD)[1])["RateLimit-Remaining"] == "0"
        status, headers = post(url, METHOD)
        assert (status, headers["RateLimit-Remaining"]) == (429, "0")
        assert 3590 <= int(headers["Retry-After"]) <= 3600


def test_a_batch_tells_the_limit_of_which_least_is_left(tmp_path: Path) -> None:
    wanted = settings(tmp_path / "data", rate_limits=LIMITS)
    with running(wanted) as app, bridging(wanted, app.target) as url:
        _, headers = post(url, "cstp.listGuardrails", METHOD, "cstp.listGuardrails")
    assert (headers["RateLimit-Limit"], headers["RateLimit-Remaining"]) == ("2", "1")


def test_answers_to_notifications_tell_it_too(tmp_path: Path) -> None:
    wanted = settings(tmp_path / "data", rate_limits=LIMITS)
    with running(wanted) as app, bridging(wanted, app.target) as url:
        for methods, remaining in ([METHOD], "1"), (["cstp.listGuardrails", METHOD], "0"):
            status, headers = post(url, *methods, notify=True)
            assert (status, headers["RateLimit-Limit"], headers["RateLimit-Remaining"]) == (204, "2", remaining)


def test_the_limit_of_all_agents_is_told_if_less_is_left_of_it(tmp_path: Path) -> None:
    wanted = settings(tmp_path / "data", rate_limits={**LIMITS, "overall": "5/minute"})
    with running(wanted) as app, bridging(wanted, app.target) as url:
        assert post(url, METHOD)[1]["RateLimit-Policy"] == "2;w=3600"
        assert post(url, "cstp.listGuardrails")[1]["RateLimit-Policy"] == "5;w=60"


def test_nothing_is_told_without_limits(tmp_path: Path) -> None:
    wanted = settings(tmp_path / "data")
    with running(wanted) as app, bridging(wanted, app.target) as url:
        assert not limit_headers(post(url, METHOD)[1])


def test_answers_over_grpc_tell_it_in_trailing_metadata(tmp_path: Path) -> None:
    rpc = contract_methods()[METHOD]
    metadata = (("authorization", f"Bearer {TOKENS['alice']}"),)
    with (
        running(settings(tmp_path / "data", rate_limits=LIMITS)) as app,
        grpc.insecure_channel(app.target) as channel,
    ):
        invoke: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(rpc.path)
        _, call = invoke.with_call(b"", metadata=metadata, timeout=TIMEOUT)
    told = dict(call.trailing_metadata())
    assert (told["ratelimit-limit"], told["ratelimit-remaining"], told["ratelimit-policy"]) == ("2", "1", "2;w=3600")
    assert "x-request-id" in told


@example(1, [0, 10])
@given(st.integers(1, 7), st.lists(st.floats(0, 6) | st.integers(0, 6), max_size=40))
def test_what_is_left_is_what_a_window_still_admits(most: int, pauses: list[float]) -> None:
    now, seconds, admitted = [1_000.0], 10, list[float]()
    windows = MovingWindows(window_value_count(most), clock=lambda: now[0])
    for pause in pauses:
        now[0] += pause
        counted = [at for at in admitted if at >= now[0] - seconds]
        assert (windows.take(0, most, seconds) is None) == (len(counted) < most)
        if len(counted) < most:
            admitted.append(now[0])
            counted.append(now[0])
        assert windows.usage(0, most, seconds) == (len(counted), counted[0] + seconds - now[0])
