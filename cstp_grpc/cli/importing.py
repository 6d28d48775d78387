"""Importing decision records of files and folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import click
import protovalidate
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from cstp_grpc import config
from cstp_grpc.cli.command import FILE, config_option, prints, server_options, state
from cstp_grpc.cli.endpoint import Choice, Endpoint, LoadedConfiguration, resolve
from cstp_grpc.cli.failures import startup
from cstp_grpc.cli.import_report import ImportReport
from cstp_grpc.cli.output import Output
from cstp_grpc.cli.own_server import importer_of, own_server
from cstp_grpc.cli.records import to_request
from cstp_grpc.config import Settings
from cstp_grpc.decisions.model import DecisionContent
from cstp_grpc.gen.cstp.v1 import journal_pb2
from cstp_grpc.importing import FieldMapping, MappingError, SkippedRecord, find_record_files, load_mapping, read_records
from cstp_grpc.storage.lock import AlreadyRunning, DataLock
from cstp_grpc.vocabulary import Visibility

Request = journal_pb2.ImportDecisionsRequest


@click.command(name="import")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--map", "mapping_file", type=FILE, help="How fields of foreign YAML and JSON Lines are named.")
@click.option("--share", is_flag=True, help="Let every agent find the decisions.")
@click.option("--project", help="The project of decisions that name none.")
@click.option("--as", "identity", metavar="AGENT", help="Whose decisions they become where no server runs.")
@click.option("--dry-run", is_flag=True, help="Read and check only; send nothing.")
@click.option("--verbose", is_flag=True, help="Tell too what was guessed or left out.")
@server_options
@config_option
@prints
def import_command(
    out: Output,
    paths: tuple[Path, ...],
    mapping_file: Path | None,
    share: bool,
    project: str | None,
    identity: str | None,
    dry_run: bool,
    verbose: bool,
    choice: Choice,
    timeout: float | None,
) -> None:
    """Import the decision records in the files and folders at PATHS.

    It reads architecture decision records in Markdown, and decisions in YAML and JSON Lines. Importing again changes
    only what has changed. Without --agent the decisions go to this machine's server, or straight into its store where
    none runs. Exit code 1 means that something was skipped for an error.

    \b
    Examples:
      cstp import docs/adr --share
      cstp import decisions.jsonl --map mapping.yaml --project website
      cstp import docs/adr --dry-run
    """
    mapping = open_mapping(mapping_file)
    report, requests = read_all(out, paths, mapping, share=share, project=project)
    report.dry_run = dry_run
    try:
        if not dry_run and requests:
            send(out, report, requests, choice, timeout, identity)
    finally:
        # What was stored before a failure stays, so it is told too.
        if out.json_wanted:
            out.document(report.as_json())
        else:
            out.show(lambda console: report.show(console, verbose=verbose))
    if report.failed:
        click.get_current_context().exit(1)


def open_mapping(path: Path | None) -> FieldMapping | None:
    """Return the mapping in a file. Raises click.ClickException."""
    try:
        return load_mapping(path) if path else None
    except MappingError as error:
        raise click.ClickException(str(error)) from error


def read_all(
    out: Output, paths: Sequence[Path], mapping: FieldMapping | None, *, share: bool, project: str | None
) -> tuple[ImportReport, list[Request]]:
    """Return what is in the files, and the messages for the records that the server will take."""
    report, requests = ImportReport(), []
    validator = protovalidate.Validator()
    with progress(out, "Reading", len(find_record_files(paths))) as advance:
        for found in read_records(paths, mapping=mapping, on_file=lambda _: advance()):
            if isinstance(found, SkippedRecord):
                report.skipped.append(found)
                continue
            content = adjusted(found.record.content, share=share, project=project)
            request = to_request(replace(found.record, content=content))
            if wrong := violations(validator, request):
                report.skipped.append(SkippedRecord(found.path, found.line, wrong, error=True))
            else:
                report.parsed.append(found)
                requests.append(request)
    return report, requests


def adjusted(content: DecisionContent, *, share: bool, project: str | None) -> DecisionContent:
    """Return what a record says, with what the command line adds."""
    visibility = Visibility.SHARED if share else content.visibility
    return replace(content, visibility=visibility, project=content.project or project)


def violations(validator: protovalidate.Validator, request: Request) -> str:
    """Return what the server would refuse a record for; empty where it would not."""
    found = []
    for violation in validator.collect_violations(request):
        path = violation.proto.field
        names = [element.field_name for element in path.elements] if path else []
        where = ".".join(names[1:] or names)
        found.append(f"{where}: {violation.proto.message}" if where else violation.proto.message)
    return "; ".join(found)


def send(
    out: Output,
    report: ImportReport,
    requests: list[Request],
    choice: Choice,
    timeout: float | None,
    identity: str | None,
) -> None:
    """Import the records, noting their results in the report. Raises CstpError."""
    with startup(), chosen_server(choice, identity) as endpoint:
        state().endpoint = endpoint
        with endpoint.connect(timeout) as client, progress(out, "Importing", len(requests)) as advance:
            for result in client.import_decisions(requests):
                report.results.append(result)
                advance()


def chosen_server(choice: Choice, identity: str | None) -> AbstractContextManager[Endpoint]:
    """Return the server to import into: the one that was named, this machine's, or one of our own where none runs."""
    environment = config.command_environment()
    if choice.agent or choice.agents_file or environment.agents_file:
        if identity:
            raise click.UsageError("--as is for this machine's store; elsewhere the token says who imports.")
        return nullcontext(resolve(choice, environment, state()))
    settings = state().settings()
    if not is_locked(settings.data_dir):
        return own_server(settings, importer_of(settings, identity))
    endpoint = resolve(choice, environment, LoadedConfiguration(settings))
    return nullcontext(endpoint if identity is None else speaking_as(endpoint, identity, settings))


def speaking_as(endpoint: Endpoint, identity: str, settings: Settings) -> Endpoint:
    """Return the endpoint with the configured token of an agent. Raises click.UsageError."""
    for token in settings.auth.tokens:
        if token.name == identity:
            return replace(endpoint, token=token.token.get_secret_value(), identified_by=f"auth.tokens: {identity}")
    raise click.UsageError(f"A server runs, and auth.tokens has no token of {identity!r}; pass it with --token.")


def is_locked(data_dir: Path) -> bool:
    """Whether a server holds the data folder."""
    try:
        with DataLock(data_dir):
            return False
    except AlreadyRunning:
        return True


@contextmanager
def progress(out: Output, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal; what is yielded moves it on by one."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=out.notes, transient=True, disable=not out.notes.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
