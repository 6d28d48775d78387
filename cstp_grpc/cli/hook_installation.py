"""The commands that put the hook into the settings of a coding agent, and take it out again."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cstp_grpc.agents.hooks.event_handler import ApprovalPolicy, FailurePolicy, describe_rules_of
from cstp_grpc.agents.hooks.hosts import HOSTS, load_host
from cstp_grpc.agents.hooks.model import PLUGIN_MARK
from cstp_grpc.agents.hooks.server_calls import ServerCallFailed
from cstp_grpc.agents.hooks.settings_text import install_hooks, is_made_by_install, remove_hooks, runs_command
from cstp_grpc.cli import hook_command, hook_run
from cstp_grpc.cli.command_decorators import Command, config_option, current_state, server_options, stack_options
from cstp_grpc.cli.output import Output, to_printable
from cstp_grpc.cli.resident_client import DEFAULT_SECONDS
from cstp_grpc.contract.caller import DEVELOPER
from cstp_grpc.contract.errors import ConfigError, CstpError

if TYPE_CHECKING:
    from cstp_grpc.agents.hooks.model import HookHost
    from cstp_grpc.cli.command_state import CommandState
    from cstp_grpc.cli.server_choice import ServerChoice

SCOPES: Final = ("local", "project", "user")
RULES_SECONDS: Final = 3.0
"""How long the server may take to name its rules. Chosen: the hook is installed whether it answers or not."""


def settings_options(command: Command) -> Command:
    return stack_options(
        click.option(
            "--scope",
            type=click.Choice(SCOPES),
            help="Settings to change: yours in this folder (local; the default, Claude Code only), everybody's in it"
            " (project), or yours everywhere (user; the default of other agents).",
        ),
        click.option("--yes", is_flag=True, help="Write without asking."),
    )(command)


@click.command()
@click.argument("host", type=click.Choice(HOSTS))
@settings_options
@hook_command.hook_options
@server_options
@config_option
def install_command(
    host: str,
    scope: str | None,
    yes: bool,
    project: str | None,
    on_failure: str,
    approvals: str,
    tools_file: Path | None,
    resident: bool | None,
    choice: ServerChoice,
    timeout: float | None,
) -> None:
    """Install the hook into a coding agent. Shows the difference first.

    The other options are those of the hook. Everything else in the settings stays as it is, byte for byte.

    \b
    Examples:
      cstp install claude-code
      cstp install claude-code --scope user --agent https://cstp.example.com --on-failure deny
    """
    if choice.token:
        raise click.UsageError("Others may read settings: put the token into an agents file, or set CSTP_TOKEN.")
    agent = load_host(host)
    hook_run.read_tool_rules(agent, tools_file)  # A mistake in it is better told now.
    scope = choose_scope(host, agent, scope)
    options = {
        "--project": project,
        "--on-failure": None if on_failure == FailurePolicy.ASK else on_failure,
        "--approvals": None if approvals == ApprovalPolicy.ASK else approvals,
        "--tools": absolute_path(tools_file),
        **server_words(choice, current_state(), shared=scope == "project"),
        "--timeout": timeout,
        "--resident": needs_resident(choice) if resident is None else resident,
    }
    words = [*program_words(shared=scope == "project"), *hook_words(host), *option_words(options)]
    seconds = DEFAULT_SECONDS if timeout is None else timeout
    path = Path(agent.settings_files[scope]).expanduser()
    before, is_ours = read_settings(path), is_hook_of(host)
    with naming_file(path):
        after = add_hook(before, agent, is_ours, words, seconds=seconds, every_tool=tools_file is not None)
    note = agent.installation_note or f"sessions of {host} that start from now on use it"
    change_settings(host, path, before, after, note, yes=yes)
    Output().line(to_printable(describe_server_rules(choice)))


def add_hook(
    before: str | None,
    agent: HookHost,
    is_ours: Callable[[Any], bool],
    words: list[str],
    *,
    seconds: float,
    every_tool: bool,
) -> str:
    """Return the settings with the hook that runs a command. Raises ConfigError."""
    is_own = is_own_file(before, agent, is_ours)
    if agent.write_plugin is None:
        wanted = agent.wanted_hooks(shlex.join(words), seconds=seconds, every_tool=every_tool)
        return install_hooks(agent.empty_settings if is_own else before or "", wanted, is_ours)
    if not is_own:
        raise ConfigError("is another plugin; move it first")
    return agent.write_plugin(words, seconds=seconds, every_tool=every_tool)


def describe_server_rules(choice: ServerChoice) -> str:
    """Return a line about the rules that the hook's server enforces, or about the server if it does not answer."""
    try:
        with ExitStack() as opened:
            return describe_rules_of(hook_run.ChosenServer(choice, RULES_SECONDS, current_state(), opened))
    except (ServerCallFailed, CstpError, ConfigError, KeyError, click.ClickException) as error:
        why = error.message if isinstance(error, click.ClickException) else str(error)
        return f"Rules: unknown, and no tool call is checked until the server answers: {why}"


