"""The aims, and the document that shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.bench.aims import AIMS, Aim, Part, aims_list
from tests.bench.results import Better, Results
from tests.bench.sections import SECTIONS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
AIM = Aim(
    "checks", "3 x / 0.3", "1.4 x / 0.7", [Part("checks/a.p50", 1.4, "{:.1f} x"), Part("checks/a.throughput", 0.7)]
)


def test_the_document_has_exactly_the_aims_that_are_measured() -> None:
    section = DOCUMENT.read_text().partition("\n## Aims\n")[2].partition("\n## ")[0]
    items = [" ".join(item.split()) for item in re.findall(r"^- (.*(?:\n  .*)*)$", section, re.M)]
    titles = [item.partition("; now ")[0] + "; now " for item in items if "; now " in item]
    assert titles == [aim.title for aim in AIMS]


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


def test_the_list_is_markdown_with_one_item_for_each_aim() -> None:
    lines = aims_list(Results(calls=400)).splitlines()
    assert len(lines) == len(AIMS)
    assert all(line.startswith("- ") and line.endswith("; now - (not measured)") for line in lines)
