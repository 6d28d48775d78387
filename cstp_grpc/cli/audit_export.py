"""The commands that follow and export the audit trail, and write and verify evidence from it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cstp_grpc.cli import audit_verification
from cstp_grpc.cli.command_decorators import (
    FILE,
    LIMIT,
    choice_option,
    config_option,
    current_state,
    instant_option,
    with_client,
    with_output,
)
from cstp_grpc.cli.output import Output, ReconnectNotices
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.extras import require_extra
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract.errors import ServerUnreachable, Unavailable

if TYPE_CHECKING:
    from cstp_grpc.cli import decision_output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.gen import calls
    from cstp_grpc.gen.cstp.v1 import audit_pb2
else:
    audit_pb2 = LazyModule("cstp_grpc.gen.cstp.v1.audit_pb2")
    calls = LazyModule("cstp_grpc.gen.calls")
    decision_output = LazyModule("cstp_grpc.cli.decision_output")

FORMATS: Final = ("jsonl", "csv", "cloudevents")
FOLLOW_SECONDS: Final = 1.0
"""Seconds between two requests of `tail --follow`."""
OVERLAP: Final = timedelta(seconds=30)
"""How far back `tail --follow` reads: an entry gets its time before it is on disk. Chosen: three times the default of
`storage.write_timeout_seconds`."""
MAX_REVIEWS: Final = 1000

after_option = instant_option("--after", "From then on.")
before_option = instant_option("--before", "Until then.")


@click.command(name="tail")
@click.option("--limit", "-n", type=LIMIT, default=10, show_default=True, help="Number of existing entries to print.")
@click.option("--follow", "-f", is_flag=True, help="Print new entries too, until Ctrl-C.")
@with_client
def tail_command(client: CstpClient, out: Output, limit: int, *, follow: bool) -> None:
    """Print the last entries of the trail. The latest is at the end. Needs the permission admin.

    With --json, each entry is an object on a line.

    \b
    Examples:
      cstp audit tail -n 20
      cstp audit tail --follow --json
    """
    last = list(islice(client.list_audit_entries(page_size=min(limit, 1000)), limit))[::-1]
    print_entries(out, last)
    if follow:
        # Ctrl-C is the regular end.
        with suppress(KeyboardInterrupt):
            follow_entries(client, out, last)


def follow_entries(client: CstpClient, out: Output, printed: Sequence[audit_pb2.AuditEntry]) -> None:
    """Print the entries that come, again and again, until it is interrupted."""
    notices = ReconnectNotices(out)
    # What was there before the first that was printed is not new, though it is within the overlap.
    first = int(printed[0].id) if printed else 0
    known = {entry.id: entry.timestamp.ToDatetime(UTC) for entry in printed}
    latest = max(known.values(), default=datetime.now(UTC))
    pause = threading.Event()
    while True:
        pause.wait(FOLLOW_SECONDS)
        try:
            found = list(client.list_audit_entries(after=latest - OVERLAP, page_size=1000))[::-1]
        except (Unavailable, ServerUnreachable) as error:
            notices.report(error, FOLLOW_SECONDS)
            continue
        notices.reset()
        new = [entry for entry in found if entry.id not in known and int(entry.id) > first]
        print_entries(out, new)
        known |= {entry.id: entry.timestamp.ToDatetime(UTC) for entry in new}
        latest = max([latest, *known.values()])
        known = {name: at for name, at in known.items() if at >= latest - OVERLAP}


def print_entries(out: Output, entries: Sequence[audit_pb2.AuditEntry]) -> None:
    if out.json_wanted:
        for entry in entries:
            out.json_line(entry)
    elif entries:
        out.show(lambda console: decision_output.print_audit_entries(console, entries))


@click.command(name="export")
@choice_option("--format", FORMATS, "Output format.", "form")
@after_option
@before_option
@audit_verification.reads_trail
def export_command(
    read: audit_verification.TrailReader, out: Output, form: str, after: datetime | None, before: datetime | None
) -> None:
    """Export the audit trail. Prints its entries in the order in which they were added, with their hashes.

    It reads the database of the configuration while servers go on, or with --agent asks a server. JSON Lines have the
    members of the protocol's audit log and all other fields of an entry.

    \b
    Examples:
      cstp audit export --after 2026-01-01 > trail.jsonl
      cstp audit export --format csv --agent grpc://cstp.example.com:50051 > trail.csv
      cstp audit export --format cloudevents > events.jsonl
    """
    for part in read(calls.export_audit(format=form, after=after, before=before)):
        out.write_verbatim(part.text)


@click.command(name="evidence")
@click.option(
    "--decision", "decision_id", metavar="ID", help="Only entries about this decision, its causes and its outcome."
)
@after_option
@before_option
@audit_verification.checkpoints_option
@audit_verification.key_option
@audit_verification.reads_trail
def evidence_command(
    read: audit_verification.TrailReader,
    out: Output,
    decision_id: str | None,
    after: datetime | None,
    before: datetime | None,
    checkpoint_file: Path | None,
    key_files: tuple[Path, ...],
) -> None:
    """Print evidence for a decision or a period. It is a JSON document with the proof that nothing is missing or
    changed.

    It contains the entries, the rules and their version behind each answer, the outcomes of decisions, the result of
    verifying the whole trail now, and a proof for each entry up to a signed checkpoint (`cstp audit verify-evidence`).
    With --agent, the server signs a checkpoint first, so that the latest entries are proved too. The exit code is 3 if
    the trail is not whole, and 4 if nothing proves it yet.

    \b
    Examples:
      cstp audit evidence --decision dec-0123456789ab --agent grpc://cstp.example.com:50051 > evidence.json
      cstp audit evidence --after 2026-01-01 --before 2026-01-31 > january.json
    """
    if (decision_id is None) == (after is None and before is None):
        raise click.UsageError("Give either --decision ID, or --after and --before.")
    call = calls.get_evidence(
        decision_id=decision_id,
        after=after,
        before=before,
        public_keys=audit_verification.read_key_files(key_files),
        checkpoints=audit_verification.read_checkpoint_file(checkpoint_file),
    )
    report = audit_pb2.AuditReport()
    with audit_verification.show_progress(out) as advance:
        for part in read(call):
            if part.HasField("report"):
                report = part.report
            elif part.HasField("text"):
                out.write_verbatim(part.text)
            else:
                advance(part.progress)
    audit_verification.exit_unless_whole(report)


@click.command(name="verify-evidence")
@click.argument("file", type=FILE)
@audit_verification.key_option
@config_option
@with_output
def verify_evidence_command(out: Output, file: Path, key_files: tuple[Path, ...]) -> None:
    """Verify a document of evidence. Needs no server: it checks that a signed checkpoint covers the entries.

    No database is needed. The exit code is 3 if an entry is forged, or the document is, and 4 if no checkpoint signs an
    entry yet.

    \b
    Example:
      cstp audit verify-evidence evidence.json --public-key kept/audit.pem
    """
    require_extra("server")
    from cstp_grpc.core.audit.evidence import verify_evidence
    from cstp_grpc.server.wiring.audit_proofs import read_trusted_keys

    keys = read_trusted_keys(current_state().settings(), audit_verification.read_key_files(key_files))
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{file}: is not JSON") from error
    faults = verify_evidence(document if isinstance(document, dict) else {}, keys)
    all_faults = (*faults.wrong, *faults.unproved)
    if out.json_wanted:
        out.document({"proved": not all_faults, "forged": bool(faults.wrong), "faults": all_faults})
    if not all_faults:
        out.line(f"Proved: {count_noun(len(document['entries']), 'entry', 'entries')}.")
        return
    for fault in (*all_faults, "Something is not proved." if faults.wrong else "It is not provable yet."):
        out.line(fault)
    click.get_current_context().exit(audit_verification.NOT_WHOLE if faults.wrong else audit_verification.NOT_PROVABLE)
