"""The metrics of several processes together."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from cstp_grpc.server.worker_metrics import WorkerCollector
from tests.http_servers import HttpHandler, serving_http

TOKEN = "scraper-token"


def worker_text(number: int) -> bytes:
    """Return the metrics of a worker with a number of calls."""
    registry = CollectorRegistry()
    Counter("calls", "Calls.", ("method",), registry=registry).labels("check").inc(number)
    Histogram("seconds", "Seconds.", buckets=(1, 2), registry=registry).observe(1.5, exemplar={"trace_id": f"{number}"})
    text: bytes = generate_latest(registry)
    return text


def handler(status: int, body: bytes) -> type[HttpHandler]:
    """Return what answers for a worker."""

    class WorkerHandler(HttpHandler):
        def answer_get(self) -> None:
            authorized = self.received_headers().get("authorization") == f"Bearer {TOKEN}"
            self.answer(status if authorized else 401, {}, body)

    return WorkerHandler


def test_series_of_workers_stand_beside_each_other(caplog: pytest.LogCaptureFixture) -> None:
    with (
        serving_http(handler(200, worker_text(1))) as one,
        serving_http(handler(200, worker_text(2))) as two,
        serving_http(handler(500, b"")) as failing,
        serving_http(handler(200, b"no metrics")) as confused,
        caplog.at_level(logging.WARNING),
    ):
        urls = {"1": one, "2": two, "3": failing, "4": "http://127.0.0.1:1/metrics", "5": confused}
        registry = CollectorRegistry()
        registry.register(WorkerCollector(urls, TOKEN))
        text = generate_latest(registry).decode()
        # What is served must be read by Prometheus, exemplars included.
        families = {each.name: each for each in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
    up = {sample.labels["worker"]: sample.value for sample in families["cstp_worker_up"].samples}
    assert up == {"1": 1, "2": 1, "3": 0, "4": 0, "5": 0}
    calls = {each.labels["worker"]: each.value for each in families["calls"].samples if each.name == "calls_total"}
    assert calls == {"1": 1, "2": 2}
    exemplars = {each.exemplar.labels["trace_id"] for each in families["seconds"].samples if each.exemplar}
    assert exemplars == {"1", "2"}
    assert "worker 3 does not tell its metrics: it answered with the status 500" in caplog.text
