"""The commands that follow and export the audit trail, and write and verify evidence from it."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cstp_grpc.cli.audit_verification import (
    NOT_WHOLE,
    exit_unless_whole,
    key_option,
    open_audit_database,
    read_checkpoint_file,
    read_trusted_keys,
    report_to_json,
)
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
from cstp_grpc.common.unicode_text import escape_invisible
from cstp_grpc.contract.errors import ServerUnreachable, Unavailable

if TYPE_CHECKING:
    from cstp_grpc.cli import decision_output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.core.audit.entry_hashing import EntryRow
    from cstp_grpc.core.audit.sql_evidence import EvidenceScope
    from cstp_grpc.gen.cstp.v1 import audit_pb2
    from cstp_grpc.platform.storage.database import Database
else:
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
@config_option
@with_output
def export_command(out: Output, form: str, after: datetime | None, before: datetime | None) -> None:
    """Export the audit trail. Prints its entries in the order in which they were added, with their hashes.

    It reads the database of the configuration while servers go on. JSON Lines have the members of the protocol's audit
    log and all other fields of an entry.

    \b
    Examples:
      cstp audit export --after 2026-01-01 > trail.jsonl
      cstp audit export --format csv > trail.csv
      cstp audit export --format cloudevents > events.jsonl
    """
    with open_audit_database() as (_, database):
        from cstp_grpc.core.audit.sql_evidence import SqlEvidenceReader

        for line in iter_lines(SqlEvidenceReader(database).iter_period(after, before), form, database):
            out.write_verbatim(line)


def iter_lines(rows: Iterator[EntryRow], form: str, database: Database) -> Iterator[str]:
    """Yield entries in one of the forms, line by line."""
    from cstp_grpc.core.audit import entry_documents

    documents = map(entry_documents.entry_to_document, rows)
    if form == "csv":
        yield csv_line(entry_documents.CSV_COLUMNS)
        yield from (csv_line(entry_documents.document_to_csv(document)) for document in documents)
        return
    convert: Callable[[dict[str, Any]], dict[str, Any]] = dict
    if form == "cloudevents":
        from cstp_grpc.core.decisions.read_policy import ReadPolicy
        from cstp_grpc.core.decisions.sql_store import SqlDecisionStore

        source = f"/cstp/journals/{SqlDecisionStore(database, ReadPolicy()).identity()}"

        def convert(document: dict[str, Any]) -> dict[str, Any]:
            return entry_documents.document_to_cloud_event(document, source)

    for document in documents:
        yield f"{escape_invisible(json.dumps(convert(document), ensure_ascii=False))}\n"


def csv_line(fields: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(fields)
    return line.getvalue()


@click.command(name="evidence")
@click.option(
    "--decision", "decision_id", metavar="ID", help="Only entries about this decision, its causes and its outcome."
)
@after_option
@before_option
@click.option("--checkpoints", "checkpoint_file", type=FILE, help="File of checkpoints that were exported earlier.")
@key_option
@config_option
@with_output
def evidence_command(
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
    The exit code is 3 if the trail is not whole, and 4 if nothing proves it yet.

    \b
    Examples:
      cstp audit evidence --decision dec-0123456789ab > evidence.json
      cstp audit evidence --after 2026-01-01 --before 2026-01-31 > january.json
    """
    if (decision_id is None) == (after is None and before is None):
        raise click.UsageError("Give either --decision ID, or --after and --before.")
    with open_audit_database() as (settings, database):
        from cstp_grpc.core.audit.sql_evidence import EvidenceScope
        from cstp_grpc.core.audit.sql_verification import verify_trail

        keys = read_trusted_keys(settings, key_files)
        report = verify_trail(database, read_checkpoint_file(checkpoint_file), keys)
        document = collect_evidence(database, EvidenceScope(decision_id, after, before))
    out.document({**document, "verification": report_to_json(report)})
    exit_unless_whole(report)


