"""Errors at startup as failures of the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from cstp_grpc.cli.process_supervision import ChildProcessFailed, PortReservationFailed
from cstp_grpc.contract.errors import ConfigError


@contextmanager
def startup_errors_as_failures() -> Iterator[None]:
    """Turn errors at startup into failures of the command, whose messages say what to do."""
    try:
        yield
    # The reader of standard output was closed, such as `head`: click ends the command quietly.
    except (click.ClickException, ConfigError, BrokenPipeError):
        raise
    except (PortReservationFailed, ChildProcessFailed) as error:
        raise click.ClickException(str(error)) from error
    except Exception as error:
        # Imported here, because it loads the server, which a supervisor of worker processes does not need.
        from cstp_grpc.server.startup_failures import describe_startup_failure

        message = describe_startup_failure(error)
        if message is None:
            raise
        raise click.ClickException(message) from error
