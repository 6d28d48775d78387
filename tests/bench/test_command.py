"""The command line of the benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import __main__ as command
from tests.bench.accepted import accept
from tests.bench.results import Better, Results, read_results
from tests.bench.run import Run
from tests.bench.sections import Section


def written(path: Path, p50: float) -> Results:
    results = Results(calls=400, sections=["checks"])
    results.add("checks/50-rules.p50", "x", Better.LOWER, [p50, p50, p50])
    path.write_text(results.to_json())
    return results


@pytest.mark.parametrize(("p50", "code"), [(2.0, 0), (2.1, 0), (3.0, 1)])
def test_checking_a_document_fails_if_a_figure_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], p50: float, code: int
) -> None:
    accept(written(tmp_path / "before.json", 2.0), tmp_path / "accepted.json", whole=True)
    monkeypatch.setattr("tests.bench.accepted.ACCEPTED", tmp_path / "accepted.json")
    written(tmp_path / "now.json", p50)
    assert command.main(["--from", str(tmp_path / "now.json"), "--check"]) == code
    assert ("WORSE   checks/50-rules.p50: 3 x, accepted 2 x" in capsys.readouterr().out) is bool(code)


def test_the_list_of_aims_is_printed_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "now.json", 2.0)
    assert command.main(["--from", str(tmp_path / "now.json"), "--aims"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("- ") for line in lines)


def test_a_document_that_is_missing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--from", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_too_short_a_run_is_not_accepted() -> None:
    with pytest.raises(SystemExit):
        command.main(["--quick", "--accept"])


def test_a_run_that_failed_in_part_is_not_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.bench.accepted.ACCEPTED", tmp_path / "accepted.json")
    results = written(tmp_path / "now.json", 2.0)
    results.failed["start"] = "RuntimeError: not ready"
    (tmp_path / "now.json").write_text(results.to_json())
    assert command.main(["--from", str(tmp_path / "now.json"), "--accept"]) == 1
    assert not (tmp_path / "accepted.json").exists()


def test_the_other_sections_are_measured_if_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(run: Run) -> None:
        raise RuntimeError("no such luck")

    def succeed(run: Run) -> None:
        run.add("a.p50", "x", Better.LOWER, [1.0])

    sections = {"checks": Section("fails", fail), "start": Section("succeeds", succeed)}
    monkeypatch.setattr(command, "SECTIONS", sections)
    assert command.main(["--out", str(tmp_path / "now.json")]) == 1
    assert "no such luck" in capsys.readouterr().out
    read = read_results(tmp_path / "now.json")
    assert (list(read.figures), read.sections) == (["start/a.p50"], ["start"])


@pytest.mark.parametrize(("later", "code"), [([1.0, 1.0, 1.0, 1.0], 0), ([3.0, 3.0, 3.0, 3.0], 1)])
def test_what_seems_worse_is_measured_again_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: list[float], code: int
) -> None:
    accept(written(tmp_path / "before.json", 1.0), tmp_path / "accepted.json", whole=True)
    monkeypatch.setattr("tests.bench.accepted.ACCEPTED", tmp_path / "accepted.json")
    measured = iter([[3.0, 3.0, 3.0], later])
    section = Section("checks", lambda run: run.add("50-rules.p50", "x", Better.LOWER, next(measured)))
    monkeypatch.setattr(command, "SECTIONS", {"checks": section})
    assert command.main(["--out", str(tmp_path / "now.json"), "--check"]) == code
    assert len(read_results(tmp_path / "now.json").figures["checks/50-rules.p50"].rounds) == 7


@pytest.mark.parametrize(("text", "size"), [("500", 500), ("10k", 10_000), ("1M", 1_000_000)])
def test_sizes_are_written_short(text: str, size: int) -> None:
    assert command.parse_arguments(["--sizes", text]).sizes == [size]
