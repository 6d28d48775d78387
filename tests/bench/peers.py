"""Section `peers`: CheckGuardrails beside Cerbos and OPA, which have the same rules and decide about the same action.

All are measured in one run, in turns, by the same light clients. Before, each server is asked about actions that no
rule, one rule and many rules deny, and must name exactly these rules. OPA is asked over HTTP, and the others over gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from tests.bench.clients import Method, connections, noop_method
from tests.bench.load import InFlight, Sample, Series
from tests.bench.peer_policies import cstp_rulebook, prove_answers
from tests.bench.peer_servers import CERBOS, OPA, Peer, PeerMissing, cerbos_server, cstp_peer, opa_server
from tests.bench.processes import server
from tests.bench.results import Better
from tests.bench.run import Run, ratios

SIZES = (5, 50, 500)
IN_FLIGHT = (1, 16)
OURS, OURS_UNAUDITED = "cstp", "cstp-audit-off"
PEERS: Mapping[str, str] = {
    OURS: "CheckGuardrails, durable audit",
    OURS_UNAUDITED: "CheckGuardrails, audit off",
    "cerbos": f"Cerbos {CERBOS}, audit off",
    "cerbos-audited": f"Cerbos {CERBOS}, audit in a file, not durable",
    "opa": f"OPA {OPA}, over HTTP",
}
"""The measured servers by the names of their figures."""


def measure_peers(run: Run) -> None:
    """Measure all servers with rulebooks of several sizes."""
    for size in SIZES:
        measure_size(run, size)


def measure_size(run: Run, size: int) -> None:
    """Measure all servers with so many rules, beside a no-op of our server."""
    rulebook = str(cstp_rulebook(run.folder, size))
    with ExitStack() as opened:
        served = opened.enter_context(server(run.folder / f"peers-{size}", "--rules", rulebook))
        unaudited = server(run.folder / f"peers-no-audit-{size}", "--rules", rulebook, "--no-audit")
        peers = {OURS: cstp_peer(served), OURS_UNAUDITED: cstp_peer(opened.enter_context(unaudited))}
        others = {
            "cerbos": cerbos_server(run.folder, size, audited=False),
            "cerbos-audited": cerbos_server(run.folder, size, audited=True),
            "opa": opa_server(run.folder, size),
        }
        for name, starting in others.items():
            try:
                peers[name] = opened.enter_context(starting)
            except PeerMissing as error:
                run.skip(f"{size}-rules.{name}", str(error))
        for name, peer in peers.items():
            prove_answers(name, size, peer.judge, stops_early=peer.stops_early)
        compare_peers(run, size, noop_method(served.noop), served.pid, peers)


def compare_peers(run: Run, size: int, noop: Method, noop_pid: int, peers: Mapping[str, Peer]) -> None:
    """Measure servers in turns, and add their ratios to the no-op, and those of ours to the others."""
    with ExitStack() as opened:

        def series(what: str, method: Method, in_flight: int, pid: int) -> Series:
            # For one call at a time too: an ordinary client of gRPC and one of HTTP cost differently.
            caller = InFlight(method.request, *connections(opened, method, in_flight))
            return Series(what, in_flight, caller, [pid])

        noops = [series("no-op", noop, n, noop_pid) for n in IN_FLIGHT]
        found = {
            name: [series(f"{PEERS[name]}, {size} rules", peer.method, n, peer.pid) for n in IN_FLIGHT]
            for name, peer in peers.items()
        }
        pairs = zip(noops, *found.values(), strict=True)
        run.measure([each for together in pairs for each in together])
    for name, measured in found.items():
        for one, beside in zip(measured, noops, strict=True):
            run.compare(f"{size}-rules.{name}", one, beside)
    for ours in (OURS, OURS_UNAUDITED):
        for other in [name for name in peers if name not in (OURS, OURS_UNAUDITED)]:
            values = ratios(found[ours][-1], found[other][-1], calls_per_second)
            run.add(f"{size}-rules.{ours}-to-{other}", "x", Better.HIGHER, values)


def calls_per_second(sample: Sample) -> float:
    """Return the rate of a sample."""
    return sample.calls_per_second
