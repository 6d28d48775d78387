"""The dashboard and the alerts, compared with the metrics that exist."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import promql_parser
import pytest
import yaml

from bridge.call_observation import Surface
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.contract.rpc_errors import REASON_CODES
from cstp_grpc.core.decisions.search.decision_search import SearchPlan
from cstp_grpc.modules.federation.peer import BreakerState
from tests.named_case import named_case
from tests.platform.telemetry.test_guide import ROOT, documented_metrics

FOLDER = ROOT / "deploy/observability"
DASHBOARD = FOLDER / "grafana-dashboard.json"
RULES = FOLDER / "prometheus-rules.yaml"
RULE_TESTS = FOLDER / "prometheus-rules-test.yaml"

OF_EVERY_TARGET = {"instance", "job", "worker"}
"""Labels that Prometheus or a supervisor adds."""
HISTOGRAM_SAMPLES = ("_bucket", "_count", "_sum")
VALUES: Mapping[str, Collection[str]] = {
    "method": set(contract_methods()),
    "status": {code.name for code in grpc.StatusCode},
    "reason": set(REASON_CODES),
    "verdict": {"allowed", "blocked", "approval"},
    "plan": set(SearchPlan),
    "state": {*BreakerState, *(state.name.lower() for state in grpc.ChannelConnectivity)},
    "surface": set(Surface),
    "status_class": {f"{hundreds}xx" for hundreds in range(2, 6)},
    "job": {"cstp"},
}
"""The values of labels that queries may ask for."""


def load_dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def load_panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = load_dashboard()["panels"]
    return panels


def load_alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def read_queries() -> dict[str, str]:
    """Return the queries of alerts and panels by their names."""
    alerts = {alert["alert"]: alert["expr"] for alert in load_alerts()}
    panels = {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "5m")
        for panel in load_panels()
        for target in panel.get("targets", ())
    }
    return alerts | panels


QUERIES = read_queries()


def expressions_within(expression: Any) -> Iterator[Any]:
    """Yield an expression of PromQL and all within it."""
    yield expression
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        if (inner := getattr(expression, name, None)) is not None:
            yield from expressions_within(inner)
    for inner in getattr(expression, "args", ()):
        yield from expressions_within(inner)


def selectors_of(query: str) -> list[Any]:
    """Return the selectors of a query, which must be valid PromQL."""
    found = expressions_within(promql_parser.parse(query))
    return [each for each in found if isinstance(each, promql_parser.VectorSelector)]


def labels_of(sample: str) -> set[str]:
    """Return the labels of a sample by its name, which fails if there is no such metric."""
    documented = documented_metrics()
    if sample in documented:
        return documented[sample]
    name = next((sample.removesuffix(end) for end in HISTOGRAM_SAMPLES if sample.endswith(end)), sample)
    return documented[name] | ({"le"} if sample.endswith("_bucket") else set())


def test_a_query_is_about_metrics_that_exist() -> None:
    for name in QUERIES:
        with named_case(name):
            selectors = selectors_of(QUERIES[name])
            assert selectors
            labels = set(OF_EVERY_TARGET)
            for selector in selectors:
                labels |= set() if selector.name == "up" else labels_of(selector.name)
                for matcher in selector.matchers.matchers:
                    assert matcher.name in labels, f"{selector.name} has no label {matcher.name}"
                    if matcher.name in VALUES:
                        assert set(matcher.value.split("|")) <= set(VALUES[matcher.name]), matcher.value
            for expression in expressions_within(promql_parser.parse(QUERIES[name])):
                modifier = getattr(expression, "modifier", None)
                if isinstance(expression, promql_parser.AggregateExpr) and modifier is not None:
                    assert set(modifier.labels) <= labels, f"{modifier.labels} of {labels}"


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {
        selector.name
        for panel in load_panels()
        for target in panel.get("targets", ())
        for selector in selectors_of(target["expr"].replace("$__rate_interval", "5m"))
    }
    shown |= {sample.removesuffix(end) for sample in shown for end in HISTOGRAM_SAMPLES if sample.endswith(end)}
    ours = {name for name in documented_metrics() if name.startswith("cstp_")}
    assert ours - shown == set()


def test_panels_have_places_of_their_own() -> None:
    panels = load_panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (column, line)
            for column in range(place["x"], place["x"] + place["w"])
            for line in range(place["y"], place["y"] + place["h"])
        }
        assert max(column for column, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_panels_ask_the_data_source_that_is_chosen() -> None:
    variables = {each["name"] for each in load_dashboard()["templating"]["list"]}
    assert variables == {"datasource", "instance"}
    sources = {
        json.dumps(asked["datasource"])
        for panel in load_panels()
        if panel["type"] != "row"
        for asked in panel["targets"]
    }
    assert sources == {json.dumps({"type": "prometheus", "uid": "${datasource}"})}


def test_every_alert_says_what_is_wrong_and_what_it_means() -> None:
    alerts = load_alerts()
    assert len({alert["alert"] for alert in alerts}) == len(alerts) > 10
    for alert in alerts:
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"].keys() == {"summary", "description"}
        assert alert["for"]


def test_the_guide_names_the_files() -> None:
    guide = (ROOT / "docs/observability.md").read_text()
    for path in (DASHBOARD, RULES, RULE_TESTS):
        assert f"../{path.relative_to(ROOT)}" in guide


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool, of Prometheus, is not installed")
@pytest.mark.parametrize("command", [("check", "rules", RULES), ("test", "rules", RULE_TESTS)])
def test_prometheus_takes_the_alerts_and_fires_them(command: tuple[str | Path, ...]) -> None:
    subprocess.run(["promtool", *map(str, command)], check=True, capture_output=True)
