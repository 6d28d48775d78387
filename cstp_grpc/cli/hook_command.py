"""The command that coding agents run as their hook.

It runs before each tool call, so it loads little: over HTTP neither gRPC nor Protobuf nor settings.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

import click

from cstp_grpc.agents.hooks.event_handler import (
    ApprovalPolicy,
    FailurePolicy,
    HookSettings,
    answer_event,
    answer_failure,
)
from cstp_grpc.agents.hooks.hosts import HOSTS, load_host
from cstp_grpc.agents.hooks.model import MAX_PAYLOAD_BYTES, HookAnswer, HookDecision, HookEvent, HookHost, HookMoment
from cstp_grpc.agents.hooks.server_calls import BridgeCalls, ClientCalls, JsonObject, ServerCalls
from cstp_grpc.agents.hooks.tool_rules import ToolRules
from cstp_grpc.cli import command_decorators as shared
from cstp_grpc.common.git_command import find_work_tree
from cstp_grpc.contract.caller import DEVELOPER
from cstp_grpc.contract.errors import ConfigError, CstpError
from cstp_grpc.platform.config.environment import command_environment, inherited_environment

if TYPE_CHECKING:
    from cstp_grpc.cli.command_decorators import CommandState
    from cstp_grpc.cli.server_choice import Endpoint, ServerChoice

DEFAULT_SECONDS: Final = 8.0
"""Seconds for an answer. Chosen: what people bear when a server is away; the agent waits longer."""


def hook_options(command: shared.Command) -> shared.Command:
    """Add the options that say how events are answered."""
    return shared.stack_options(
        click.option("--project", metavar="NAME", help="Project name on the server. [default: its only one]"),
        shared.choice_option("--on-failure", FailurePolicy, "Answer to a tool call that cannot be evaluated."),
        shared.choice_option(
            "--approvals", ApprovalPolicy, "Who approves: the user of the agent, or (deny) people on the server only."
        ),
        click.option(
            "--headless",
            is_flag=True,
            expose_value=False,
            help="Deny instead of asking, because no user is present. [default: as the agent was started]",
        ),
        click.option("--tools", "tools_file", type=shared.FILE, help="The table of tools. [default: the packaged one]"),
        click.option(
            "--resident/--no-resident",
            default=None,
            help="Leave a process that answers the next hooks sooner, and ends by itself; for servers that are not"
            " called over HTTP, and data folders.",
        ),
    )(command)


GIVEN_ARGUMENTS: Final = f"{__name__}.given_arguments"
"""Where the context has the arguments of the hook."""


class HookCommand(click.Command):
    """A command whose wrong options are an answer, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        ctx.meta[GIVEN_ARGUMENTS] = given
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if not given or given[0] not in HOSTS or sys.stdin.isatty():
                raise
            # The exit code of wrong usage, 2, would keep agents from ending a turn, again and again.
            # Which option has the word is not known here: the stricter policy is never wrong.
            denies = any(word.rpartition("=")[2] == FailurePolicy.DENY for word in given)
            policy = FailurePolicy.DENY if denies else FailurePolicy.ASK
            answer_wrong_usage(load_host(given[0]), error.format_message(), policy)
            ctx.exit()


@click.command(cls=HookCommand)
@click.argument("host", type=click.Choice(HOSTS))
@hook_options
@shared.server_options
@shared.config_option
def hook_command(
    host: str,
    project: str | None,
    on_failure: str,
    approvals: str,
    tools_file: Path | None,
    resident: bool | None,
    choice: ServerChoice,
    timeout: float | None,
) -> None:
    """Answer a hook of a coding agent. It checks tool calls, adds the rules for files, and files learnings.

    It reads the event from standard input and writes the answer to standard output, as HOST has them. `cstp install`
    puts it into the settings of HOST.

    \b
    Example:
      cstp hook claude-code < event.json
    """
    agent = load_host(host)
    policy = FailurePolicy(on_failure)
    seconds = DEFAULT_SECONDS if timeout is None else timeout
    event = HookEvent(HookMoment.BEFORE_TOOL)
    try:
        with time_limit(seconds), ExitStack() as opened:
            data = read_standard_input()
            if resident and print_resident_answer(agent, data):
                return
            event = read_hook_event(agent, data)
            settings = HookSettings(
                read_tool_rules(agent, tools_file),
                project,
                agent.tells_before_tool,
                agent.hears_last_message,
                policy,
                ApprovalPolicy(approvals),
            )
            answer = answer_event(event, ChosenServer(choice, seconds, shared.current_state(), opened), settings)
    # A hook that fails lets the tool call through, or stops the session: each failure is an answer. An event that
    # cannot be read may be a tool call, and is answered as one.
    except Exception as error:  # noqa: BLE001
        reason = error.reason if isinstance(error, CstpError) else ""
        answer = answer_failure(event.moment, explain_failure(error), policy, reason)
    write_hook_answer(agent, event, answer)
    if resident:
        leave_resident()


def print_resident_answer(agent: HookHost, payload: bytes) -> bool:
    """Print the answer of the resident process to a payload; False if there is no answer."""
    from cstp_grpc.cli.resident_process import ask_resident, resident_socket

    given = click.get_current_context().meta[GIVEN_ARGUMENTS]
    where = resident_socket()
    # The last one counts: what the fork runs is this hook.
    # The agent is an ancestor of this process only.
    known = ["--headless"] if is_headless_session(agent) else []
    printed = None if where is None else ask_resident(where, [*given, "--no-resident", *known], payload)
    if printed is None:
        return False
    click.echo(printed.errors, nl=False, err=True)
    click.echo(printed.output, nl=False)
    return True


