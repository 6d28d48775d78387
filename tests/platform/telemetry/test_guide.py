"""The guide to watching a server, compared with what a server tells."""

from __future__ import annotations

import re
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import Metric

from cstp_grpc.platform.config import MetricsSettings
from tests.harness import peering, running, settings
from tests.modules.federation.agents import agent_settings, peer
from tests.platform.telemetry.scraping import Scraped, fetch_text, scrape
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = {"counter": "_total", "info": "_info"}
"""What the names of the samples of a kind of metric end in."""
WITHOUT_ENGINE = {"cstp_index_ready", "cstp_index_lag_revisions", "cstp_worker_up"}
"""Figures that a server of tests, with neither a search engine nor workers, does not have."""


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """The figures of a server that has all modules, but neither a search engine nor workers."""
    folder = tmp_path_factory.mktemp("figures")
    callbacks = {"allow": ["https://agents.example.com/"]}
    with ExitStack() as opened:
        wanted = agent_settings(folder, "a", peers=[peer("gone", "grpc://127.0.0.1:1")], callbacks=callbacks)
        app = opened.enter_context(running(wanted.model_copy(update={"metrics": MetricsSettings(port=0)})))
        yield scrape(app.metrics_url)


@pytest.fixture(scope="module")
def scraped_bridge() -> Iterator[Scraped]:
    """The figures of a bridge that has answered and refused calls over HTTP."""
    wanted = settings(Path("unused"), metrics={"bridge_port": 0})
    with peering(wanted, "127.0.0.1:1") as peers:
        with pytest.raises(urllib.error.HTTPError) as raised:
            fetch_text(f"{peers.url}/decisions/events?minConfidence=x")
        raised.value.close()
        wait_until(lambda: scrape(peers.metrics_url).value("cstp_bridge_call_seconds_count") == 1, "it is counted")
        yield scrape(peers.metrics_url)


def documented_metrics() -> dict[str, set[str]]:
    """Return the labels of each metric of the guide's tables."""
    guide = (ROOT / "docs/observability.md").read_text()
    rows = re.findall(r"^- (`(?:cstp|process)_\w+`(?:, `\w+`)*)(?: \(([\w, ]+)\))?: \w", guide, re.MULTILINE)
    return {
        name: set(filter(None, re.split(r",\s*", labels.strip())))
        for names, labels in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def sample_name(family: Metric) -> str:
    """Return the name by which queries know a family."""
    return family.name + SAMPLES.get(family.type, "")


def test_the_guide_has_every_metric(scraped: Scraped, scraped_bridge: Scraped) -> None:
    told = {sample_name(family) for each in (scraped, scraped_bridge) for family in each.families.values()}
    assert told - documented_metrics().keys() == set()
    assert documented_metrics().keys() - told == WITHOUT_ENGINE


def test_the_guide_says_which_metrics_a_bridge_has(scraped_bridge: Scraped) -> None:
    told = {sample_name(family) for family in scraped_bridge.families.values()}
    prefixes = ("cstp_bridge_", "cstp_build_info", "cstp_unreadable_measures", "process_")
    assert told == {name for name in documented_metrics() if name.startswith(prefixes)}


def test_the_guide_has_the_labels_of_every_metric(scraped: Scraped, scraped_bridge: Scraped) -> None:
    documented = documented_metrics()
    for family in [*scraped.families.values(), *scraped_bridge.families.values()]:
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == documented[sample_name(family)], family.name
