"""Answer a hook of a coding agent.

It runs before each tool call, so it loads little: over HTTP neither gRPC nor Protobuf nor settings, and click only for
the words that `parse_usual_words` does not read.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from cstp_grpc.agents.hooks.event_handler import (
    INTERNAL,
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
from cstp_grpc.cli import resident_client
from cstp_grpc.cli.command_state import CommandState
from cstp_grpc.cli.resident_client import DEFAULT_SECONDS
from cstp_grpc.cli.server_choice import ServerChoice
from cstp_grpc.common.git_command import find_work_tree
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract.errors import ConfigError, CstpError
from cstp_grpc.platform.config.environment import (
    command_environment,
    environment_without_settings,
    inherited_environment,
)

if TYPE_CHECKING:
    import click

    from cstp_grpc.cli.server_choice import Endpoint
else:
    click = LazyModule("click")


MAX_SOCKET_PATH: Final = 100
"""Maximum length of the path of a socket: 104 bytes with the final zero on macOS, 108 on Linux."""


class HookRun(NamedTuple):
    """One run of the hook."""

    given: Sequence[str]
    """The words after `cstp hook`."""
    host: str
    choice: ServerChoice
    state: CommandState
    project: str | None = None
    on_failure: FailurePolicy = FailurePolicy.ASK
    approvals: ApprovalPolicy = ApprovalPolicy.ASK
    tools_file: Path | None = None
    resident: bool | None = None
    seconds: float = DEFAULT_SECONDS


USUAL_OPTIONS: Final = (
    *("--project", "--on-failure", "--approvals", "--tools", "--timeout", "--config"),
    *("--agent", "--token", "--agents-file", "--ca-file", "--as"),
)
"""The options with a value that need no click."""
USUAL_FLAGS: Final = ("--headless", "--resident", "--no-resident", "--local")


def parse_usual_words(words: Sequence[str]) -> HookRun | None:
    """Return the run for words as `cstp install` writes them; None for all others, which click parses and explains."""
    if not words or words[0] not in HOSTS:
        return None
    found: dict[str, str] = {}
    rest = iter(words[1:])
    for word in rest:
        value = next(rest, "-") if word in USUAL_OPTIONS else ""
        if word not in (*USUAL_OPTIONS, *USUAL_FLAGS) or value.startswith("-"):
            return None
        found[word] = value
    try:
        return usual_run(words, found)
    except (ValueError, OSError):
        # Also for a path that the system refuses to look at: without an answer, some agents run the tool.
        return None


def usual_run(words: Sequence[str], found: dict[str, str]) -> HookRun:
    """Return the run for options by their names. Raises ValueError for a value that click refuses."""
    paths = {name: Path(found[name]) for name in ("--tools", "--config", "--agents-file", "--ca-file") if name in found}
    seconds = float(found.get("--timeout", DEFAULT_SECONDS))
    both = {"--resident", "--no-resident"} <= found.keys()
    if both or not seconds > 0 or any(path.is_dir() for path in paths.values()):
        raise ValueError
    agents_file, ca_file = paths.get("--agents-file"), paths.get("--ca-file")
    return HookRun(
        words,
        words[0],
        ServerChoice(
            found.get("--agent"), found.get("--token"), agents_file, ca_file, "--local" in found, found.get("--as")
        ),
        CommandState(config_file=paths.get("--config")),
        found.get("--project"),
        FailurePolicy(found.get("--on-failure", "ask")),
        ApprovalPolicy(found.get("--approvals", "ask")),
        paths.get("--tools"),
        False if "--no-resident" in found else "--resident" in found or None,
        seconds,
    )


def run_hook(hook: HookRun) -> None:
    """Answer the event on standard input."""
    agent = load_host(hook.host)
    event = HookEvent(HookMoment.BEFORE_TOOL)
    try:
        with time_limit(hook.seconds), ExitStack() as opened:
            event = read_hook_event(agent, read_standard_input())
            settings = HookSettings(
                read_tool_rules(agent, hook.tools_file),
                hook.project,
                agent.tells_before_tool,
                agent.hears_last_message,
                hook.on_failure,
                hook.approvals,
            )
            answer = answer_event(event, ChosenServer(hook.choice, hook.seconds, hook.state, opened), settings)
    # A hook that fails lets the tool call through, or stops the session: each failure is an answer. An event that
    # cannot be read may be a tool call, and is answered as one.
    except Exception as error:  # noqa: BLE001
        foreseen = (ConfigError, ValueError, OSError, ImportError, click.ClickException)
        reason = error.reason if isinstance(error, CstpError) else "" if isinstance(error, foreseen) else INTERNAL
        answer = answer_failure(event.moment, explain_failure(error), hook.on_failure, reason)
    write_hook_answer(agent, hook.given, event, answer)
    if hook.resident:
        leave_resident()


def is_headless_session(agent: HookHost, given: Sequence[str], parent: int) -> bool:
    """Return whether the agent cannot ask its user, by the arguments of the hook or by how the agent was started.

    `parent` is the process that has started the hook.
    """
    from cstp_grpc.agents.hooks.host_process import is_headless

    return "--headless" in given or (agent.waiting_program is not None and is_headless(agent.waiting_program, parent))


def leave_resident() -> None:
    """Start the resident process, which answers the next hooks, unless it runs."""
    # The event has been answered: that the next ones take longer is not worth a word.
    with suppress(OSError):
        if (where := resident_client.resident_socket()) is not None:
            start_resident(where)


def start_resident(path: str) -> bool:
    """Start the process that listens at a path, and return whether that can be. Raises OSError."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        return False
    # Imported here, since most hooks only ask.
    import subprocess

    # In a session of its own, so that it outlives the agent, and with no file of the hook's open.
    subprocess.Popen(
        [sys.executable, "-m", "cstp_grpc.cli.resident_process", path],
        cwd="/",
        env=environment_without_settings(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return True


def answer_wrong_usage(given: Sequence[str], why: str, policy: FailurePolicy) -> None:
    agent = load_host(given[0])
    event = HookEvent(HookMoment.BEFORE_TOOL)
    try:
        event = read_hook_event(agent, read_standard_input())
    except ValueError as error:
        why = f"{why} {error}"
    write_hook_answer(agent, given, event, answer_failure(event.moment, why, policy))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after some seconds, whatever it waits for; in the main thread only.

    The seconds that the resident process was asked for count.
    """

    def expire(_: int, __: FrameType | None) -> NoReturn:
        raise TimeoutError(f"it took more than {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, expire)
    # At least an instant: zero would be no limit.
    signal.setitimer(signal.ITIMER_REAL, max(seconds - resident_client.spent_seconds, 1e-6))
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
    return event._replace(folder=str(find_work_tree(folder) or folder))


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


def write_hook_answer(agent: HookHost, given: Sequence[str], event: HookEvent, answer: HookAnswer) -> None:
    """Print an answer on standard output; a question becomes a denial if nobody could answer it."""
    if answer.decision is HookDecision.ASK and is_headless_session(agent, given, os.getppid()):
        answer = answer._replace(decision=HookDecision.DENY)
    if answer.notice and not agent.shows_notices:
        from cstp_grpc.common.unicode_text import replace_invisible

        print(replace_invisible(answer.notice), file=sys.stderr)
    # In ASCII: the encoding of standard output may have few letters.
    print(json.dumps(agent.write_answer(event, answer)), flush=True)


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
            return BridgeCalls(
                endpoint.url,
                endpoint.token,
                seconds=self._seconds,
                ca_file=endpoint.ca_file,
                client_certificate=endpoint.client_certificate,
            )
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
    from cstp_grpc.contract.caller import DEVELOPER

    bridge = agents.find(f"{DEVELOPER}-http")
    if bridge is None:
        return endpoint
    found = endpoint_of_entry(bridge, agents.defaults, described)
    return found._replace(token=endpoint.token, identified_by=endpoint.identified_by, local=True)


def is_bridge(endpoint: Endpoint) -> bool:
    return endpoint.url.startswith(("http://", "https://"))
