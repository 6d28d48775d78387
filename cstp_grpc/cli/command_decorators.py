"""The decorators, options, value types and state that commands share.

Reading settings and calling servers takes long to load, so both are imported where they are used: some commands do
neither.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from cstp_grpc.cli.command_state import CommandState
from cstp_grpc.cli.output import Output
from cstp_grpc.cli.short_ids import complete_ids
from cstp_grpc.cli.typed_times import parse_future, parse_past
from cstp_grpc.contract.enums import DecisionStatus, Outcome, Stakes
from cstp_grpc.contract.errors import ConfigError, CstpError
from cstp_grpc.platform.config.environment import command_environment

if TYPE_CHECKING:
    from cstp_grpc.cli.server_choice import Endpoint, ServerChoice
    from cstp_grpc.contract.calls import Json

T = TypeVar("T")


Command = Callable[..., None]
Decorator = Callable[[Command], Command]


CONFIDENCE = click.FloatRange(0, 1)
LIMIT = click.IntRange(min=1)
POSITIVE_SECONDS = click.FloatRange(min=0, min_open=True)


def parse_json_object(text: str) -> dict[str, Json]:
    """Parse a JSON object. Raises click.BadParameter."""
    try:
        content = parse_json(text)
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise click.BadParameter('must be a JSON object like {"key": true}')
    return content


def parse_assignment(text: str) -> tuple[str, Json]:
    """Parse `key=value`; a value that is not JSON is a text. Raises click.BadParameter."""
    key, value = parse_key_value(text)
    try:
        return key, parse_json(value)
    except ValueError:
        return key, value


def parse_key_value(text: str) -> tuple[str, str]:
    """Parse `key=text`. Raises click.BadParameter."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not of the form key=value")
    return key, value


def parse_json(text: str) -> Any:
    """Parse a JSON value. Raises ValueError, also for NaN and infinity."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        # Python's parser takes NaN and Infinity, which are not JSON (RFC 8259, section 6).
        return json.loads(text, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def enum_choice(kind: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([word.value for word in kind], case_sensitive=False)


OTHER_NAMES: Mapping[str, str] = {"--after": "--since", "--before": "--until"}
"""Second names of options that limit a period."""


def instant_option(name: str, description: str, parameter: str | None = None, *, is_future: bool = False) -> Decorator:
    """Return a decorator that adds an option with a time; lengths such as `7d` are in the past or in the future."""
    return click.option(
        *filter(None, (name, OTHER_NAMES.get(name), parameter or name.lstrip("-").replace("-", "_"))),
        type=parse_future if is_future else parse_past,
        metavar="TIME",
        help=description,
    )


def choice_option(name: str, choices: Iterable[str], description: str, parameter: str | None = None) -> Decorator:
    """Return a decorator that adds an option with one of several words, by default the first."""
    words = list(map(str, choices))
    return click.option(
        *filter(None, (name, parameter)),
        type=click.Choice(words),
        default=words[0],
        show_default=True,
        help=description,
    )


def seconds_option(default: float, description: str) -> Decorator:
    """Return a decorator that adds --timeout, passed to the command as `seconds`."""
    return click.option(
        "--timeout",
        "seconds",
        type=POSITIVE_SECONDS,
        default=default,
        show_default=True,
        metavar="SECONDS",
        help=description,
    )


def stack_options(*options: Decorator) -> Decorator:
    """Return a decorator that adds options, listed in the order given."""
    # Click lists options in the reverse order of their application.
    return lambda command: functools.reduce(lambda inner, option: option(inner), reversed(options), command)


def inputs_options(name: str) -> Decorator:
    """Return a decorator that adds options for guardrail inputs; the parameter has the name of the option."""
    return object_options(
        name,
        name.lstrip("-"),
        "An input of the guardrails; the value is JSON, or else a text.",
        "The inputs of the guardrails as one JSON object.",
        absent={},
    )


def object_options(
    name: str, parameter: str, member_help: str, whole_help: str, absent: dict[str, Json] | None = None
) -> Decorator:
    """Return a decorator that adds options for a JSON object, by key and as a whole; `absent` without them."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(
            *args: Any, assignments: Sequence[tuple[str, Json]], whole: Mapping[str, Json] | None, **kwargs: Any
        ) -> None:
            given = dict(whole or {})
            for key, value in assignments:
                if key in given:
                    raise click.UsageError(f"{name} gives {key!r} more than once.")
                given[key] = value
            is_given = assignments or whole is not None
            command(*args, **{parameter: given if is_given else absent}, **kwargs)

        return stack_options(
            click.option(
                name, "assignments", type=parse_assignment, multiple=True, metavar="KEY=VALUE", help=member_help
            ),
            click.option(f"{name}-json", "whole", type=parse_json_object, metavar="JSON", help=whole_help),
        )(wrapper)

    return decorate