@click.command()
@click.argument("host", type=click.Choice(HOSTS))
@settings_options
def uninstall_command(host: str, scope: str | None, yes: bool) -> None:
    """Remove the hook from a coding agent. Shows the difference first.

    \b
    Example:
      cstp uninstall claude-code --scope user
    """
    agent = load_host(host)
    scope = choose_scope(host, agent, scope)
    path = Path(agent.settings_files[scope]).expanduser()
    before, is_ours = read_settings(path), is_hook_of(host)
    with naming_file(path):
        # A link may be another file's other name, which its owner keeps.
        whole = before is not None and not path.is_symlink() and is_own_file(before, agent, is_ours)
        if whole or before is None:
            after = None
        else:
            after = remove_hooks(before, is_ours) if agent.write_plugin is None else before
    note = f"sessions of {host} that start from now on do not use it"
    change_settings(host, path, before, after, note, yes=yes)
    if whole:
        remove_empty_folders(agent.settings_files[scope])


def choose_scope(host: str, agent: HookHost, scope: str | None) -> str:
    """Return the scope of the settings, the agent's first one if none is given. Raises UsageError."""
    if scope is None:
        return next(iter(agent.settings_files))
    if scope not in agent.settings_files:
        raise click.UsageError(f"{host} has no settings of the scope {scope}: {', '.join(agent.settings_files)}")
    return scope


def hook_words(host: str) -> tuple[str, str]:
    return ("hook", host)


def is_hook_of(host: str) -> Callable[[Any], bool]:
    """Return a predicate that tells whether a hook in the settings is the one of this command for an agent."""
    return lambda hook: runs_command(hook, hook_words(host))


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def is_own_file(text: str | None, agent: HookHost, is_ours: Callable[[Any], bool]) -> bool:
    """Return whether a settings file is missing, or is as `cstp install` creates it. Raises ConfigError."""
    if text is None or agent.write_plugin is not None:
        return text is None or text.startswith(PLUGIN_MARK)
    return is_made_by_install(text, agent.empty_settings, is_ours)


def change_settings(host: str, path: Path, before: str | None, after: str | None, note: str, *, yes: bool) -> None:
    """Change or remove a settings file, after showing the difference and asking. Raises ConfigError."""
    out = Output()
    if after == before:
        out.line(to_printable(f"{path}: nothing to change for {host}"))
        return
    shown, changed = (before or "").splitlines(), (after or "").splitlines()
    for line in difflib.unified_diff(shown, changed, str(path), str(path), lineterm=""):
        out.line(to_printable(line))
    if not yes:
        question = f"{'Remove' if after is None else 'Write'} {to_printable(str(path))}?"
        click.confirm(question, abort=True, err=True)
    # The agent or an editor may have written them since the difference was shown.
    if read_settings(path) != before:
        raise ConfigError(f"{path}: was changed meanwhile; run the command again")
    if after is None:
        try:
            path.unlink()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be removed: {error.strerror}") from error
        out.line(to_printable(f"{path}: removed, because `cstp install` created it"))
        return
    write_settings(path, after, new=before is None)
    out.line(to_printable(f"{path}: written; {note}"))


def remove_empty_folders(settings_file: str) -> None:
    """Remove the folders of a settings file that are empty, up to the home folder or the current one."""
    for folder in Path(settings_file).parents:
        if folder in (Path("~"), Path()):
            return
        with suppress(OSError):
            folder.expanduser().rmdir()


def read_settings(path: Path) -> str | None:
    """Return the text of a settings file, or None if it is missing. Raises ConfigError."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def write_settings(path: Path, text: str, *, new: bool) -> None:
    """Write a settings file, which is complete or unchanged at any moment. Raises ConfigError."""
    from cstp_grpc.platform.config.yaml_file import replace_file

    if new:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # The agent may have made it meanwhile.
            path.open("x").close()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    replace_file(path, text)


def program_words(*, shared: bool) -> list[str]:
    """Return how the hook calls `cstp`: by its name in settings that others use, else by the path of this one."""
    if shared:
        return ["cstp"]
    beside = Path(sys.executable).with_name("cstp")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "cstp_grpc"]


def server_words(choice: ServerChoice, state: CommandState, *, shared: bool) -> dict[str, Any]:
    """Return the options of the hook that choose the server, with absolute paths: sessions run in other folders."""
    given: dict[str, Any] = {
        "--agent": choice.agent,
        "--agents-file": absolute_path(choice.agents_file),
        "--ca-file": absolute_path(choice.ca_file),
        "--local": choice.local,
        "--as": choice.identity,
        "--config": absolute_path(state.config_path),
    }
    if choice.is_made or choice.local or shared:
        return given
    from cstp_grpc.cli.server_choice import AGENTS_FILE

    endpoint = hook_run.choose_quickest(choice, state)
    if not hook_run.is_bridge(endpoint):
        return given
    described = (state.data_dir() / AGENTS_FILE).absolute()
    return {"--agents-file": described, "--agent": f"{DEVELOPER}-http"}


def needs_resident(choice: ServerChoice) -> bool:
    """Return whether it is known that the server is not called over HTTP, which takes long to load."""
    return choice.local or (choice.agent or "").startswith(("local:", "grpc:", "grpcs:"))


def absolute_path(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Return the options of a command line, by their names, without those that are not given."""
    words: list[str] = []
    for name, value in options.items():
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            words += [name, str(value)]
    return words
