"""The guide to watching a server, compared with what a server tells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import Metric

from cstp_grpc.config import MetricsSettings
from tests.federation.agents import agent_settings, peer
from tests.harness import running
from tests.telemetry.scraping import Scraped, scrape

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = {"counter": "_total", "info": "_info"}
"""What the names of the samples of a kind of metric end in."""
WITHOUT_INDEX = {"cstp_index_ready", "cstp_index_lag_revisions", "cstp_worker_up"}
"""Figures that a server of tests, with neither an index nor workers, does not have."""


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """The figures of a server that has all rooms, but neither an index nor workers."""
    folder = tmp_path_factory.mktemp("figures")
    callbacks = {"allow": ["https://agents.example.com/"]}
    with ExitStack() as opened:
        wanted = agent_settings(folder, "a", peers=[peer("gone", "grpc://127.0.0.1:1")], callbacks=callbacks)
        app = opened.enter_context(running(wanted.model_copy(update={"metrics": MetricsSettings(port=0)})))
        yield scrape(app.metrics_url)


def documented_metrics() -> dict[str, set[str]]:
    """Return the labels of each metric of the guide's table."""
    guide = (ROOT / "docs/observability.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \|([^|]*)\| [^|]+ \|$", guide, re.MULTILINE)
    return {
        name: set(filter(None, re.split(r",\s*", labels.strip())))
        for names, labels in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def sample_name(family: Metric) -> str:
    """Return the name by which queries know a family."""
    return family.name + SAMPLES.get(family.type, "")


def test_the_guide_has_every_metric_of_a_server(scraped: Scraped) -> None:
    told = {sample_name(family) for family in scraped.families.values()}
    assert told - documented_metrics().keys() == set()
    assert documented_metrics().keys() - told == WITHOUT_INDEX


def test_the_guide_has_the_labels_of_every_metric(scraped: Scraped) -> None:
    documented = documented_metrics()
    for family in scraped.families.values():
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == documented[sample_name(family)], family.name