def collect_evidence(database: Database, scope: EvidenceScope) -> dict[str, Any]:
    """Return the document of evidence about something."""
    from cstp_grpc.core.audit.entry_documents import entry_to_document
    from cstp_grpc.core.audit.entry_hashing import format_instant
    from cstp_grpc.core.audit.evidence import EVIDENCE
    from cstp_grpc.core.audit.sql_evidence import SqlEvidenceReader

    rows, proofs = SqlEvidenceReader(database).read_evidence(scope)
    entries = [entry_to_document(row) for row in rows]
    about = {"decision": scope.decision_id, "after": scope.after, "before": scope.before}
    versions = sorted({entry["rule_set_version"] for entry in entries if "rule_set_version" in entry})
    return {
        "type": EVIDENCE,
        "made_at": format_instant(datetime.now(UTC)),
        "about": to_plain_json({name: value for name, value in about.items() if value is not None}),
        "rule_set_versions": versions,
        "entries": entries,
        "decisions": read_decisions(
            database, sorted({entry["decision_id"] for entry in entries if "decision_id" in entry})
        ),
        "intents": read_intents(
            database, sorted({entry["correlation_id"] for entry in entries if "correlation_id" in entry})
        ),
        "proofs": [proof.encode() for proof in proofs],
    }


def read_decisions(database: Database, ids: Sequence[str]) -> list[Any]:
    """Return the state, outcome and reviews of decisions, without deleted ones."""
    from cstp_grpc.core.decisions.read_policy import ReadPolicy
    from cstp_grpc.core.decisions.sql_history import SqlHistoryStore
    from cstp_grpc.core.decisions.sql_store import SqlDecisionStore

    store, history = SqlDecisionStore(database, ReadPolicy()), SqlHistoryStore(database)
    found = [
        (decision, history.read_history(decision.id, MAX_REVIEWS, 0)) for each in ids if (decision := store.get(each))
    ]
    return [
        to_plain_json(
            {
                "id": decision.id,
                "agent": decision.agent,
                "title": decision.title,
                "status": decision.status,
                "outcome": decision.outcome,
                "reviews": [asdict(review) for review in past.reviews],
            }
        )
        for decision, past in found
    ]


def read_intents(database: Database, correlation_ids: Sequence[str]) -> list[Any]:
    """Return how announced intents ended, by the correlation ids of entries."""
    from cstp_grpc.core.intents.model import IntentFilter
    from cstp_grpc.core.intents.sql_store import SqlIntentStore
    from cstp_grpc.platform.storage.pagination import PageRequest

    store = SqlIntentStore(database)
    return [
        to_plain_json(
            {
                "agent": intent.agent,
                "correlation_id": intent.correlation_id,
                "revision": intent.revision,
                "received_at": intent.received_at,
                "closing": None if intent.closing is None else asdict(intent.closing),
            }
        )
        for correlation_id in correlation_ids
        for intent in store.page(IntentFilter(correlation_id=correlation_id), PageRequest(1000)).items
    ]


def to_plain_json(value: Any) -> Any:
    from cstp_grpc.core.audit.entry_hashing import format_instant

    if isinstance(value, dict):
        return {name: to_plain_json(member) for name, member in value.items() if member is not None}
    if isinstance(value, list | tuple):
        return [to_plain_json(element) for element in value]
    return format_instant(value) if isinstance(value, datetime) else value


@click.command(name="verify-evidence")
@click.argument("file", type=FILE)
@key_option
@config_option
@with_output
def verify_evidence_command(out: Output, file: Path, key_files: tuple[Path, ...]) -> None:
    """Verify a document of evidence. Needs no server: it checks that a signed checkpoint covers the entries.

    No database is needed. The exit code is 3 if an entry is not proved.

    \b
    Example:
      cstp audit verify-evidence evidence.json --public-key kept/audit.pem
    """
    require_extra("server")
    from cstp_grpc.core.audit.evidence import verify_evidence

    keys = read_trusted_keys(current_state().settings(), key_files)
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{file}: is not JSON") from error
    faults = verify_evidence(document if isinstance(document, dict) else {}, keys)
    if out.json_wanted:
        out.document({"proved": not faults, "faults": faults})
    if not faults:
        out.line(f"Proved: {count_noun(len(document['entries']), 'entry', 'entries')}.")
        return
    for fault in (*faults, "Something is not proved."):
        out.line(fault)
    click.get_current_context().exit(NOT_WHOLE)
