"""What keeps the number of series bounded, and what happens to figures that cannot be read."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry

from cstp_grpc.common.measures import Measure, MeasureKind, Readings, read_labelled, read_value
from cstp_grpc.contract.caller import ANONYMOUS
from cstp_grpc.contract.enums import Severity
from cstp_grpc.core.guardrails.model import Verdict, Violation
from cstp_grpc.platform.telemetry.agent_classes import MAX_KEPT, AgentClasses
from cstp_grpc.platform.telemetry.instruments import Instruments, MeasureCollector
from cstp_grpc.server.telemetry.work_instruments import MAX_RULE_SETS, VerdictInstruments


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("ci-main", "ci"),
        ("ci-peer", "ci"),
        ("house", "peer"),
        ("alice", "agent"),
        (ANONYMOUS, "anonymous"),
        (None, "unauthenticated"),
    ],
)
def test_agents_have_classes(agent: str | None, expected: str) -> None:
    classes = AgentClasses({"ci": ["ci-*"], "late": ["ci-*"]}, {"house", "ci-peer"})
    assert [classes.class_of(agent) for _ in range(2)] == [expected] * 2


def test_any_number_of_agents_has_its_classes() -> None:
    classes = AgentClasses({"odd": ["*1", "*3"]}, ())
    for number in (*range(MAX_KEPT + 10), MAX_KEPT + 3):
        assert classes.class_of(f"a-{number}") == ("odd" if number % 10 in (1, 3) else "agent")


def test_rules_that_change_all_day_leave_the_figures_of_the_last_versions() -> None:
    instruments = Instruments("server")
    verdicts = VerdictInstruments(instruments)
    violation = Violation("r", "R", "no", Severity.BLOCK, code="EVALUATION_ERROR")
    for version in range(20):
        verdicts.observe_verdict(Verdict((violation,), (), 1, f"v{version}", allowed=False))
    for name in ("cstp_guardrail_verdicts", "cstp_guardrail_firings", "cstp_guardrail_errors"):
        (family,) = (family for family in instruments.exported.collect() if family.name == name)
        versions = {sample.labels["rule_set"] for sample in family.samples}
        assert versions == {f"v{version}" for version in range(20 - MAX_RULE_SETS, 20)}


def test_rooms_share_a_figure() -> None:
    measures = [
        Measure("watchers", "Watchers.", read_labelled("a", lambda: 1), ("kind",)),
        Measure("loads", "Loads.", read_value(lambda: 2), kind=MeasureKind.COUNTER),
        Measure("watchers", "Watchers.", read_labelled("b", lambda: 3), ("kind",)),
    ]
    registry = CollectorRegistry()
    registry.register(MeasureCollector(measures))
    assert registry.get_sample_value("cstp_watchers", {"kind": "a"}) == 1
    assert registry.get_sample_value("cstp_watchers", {"kind": "b"}) == 3
    assert registry.get_sample_value("cstp_loads_total") == 2


def test_a_figure_that_cannot_be_read_takes_no_other_away(caplog: pytest.LogCaptureFixture) -> None:
    broken = True

    def read() -> Readings:
        if broken:
            raise RuntimeError("the database is gone")
        return {(): 1}

    registry = CollectorRegistry()
    registry.register(MeasureCollector([Measure("lag", "Lag.", read), Measure("rows", "R.", read_value(lambda: 7))]))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert registry.get_sample_value("cstp_rows") == 7
            assert registry.get_sample_value("cstp_unreadable_measures") == 1
            assert registry.get_sample_value("cstp_lag") is None
    assert caplog.text.count("cstp_lag cannot be read") == 1
    broken = False
    assert registry.get_sample_value("cstp_lag") == 1
    assert registry.get_sample_value("cstp_unreadable_measures") == 0
