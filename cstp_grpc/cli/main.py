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

from cstp_grpc.version import VERSION

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
            "Announce what you are about to do; get similar decisions, a verdict and suggestions.",
        ),
        "check": ListedCommand("protocol:check_command", "Ask the guardrails about an action."),
        "query": ListedCommand(
            "protocol:query_command", "Find past decisions that resemble TEXT, the most similar first."
        ),
        "pre-action": ListedCommand(
            "pre_action:pre_action_command",
            "Announce what you are about to do, and record the decision if it is allowed.",
        ),
        "session-context": ListedCommand(
            "session_context:session_context_command",
            "Print what you should know when you start: your past, the rules, others' intents, as Markdown.",
        ),
        "intent": ListedCommand(
            "protocol:intent_group",
            "Say what became of an intent that you announced, and hear of those that are announced.",
        ),
    },
    "Decisions": {
        "record": ListedCommand("journal:record_command", "Record a decision of yours."),
        "update": ListedCommand(
            "journal:update_command", "Change the content of a decision of yours; the former one is kept."
        ),
        "review": ListedCommand(
            "journal:review_command", "Say how a decision turned out, and what is to be learnt from it."
        ),
        "list": ListedCommand("journal:list_command", "List the decisions you may read, latest first."),
        "show": ListedCommand(
            "journal:show_command", "Show a decision: your own whole, another's shared one without its private parts."
        ),
        "share": ListedCommand(
            "journal:share_command", "Let every agent find a decision of yours; its context and reasoning stay private."
        ),
        "unshare": ListedCommand("journal:unshare_command", "Take back the sharing of a decision of yours."),
        "link": ListedCommand("journal:link_command", "Link a decision of yours to others that you may read."),
        "graph": ListedCommand(
            "journal:graph_command", "Show which decisions a decision is linked with, as far as you may read them."
        ),
        "duplicates": ListedCommand("journal:duplicates_command", "Find decisions of yours that say nearly the same."),
        "calibration": ListedCommand(
            "calibration:calibration_command", "Compare stated confidences with how the decisions turned out."
        ),
        "patterns": ListedCommand(
            "calibration:patterns_command",
            "Find what decisions that failed have in common: what goes with failure, and failures that recur.",
        ),
        "watch": ListedCommand(
            "journal:watch_command", "Print each change of the decisions you may read, as it happens, until Ctrl-C."
        ),
        "import": ListedCommand(
            "import_command:import_command", "Import the decision records in the files and folders at PATHS."
        ),
        "export": ListedCommand(
            "journal:export_command", "Write your decisions as JSON Lines, which `cstp import` reads."
        ),
        "delete": ListedCommand(
            "journal:delete_command",
            "Delete a decision of yours with its reviews and former contents; only its id stays.",
        ),
    },
    "Guardrails and audit": {
        "guardrails": ListedCommand("guardrails:guardrails_group", "Look at rulebooks, write and test them."),
        "approvals": ListedCommand(
            "approvals:approvals_group", "Decide on what agents may do only if a person approves it."
        ),
        "audit": ListedCommand("audit:audit_group", "Search the audit trail, verify that it is whole, and export it."),
        "intents": ListedCommand("audit:intents_command", "List the announced intents of every agent, latest first."),
    },
    "Agents and their hosts": {
        "mcp": ListedCommand(
            "mcp_command:mcp_command",
            "Serve the tools of CSTP to hosts of agents over the Model Context Protocol (MCP).",
        ),
        "mcp-guard": ListedCommand(
            "mcp_guard_command:mcp_guard_command",
            "Run an MCP server with its tools under guard: a call that guardrails do not allow is not made.",
        ),
        "hook": ListedCommand(
            "hook_command:hook_command",
            "Answer a hook of a coding agent: judge a tool call, add what governs a file, file what was learned.",
        ),
        "install": ListedCommand(
            "hook_installation:install_command",
            "Put `cstp hook` into the settings of a coding agent, after showing the difference.",
        ),
        "uninstall": ListedCommand(
            "hook_installation:uninstall_command",
            "Take `cstp hook` out of the settings of a coding agent, after showing the difference.",
        ),
        "agents": ListedCommand(
            "peers:agents_group", "List the agents of federation.peers with their health, version, latency and card."
        ),
        "agent-card": ListedCommand(
            "agent_card:agent_card_command",
            "Show the agent card of the bridge at URL; when absent, of this machine's bridge.",
        ),
        "liaison": ListedCommand(
            "liaison:liaison_group",
            "Hand a user's conversation from the guide to the liaison agent of a pillar, with its context.",
        ),
        "context": ListedCommand(
            "context:context_group", "Read what governs a path in AGENTS.md and CLAUDE.md, and keep these files right."
        ),
        "learn": ListedCommand("learn:learn_group", "File what was learned at work, and review what was filed."),
    },
    "Run a server": {
        "serve": ListedCommand(
            "serve:serve_command",
            "Run the gRPC server and the HTTP bridge until Ctrl-C or SIGTERM; a closed terminal does not end them.",
        ),
        "bridge": ListedCommand(
            "serve:bridge_command", "Run the HTTP bridge alone until Ctrl-C or SIGTERM, for a gRPC server elsewhere."
        ),
        "demo": ListedCommand(
            "demo:demo_command",
            "Start everything, import example decisions, announce an intent over gRPC and over JSON-RPC, and stop.",
        ),
        "health": ListedCommand(
            "health:health_command",
            "Ask a server whether it serves, by the gRPC health checking protocol; no token is needed.",
        ),
        "doctor": ListedCommand(
            "doctor:doctor_command", "Check what a server needs, and say what to do about what is wrong."
        ),
        "config": ListedCommand("config:config_group", "Check and document the configuration."),
        "token": ListedCommand("tokens:token_group", "Make, list, rotate and revoke the tokens by which agents call."),
    },
    "Keep its data": {
        "backup": ListedCommand(
            "backup:backup_command", "Save the journal and what belongs to it into a new FOLDER, while servers run."
        ),
        "restore": ListedCommand(
            "backup:restore_command", "Put the backup in FOLDER where the configuration says that the journal is."
        ),
        "copy": ListedCommand(
            "backup:copy_command", "Copy a journal from one database into another, such as from SQLite into PostgreSQL."
        ),
        "migrate": ListedCommand(
            "config:migrate_command",
            "Bring the database to the tables of this version; a server does so too when it starts.",
        ),
        "reindex": ListedCommand(
            "reindex:reindex_command", "Embed all decisions anew with the embedder of the configuration."
        ),
        "erase": ListedCommand(
            "erasure:erase_command",
            "Erase what AGENT has left: decisions, intents, requests, tasks, and its contents in the audit trail.",
        ),
    },
    "Other": {
        "call": ListedCommand(
            "protocol:call_command",
            "Call any unary METHOD by its JSON-RPC name with PARAMS, a JSON object; `-` reads it from standard input.",
        ),
        "completion": ListedCommand(
            "completion:completion_command",
            "Print the script with which SHELL completes commands, options and their values.",
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
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command."""
        if cmd_name not in COMMANDS:
            return None
        environment = importlib.import_module("cstp_grpc.config.environment")
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
        """Write the list of commands into the help, by topic."""
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
    """Return the first example in the help of a command, or None if it has none."""
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
