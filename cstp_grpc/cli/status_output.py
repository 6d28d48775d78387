"""Output of agents, peers and the state of a server for people."""

from __future__ import annotations

from collections.abc import Sequence

from cstp_grpc.cli.answer_fields import entry_text, enum_word, field_table, field_texts, format_instant, print_listing
from cstp_grpc.cli.console import Console, Text
from cstp_grpc.cli.output import to_printable
from cstp_grpc.common.counted_nouns import count_noun, count_nouns
from cstp_grpc.gen.cstp.v1 import options_pb2, status_pb2, types_pb2

MEBIBYTE = 1 << 20


def print_agents(console: Console, found: Sequence[status_pb2.KnownAgent]) -> None:
    def row(agent: status_pb2.KnownAgent) -> tuple[str | Text, ...]:
        counts = agent.counts
        kinds = [enum_word(status_pb2.CredentialKind, each).replace("_", " ") for each in agent.credentials]
        details = [
            ", ".join(kinds) or "no credential",
            " ".join(enum_word(options_pb2.Permission, each) for each in agent.permissions),
            *field_texts(agent, "since {first_call_at}"),
            count_nouns(
                (counts.checks, "check"), (counts.announcements, "announcement"), (counts.decisions, "decision")
            ),
            f"{counts.blocked} blocked" if counts.blocked else "",
            f"{counts.refused_calls} refused" if counts.refused_calls else "",
        ]
        last = format_instant(agent.last_call_at) if agent.HasField("last_call_at") else "never called"
        return last, entry_text(agent.name, details)

    print_listing(console, found, row, "No matching agents.")


def print_peers(console: Console, found: Sequence[status_pb2.PeerHealth]) -> None:
    def row(peer: status_pb2.PeerHealth) -> tuple[str | Text, ...]:
        is_healthy = peer.status == types_pb2.PEER_STATUS_ANSWERED
        state = "healthy" if is_healthy else enum_word(types_pb2.PeerStatus, peer.status).replace("_", " ")
        missing = [enum_word(options_pb2.Permission, each) for each in peer.missing_permissions]
        details = [
            peer.url,
            f"for {', '.join(peer.categories)}" if peer.categories else "",
            f"does not permit us to {' or '.join(missing)}" if missing else "",
            f"circuit breaker {peer.breaker.replace('_', ' ')}" if peer.breaker != "closed" else "",
            peer.error,
        ]
        return (
            "required" if peer.required else "advisory",
            Text(state, style="green" if is_healthy else "red"),
            f"{peer.latency_ms:.0f} ms",
            entry_text(" ".join(filter(None, (peer.name, peer.version))), details),
        )

    print_listing(console, found, row, "The server has no peers; `cstp peers add URL` adds one.")


def print_status(console: Console, found: status_pb2.GetServerStatusResponse) -> None:
    """Print the state of a server as a table, and its warnings below."""
    rules, database, search, processes = found.rules, found.database, found.search, found.processes
    stale = (
        f"; changed files failed to load at {format_instant(rules.failed_at)}" if rules.HasField("failed_at") else ""
    )
    size = f", {database.size_bytes / MEBIBYTE:.1f} MiB" if database.HasField("size_bytes") else ""
    answer = f"answers in {database.latency_ms:.1f} ms" if database.answers else "does not answer"
    memory = f", {processes.memory_bytes / MEBIBYTE:.0f} MiB" if processes.memory_bytes else ""
    waiting = [
        f"{queue.name} {queue.waiting}" + (f" ({queue.oldest_seconds:.0f} s)" if queue.oldest_seconds >= 1 else "")
        for queue in found.queues
    ]
    console.print(Text(to_printable(f"{found.agent} {found.version}"), style="bold"))
    console.print(
        field_table(
            [
                ("started", format_instant(found.started_at)),
                ("modules", ", ".join(found.modules)),
                ("rules", f"{count_noun(rules.guardrails.count, 'rule')}, version {rules.guardrails.version}{stale}"),
                ("database", f"{database.kind}, {answer}, migration {database.migration or '-'}{size}"),
                ("search", f"{search.model}, {describe_engine(search)}"),
                ("queues", ", ".join(waiting)),
                (
                    "process",
                    f"{processes.pid}, one of {processes.workers}, {processes.calls_in_progress} calls in progress,"
                    f" {processes.open_streams} open streams{memory}",
                ),
            ]
        )
    )
    for warning in found.warnings:
        console.print(Text(f"warning: {to_printable(warning.subject)}: {to_printable(warning.message)}", "yellow"))


def describe_engine(search: status_pb2.SearchStatus) -> str:
    """Return where searches find decisions, and whether all are there."""
    if search.index == "memory":
        return f"{count_noun(search.decisions_in_memory, 'decision')} in memory"
    lag = f", lacks {count_noun(search.index_lag, 'change')}" if search.index_lag else ""
    return f"{search.index} {'ready' if search.index_ready else 'not ready'}{lag}"
