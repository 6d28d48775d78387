"""The commands on reviewed decisions: calibration, patterns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cstp_grpc.cli.command_decorators import FILE, LIMIT, review_filter_options, with_client
from cstp_grpc.common.lazy_imports import LazyModule

if TYPE_CHECKING:
    from cstp_grpc.cli import calibration_output
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
else:
    calibration_output = LazyModule("cstp_grpc.cli.calibration_output")

GROUPINGS: Final = ("agent", "category", "stakes", "month")
"""The groupings of the contract."""

all_agents_option = click.option(
    "--all-agents", is_flag=True, help="Decisions of every agent that you may read. [default: yours]"
)
oversee_option = click.option(
    "--oversee", is_flag=True, help="Include private decisions of every agent. Needs the permission oversee."
)
svg_option = click.option("--svg", "svg_file", type=FILE, metavar="FILE", help="Write the plot to an SVG file too.")


@click.command()
@review_filter_options
@all_agents_option
@oversee_option
@click.option(
    "--group-by", type=click.Choice(GROUPINGS), multiple=True, help="Also give figures for each of these; repeatable."
)
@svg_option
@with_client
def calibration_command(
    client: CstpClient, out: Output, group_by: tuple[str, ...], svg_file: Path | None, **fields: Any
) -> None:
    """Compare confidences with outcomes.

    \b
    Examples:
      cstp calibration
      cstp calibration --category deployment --after 2026-01-01 --svg calibration.svg
      cstp calibration --all-agents --group-by agent --group-by month
    """
    answer = client.get_calibration(group_by=list(dict.fromkeys(group_by)), **fields)
    if svg_file is not None:
        write_plot(svg_file, calibration_output.reliability_diagram(answer))
    out.answer(answer, lambda console, found: calibration_output.print_calibration(console, found))


@click.command()
@review_filter_options
@all_agents_option
@oversee_option
@click.option("--limit", type=LIMIT, default=20, show_default=True, help="Maximum number of factors, and of groups.")
@svg_option
@with_client
def patterns_command(client: CstpClient, out: Output, svg_file: Path | None, **fields: Any) -> None:
    """Find what failed decisions have in common.

    \b
    Examples:
      cstp patterns
      cstp patterns --category deployment --all-agents
      cstp patterns --project shop --svg patterns.svg
    """
    answer = client.get_patterns(**fields)
    if svg_file is not None:
        write_plot(svg_file, calibration_output.odds_ratio_diagram(answer))
    out.answer(answer, lambda console, found: calibration_output.print_patterns(console, found))


def write_plot(path: Path, image: str) -> None:
    """Write an SVG file. Raises click.ClickException."""
    try:
        path.write_text(image, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
