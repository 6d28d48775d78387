"""Times of options, as people type them."""

from __future__ import annotations

from datetime import UTC, datetime

import click


def parse_past(text: str) -> datetime:
    """Parse a time, where a length such as `7d` or a weekday is in the past. Raises click.BadParameter."""
    return parse_option(text, is_future=False)


def parse_future(text: str) -> datetime:
    """Parse a time, where a length such as `7d` or a weekday is in the future. Raises click.BadParameter."""
    return parse_option(text, is_future=True)


def parse_option(text: str, *, is_future: bool) -> datetime:
    """Parse a time, and print how words were understood. Raises click.BadParameter."""
    # Imported here: only options with a time need it.
    from cstp_grpc.common.typed_times import parse_time

    try:
        found = parse_time(text, datetime.now(UTC), is_future=is_future)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if found.is_from_words:
        click.echo(f"{text!r} is {found.instant:%Y-%m-%d %H:%M:%SZ}.", err=True)
    return found.instant
