"""What a run measured: series with their rounds, figures made of them, and the JSON that holds both."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

FORMAT = 1


class UnreadableResults(Exception):
    """A file does not hold results in the format that this version writes."""


class Better(StrEnum):
    """Which values of a figure are the good ones."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True)
class Figure:
    """One number of a run, round by round; its name begins with the name of its section and a slash.

    Those in the unit `x` are ratios within one round. Only they and megabytes are compared with accepted ones, since
    times tell more of the machine than of the server.
    """

    name: str
    unit: str
    better: Better
    rounds: Sequence[float]

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """How far the rounds are apart, as a share of their median."""
        return (max(self.rounds) - min(self.rounds)) / self.median if self.median else 0.0

    @property
    def section(self) -> str:
        """The section that measured it."""
        return self.name.partition("/")[0]

    @property
    def is_compared(self) -> bool:
        """Whether it is judged beside the accepted one."""
        return self.unit in ("x", "MB")


@dataclass(frozen=True)
class Row:
    """One line of the printed table, round by round. CPU is in microseconds a call; None if it was not measured."""

    section: str
    what: str
    in_flight: int
    p50_ms: Sequence[float]
    p99_ms: Sequence[float]
    calls_per_second: Sequence[float]
    server_cpu_us: Sequence[float] | None = None
    bridge_cpu_us: Sequence[float] | None = None


def machine() -> dict[str, Any]:
    """Return the kind of this machine; nothing that tells which one it is."""
    return {
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


@dataclass
class Results:
    """All that one run measured."""

    calls: int
    sections: list[str] = field(default_factory=list)
    """The sections that ran to their end."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Why parts of a section could not be measured, by the beginning of the names of their figures."""
    failed: dict[str, str] = field(default_factory=dict)
    """Sections that could not be measured because of an error, with its traceback."""
    rows: list[Row] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=machine)

    def add(self, name: str, unit: str, better: Better, rounds: Iterable[float]) -> None:
        """Add a figure. The rounds of one that exists already are continued."""
        before = self.figures[name].rounds if name in self.figures else ()
        self.figures[name] = Figure(name, unit, better, (*before, *rounds))

    def to_json(self) -> str:
        """Return the document."""
        content = {
            "format": FORMAT,
            "machine": dict(self.machine),
            "calls": self.calls,
            "sections": self.sections,
            "skipped": self.skipped,
            "failed": self.failed,
            "figures": figures_to_json(self.figures),
            "rows": [asdict(row) for row in self.rows],
        }
        return json.dumps(rounded(content), indent=1) + "\n"


def figures_to_json(figures: Mapping[str, Figure]) -> dict[str, Any]:
    """Return figures by their names, with their medians, which are for people and are not read again."""
    return {
        name: {"unit": each.unit, "better": each.better, "median": each.median, "rounds": list(each.rounds)}
        for name, each in sorted(figures.items())
    }


def figures_from_json(content: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the figures of a document."""
    return {
        name: Figure(name, each["unit"], Better(each["better"]), tuple(map(float, each["rounds"])))
        for name, each in content.items()
    }


def read_results(path: Path) -> Results:
    """Read the document of a run. Raises UnreadableResults."""
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise UnreadableResults(f"{path}: format {content['format']} is not {FORMAT}; measure again")
        return Results(
            calls=content["calls"],
            sections=content["sections"],
            skipped=content["skipped"],
            failed=content["failed"],
            rows=[Row(**row) for row in content["rows"]],
            figures=figures_from_json(content["figures"]),
            machine=content["machine"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableResults(f"{path}: not the results of a run: {error}") from error


def rounded(content: Any) -> Any:
    """Return the content with five significant digits in each number with a fraction."""
    match content:
        case float():
            return float(f"{content:.5g}")
        case dict():
            return {key: rounded(value) for key, value in content.items()}
        case list() | tuple():
            return [rounded(value) for value in content]
    return content
