"""What is aimed at, and how far a run is from it. `docs/benchmarks.md` has the same list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.results import Better, Results


@dataclass(frozen=True)
class Part:
    """One figure of an aim, how it is written, and the worst value with which the aim is kept."""

    figure: str
    limit: float
    form: str = "{:.2f}"


@dataclass(frozen=True)
class Aim:
    """One item: what is measured, what it was before, what is aimed at, and the figures that tell."""

    what: str
    before: str
    aim: str
    parts: Sequence[Part]
    separator: str = " / "

    def describe(self, results: Results) -> tuple[str, str]:
        """Return the figures of a run, and whether the aim is kept."""
        written, verdicts = [], []
        for part in self.parts:
            figure = results.figures.get(part.figure)
            if figure is None:
                written.append("-")
                continue
            written.append(part.form.format(figure.median))
            lower = figure.better is Better.LOWER
            verdicts.append(figure.median <= part.limit if lower else figure.median >= part.limit)
        if not verdicts:
            return "-", "not measured"
        if all(verdicts):
            return self.separator.join(written), "kept" if len(verdicts) == len(self.parts) else "not all measured"
        return self.separator.join(written), "missed" if not any(verdicts) else "missed in part"

    @property
    def title(self) -> str:
        """The beginning of the item, which is the same for all runs."""
        return f"{self.what}: before {self.before}; aim {self.aim}; now "

    def item(self, results: Results) -> str:
        """Return the item of a run."""
        figures, verdict = self.describe(results)
        return f"- {self.title}{figures} ({verdict})"


KINDS_OF_QUERIES = ("no-filter", "category", "date", "three-filters", "own-private")
"""The figures of the section search, for each number of decisions."""


def search_parts(size: int, in_flight: int, limit: float) -> list[Part]:
    """Return the parts of an aim for queries of each kind."""
    return [Part(f"search/{size}.{kind}.latency-{in_flight}", limit, "{:.1f}") for kind in KINDS_OF_QUERIES]


AIMS = [
    Aim(
        "CPU relative to the no-op, 16 in flight: durable check, 50 rules / the same without audit / GetAccess",
        "2.5 / 2.1 / 1.5 x",
        "1.8 / 1.5 / 1.3 x",
        [
            Part("checks/50-rules.cpu-16", 1.8),
            Part("checks/50-rules-audit-off.cpu-16", 1.5),
            Part("checks/get-access.cpu-16", 1.3, "{:.2f} x"),
        ],
    ),
    Aim(
        "latency of a durable check, 50 rules, 1 in flight",
        "-",
        "no-op + one durable transaction + 0.2 ms",
        [Part("checks/50-rules.above-parts", 0.2, "no-op + one durable transaction + {:.2f} ms")],
    ),
    Aim(
        "the engine with a realistic mix of 5 / 50 / 500 rules",
        "9 / 16 / 130 us for simpler ones",
        "10 / 20 / 110 us",
        [
            Part("guardrails/engine-5", 10, "{:.0f}"),
            Part("guardrails/engine-50", 20, "{:.0f}"),
            Part("guardrails/engine-500", 110, "{:.0f} us"),
        ],
    ),
    Aim(
        "the same, 500 rules relative to 50",
        "8 x",
        "6 x",
        [Part("guardrails/engine-500-to-50", 6, "{:.1f} x")],
    ),
    Aim(
        "an action of a batch of 100, above its share of the call and of one durable write, 5 / 50 / 500 rules",
        "-",
        "25 us",
        [
            Part("guardrails/batch-5", 25, "{:.0f}"),
            Part("guardrails/batch-50", 25, "{:.0f}"),
            Part("guardrails/batch-500", 25, "{:.0f} us"),
        ],
    ),
    Aim(
        "500 rules reloaded during calls",
        "-",
        "300 ms",
        [Part("guardrails/reload-500", 300, "{:.0f} ms")],
    ),
    Aim(
        "rules over the past add to a check, 100 000 outcomes: two over 24 hours and 7 days / one over all of them",
        "-",
        "0.1 ms",
        [Part("history/added-day", 0.1), Part("history/added-all", 0.1, "{:.2f} ms")],
    ),
    Aim(
        "CPU of QueryDecisions, 16 in flight: repeated / a new search, 1 000 / 10 000 / a new text",
        "- / 6.5 / 9 / 30 x",
        "- / 4 / 5 / 12 x",
        [
            Part("memory/query-cached.cpu-16", math.inf),
            Part("memory/query-new.cpu-16", 4.0),
            Part("large-memory/query-new.cpu-16", 5.0),
            Part("memory/query-uncached.cpu-16", 12.0, "{:.1f} x"),
        ],
    ),
    Aim(
        "CPU of AnnounceIntent, 16 in flight: repeated / a new text",
        "6 / 42 x",
        "4 / 16 x",
        [Part("memory/announce-cached.cpu-16", 4.0), Part("memory/announce-uncached.cpu-16", 16.0, "{:.1f} x")],
    ),
    Aim(
        "QueryDecisions, cached text, 100 000: no filter / category / date / three filters / own private rows",
        "22 / 10.5 / 10.9 / 5.9 / 9.8 x",
        "6 x an empty call",
        search_parts(100_000, 1, 6.0),
    ),
    Aim("the same with 16 in flight", "5 to 22 x", "6 x", search_parts(100_000, 16, 6.0)),
    Aim("the same with 10 000, 1 in flight", "-", "3 x", search_parts(10_000, 1, 3.0)),
    Aim("the same with 1 000 000, 1 in flight", "-", "18 x", search_parts(1_000_000, 1, 18.0)),
    Aim("recall@10 with 100 000", "1.00", "0.98", [Part("search/100000.recall-at-10", 0.98)]),
    Aim(
        "the slowest screen of the console, 10 000 decisions, 100 000 audit entries: p50 / the slowest call",
        "-",
        "300 ms",
        [Part("console/slowest-page.p50", 300, "{:.0f}"), Part("console/slowest-page.max", 300, "{:.0f} ms")],
    ),
    Aim("RouteToLiaisonAgent", "6.6 x", "3.5 x", [Part("liaison/route.p50", 3.5, "{:.2f} x")]),
    Aim(
        "the bridge adds to a check: p50 / CPU, relative to the check itself",
        "0.6 to 0.9 ms / 1.7 x",
        "0.4 ms / 0.8 x",
        [Part("memory/bridge.adds", 0.4, "{:.2f} ms"), Part("memory/bridge.added-cpu-16", 0.8, "{:.2f} x")],
    ),
    Aim(
        "CPU of SendMessage over A2A, server and bridge, 16 in flight",
        "24 x",
        "12 x",
        [Part("memory/send-message-jsonrpc.all-cpu-16", 12.0, "{:.1f} x")],
    ),
    Aim(
        "p99 of checks with 64 queries in flight",
        "3 to 6 x idle",
        "2.5 x idle",
        [
            Part("contention/check-beside-queries-1.p99", 2.5, "{:.1f} x idle with 1 check in flight"),
            Part("contention/check-beside-queries-16.p99", 2.5, "{:.1f} x with 16"),
        ],
        ", ",
    ),
    Aim(
        "4 workers, each held to a quarter of a core, relative to one: calls/s / CPU per call",
        "2.4 to 3.0 x / -",
        "3.4 x / 1.15 x",
        [Part("workers/four.throughput", 3.4, "{:.2f} x"), Part("workers/four.cpu", 1.15, "{:.2f} x")],
    ),
    Aim(
        'ready after kill -9, 10 000 decisions, both doors, relative to `python -c "import grpc, numpy, sqlalchemy"`',
        "4 to 5 x",
        "2.5 x",
        [Part("start/ready-after-kill.wall", 2.5, "{:.1f} x")],
    ),
    Aim(
        "memory idle, server + bridge",
        "265 + 77 MB, and 100 MB of Chroma",
        "190 + 60 MB",
        [Part("start/memory-server.rss", 190, "{:.0f}"), Part("start/memory-bridge.rss", 60, "{:.0f} MB")],
        " + ",
    ),
    Aim(
        "CPU of `cstp check` / a hook, both over HTTP / a hook without a server, as `cstp install` writes it / "
        "without the resident process / `cstp --help`, x `python -c pass`",
        "15 / 7.6 / 17 / 71 / 3.8 x",
        "6 / 5 / 15 / 15 / 4 x",
        [
            Part("start/check-http.cpu", 6.0, "{:.1f}"),
            Part("start/hook-http.cpu", 5.0, "{:.1f}"),
            Part("start/hook-resident.cpu", 15.0, "{:.1f}"),
            Part("start/hook-local.cpu", 15.0, "{:.0f}"),
            Part("start/help.cpu", 4.0, "{:.1f} x"),
        ],
    ),
]


def aims_list(results: Results) -> str:
    """Return the aims beside the figures of a run, as a Markdown list."""
    return "\n".join(aim.item(results) for aim in AIMS)
