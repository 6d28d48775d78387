"""The commands that run servers: serve and bridge."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TypeAlias

import click
from pydantic import ValidationError

from cstp_grpc.cli import developer_setup
from cstp_grpc.cli.command_decorators import FILE, config_option, current_state, startup_errors_as_failures
from cstp_grpc.cli.console import Text
from cstp_grpc.cli.developer_setup import DeveloperToken
from cstp_grpc.cli.output import Output
from cstp_grpc.cli.process_supervision import ChildProcessFailed, ChildRestarted
from cstp_grpc.cli.server_stack import ConsoleAccess, ServerStack
from cstp_grpc.common.extras import MissingExtra, install_command, require_extra
from cstp_grpc.common.garbage_collection import freeze_loaded_objects
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.caller import APPROVER, DEVELOPER
from cstp_grpc.contract.enums import RulePreset
from cstp_grpc.platform.child_process import PYTHON_COMMAND, exit_after
from cstp_grpc.platform.config import ConfigError, ServeSettings, Settings, count_workers, exposure
from cstp_grpc.platform.config.environment import APPROVER_TOKEN_FILE, command_path
from cstp_grpc.server.deployment import log_to_stderr

logger = logging.getLogger(__name__)

HANGUP_MESSAGE = "SIGHUP: rulebooks are read again, but no settings; SIGTERM stops the server"

STOP_SECONDS = 20.0
"""Seconds that stopping may take after draining. Chosen: more means that something hangs, such as a database."""
EXAMPLE_METADATA = '{"affectsProduction": true, "codeReviewCompleted": true, "ciPassing": true, "rolloutPercent": 50}'
JSON_HEADER = "'Content-Type: application/json'"
EXAMPLE_QUERY = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "cstp.queryDecisions",
        "params": {"query": "change a database schema without downtime"},
    }
)


@click.command()
@config_option
@click.option(
    "--dev",
    is_flag=True,
    help="Make a token for yourself, serve all local pillars with it and import example decisions, all in data_dir; "
    "notify programs on this machine of A2A tasks.",
)
@click.option(
    "--examples",
    type=click.Choice(["all", "decisions", "none"]),
    default="all",
    show_default=True,
    envvar="CSTP_EXAMPLES",
    show_envvar=True,
    help="Examples for a new journal of --dev: decisions, and with `all` a week of example agents.",
)
@click.option("--bridge/--no-bridge", default=True, help="Run the HTTP bridge too, or not.")
@click.option(
    "--workers",
    metavar="N|auto",
    help="Processes that serve on one port; `auto` means one per core. [default: serve.workers]",
)
@click.option("--insecure", is_flag=True, help="Serve other machines without TLS. [default: serve.insecure]")
def serve_command(dev: bool, examples: str, bridge: bool, workers: str | None, insecure: bool) -> None:
    """Run the gRPC server and the HTTP bridge. Ctrl-C or SIGTERM stops them; a closed terminal does not.

    \b
    Examples:
      cstp serve --dev
      cstp serve --config cstp.yaml
      cstp serve --config cstp.yaml --no-bridge
      cstp serve --config cstp.yaml --workers 4
    """
    require_extra("server")
    out = Output()
    settings = current_state().settings()
    if workers is not None:
        settings = with_workers(settings, workers)
    if insecure:
        settings = exposure.allow_plain_listeners(settings)
    # Before anything is started: a signal during the start waits in the queue, so that what was started is stopped in
    # order.
    with receive_signals() as events, startup_errors_as_failures():
        token = developer_setup.developer_token(settings.data_dir) if dev and settings.auth.enabled else None
        if dev:
            settings = with_developer(settings, token)
        if not settings.auth.lets_anyone_in:
            raise ConfigError("auth.tokens: is empty, so nobody could call; add a token, or start with --dev")
        access = console_access(settings, token) if dev and settings.console.enabled else None
        optional = [*(exposure.BRIDGE_LISTENERS if bridge else ()), *(exposure.CONSOLE_LISTENERS if access else ())]
        exposure.check_listeners(settings, [*exposure.SERVER_LISTENERS, *optional])
        log_to_stderr(settings)
        for warning in settings.warnings():
            logger.warning("%s", warning)
        # Only once, so that examples that were erased do not come back.
        is_new = dev and developer_setup.is_new_journal(settings)
        if is_new and examples == "all":
            replay_examples(settings)
        config_file = current_state().config_path
        with ServerStack(settings, config_file, bridge=bridge, private=dev, console=access) as stack:
            shown = examples if is_new else "none"
            announced = StartupMessages(out, settings, token, shown, dev=dev)
            announced.print_ready(stack)
            # What is loaded by now lives as long as the process, so that collections of garbage need not look at it.
            freeze_loaded_objects()
            supervise_until_stopped(stack, announced, events)
            # Bridges and workers drain one after the other.
            drains = 2 if count_workers(settings.serve) > 1 else 1
            exit_after(drains * settings.grpc.drain_seconds + STOP_SECONDS)
    report_stopped(out, settings)


def report_stopped(out: Output, settings: Settings) -> None:
    if settings.logging.format == "json":
        logger.info("stopped")
        return
    # The server stopped in order; a terminal that is gone, so that this cannot be printed, is no failure.
    with suppress(click.ClickException):
        out.line("Stopped.")


def with_developer(settings: Settings, token: DeveloperToken | None) -> Settings:
    """Return the settings with a developer who may do everything, and with a person who approves."""
    if token:
        settings = developer_setup.with_agent(settings, DEVELOPER, token.text)
        settings = developer_setup.with_local_agents(settings, DEVELOPER)
        if settings.approvals.enabled and APPROVER not in {each.name for each in settings.auth.tokens}:
            settings = developer_setup.with_approver(settings)
    return developer_setup.with_loopback_push(settings)


def replay_examples(settings: Settings) -> None:
    """Replay the activity of the example agents into a new journal."""
    # Imported here: it loads the server, which a supervisor of workers does not need.
    from cstp_grpc.cli import example_activity

    logger.info("the new journal gets the examples, which takes some seconds; --examples none leaves them out")
    example_activity.replay_activity(settings, datetime.now(UTC))


def console_access(settings: Settings, token: DeveloperToken | None) -> ConsoleAccess | None:
    """Return how the developer gets into the console; None if its libraries are not installed."""
    try:
        require_extra("console")
    except MissingExtra:
        return None
    if token is None:
        return ConsoleAccess(None, "This server accepts everyone; leave the token empty.")
    files = [str(token.path), *([str(settings.data_dir / APPROVER_TOKEN_FILE)] if settings.approvals.enabled else [])]
    return ConsoleAccess(token.text, f"The tokens of this server are in {' and '.join(files)}.")


def with_workers(settings: Settings, workers: str) -> Settings:
    """Return the settings with another number of workers. Raises click.BadParameter."""
    try:
        serve = ServeSettings.model_validate({**settings.serve.model_dump(), "workers": workers})
    except ValidationError as error:
        raise click.BadParameter(
            "must be `auto` or a whole number from 1 to 256, on Linux if it is not 1", param_hint="--workers"
        ) from error
    return settings.model_copy(update={"serve": serve})


@dataclass(frozen=True, slots=True)
class StartupMessages:
    """Prints the addresses of a server, and writes them to the agents file for a developer."""

    out: Output
    settings: Settings
    token: DeveloperToken | None
    examples: str
    """The examples of a new journal, as --examples names them; `none` if it is not new."""
    dev: bool

    def print_ready(self, stack: ServerStack) -> None:
        """Print the addresses and, for a developer, example commands."""
        imported = self._describe(stack) if self.dev else 0
        if self.settings.logging.format == "json":
            logger.info(
                "ready: gRPC %s, bridge %s, data %s", stack.server.url, stack.bridge_url, self.settings.data_dir
            )
            return
        self.out.line(Text("CSTP is ready.", style="bold"))
        if stack.console:
            self.out.line(f"  console   {stack.console.url} (signs you in once)")
        elif self.dev and self.settings.console.enabled:
            self.out.line(f"  console   not installed: {install_command('console')}")
        self.out.line(f"  gRPC      {stack.server.url if self.settings.grpc.tls else stack.server.target}")
        if bridge := stack.bridge_address:
            self.out.line(f"  JSON-RPC  {bridge.url}/cstp")
            if bridge.a2a_target:
                self.out.line(f"  A2A       {bridge.url}/.well-known/agent-card.json, gRPC {bridge.a2a_target}")
        if (number := count_workers(self.settings.serve)) > 1:
            self.out.line(f"  workers   {number}")
        metrics_urls = {"": stack.server.metrics_url, "bridge ": bridge.metrics_url if bridge else None}
        if metrics := ", ".join(f"{program}{url}" for program, url in metrics_urls.items() if url):
            self.out.line(f"  metrics   {metrics}")
        rules = self.settings.cstp.guardrails
        reads_commands = rules.config_path is None and rules.preset is not RulePreset.DEFAULT
        trial = '; try: cstp check --command "rm -rf /"' if reads_commands else ""
        self.out.line(f"  rules     {rules.source}{trial}")
        examples = f", with {imported} example decisions" if imported else ""
        if self.examples == "all":
            examples += " and a week of example agents (`cstp erase --examples` removes them)"
        self.out.line(f"  data      {self.settings.data_dir}{examples}")
        if self.token:
            kept = f"{self.token.text} (kept in {self.token.path}, not shown again)"
            self.out.line(f"  token     {kept if self.token.created else self.token.path}")
            approver = self.settings.data_dir / APPROVER_TOKEN_FILE
            if approver.exists():
                self.out.line(f"  approver  {approver}, which cstp approvals uses")
        if self.dev:
            self._print_examples(stack)
        self.out.line("Ctrl-C stops everything.")

    def report_new_address(self, stack: ServerStack) -> None:
        if self.dev:
            self._write_agents(stack)
        # Logged, since the terminal that standard output was may be gone by now.
        logger.warning("The bridge was started again and listens on %s", stack.bridge_url)

    def _describe(self, stack: ServerStack) -> int:
        """Write the agents file and import the examples into an empty journal; return their number."""
        self._write_agents(stack)
        from cstp_grpc.client import CstpClient

        if self.examples == "none":
            return 0
        with CstpClient(stack.server.private_target, self.token.text if self.token else None) as client:
            return developer_setup.import_examples(client)

    def _write_agents(self, stack: ServerStack) -> None:
        token = self.token.text if self.token else None
        developer_setup.write_agents_file(self.settings, stack.server.url, stack.bridge_url, token)

    def _print_examples(self, stack: ServerStack) -> None:
        self.out.line(Text("Try, in another terminal:", style="bold"))
        announce = [command_name(), "announce", "Deploy the auth service to production", "--stakes", "high"]
        announce += ["--confidence", "0.8", "--metadata-json", EXAMPLE_METADATA]
        if config_file := current_state().config_path:
            announce += ["--config", str(config_file)]
        self.out.line(f"  {shlex.join(announce)}")
        if stack.bridge_url:
            tls, token = self.settings.server.tls, self.token
            authority = f" --cacert {shlex.quote(str(tls.certificate))}" if tls else ""
            header = f' -H "Authorization: Bearer $(cat {shlex.quote(str(token.path))})"' if token else ""
            request = f"{stack.bridge_url}/cstp{header} -H {JSON_HEADER} -d '{EXAMPLE_QUERY}'"
            self.out.line(f"  curl -s{authority} {request}")


ServeEvent: TypeAlias = int | ChildRestarted | ChildProcessFailed
"""A signal, or the outcome of restarting a process that had died."""
ServeEvents: TypeAlias = "SimpleQueue[ServeEvent]"
"""The events that the main thread of a server waits for."""


def supervise_until_stopped(stack: ServerStack, announced: StartupMessages, events: ServeEvents) -> None:
    """Supervise the processes until asked to stop. Raises ChildProcessFailed if one keeps dying."""
    stack.keep_alive(events.put)
    while True:
        event = events.get()
        if isinstance(event, ChildProcessFailed):
            raise event
        if isinstance(event, ChildRestarted):
            if stack.record_restart(event):
                announced.report_new_address(stack)
            else:
                logger.warning("%s serves again", event.program.name)
        elif event == signal.SIGHUP:
            # Logged here and not in the signal handler, which may have interrupted a write to the log.
            logger.warning(HANGUP_MESSAGE)
            stack.server.reload()
        else:
            return


@contextmanager
def receive_signals() -> Iterator[ServeEvents]:
    """Yield the event queue, to which SIGINT, SIGTERM and SIGHUP are added.

    A second SIGINT or SIGTERM ends the process at once.
    """
    # A signal handler runs in the main thread, possibly while it waits. Event.set() would then deadlock on the lock
    # that the interrupted Event.wait() holds; SimpleQueue.put() is reentrant by design.
    events: ServeEvents = SimpleQueue()

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of handlers
        events.put(number)
        if number != signal.SIGHUP:
            for each in (signal.SIGINT, signal.SIGTERM):
                signal.signal(each, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield events
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def command_name() -> str:
    """Return the shell command for `cstp`, relative to the current folder if possible."""
    path = Path(command_path())
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


@click.command()
@config_option
@click.option(
    "--grpc-target", metavar="TARGET", help="The gRPC server, [grpcs://]HOST:PORT. [default: the configured one]"
)
@click.option("--port-file", type=FILE, help="A file to write HOST:PORT to when it listens.")
@click.option("--a2a-port-file", type=FILE, help="The same for A2A over gRPC.")
@click.option("--insecure", is_flag=True, help="Listen and call without TLS beyond loopback.")
def bridge_command(grpc_target: str | None, port_file: Path | None, a2a_port_file: Path | None, insecure: bool) -> None:
    """Run the HTTP bridge alone. The gRPC server runs elsewhere. Ctrl-C or SIGTERM stops the bridge.

    \b
    Examples:
      cstp bridge --config cstp.yaml --grpc-target 127.0.0.1:50051
      cstp bridge --config cstp.yaml --grpc-target grpcs://cstp.example.com:50051
    """
    require_extra("server")
    options = {
        "--config": current_state().config_path,
        "--grpc-target": grpc_target,
        "--port-file": port_file,
        "--a2a-port-file": a2a_port_file,
    }
    arguments = [part for name, value in options.items() if value for part in (name, str(value))]
    if insecure:
        arguments.append("--insecure")
    # exec: the bridge is a program of its own, and needs no parent process.
    os.execv(sys.executable, [*PYTHON_COMMAND, "bridge", *arguments])  # noqa: S606 - no shell is wanted
