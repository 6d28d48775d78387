"""The `cstp completion` command: the script with which a shell completes `cstp`."""

from __future__ import annotations

from typing import Final

import click

SHELLS: Final = ("bash", "zsh", "fish")
PROGRAM: Final = "cstp"
VARIABLE: Final = "_CSTP_COMPLETE"
"""The variable that asks for completions; click derives its name from the name of the program."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print a completion script for a shell. It completes commands, options and their values.

    \b
    Examples:
      cstp completion bash > ~/.local/share/bash-completion/completions/cstp
      cstp completion zsh > "${fpath[1]}/_cstp"
      cstp completion fish > ~/.config/fish/completions/cstp.fish
    """
    from click.shell_completion import get_completion_class

    generator = get_completion_class(shell)
    assert generator is not None, "click knows these three"
    click.echo(generator(click.get_current_context().find_root().command, {}, PROGRAM, VARIABLE).source())
