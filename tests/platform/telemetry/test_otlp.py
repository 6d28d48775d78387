"""Traces and metrics over OTLP, as a collector gets them."""

from __future__ import annotations

import itertools
import json
import logging
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.contract.json_codec import from_json
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.platform.config import OtlpSettings
from cstp_grpc.server.app import App
from tests.certificates import Certificate
from tests.client.a2a_agent import Agent, running_agent
from tests.harness import TIMEOUT, TOKENS, GrpcCaller, bridging, running, settings
from tests.modules.federation.agents import PEER_TOKEN, agent_settings, peer
from tests.platform.telemetry.collector import Collected, collecting
from tests.platform.telemetry.scraping import fetch_text
from tests.waiting import wait_until

numbers = itertools.count(1)
PARENT = "00f067aa0ba902b7"
SECRET = "zebra-in-the-garden"
CHECK = "cstp.v1.CstpService/CheckGuardrails"


def new_trace() -> str:
    return f"{next(numbers):032x}"


@dataclass(frozen=True)
class Traced:
    """A server that sends to a collector."""

    app: App
    caller: GrpcCaller
    collected: Collected

    def call(self, method: str, trace_id: str, token: str = TOKENS["alice"], flags: str = "01", **params: Any) -> None:
        """Call a method as a part of a trace, whatever comes of it."""
        rpc = contract_methods()[method]
        metadata = (("traceparent", f"00-{trace_id}-{PARENT}-{flags}"), ("authorization", f"Bearer {token}"))
        invoke = self.caller.channel.unary_unary(rpc.path, rpc.request.SerializeToString, rpc.response.FromString)
        invoke.future(from_json(params, rpc.request), timeout=TIMEOUT, metadata=metadata).exception()


def share_context(guide: App, collected: Collected, trace_id: str) -> None:
    """Share a context with the liaison agent of a pillar, as a part of a trace."""
    with closing(GrpcCaller(guide.target)) as caller:
        Traced(guide, caller, collected).call(
            "liaison.shareContextToAgent",
            trace_id,
            source_agent="guide",
            target_agent="liaison_files",
            shared_context={"note": SECRET},
        )


def sends_to(collected: Collected, **more: Any) -> dict[str, Any]:
    """Return the settings of what is sent to a collector."""
    return {
        "endpoint": collected.url,
        "headers": {"X-Token": "of-the-collector"},
        "traces_seconds": 0.05,
        "metrics_seconds": 0.05,
        **more,
    }


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    """A server that sends traces and metrics, and serves metrics too."""
    with ExitStack() as opened:
        collected = opened.enter_context(collecting())
        wanted = settings(tmp_path_factory.mktemp("traced"), otlp=sends_to(collected), metrics={"port": 0})
        app = opened.enter_context(running(wanted))
        caller = GrpcCaller(app.target)
        opened.callback(caller.close)
        yield Traced(app, caller, collected)


def test_a_call_is_a_part_of_the_trace_of_its_caller(traced: Traced) -> None:
    trace_id = new_trace()
    traced.call("cstp.checkGuardrails", trace_id, action={"description": SECRET})
    call = traced.collected.wait_for(CHECK, trace_id)
    assert (call.parent_id, call.service, call.program, call.is_error) == (PARENT, "cstp", "server", False)
    assert call.attributes["rpc.grpc.status_code"] == "OK"
    assert call.attributes["cstp.agent"] == "alice"
    for name in ("judge", "write"):
        assert traced.collected.wait_for(name, trace_id).parent_id == call.span_id
    assert traced.collected.headers[0]["x-token"] == "of-the-collector"
    assert SECRET not in repr(traced.collected.spans)


def test_an_announcement_shows_its_parts(traced: Traced) -> None:
    trace_id = new_trace()
    text = f"{SECRET} {trace_id}"
    traced.call("cstp.announceIntent", trace_id, intent=text, correlationId=trace_id, agent={"id": "alice"})
    traced.collected.wait_for("cstp.v1.CstpService/AnnounceIntent", trace_id)
    for name in ("recall", "embed", "judge", "write"):
        traced.collected.wait_for(name, trace_id)
    assert SECRET not in repr(traced.collected.spans)


def test_a_refused_call_is_recorded_and_no_error_of_the_server(traced: Traced) -> None:
    trace_id = new_trace()
    traced.call("cstp.checkGuardrails", trace_id, "a-wrong-token", action={"description": "x"})
    call = traced.collected.wait_for(CHECK, trace_id)
    assert not call.is_error
    assert call.attributes["error.type"] == "AUTHENTICATION_REQUIRED"
    assert "cstp.agent" not in call.attributes
    assert "a-wrong-token" not in repr(traced.collected.spans)


