"""The metrics of several server processes, which their supervisor collects and serves together."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import urlsplit

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from cstp_grpc.client.http_client import HttpClient
from cstp_grpc.client.http_exchange import HttpProtocolError
from cstp_grpc.client.tls import tls_context

logger = logging.getLogger(__name__)

WORKER_LABEL: Final = "worker"
SECONDS: Final = 4.0
"""Time limit for a worker. Chosen: Prometheus waits ten seconds by default, and a hanging worker must not remove the
figures of the others."""
MAX_BYTES: Final = 16 * 1024 * 1024
"""The largest answer of a worker. Chosen: all methods, classes and statuses with all their buckets are a tenth."""


class WorkerCollector(Collector):
    """Fetches the metrics of all workers at once, and distinguishes them by the label `worker`.

    They are not summed: a restarted worker begins at zero, which a sum would show as a fall.
    """

    def __init__(self, urls: Mapping[str, str], token: str | None) -> None:
        """Prepare to fetch from a URL for each worker, by its name."""
        self._urls = urls
        self._headers = {"accept": CONTENT_TYPE_LATEST}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._http = HttpClient(tls_context(None, "http"), max_bytes=MAX_BYTES)

    def collect(self) -> Iterator[Metric]:
        """Yield the families of all workers that answer, and which workers answer."""
        with ThreadPoolExecutor(len(self._urls), "worker-metrics") as pool:
            answers = dict(zip(self._urls, pool.map(self._fetch, self._urls), strict=True))
        up = GaugeMetricFamily(
            "cstp_worker_up", "Whether a worker has answered for its metrics.", labels=(WORKER_LABEL,)
        )
        merged: dict[str, Metric] = {}
        for worker, families in answers.items():
            up.add_metric((worker,), float(families is not None))
            for family in families or ():
                family.samples = [
                    sample._replace(labels={WORKER_LABEL: worker, **sample.labels}) for sample in family.samples
                ]
                known = merged.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples
        yield up
        yield from merged.values()

    def _fetch(self, worker: str) -> list[Metric] | None:
        try:
            response = self._http.fetch("GET", urlsplit(self._urls[worker]), self._headers, None, SECONDS)
            if response.status == 200:
                return parse_families(response.body.decode())
            problem = f"it answered with the status {response.status}"
        except (OSError, HttpProtocolError, ValueError) as error:
            problem = str(error) or type(error).__name__
        logger.warning("worker %s does not tell its metrics: %s", worker, problem)
        return None


def parse_families(text: str) -> list[Metric]:
    """Return the families of metrics in the text format of OpenMetrics. Raises ValueError."""
    return list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call] # the library has no types here
