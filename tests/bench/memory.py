"""Section `memory`: searching decisions and announcing intents, over gRPC, over the bridge and as A2A messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from tests.bench.clients import Method, Parameters, a2a_method, calling, cstp_method, jsonrpc_method, noop_method
from tests.bench.load import Sample, Series
from tests.bench.processes import Bridge, Served, bridge, server
from tests.bench.results import Better
from tests.bench.run import Run

IN_FLIGHT = (1, 16)
FEW, MANY = 1_000, 10_000
"""How many decisions there are."""


def measure_memory(run: Run) -> None:
    """Measure what reads decisions, with few of them, and the bridge."""
    with (
        server(run.decisions(FEW), "--provider", run.provider) as served,
        bridge(served.grpc, run.folder) as bridged,
        ExitStack() as opened,
    ):
        series = series_factory(opened, served, bridged)
        parameters = Parameters()
        check, query = ("cstp.checkGuardrails", parameters.check), ("cstp.queryDecisions", parameters.query_cached)
        announce = ("cstp.announceIntent", parameters.announce)
        new_query = cstp_method(served.grpc, "cstp.queryDecisions", parameters.query_new)
        new_announce = cstp_method(served.grpc, "cstp.announceIntent", parameters.announce_new)
        uncached = cstp_method(served.grpc, "cstp.queryDecisions", parameters.query_uncached)
        announce_uncached = cstp_method(served.grpc, "cstp.announceIntent", parameters.announce_uncached)
        send = jsonrpc_method(bridged.http, "SendMessage", parameters.message, "/a2a/")
        noop = series("no-op", 1, noop_method(served.noop))
        one = {
            "query-cached": series("QueryDecisions, cached text", 1, cstp_method(served.grpc, *query)),
            "query-new": series("QueryDecisions, cached text, new search", 1, new_query),
            "query-uncached": series("QueryDecisions, uncached text", 1, uncached),
            "announce-cached": series("AnnounceIntent, cached text", 1, cstp_method(served.grpc, *announce)),
            "announce-new": series("AnnounceIntent, cached text, new search", 1, new_announce),
            "check": series("CheckGuardrails, gRPC", 1, cstp_method(served.grpc, *check)),
            "check-bridge": series("CheckGuardrails, bridge", 1, jsonrpc_method(bridged.http, *check)),
            "query-bridge": series("QueryDecisions, bridge", 1, jsonrpc_method(bridged.http, *query)),
            "announce-bridge": series("AnnounceIntent, bridge", 1, jsonrpc_method(bridged.http, *announce)),
            "send-message-grpc": series("SendMessage, gRPC", 1, a2a_method(bridged.a2a, parameters.message)),
            "send-message-jsonrpc": series("SendMessage, JSON-RPC", 1, send),
        }
        run.measure([noop, *one.values()])
        compare_all(run, one, noop)
        compare_bridge(run, one["check-bridge"], one["check"], noop)
        compare_added_cpu(run, one["check-bridge"], one["check"])
        noop = series("no-op", 16, noop_method(served.noop))
        many = {
            "query-cached": series("QueryDecisions, cached text", 16, cstp_method(served.grpc, *query)),
            "query-new": series("QueryDecisions, cached text, new search", 16, new_query),
            "query-uncached": series("QueryDecisions, uncached text", 16, uncached),
            "announce-cached": series("AnnounceIntent, cached text", 16, cstp_method(served.grpc, *announce)),
            "announce-new": series("AnnounceIntent, cached text, new search", 16, new_announce),
            "announce-uncached": series("AnnounceIntent, uncached text", 16, announce_uncached),
            "check": series("CheckGuardrails, gRPC", 16, cstp_method(served.grpc, *check)),
            "check-bridge": series("CheckGuardrails, bridge", 16, jsonrpc_method(bridged.http, *check)),
            "announce-bridge": series("AnnounceIntent, bridge", 16, jsonrpc_method(bridged.http, *announce)),
            "send-message-jsonrpc": series("SendMessage, JSON-RPC", 16, send),
        }
        run.measure([noop, *many.values()])
        compare_all(run, many, noop)
        compare_added_cpu(run, many["check-bridge"], many["check"])


def measure_large_memory(run: Run) -> None:
    """Measure what reads decisions, with many of them."""
    with (
        server(run.decisions(MANY), "--provider", run.provider) as served,
        ExitStack() as opened,
    ):
        series = series_factory(opened, served)
        parameters = Parameters()
        query = cstp_method(served.grpc, "cstp.queryDecisions", parameters.query_cached)
        new_query = cstp_method(served.grpc, "cstp.queryDecisions", parameters.query_new)
        announce = cstp_method(served.grpc, "cstp.announceIntent", parameters.announce)
        for n in IN_FLIGHT:
            noop = series("no-op", n, noop_method(served.noop))
            measured = {
                "query-cached": series("QueryDecisions, cached text", n, query),
                "query-new": series("QueryDecisions, cached text, new search", n, new_query),
                "announce-cached": series("AnnounceIntent, cached text", n, announce),
            }
            run.measure([noop, *measured.values()])
            compare_all(run, measured, noop)


def series_factory(
    opened: ExitStack, served: Served, bridged: Bridge | None = None
) -> Callable[[str, int, Method], Series]:
    """Return a factory of series of calls of a server and a bridge."""

    def make(what: str, in_flight: int, method: Method) -> Series:
        through = bridged is not None and method.port in (bridged.http, bridged.a2a)
        caller = opened.enter_context(calling(method, in_flight))
        return Series(what, in_flight, caller, [served.pid], [bridged.pid] if bridged and through else [])

    return make


def compare_all(run: Run, measured: Mapping[str, Series], noop: Series) -> None:
    """Add the ratios of all series."""
    for name, series in measured.items():
        run.compare(name, series, noop)
        if series.bridge_pids:
            compare_bridge_cpu(run, name, series, noop)


def compare_bridge_cpu(run: Run, name: str, series: Series, noop: Series) -> None:
    """Add the bridge's CPU per call beside the server's for the no-op, and that of both together."""
    for what, read in (("bridge-cpu", bridge_cpu), ("all-cpu", total_cpu)):
        shares = zip(series.values(read), noop.values(total_cpu), strict=False)
        run.add(f"{name}.{what}-{series.in_flight}", "x", Better.LOWER, [spent / least for spent, least in shares])


def compare_added_cpu(run: Run, through: Series, direct: Series) -> None:
    """Add what the bridge adds to the CPU of a call, its own and that of the server, beside the CPU of the call."""
    pairs = zip(through.values(total_cpu), direct.values(total_cpu), strict=False)
    name = f"bridge.added-cpu-{through.in_flight}"
    run.add(name, "x", Better.LOWER, [(spent - alone) / alone for spent, alone in pairs])


def compare_bridge(run: Run, through: Series, direct: Series, noop: Series) -> None:
    """Add what the bridge adds to the latency of a call, in milliseconds and beside the no-op."""
    medians = [each.values(lambda s: s.p50_ms) for each in (through, direct, noop)]
    adds = [beside - alone for beside, alone, _ in zip(*medians, strict=True)]
    run.add("bridge.adds", "ms", Better.LOWER, adds)
    run.add("bridge.p50", "x", Better.LOWER, [added / least for added, least in zip(adds, medians[2], strict=True)])


def bridge_cpu(sample: Sample) -> float | None:
    """Return the bridge's CPU of a sample."""
    return sample.bridge_cpu_us


def total_cpu(sample: Sample) -> float | None:
    """Return the CPU of the server and of the bridge, if there is one, of a sample."""
    return None if sample.server_cpu_us is None else sample.server_cpu_us + (sample.bridge_cpu_us or 0)