def test_what_the_caller_does_not_record_is_not_recorded(traced: Traced) -> None:
    silent, recorded = new_trace(), new_trace()
    traced.call("cstp.checkGuardrails", silent, flags="00", action={"description": "x"})
    traced.call("cstp.checkGuardrails", recorded, action={"description": "x"})
    traced.collected.wait_for(CHECK, recorded)
    assert traced.collected.names(silent) == []


def test_histograms_have_exemplars_of_traces(traced: Traced) -> None:
    trace_id = new_trace()
    traced.call("cstp.checkGuardrails", trace_id, action={"description": "x"})
    assert f'trace_id="{trace_id}"' in fetch_text(traced.app.metrics_url)


def test_metrics_arrive_as_prometheus_has_them(traced: Traced) -> None:
    trace_id = new_trace()
    traced.call("cstp.checkGuardrails", trace_id, action={"description": "x"})

    def find_point() -> Any:
        metric = traced.collected.metrics.get("cstp_call_seconds")
        points = [] if metric is None else metric.histogram.data_points
        return next((point for point in points if any(e.trace_id.hex() == trace_id for e in point.exemplars)), None)

    wait_until(lambda: find_point() is not None, "the call is among the metrics")
    point = find_point()
    labels = {each.key: each.value.string_value for each in point.attributes}
    assert labels == {"method": "cstp.checkGuardrails", "agent_class": "agent", "status": "OK"}
    assert sum(point.bucket_counts) == point.count >= 1
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert not point.HasField("min")
    verdicts = traced.collected.metrics["cstp_guardrail_verdicts"].sum
    assert verdicts.is_monotonic
    assert sum(each.as_double for each in verdicts.data_points) >= 1
    assert traced.collected.metrics["process_resident_memory_bytes"].gauge.data_points[0].as_double > 0


def test_a_peer_is_asked_within_the_trace(tmp_path: Path) -> None:
    with ExitStack() as opened:
        collected = opened.enter_context(collecting())

        def agent(name: str, **more: Any) -> App:
            otlp = OtlpSettings.model_validate(sends_to(collected, service_name=name, metrics=False))
            wanted = agent_settings(tmp_path / name, name, **more).model_copy(update={"otlp": otlp})
            return opened.enter_context(running(wanted))

        b = agent("b")
        a = agent("a", peers=[peer("b", f"grpc://{b.target}")])
        caller = GrpcCaller(a.target)
        opened.callback(caller.close)
        trace_id = new_trace()
        Traced(a, caller, collected).call(
            "cstp.checkGuardrails", trace_id, action={"description": "x"}, scope="federated"
        )
        asked = collected.wait_for("peer cstp.checkGuardrails", trace_id)
        assert asked.attributes["cstp.peer"] == "b"
        assert asked.attributes["cstp.status"] == "answered"
        wait_until(lambda: collected.names(trace_id).count(CHECK) == 2, "both servers have told")
        calls = {span.service: span for span in collected.spans if span.name == CHECK and span.trace_id == trace_id}
        assert calls["a"].parent_id == PARENT
        assert asked.parent_id == calls["a"].span_id
        assert calls["b"].parent_id == asked.span_id
        assert PEER_TOKEN not in repr(collected.spans)


def test_a_peer_that_does_not_answer_is_an_error(tmp_path: Path, free_port: int) -> None:
    with ExitStack() as opened:
        collected = opened.enter_context(collecting())
        otlp = OtlpSettings.model_validate(sends_to(collected, metrics=False))
        wanted = agent_settings(tmp_path, "a", peers=[peer("gone", f"grpc://127.0.0.1:{free_port}")])
        app = opened.enter_context(running(wanted.model_copy(update={"otlp": otlp})))
        caller = GrpcCaller(app.target)
        opened.callback(caller.close)
        trace_id = new_trace()
        Traced(app, caller, collected).call(
            "cstp.checkGuardrails", trace_id, action={"description": "x"}, scope="federated"
        )
        asked = collected.wait_for("peer cstp.checkGuardrails", trace_id)
        assert (asked.attributes["cstp.status"], asked.is_error) == ("unreachable", True)
        assert not collected.wait_for(CHECK, trace_id).is_error


