"""The commands by which auditors see that the audit trail is whole. They read the database, and ask no server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import FILE, config_option, current_state, startup_errors_as_failures, with_output
from cstp_grpc.cli.output import Output
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.extras import require_extra

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from cstp_grpc.core.audit.checkpoint_keys import TrustedKeys
    from cstp_grpc.core.audit.checkpoints import Checkpoint
    from cstp_grpc.core.audit.verification import VerificationReport
    from cstp_grpc.platform.config import Settings
    from cstp_grpc.platform.storage.database import Database

NOT_WHOLE = 3
"""The exit code for a trail that is not whole."""
NOT_PROVABLE = 4
"""The exit code for a trail without faults that no checkpoint proves to be whole yet."""

key_option = click.option(
    "--public-key",
    "key_files",
    type=FILE,
    multiple=True,
    help="A PEM file of keys that sign checkpoints. [default: the key of this configuration]",
)


@contextmanager
def open_audit_database() -> Iterator[tuple[Settings, Database]]:
    """Yield the settings and the database of the configuration, which must have the present tables."""
    require_extra("server")
    from cstp_grpc.platform.storage.database import open_database, parse_database_url
    from cstp_grpc.platform.storage.migration import current_revision, newest_revision

    settings = current_state().settings()
    with startup_errors_as_failures():
        url = parse_database_url(settings.storage_url)
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
            raise click.ClickException(f"{url.database}: there is no database; name its configuration with --config")
        database = open_database(settings.storage_url, 2)
        try:
            if current_revision(database) != newest_revision():
                raise click.ClickException("the database is of another version; `cstp migrate` brings it to this one")
            yield settings, database
        finally:
            database.close()


def read_trusted_keys(settings: Settings, files: Sequence[Path]) -> TrustedKeys:
    """Return the keys in files, or the configured one. Raises ConfigError and click.ClickException."""
    from cstp_grpc.core.audit.checkpoint_keys import SigningKeyFile, TrustedKeys, parse_public_keys
    from cstp_grpc.core.audit.checkpoints import KEY_FILE

    if not files:
        configured = settings.audit.signing_key_file
        own = configured or settings.data_dir / KEY_FILE
        # A trail without checkpoints needs no key, and a server makes its own with the first.
        return TrustedKeys.of([SigningKeyFile.load(own).public_key] if configured or own.exists() else [])
    keys: list[Ed25519PublicKey] = []
    for file in files:
        try:
            keys += parse_public_keys(file.read_bytes())
        except OSError as error:
            raise click.ClickException(f"{file}: {error.strerror}") from error
        except ValueError as error:
            raise click.ClickException(f"{file}: {error}") from error
    return TrustedKeys.of(keys)


def read_checkpoint_file(file: Path | None) -> list[Checkpoint]:
    """Return the checkpoints in a file; none without one. Raises click.ClickException."""
    from cstp_grpc.core.audit.checkpoints import InvalidCheckpoint, parse_checkpoints

    if file is None:
        return []
    try:
        return list(parse_checkpoints(file.read_text(encoding="utf-8").splitlines()))
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
    except (InvalidCheckpoint, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: {error}") from error


@click.command(name="verify")
@click.option("--checkpoints", "checkpoint_file", type=FILE, help="File of checkpoints that were exported earlier.")
@key_option
@config_option
@with_output
def verify_command(out: Output, checkpoint_file: Path | None, key_files: tuple[Path, ...]) -> None:
    """Verify that the audit trail is whole. Names the entries that are missing or changed.

    It reads the database of the configuration while servers go on. An edited, deleted, inserted or moved entry breaks
    the chain of hashes. Only a checkpoint that was exported earlier proves that the last entries are present. The
    exit code is 3 if anything is wrong, and 4 if nothing proves the trail yet, as with an empty one.

    \b
    Examples:
      cstp audit verify
      cstp audit verify --checkpoints kept/checkpoints.jsonl --public-key kept/audit.pem --config /etc/cstp/cstp.yaml
    """
    with open_audit_database() as (settings, database):
        from cstp_grpc.core.audit.sql_verification import verify_trail

        keys = read_trusted_keys(settings, key_files)
        report = verify_trail(database, read_checkpoint_file(checkpoint_file), keys)
    if out.json_wanted:
        out.document(report_to_json(report))
    else:
        print_report(out, report)
    exit_unless_whole(report)


def exit_unless_whole(report: VerificationReport) -> None:
    """End the command with the exit code of a trail that is not whole, or not provable."""
    if not report.is_whole:
        click.get_current_context().exit(NOT_WHOLE if report.findings else NOT_PROVABLE)


def report_to_json(report: VerificationReport) -> dict[str, object]:
    """Return a report for --json."""
    findings = [
        {
            "kind": finding.kind.value,
            "message": finding.message,
            "entry": None if finding.entry_id is None else str(finding.entry_id),
            "chain": finding.chain_id,
            "firstPosition": finding.first_position,
            "lastPosition": finding.last_position,
        }
        for finding in report.findings
    ]
    return {
        "whole": report.is_whole,
        "provable": report.unproved is None,
        "entries": report.entries,
        "chains": report.chains,
        "checkpoints": report.checkpoints,
        "afterLastCheckpoint": report.unsigned,
        "withoutHashes": report.unchained,
        "withoutHashesAreSigned": report.unchained_are_signed,
        "redacted": report.redacted,
        "removed": report.removed,
        "withoutHashesStillThere": report.still_unchained,
        "findings": [{name: value for name, value in each.items() if value is not None} for each in findings],
        "furtherFindings": report.further_findings,
    }


def print_report(out: Output, report: VerificationReport) -> None:
    """Print a report for people."""
    entries = count_noun(report.entries, "entry", "entries")
    chains = count_noun(report.chains, "chain")
    out.line(f"{entries} in {chains}, signed by {count_noun(report.checkpoints, 'checkpoint')}.")
    if report.unsigned:
        out.line(f"{report.unsigned} came after the last checkpoint: whether more have followed them cannot be known.")
    if report.unchained:
        since = "as the first checkpoint signed them" if report.unchained_are_signed else "and no checkpoint signs them"
        out.line(f"{report.unchained} are of before entries had hashes, {since}.")
    if report.redacted:
        out.line(f"The content of {report.redacted} was removed; its hash is there.")
    if report.removed:
        out.line(f"{report.removed} were removed because their time was over, as signed records say.")
    if report.still_unchained:
        out.line(
            f"{report.still_unchained} of before entries had hashes are to be removed: nothing verifies them any more, "
            "and a server with audit.keep_days deletes them."
        )
    for finding in report.findings:
        out.line(f"{finding.kind.value}: {finding.message}")
    if report.further_findings:
        out.line(f"and {report.further_findings} more findings")
    if report.findings:
        out.line("The trail is not whole.")
    elif report.unproved is not None:
        out.line(f"The trail is not provable yet: {report.unproved}.")
    else:
        out.line("The trail is whole.")


@click.command(name="checkpoints")
@click.option("--last", is_flag=True, help="Only the newest, which contains the hash of the previous ones.")
@config_option
@with_output
def checkpoints_command(out: Output, *, last: bool) -> None:
    """Print signed checkpoints as JSON Lines. Keep them where the servers cannot write.

    \b
    Example:
      cstp audit checkpoints --last >> kept/checkpoints.jsonl
    """
    with open_audit_database() as (_, database):
        from cstp_grpc.core.audit.checkpoints import encode_checkpoint
        from cstp_grpc.core.audit.sql_checkpoints import SqlCheckpointStore

        for checkpoint in SqlCheckpointStore(database).iter_checkpoints(only_last=last):
            out.write_verbatim(f"{encode_checkpoint(checkpoint)}\n")


@click.command(name="public-key")
@config_option
@with_output
def public_key_command(out: Output) -> None:
    """Print the public key of checkpoints. It is in PEM; the key pair is created if it is
    missing.

    \b
    Example:
      cstp audit public-key > kept/audit.pem
    """
    require_extra("server")
    from cstp_grpc.core.audit.checkpoint_keys import encode_public_key
    from cstp_grpc.server.wiring.audit import signing_key_loader

    settings = current_state().settings()
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = signing_key_loader(settings)()
    if out.json_wanted:
        out.document({"keyId": key.key_id, "publicKey": encode_public_key(key.public_key)})
    else:
        out.write_verbatim(encode_public_key(key.public_key))
