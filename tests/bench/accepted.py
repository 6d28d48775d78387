"""The figures that were accepted last, and what has become worse since."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.results import (
    FORMAT,
    Better,
    Figure,
    Results,
    UnreadableResults,
    figures_from_json,
    figures_to_json,
    rounded,
)

ACCEPTED = Path(__file__).with_name("accepted.json")
LEAST_ALLOWANCE = 0.10
"""What a figure may be worse by however close its rounds are: two runs on the same machine differ by as much."""


@dataclass(frozen=True)
class Accepted:
    """Accepted figures, and the kind of machine that they are of."""

    figures: Mapping[str, Figure]
    machine: Mapping[str, Any]


def read_accepted(path: Path | None = None) -> Accepted:
    """Read the accepted figures, those of the tree unless a path is given. Raises UnreadableResults."""
    path = path or ACCEPTED
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise UnreadableResults(f"{path}: format {content['format']} is not {FORMAT}; accept anew")
        return Accepted(figures_from_json(content["figures"]), content["machine"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableResults(f"{path}: no accepted figures; `make bench-accept` keeps some: {error}") from error


def accept(results: Results, path: Path | None = None, *, whole: bool) -> None:
    """Write the compared figures of a run as the accepted ones.

    Those of sections that the run left out, or that it skipped, stay; after a `whole` run no others do.
    """
    path = path or ACCEPTED
    kept: dict[str, Figure] = {}
    if path.exists():
        before = read_accepted(path).figures
        kept = {n: f for n, f in before.items() if not whole or is_skipped(n, results)}
        kept = {n: f for n, f in kept.items() if f.section not in results.sections or is_skipped(n, results)}
    measured = {name: figure for name, figure in results.figures.items() if figure.is_compared}
    content = {
        "format": FORMAT,
        "machine": dict(results.machine),
        "figures": figures_to_json({**kept, **measured}),
    }
    path.write_text(json.dumps(rounded(content), indent=1) + "\n")


@dataclass(frozen=True)
class Change:
    """A figure beside the accepted one; `worse_by` is a share, negative if it became better."""

    measured: Figure
    accepted: Figure

    @property
    def worse_by(self) -> float:
        """How much worse the median is than the accepted median."""
        now, before = self.measured.median, self.accepted.median
        if self.measured.better is Better.HIGHER:
            now, before = before, now
        return now / before - 1 if before else 0.0

    @property
    def allowance(self) -> float:
        """By how much it may be worse: by as much as the rounds of either are apart."""
        return max(LEAST_ALLOWANCE, self.measured.spread, self.accepted.spread)

    def describe(self) -> str:
        """Return one line for people."""
        unit = self.measured.unit
        return (
            f"{self.measured.name}: {self.measured.median:.3g} {unit}, accepted {self.accepted.median:.3g} {unit}, "
            f"{'worse' if self.worse_by > 0 else 'better'} by {abs(self.worse_by):.0%} "
            f"where {self.allowance:.0%} is noise"
        )


@dataclass
class Comparison:
    """What became of the accepted figures in a run."""

    worse: list[Change] = field(default_factory=list)
    better: list[Change] = field(default_factory=list)
    same: list[Change] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Accepted figures that the sections of the run should have measured, and did not."""
    unknown: list[str] = field(default_factory=list)
    """Measured figures that nobody has accepted yet."""
    skipped: list[str] = field(default_factory=list)
    """Accepted figures that this machine could not measure."""

    @property
    def failed(self) -> bool:
        """Whether anything became worse or vanished."""
        return bool(self.worse or self.missing)


def compare(results: Results, accepted: Accepted) -> Comparison:
    """Judge the figures of a run by the accepted ones of the same sections."""
    found = Comparison()
    for name, before in accepted.figures.items():
        if before.section not in results.sections:
            continue
        if is_skipped(name, results):
            found.skipped.append(name)
        elif name not in results.figures:
            found.missing.append(name)
        else:
            change = Change(results.figures[name], before)
            if change.worse_by > change.allowance:
                found.worse.append(change)
            elif change.worse_by < -change.allowance:
                found.better.append(change)
            else:
                found.same.append(change)
    found.unknown = [n for n, figure in results.figures.items() if figure.is_compared and n not in accepted.figures]
    return found


def is_skipped(name: str, results: Results) -> bool:
    """Return whether the run had to leave this figure out."""
    return any(name.startswith(beginning) for beginning in results.skipped)