def test_a_bridge_without_a_server_records_an_error(tmp_path: Path, free_port: int) -> None:
    trace_id = new_trace()
    body = b'{"jsonrpc":"2.0","id":1,"method":"cstp.checkGuardrails","params":{"action":{"description":"x"}}}'
    headers = {"Content-Type": "application/json", "traceparent": f"00-{trace_id}-{PARENT}-01"}
    with collecting() as collected:
        with bridging(settings(tmp_path, otlp=sends_to(collected)), f"127.0.0.1:{free_port}") as url:
            request = urllib.request.Request(f"{url}/cstp", body, headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                assert "error" in json.loads(answer.read())
        assert collected.wait_for(CHECK, trace_id).is_error


def test_a_collector_shows_its_certificate(tmp_path: Path, certificate: Certificate) -> None:
    with ExitStack() as opened:
        collected = opened.enter_context(collecting(certificate))
        otlp = sends_to(collected, metrics=False, ca_file=str(certificate.certificate))
        app = opened.enter_context(running(settings(tmp_path, otlp=otlp)))
        caller = GrpcCaller(app.target)
        opened.callback(caller.close)
        trace_id = new_trace()
        Traced(app, caller, collected).call("cstp.getAccess", trace_id)
        collected.wait_for("cstp.v1.AccessService/GetAccess", trace_id)


def test_a_collector_that_is_gone_keeps_nobody(
    tmp_path: Path, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    otlp = {"endpoint": f"http://127.0.0.1:{free_port}", "timeout_seconds": 0.2, "metrics_seconds": 1}
    with caplog.at_level(logging.CRITICAL, "opentelemetry"), running(settings(tmp_path, otlp=otlp)) as app:
        caller = GrpcCaller(app.target)
        assert caller.call("cstp.checkGuardrails", {"action": {"description": "x"}}).result is not None
        caller.close()


def test_the_bridge_is_a_part_of_the_trace(traced: Traced, tmp_path: Path) -> None:
    trace_id = new_trace()
    wanted = settings(tmp_path, otlp=sends_to(traced.collected))
    body = {"jsonrpc": "2.0", "id": 1, "method": "cstp.checkGuardrails", "params": {"action": {"description": SECRET}}}
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {TOKENS['alice']}",
        "traceparent": f"00-{trace_id}-{PARENT}-01",
    }
    with bridging(wanted, traced.app.target) as url:
        request = urllib.request.Request(f"{url}/cstp", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            assert "result" in json.loads(answer.read())
    wait_until(lambda: traced.collected.names(trace_id).count(CHECK) == 2, "both have told")
    calls = [span for span in traced.collected.spans if span.name == CHECK and span.trace_id == trace_id]
    bridge, server = sorted(calls, key=lambda span: span.program)
    assert (bridge.program, bridge.parent_id, bridge.attributes["cstp.status"]) == ("bridge", PARENT, "OK")
    assert (server.program, server.parent_id) == ("server", bridge.span_id)
    assert SECRET not in repr(traced.collected.spans)


@pytest.mark.parametrize("kind", ["grpc", "jsonrpc"])
def test_a_delivery_to_a_liaison_agent_continues_the_trace(tmp_path: Path, kind: str) -> None:
    with ExitStack() as opened:
        collected = opened.enter_context(collecting())

        def server(name: str, **more: Any) -> App:
            wanted = settings(tmp_path / name, otlp=sends_to(collected, service_name=name, metrics=False), **more)
            return opened.enter_context(running(wanted))

        remote = server("remote", liaison={"pillars": {"files": {"agent": "alice"}}})
        opened.enter_context(CstpClient(remote.target, TOKENS["alice"])).liaison.heartbeat("files")
        url = f"grpc://{remote.target}"
        if kind == "jsonrpc":
            url = opened.enter_context(bridging(settings(tmp_path / "bridge"), remote.target))
        pillar = {"kind": kind, "url": url, "token": TOKENS["alice"]}
        guide = server("guide", liaison={"pillars": {"files": pillar}})
        trace_id = new_trace()
        share_context(guide, collected, trace_id)
        delivery = collected.wait_for("deliver share", trace_id)
        assert (delivery.service, delivery.attributes["cstp.status"]) == ("guide", "delivered")
        name = "liaison.v1.LiaisonService/ShareContextToAgent"
        wait_until(lambda: collected.names(trace_id).count(name) == 2, "both servers have told")
        calls = {span.service: span for span in collected.spans if span.name == name and span.trace_id == trace_id}
        assert delivery.parent_id == calls["guide"].span_id
        assert calls["remote"].parent_id == delivery.span_id
        assert SECRET not in repr(collected.spans)


def test_an_a2a_agent_is_told_the_trace(tmp_path: Path) -> None:
    with ExitStack() as opened:
        collected, agent = opened.enter_context(collecting()), opened.enter_context(running_agent(Agent()))
        pillars = {"files": {"kind": "a2a", "url": agent.url}}
        wanted = settings(tmp_path, otlp=sends_to(collected, metrics=False), liaison={"pillars": pillars})
        guide = opened.enter_context(running(wanted))
        trace_id = new_trace()
        share_context(guide, collected, trace_id)
        delivery = collected.wait_for("deliver share", trace_id)
    assert f"00-{trace_id}-{delivery.span_id}-01" in [headers.get("traceparent") for headers in agent.headers]
