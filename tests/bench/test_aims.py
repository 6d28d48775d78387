"""The aims, and the document that shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.bench.aims import AIMS, Aim, Part, aims_table
from tests.bench.results import Better, Results
from tests.bench.sections import SECTIONS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
AIM = Aim(
    "checks", "3 x / 0.3", "1.4 x / 0.7", [Part("checks/a.p50", 1.4, "{:.1f} x"), Part("checks/a.throughput", 0.7)]
)


def test_the_document_has_exactly_the_aims_that_are_measured() -> None:
    table = re.search(r"^\| what \| before \| aim \| now \| \|\n\|[-|]+\|\n((?:\|.*\n)+)", DOCUMENT.read_text(), re.M)
    assert table, "no table of aims"
    rows = [line.strip("|").split("|")[:3] for line in table[1].splitlines()]
    assert [[cell.strip() for cell in row] for row in rows] == [[aim.what, aim.before, aim.aim] for aim in AIMS]


def test_every_aim_is_measured_by_a_section() -> None:
    assert {part.figure.partition("/")[0] for aim in AIMS for part in aim.parts} <= set(SECTIONS)


@pytest.mark.parametrize(
    ("p50", "throughput", "described"),
    [
        (1.4, 0.7, ("1.4 x / 0.70", "kept")),
        (1.6, 0.8, ("1.6 x / 0.80", "missed in part")),
        (1.6, 0.5, ("1.6 x / 0.50", "missed")),
        (1.0, None, ("1.0 x / -", "not all measured")),
        (None, None, ("-", "not measured")),
    ],
)
def test_an_aim_is_kept_if_all_its_figures_are_within_their_limits(
    p50: float | None, throughput: float | None, described: tuple[str, str]
) -> None:
    results = Results(calls=400)
    if p50:
        results.add("checks/a.p50", "x", Better.LOWER, [p50])
    if throughput:
        results.add("checks/a.throughput", "x", Better.HIGHER, [throughput])
    assert AIM.describe(results) == described


def test_the_table_is_markdown_with_one_line_for_each_aim() -> None:
    lines = aims_table(Results(calls=400)).splitlines()
    assert len(lines) == len(AIMS) + 2
    assert all(line.count("|") == 6 for line in lines)
