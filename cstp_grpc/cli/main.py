"""The `cstp` command, composed of its subcommands.

Nothing but click is imported before a subcommand is chosen: help and shell completion list them, and must not wait
for their imports.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from cstp_grpc.common.garbage_collection import spare_modules_collection
from cstp_grpc.common.version import VERSION

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


COMMANDS_BY_TOPIC: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Look before you act": {
        "announce": ("protocol", "Announce an intent and get advice."),
        "check": ("protocol", "Check an action against the guardrails."),
        "query": ("protocol", "Search past decisions by meaning."),
        "pre-action": ("protocol", "Announce an intent; record it if allowed."),
        "session-context": ("protocol", "Print the context of a new session."),
        "ready": ("ready", "List reviews, intents and drift to look after."),
        "intent": ("protocol", "Close and watch announced intents."),
    },
    "Decisions": {
        "record": ("journal", "Record a decision."),
        "update": ("journal", "Change a decision of yours."),
        "review": ("journal", "Review how a decision turned out."),
        "list": ("journal", "List decisions, latest first."),
        "show": ("journal", "Show a decision."),
        "think": ("journal", "Attach reasoning to an intent or a decision."),
        "thoughts": ("journal", "List thoughts, latest first."),
        "share": ("journal", "Share a decision with every agent."),
        "unshare": ("journal", "Make a shared decision private again."),
        "link": ("journal", "Link a decision to others."),
        "graph": ("journal", "Draw the decisions linked to a decision."),
        "explain": ("explain", "Explain why a search finds decisions."),
        "duplicates": ("journal", "Find near-duplicates among your decisions."),
        "compact": ("journal", "Summarize your old decisions by topic."),
        "calibration": ("calibration", "Compare confidences with outcomes."),
        "patterns": ("calibration", "Find what failed decisions have in common."),
        "watch": ("journal", "Watch changes of decisions."),
        "import": ("import_command", "Import decision records from files."),
        "export": ("journal", "Export your decisions as JSON Lines."),
        "delete": ("journal", "Delete a decision of yours."),
    },
    "Guardrails and audit": {
        "guardrails": ("guardrails", "Write, test and inspect rulebooks."),
        "approvals": ("approvals", "List, grant and deny approvals."),
        "audit": ("audit", "Search, verify and export the audit trail."),
        "intents": ("audit", "List all announced intents, latest first."),
    },
    "Agents and their hosts": {
        "mcp": ("mcp_command", "Serve the tools of CSTP over MCP."),
        "mcp-guard": ("mcp_guard_command", "Guard the tools of another MCP server."),
        "hook": ("hook_command", "Answer a hook of a coding agent."),
        "install": ("hook_installation", "Install the hook into a coding agent."),
        "uninstall": ("hook_installation", "Remove the hook from a coding agent."),
        "agent-card": ("agent_card", "Show the agent card of a bridge."),
        "liaison": ("liaison", "Hand chat sessions to liaison agents."),
        "context": ("context", "Read and check AGENTS.md files."),
        "learn": ("learn", "Report and review learnings."),
    },
    "Run a server": {
        "serve": ("serve", "Run the gRPC server and the HTTP bridge."),
        "bridge": ("serve", "Run the HTTP bridge alone."),
        "console": ("console_command", "Run the console, pages for people."),
        "demo": ("demo", "Show a session over both transports."),
        "status": ("status", "Show version, queues and warnings of a server."),
        "agents": ("status", "List agents with their calls."),
        "peers": ("peers", "List peers with health and latency."),
        "health": ("health", "Ask a server for its health."),
        "doctor": ("doctor", "Check an installation and suggest fixes."),
        "config": ("config", "Check and document the configuration."),
        "token": ("tokens", "Create, list, rotate and revoke tokens."),
    },
    "Keep its data": {
        "backup": ("backup", "Back up the journal while servers run."),
        "restore": ("backup", "Restore a backup."),
        "copy": ("backup", "Copy a journal into another database."),
        "migrate": ("config", "Migrate the database to this version."),
        "reindex": ("backup", "Recompute the vectors of all decisions."),
        "erase": ("erasure", "Erase everything of an agent."),
    },
    "Other": {
        "call": ("protocol", "Call any method by its JSON-RPC name."),
        "completion": ("main", "Print a completion script for a shell."),
        "version": ("protocol", "Show the version."),
    },
}
"""The subcommands as the help lists them: the module in this package, and the first sentence of the help.

A test compares the sentences.
"""

COMMANDS: Final = {name: listed for commands in COMMANDS_BY_TOPIC.values() for name, listed in commands.items()}

MEANT_COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "approve": ("approvals",),
    "ask": ("query", "check"),
    "decide": ("record", "list"),
    "decisions": ("list",),
    "log": ("list", "audit", "record"),
    "rules": ("guardrails",),
    "search": ("query",),
    "start": ("serve",),
}
"""The commands that users may mean by names that no command has."""

EXAMPLE: Final = r"^Examples?:\n((?:.*\\\n)*.*)"
"""The first example in a command's help, with its continuation lines."""


class LazyCommandGroup(click.Group):
    """A group that imports a command when it is used, since some need libraries that take long to load."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line, or list the commands, and exit."""
        spare_modules_collection()
        return super().main(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        environment = importlib.import_module("cstp_grpc.platform.config.environment")
        # Before the module of the command: ONNX Runtime and gRPC read their variables when they are imported.
        environment.forbid_telemetry()
        environment.silence_grpc()
        module = importlib.import_module(f"cstp_grpc.cli.{COMMANDS[cmd_name][0]}")
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(module, f"{name}_command", None) or getattr(module, f"{name}_group")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command and its arguments. Raises NoSuchCommand with likely alternatives."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            meant = MEANT_COMMANDS.get(error.command_name)
            if meant is None:
                raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from error
            *others, last = [f"cstp {name}" for name in meant]
            names = f"{', '.join(others)} or {last}" if others else last
            raise click.UsageError(f"{error.message} Did you mean {names}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, COMMANDS))
        for topic, commands in COMMANDS_BY_TOPIC.items():
            with formatter.section(topic):
                # 6: what click itself leaves for the indentation and the space between the columns.
                limit = formatter.width - 6 - width
                rows = [(name.ljust(width), command_stub(name).get_short_help_str(limit)) for name in commands]
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [name for name in COMMANDS if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=command_stub(name).get_short_help_str()) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a known error ends it with exit code 1 and a hint."""
        from cstp_grpc.cli.command_decorators import exit_on_known_failure
        from cstp_grpc.cli.command_state import CommandState

        ctx.obj = CommandState()
        with exit_on_known_failure(ctx):
            try:
                return super().invoke(ctx)
            except click.MissingParameter as error:
                example = find_example(error.ctx.command) if error.ctx else None
                if example is None:
                    raise
                raise click.UsageError(f"{error.format_message()} Example:\n{example}", error.ctx) from error


def find_example(command: click.Command) -> str | None:
    found = re.search(EXAMPLE, inspect.cleandoc(command.help or ""), re.MULTILINE)
    return found[1] if found else None


def command_stub(name: str) -> click.Command:
    return click.Command(name, help=COMMANDS[name][1])


@click.command(cls=LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="cstp")
def main() -> None:
    """Look before you act: announce intents, query past decisions, check guardrails.

    \b
    Start a server with example decisions, then ask it:
      cstp serve --dev
      cstp query "zero downtime migration"
      cstp announce "Deploy the auth service to production" --stakes high
    """


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
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
    # Click derives the name of the variable that asks for completions from the name of the program.
    click.echo(generator(main, {}, "cstp", "_CSTP_COMPLETE").source())
