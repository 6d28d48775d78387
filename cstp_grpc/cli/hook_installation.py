"""The commands that put the hook into the settings of a coding agent, and take it out again."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cstp_grpc.caller import DEVELOPER
from cstp_grpc.cli.command_decorators import Command, config_option, current_state, server_options, stack_options
from cstp_grpc.cli.hook_command import (
    DEFAULT_SECONDS,
    HOSTS,
    choose_quickest,
    hook_options,
    is_bridge,
    read_tool_rules,
)
from cstp_grpc.cli.output import Output, to_printable
from cstp_grpc.errors import ConfigError
from cstp_grpc.hooks import claude_code
from cstp_grpc.hooks.event_handler import ApprovalPolicy, FailurePolicy
from cstp_grpc.hooks.settings_text import install_hooks, remove_hooks, runs_command

if TYPE_CHECKING:
    from cstp_grpc.cli.command_decorators import CommandState
    from cstp_grpc.cli.server_choice import ServerChoice

EMPTY_SETTINGS: Final = "{\n}\n"
"""What settings are that do not exist."""
HOOK_WORDS: Final = ("hook", "claude-code")
SCOPES: Final = {
    "user": "~/.claude/settings.json",
    "project": ".claude/settings.json",
    "local": ".claude/settings.local.json",
}
"""The settings files of Claude Code: for all projects of a user, for all users of a project, and for one of both."""


def settings_options(command: Command) -> Command:
    """Add the options that choose a settings file, and whether to ask."""
    return stack_options(
        click.option(
            "--scope",
            type=click.Choice(list(SCOPES)),
            default="local",
            show_default=True,
            help="Whose settings: yours in this folder (local), everybody's in it (project), or yours everywhere.",
        ),
        click.option("--yes", is_flag=True, help="Write without asking."),
    )(command)


@click.command()
@click.argument("host", type=click.Choice(HOSTS))
@settings_options
@hook_options
@server_options
@config_option
def install_command(
    host: str,
    scope: str,
    yes: bool,
    project: str | None,
    on_failure: str,
    approvals: str,
    tools_file: Path | None,
    choice: ServerChoice,
    timeout: float | None,
) -> None:
    """Put `cstp hook` into the settings of a coding agent, after showing the difference.

    The other options are those of the hook. Everything else in the settings stays as it is, byte for byte.

    \b
    Examples:
      cstp install claude-code
      cstp install claude-code --scope user --agent https://cstp.example.com --on-failure deny
    """
    if choice.token:
        raise click.UsageError("Others may read settings: put the token into an agents file, or set CSTP_TOKEN.")
    read_tool_rules(tools_file)  # A mistake in it is better told now.
    options = {
        "--project": project,
        "--on-failure": None if on_failure == FailurePolicy.ASK else on_failure,
        "--approvals": None if approvals == ApprovalPolicy.ASK else approvals,
        "--tools": absolute_path(tools_file),
        **server_words(choice, current_state(), shared=scope == "project"),
        "--timeout": timeout,
    }
    words = [*program_words(shared=scope == "project"), *HOOK_WORDS, *option_words(options)]
    seconds = DEFAULT_SECONDS if timeout is None else timeout
    every_tool = tools_file is not None
    wanted = claude_code.wanted_hooks(shlex.join(words), seconds=seconds, every_tool=every_tool)
    change_settings(host, scope, yes, lambda text: install_hooks(text, wanted, is_our_hook))


@click.command()
@click.argument("host", type=click.Choice(HOSTS))
@settings_options
def uninstall_command(host: str, scope: str, yes: bool) -> None:
    """Take `cstp hook` out of the settings of a coding agent, after showing the difference.

    \b
    Example:
      cstp uninstall claude-code --scope user
    """
    change_settings(host, scope, yes, lambda text: remove_hooks(text, is_our_hook))


def is_our_hook(hook: Any) -> bool:
    """Return whether a hook in the settings is the one of this command."""
    return runs_command(hook, HOOK_WORDS)


def change_settings(host: str, scope: str, yes: bool, change: Callable[[str], str]) -> None:
    """Change a settings file, after showing the difference and asking. Raises ConfigError."""
    path = Path(SCOPES[scope]).expanduser()
    out = Output()
    before = read_settings(path)
    try:
        after = change(before or EMPTY_SETTINGS)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if after == (before or EMPTY_SETTINGS):
        out.line(to_printable(f"{path}: nothing to change for {host}"))
        return
    shown, changed = (before or "").splitlines(), after.splitlines()
    for line in difflib.unified_diff(shown, changed, str(path), str(path), lineterm=""):
        out.line(to_printable(line))
    if not yes:
        click.confirm(f"Write {to_printable(str(path))}?", abort=True, err=True)
    # The agent or an editor may have written them since the difference was shown.
    if read_settings(path) != before:
        raise ConfigError(f"{path}: was changed meanwhile; run the command again")
    write_settings(path, after, new=before is None)
    out.line(to_printable(f"{path}: written; sessions of {host} that start from now on use it"))


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
    from cstp_grpc.config.yaml_file import replace_file

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

    endpoint = choose_quickest(choice, state)
    if not is_bridge(endpoint):
        return given
    described = (state.data_dir() / AGENTS_FILE).absolute()
    return {"--agents-file": described, "--agent": f"{DEVELOPER}-http"}


def absolute_path(path: Path | None) -> Path | None:
    """Return a path from the root, or None without one."""
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
