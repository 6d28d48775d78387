"""The `cstp` command, composed of its subcommands."""

from __future__ import annotations

import importlib
from typing import Final

import click

from cstp_grpc.cli.command import RootGroup

COMMANDS: Final = {
    "serve": "serve:serve",
    "bridge": "serve:bridge",
    "demo": "demo:demo",
    "query": "protocol:query",
    "check": "protocol:check",
    "announce": "protocol:announce",
    "record": "journal:record",
    "review": "journal:review",
    "list": "journal:list_command",
    "show": "journal:show",
    "share": "journal:share",
    "unshare": "journal:unshare",
    "import": "importing:import_command",
    "agents": "agents:agents",
    "liaison": "liaison:liaison",
    "guardrails": "guardrails:guardrails",
    "audit": "auditing:audit",
    "intents": "auditing:intents",
    "call": "generic:call",
    "agent-card": "agent_card:agent_card",
    "context": "context:context",
    "learn": "learning:learn",
    "config": "configuration:config",
    "migrate": "configuration:migrate",
    "version": "generic:version",
}
"""Where each command is, as `module:name`, in the order of the help."""
LIGHT: Final = frozenset({"context", "learn"})
"""Commands for agents to run before each edit: they start without what reads settings and calls servers."""


class Cstp(RootGroup):
    """Imports a command when it is used: some need libraries that take long to load, and the others should not wait."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in LIGHT:
            config = importlib.import_module("cstp_grpc.config")
            config.forbid_telemetry()
            config.silence_grpc()
        module, name = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(f"cstp_grpc.cli.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called, and its arguments. Raises NoSuchCommand with what was likely meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from error


@click.command(cls=Cstp, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="cstp-grpc", prog_name="cstp")
def main() -> None:
    """Look before you act: announce intents, query past decisions, check guardrails.

    \b
    Start a server with example decisions, then ask it:
      cstp serve --dev
      cstp query "zero downtime migration"
      cstp announce "Deploy the auth service to production" --stakes high
    """
