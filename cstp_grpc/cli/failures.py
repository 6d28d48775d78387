"""Failures to start, as the command line tells them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from cstp_grpc.cli.port_reservation import CannotReserve
from cstp_grpc.cli.supervised_process import ChildFailed
from cstp_grpc.errors import ConfigError


@contextmanager
def startup() -> Iterator[None]:
    """Turn what keeps a server from starting into a failure of the command; their messages say what to do."""
    try:
        yield
    except (click.ClickException, ConfigError):
        raise
    except (CannotReserve, ChildFailed) as error:
        raise click.ClickException(str(error)) from error
    except Exception as error:
        # Loads the server, which a process that only looks after others does without.
        from cstp_grpc.server.startup_failures import describe_startup_failure

        message = describe_startup_failure(error)
        if message is None:
            raise
        raise click.ClickException(message) from error
