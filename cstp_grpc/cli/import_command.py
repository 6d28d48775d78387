"""The `cstp import` command: it reads decision records, sends them to a server, and reports on each file."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cstp_grpc.cli.answer_fields import enum_word
from cstp_grpc.cli.command_decorators import FILE, config_option, current_state, server_options, with_output
from cstp_grpc.cli.console import Console, Text
from cstp_grpc.cli.output import Output, json_members, progress_bar, to_printable
from cstp_grpc.cli.server_choice import Endpoint, ServerChoice, choose_server
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.extras import require_extra
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract import json_codec
from cstp_grpc.contract.caller import ANONYMOUS, DEVELOPER
from cstp_grpc.contract.enums import Permission, Visibility
from cstp_grpc.contract.errors import CstpError, DeadlineExceeded, InternalError, Unavailable
from cstp_grpc.core.decisions.messages import IMPORT
from cstp_grpc.core.decisions.model import DecisionContent
from cstp_grpc.gen.cstp.v1 import journal_pb2, options_pb2
from cstp_grpc.modules import importing
from cstp_grpc.platform import config
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.config.environment import DEVELOPER_TOKEN_FILE
from cstp_grpc.platform.storage.locks import AlreadyRunning, DataDirLock

if TYPE_CHECKING:
    import protovalidate

    from cstp_grpc.client.cstp_client import CstpClient
else:
    # Of an extra, which `--help` does without.
    protovalidate = LazyModule("protovalidate")


def choose_importer(settings: Settings, wanted: str | None) -> str:
    """Return the agent that imports: the given one, the only one that may record, or the developer.

    Raises click.UsageError unless it is unambiguous.
    """
    recorders = sorted({token.name for token in settings.auth.tokens if Permission.RECORD in token.permissions})
    known = {token.name for token in settings.auth.tokens}
    if not settings.auth.enabled:
        # Without authentication every caller is anonymous, so that nobody could read what another agent had imported.
        known, recorders = known | {ANONYMOUS}, [ANONYMOUS]
    # The file shows that a developer's server ran here, whose decisions are those of `developer`.
    if (settings.data_dir / DEVELOPER_TOKEN_FILE).exists() or not known:
        known, recorders = known | {DEVELOPER}, recorders or [DEVELOPER]
    if wanted is not None:
        if wanted not in known:
            raise click.UsageError(
                f"There is no agent {wanted!r} in auth.tokens; there is: {', '.join(sorted(known))}."
            )
        return wanted
    if len(recorders) != 1:
        names = ", ".join(recorders) or "none has the permission to record"
        raise click.UsageError(f"Name the owner of the decisions with --as: {names}.")
    return recorders[0]


READ_ACTION = "read"
"""The action of a dry run on a record."""
DELETED_ACTION = "deleted before"
"""The action on a record that is not imported because its decision was deleted."""
PRESENT_ACTION = "already in this journal"
"""The action on an exported decision that the journal has."""
RENAMED_ACTIONS = {
    "deleted": DELETED_ACTION,
    "outdated": "later in this journal",
    "erased": "deleted",
    "refused": "of another agent",
}
"""The words for actions whose names in the contract are not clear without it."""
CONFLICTS = ("later in this journal", "of another agent")
"""The actions on records that differ from their decisions in the journal, which stay."""
OPTIONAL_ACTIONS = (READ_ACTION, *RENAMED_ACTIONS.values(), PRESENT_ACTION)
"""The actions that a summary names only if they happened."""
ACTIONS = (READ_ACTION, "imported", "updated", "unchanged", *OPTIONAL_ACTIONS[1:])
ACTION_STYLES = {
    "imported": "green",
    "updated": "yellow",
    "unchanged": "dim",
    **dict.fromkeys(OPTIONAL_ACTIONS, "dim"),
    "deleted": "red",
    "later in this journal": "yellow",
    "of another agent": "red",
    READ_ACTION: "green",
}


@dataclass
class ImportReport:
    """The records read, the records skipped, and the server's results, each in order.

    `present` are the records of decisions that the journal has; `unanswered` counts the records sent without a result.
    """

    parsed: list[importing.ParsedRecord] = field(default_factory=list)
    skipped: list[importing.SkippedRecord] = field(default_factory=list)
    results: list[journal_pb2.ImportResult] = field(default_factory=list)
    present: list[importing.ParsedRecord] = field(default_factory=list)
    unanswered: int = 0
    dry_run: bool = False

    @property
    def failed(self) -> bool:
        is_refused = any(item.action == journal_pb2.IMPORT_ACTION_REFUSED for item in self.results)
        return is_refused or any(skipped.error for skipped in self.skipped)

    def actions(self) -> Iterator[tuple[importing.ParsedRecord, str]]:
        if self.dry_run:
            yield from ((parsed, READ_ACTION) for parsed in self.parsed)
        yield from ((parsed, PRESENT_ACTION) for parsed in self.present)
        # After a failure there are fewer results than records; they come in the order of the requests.
        for parsed, result in zip(self.parsed, self.results, strict=False):
            action = enum_word(journal_pb2.ImportAction, result.action)
            yield parsed, RENAMED_ACTIONS.get(action, action)

    def as_json(self) -> dict[str, Any]:
        answer = json_codec.to_json(journal_pb2.ImportDecisionsResponse(results=self.results))
        return {
            **answer,
            "dryRun": self.dry_run,
            "unanswered": self.unanswered,
            "alreadyInJournal": [parsed.record.source for parsed in self.present],
            "records": [
                {
                    "source": parsed.record.source,
                    "path": str(parsed.path),
                    "line": parsed.line,
                    "dateFrom": parsed.date_from.value,
                    "notes": list(parsed.notes),
                }
                for parsed in self.parsed
            ],
            "skipped": [{"path": str(s.path), **json_members(s, "line", "reason", "error")} for s in self.skipped],
        }

    def show(self, console: Console, *, verbose: bool) -> None:
        """Print a line for each file, the skipped records, the remarks if wanted, and a summary."""
        actions: dict[Path, Counter[str]] = defaultdict(Counter)
        remarks: dict[Path, list[str]] = defaultdict(list)
        for parsed, action in self.actions():
            actions[parsed.path][action] += 1
            if action in CONFLICTS:
                remarks[parsed.path].append(f"line {parsed.line}: {parsed.record.source}: {action}, nothing was stored")
        skipped: dict[Path, list[importing.SkippedRecord]] = defaultdict(list)
        for item in self.skipped:
            skipped[item.path].append(item)
        dates: dict[Path, Counter[str]] = defaultdict(Counter)
        for parsed in (*self.parsed, *self.present):
            dates[parsed.path][parsed.date_from.value] += 1
        for parsed in self.parsed:
            where = f"line {parsed.line}: " if parsed.line else ""
            remarks[parsed.path] += [f"{where}{note}" for note in parsed.notes]
        for path in dict.fromkeys([*actions, *skipped]):
            if path in actions:
                console.print(file_line(path, actions[path], dates[path]), soft_wrap=True)
            for line in skipped[path]:
                console.print(skipped_line(line), soft_wrap=True)
            for remark in remarks[path] if verbose else ():
                console.print(f"             {to_printable(remark)}", soft_wrap=True)
        console.print(self._summary(actions.values()), soft_wrap=True)
        if count := sum(map(len, remarks.values())) if not verbose else 0:
            console.print(f"There are {count} remarks on the records; --verbose shows them.", soft_wrap=True)

    def _summary(self, actions: Iterable[Counter[str]]) -> Text:
        total: Counter[str] = sum(actions, Counter())
        counts = [f"{total[action]} {action}" for action in ACTIONS if total[action] or action not in OPTIONAL_ACTIONS]
        errors = sum(skipped.error for skipped in self.skipped)
        counts.append(f"{len(self.skipped)} skipped" + (f", {errors} of them for an error" if errors else ""))
        if not self.dry_run and (left := len(self.parsed) - len(self.results)):
            if self.unanswered:
                counts.append(f"{self.unanswered} sent without an answer, which may be stored")
            if unsent := left - self.unanswered:
                counts.append(f"{unsent} not sent")
            # What is stored is found by its source and not embedded again.
            return Text(f"{', '.join(counts)}. The same command goes on with them.", style="bold")
        return Text(f"{', '.join(counts)}.", style="bold")


def file_line(path: Path, actions: Counter[str], dates: Counter[str]) -> Text:
    only = next(iter(actions)) if actions.total() == 1 else None
    text = Text()
    if only:
        text.append(f"{only:11}", style=ACTION_STYLES[only]).append(f" {to_printable(str(path))}")
    else:
        counts = ", ".join(f"{actions[action]} {action}" for action in ACTIONS if actions[action])
        text.append(f"{'':11} {to_printable(str(path))}: {counts}")
    origins = " and ".join(name if count == dates.total() else f"{count} by {name}" for name, count in dates.items())
    return text.append(f"  (dated by {origins.replace('by ', '', 1)})", style="dim")


def skipped_line(item: importing.SkippedRecord) -> Text:
    where = f"{item.path}:{item.line}" if item.line else str(item.path)
    style = "red" if item.error else "dim"
    return Text(f"{'skipped':11}", style=style).append(to_printable(f" {where}: {item.reason}"), style="default")


ImportRequest = journal_pb2.ImportDecisionsRequest

MAX_TOGETHER = 64
MAX_BYTES_TOGETHER = 128 * 1024
"""Records of a request, all of which are stored when it is answered, and their bytes if they are several. Chosen: about
a second of embedding, so that the progress is seen, and that an interruption loses no more.
"""

EXPORTED_ID = re.compile(r"#(dec-[0-9a-f]{20})\Z")
"""The end of the source of an exported decision: the id that a journal gave it."""


@click.command(name="import")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--map", "mapping_file", type=FILE, help="Mapping of the fields of other YAML and JSON Lines.")
@click.option("--share", is_flag=True, help="Share the decisions with every agent.")
@click.option("--project", help="Project of decisions without one.")
@click.option("--as-records", is_flag=True, help="Import every Markdown page, whatever its sections.")
@click.option("--restore-deleted", is_flag=True, help="Import decisions again that you deleted after an import.")
@click.option("--dry-run", is_flag=True, help="Read and check only; send nothing.")
@click.option("--verbose", is_flag=True, help="Also report guesses and omissions.")
@server_options
@config_option
@with_output
def import_command(
    out: Output,
    paths: tuple[Path, ...],
    mapping_file: Path | None,
    share: bool,
    project: str | None,
    as_records: bool,
    restore_deleted: bool,
    dry_run: bool,
    verbose: bool,
    choice: ServerChoice,
    timeout: float | None,
) -> None:
    """Import decision records from files. PATHS are files and folders.

    It reads decision records, post-mortems and design documents in Markdown, and decisions in YAML and JSON Lines.
    Importing again updates only changed records, skips deleted decisions, and resumes an interrupted import. With the
    permission `migrate`, your decisions in an export keep their ids, dates and reviews. Without --agent the decisions
    go to this machine's server, or straight into its store if no server runs. Exit code 1 means that a record was
    skipped because of an error, or has the id of another agent's decision.

    \b
    Examples:
      cstp import docs/adr --share
      cstp import decisions.jsonl --map mapping.yaml --project website
      cstp import docs/adr --dry-run
    """
    require_extra("import")
    mapping = open_mapping(mapping_file)
    report, requests = read_import_requests(out, paths, mapping, share=share, project=project, as_records=as_records)
    report.dry_run = dry_run
    for request in requests:
        request.restore_deleted = restore_deleted
    try:
        if not dry_run and requests:
            send_records(out, report, requests, choice, timeout)
    finally:
        # Records that were stored before a failure stay, so that they are reported too.
        if out.json_wanted:
            out.document(report.as_json())
        else:
            out.show(lambda console: report.show(console, verbose=verbose))
    if report.failed:
        click.get_current_context().exit(1)


def open_mapping(path: Path | None) -> importing.FieldMapping | None:
    """Load the mapping in a file. Raises click.ClickException."""
    try:
        return importing.load_mapping(path) if path else None
    except importing.MappingError as error:
        raise click.ClickException(str(error)) from error


def read_import_requests(
    out: Output,
    paths: Sequence[Path],
    mapping: importing.FieldMapping | None,
    *,
    share: bool,
    project: str | None,
    as_records: bool,
) -> tuple[ImportReport, list[ImportRequest]]:
    """Return the report on the files, and the requests for the valid records."""
    report, requests = ImportReport(), []
    # Here and not only at the server: one invalid record would make the server refuse its whole batch.
    validator = protovalidate.Validator()
    with progress_bar(out, "Reading", len(importing.find_record_files(paths))) as advance:
        for found in importing.read_records(
            paths, mapping=mapping, as_records=as_records, on_file=lambda _: advance(1)
        ):
            if isinstance(found, importing.SkippedRecord):
                report.skipped.append(found)
                continue
            content = with_defaults(found.record.content, share=share, project=project)
            request = IMPORT.encode(replace(found.record, content=content))
            if request.identity.deleted:
                request.ClearField("decision")
            if wrong := describe_violations(validator, request):
                report.skipped.append(importing.SkippedRecord(found.path, found.line, wrong, error=True))
            else:
                report.parsed.append(found)
                requests.append(request)
    return report, requests


def with_defaults(content: DecisionContent, *, share: bool, project: str | None) -> DecisionContent:
    """Return the content of a record with the values of the command line."""
    visibility = Visibility.SHARED if share else content.visibility
    return replace(content, visibility=visibility, project=content.project or project)


def describe_violations(validator: protovalidate.Validator, request: ImportRequest) -> str:
    """Return the reason why the server would refuse a request, or empty if it would not."""
    found = []
    for violation in validator.collect_violations(request):
        path = violation.proto.field
        names = [element.field_name for element in path.elements] if path else []
        # Without the first name, `decision`, which every field of a record has.
        where = ".".join(names[1:] or names)
        found.append(f"{where}: {violation.proto.message}" if where else violation.proto.message)
    return "; ".join(found)


def send_records(
    out: Output, report: ImportReport, requests: list[ImportRequest], choice: ServerChoice, timeout: float | None
) -> None:
    """Import the records and add the results to the report. Raises CstpError."""
    endpoint = current_state().endpoint = choose_import_server(choice)
    # A server that is gone does not answer pings, so that a slow one can be waited for.
    with endpoint.connect(math.inf if timeout is None else timeout) as client:
        requests = leave_out_present(client, report, choose_identities(out, client, report, requests))
        with progress_bar(out, "Importing", len(requests)) as advance:
            for group in split_by_size(requests):
                report.unanswered = len(group)
                try:
                    report.results += client.import_decisions(group, batch=len(group))
                except CstpError as error:
                    if not isinstance(error, (Unavailable, DeadlineExceeded, InternalError)):
                        report.unanswered = 0
                    raise
                report.unanswered = 0
                advance(len(group))


def choose_identities(
    out: Output, client: CstpClient, report: ImportReport, requests: list[ImportRequest]
) -> list[ImportRequest]:
    """Remove the identities that the caller may not import, and return the requests without their deletions.

    Raises CstpError.
    """
    if not any(request.HasField("identity") for request in requests):
        return requests
    access = client.get_access()
    may_migrate = options_pb2.PERMISSION_MIGRATE in access.permissions
    lacks_permission = f"{access.requesting_agent!r} lacks the permission migrate"
    reason = "another agent recorded it" if may_migrate else lacks_permission
    kept, chosen, renamed = [], [], 0
    for parsed, request in zip(report.parsed, requests, strict=True):
        if request.HasField("identity") and not (may_migrate and parsed.agent == access.requesting_agent):
            if request.identity.deleted:
                skipped = importing.SkippedRecord(parsed.path, parsed.line, f"a deletion: {reason}", error=False)
                report.skipped.append(skipped)
                continue
            request.ClearField("identity")
            renamed += 1
        kept.append(parsed)
        chosen.append(request)
    report.parsed = kept
    if renamed:
        # Also of those that are `already in this journal`, which is found out next.
        out.note(f"{count_noun(renamed, 'decision')} cannot be imported under the same id: {reason}.")
    return chosen


def leave_out_present(client: CstpClient, report: ImportReport, requests: list[ImportRequest]) -> list[ImportRequest]:
    """Return the requests without exported decisions that the journal has or had, and move these in the report.

    Raises CstpError.
    """
    found = [request.source for request in requests if not request.HasField("identity")]
    exported = {match[1] for source in found if (match := EXPORTED_ID.search(source))}
    if not exported:
        return requests
    with closing(client.export_decisions(include_deleted=True)) as decisions:
        known = {f"#{item.id}": item.HasField("deleted_date") for item in decisions if item.id in exported}
    kept, left = [], []
    for parsed, request in zip(report.parsed, requests, strict=True):
        is_deleted = None if request.HasField("identity") else known.get(request.source[request.source.rfind("#") :])
        if is_deleted is None or (is_deleted and request.restore_deleted):
            kept.append(parsed)
            left.append(request)
        elif is_deleted:
            reason = "it was deleted in this journal; --restore-deleted imports it as a new decision"
            report.skipped.append(importing.SkippedRecord(parsed.path, parsed.line, reason, error=False))
        else:
            report.present.append(parsed)
    report.parsed = kept
    return left


def split_by_size(requests: Iterable[ImportRequest]) -> Iterator[list[ImportRequest]]:
    group: list[ImportRequest] = []
    size = 0
    for request in requests:
        added = request.ByteSize()
        if group and (len(group) == MAX_TOGETHER or size + added > MAX_BYTES_TOGETHER):
            yield group
            group, size = [], 0
        group.append(request)
        size += added
    if group:
        yield group


def choose_import_server(choice: ServerChoice) -> Endpoint:
    """Return the server to import into: the given one, this machine's, or its data folder where none runs."""
    environment, state = config.command_environment(), current_state()
    if choice.local or choice.agent or choice.agents_file or environment.agents_file:
        return choose_server(choice, environment, state)
    settings = state.settings()
    # Tried and released: a server that starts in between keeps the folder from being opened, which is said.
    if not is_served(settings.data_dir):
        here = ServerChoice(local=True, identity=choose_importer(settings, choice.identity))
        return choose_server(here, environment, state)
    endpoint = choose_server(choice._replace(identity=None), environment, state)
    return endpoint if choice.identity is None else with_token_of(endpoint, choice.identity, settings)


def with_token_of(endpoint: Endpoint, identity: str, settings: Settings) -> Endpoint:
    """Return the endpoint with the configured token of an agent. Raises click.UsageError."""
    for token in settings.auth.tokens:
        if token.name == identity:
            return endpoint._replace(token=token.token.get_secret_value(), identified_by=f"auth.tokens: {identity}")
    raise click.UsageError(f"A server runs, and auth.tokens has no token of {identity!r}; pass it with --token.")


def is_served(data_dir: Path) -> bool:
    try:
        with DataDirLock(data_dir, shared=True):
            return False
    except AlreadyRunning:
        return True
