"""Running servers: serve and bridge."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TypeAlias

import click
from pydantic import ValidationError
from rich.text import Text

from cstp_grpc.cli import development
from cstp_grpc.cli.command import FILE, config_option, state
from cstp_grpc.cli.development import DEVELOPER, DeveloperToken
from cstp_grpc.cli.failures import startup
from cstp_grpc.cli.output import Output
from cstp_grpc.cli.stack import Stack
from cstp_grpc.cli.supervised_process import ChildFailed, Restarted
from cstp_grpc.config import ConfigError, ServeSettings, Settings, count_workers
from cstp_grpc.process import PYTHON, end_after, keep_what_is_loaded
from cstp_grpc.server.stderr_log import log_to_stderr

logger = logging.getLogger(__name__)

HANGUP = "SIGHUP is ignored: settings cannot be read anew yet, and SIGTERM stops the server"

STOP_SECONDS = 20.0
"""How long stopping may take beside the time for draining; more means that something hangs, such as a database."""
METADATA = '{"affectsProduction": true, "codeReviewCompleted": true, "ciPassing": true, "rolloutPercent": 50}'
JSON_HEADER = "'Content-Type: application/json'"
QUERY = json.dumps(
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
@click.option("--bridge/--no-bridge", default=True, help="Run the HTTP bridge too, or not.")
@click.option(
    "--workers",
    metavar="N|auto",
    help="How many processes serve on one port, `auto` one for each core; serve.workers when absent.",
)
def serve(dev: bool, bridge: bool, workers: str | None) -> None:
    """Run the gRPC server and the HTTP bridge until Ctrl-C or SIGTERM; a closed terminal does not end them.

    \b
    Examples:
      cstp serve --dev
      cstp serve --config cstp.yaml
      cstp serve --config cstp.yaml --no-bridge
      cstp serve --config cstp.yaml --workers 4
    """
    out = Output()
    settings = state().settings()
    if workers is not None:
        settings = with_workers(settings, workers)
    with stop_signals() as events, startup():
        token = development.developer_token(settings.data_dir) if dev and settings.auth.enabled else None
        if token:
            settings = development.with_agent(settings, DEVELOPER, token.text)
            settings = development.with_local_agents(settings, DEVELOPER)
        if dev:
            settings = development.with_loopback_push(settings)
        if settings.auth.enabled and not settings.auth.tokens:
            raise ConfigError("auth.tokens: is empty, so nobody could call; add a token, or start with --dev")
        log_to_stderr(settings)
        for warning in settings.warnings():
            logger.warning("%s", warning)
        with Stack(settings, state().config_path, bridge=bridge, private=dev) as stack:
            announced = Announcement(out, settings, token, dev=dev)
            announced.ready(stack)
            keep_what_is_loaded()
            watch(stack, announced, events)
            # Bridges and workers drain one after the other.
            drains = 2 if count_workers(settings.serve) > 1 else 1
            end_after(drains * settings.grpc.drain_seconds + STOP_SECONDS)
    # Everything has ended in good order, also where the terminal to say so on is gone.
    with suppress(click.ClickException):
        out.line("Stopped.")


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
class Announcement:
    """Tells where a server is, and tells the agents file too where it runs for a developer."""

    out: Output
    settings: Settings
    token: DeveloperToken | None
    dev: bool

    def ready(self, stack: Stack) -> None:
        """Say that everything runs and what to do with it."""
        imported = self._describe(stack) if self.dev else 0
        self.out.line(Text("CSTP is ready.", style="bold"))
        self.out.line(f"  gRPC      {stack.server.url if self.settings.grpc.tls else stack.server.target}")
        if bridge := stack.bridge_address:
            self.out.line(f"  JSON-RPC  {bridge.url}/cstp")
            self.out.line(f"  A2A       {bridge.url}/.well-known/agent-card.json, gRPC {bridge.a2a_target}")
        if (number := count_workers(self.settings.serve)) > 1:
            self.out.line(f"  workers   {number}")
        rules = self.settings.cstp.guardrails.config_path
        self.out.line(f"  rules     {rules or 'the default ones, which come with the package'}")
        examples = f", with {imported} example decisions" if imported else ""
        self.out.line(f"  data      {self.settings.data_dir}{examples}")
        if self.token:
            kept = f"{self.token.text} (kept in {self.token.path}, not shown again)"
            self.out.line(f"  token     {kept if self.token.created else self.token.path}")
        if self.dev:
            self._suggest(stack)
        self.out.line("Ctrl-C stops everything.")

    def moved(self, stack: Stack) -> None:
        """Say where the bridge listens now."""
        if self.dev:
            self._write_agents(stack)
        # Logged, since the terminal that standard output was may be gone by now.
        logger.warning("The bridge was started again and listens on %s", stack.bridge_url)

    def _describe(self, stack: Stack) -> int:
        """Write the agents file, and import the examples into an empty journal; return how many were imported."""
        self._write_agents(stack)
        from cstp_grpc.client import CstpClient

        with CstpClient(stack.server.private_target, self.token.text if self.token else None) as client:
            empty = next(client.list_decisions(page_size=1), None) is None
            return development.import_examples(client) if empty else 0

    def _write_agents(self, stack: Stack) -> None:
        token = self.token.text if self.token else None
        development.write_agents_file(self.settings, stack.server.url, stack.bridge_url, token)

    def _suggest(self, stack: Stack) -> None:
        self.out.line(Text("Try, in another terminal:", style="bold"))
        announce = [command_name(), "announce", "Deploy the auth service to production", "--stakes", "high"]
        announce += ["--confidence", "0.8", "--metadata-json", METADATA]
        if config_file := state().config_path:
            announce += ["--config", str(config_file)]
        self.out.line(f"  {shlex.join(announce)}")
        if stack.bridge_url:
            request = f"{stack.bridge_url}/cstp{self._header()} -H {JSON_HEADER} -d '{QUERY}'"
            self.out.line(f"  curl -s{self._authority()} {request}")

    def _authority(self) -> str:
        tls = self.settings.server.tls
        return f" --cacert {shlex.quote(str(tls.certificate))}" if tls else ""

    def _header(self) -> str:
        if self.token is None:
            return ""
        return f' -H "Authorization: Bearer $(cat {shlex.quote(str(self.token.path))})"'


Event: TypeAlias = int | Restarted | ChildFailed
"""A signal, or what became of a process that had died."""


class Events:
    """What the main thread of a server waits for."""

    def __init__(self) -> None:
        # A signal may come in the middle of waiting. An Event's set() would then wait for the lock that the interrupted
        # wait() holds, for ever; a SimpleQueue takes entries from within its own methods.
        self._queue: SimpleQueue[Event] = SimpleQueue()

    def add(self, event: Event) -> None:
        """Add an event; signal handlers and other threads may."""
        self._queue.put(event)

    def wait(self, timeout: float | None = None) -> Event | None:
        """Wait for the next event and return it; None if there is none within `timeout` seconds."""
        try:
            return self._queue.get(timeout=timeout)
        except Empty:
            return None


def watch(stack: Stack, announced: Announcement, events: Events) -> None:
    """Look after the processes until asked to stop. Raises ChildFailed if one cannot be kept alive."""
    stack.keep_alive(events.add)
    while True:
        event = events.wait()
        if isinstance(event, ChildFailed):
            raise event
        if isinstance(event, Restarted):
            if stack.take_restart(event):
                announced.moved(stack)
            else:
                logger.warning("%s serves again", event.program.name)
        elif event == signal.SIGHUP:
            # Written to the log here, where it interrupts nothing that writes there too.
            logger.warning(HANGUP)
        else:
            return


@contextmanager
def stop_signals() -> Iterator[Events]:
    """Yield events, also those of SIGINT and SIGTERM, the second of which ends the process at once, and of SIGHUP."""
    events = Events()

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of handlers
        events.add(number)
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
    """Return how this command is called from a shell here: `cstp`, or its path where it is on no search path."""
    found = shutil.which("cstp")
    own = Path(sys.executable).with_name("cstp")
    if not own.exists() or (found and Path(found).samefile(own)):
        return "cstp"
    return str(own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own)


@click.command()
@config_option
@click.option(
    "--grpc-target", metavar="TARGET", help="The gRPC server, [grpcs://]HOST:PORT; when absent, the configured one."
)
@click.option("--port-file", type=FILE, help="A file to write HOST:PORT to when it listens.")
@click.option("--a2a-port-file", type=FILE, help="The same for A2A over gRPC.")
def bridge(grpc_target: str | None, port_file: Path | None, a2a_port_file: Path | None) -> None:
    """Run the HTTP bridge alone until Ctrl-C or SIGTERM, for a gRPC server elsewhere.

    \b
    Examples:
      cstp bridge --config cstp.yaml --grpc-target 10.0.0.5:50051
      cstp bridge --config cstp.yaml --grpc-target grpcs://cstp.example.com:50051
    """
    given = {
        "--config": state().config_path,
        "--grpc-target": grpc_target,
        "--port-file": port_file,
        "--a2a-port-file": a2a_port_file,
    }
    arguments = [part for name, value in given.items() if value for part in (name, str(value))]
    # The bridge takes this process over, since it is a program of its own.
    os.execv(sys.executable, [*PYTHON, "bridge", *arguments])  # noqa: S606 - no shell is wanted
