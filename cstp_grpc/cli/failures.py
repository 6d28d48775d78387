"""Failures to start, as the command line tells them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from sqlalchemy.exc import SQLAlchemyError

from cstp_grpc.cli.port_reservation import CannotReserve
from cstp_grpc.cli.supervised_process import ChildFailed
from cstp_grpc.decisions.embedding.weights import WeightsMissing
from cstp_grpc.guardrails.rulebook import RulebookError
from cstp_grpc.server.grpc_server import CannotListen
from cstp_grpc.storage.damage import describe_damage, is_damage
from cstp_grpc.storage.engine import UnsuitableDatabase
from cstp_grpc.storage.lock import AlreadyRunning

STARTUP = (
    AlreadyRunning,
    CannotListen,
    CannotReserve,
    ChildFailed,
    RulebookError,
    UnsuitableDatabase,
    WeightsMissing,
)


@contextmanager
def startup() -> Iterator[None]:
    """Turn what keeps a server from starting into a failure of the command; their messages say what to do."""
    try:
        yield
    except STARTUP as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{where}{error.strerror or error}") from error
    except SQLAlchemyError as error:
        reason = describe_damage(error) if is_damage(error) else getattr(error, "orig", None) or error
        raise click.ClickException(f"storage.url: the database cannot be used: {reason}") from error
