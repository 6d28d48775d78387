"""The printed tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tests.bench.results import Figure, Results

ROWS = "| what | in flight | p50 ms | p99 ms | calls/s | server CPU us | bridge CPU us |"


def rows_table(results: Results) -> str:
    """Return the measurements as a Markdown table: medians of the rounds."""
    lines = [ROWS, "|---|---|---|---|---|---|---|"]
    section = ""
    for row in results.rows:
        if row.section != section:
            section = row.section
            lines.append(f"| **{section}** | | | | | | |")
        cpu = [write_median(values) for values in (row.server_cpu_us, row.bridge_cpu_us)]
        latency = f"{statistics.median(row.p50_ms):.3f} | {statistics.median(row.p99_ms):.3f}"
        rate = f"{statistics.median(row.calls_per_second):.0f}"
        lines.append(f"| {row.what} | {row.in_flight} | {latency} | {rate} | {' | '.join(cpu)} |")
    return "\n".join(lines)


def write_median(values: Sequence[float] | None) -> str:
    """Return the median of the rounds without a fraction; nothing if there are none."""
    return f"{statistics.median(values):.0f}" if values else ""


def figures_table(results: Results) -> str:
    """Return the figures as a Markdown table: their medians, and the least and the greatest of the rounds."""
    lines = ["| figure | median | rounds |", "|---|---|---|"]
    lines += [f"| {name} | {write_figure(figure)} |" for name, figure in results.figures.items()]
    return "\n".join(lines)


def write_figure(figure: Figure) -> str:
    """Return the median with its unit, and the range of the rounds."""
    return f"{figure.median:.3g} {figure.unit} | {min(figure.rounds):.3g} to {max(figure.rounds):.3g}"