def is_headless_session(agent: HookHost) -> bool:
    """Return whether the agent cannot ask its user, by the arguments of the hook or by how the agent was started."""
    from cstp_grpc.agents.hooks.host_process import is_headless

    given = click.get_current_context().meta[GIVEN_ARGUMENTS]
    return "--headless" in given or (agent.waiting_program is not None and is_headless(agent.waiting_program))


def leave_resident() -> None:
    from cstp_grpc.cli.resident_process import resident_socket, start_resident

    # The event has been answered: that the next ones take longer is not worth a word.
    with suppress(OSError):
        if (where := resident_socket()) is not None:
            start_resident(where)


def answer_wrong_usage(agent: HookHost, why: str, policy: FailurePolicy) -> None:
    event = HookEvent(HookMoment.BEFORE_TOOL)
    try:
        event = read_hook_event(agent, read_standard_input())
    except ValueError as error:
        why = f"{why} {error}"
    write_hook_answer(agent, event, answer_failure(event.moment, why, policy))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after some seconds, whatever it waits for; in the main thread only."""

    def expire(_: int, __: FrameType | None) -> NoReturn:
        raise TimeoutError(f"it took more than {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read_standard_input() -> bytes:
    """Return the bytes of standard input, cut just beyond the limit of an event."""
    return sys.stdin.buffer.read(MAX_PAYLOAD_BYTES + 1)


def read_hook_event(agent: HookHost, data: bytes) -> HookEvent:
    """Return the event read from standard input. Raises ValueError."""
    if len(data) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"the event has more than {MAX_PAYLOAD_BYTES} bytes")
    try:
        payload = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError("the event on standard input is not JSON") from error
    if not isinstance(payload, dict):
        raise ValueError("the event on standard input is not a JSON object")  # noqa: TRY004 - the input is wrong
    variable = agent.project_folder_variable
    event = agent.read_event(payload, inherited_environment([variable]).get(variable) if variable else None)
    folder = Path(event.folder)
    return replace(event, folder=str(find_work_tree(folder) or folder))


def read_tool_rules(agent: HookHost, path: Path | None) -> ToolRules:
    """Return the table of tools of a file, or the packaged one. Raises ConfigError."""
    if path is None:
        return ToolRules.parse(agent.tools)
    from cstp_grpc.platform.config.yaml_file import parse_yaml

    return ToolRules.parse(parse_yaml(path), f"{path}: ")


def explain_failure(error: Exception) -> str:
    """Return why an event could not be dealt with; a failure that is a fault of ours is also printed."""
    match error:
        case CstpError() | click.ClickException():
            return error.message
        case ConfigError() | ValueError() | OSError():
            return str(error)
        case ImportError() if missing := find_missing_extra(error):
            return missing
        case _:
            import traceback

            traceback.print_exception(error, file=sys.stderr)
            return f"{type(error).__name__}: {error}"


def find_missing_extra(error: ImportError) -> str:
    """Return which extra an import needs, with the command that installs it; empty if none has the module."""
    # Imported here: only a failure needs it.
    from cstp_grpc.common.extras import missing_extra

    return str(missing_extra(error) or "")


def write_hook_answer(agent: HookHost, event: HookEvent, answer: HookAnswer) -> None:
    """Print an answer on standard output; a question becomes a denial if nobody could answer it."""
    if answer.decision is HookDecision.ASK and is_headless_session(agent):
        answer = replace(answer, decision=HookDecision.DENY)
    if answer.notice and not agent.shows_notices:
        from cstp_grpc.common.unicode_text import replace_invisible

        click.echo(replace_invisible(answer.notice), err=True)
    # In ASCII: the encoding of standard output may have few letters.
    click.echo(json.dumps(agent.write_answer(event, answer)))


class ChosenServer:
    """Calls the server that the options choose, which is connected to by the first call."""

    def __init__(self, choice: ServerChoice, seconds: float, state: CommandState, opened: ExitStack) -> None:
        self._choice = choice
        self._seconds = seconds
        self._state = state
        self._opened = opened

    def call(self, method: str, params: JsonObject) -> JsonObject:
        """Return the result. Raises ServerCallFailed, CstpError, ConfigError and click.UsageError."""
        return self._calls.call(method, params)

    @functools.cached_property
    def _calls(self) -> ServerCalls:
        endpoint = choose_quickest(self._choice, self._state)
        if is_bridge(endpoint):
            return BridgeCalls(endpoint.url, endpoint.token, seconds=self._seconds, ca_file=endpoint.ca_file)
        from cstp_grpc.platform.config.environment import silence_grpc

        silence_grpc()
        return ClientCalls(self._opened.enter_context(endpoint.connect(self._seconds)))


def choose_quickest(choice: ServerChoice, state: CommandState) -> Endpoint:
    """Return the server to call; for this machine's own one its bridge, if it is described, which is quicker to begin.

    Raises ConfigError and click.UsageError.
    """
    from cstp_grpc.cli.server_choice import AGENTS_FILE, choose_server, endpoint_of_entry, read_agents

    endpoint = choose_server(choice, command_environment(), state)
    described = state.data_dir() / AGENTS_FILE if endpoint.local and not endpoint.is_folder else None
    if described is None or not described.exists():
        return endpoint
    agents = read_agents(described)
    bridge = agents.find(f"{DEVELOPER}-http")
    if bridge is None:
        return endpoint
    found = endpoint_of_entry(bridge, agents.defaults, described)
    return replace(found, token=endpoint.token, identified_by=endpoint.identified_by, local=True)


def is_bridge(endpoint: Endpoint) -> bool:
    return endpoint.url.startswith(("http://", "https://"))