def judged_options(command: Command) -> Command:
    return stack_options(
        click.option("--category", help="The kind of decision, for instance architecture."),
        click.option("--stakes", type=enum_choice(Stakes), help="Stakes of the action. [default: medium]"),
        click.option("--confidence", type=CONFIDENCE, help="Your confidence, 0 to 1."),
    )(command)


def announcement_options(command: Command) -> Command:
    return stack_options(
        click.argument("intent"),
        click.option("--context", metavar="TEXT", help="Further text, searched together with the intent."),
        judged_options,
        inputs_options("--metadata"),
        click.option("--project", metavar="NAME", help="Project of the paths. [default: the server's only one]"),
        click.option(
            "--path", "paths", metavar="P", multiple=True, help="A file or folder that you are about to change."
        ),
    )(command)


def federated_options(command: Command) -> Command:
    return stack_options(
        click.option(
            "--scope",
            type=click.Choice(["local", "federated"]),
            help="Who answers: only the called agent, or its peers too. [default: as configured]",
        ),
        click.option(
            "--ask", "agents", metavar="NAME", multiple=True, help="A peer of the agent to ask; may be repeated."
        ),
    )(command)


def filter_options(command: Command, without: str = "") -> Command:
    """Add the options that filter decisions, but for one of them, passed to the command as `filters`."""
    options = {name: option for name, option in FILTER_OPTIONS.items() if name != without}

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        command(*args, filters={name: kwargs.pop(name) for name in options}, **kwargs)

    return stack_options(*options.values())(wrapper)


review_filter_options = functools.partial(filter_options, without="outcome")
"""Adds those for decisions whatever their outcome."""

FILTER_OPTIONS: Mapping[str, Decorator] = {
    "category": click.option("--category", help="Exactly this category."),
    "min_confidence": click.option("--min-confidence", type=CONFIDENCE, help="At least this confidence."),
    "max_confidence": click.option("--max-confidence", type=CONFIDENCE, help="At most this confidence."),
    "date_after": instant_option("--after", "Dated then or later.", "date_after"),
    "date_before": instant_option("--before", "Dated then or earlier.", "date_before"),
    "stakes": click.option("--stakes", type=enum_choice(Stakes), multiple=True, help="Any of these stakes."),
    "status": click.option("--status", type=enum_choice(DecisionStatus), multiple=True, help="Any of these states."),
    "outcome": click.option("--outcome", type=enum_choice(Outcome), multiple=True, help="Any of these outcomes."),
    "tags": click.option("--tag", "tags", multiple=True, help="All of these tags."),
    "project": click.option("--project", help="Exactly this project."),
    "agent": click.option("--by", "agent", metavar="AGENT", help="Recorded by exactly this agent."),
}
"""The options that filter decisions, by the fields of the filters."""


FILE = click.Path(path_type=Path, dir_okay=False)


@contextmanager
def exit_on_known_failure(ctx: click.Context) -> Iterator[None]:
    """Exit with code 1 after a known error, and print the next step."""
    try:
        yield
    except CstpError as error:
        from cstp_grpc.cli.error_hints import error_to_json, hint_for_error

        next_step = hint_for_error(error, ctx.obj.endpoint)
        exit_with_error(
            ctx, f"{error.message}\n{next_step}" if next_step else error.message, error_to_json(error, next_step)
        )
    except ConfigError as error:
        exit_with_error(ctx, str(error), {"reason": "CONFIGURATION", "message": str(error)})
    except ImportError as error:
        # Imported here: only a failure needs it.
        from cstp_grpc.common.extras import missing_extra

        missing = missing_extra(error)
        if missing is None:
            raise
        exit_with_error(ctx, str(missing), {"reason": "MISSING_EXTRA", "message": str(missing)})
    except UnicodeEncodeError as error:
        message = f"{error.object!r} is not UTF-8 text"
        exit_with_error(ctx, message, {"reason": "INVALID_ARGUMENT", "message": message})
    # Click prints these with the usage, and exits with 2.
    except click.UsageError:
        raise
    except click.ClickException as error:
        exit_with_error(ctx, error.message, {"reason": "FAILED", "message": error.message})


