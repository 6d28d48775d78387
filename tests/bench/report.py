"""The table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.load import Series


@dataclass(frozen=True)
class Group:
    """Series measured in one run, beside the no-ops of the same run by how many were in flight."""

    title: str
    series: Sequence[Series]
    noops: dict[int, Series]


def table(groups: Sequence[Group]) -> str:
    """Return the measurements as a Markdown table, with ratios to the no-op of the same run."""
    lines = ["| what | in flight | p50 ms | p99 ms | x no-op |", "|---|---|---|---|---|"]
    for group in groups:
        lines.append(f"| **{group.title}** | | | | |")
        for series in group.series:
            noop = group.noops.get(series.in_flight)
            ratio = f"{series.p50 / noop.p50:.2f}" if noop else ""
            lines.append(f"| {series.name} | {series.in_flight} | {series.p50:.3f} | {series.p99:.3f} | {ratio} |")
    return "\n".join(lines)
