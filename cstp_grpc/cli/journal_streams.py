"""The commands that read streams of decisions: export and watch."""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import LIMIT, filter_options, with_client
from cstp_grpc.cli.reconnect_notices import ReconnectNotices
from cstp_grpc.lazy_imports import LazyModule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cstp_grpc.cli import decision_output
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.contract import json_codec
    from cstp_grpc.gen.cstp.v1 import types_pb2
else:
    decision_output = LazyModule("cstp_grpc.cli.decision_output")
    json_codec = LazyModule("cstp_grpc.contract.json_codec")


@click.command()
@filter_options
@click.option("--all", "everything", is_flag=True, help="Others' shared decisions too, without their private parts.")
@click.option(
    "--output", "path", type=click.Path(dir_okay=False, path_type=Path), help="The file; standard output when absent."
)
@with_client
def export_command(
    client: CstpClient, out: Output, filters: types_pb2.DecisionFilters, everything: bool, path: Path | None
) -> None:
    """Write your decisions as JSON Lines, which `cstp import` reads.

    One line is one decision as `cstp show --json` has it, without its history. Links are kept as ids, and mean the
    decisions of the same file when it is imported.

    \b
    Examples:
      cstp export --output decisions.jsonl
      cstp export --project shop --all | jq .title
    """
    if not everything and not filters.HasField("agent"):
        filters.agent = client.get_access().requesting_agent
    lines = exported_lines(client, filters)
    if path is None:
        for line in lines:
            out.write_verbatim(line)
        return
    count = write_lines(path, lines)
    out.note(f"{count} decisions are in {path}")


def write_lines(path: Path, lines: Iterator[str]) -> int:
    """Write lines to a file, which is replaced when they are complete, and return how many there were."""
    count = 0
    # Beside it, since a file is replaced in one step within a file system only.
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(line)
                count += 1
        partial.replace(path)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return count


def exported_lines(client: CstpClient, filters: types_pb2.DecisionFilters) -> Iterator[str]:
    """Yield the exported decisions, each as a line of JSON."""
    for decision in client.export_decisions(filters=filters):
        yield json.dumps(json_codec.to_json(decision), ensure_ascii=False) + "\n"


@click.command()
@filter_options
@click.option("--from-revision", "after", metavar="REVISION", help="From the change after this journal revision on.")
@click.option("--limit", type=LIMIT, metavar="N", help="End after so many changes.")
@with_client
def watch_command(
    client: CstpClient, out: Output, filters: types_pb2.DecisionFilters, after: str | None, limit: int | None
) -> None:
    """Print each change of the decisions you may read, as it happens, until Ctrl-C.

    Without --from-revision, that is what happens from now on. Where the server goes away, it waits for it and goes on.
    With --json, each change is an object on a line, with the revision from which another watch goes on.

    \b
    Examples:
      cstp watch --outcome failure
      cstp watch --project shop --json
    """
    # One call first: a wrong address or token must fail at once, while the watch below retries until it is stopped.
    client.get_access()
    interruptions = ReconnectNotices(out)
    changes = client.watch_decisions(filters=filters, after=after, on_failure=interruptions.report)
    # Ctrl-C is the regular end of a watch.
    with suppress(KeyboardInterrupt), closing(changes):
        found = (change for change in changes if change.HasField("decision") or change.HasField("deleted_id"))
        for change in islice(found, limit):
            interruptions.reset()
            if out.json_wanted:
                out.json_line(change)
            else:
                out.line(decision_output.change_line(change))
