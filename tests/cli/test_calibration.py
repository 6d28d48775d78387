"""calibration and patterns: figures, plots in the terminal and as SVG."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.cli.calibration_output import (
    PLOT_COLUMNS,
    odds_ratio_diagram,
    plot_interval,
    print_calibration,
    print_patterns,
    reliability_diagram,
)
from cstp_grpc.cli.console import Console
from cstp_grpc.cli.developer_setup import import_examples
from cstp_grpc.client import CstpClient
from cstp_grpc.gen.cstp.v1 import calibration_pb2 as pb2
from tests.cli.conftest import Server
from tests.harness import TOKENS


def record_outcomes(server: Server) -> None:
    """Record 25 deployments with a confidence of 0.9, of which all 12 on a Friday fail."""
    with CstpClient(server.app.target, TOKENS["alice"]) as client:
        for number in range(25):
            is_friday = number % 2 == 1
            client.record_decision(
                f"Deploy service {number}",
                confidence=0.9,
                category="deployment",
                tags=["friday"] if is_friday else ["monday"],
                outcome="failure" if is_friday else "success",
                notes="Nobody was there to roll back" if is_friday else None,
            )


def test_too_few_reviews_are_said_to_be_too_few(server: Server) -> None:
    server.ok("record", "Use a queue", "--confidence", 0.9, "--outcome", "failure")
    shown = server.ok("calibration")
    assert shown.startswith("1 decision with a confidence and an outcome\nToo few for figures, which need 20.\n")
    assert "Too few for a test for drift, which needs 40." in shown
    assert "Too few to find factors of failure" in server.ok("patterns")


def test_calibration_is_shown_with_a_plot(server: Server) -> None:
    record_outcomes(server)
    shown = server.ok("calibration", "--group-by", "category", "--group-by", "stakes")
    assert "On average 0.90 was stated, and 0.52 (0.33 to 0.70) came true." in shown
    (bucket,) = [line for line in shown.splitlines() if line.startswith("0.9 to 1.0")]
    plot = bucket[-PLOT_COLUMNS:]
    assert "├" in plot.partition("●")[0]
    assert plot.partition("●")[2].index("┤") < plot.partition("●")[2].index("┊")
    assert "Brier score" in shown
    assert "category deployment" in shown
    assert "stakes (none)" in shown


def test_patterns_are_shown_with_a_plot(server: Server) -> None:
    record_outcomes(server)
    shown = server.ok("patterns", "--category", "deployment")
    assert "25 decisions with an outcome; 12 failed" in shown
    (friday,) = [line for line in shown.splitlines() if line.startswith("tag friday")]
    assert "12 of 12" in friday
    assert "0 of 13" in friday
    assert "< 0.001*" in friday
    (similar,) = [line for line in shown.splitlines() if line.startswith("12 similar failures: ")]
    assert "friday" in similar
    assert "Lesson: Nobody was there to roll back" in shown
    assert "and 7 more" in shown


@pytest.mark.parametrize("command", ["calibration", "patterns"])
def test_the_answer_is_json_and_the_plot_a_file(server: Server, command: str, tmp_path: Path) -> None:
    record_outcomes(server)
    image = tmp_path / "plot.svg"
    assert server.json(command, "--svg", image)["count"] == 25
    root = ElementTree.parse(image).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.findall("{*}circle")


def test_the_example_decisions_are_enough_for_figures(server: Server) -> None:
    with CstpClient(server.app.target, TOKENS["alice"]) as client:
        assert import_examples(client) == 60
    report = server.json("calibration")
    assert report["count"] >= 40
    assert "calibration" in report
    assert "drift" in report
    factors = server.json("patterns")["factors"]
    assert any(factor["significant"] and factor["oddsRatio"] > 1 for factor in factors)
    assert any(factor["significant"] and factor["oddsRatio"] < 1 for factor in factors)


def test_a_plot_that_cannot_be_written_is_an_error(server: Server, tmp_path: Path) -> None:
    result = server("calibration", "--svg", tmp_path / "missing" / "plot.svg")
    assert result.exit_code == 1
    assert "No such file or directory" in result.stderr


def test_others_are_evaluated_if_they_share(server: Server) -> None:
    for title, *options in (["Shared", "--share"], ["Private"]):
        server.ok("record", title, "--confidence", 0.9, "--outcome", "success", *options, agent="bob")
    assert server.json("calibration")["count"] == 0
    assert server.json("calibration", "--all-agents")["count"] == 1
    assert server.json("patterns", "--by", "bob")["count"] == 1


def test_drift_is_told_with_its_date() -> None:
    drift = pb2.CalibrationDrift(count=120, p_value=0.001, detected=True, gap_before=-0.02, gap_after=0.4)
    drift.changed_at.FromJsonString("2026-03-02T00:00:00Z")
    stream = io.StringIO()
    print_calibration(Console(stream, 200), pb2.GetCalibrationResponse(count=120, minimum=20, drift=drift))
    assert (
        "Drift since 2026-03-02: confidences are 0.40 above what came true; before they were 0.02 below it"
        in stream.getvalue()
    )


def open_test_console(stream: io.StringIO, width: int) -> Console:
    """A console of a width, as commands print to it."""
    return Console(stream, width)


unit = st.floats(0, 1)


@given(unit, unit, unit, unit)
def test_a_plot_is_never_wider_than_its_scale(low: float, point: float, high: float, mark: float) -> None:
    plot = plot_interval(min(low, high), point, max(low, high), mark)
    assert len(plot) <= PLOT_COLUMNS
    assert plot.count("●") == 1


FACTORS = [
    pb2.FailureFactor(
        kind=kind,
        value=value,
        failures_with=12,
        others_with=13,
        failures_without=113,
        others_without=1020,
        odds_ratio=123.45,
        odds_interval=pb2.EstimateInterval(low=2, high=600),
        adjusted_p_value=0.0001,
        significant=True,
    )
    for kind, value in (
        (pb2.FAILURE_FACTOR_KIND_CATEGORY, "deployment"),
        (pb2.FAILURE_FACTOR_KIND_PROJECT, "web-shop"),
    )
]


@pytest.mark.parametrize("width", [72, 80, 100, 110, 200])
def test_each_factor_is_one_line_of_a_narrow_terminal(width: int) -> None:
    stream = io.StringIO()
    print_patterns(
        open_test_console(stream, width),
        pb2.GetPatternsResponse(count=1158, failures=125, factors=FACTORS, tested=2),
    )
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith(("category deployment", "project web-shop"))]
    assert len(rows) == len(FACTORS)
    assert all("< 0.001*" in row for row in rows)
    assert all(("●" in row) == (width >= 80) for row in rows)
    (factor,) = [line for line in lines if line.startswith("factor ")]
    assert ("64" in factor) == (width >= 80)


def test_each_bucket_is_one_line_of_a_narrow_terminal() -> None:
    bucket = pb2.ReliabilityBucket(lower=0.9, upper=1, count=41, mean_confidence=0.9, success_rate=0.6)
    calibration = pb2.Calibration(buckets=[bucket])
    stream = io.StringIO()
    answer = pb2.GetCalibrationResponse(count=41, minimum=20, calibration=calibration)
    print_calibration(open_test_console(stream, 60), answer)
    (row,) = [line for line in stream.getvalue().splitlines() if line.startswith("0.9 to 1.0")]
    assert "●" in row
    assert len(row) <= 60


def test_a_long_title_of_the_plot_is_broken_to_fit() -> None:
    answer = pb2.GetCalibrationResponse(count=20_000, left_out=12_345, truncated=True, minimum=20)
    root = ElementTree.fromstring(reliability_diagram(answer))
    titles = [text for text in root.findall("{*}text") if text.get("font-size") == "14"]
    assert " ".join(text.text or "" for text in titles) == root.findtext("{*}title")
    # A letter of a sans-serif font is half as wide as it is high, or a bit more.
    assert all(len(text.text or "") * 14 * 0.55 <= float(root.get("width", 0)) for text in titles)
    # Above the plot and its label.
    assert all(float(text.get("y", 0)) < 40 for text in titles)


@given(st.text(max_size=60), st.floats(1e-6, 1e6), st.booleans())
def test_whatever_factors_are_called_the_plots_are_sound(name: str, odds: float, significant: bool) -> None:
    interval = pb2.EstimateInterval(low=odds / 3, high=odds * 3)
    factor = pb2.FailureFactor(
        kind=pb2.FAILURE_FACTOR_KIND_TAG, value=name, odds_ratio=odds, odds_interval=interval, significant=significant
    )
    answer = pb2.GetPatternsResponse(count=40, failures=9, factors=[factor], tested=1)
    ElementTree.fromstring(odds_ratio_diagram(answer))
    stream = io.StringIO()
    print_patterns(Console(stream, 200), answer)
    assert "\x1b" not in stream.getvalue()


def test_the_plot_of_the_guide_is_one_that_is_shown(server: Server) -> None:
    with CstpClient(server.app.target, TOKENS["alice"]) as client:
        for number in range(41):
            outcome = "success" if number < 25 else "failure"
            client.record_decision("Deploy", confidence=0.9, category="deployment", outcome=outcome)
    guide = (Path(__file__).parents[2] / "docs" / "calibration.md").read_text(encoding="utf-8")
    shown = server.ok("calibration", "--category", "deployment")
    assert shown.split("\n\nBrier")[0] in guide
