"""Fetching metrics as Prometheus does."""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@dataclass(frozen=True)
class Scraped:
    """The families of one scrape, by name."""

    families: Mapping[str, Metric]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a name that have these labels; 0 without any."""
        return sum(
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def labels(self, name: str, label: str) -> set[str]:
        """Return the values of a label of the samples of a name."""
        samples = (sample for family in self.families.values() for sample in family.samples)
        return {sample.labels[label] for sample in samples if sample.name == name}


def scrape(url: str | None, token: str | None = None, accept: str = OPEN_METRICS) -> Scraped:
    """Fetch metrics and parse them, which fails for what Prometheus would not read."""
    text = fetch_text(url, token, accept)
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call] # the library has no types here
    return Scraped({family.name: family for family in families})


def fetch_text(
    url: str | None, token: str | None = None, accept: str = OPEN_METRICS, context: ssl.SSLContext | None = None
) -> str:
    """Return the body of a scrape."""
    assert url is not None, "there are no metrics"
    headers = {"Accept": accept, **({"Authorization": f"Bearer {token}"} if token else {})}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20, context=context) as answer:
        text: str = answer.read().decode()
    return text
