"""What commands have in common: how they fail, how they print, how they find their server.

What reads settings and calls servers takes long to load, so that it is imported where it is used: some commands do
neither.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

import click

from cstp_grpc.cli.options import Command
from cstp_grpc.cli.output import Output, printable
from cstp_grpc.config.environment import command_environment
from cstp_grpc.errors import ConfigError, CstpError

if TYPE_CHECKING:
    from cstp_grpc.cli.endpoint import Choice, Endpoint
    from cstp_grpc.client import CstpClient
    from cstp_grpc.config import Settings

P = ParamSpec("P")
T = TypeVar("T")

FILE = click.Path(path_type=Path, dir_okay=False)


@dataclass
class State:
    """What is known of the running command."""

    json_wanted: bool = False
    config_file: Path | None = None
    endpoint: Endpoint | None = None

    def settings(self) -> Settings:
        """Return the settings. Raises ConfigError."""
        from cstp_grpc import config

        return config.load(self.config_path)

    def data_dir(self) -> Path:
        """Return the data folder, without judging the other settings if that can be. Raises ConfigError."""
        from cstp_grpc.config.data_folder import read_data_dir

        return read_data_dir(self.config_path) or self.settings().data_dir

    @property
    def config_path(self) -> Path | None:
        """The configuration file: --config, or the environment's."""
        return self.config_file or command_environment().config


@contextmanager
def known_failures(ctx: click.Context) -> Iterator[None]:
    """End the command with exit code 1 after a known failure, and say what to do next."""
    try:
        yield
    except CstpError as error:
        from cstp_grpc.cli.hints import as_json, hint

        next_step = hint(error, ctx.obj.endpoint)
        fail(ctx, f"{error.message}\n{next_step}" if next_step else error.message, as_json(error, next_step))
    except ConfigError as error:
        fail(ctx, str(error), {"reason": "CONFIGURATION", "message": str(error)})
    except UnicodeEncodeError as error:
        message = f"{error.object!r} is not UTF-8 text"
        fail(ctx, message, {"reason": "INVALID_ARGUMENT", "message": message})
    except click.UsageError:
        raise
    except click.ClickException as error:
        fail(ctx, error.message, {"reason": "FAILED", "message": error.message})


def fail(ctx: click.Context, message: str, document: dict[str, Any]) -> NoReturn:
    """End the command with exit code 1, its failure on standard error."""
    output = Output(json_wanted=ctx.obj.json_wanted)
    if output.json_wanted:
        output.problem(document)
    else:
        output.note(f"Error: {printable(message)}")
    ctx.exit(1)


def state() -> State:
    """Return what is known of the running command."""
    found: State = click.get_current_context().obj
    return found


def remember(name: str) -> Callable[[click.Context, click.Parameter, T], T]:
    """Return a callback that notes an option in the command's state."""

    def note(ctx: click.Context, _: click.Parameter, value: T) -> T:
        # What a group was told holds for its commands, which are told after it.
        if value:
            setattr(ctx.obj, name, value)
        return value

    return note


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=remember("json_wanted"),
    help="Print the answer as JSON.",
)
config_option = click.option(
    "--config",
    type=FILE,
    expose_value=False,
    callback=remember("config_file"),
    help="The configuration file; CSTP_CONFIG when absent.",
)

ca_option = click.option(
    "--ca-file", type=FILE, help="The authorities that certify the server, a PEM file; CSTP_CA_FILE when absent."
)


def prints(command: Callable[Concatenate[Output, P], None]) -> Command:
    """Give a command the option --json, and as its first argument where to print."""

    @json_option
    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        command(Output(json_wanted=state().json_wanted), *args, **kwargs)

    return wrapper


def calls(command: Callable[Concatenate[CstpClient, Output, P], None]) -> Command:
    """Give a command the options that choose a server, and as its first arguments a client of it and where to print."""

    @server_options
    @json_option
    @config_option
    @functools.wraps(command)
    def wrapper(*args: Any, choice: Choice, timeout: float | None, **kwargs: Any) -> None:
        from cstp_grpc.cli.endpoint import resolve

        current = state()
        current.endpoint = resolve(choice, command_environment(), current)
        with current.endpoint.connect(timeout) as client:
            command(client, Output(json_wanted=current.json_wanted), *args, **kwargs)

    return wrapper


def server_options(command: Command) -> Command:
    """Add the options that choose a server; the command gets them as `choice` and `timeout`."""

    @click.option("--agent", metavar="NAME|URL", help="The agent to call; when absent, this machine's server.")
    @click.option("--token", metavar="TOKEN", help="The bearer token; CSTP_TOKEN when absent.")
    @click.option("--agents-file", type=FILE, help="Where agents are named; CSTP_AGENTS_FILE when absent.")
    @ca_option
    @click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="How long to wait.")
    @functools.wraps(command)
    def wrapper(
        *args: Any,
        agent: str | None,
        token: str | None,
        agents_file: Path | None,
        ca_file: Path | None,
        timeout: float | None,
        **kwargs: Any,
    ) -> None:
        from cstp_grpc.cli.endpoint import Choice

        command(*args, choice=Choice(agent, token, agents_file, ca_file), timeout=timeout, **kwargs)

    return wrapper
