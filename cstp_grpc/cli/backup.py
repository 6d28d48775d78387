"""The commands that save a journal, restore it, copy it into another database, and recompute its vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import config_option, current_state, startup_errors_as_failures, with_output
from cstp_grpc.cli.output import Output, json_members, progress_bar
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.extras import require_extra

if TYPE_CHECKING:
    from cstp_grpc.server.maintenance.backup import BackupManifest, ProgressStart

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.argument("folder", type=FOLDER)
@config_option
@with_output
def backup_command(out: Output, folder: Path) -> None:
    """Back up the journal while servers run. FOLDER must be new; everything that belongs to the journal goes into
    it.

    The backup is a consistent state of the journal, even if others write meanwhile, and is checked before FOLDER gets
    its name. It contains decisions and credentials of agents: protect it like the journal itself. It does not contain
    your files: the configuration, the rulebooks and the projects of the Intent Layer.

    \b
    Examples:
      cstp backup /var/backups/cstp/2026-11-23
      cstp backup backup --config /etc/cstp/cstp.yaml --json
    """
    require_extra("server")
    # Imported here: it loads the database, which `--help` does without.
    from cstp_grpc.server.maintenance.backup import write_backup

    settings = current_state().settings()
    with startup_errors_as_failures(), showing_progress(out) as start_progress:
        manifest = write_backup(settings, folder.absolute(), datetime.now(UTC), start_progress)
    print_manifest(out, folder, manifest, "was saved to")


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--force", is_flag=True, help="Replace what is there.")
@click.option("--check", is_flag=True, help="Only check the backup; nothing is written, and servers may run.")
@config_option
@with_output
def restore_command(out: Output, folder: Path, force: bool, check: bool) -> None:
    """Restore a backup. Replaces the configured journal by the backup in FOLDER.

    All of the backup is checked before anything is replaced, and the database is replaced in one step. Servers must be
    stopped. Journal revisions from before the restore are refused afterwards, since the restored journal may
    reuse their numbers. A search engine is filled again.

    \b
    Examples:
      cstp restore /var/backups/cstp/2026-11-23 --check
      cstp restore /var/backups/cstp/2026-11-23 --force
    """
    require_extra("server")
    from cstp_grpc.server.maintenance.restore import check_backup, restore_backup

    settings = current_state().settings()
    with startup_errors_as_failures(), showing_progress(out) as start_progress:
        if check:
            manifest = check_backup(settings, folder.absolute(), start_progress)
        else:
            manifest = restore_backup(settings, folder.absolute(), start_progress, force=force)
    print_manifest(out, folder, manifest, "can be restored from" if check else "was restored from")


@click.command()
@click.option("--from", "source_url", required=True, metavar="URL", help="The database to read.")
@click.option("--to", "target_url", required=True, metavar="URL", help="The database to fill, which must be empty.")
@with_output
def copy_command(out: Output, source_url: str, target_url: str) -> None:
    """Copy a journal into another database. For instance from SQLite into PostgreSQL.

    All tables are copied from one state in one transaction: all or nothing. Before the transaction ends, the copy is
    read again and compared. Stop the servers first, since their later writes are not copied.
    Then set `storage.url` to the new database.

    \b
    Examples:
      cstp copy --from sqlite:////var/lib/cstp/journal.db --to postgresql://cstp@db.example.com/cstp
      cstp copy --from postgresql://cstp@db.example.com/cstp --to sqlite:///journal.db --json
    """
    require_extra("server")
    from cstp_grpc.server.maintenance.journal_copy import copy_journal

    with startup_errors_as_failures(), showing_progress(out) as start_progress:
        rows = copy_journal(source_url, target_url, start_progress)
    if out.json_wanted:
        out.document({"rows": rows})
    out.line(f"{count_noun(sum(rows.values()), 'row')} of {count_noun(len(rows), 'table')} were copied, and are equal.")


@click.command()
@config_option
@with_output
def reindex_command(out: Output) -> None:
    """Recompute the vectors of all decisions. Uses the configured embedder.

    A running server with another embedder keeps using its vectors. Change `embedding` in the configuration, run this,
    then restart the server: it switches to the new vectors in one step. Without a server they are used at once. Repeat
    an interrupted run to continue it.

    \b
    Examples:
      cstp reindex
      cstp reindex --config /etc/cstp/cstp.yaml --json
    """
    require_extra("server")
    # Imported here: it loads the embedder and the database, which `--help` does without.
    from cstp_grpc.server.reindex import reindex_journal

    settings = current_state().settings()
    with startup_errors_as_failures(), ExitStack() as opened:
        report = reindex_journal(settings, lambda total: opened.enter_context(progress_bar(out, "Embedding", total)))
    if out.json_wanted:
        out.document(json_members(report, "model", "embedded", "decisions", "in_use"))
        return
    out.line(
        f"{report.embedded} of {report.decisions} decisions were embedded with {report.model}; the others were before."
    )
    if report.in_use:
        out.line("Searches use its vectors.")
    else:
        out.line("Servers use its vectors once they are restarted with this configuration.")


@contextmanager
def showing_progress(out: Output) -> Iterator[ProgressStart]:
    """Yield the function that begins a progress bar, which takes the place of the one before."""
    with ExitStack() as shown:

        def start(what: str, total: int) -> Callable[[int], None]:
            shown.close()
            # Nothing is known of how large a dump becomes; a bar without an end shows that it grows.
            return shown.enter_context(progress_bar(out, what, total or None))

        yield start


def print_manifest(out: Output, folder: Path, manifest: BackupManifest, what_was_done: str) -> None:
    if out.json_wanted:
        out.document(
            {
                "folder": str(folder),
                "createdAt": manifest.created_at,
                "database": manifest.database,
                "migration": manifest.migration,
                "bytes": manifest.size,
                "rows": dict(manifest.rows),
                "files": [file.path for file in manifest.files],
            }
        )
    rows = manifest.rows
    out.line(
        f"The journal of {manifest.created_at} {what_was_done} {folder} ({manifest.size:,} bytes): "
        f"{count_noun(rows.get('decisions', 0), 'decision')}, {count_noun(rows.get('intents', 0), 'intent')}, "
        f"an audit trail of length {rows.get('audit_entries', 0)}."
    )
