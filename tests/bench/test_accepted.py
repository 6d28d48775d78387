"""Comparing the figures of a run with those that were accepted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bench.accepted import Accepted, accept, compare, read_accepted
from tests.bench.results import Better, Figure, Results, UnreadableResults
from tests.bench.sections import SECTIONS

P50, RATE = "checks/50-rules.p50", "checks/50-rules.throughput"


def ran(rounds: Sequence[float], name: str = P50, better: Better = Better.LOWER, unit: str = "x") -> Results:
    results = Results(calls=400, sections=["checks"])
    results.add(name, unit, better, rounds)
    return results


def accepted(rounds: Sequence[float], name: str = P50, better: Better = Better.LOWER) -> Accepted:
    return Accepted({name: Figure(name, "x", better, tuple(rounds))}, {})


def test_a_figure_within_a_tenth_of_the_accepted_one_is_the_same() -> None:
    compared = compare(ran([1.09, 1.09, 1.09]), accepted([1.0, 1.0, 1.0]))
    assert [change.measured.name for change in compared.same] == [P50]
    assert not compared.failed


def test_a_figure_that_is_worse_by_more_than_all_noise_fails_and_is_named() -> None:
    compared = compare(ran([1.20, 1.21, 1.22]), accepted([0.99, 1.0, 1.01]))
    assert compared.failed
    assert [change.describe().partition(":")[0] for change in compared.worse] == [P50]


@pytest.mark.parametrize(
    ("now", "before"), [([1.0, 1.3, 1.5], [1.0, 1.0, 1.0]), ([1.3, 1.3, 1.3], [0.8, 1.0, 1.2])], ids=["now", "before"]
)
def test_rounds_that_are_far_apart_leave_more_room(now: Sequence[float], before: Sequence[float]) -> None:
    assert not compare(ran(now), accepted(before)).failed


def test_the_median_counts_and_not_one_slow_round() -> None:
    compared = compare(ran([1.0, 1.0, 9.0]), accepted([1.0, 1.0, 1.0]))
    assert compared.same[0].worse_by == 0


@pytest.mark.parametrize(("now", "worse"), [(0.5, True), (0.8, False)])
def test_of_throughput_less_is_worse(now: float, worse: bool) -> None:
    compared = compare(ran([now], RATE, Better.HIGHER), accepted([0.6], RATE, Better.HIGHER))
    assert compared.failed is worse
    assert [change.measured.name for change in compared.better] == ([] if worse else [RATE])


def test_a_figure_that_is_no_longer_measured_fails() -> None:
    compared = compare(Results(calls=400, sections=["checks"]), accepted([1.0]))
    assert compared.failed
    assert compared.missing == [P50]


def test_figures_of_sections_that_did_not_run_are_not_judged() -> None:
    compared = compare(Results(calls=400, sections=["start"]), accepted([1.0]))
    assert not compared.failed
    assert not compared.same


def test_a_figure_that_cannot_be_measured_here_is_skipped() -> None:
    results = Results(calls=400, sections=["checks"], skipped={"checks/50": "no such thing on this system"})
    compared = compare(results, accepted([1.0]))
    assert compared.skipped == [P50]
    assert not compared.failed


def test_a_new_figure_is_told_and_does_not_fail() -> None:
    compared = compare(ran([1.0], "checks/new.p50"), Accepted({}, {}))
    assert compared.unknown == ["checks/new.p50"]
    assert not compared.failed


def test_times_are_not_compared_since_machines_differ() -> None:
    assert compare(ran([1.0], unit="ms"), Accepted({}, {})).unknown == []


def test_what_is_accepted_is_what_the_next_run_is_compared_with(tmp_path: Path) -> None:
    path = tmp_path / "accepted.json"
    accept(ran([1.0, 1.1]), path, whole=True)
    assert list(read_accepted(path).figures[P50].rounds) == [1.0, 1.1]


def test_accepting_a_part_keeps_the_figures_of_the_sections_that_were_left_out(tmp_path: Path) -> None:
    path = tmp_path / "accepted.json"
    whole = ran([1.0])
    whole.add("start/help.cpu", "x", Better.LOWER, [4.0])
    whole.sections.append("start")
    accept(whole, path, whole=True)
    accept(ran([2.0]), path, whole=False)
    medians = {name: figure.median for name, figure in read_accepted(path).figures.items()}
    assert medians == {P50: 2.0, "start/help.cpu": 4.0}


def test_accepting_everything_forgets_figures_that_no_longer_exist(tmp_path: Path) -> None:
    path = tmp_path / "accepted.json"
    accept(ran([1.0], "checks/retired.p50"), path, whole=True)
    accept(ran([1.0]), path, whole=True)
    assert list(read_accepted(path).figures) == [P50]


def test_accepting_keeps_what_this_machine_cannot_measure(tmp_path: Path) -> None:
    path = tmp_path / "accepted.json"
    accept(ran([1.0], "checks/special.p50"), path, whole=True)
    results = ran([1.0])
    results.skipped["checks/special"] = "no such thing on this system"
    accept(results, path, whole=True)
    assert sorted(read_accepted(path).figures) == [P50, "checks/special.p50"]


@pytest.mark.parametrize("content", ["", "[]", '{"format": 0}', '{"format": 1}'])
def test_a_file_that_holds_no_accepted_figures_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "accepted.json"
    path.write_text(content)
    with pytest.raises(UnreadableResults):
        read_accepted(path)


def test_the_accepted_figures_of_the_tree_are_of_sections_that_exist() -> None:
    assert {figure.section for figure in read_accepted().figures.values()} <= set(SECTIONS)
