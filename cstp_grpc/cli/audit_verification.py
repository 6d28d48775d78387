"""The commands by which auditors see that the audit trail is whole: through a server, or in the database itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cstp_grpc.cli import command_decorators as shared
from cstp_grpc.cli.output import Output
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.extras import require_extra
from cstp_grpc.common.lazy_imports import LazyModule

if TYPE_CHECKING:
    from cstp_grpc.cli import answer_fields
    from cstp_grpc.cli.server_choice import ServerChoice
    from cstp_grpc.client import CstpClient, call_steps
    from cstp_grpc.core.audit.messages import ProofMessages
    from cstp_grpc.gen import calls
    from cstp_grpc.gen.cstp.v1 import audit_pb2
else:
    answer_fields = LazyModule("cstp_grpc.cli.answer_fields")
    audit_pb2 = LazyModule("cstp_grpc.gen.cstp.v1.audit_pb2")
    call_steps = LazyModule("cstp_grpc.client.call_steps")
    calls = LazyModule("cstp_grpc.gen.calls")

NOT_WHOLE = 3
"""The exit code for a trail that is not whole."""
NOT_PROVABLE = 4
"""The exit code for a trail without faults that no checkpoint proves to be whole yet."""

TrailReader = Callable[[Any], Any]
"""Answers a described call about the trail: a response, or an iterator over those of a stream."""
ANSWERS: Final = {
    "cstp.verifyAudit": "verify",
    "cstp.exportAudit": "export",
    "cstp.getEvidence": "give_evidence",
    "cstp.listCheckpoints": "page_checkpoints",
}
"""The methods of ProofMessages that answer without a server."""

key_option = click.option(
    "--public-key",
    "key_files",
    type=shared.FILE,
    multiple=True,
    help="A PEM file of keys that sign checkpoints. [default: the key of the server or this configuration]",
)
checkpoints_option = click.option(
    "--checkpoints", "checkpoint_file", type=shared.FILE, help="File of checkpoints that were exported earlier."
)


def reads_trail(command: shared.Command) -> shared.Command:
    """Pass a command a TrailReader and the Output: of the server that an option names, or of the database."""

    @shared.server_options
    @shared.json_option
    @shared.config_option
    @wraps(command)
    def wrapper(*args: Any, choice: ServerChoice, timeout: float | None, **kwargs: Any) -> None:
        with open_trail(choice, timeout) as read:
            command(read, Output(json_wanted=shared.current_state().json_wanted), *args, **kwargs)

    return wrapper


@contextmanager
def open_trail(choice: ServerChoice, timeout: float | None) -> Iterator[TrailReader]:
    if is_server_chosen(choice):
        with shared.endpoint_of_choice(choice).connect(timeout) as client:
            yield partial(ask_server, client)
    else:
        with open_database_proofs() as proofs:
            yield lambda described: getattr(proofs, ANSWERS[described.method])(call_steps.build_request(described))


def is_server_chosen(choice: ServerChoice) -> bool:
    """Return whether options name a server, or a data folder that is used as one."""
    return choice.is_made or choice.local


def ask_server(client: CstpClient, described: Any) -> Any:
    """Return the response or the response stream of a described call. Raises CstpError."""
    method, request = call_steps.method_of_call(described), call_steps.build_request(described)
    return client.watch(method, request) if method.server_streaming else client.call(method, request)


@contextmanager
def open_database_proofs() -> Iterator[ProofMessages]:
    """Yield the proofs of the database of the configuration, which must have the present tables."""
    require_extra("server")
    from cstp_grpc.platform.storage.database import open_database, parse_database_url
    from cstp_grpc.platform.storage.migration import current_revision, newest_revision
    from cstp_grpc.server.wiring.audit_proofs import build_audit_proofs

    settings = shared.current_state().settings()
    with shared.startup_errors_as_failures():
        url = parse_database_url(settings.storage_url)
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
            raise click.ClickException(f"{url.database}: there is no database; name its configuration with --config")
        database = open_database(settings.storage_url, 2)
        try:
            if current_revision(database) != newest_revision():
                raise click.ClickException("the database is of another version; `cstp migrate` brings it to this one")
            # Without a signer: servers may be writing, each the only one of its chain.
            yield build_audit_proofs(settings, database)
        finally:
            database.close()


def read_key_files(files: Sequence[Path]) -> list[str]:
    """Return the texts of files of keys. Raises click.ClickException."""
    from cstp_grpc.core.audit.checkpoint_keys import parse_public_keys

    texts = []
    for file in files:
        try:
            parse_public_keys(content := file.read_bytes())
            texts.append(content.decode())
        except OSError as error:
            raise click.ClickException(f"{file}: {error.strerror}") from error
        except ValueError as error:
            raise click.ClickException(f"{file}: {error}") from error
    return texts


def read_checkpoint_file(file: Path | None) -> list[audit_pb2.AuditCheckpoint]:
    """Return the checkpoints in a file; none without one. Raises click.ClickException."""
    from cstp_grpc.core.audit.checkpoints import InvalidCheckpoint, parse_checkpoints

    if file is None:
        return []
    try:
        found = parse_checkpoints(file.read_text(encoding="utf-8").splitlines())
        return [audit_pb2.AuditCheckpoint(statement=each.statement, signature=each.signature) for each in found]
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
    except (InvalidCheckpoint, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: {error}") from error


@click.command(name="verify")
@checkpoints_option
@key_option
@reads_trail
def verify_command(read: TrailReader, out: Output, checkpoint_file: Path | None, key_files: tuple[Path, ...]) -> None:
    """Verify that the audit trail is whole. Names the entries that are missing or changed.

    It reads the database of the configuration while servers go on, or with --agent a server verifies its trail. An
    edited, deleted, inserted or moved entry breaks the chain of hashes. Only a checkpoint that was exported earlier
    proves that the last entries are present. The exit code is 3 if anything is wrong, and 4 if nothing proves the
    trail yet, as with an empty one.

    \b
    Examples:
      cstp audit verify
      cstp audit verify --agent grpc://cstp.example.com:50051
      cstp audit verify --checkpoints kept/checkpoints.jsonl --public-key kept/audit.pem --config /etc/cstp/cstp.yaml
    """
    from cstp_grpc.core.audit.messages import add_findings

    findings: list[audit_pb2.AuditFinding] = []
    report = audit_pb2.AuditReport()
    call = calls.verify_audit(public_keys=read_key_files(key_files), checkpoints=read_checkpoint_file(checkpoint_file))
    with show_progress(out) as advance:
        for part in read(call):
            if part.HasField("finding"):
                findings.append(part.finding)
            elif part.HasField("report"):
                report = part.report
            else:
                advance(part.progress)
    if out.json_wanted:
        out.document(add_findings(report, findings))
    else:
        print_report(out, report, findings)
    exit_unless_whole(report)


@contextmanager
def show_progress(out: Output) -> Iterator[Callable[[audit_pb2.AuditProgress], None]]:
    """Show how far the trail was read, on a terminal."""
    from rich.progress import Progress

    with Progress(console=out.notes.rich, transient=True, disable=not out.notes.is_terminal) as bar:
        task = bar.add_task("verifying", total=None)
        yield lambda progress: bar.update(task, completed=progress.entries, total=progress.total)


def exit_unless_whole(report: audit_pb2.AuditReport) -> None:
    """End the command with the exit code of a trail that is not whole, or not provable."""
    if not report.whole:
        click.get_current_context().exit(NOT_WHOLE if report.finding_count else NOT_PROVABLE)


def print_report(out: Output, report: audit_pb2.AuditReport, findings: Sequence[audit_pb2.AuditFinding]) -> None:
    """Print a report for people."""
    entries = count_noun(report.entries, "entry", "entries")
    chains = count_noun(report.chains, "chain")
    out.line(f"{entries} in {chains}, signed by {count_noun(report.checkpoints, 'checkpoint')}.")
    if report.after_last_checkpoint:
        after = f"{report.after_last_checkpoint} came after the last checkpoint"
        out.line(f"{after}: whether more have followed them cannot be known.")
    if report.without_hashes:
        signed = report.without_hashes_are_signed
        since = "as the first checkpoint signed them" if signed else "and no checkpoint signs them"
        out.line(f"{report.without_hashes} are of before entries had hashes, {since}.")
    if report.redacted:
        out.line(f"The content of {report.redacted} was removed; its hash is there.")
    if report.removed:
        out.line(f"{report.removed} were removed because their time was over, as signed records say.")
    if report.without_hashes_still_there:
        out.line(
            f"{report.without_hashes_still_there} of before entries had hashes are to be removed: nothing verifies "
            "them any more, and a server with audit.keep_days deletes them."
        )
    for finding in findings:
        out.line(f"{answer_fields.enum_word(audit_pb2.AuditFindingKind, finding.kind)}: {finding.message}")
    if report.finding_count > len(findings):
        out.line(f"and {report.finding_count - len(findings)} more findings")
    if report.finding_count:
        out.line("The trail is not whole.")
    elif not report.provable:
        out.line(f"The trail is not provable yet: {report.unproved}.")
    else:
        out.line("The trail is whole.")


@click.command(name="checkpoints")
@click.option("--last", is_flag=True, help="Only the newest, which contains the hash of the previous ones.")
@reads_trail
def checkpoints_command(read: TrailReader, out: Output, *, last: bool) -> None:
    """Print signed checkpoints as JSON Lines. Keep them where the servers cannot write.

    \b
    Example:
      cstp audit checkpoints --last >> kept/checkpoints.jsonl
    """
    from cstp_grpc.core.audit.checkpoints import Checkpoint, encode_checkpoint

    call, found = calls.list_checkpoints(page_size=1 if last else 1000), []
    while True:
        page = read(call)
        found += page.checkpoints
        if last or not page.next_page_token:
            break
        call = replace(call, values={**call.values, "page_token": page.next_page_token})
    for each in reversed(found):
        out.write_verbatim(f"{encode_checkpoint(Checkpoint(each.statement, each.signature))}\n")


@click.command(name="public-key")
@shared.server_options
@shared.json_option
@shared.config_option
def public_key_command(choice: ServerChoice, timeout: float | None) -> None:
    """Print the public key of checkpoints. It is in PEM; the key pair is created if it is
    missing.

    \b
    Example:
      cstp audit public-key > kept/audit.pem
    """
    out = Output(json_wanted=shared.current_state().json_wanted)
    if is_server_chosen(choice):
        with shared.endpoint_of_choice(choice).connect(timeout) as client:
            answer = client.get_public_key()
    else:
        answer = read_configured_key()
    if out.json_wanted:
        out.message(answer)
    else:
        out.write_verbatim(answer.public_key)


def read_configured_key() -> audit_pb2.GetPublicKeyResponse:
    """Return the key of the configuration, whether or not there is a database."""
    require_extra("server")
    from cstp_grpc.server.wiring.audit_proofs import read_public_key

    settings = shared.current_state().settings()
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    key_id, public_key = read_public_key(settings)
    return audit_pb2.GetPublicKeyResponse(key_id=key_id, public_key=public_key)
