"""The `cstp` command, composed of its subcommands.

Nothing but click is imported before a subcommand is chosen: listing them, which help and shell completion do, must not
wait for what they need.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import inspect
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from cstp_grpc.common.version import VERSION

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class ListedCommand(NamedTuple):
    """A subcommand as it is listed without being imported."""

    where: str
    """The module beside this one and the name in it, as `module:name`."""
    summary: str
    """The first sentence of its help; a test compares the two."""


COMMANDS_BY_TOPIC: Final = {
    "Look before you act": {
        "announce": ListedCommand(
            "protocol:announce_command",
            "Announce an intent and get advice.",
        ),
        "check": ListedCommand("protocol:check_command", "Check an action against the guardrails."),
        "query": ListedCommand("protocol:query_command", "Search past decisions by meaning."),
        "pre-action": ListedCommand(
            "pre_action:pre_action_command",
            "Announce an intent; record it if allowed.",
        ),
        "session-context": ListedCommand(
            "session_context:session_context_command",
            "Print what a new session should know.",
        ),
        "intent": ListedCommand(
            "protocol:intent_group",
            "Close and watch announced intents.",
        ),
    },
    "Decisions": {
        "record": ListedCommand("journal:record_command", "Record a decision."),
        "update": ListedCommand("journal:update_command", "Change a decision of yours."),
        "review": ListedCommand("journal:review_command", "Review how a decision turned out."),
        "list": ListedCommand("journal:list_command", "List decisions, latest first."),
        "show": ListedCommand("journal:show_command", "Show a decision."),
        "share": ListedCommand("journal:share_command", "Share a decision with every agent."),
        "unshare": ListedCommand("journal:unshare_command", "Make a shared decision private again."),
        "link": ListedCommand("journal:link_command", "Link a decision to others."),
        "graph": ListedCommand("journal:graph_command", "Draw the decisions linked to a decision."),
        "duplicates": ListedCommand("journal:duplicates_command", "Find near-duplicates among your decisions."),
        "calibration": ListedCommand("calibration:calibration_command", "Compare confidences with outcomes."),
        "patterns": ListedCommand(
            "calibration:patterns_command",
            "Find what failed decisions have in common.",
        ),
        "watch": ListedCommand("journal:watch_command", "Watch changes of decisions."),
        "import": ListedCommand("import_command:import_command", "Import decision records from files."),
        "export": ListedCommand("journal:export_command", "Export your decisions as JSON Lines."),
        "delete": ListedCommand(
            "journal:delete_command",
            "Delete a decision of yours.",
        ),
    },
    "Guardrails and audit": {
        "guardrails": ListedCommand("guardrails:guardrails_group", "Write, test and inspect rulebooks."),
        "approvals": ListedCommand("approvals:approvals_group", "List, grant and deny approvals."),
        "audit": ListedCommand("audit:audit_group", "Search, verify and export the audit trail."),
        "intents": ListedCommand("audit:intents_command", "List all announced intents, latest first."),
    },
    "Agents and their hosts": {
        "mcp": ListedCommand(
            "mcp_command:mcp_command",
            "Serve the tools of CSTP over MCP.",
        ),
        "mcp-guard": ListedCommand(
            "mcp_guard_command:mcp_guard_command",
            "Guard the tools of another MCP server.",
        ),
        "hook": ListedCommand(
            "hook_command:hook_command",
            "Answer a hook of a coding agent.",
        ),
        "install": ListedCommand(
            "hook_installation:install_command",
            "Install the hook into a coding agent.",
        ),
        "uninstall": ListedCommand(
            "hook_installation:uninstall_command",
            "Remove the hook from a coding agent.",
        ),
        "agents": ListedCommand("peers:agents_group", "List peers with health and latency."),
        "agent-card": ListedCommand(
            "agent_card:agent_card_command",
            "Show the agent card of a bridge.",
        ),
        "liaison": ListedCommand(
            "liaison:liaison_group",
            "Hand chat sessions to liaison agents.",
        ),
        "context": ListedCommand("context:context_group", "Read and check AGENTS.md files."),
        "learn": ListedCommand("learn:learn_group", "Report and review learnings."),
    },
    "Run a server": {
        "serve": ListedCommand(
            "serve:serve_command",
            "Run the gRPC server and the HTTP bridge.",
        ),
        "bridge": ListedCommand("serve:bridge_command", "Run the HTTP bridge alone."),
        "demo": ListedCommand(
            "demo:demo_command",
            "Show a session over both transports.",
        ),
        "health": ListedCommand(
            "health:health_command",
            "Ask a server for its health.",
        ),
        "doctor": ListedCommand("doctor:doctor_command", "Check an installation and say what to fix."),
        "config": ListedCommand("config:config_group", "Check and document the configuration."),
        "token": ListedCommand("tokens:token_group", "Create, list, rotate and revoke tokens."),
    },
    "Keep its data": {
        "backup": ListedCommand("backup:backup_command", "Back up the journal while servers run."),
        "restore": ListedCommand("backup:restore_command", "Restore a backup."),
        "copy": ListedCommand("backup:copy_command", "Copy a journal into another database."),
        "migrate": ListedCommand(
            "config:migrate_command",
            "Migrate the database to this version.",
        ),
        "reindex": ListedCommand("reindex:reindex_command", "Recompute the vectors of all decisions."),
        "erase": ListedCommand(
            "erasure:erase_command",
            "Erase everything of an agent.",
        ),
    },
    "Other": {
        "call": ListedCommand(
            "protocol:call_command",
            "Call any method by its JSON-RPC name.",
        ),
        "completion": ListedCommand(
            "completion:completion_command",
            "Print a completion script for a shell.",
        ),
        "version": ListedCommand("protocol:version_command", "Show the version."),
    },
}
"""The subcommands as the help lists them."""

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
    "status": ("health", "doctor"),
}
"""The commands that users may mean by names that no command has."""

EXAMPLE: Final = re.compile(r"^Examples?:\n((?:.*\\\n)*.*)", re.MULTILINE)
"""The first example in a command's help, with its continuation lines."""

GC_THRESHOLD: Final = 100_000
"""Object allocations between two garbage collections. Chosen: most commands end before the first one."""


class LazyCommandGroup(click.Group):
    """A group that imports a command when it is used, since some need libraries that take long to load."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line, or list the commands, and exit."""
        # Modules are not garbage. Measured: scanning them repeatedly takes an eighth of each command.
        gc.set_threshold(GC_THRESHOLD)
        # Nor are they at the end: Python scans them all once more before it exits, a quarter of a short command's time.
        # Unregistered first, because a process may run several commands.
        atexit.unregister(gc.freeze)
        atexit.register(gc.freeze)
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
        module, name = COMMANDS[cmd_name].where.split(":")
        command: click.Command = getattr(importlib.import_module(f"cstp_grpc.cli.{module}"), name)
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
        """Return the completions of a word: commands and options."""
        from click.shell_completion import CompletionItem

        names = [name for name in COMMANDS if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=command_stub(name).get_short_help_str()) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a known error ends it with exit code 1 and a hint."""
        from cstp_grpc.cli.command_decorators import CommandState, exit_on_known_failure

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
    found = EXAMPLE.search(inspect.cleandoc(command.help or ""))
    return found[1] if found else None


def command_stub(name: str) -> click.Command:
    """Return a placeholder for a command, for listings only."""
    return click.Command(name, help=COMMANDS[name].summary)


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
