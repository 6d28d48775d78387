"""Section `console`: each screen of the console, as a signed-in person opens it, with the calls that it makes."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import numpy as np

from tests.bench import console_journal
from tests.bench.clients import TOKEN
from tests.bench.console_journal import AGENTS, RULES, correlation_of, latest_hundred, make_decision, write_trail
from tests.bench.load import OneByOne, Series, measure
from tests.bench.processes import server, stop
from tests.bench.results import Better, Row
from tests.bench.run import Run, ratios
from tests.bench.search_speed import open_embedder
from tests.bench.synthetic_decisions import CATEGORIES, decision_id, make_vectors, topic_texts, write_decisions
from tests.modules.intent_layer.trees import write_large_tree

DECISIONS, ENTRIES = 10_000, 100_000
FOLDERS, NODES = 200, 20
"""Folders of a project, and those of them that have a node."""
GETS = 24
"""Requests of a round for each screen."""
BASE = "live"
"""The screen that is built without a call, beside which the others are measured."""
REFUSALS = ("This cannot be shown", "The server does not answer", "Your permissions do not include this page")
TIMING = re.compile(r"([\w.]+);dur=([\d.]+)")


class Person:
    """Somebody who has signed in, over a connection that stays open, as that of a browser."""

    def __init__(self, url: str) -> None:
        self.calls: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        """Milliseconds of each call, by the path of the screen and the method."""
        self.pages: dict[str, list[float]] = defaultdict(list)
        """Bytes of each page that was read, compressed."""
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
        self._headers = {"Accept-Encoding": "gzip"}
        form = {"Origin": url, "Content-Type": "application/x-www-form-urlencoded"}
        self._connection.request("POST", "/sign-in", urlencode({"token": TOKEN}), form)
        response = self._connection.getresponse()
        response.read()
        if response.status != 200:
            raise RuntimeError(f"the console answered the sign-in with {response.status}")
        self._headers["Cookie"] = response.headers["Set-Cookie"].partition(";")[0]

    def open_page(self, path: str) -> bytes:
        """Return a page, compressed as it comes."""
        self._connection.request("GET", path, headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status}")
        for method, milliseconds in TIMING.findall(response.headers["Server-Timing"]):
            self.calls[path][method].append(float(milliseconds))
        return body

    def check_page(self, path: str) -> None:
        """Raise RuntimeError if a page, or a part of it, shows a failure."""
        text = gzip.decompress(self.open_page(path)).decode()
        if found := next((each for each in REFUSALS if each in text), None):
            raise RuntimeError(f"{path}: {found}")


def measure_console(run: Run) -> None:
    """Measure on SQLite."""
    decisions, entries = (DECISIONS // 10, ENTRIES // 100) if run.small else (DECISIONS, ENTRIES)
    data_dir, project = run.folder / "console", run.folder / "console-project"
    fill_journal(run, data_dir, decisions, entries)
    write_large_tree(project, FOLDERS, NODES)
    with (
        server(data_dir, "--provider", run.provider, "--project", str(project)) as served,
        console(served.grpc) as (url, pid),
    ):
        measure_screens(run, Person(url), screens(decisions, entries), served.pid, pid)


def fill_journal(run: Run, data_dir: Path, decisions: int, entries: int) -> None:
    """Write the journal of a data folder."""
    run.progress(f"writing {decisions} decisions")
    embedder = open_embedder(run)
    topics = np.concatenate([embedder.embed([text]) for text in topic_texts()])
    now = console_journal.utc_now()
    make = partial(make_decision, count=decisions, now=now)
    write_decisions(data_dir, embedder, make_vectors(topics, decisions), make)
    run.progress(f"writing {entries} audit entries")
    write_trail(data_dir, entries, now)


@contextmanager
def console(port: int) -> Iterator[tuple[str, int]]:
    """Run a console of a server, and yield its URL and its process."""
    command = [sys.executable, "-m", "tests.bench.console_process", f"grpc://127.0.0.1:{port}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the console did not start: exit code {process.wait()}")
        yield json.loads(line)["url"], process.pid
    finally:
        stop(process)


def screens(decisions: int, entries: int) -> Mapping[str, str]:
    """Return the paths of the measured pages by their names: each screen, and its filters."""
    hundred = latest_hundred(entries)
    correlation, approval = correlation_of(hundred, 0), console_journal.approval_of(hundred)
    question = quote(topic_texts()[0])
    return {
        BASE: "/live",
        "overview": "/",
        "approvals": "/approvals",
        "approvals-granted": "/approvals?status=granted",
        "approval": f"/approvals/{approval}",
        "decisions": "/decisions",
        "decisions-search": f"/decisions?query={question}",
        "decisions-filters": f"/decisions?category={CATEGORIES[1]}&outcome=failure&since=90d",
        "decisions-due": "/decisions?due=1",
        "decision": f"/decisions/{decision_id(decisions // 2 + 1)}",
        "audit": "/audit",
        "audit-month": "/audit?since=30d",
        "audit-words": "/audit?words=payment+retire&since=30d",
        "audit-blocked": "/audit?verdict=blocked&since=30d",
        "audit-category": f"/audit?category={CATEGORIES[2]}&stakes=high&since=30d",
        "audit-agent": f"/audit?agent={AGENTS[3]}&since=30d",
        "audit-guardrail": f"/audit?guardrail={RULES[4]}&since=30d",
        "audit-story": f"/audit/story?correlation={correlation}",
        "audit-verify": "/audit/verify",
        "rulebooks": "/rulebooks",
        "rule": f"/rulebooks/rule?id={RULES[4]}",
        "playground": "/rulebooks/playground",
        "calibration": "/calibration",
        "calibration-agent": f"/calibration?agent={AGENTS[3]}&since=90d",
        "context": "/context?project=bench&path=folder1",
        "agents": "/agents",
        "liaison": "/liaison",
        "federation": "/peers",
        "tokens": "/tokens",
        "server": "/server",
    }


def measure_screens(run: Run, person: Person, paths: Mapping[str, str], server_pid: int, pid: int) -> None:
    """Measure all screens, which take turns; a few lines of each are those of its calls."""
    for path in paths.values():
        person.check_page(path)

    def series(name: str, path: str) -> Series:
        return Series(f"{name}: page", 1, OneByOne(lambda: path, person.open_page), [server_pid], [pid])

    measured = {name: series(name, path) for name, path in paths.items()}
    measure(list(measured.values()), run.rounds, min(run.calls, GETS), run.progress)
    slowest = {"p50": [0.0] * run.rounds, "max": [0.0] * run.rounds}
    for name, each in measured.items():
        run.list_rows([each])
        list_calls(run, name, person.calls[paths[name]])
        # A round has too few pages for another one than the slowest to be the 99th percentile.
        figures = {"p50": each.values(lambda s: s.p50_ms), "max": each.values(lambda s: s.p99_ms)}
        for kind, values in figures.items():
            slowest[kind] = list(map(max, slowest[kind], values))
        if name != BASE:
            run.add(f"{name}.p50", "x", Better.LOWER, ratios(each, measured[BASE], lambda s: s.p50_ms))
    for kind, values in slowest.items():
        run.add(f"slowest-page.{kind}", "ms", Better.LOWER, values)


def list_calls(run: Run, screen: str, calls: Mapping[str, list[float]]) -> None:
    """Add the calls of a screen to the table, with the slowest one as 99th percentile."""
    for method, spent in calls.items():
        rate = 1_000 * len(spent) / sum(spent)
        row = Row(run.title, f"{screen}: {method}", 1, [statistics.median(spent)], [max(spent)], [rate])
        run.results.rows.append(row)
