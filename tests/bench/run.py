"""What the sections of the benchmark share: the settings of a run, its folder, and where figures go."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cstp_grpc.gen.cstp.v1 import journal_pb2_grpc
from tests.bench import corpus
from tests.bench.clients import TOKEN, dialled
from tests.bench.load import Sample, Series, measure
from tests.bench.processes import server
from tests.bench.results import Better, Results


@dataclass
class Run:
    """One run of the benchmark."""

    folder: Path
    rounds: int
    calls: int
    results: Results
    provider: str = "minilm"
    small: bool = False
    """Whether this only shows that it works."""
    data: Path | None = None
    """The folder of the corpora on which searches are measured; None without one."""
    sizes: Sequence[int] = (1_000, 10_000, 100_000)
    """The numbers of decisions in the section search."""
    title: str = ""
    """The section that is running."""
    _filled: dict[int, Path] = field(default_factory=dict)

    def progress(self, text: str) -> None:
        """Show what is going on, if someone watches."""
        if sys.stderr.isatty():
            print(f"\r\033[K{self.title}: {text}"[:150], end="", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Write a line that stays."""
        self.progress("")
        end = "\r" if sys.stderr.isatty() else ""
        print(f"{end}{self.title}: {text}", file=sys.stderr, flush=True)

    def measure(self, series: Sequence[Series]) -> None:
        """Measure series beside each other, and add them to the table."""
        measure(series, self.rounds, self.calls, self.progress)
        self.list_rows(series)

    def sample(self, series: Sequence[Series]) -> None:
        """Measure one round of series, without adding them to the table."""
        measure(series, 1, self.calls, lambda _: None)

    def list_rows(self, series: Sequence[Series]) -> None:
        """Add series to the table."""
        self.results.rows += [each.row(self.title) for each in series]

    def add(self, name: str, unit: str, better: Better, rounds: Sequence[float]) -> None:
        """Add a figure of the running section; none if it could not be measured."""
        if rounds:
            self.results.add(f"{self.title}/{name}", unit, better, rounds)

    def skip(self, beginning: str, reason: str) -> None:
        """Say why the figures whose names begin so cannot be measured here."""
        self.results.skipped[f"{self.title}/{beginning}"] = reason

    def compare(self, name: str, series: Series, base: Series) -> None:
        """Add the ratios of a series to its base, round by round: latency for one call in flight, else the rate."""
        if series.in_flight == 1:
            self.add(f"{name}.p50", "x", Better.LOWER, ratios(series, base, lambda s: s.p50_ms))
        else:
            self.add(f"{name}.throughput", "x", Better.HIGHER, ratios(series, base, lambda s: s.calls_per_second))
        self.add(f"{name}.cpu-{series.in_flight}", "x", Better.LOWER, ratios(series, base, lambda s: s.server_cpu_us))

    def decisions(self, size: int) -> Path:
        """Return a data folder with so many decisions, made once a run. No two servers may use it at a time."""
        size = size // 10 if self.small else size
        if size not in self._filled:
            self.progress(f"importing {size} decisions")
            data_dir = self.folder / f"decisions-{size}"
            with server(data_dir, "--provider", self.provider) as served, dialled(served.grpc) as channel:
                stub = journal_pb2_grpc.JournalServiceStub(channel)
                metadata = (("authorization", f"Bearer {TOKEN}"),)
                stub.ImportDecisions(corpus.decisions(size), metadata=metadata, timeout=1200)
            self._filled[size] = data_dir
        return self._filled[size]


def ratios(series: Series, base: Series, read: Callable[[Sample], float | None]) -> list[float]:
    """Return one value of a series beside that of its base, round by round."""
    return [value / beside for value, beside in zip(series.values(read), base.values(read), strict=True)]
