"""The `cstp reindex` command: vectors of another embedder for a whole journal."""

from __future__ import annotations

from contextlib import ExitStack

import click

from cstp_grpc.cli.command_decorators import config_option, current_state, startup_errors_as_failures, with_output
from cstp_grpc.cli.output import Output, json_members, progress_bar
from cstp_grpc.common.extras import require_extra


@click.command(name="reindex")
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
