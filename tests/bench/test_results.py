"""The JSON document of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.results import Better, Results, Row, UnreadableResults, read_results
from tests.bench.tables import figures_table, rows_table


def example() -> Results:
    results = Results(calls=400, sections=["checks"], skipped={"workers/": "no cgroups"})
    results.add("checks/50-rules.p50", "x", Better.LOWER, [1.5, 1.25, 1.75])
    results.rows.append(
        Row("checks", "CheckGuardrails, 50 rules", 1, [0.5, 0.75], [1.5, 1.25], [900, 950], [500, 510], None)
    )
    return results


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(example().to_json())
    read = read_results(path)
    assert read.to_json() == example().to_json()
    assert read.figures["checks/50-rules.p50"].median == 1.5
    assert read.skipped == {"workers/": "no cgroups"}


def test_a_document_holds_each_round_and_the_kind_of_the_machine() -> None:
    content = json.loads(example().to_json())
    assert content["figures"]["checks/50-rules.p50"]["rounds"] == [1.5, 1.25, 1.75]
    assert content["rows"][0]["p50_ms"] == [0.5, 0.75]
    assert sorted(content["machine"]) == ["architecture", "cores", "python", "system"]


def test_further_rounds_of_a_figure_are_added_to_those_before() -> None:
    results = example()
    results.add("checks/50-rules.p50", "x", Better.LOWER, [1.0])
    assert list(results.figures["checks/50-rules.p50"].rounds) == [1.5, 1.25, 1.75, 1.0]


def test_the_spread_is_how_far_the_rounds_are_apart_beside_their_median() -> None:
    assert example().figures["checks/50-rules.p50"].spread == pytest.approx(0.5 / 1.5)


@pytest.mark.parametrize("content", ["", "{}", '{"format": 99}', '{"format": 1, "calls": 400}', "[1]"])
def test_what_is_no_document_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(UnreadableResults, match=r"run\.json"):
        read_results(path)


def test_the_tables_show_medians_and_leave_out_what_was_not_measured() -> None:
    assert "| CheckGuardrails, 50 rules | 1 | 0.625 | 1.375 | 925 | 505 |  |" in rows_table(example())
    assert "| checks/50-rules.p50 | 1.5 x | 1.25 to 1.75 |" in figures_table(example())