@contextmanager
def startup_errors_as_failures() -> Iterator[None]:
    """Turn errors at startup into failures of the command, whose messages name a fix."""
    try:
        yield
    # The reader of standard output was closed, such as `head`: click ends the command quietly.
    except (click.ClickException, ConfigError, BrokenPipeError):
        raise
    except Exception as error:
        # Imported here, because it loads the server, which a supervisor of worker processes does not need.
        from cstp_grpc.server.startup_failures import describe_startup_failure

        message = describe_startup_failure(error)
        if message is None:
            raise
        raise click.ClickException(message) from error


def exit_with_error(ctx: click.Context, message: str, document: dict[str, Any], code: int = 1) -> NoReturn:
    """Print an error on standard error and exit."""
    output = Output(json_wanted=ctx.obj.json_wanted)
    if output.json_wanted:
        output.print_error(document)
    else:
        output.note(f"Error: {message}")
    ctx.exit(code)


def current_state() -> CommandState:
    found: CommandState = click.get_current_context().obj
    return found


def store_option(name: str) -> Callable[[click.Context, click.Parameter, T], T]:
    def note(ctx: click.Context, _: click.Parameter, value: T) -> T:
        # An option given to a group holds for its commands too, whose own options come after it.
        if value:
            setattr(ctx.obj, name, value)
        return value

    return note


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=store_option("json_wanted"), help="Print the answer as JSON."
)
config_option = click.option(
    "--config",
    type=FILE,
    expose_value=False,
    callback=store_option("config_file"),
    help="Configuration file. [env: CSTP_CONFIG]",
)

ca_option = click.option(
    "--ca-file", type=FILE, help="PEM file of the CAs that certify the server. [env: CSTP_CA_FILE]"
)


def with_output(command: Command) -> Command:
    """Add the option --json to a command, and pass it the Output as its first argument."""

    @json_option
    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        command(Output(json_wanted=current_state().json_wanted), *args, **kwargs)

    return wrapper


def with_client(command: Command, role: str | None = None, connect: str = "connect") -> Command:
    """Add the options that choose a server, and pass the command a client of it and the Output.

    `role` is the agent of this machine's own server to act as, unless an option or the environment chooses another one.
    `connect` is the method of Endpoint that returns the client.
    """

    @server_options
    @json_option
    @config_option
    @functools.wraps(command)
    def wrapper(*args: Any, choice: ServerChoice, timeout: float | None, **kwargs: Any) -> None:
        endpoint = endpoint_of_choice(choice if role is None else choice._replace(role=role))
        with getattr(endpoint, connect)(timeout) as client:
            command(client, Output(json_wanted=current_state().json_wanted), *args, **complete_ids(client, kwargs))

    return wrapper


with_json_client = functools.partial(with_client, connect="connect_json")
"""Passes a JsonClient, which takes less to load."""


def endpoint_of_choice(choice: ServerChoice) -> Endpoint:
    from cstp_grpc.cli.server_choice import choose_server

    current = current_state()
    # Stored before the connection is opened, so that the hints about a failure know which server was meant.
    current.endpoint = choose_server(choice, command_environment(), current)
    return current.endpoint


def server_options(command: Command) -> Command:
    """Add the options that choose a server, passed to the command as `choice` and `timeout`."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        from cstp_grpc.cli.server_choice import ServerChoice

        choice = ServerChoice(*(kwargs.pop(name) for name in CHOICE_NAMES))
        command(*args, choice=choice, **kwargs)

    return stack_options(
        # Not called `agent`, as the field of some requests is.
        click.option(
            "--agent",
            "called_agent",
            metavar="NAME|URL",
            help="Agent to call, or local:FOLDER. [default: this machine's server]",
        ),
        click.option("--token", metavar="TOKEN", help="Bearer token. [env: CSTP_TOKEN]"),
        click.option("--agents-file", type=FILE, help="File that names agents. [env: CSTP_AGENTS_FILE]"),
        ca_option,
        click.option("--timeout", type=POSITIVE_SECONDS, metavar="SECONDS", help="How long to wait."),
        click.option("--local", is_flag=True, help="Call no server: use the data folder in this process."),
        click.option(
            "--as", "identity", metavar="AGENT", help="Agent to act as with --local. [default: the only one configured]"
        ),
    )(wrapper)


CHOICE_NAMES = ("called_agent", "token", "agents_file", "ca_file", "local", "identity")
"""The parameters of `server_options` that choose a server, in the order of the fields of ServerChoice."""
