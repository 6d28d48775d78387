"""Section `search`: queries under kinds of filters, in journals of each size, beside an empty authenticated call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc
from cstp_grpc.platform.embedding.embedder import Embedder
from cstp_grpc.server.wiring.embedding import build_embedder
from tests.bench.clients import OTHER_TOKEN, TOKEN, GrpcMethod, call_once, calling, cstp_method, dialled
from tests.bench.load import Series
from tests.bench.proc import memory_of
from tests.bench.processes import server
from tests.bench.results import Better
from tests.bench.run import Run, ratios
from tests.bench.synthetic_decisions import (
    CATEGORIES,
    OTHER_AGENT,
    PRIVATE_STEP,
    START,
    Vectors,
    decision_id,
    make_vectors,
    topic_texts,
    write_decisions,
)

IN_FLIGHT = (1, 16)
LIMIT = 10
SMALL = 500
"""Decisions in a short run, and the least with which memory is compared."""

Filters = Mapping[str, tuple[str, Mapping[str, Any]]]
"""The token and the filters of each kind of query."""


def measure_search(run: Run) -> None:
    """Measure each number of decisions that the run is for."""
    embedder = open_embedder(run)
    topics = np.concatenate([embedder.embed([text]) for text in topic_texts()])
    least = measure_size(run, embedder, topics, SMALL, only_memory=True)
    for size in [2 * SMALL] if run.small else run.sizes:
        resident = measure_size(run, embedder, topics, size)
        if resident is not None and least is not None:
            each = (resident - least) * 1000 / (size - SMALL)
            run.add(f"{size}.memory-per-decision", "kB", Better.LOWER, [each])


def open_embedder(run: Run) -> Embedder:
    """Return the embedder of the measured servers."""
    return build_embedder(run.provider, None, download=False, threads=1, cache_size=0, data_dir=run.folder)


def measure_size(
    run: Run, embedder: Embedder, topics: Vectors, size: int, *, only_memory: bool = False
) -> float | None:
    """Measure a journal of so many decisions, and return the MB that its server has resident."""
    run.progress(f"writing {size} decisions")
    data_dir, vectors = run.folder / f"search-{size}", make_vectors(topics, size)
    write_decisions(data_dir, embedder, vectors)
    with server(data_dir, "--provider", run.provider) as served:
        for text in topic_texts():
            call_once(served.grpc, "cstp.queryDecisions", query=text)
        memory = memory_of(served.pid)
        if not only_memory:
            measure_filters(run, served.grpc, served.pid, size)
            run.add(f"{size}.recall-at-10", "", Better.HIGHER, [measure_recall(served.grpc, topics, vectors)])
    remove_folder(data_dir)
    return None if memory is None else memory.resident


def remove_folder(folder: Path) -> None:
    """Remove the files of a data folder, of which the largest is as large as the memory of the next server."""
    for path in folder.glob("**/*"):
        if path.is_file():
            path.unlink()


def filters_of(size: int) -> Filters:
    """Return the kinds of queries: unfiltered, by category, by date, by three conditions, and of own private rows."""
    half = START.replace(tzinfo=None) + (size // 2) * (START.replace(minute=1) - START)
    three = {"category": CATEGORIES[0], "minConfidence": 0.5, "tags": ["tag-3"]}
    return {
        "no-filter": (TOKEN, {}),
        "category": (TOKEN, {"category": CATEGORIES[1]}),
        "date": (TOKEN, {"dateAfter": f"{half.isoformat()}Z"}),
        "three-filters": (TOKEN, three),
        "own-private": (OTHER_TOKEN, {"agent": OTHER_AGENT}),
    }


def measure_filters(run: Run, port: int, pid: int, size: int) -> None:
    """Measure each kind of query beside an empty call."""
    for in_flight in IN_FLIGHT:
        # One after the other, since new searches displace the results that repeated ones are answered from.
        for suffix, is_new in (("", False), ("-new", True)):
            with ExitStack() as opened:

                def series(what: str, method: GrpcMethod, opened: ExitStack = opened, n: int = in_flight) -> Series:
                    return Series(f"{what}, {size} decisions", n, opened.enter_context(calling(method, n)), [pid])

                empty = series("GetAccess", cstp_method(port, "cstp.getAccess", dict))
                measured = {
                    f"{name}{suffix}": series(
                        f"QueryDecisions, {name}{suffix}", query_method(port, token, filters, is_new)
                    )
                    for name, (token, filters) in filters_of(size).items()
                }
                run.measure([empty, *measured.values()])
            for name, each in measured.items():
                # As times as long: with one in flight the latency, with more what a call takes of the whole.
                latency, cpu = ratios(each, empty, lambda s: s.p50_ms), ratios(each, empty, lambda s: s.server_cpu_us)
                run.add(f"{size}.{name}.latency-{in_flight}", "x", Better.LOWER, latency)
                run.add(f"{size}.{name}.cpu-{in_flight}", "x", Better.LOWER, cpu)


def query_method(port: int, token: str, filters: Mapping[str, Any], is_new: bool) -> GrpcMethod:
    """Return queries for all topics in turn; new ones have a least score of their own, so that no results are kept."""
    texts, numbers = topic_texts(), count(1)

    def params() -> Mapping[str, Any]:
        number = next(numbers)
        least = {"minScore": 0.15 + number * 1e-9} if is_new else {}
        return {"query": texts[number % len(texts)], "filters": filters, "limit": LIMIT, **least}

    return cstp_method(port, "cstp.queryDecisions", params, token)


def measure_recall(port: int, topics: Vectors, vectors: Vectors) -> float:
    """Return which share of the ten most similar decisions that an agent may read are found."""
    readable = np.flatnonzero(np.arange(len(vectors)) % PRIVATE_STEP)
    found = 0
    with dialled(port) as channel:
        stub = cstp_pb2_grpc.CstpServiceStub(channel)
        for text, topic in zip(topic_texts(), topics, strict=True):
            best = readable[np.argsort(-np.vecdot(vectors, topic)[readable], kind="stable")[:LIMIT]]
            found += len(set(query_ids(stub, text)) & {decision_id(number) for number in best.tolist()})
    return found / (LIMIT * len(topics))


def query_ids(stub: cstp_pb2_grpc.CstpServiceStub, text: str) -> Sequence[str]:
    """Return the ids that a query without a filter finds."""
    request = cstp_pb2.QueryDecisionsRequest(query=text, limit=LIMIT, min_score=0.0)
    response = stub.QueryDecisions(request, metadata=(("authorization", f"Bearer {TOKEN}"),), timeout=60)
    return [decision.id for decision in response.decisions]
